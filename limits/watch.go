package limits

import (
	"bytes"
	"context"
	"os"
	"time"

	"github.com/tryacquire/ratelimit/internal/filewatch"
)

// Watch reads the file every so often until ctx ends, and puts it in force when its text has changed and was the same
// twice in a row, so that a file that is being written is left alone. It reports nil when a changed file is in force,
// and the error of [Set.Reload] when it is not: once for each text, or for each reason why the file cannot be read.
//
// A file that is replaced, or that a symbolic link leads to, as in a Kubernetes ConfigMap, is noticed too. The file is
// read by one goroutine, the caller's.
func (s *Set) Watch(ctx context.Context, every time.Duration, report func(error)) {
	s.watcher(report).Watch(ctx, every)
}

func (s *Set) watcher(report func(error)) *filewatch.Watcher[[]byte] {
	return &filewatch.Watcher[[]byte]{
		Read: func() ([]byte, error) { return os.ReadFile(s.file) }, Same: bytes.Equal,
		InForce: func() []byte { return s.current.Load().text }, Load: s.load, Report: report,
	}
}

package limits

import (
	"bytes"
	"context"
	"os"
	"time"
)

// Watch reads the file every so often until ctx ends, and puts it in force when its text has changed and was the same
// twice in a row, so that a file that is being written is left alone. It reports nil when a changed file is in force,
// and the error of [Set.Reload] when it is not: once for each text, or for each reason why the file cannot be read.
//
// A file that is replaced, or that a symbolic link leads to, as in a Kubernetes ConfigMap, is noticed too. The file is
// read by one goroutine, the caller's.
func (s *Set) Watch(ctx context.Context, every time.Duration, report func(error)) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	w := watcher{set: s, read: func() ([]byte, error) { return os.ReadFile(s.file) }, report: report}
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			w.look()
		}
	}
}

// A watcher is what Watch has seen of the file.
type watcher struct {
	set    *Set
	read   func() ([]byte, error)
	report func(error)
	last   []byte // the text that was read last
	failed []byte // the text that was reported as an error
	reason string // why the file could not be read the last time
}

// look reads the file once.
func (w *watcher) look() {
	text, err := w.read()
	if err != nil {
		if w.reason != err.Error() {
			w.reason = err.Error()
			w.report(err)
		}
		w.last = nil
		return
	}
	w.reason = ""
	settled := w.last != nil && bytes.Equal(text, w.last)
	w.last = text
	switch {
	case !settled:
		return
	case bytes.Equal(text, w.set.current.Load().text):
		w.failed = nil
		return
	case w.failed != nil && bytes.Equal(text, w.failed):
		return
	}
	err = w.set.load(text)
	if w.failed = nil; err != nil {
		w.failed = text
	}
	w.report(err)
}

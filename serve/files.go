package serve

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tryacquire/ratelimit"
)

// Dir reads the files of a folder whose names end with .yaml or .yml, in the order of their names, without those that begin
// with a dot.
func Dir(folder string) func() ([]Source, error) {
	return func() ([]Source, error) {
		entries, err := os.ReadDir(folder)
		if err != nil {
			return nil, err
		}
		var files []Source
		for _, entry := range entries {
			name := entry.Name()
			if strings.HasPrefix(name, ".") || !strings.HasSuffix(name, ".yaml") && !strings.HasSuffix(name, ".yml") {
				continue
			}
			text, err := os.ReadFile(filepath.Join(folder, name))
			if err != nil {
				return nil, err
			}
			files = append(files, Source{filepath.Join(folder, name), text})
		}
		return files, nil
	}
}

// Reload reads the files again and puts them in force, all at once. Requests that have begun keep the rules that they
// began with; what was counted stays counted. After an error everything stays as it was.
func (s *Service) Reload() error {
	files, err := s.options.Files()
	if err != nil {
		return fmt.Errorf("ratelimit/serve: %w", err)
	}
	return s.load(files)
}

func (s *Service) load(files []Source) error {
	s.loading.Lock()
	defer s.loading.Unlock()
	c, err := parse(s.options.MergeDomains, files)
	if err != nil {
		s.stats.broken.Add(1)
		return err
	}
	s.current.Store(&state{c, files})
	s.stats.loaded.Add(1)
	return nil
}

// Watch reads the files every so often until ctx ends, and puts them in force when they have changed and were the same
// twice in a row, so that a file that is being written is left alone. It reports nil for each change that is in force,
// and once for each that is not, why.
func (s *Service) Watch(ctx context.Context, every time.Duration, report func(error)) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	w := watcher{set: s, report: report}
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			w.look()
		}
	}
}

// A watcher is what Watch has seen of the files.
type watcher struct {
	set          *Service
	report       func(error)
	last, failed []Source // that were read last, and that had mistakes
	reason       string   // why they could not be read the last time
}

// look reads the files once.
func (w *watcher) look() {
	files, err := w.set.options.Files()
	if err != nil {
		if w.reason != err.Error() {
			w.reason = err.Error()
			w.report(err)
		}
		w.last = nil
		return
	}
	if files == nil {
		files = []Source{}
	}
	settled := w.last != nil && same(files, w.last)
	w.reason, w.last = "", files
	switch {
	case !settled:
		return
	case same(files, w.set.current.Load().files):
		w.failed = nil
		return
	case w.failed != nil && same(files, w.failed):
		return
	}
	err = w.set.load(files)
	if w.failed = nil; err != nil {
		w.failed = files
	}
	w.report(err)
}

func same(a, b []Source) bool {
	return slices.EqualFunc(a, b, func(x, y Source) bool { return x.Name == y.Name && bytes.Equal(x.Text, y.Text) })
}

func badFallback(text string) error {
	return fmt.Errorf("%w: the fallback %q is not known; write allow, deny or local, or leave it out to answer with errors", ratelimit.ErrInvalidConfig, text)
}

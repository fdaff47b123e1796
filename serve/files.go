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

	"github.com/tryacquire/ratelimit/internal/filewatch"
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
	unused, err := s.limit(c)
	if err != nil {
		return fmt.Errorf("ratelimit/serve: %w", err)
	}
	s.current.Store(&state{c, files})
	s.stats.loaded.Add(1)
	s.begin.Do(func() { close(s.begun) })
	if unused != nil {
		go func() { _ = closed(context.Background(), unused) }() // what is not given back stays taken
	}
	return nil
}

// Watch reads the files every so often until ctx ends, and puts them in force when they have changed and were the same
// twice in a row, so that a file that is being written is left alone. It reports nil for each change that is in force,
// and once for each that is not, why.
func (s *Service) Watch(ctx context.Context, every time.Duration, report func(error)) {
	s.watcher(report).Watch(ctx, every)
}

func (s *Service) watcher(report func(error)) *filewatch.Watcher[[]Source] {
	return &filewatch.Watcher[[]Source]{
		Read: s.options.Files, Same: same,
		InForce: func() []Source { return s.current.Load().files }, Load: s.load, Report: report,
	}
}

func same(a, b []Source) bool {
	return slices.EqualFunc(a, b, func(x, y Source) bool { return x.Name == y.Name && bytes.Equal(x.Text, y.Text) })
}

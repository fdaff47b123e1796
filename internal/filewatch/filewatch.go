// Package filewatch puts what files hold in force when it has changed. Modules limits and serve use it.
package filewatch

import (
	"context"
	"time"
)

// A Watcher reads files, and puts what it has read in force when that has changed and was the same twice in a row, so
// that files that are being written are left alone. It is not safe for concurrent use.
type Watcher[T any] struct {
	Read    func() (T, error)
	Same    func(a, b T) bool
	InForce func() T
	Load    func(T) error // puts it in force

	// Report gets nil for each change that is in force, and the error of each that is not: once for each text, or for
	// each reason why the files cannot be read.
	Report func(error)

	last   *T     // what was read last; nil: it could not be read
	failed *T     // what was reported as an error
	reason string // why the files could not be read the last time
}

// Watch looks every so often until ctx ends.
func (w *Watcher[T]) Watch(ctx context.Context, every time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			w.Look()
		}
	}
}

// Look reads the files once.
func (w *Watcher[T]) Look() {
	text, err := w.Read()
	if err != nil {
		if w.reason != err.Error() {
			w.reason = err.Error()
			w.Report(err)
		}
		w.last = nil
		return
	}
	settled := w.last != nil && w.Same(text, *w.last)
	w.reason, w.last = "", &text
	switch {
	case !settled:
		return
	case w.Same(text, w.InForce()):
		w.failed = nil
		return
	case w.failed != nil && w.Same(text, *w.failed):
		return
	}
	err = w.Load(text)
	if w.failed = nil; err != nil {
		w.failed = &text
	}
	w.Report(err)
}

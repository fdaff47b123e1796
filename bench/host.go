package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
)

// A host stands in for the test that package redistest starts its servers for.
// It has the methods of testing.TB that redistest calls; the others panic.
type host struct {
	testing.TB // nil

	mu       sync.Mutex // guards all below
	cleanups []func()
	errs     []error
}

// serve runs f with a host, and afterwards stops what was started for it.
func serve(f func(*host) error) error {
	h := &host{}
	done := make(chan struct{})
	go func() { // of its own, because Fatal ends it
		defer close(done)
		defer h.cleanup()
		if err := f(h); err != nil {
			h.Error(err)
		}
	}()
	<-done
	return errors.Join(h.errs...)
}

func (h *host) cleanup() {
	for _, f := range slices.Backward(h.cleanups) {
		f()
	}
}

func (h *host) Cleanup(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cleanups = append(h.cleanups, f)
}

func (h *host) TempDir() string {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (h *host) Error(args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.errs = append(h.errs, errors.New(fmt.Sprint(args...)))
}

func (h *host) Fatal(args ...any) {
	h.Error(args...)
	runtime.Goexit()
}

// Failed is what redistest asks to know whether to show what a server printed.
// A server that does not start is reported without it.
func (h *host) Failed() bool { return false }

func (h *host) Helper()                      {}
func (h *host) Logf(format string, a ...any) { fmt.Fprintf(os.Stderr, format+"\n", a...) }
func (h *host) Errorf(format string, a ...any) {
	h.Error(fmt.Sprintf(format, a...))
}
func (h *host) Fatalf(format string, a ...any) { h.Fatal(fmt.Sprintf(format, a...)) }
func (h *host) Skipf(format string, a ...any)  { h.Fatal(fmt.Sprintf(format, a...)) }

package redistest

import (
	"context"
	"fmt"
	"testing"
	"time"
)

const (
	// startDeadline is generous: a loaded machine of one or two cores may take seconds to start six servers.
	startDeadline = 30 * time.Second
	pollInterval  = 5 * time.Millisecond
	// callDeadline bounds a single administrative command.
	callDeadline = 10 * time.Second
)

// poll calls ready until it returns nil. If that has not happened by the deadline, poll returns the last error.
func poll(what string, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), startDeadline)
	defer cancel()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("redistest: %s: not within %v: %w", what, startDeadline, err)
		case <-time.After(pollInterval):
		}
	}
}

// await is poll, but it fails the test instead of returning an error.
func await(t testing.TB, what string, ready func(context.Context) error) {
	t.Helper()
	if err := poll(what, ready); err != nil {
		t.Fatal(err)
	}
}

// callContext is not derived from the test's context, which ends before the cleanups run.
func callContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), callDeadline)
}

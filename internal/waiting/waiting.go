// Package waiting makes one observed call of a call that may ask a limiter several times until it is
// allowed. A denied attempt is no denial: whoever waits decides in the end whether it is reported.
package waiting

import (
	"context"
	"sync"
	"time"
)

// A Wait is one call of a caller, whose attempts have Context.
type Wait struct {
	Polls  bool // the attempts are those of a wait, and reported as such
	Began  time.Time
	parent *Wait // of an attempt that waits itself

	mu       sync.Mutex // guards what follows: an attempt may go on after its caller has left it
	attempts int
	held     []held
	missing  []Held // for the last attempt
}

// held is a denial of the last attempt.
type held struct {
	by     any // the limiter that reports it
	report func(end error)
}

type key struct{}

// Begin returns a wait that begins now, and the context of its attempts.
func Begin(ctx context.Context, polls bool) (*Wait, context.Context) {
	w := &Wait{Polls: polls, Began: time.Now(), parent: In(ctx)}
	return w, context.WithValue(ctx, key{}, w)
}

// In returns the wait of which ctx is an attempt's context, and nil if there is none.
func In(ctx context.Context) *Wait {
	w, _ := ctx.Value(key{}).(*Wait)
	return w
}

// Leave returns ctx as it was before w began: for observers, which may call limiters.
func (w *Wait) Leave(ctx context.Context) context.Context {
	return context.WithValue(ctx, key{}, w.parent)
}

// Without returns a context that is no attempt's, for what a call does in the background.
func Without(ctx context.Context) context.Context {
	if In(ctx) == nil {
		return ctx
	}
	return context.WithValue(ctx, key{}, (*Wait)(nil))
}

// Hold keeps the denial of a limiter until it is known whether the caller goes on waiting. report
// gets the error of a wait that has ended, nil if there was none.
func (w *Wait) Hold(by any, report func(end error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.held {
		if w.held[i].by == by {
			w.held[i].report = report
			return
		}
	}
	w.held = append(w.held, held{by, report})
}

// Again begins an attempt, and forgets the denials of the last one: the caller goes on waiting, or waits in another way.
func (w *Wait) Again() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held, w.missing = nil, nil
	w.attempts++
}

// Before returns how long the caller had waited when an attempt began that took so long.
func (w *Wait) Before(took time.Duration) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.attempts <= 1 {
		return 0
	}
	return max(time.Since(w.Began)-took, 0)
}

// End reports the denials of the last attempt: the caller gets this answer, with err if it waited.
func (w *Wait) End(err error) {
	w.mu.Lock()
	last := w.held
	w.held = nil
	w.mu.Unlock()
	for _, h := range last {
		h.report(err)
	}
}

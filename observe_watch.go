package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tryacquire/ratelimit/internal/errclass"
	"github.com/tryacquire/ratelimit/internal/merge"
	"github.com/tryacquire/ratelimit/internal/redisexec"
	"github.com/tryacquire/ratelimit/internal/waiting"
)

// A watch reports the calls of one limiter to its observers. It is nil for a limiter without
// observers, whose calls it costs a comparison each.
type watch struct {
	name      string
	observers []Observer
	held      atomic.Int64 // permits in flight of this process
	panicked  firstPanic
}

// watch is nil if there are no observers.
func (s *settings) watch(name string) *watch {
	if s.observers == nil {
		return nil
	}
	return &watch{name: name, observers: s.observers}
}

// observed does a call and reports it. If the check of the call has failed, and o.Err says why, the call is
// reported only. do asks, stores the answer in o, and returns how the call was sent.
func (w *watch) observed(ctx context.Context, o *Observation, do func() (sent sending)) {
	if w == nil {
		if o.Err == nil {
			do()
		}
		return
	}
	began := time.Now()
	if o.Err == nil {
		o.sent(began, do())
	}
	w.ends(ctx, began, o)
}

// ends is end, as a function of its own that keeps the stack of waiting calls small.
//
//go:noinline
func (w *watch) ends(ctx context.Context, began time.Time, o *Observation) { w.end(ctx, began, *o) }

// begin is when a call begins that will be reported. For any other it does not read the
// clock.
func (w *watch) begin() time.Time {
	if w == nil {
		return time.Time{}
	}
	return time.Now()
}

// end reports a call that began at began. It completes what is missing of o.
func (w *watch) end(ctx context.Context, began time.Time, o Observation) {
	o.Latency = time.Since(began)
	if o.Outcome == 0 {
		o.Outcome = o.Call.outcome(o.Result.Allowed, o.Err)
	}
	if o.Taken == 0 && !o.Repeated && (o.Outcome == OutcomeAllowed || o.Call == callCharge && o.Err == nil) {
		o.Taken = o.N
	}
	switch o.Call {
	case callAcquire, callUpTo, callEstimate, callHold: // the others may owe permits, and know what was left
		if o.Taken > 0 {
			o.Before = o.Result.Remaining + o.Taken
		}
	}
	o.Held = int(w.held.Add(int64(o.HeldChange)))
	w.report(ctx, o)
}

// outcome is how a call ended whose limiter has answered so.
func (c Call) outcome(allowed bool, err error) Outcome {
	switch {
	case err != nil && (c != callReserve && c != callWait || !errors.Is(err, ErrWaitTooLong)):
		return failedBy(err)
	case !c.takes():
		return OutcomeDone
	case allowed:
		return OutcomeAllowed
	}
	return OutcomeDenied
}

// failedBy is how a call ended without an answer.
func failedBy(err error) Outcome {
	if errclass.Of(err).Type == errclass.TypeCanceled {
		return OutcomeCanceled
	}
	return OutcomeFailed
}

func (w *watch) report(ctx context.Context, o Observation) {
	if o.Limiter == "" {
		o.Limiter = w.name
	}
	if wait := waiting.In(ctx); wait != nil {
		w.attempted(wait.Leave(ctx), wait, o)
		return
	}
	for _, observe := range w.observers {
		w.call(ctx, observe, &o)
	}
}

// attempted reports an attempt of a call that may wait. A denial is held back, because the caller
// may get the permits yet.
func (w *watch) attempted(ctx context.Context, wait *waiting.Wait, o Observation) {
	reserved := wait.Polls && o.Call == callReserve
	if wait.Polls && (o.Call == callAcquire || o.Call == callHold || reserved) {
		if o.Call != callHold {
			o.Call = callWait
		}
		before := wait.Before(o.Latency)
		o.Waited += before
		o.Latency += before
	}
	if o.Outcome != OutcomeDenied && o.Outcome != OutcomeUntaken && !(reserved && o.Outcome == OutcomeAllowed) {
		w.report(ctx, o)
		return
	}
	wait.Hold(w, func(end error) {
		switch { // of what was reserved, Waited is the time until it was due
		case o.Outcome != OutcomeAllowed:
		case end == nil:
			o.Latency += o.Waited
		default:
			o.Latency = time.Since(wait.Began)
			o.Waited = min(o.Waited, o.Latency)
		}
		if end != nil {
			o.Err = end
			if !errors.Is(end, ErrWaitTooLong) {
				o.Outcome, o.Result = failedBy(end), Result{}
			}
		}
		w.report(ctx, o)
	})
}

// call calls an observer, whose panic goes no further.
func (w *watch) call(ctx context.Context, observe Observer, o *Observation) {
	defer func() {
		if p := recover(); p != nil {
			w.panicked.log("an observer", w.name, p)
		}
	}()
	observe(ctx, *o)
}

// A firstPanic logs the first panic of a function that a user gave.
type firstPanic struct{ logged atomic.Bool }

// log logs p, of what is called at limiter.
func (f *firstPanic) log(what, limiter string, p any) {
	if f.logged.Swap(true) {
		return
	}
	defer func() { _ = recover() }() // of the logger's handler
	slog.Error("ratelimit: "+what+" panicked; its further panics are not logged",
		"limiter", limiter, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
}

// A sending is how a call was sent to Redis: nil if on its own, and inProcess if not at all, because a limiter in this
// process decides.
type sending = *redisexec.Batch

var inProcess sending = &redisexec.Batch{}

// sent stores how a call that began at began was sent to Redis.
func (o *Observation) sent(began time.Time, batch sending) {
	switch {
	case errclass.IsMistake(o.Err):
	case batch == inProcess:
		if o.Err == nil {
			o.Source = SourceLocal
		}
	case batch == nil:
		o.Source, o.Batch = SourceRedis, 1
	case batch.Calls == 0: // it was not sent, because the caller left before, or there was nothing to ask
		if o.Err != nil {
			o.Waited = time.Since(began)
		}
	default:
		o.Source, o.Batch = SourceRedis, batch.Calls
		if o.Call != callReserve || o.Err != nil { // whose Waited is until the permits are due
			o.Waited += max(merge.Instant(batch.Sent).Sub(began), 0)
		}
	}
}

// changes holds the changes of a breaker's state until they can be delivered. gobreaker
// announces them with its lock held: there a slow observer would stop every decision, and an
// observer that calls the Fallback would never return.
type changes struct {
	waiting atomic.Bool // queue is not empty; read without mu

	mu         sync.Mutex // guards what follows
	queue      []Observation
	delivering bool // one at a time, so that the order is kept
}

func (c *changes) add(o Observation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue = append(c.queue, o)
	c.waiting.Store(true)
}

// deliver passes on all changes that wait. If another call is doing so, it returns at
// once, and that call passes these on too.
func (c *changes) deliver(to *watch) {
	if !c.waiting.Load() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.delivering {
		return
	}
	c.delivering = true
	defer func() { c.delivering = false }()
	for len(c.queue) > 0 {
		o := c.queue[0]
		c.queue = c.queue[1:]
		c.waiting.Store(len(c.queue) > 0)
		func() {
			c.mu.Unlock()
			defer c.mu.Lock()
			to.report(context.Background(), o)
		}()
	}
}

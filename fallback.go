package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// A Fallback is a [Limiter] that asks a secondary limiter when its primary could
// not decide. What the secondary is decides what an outage means:
//
//   - [AllowAll] allows everything: for limits that share capacity fairly,
//     where a refused customer is worse than a moment without a limit;
//   - [DenyAll] denies everything: for limits that guard a secret or money,
//     such as tries at a password;
//   - a [LocalTokenBucket] keeps this process, and what stands behind it,
//     protected on its own;
//   - a limiter on another Redis, itself in a Fallback, makes a chain of them.
//
// Without options a Fallback waits for the primary to fail, which takes as long as
// the client's timeouts. [WithBudget] bounds the wait for each call, [WithBreaker]
// saves it while the primary stays down. A service that must not slow down with
// its Redis wants both.
//
// An outage is any error of the primary's but these, which are returned as they
// are: a mistake of the caller's, which is ErrInvalidConfig, ErrInvalidKey,
// ErrInvalidPermits or ErrExceedsLimit; ErrDenied, which is a decision; and any
// error once the caller's context has ended, be it cancelled or expired.
//
// When a call was over budget, or its reply was lost, the primary may have
// granted it as well. So the primary never grants more than its rule allows,
// and the secondary grants on top of that what it allows on its own.
type Fallback struct {
	primary, secondary Limiter
	most               int           // permits that one call can get of the primary; 0: not known
	budget             time.Duration // 0: none
	breaker            *breaker      // nil: none
	observe            func(Event)   // nil: none

	running   chan struct{} // one element for each call with a budget that asks the primary
	abandoned atomic.Int64  // those of them for which nobody waits
}

// A FallbackOption is [WithBudget], [WithBreaker] or [WithObserver].
type FallbackOption interface {
	setFallback(*fallbackSettings)
}

type fallbackSettings struct {
	settings
	budget  time.Duration
	breaker *breakerSettings
	observe func(Event)
}

type fallbackSetter func(*fallbackSettings)

func (f fallbackSetter) setFallback(s *fallbackSettings) { f(s) }

// NewFallback returns a limiter that asks primary, and secondary when primary
// could not decide. An outage alone neither allows nor denies a call; the secondary
// does.
//
// The error is nil or wraps ErrInvalidConfig: a limiter or an option is nil, an
// option's value cannot work, or an option is given twice.
func NewFallback(primary, secondary Limiter, opts ...FallbackOption) (*Fallback, error) {
	var s fallbackSettings
	if isNil(primary) {
		s.refuse("NewFallback: the primary is nil")
	}
	if isNil(secondary) {
		s.refuse("NewFallback: the secondary is nil; AllowAll() lets everything pass in an outage, DenyAll() refuses everything")
	}
	for i, o := range opts {
		if o == nil {
			s.refuse("NewFallback: option %d is nil", i+1)
			break
		}
		o.setFallback(&s)
	}
	if s.err != nil {
		return nil, s.err
	}
	f := &Fallback{primary: primary, secondary: secondary, most: ceilingOf(primary), budget: s.budget, observe: s.observe}
	if s.breaker != nil {
		f.breaker = newBreaker(s.breaker, s.budget > 0, s.observe)
	}
	if s.budget > 0 {
		f.running = make(chan struct{}, maxRunning)
	}
	return f, nil
}

// TryAcquire is TryAcquireN(ctx, key, 1).
func (f *Fallback) TryAcquire(ctx context.Context, key string) (Result, error) {
	return f.decide(ctx, question{key: key, n: 1})
}

// TryAcquireN takes n permits from key, all or none. The Result is the
// primary's, or the secondary's, which has Fallback set.
//
// An error means that neither decided. It is the primary's own for a mistake of
// the caller's; wraps the context's error when that ended; and otherwise wraps
// both the reason for asking the secondary (the primary's error, ErrOverBudget
// or ErrBreakerOpen) and the secondary's error. Not wrapped, only told, is a
// secondary's ErrExceedsLimit or ErrInvalidConfig: the primary may allow what
// the secondary can never.
func (f *Fallback) TryAcquireN(ctx context.Context, key string, n int) (Result, error) {
	return f.decide(ctx, question{key: key, n: n})
}

// Peek returns what TryAcquire would answer now: the primary's answer or, just as
// for TryAcquire, the secondary's. A primary that fails it counts for the
// breaker.
func (f *Fallback) Peek(ctx context.Context, key string) (Result, error) {
	return f.decide(ctx, question{key: key, peek: true})
}

// Reset forgets key in both limiters. Each is tried even if the other fails, and
// the error wraps those of both: nil means that both have forgotten. It always
// asks the primary, for as long as ctx and the client let it: neither the budget
// nor the breaker applies to it.
func (f *Fallback) Reset(ctx context.Context, key string) error {
	if f == nil || f.primary == nil {
		return errUnmade
	}
	secondary := f.secondary.Reset(ctx, key) // first, as a hung primary may take what time there is
	if errors.Is(secondary, ErrInvalidKey) {
		return secondary
	}
	primary := f.primary.Reset(ctx, key)
	switch {
	case primary != nil && secondary != nil:
		return fmt.Errorf("ratelimit: fallback: reset of %s: primary: %w; secondary: %w", shortKey(key), primary, secondary)
	case primary != nil:
		return fmt.Errorf("ratelimit: fallback: reset of %s: primary: %w", shortKey(key), primary)
	case secondary != nil:
		return fmt.Errorf("ratelimit: fallback: reset of %s: secondary: %w", shortKey(key), secondary)
	}
	return nil
}

func (f *Fallback) ceiling() int { return f.most }

// A question is what to ask either limiter.
type question struct {
	key  string
	n    int
	peek bool
}

func (q question) ask(ctx context.Context, l Limiter) (Result, error) {
	if q.peek {
		return l.Peek(ctx, q.key)
	}
	return l.TryAcquireN(ctx, q.key, q.n)
}

func (f *Fallback) decide(ctx context.Context, q question) (Result, error) {
	switch {
	case f == nil || f.primary == nil:
		return Result{}, errUnmade
	case f.most > 0 && q.n > f.most:
		return q.ask(ctx, f.primary) // which refuses it without asking Redis, in an outage too
	case f.budget > 0:
		return f.decideWithin(ctx, q)
	case f.breaker != nil:
		return f.decideGuarded(ctx, q)
	}
	r, err := q.ask(ctx, f.primary)
	return f.conclude(ctx, q, r, err)
}

// conclude returns what the primary said, or asks the secondary if that was
// nothing.
func (f *Fallback) conclude(ctx context.Context, q question, r Result, err error) (Result, error) {
	if err == nil {
		return r, nil
	}
	if !outage(err) {
		return Result{}, err
	}
	if end := endOf(ctx); end != nil {
		if !errors.Is(err, end) {
			err = fmt.Errorf("%w; %w", err, end)
		}
		return Result{}, err
	}
	return f.askSecondary(ctx, q, EventPrimaryFailed, err)
}

// askSecondary answers for the primary, which did not because of why.
func (f *Fallback) askSecondary(ctx context.Context, q question, kind EventKind, why error) (Result, error) {
	if end := endOf(ctx); end != nil {
		return Result{}, f.gone(q, end)
	}
	r, err := q.ask(ctx, f.secondary)
	if err == nil {
		r.Fallback = true
	}
	if f.observe != nil {
		f.observe(Event{Kind: kind, Key: q.key, Err: why, Result: r, SecondaryErr: err})
	}
	switch {
	case err == nil:
		return r, nil
	case errors.Is(err, ErrInvalidKey), errors.Is(err, ErrInvalidPermits):
		return Result{}, err // so would the primary have said
	case !outage(err):
		return Result{}, fmt.Errorf("ratelimit: fallback for %s: primary: %w; secondary: %v", shortKey(q.key), why, err)
	}
	return Result{}, fmt.Errorf("ratelimit: fallback for %s: primary: %w; secondary: %w", shortKey(q.key), why, err)
}

func (f *Fallback) gone(q question, end error) error {
	return fmt.Errorf("ratelimit: fallback for %s: %w", shortKey(q.key), end)
}

// outage reports whether err means that no decision was made, for no fault of
// the caller's arguments.
func outage(err error) bool {
	return err != nil && !errors.Is(err, ErrInvalidKey) && !errors.Is(err, ErrInvalidPermits) &&
		!errors.Is(err, ErrExceedsLimit) && !errors.Is(err, ErrInvalidConfig) && !errors.Is(err, ErrDenied)
}

// endOf returns why ctx ended, or nil. A client that puts the deadline on its
// connection may come back with a timeout before the context itself knows.
func endOf(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if d, ok := ctx.Deadline(); ok && !time.Now().Before(d) {
		return context.DeadlineExceeded
	}
	return nil
}

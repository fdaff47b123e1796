package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// ErrOverBudget is why a [Fallback] did not wait for its primary: the call took
// longer than the budget, or as many abandoned calls as it allows are still
// running.
var ErrOverBudget = errors.New("ratelimit: over budget")

// A Fallback is a [Limiter] that asks a secondary limiter when its primary could
// not decide. What the secondary is decides what an outage means:
//
//   - [AllowAll] lets everything pass: for limits that share capacity fairly,
//     where a refused customer is worse than a moment without a limit;
//   - [DenyAll] refuses everything: for limits that guard a secret or money,
//     such as tries at a password;
//   - a [LocalTokenBucket] keeps this process, and what stands behind it,
//     protected on its own;
//   - a limiter on another Redis, itself in a Fallback, makes a chain of them.
//
// By itself a Fallback waits for the primary to fail, which takes as long as the
// client's timeouts. [WithBudget] bounds the wait for each call, [WithBreaker]
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
// and the secondary grants on top of that what it allows by itself.
type Fallback struct {
	primary, secondary Limiter
	most               int           // permits that one call can get of the primary; 0: not known
	budget             time.Duration // 0: none
	breaker            *breaker      // nil: none
	observe            func(Event)   // nil: none

	running   chan struct{} // one element for each call with a budget that asks the primary
	abandoned atomic.Int64  // those of them for which nobody waits
}

// maxRunning bounds the calls that ask the primary within a budget, waited for
// or not. It is far above what a healthy Redis lets pile up (at 1 ms a call, it
// is reached at 256,000 calls a second), and it bounds what a hung one does: as
// many goroutines, of some 10 KB.
const maxRunning = 256

// abandonedFor is what a call over budget gets to read its late reply. The
// client closes a connection that it gives up on, and dialling anew is the last
// thing that a slow server needs, so it is longer than a stutter.
const abandonedFor = time.Second

// patience is when a call that the caller gave up on counts as a failure, where
// no budget says so. Without it a hung Redis would never open the breaker of a
// service whose requests have a deadline of their own. It is not shorter, so
// that a client who sends requests with tiny deadlines cannot open it.
const patience = 250 * time.Millisecond

// A FallbackOption is [WithBudget], [WithBreaker] or [WithObserver].
type FallbackOption interface {
	setFallback(*fallbackSettings)
}

// WithBudget lets the secondary answer a call for which the primary takes longer
// than d, which must be above 0. Some milliseconds suit: several times what the
// primary takes when it is well, and much less than what the service can spare.
// It holds for TryAcquire, TryAcquireN and Peek.
//
// The call is not cut off: its late reply is read and thrown away, so that its
// connection lives on, and a second after the budget its context ends. Let the
// client honour that (go-redis: ContextTimeoutEnabled), or give it a ReadTimeout
// of about a second. The primary's context has the values of the caller's and a
// deadline of its own, so that a caller who is cancelled gets the context's
// error at once while the call ends by itself. A permit that such a call took
// stays taken.
//
// At most 256 calls ask the primary at a time. More wait for their turn, the
// wait being part of their budget, and when all 256 were abandoned and are still
// running, the secondary answers at once. So behind a hung primary 256 goroutines
// wait, and no more; but a primary that itself leaves one behind when its
// context ends, as limiters do whose client does not honour it, leaves that many
// each second until the client's ReadTimeout ends them. A breaker makes them few.
//
// It costs a goroutine for each call, about two microseconds, and 9 allocations
// of 600 bytes in all. A panic of the primary's is passed on to the caller; in an
// abandoned call it is lost, as there is nobody left to tell.
func WithBudget(d time.Duration) FallbackOption {
	return fallbackSetter(func(s *fallbackSettings) {
		if d <= 0 {
			s.refuse("WithBudget: %v is not above 0; leave the option out to wait for the primary", d)
		}
		s.once("WithBudget")
		s.budget = d
	})
}

// WithBreaker stops asking a primary that fails: after 5 failures in a row the
// secondary answers at once, and every 200ms one call tries the primary again.
// The first that succeeds ends it. [WithFailures] and [WithProbeEvery] change
// the two numbers.
//
// A failure is an outage, as [Fallback] defines it, and a call over budget. A
// mistake of the caller's and ErrCorruptState, which is about one key, count
// neither as failure nor as success. A call that the caller gave up on counts by
// how the primary did: with a budget it goes on and counts when it ends or the
// budget does; without one it counts as a failure if the primary had it for
// 250ms, and not otherwise.
//
// Calls that are under way together also fail together: where there are always
// more than 5, one stutter that is longer than the budget opens the breaker, for
// 200ms. Give a longer budget, or more failures, if that is too soon.
//
// The breaker is that of github.com/sony/gobreaker. While it is closed it costs
// two locks for each call, and without a budget no allocation; while it is open,
// one lock.
func WithBreaker(opts ...BreakerOption) FallbackOption {
	return fallbackSetter(func(s *fallbackSettings) {
		s.once("WithBreaker")
		b := &breakerSettings{settings: &s.settings, failures: defaultFailures, probeEvery: defaultProbeEvery}
		for i, o := range opts {
			if o == nil {
				s.refuse("WithBreaker: option %d is nil", i+1)
				break
			}
			o.setBreaker(b)
		}
		s.breaker = b
	})
}

// WithObserver tells observe of every call that the secondary was asked for and
// of every change of the breaker's state. It is called before the call returns,
// or by a goroutine of the Fallback's own, and by many at once (but for changes
// of state, which come one by one and in order), so that it must be quick, safe
// for concurrent use, and must not panic. It may call the Fallback.
func WithObserver(observe func(Event)) FallbackOption {
	return fallbackSetter(func(s *fallbackSettings) {
		if observe == nil {
			s.refuse("WithObserver: the function is nil; leave the option out to observe nothing")
		}
		s.once("WithObserver")
		s.observe = observe
	})
}

type fallbackSettings struct {
	settings
	budget  time.Duration
	breaker *breakerSettings
	observe func(Event)
}

type fallbackSetter func(*fallbackSettings)

func (f fallbackSetter) setFallback(s *fallbackSettings) { f(s) }

// EventKind says what an [Event] is about.
type EventKind int

const (
	// EventPrimaryFailed: the secondary was asked, as the primary returned an
	// error.
	EventPrimaryFailed EventKind = iota + 1
	// EventOverBudget: the secondary was asked, as the call took longer than the
	// budget or too many abandoned ones are still running.
	EventOverBudget
	// EventBreakerOpen: the secondary was asked, as the breaker is open.
	EventBreakerOpen
	// EventBreakerState: the breaker's state changed. An open breaker becomes
	// half-open by the first call after its time, not by the time itself.
	EventBreakerState
)

// String is "primary failed", "over budget", "breaker open" or "breaker state".
func (k EventKind) String() string {
	switch k {
	case EventPrimaryFailed:
		return "primary failed"
	case EventOverBudget:
		return "over budget"
	case EventBreakerOpen:
		return "breaker open"
	case EventBreakerState:
		return "breaker state"
	}
	return "unknown event"
}

// An Event is what an observer of a [Fallback] is told.
type Event struct {
	Kind EventKind

	// Of a call that the secondary was asked for.
	Key          string // of the call
	Err          error  // why the primary did not decide; wraps ErrOverBudget or ErrBreakerOpen where that is the reason
	Result       Result // what the secondary answered; zero if it failed
	SecondaryErr error  // the secondary's error, nil if it answered

	// Of EventBreakerState.
	From, To BreakerState
}

// NewFallback returns a limiter that asks primary, and secondary when primary
// could not decide. Nobody is let pass or refused for an outage unless secondary
// does so.
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

// Peek tells what TryAcquire would answer now: the primary's answer or, just as
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

// decideGuarded asks the primary unless the breaker is open.
func (f *Fallback) decideGuarded(ctx context.Context, q question) (r Result, err error) {
	asked := f.breaker.during(func() error {
		start := time.Now()
		r, err = q.ask(ctx, f.primary)
		if outage(err) && endOf(ctx) != nil {
			// The context took the call from the primary, which may be the
			// reason: see patience.
			if time.Since(start) < patience {
				return errNeutral
			}
			return errFailure
		}
		return verdict(err)
	})
	if !asked {
		return f.askSecondary(ctx, q, EventBreakerOpen, ErrBreakerOpen)
	}
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

// verdict is what a breaker is told of a call that the primary itself ended.
func verdict(err error) error {
	switch {
	case err == nil || errors.Is(err, ErrDenied):
		return nil
	case !outage(err) || errors.Is(err, ErrCorruptState):
		return errNeutral
	}
	return errFailure
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

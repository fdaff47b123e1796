package ratelimit

import (
	"context"
	"fmt"
	"time"
)

// A Fallback is a [Limiter] that asks a secondary limiter when its primary could not decide. The secondary decides
// what an outage means: [AllowAll], [DenyAll], a [LocalTokenBucket] that limits in this process alone, or a limiter
// on another Redis.
//
// Without options a call waits until the primary fails, which takes as long as the client's timeouts. [WithBudget]
// bounds that wait, and [WithBreaker] avoids it while the primary stays down; a service wants both. docs/outages.md
// has the settings, what users see and what it costs.
//
// An outage is any error of the primary except these, which are returned as they are:
//
//   - a caller's mistake: ErrInvalidConfig (also a server without Lua scripts, or one that forbids them),
//     ErrInvalidKey, ErrInvalidPermits, ErrExceedsLimit, ErrCrossSlot, ErrSettled, ErrIDReused;
//   - a decision: ErrDenied, ErrWaitTooLong, ErrTooMuchDebt, ErrTooManyTickets, ErrLeaseLost;
//   - ErrCorruptState, which is about one key; Reset mends it;
//   - the error of a function that picks, see [NewChoice];
//   - any error after the caller's context has ended.
//
// The Result is the primary's, or the secondary's, which has Fallback set. When a call was over budget, or its reply
// was lost, the permits may have been taken from the primary as well.
//
// An error means that neither decided. A caller's mistake is the error of the limiter that was asked, and a damaged
// key of the primary is the primary's error. If the context ended, the error wraps the context's. Otherwise it wraps
// both the reason for asking the secondary (the primary's error, ErrOverBudget or ErrBreakerOpen) and the secondary's
// error, except that errors.Is does not match a secondary's ErrInvalidConfig.
//
// A call for more permits than the secondary can ever allow is denied until the primary is asked again. More than the
// primary can ever allow are ErrExceedsLimit even while it is not asked, if it is a limiter of this package. A
// secondary that cannot reserve takes the permits of a Reserve at once, or denies them by a *[WaitError].
type Fallback struct {
	policied
	outages
	leased *Leased // the primary, if that may answer before anything else
}

func (f *Fallback) kind() kind { return f.outages.kind(f) }

// NewFallback returns a limiter that asks primary, and secondary when primary could not decide. The error wraps
// ErrInvalidConfig: a limiter or an option is nil, or an option's value cannot work or is given twice.
func NewFallback(primary, secondary Limiter, opts ...PolicyOption) (*Fallback, error) {
	switch {
	case kindOf(primary).absent:
		return nil, invalidConfig("NewFallback: the primary is nil")
	case kindOf(secondary).absent:
		return nil, invalidConfig("NewFallback: the secondary is nil; AllowAll() allows every call in an outage, DenyAll() denies every call")
	}
	f := &Fallback{}
	f.by = f
	if err := f.build(newFallback, primary, secondary, opts); err != nil {
		return nil, err
	}
	if l, ok := primary.(*Leased); ok && l.watch == nil && !f.follows {
		f.leased = l
	}
	return f, nil
}

// TryAcquire is TryAcquireN(ctx, key, 1).
func (f *Fallback) TryAcquire(ctx context.Context, key string) (Result, error) {
	return f.TryAcquireN(ctx, key, 1)
}

// TryAcquireN takes n permits of key, all or none. What a [Leased] knows as the primary needs neither the budget nor the
// breaker.
func (f *Fallback) TryAcquireN(ctx context.Context, key string, n int) (Result, error) {
	if f.leased != nil {
		if r, ok := f.leased.atOnce(ctx, key, n); ok {
			return r, nil
		}
	}
	return f.policied.TryAcquireN(ctx, key, n)
}

// Reset resets key in both limiters, each even if the other fails, and the error wraps the errors of both. Neither
// the budget nor the breaker applies: it waits until ctx ends or the client times out.
func (f *Fallback) Reset(ctx context.Context, key string) error {
	if f.by == nil {
		return errUnmade
	}
	if err := checkKey(key); err != nil {
		if f.watch != nil {
			f.report(ctx, f.watch.begin(), Observation{Call: callReset, Key: key, Err: err})
		}
		return err
	}
	secondary := f.secondary.(Limiter).Reset(ctx, key) // first, because a hung primary may use up the time that ctx leaves
	primary := f.primary.(Limiter).Reset(ctx, key)
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

// WithBudget lets the secondary answer a call for which the primary takes longer than d, which is above 0: some
// milliseconds, several times as long as a healthy primary takes. It applies to every operation but Reset.
//
// The call to the primary goes on, for a second after the budget at most, with the values of the caller's context.
// Let the client honour contexts or give it a ReadTimeout of about a second: [ClientOptions] does. Estimates, holds
// and reservations that such a call takes are given back; other permits stay taken. When the caller's context is
// cancelled, the caller gets its error at once.
//
// At most 256 calls of one client's Fallbacks ask their primaries at a time. Further calls wait for their turn within
// their budget, or the secondary answers at once when all 256 are over theirs. The first call to a Redis connects and
// sends its script, which can be over budget: see [Preload].
//
// A budget costs a goroutine for each call, about two microseconds, and 9 allocations of 600 bytes in all. A panic of
// the primary is passed on to the caller; the panic of an abandoned call is lost.
func WithBudget(d time.Duration) PolicyOption {
	return policyOption("WithBudget", func(s *settings) {
		if d <= 0 {
			s.refuse("WithBudget: %v is not above 0; leave the option out to wait for the primary", d)
		}
		s.budget = d
	})
}

// WithBreaker stops asking a primary that fails: after 5 failures in a row the secondary answers at once, and every
// 200ms one call tries the primary again. The first that succeeds closes the breaker. [Breaker] has these two
// numbers.
//
// A failure is an outage, as [Fallback] defines it, or a call over budget. A caller's mistake and ErrCorruptState do
// not count at all. A call whose caller has left is judged by the primary, within the budget; without a budget it is
// a failure if the primary took 250ms or longer, and does not count otherwise.
//
// Give one Breaker to the Fallbacks of all limiters on one Redis, and of no other Redis: their calls count together,
// so that an outage is noticed once. Give them the same budget if you can; docs/outages.md says why. NewFallback
// refuses a Breaker that its primary already has.
//
// A call that asks the primary takes two locks and an allocation of 48 bytes more; while the breaker is open, a call
// takes one lock.
func WithBreaker(b *Breaker) PolicyOption {
	return policyOption("WithBreaker", func(s *settings) {
		s.breaker = b
		s.fail(b.check())
	})
}

// A holdFallback is a Fallback for permits that are held.
type holdFallback struct {
	policiedHolds
	outages
}

func (f *holdFallback) kind() kind { return f.outages.kind(f) }

// NewHoldFallback returns a [Fallback] for permits that are held: it asks primary, and secondary when primary could not
// decide, which is a [LocalInFlight], [AllowHolds], [DenyHolds], or holds on another Redis. A Hold is released where it
// was taken. Permits that the primary takes after the budget are given back. Its errors are those of [NewFallback].
func NewHoldFallback(primary, secondary Holder, opts ...PolicyOption) (Holder, error) {
	switch {
	case kindOf(primary).absent:
		return nil, errNilHolder("NewHoldFallback", "primary")
	case kindOf(secondary).absent:
		return nil, errNilHolder("NewHoldFallback", "secondary")
	}
	f := &holdFallback{}
	f.by = f
	if err := f.build(newHoldFallback, primary, secondary, opts); err != nil {
		return nil, err
	}
	return f, nil
}

func errNilHolder(what, name string) error {
	return invalidConfig("%s: the %s is nil; AllowHolds() allows every call, DenyHolds() denies every call", what, name)
}

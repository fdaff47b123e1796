package ratelimit

import (
	"context"
	"fmt"
	"time"
)

// A Fallback is a [Limiter] that asks a secondary limiter when its primary could
// not decide. The choice of the secondary decides what an outage means:
//
//   - [AllowAll] allows everything: for limits that share capacity fairly,
//     where a denied customer is worse than a moment without a limit;
//   - [DenyAll] denies everything: for limits that guard a secret or money,
//     such as tries at a password;
//   - a [LocalTokenBucket] limits in this process alone, which still protects the
//     process and the services that it calls;
//   - a limiter on another Redis, itself in a Fallback, makes a chain.
//
// Without options a Fallback waits for the primary to fail, which takes as long as
// the client's timeouts. [WithBudget] bounds the wait of each call; [WithBreaker]
// avoids the wait while the primary stays down. A service that must not slow down with
// its Redis wants both, and a shared [Breaker] if it has several limiters there.
//
// An outage is any error of the primary except these, which are returned as they
// are:
//
//   - a caller's mistake: ErrInvalidConfig, ErrInvalidKey, ErrInvalidPermits,
//     ErrExceedsLimit, ErrCrossSlot, ErrSettled. A server without Lua scripts, which answers
//     "unknown command", is ErrInvalidConfig: it stays so until somebody configures it;
//   - a decision: ErrDenied, ErrWaitTooLong, ErrTooMuchDebt, ErrLeaseLost;
//   - ErrCorruptState. The primary works, and one key is damaged: a secondary such as
//     AllowAll would take the limit off that key until somebody notices. Reset mends the
//     key, and otherwise it mends itself if what it holds expires;
//   - the error of a function that picks, see [NewChoice];
//   - any error after the caller's context has ended, cancelled or expired.
//
// When a call was over budget, or its reply was lost, the permits may have been taken
// from the primary as well. The primary never allows more than its rule; in addition,
// the secondary allows what its own rule allows.
//
// # Answers and errors
//
// The Result is the primary's, or the secondary's, which has Fallback set.
//
// An error means that neither decided. For a caller's mistake and for a damaged key it is
// the primary's own error, or the secondary's if that one was asked. If the context ended, it
// wraps the context's error. Otherwise it wraps both the reason for asking the secondary (the
// primary's error, ErrOverBudget or ErrBreakerOpen) and the secondary's error, so that a
// secondary's ErrCorruptState is found; only the text of a secondary's ErrInvalidConfig is
// included, and errors.Is does not match it.
//
// A call for more permits than the secondary can ever allow is denied, because the primary
// may be able to allow it. RetryAfter is then the time until the primary is asked again:
// until the breaker's next probe if it is open, the time between two probes if it is not,
// and one second without a breaker. It is no promise that the primary works again then. Limit,
// Window, Remaining and ResetAfter are those of the secondary's Peek; if that fails, they
// are 0, except for the Limit of a limiter of this package. A mistake of the caller, such as
// more permits than the primary can ever allow, is the primary's error even while the primary
// is not asked, if that is a limiter of this package.
//
// A Peek goes the same way, and counts for the breaker as any other call.
type Fallback struct {
	policied
	outages
}

func (f *Fallback) kind() kind { return f.outages.kind(f) }

// NewFallback returns a limiter that asks primary, and secondary when primary
// could not decide. An outage alone neither allows nor denies a call; the secondary
// does.
//
// The error is nil or wraps ErrInvalidConfig: a limiter or an option is nil, an
// option's value cannot work, or an option is given twice.
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
	return f, nil
}

// Reset resets key in both limiters. Each is tried even if the other fails, and the
// error wraps the errors of both: nil means that both have reset the key. It always asks
// the primary, and waits until ctx ends or the client times out: neither the budget nor
// the breaker applies to it.
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

// WithBudget lets the secondary answer a call for which the primary takes longer
// than d, which must be above 0. Choose some milliseconds: several times as long as a
// healthy primary takes, and much less than the service can afford to wait. The budget
// applies to every operation but Reset.
//
// The call to the primary is not cut off: its late reply is read and thrown away, so
// that its connection can be used again, and its context ends one second after the
// budget. Let the client honour that context (go-redis: ContextTimeoutEnabled), or give
// the client a ReadTimeout of about a second. The primary's context has the values of
// the caller's context and a deadline of its own: when the caller's context is
// cancelled, the caller gets the context's error at once, and the call to the primary
// goes on. Estimates, holds and reservations that such
// a call takes are given back; other permits stay taken.
//
// At most 256 calls of one client's Fallbacks ask their primaries at a time. Further calls wait for their turn, and
// this wait is part of their budget; when all 256 are abandoned and still running, the
// secondary answers at once. So no more than 256 goroutines wait for a hung primary.
// But a primary may leave a goroutine behind when its context ends, as limiters do whose
// client does not honour contexts: such a primary leaves up to 256 goroutines each
// second, until the client's ReadTimeout ends them. With a breaker they are few.
//
// The first call to a Redis connects and sends its script, which can take longer than the budget: load the scripts
// before with [PreloadAll].
//
// A budget costs a goroutine for each call, about two microseconds, and 9 allocations
// of 600 bytes in all. A panic of the primary is passed on to the caller; the panic of
// an abandoned call is lost, because no caller is left to get it.
func WithBudget(d time.Duration) PolicyOption {
	return policyOption("WithBudget", func(s *settings) {
		if d <= 0 {
			s.refuse("WithBudget: %v is not above 0; leave the option out to wait for the primary", d)
		}
		s.budget = d
	})
}

// WithBreaker stops asking a primary that fails: after 5 failures in a row the secondary answers at
// once, and every 200ms one call tries the primary again. The first of these that succeeds closes
// the breaker. [Breaker] has these two numbers.
//
// A failure is an outage, as [Fallback] defines it, or a call over budget. A caller's
// mistake counts neither as failure nor as success, nor does ErrCorruptState, which is
// about one key and is returned to the caller. A call whose caller has left is judged by
// the primary: with a budget the call goes on, and counts when it ends or when the budget
// is over; without a budget it counts as a failure if the primary took 250ms or longer,
// and not at all otherwise.
//
// Calls in flight at the same time also fail at the same time: if there are always
// more than 5, one pause of Redis that is longer than the budget opens the breaker, for
// 200ms. If that is too soon, use a longer budget or more failures.
//
// # One breaker for one Redis
//
// Give the same Breaker to the Fallback of each limiter on one Redis. The calls of all of them
// count together: after 5 failures in a row, of whichever
// limiters, all secondaries answer at once, and one call at a time, of any limiter, tries
// whether Redis works again. So with several limiters for a request, the first requests of an
// outage wait for 5 calls, not for 5 calls of each limiter; with Failures 1, the first request
// waits once.
//
// Give it to limiters of one Redis only: a success on another Redis would hide the
// outage. The budgets of these Fallbacks may differ. With a budget, a call fails when its
// own budget is over; without one, it fails when the primary does. But a budget that a
// healthy Redis often exceeds never opens a breaker whose other calls succeed in between;
// and a probe of a Fallback without a budget lasts as long as the client's timeouts, and no
// other call probes until then. So give all of them the same budget if you can. NewFallback
// refuses a Breaker that its primary already has, as a Fallback within a Fallback could: a
// probe of the outer one would keep the inner one from asking.
//
// The breaker is github.com/sony/gobreaker. For a call that asks the primary it takes two
// locks and an allocation of 48 bytes; while the breaker is open, a call takes one lock.
func WithBreaker(b *Breaker) PolicyOption {
	return policyOption("WithBreaker", func(s *settings) {
		s.breaker = b
		s.fail(b.check())
	})
}

// A HoldFallback is a [Fallback] for permits that are held: it asks a secondary when its primary could not
// decide. The secondary is a [LocalInFlight], [AllowHolds], [DenyHolds], or holds on another Redis. What
// Fallback says of outages, budgets and breakers holds here too.
//
// A Hold is released where it was taken. Permits that the primary takes after the budget is over
// are given back.
type HoldFallback struct {
	policiedHolds
	outages
}

func (f *HoldFallback) kind() kind { return f.outages.kind(f) }

// NewHoldFallback returns a Holder that asks primary, and secondary when primary could not decide.
// The error is nil or wraps ErrInvalidConfig, as that of [NewFallback].
func NewHoldFallback(primary, secondary Holder, opts ...PolicyOption) (*HoldFallback, error) {
	switch {
	case kindOf(primary).absent:
		return nil, errNilHolder("NewHoldFallback", "primary")
	case kindOf(secondary).absent:
		return nil, errNilHolder("NewHoldFallback", "secondary")
	}
	f := &HoldFallback{}
	f.by = f
	if err := f.build(newHoldFallback, primary, secondary, opts); err != nil {
		return nil, err
	}
	return f, nil
}

func errNilHolder(what, name string) error {
	return invalidConfig("%s: the %s is nil; AllowHolds() allows every call, DenyHolds() denies every call", what, name)
}

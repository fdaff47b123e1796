package ratelimit

import (
	"context"
	"fmt"
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
			f.report(ctx, f.watch.begin(), Observation{Call: CallReset, Key: key, Err: err})
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

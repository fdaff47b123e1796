package ratelimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tryacquire/ratelimit/internal/deadline"
	"github.com/tryacquire/ratelimit/internal/errclass"
	"github.com/tryacquire/ratelimit/internal/limitername"
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
type Fallback struct {
	primary, secondary Limiter
	most               int           // permits that one call can get from the primary; 0: not known
	budget             time.Duration // 0: none
	bound              *bound        // of calls with a budget; nil: none
	breaker            guard         // nil: none
	follows            bool          // the secondary may be one that notes the primary's answers, see [follower]
	name               string        // of what is observed
	watch              *watch        // nil: nobody observes
}

// A guard keeps calls from a primary that fails: a Breaker, or several.
type guard interface {
	begin() (done func(error)) // nil if the primary must not be asked; otherwise end gets what it returns
	end(done func(error), verdict error)
	State() BreakerState
	untilProbe() time.Duration
}

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
	s, err := collect(newFallback, opts)
	if err != nil {
		return nil, err
	}
	if s.breaker != nil && hasBreaker(primary, s.breaker) {
		return nil, errTwiceGuarded("NewFallback")
	}
	follows, err := mayFollow(secondary)
	if err != nil {
		return nil, err
	}
	f := s.fallback(primary)
	f.primary, f.secondary, f.follows = primary, secondary, follows
	return f, nil
}

func errTwiceGuarded(constructor string) error {
	return invalidConfig("%s: the primary already has the breaker of WithBreaker; give it to one of the two only", constructor)
}

// fallback is the policy around a primary.
func (s *settings) fallback(primary any) *Fallback {
	f := &Fallback{most: kindOf(primary).most, budget: s.budget, name: cmp.Or(s.name, limitername.Of(primary))}
	f.watch = s.watch(f.name)
	if s.breaker != nil {
		f.breaker = s.breaker.begun()
		s.breaker.reportTo(f.watch)
	}
	if s.budget > 0 {
		f.bound = boundOf(primary)
	}
	return f
}

// TryAcquire is TryAcquireN(ctx, key, 1).
func (f *Fallback) TryAcquire(ctx context.Context, key string) (Result, error) {
	return f.decide(ctx, question{key: key, n: 1})
}

// TryAcquireN takes n permits from key, all or none. The Result is the
// primary's, or the secondary's, which has Fallback set.
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
func (f *Fallback) TryAcquireN(ctx context.Context, key string, n int) (Result, error) {
	return f.decide(ctx, question{key: key, n: n})
}

// Peek returns the primary's Peek or, where TryAcquire would ask the secondary, the
// secondary's. A Peek that fails in the primary counts as a failure for
// the breaker. Its errors are those of TryAcquireN.
func (f *Fallback) Peek(ctx context.Context, key string) (Result, error) {
	return f.decide(ctx, question{key: key, peek: true})
}

// Reset resets key in both limiters. Each is tried even if the other fails, and the
// error wraps the errors of both: nil means that both have reset the key. It always asks
// the primary, and waits until ctx ends or the client times out: neither the budget nor
// the breaker applies to it.
func (f *Fallback) Reset(ctx context.Context, key string) error {
	if f == nil || f.primary == nil {
		return errUnmade
	}
	if err := checkKey(key); err != nil {
		f.report(ctx, question{key: key, began: f.watch.begin()}, Observation{Call: CallReset, Err: err})
		return err
	}
	secondary := f.secondary.Reset(ctx, key) // first, because a hung primary may use up the time that ctx leaves
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

// Name returns the name of WithName, and without it the primary's: clients and observers know the limit by it, whoever
// answers.
func (f *Fallback) Name() string {
	if f == nil {
		return ""
	}
	return f.name
}

// A question is what to ask either limiter.
type question struct {
	key   string
	n     int
	peek  bool
	began time.Time // if the Fallback is observed
	joint *joint    // of a call that is no single TryAcquireN or Peek; nil: this one
}

func (q question) ask(ctx context.Context, l Limiter) (Result, error) {
	if q.peek {
		return l.Peek(ctx, q.key)
	}
	return l.TryAcquireN(ctx, q.key, q.n)
}

func (f *Fallback) decide(ctx context.Context, q question) (Result, error) {
	if f == nil || f.primary == nil {
		return Result{}, errUnmade
	}
	if q.joint == nil { // the Fallbacks of a joint have their own observers
		q.began = f.watch.begin()
	}
	if err := checkKey(q.key); err != nil {
		f.report(ctx, q, Observation{Err: err})
		return Result{}, err
	}
	switch {
	case f.budget > 0:
		return f.decideWithin(ctx, q)
	case f.breaker != nil:
		return f.decideGuarded(ctx, q)
	}
	r, err := q.ask(ctx, f.primary)
	return f.conclude(ctx, q, r, err)
}

// conclude returns the primary's answer, or asks the secondary if the primary did not
// decide.
func (f *Fallback) conclude(ctx context.Context, q question, r Result, err error) (Result, error) {
	if err == nil {
		switch {
		case q.joint != nil:
			q.joint.note(ctx)
		case f.follows:
			if local := follower(ctx, f.secondary, q.key); local != nil {
				local.note(q.key, r)
			}
		}
		return r, nil
	}
	if !errclass.Is(err, errclass.Outage) {
		return Result{}, err
	}
	if end := deadline.Ended(ctx); end != nil {
		if !errors.Is(err, end) {
			err = fmt.Errorf("%w; %w", err, end)
		}
		return Result{}, err
	}
	return f.askSecondary(ctx, q, err)
}

// askSecondary returns the secondary's answer. why is the reason that the primary did
// not decide.
func (f *Fallback) askSecondary(ctx context.Context, q question, why error) (Result, error) {
	if end := deadline.Ended(ctx); end != nil {
		return Result{}, f.gone(ctx, q, end)
	}
	if unasked(why) {
		if err := f.mistake(ctx, q); err != nil {
			if !errors.Is(err, errNoReserve) { // the caller asks otherwise
				f.report(ctx, q, Observation{Err: err})
			}
			return Result{}, err
		}
	}
	if q.joint != nil {
		q.joint.why = why
	}
	r, err := q.ask(ctx, f.secondary)
	if errors.Is(err, ErrExceedsLimit) {
		r, err = f.denyUntilPrimary(ctx, q.key), nil
		if q.joint != nil {
			q.joint.sec = q.joint.call.denied(q.joint.tooMuch, r)
		}
	}
	if err == nil {
		r.Fallback = true
	}
	switch {
	case err == nil:
	case errors.Is(err, errNoReserve): // the caller asks otherwise
		return Result{}, err
	case errors.Is(err, ErrInvalidConfig): // of the secondary; why there is no decision is the primary's outage
		r, err = Result{}, fmt.Errorf("ratelimit: fallback for %s: primary: %w; secondary: %v", shortKey(q.key), why, err)
	case errclass.IsMistake(err): // the call's own; a primary may have returned the same
		r = Result{}
	default:
		r, err = Result{}, fmt.Errorf("ratelimit: fallback for %s: primary: %w; secondary: %w", shortKey(q.key), why, err)
	}
	f.report(ctx, q, Observation{Source: SourceFallback, Result: r, Err: err, Reason: why})
	return r, err
}

// unasked reports whether why says that the primary was not asked, or has not returned.
func unasked(why error) bool {
	return errors.Is(why, ErrBreakerOpen) || errors.Is(why, ErrOverBudget)
}

// mistake is the error that the primary returns without asking Redis, nil if there is none.
func (f *Fallback) mistake(ctx context.Context, q question) error {
	if q.joint != nil {
		return q.joint.primaries().mistake(ctx)
	}
	if q.peek {
		return callOn(f.primary, CallPeek, q.key, 1).mistake(ctx)
	}
	return callOn(f.primary, CallAcquire, q.key, q.n).mistake(ctx)
}

// report reports a call that the primary did not answer.
func (f *Fallback) report(ctx context.Context, q question, o Observation) {
	if q.joint != nil {
		q.joint.report(ctx, q.began, o)
		return
	}
	if f.watch == nil {
		return
	}
	o.Key, o.N = q.key, q.n
	switch {
	case o.Call == CallReset:
	case q.peek:
		o.Call, o.N = CallPeek, 1
	default:
		o.Call = CallAcquire
	}
	f.watched(ctx, q.began, o)
}

func (f *Fallback) watched(ctx context.Context, began time.Time, o Observation) {
	if f.breaker != nil {
		o.Breaker = f.breaker.State()
	}
	f.watch.end(ctx, began, o)
}

// denyUntilPrimary is the denial of a call for which the secondary returned
// ErrExceedsLimit. The primary may allow as many permits, so the call is worth a retry
// when the primary is asked again. The rest says how the secondary stands.
func (f *Fallback) denyUntilPrimary(ctx context.Context, key string) Result {
	r, err := f.secondary.Peek(ctx, key)
	if err != nil {
		r = Result{Limit: kindOf(f.secondary).most}
	}
	r.Allowed, r.RetryAfter = false, retryWithoutBreaker
	if f.breaker != nil {
		r.RetryAfter = f.breaker.untilProbe()
	}
	return r
}

// retryWithoutBreaker is the RetryAfter of denyUntilPrimary without a breaker, when every
// call asks the primary. It is that of DenyAll.
const retryWithoutBreaker = time.Second

// gone is the error of a call whose context ended before anybody answered.
func (f *Fallback) gone(ctx context.Context, q question, end error) error {
	err := fmt.Errorf("ratelimit: fallback for %s: %w", shortKey(q.key), end)
	f.report(ctx, q, Observation{Err: err})
	return err
}

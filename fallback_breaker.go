package ratelimit

import (
	"context"
	"time"

	"github.com/tryacquire/ratelimit/internal/deadline"
	"github.com/tryacquire/ratelimit/internal/errclass"
)

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

// hasBreaker reports whether a call of l may ask b.
func hasBreaker(l any, b *Breaker) bool {
	if p, ok := l.(outagePolicy); ok {
		if f, _, _ := p.outage(); f != nil && f.breaker == b {
			return true
		}
	}
	inner := kindOf(l).inside
	return inner != nil && hasBreaker(inner, b)
}

// failureAfter is how long a call whose caller has left must have taken to count as a
// failure, where there is no budget. Without such a rule, a hung Redis would never open
// the breaker of a service whose requests have deadlines. It is not shorter, so that
// requests with very short deadlines cannot open the breaker.
const failureAfter = 250 * time.Millisecond

// decideGuarded asks the primary unless the breaker is open.
func (f *Fallback) decideGuarded(ctx context.Context, q question) (Result, error) {
	done := f.breaker.begin()
	if done == nil {
		return f.askSecondary(ctx, q, ErrBreakerOpen)
	}
	r, err := f.askJudged(ctx, q, done)
	return f.conclude(ctx, q, r, err)
}

// askJudged asks the primary, and gives the breaker its verdict.
func (f *Fallback) askJudged(ctx context.Context, q question, done func(error)) (r Result, err error) {
	start := time.Now()
	verdict := errFailed // if the primary panics
	defer func() { f.breaker.end(done, verdict) }()
	r, err = q.ask(ctx, f.primary)
	verdict = verdictOn(err)
	if verdict == errFailed && deadline.Ended(ctx) != nil && time.Since(start) < failureAfter {
		verdict = errNeutral // the primary may have had no time to answer
	}
	return r, err
}

// verdictOn is how a call that the primary answered with err counts for a breaker.
func verdictOn(err error) error {
	if err == nil {
		return nil
	}
	switch class := errclass.Of(err).Class; {
	case class.Answered():
		return nil
	case class == errclass.Outage:
		return errFailed
	}
	return errNeutral
}

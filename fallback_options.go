package ratelimit

import "time"

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

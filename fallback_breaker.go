package ratelimit

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/sony/gobreaker/v2"
)

// BreakerState is the state of the circuit breaker of a [Fallback].
type BreakerState int

const (
	// StateClosed: every call asks the primary.
	StateClosed BreakerState = iota
	// StateHalfOpen: one call at a time asks the primary, to see whether it is
	// back; the others ask the secondary.
	StateHalfOpen
	// StateOpen: every call asks the secondary.
	StateOpen
)

// String is "closed", "half-open" or "open".
func (s BreakerState) String() string {
	switch s {
	case StateClosed:
		return "closed"
	case StateHalfOpen:
		return "half-open"
	case StateOpen:
		return "open"
	}
	return "unknown state"
}

// WithBreaker stops asking a primary that fails: after 5 failures in a row the
// secondary answers at once, and every 200ms one call tries the primary again.
// The first of these that succeeds closes the breaker. [WithFailures] and
// [WithProbeEvery] change the two numbers.
//
// A failure is an outage, as [Fallback] defines it, or a call over budget. A caller's
// mistake counts neither as failure nor as success, nor does ErrCorruptState, which is
// about one key. A call whose caller has left is judged by the primary: with a budget
// the call goes on, and counts when it ends or when the budget is over; without a
// budget it counts as a failure if the primary took 250ms or longer, and not at all
// otherwise.
//
// Calls in flight at the same time also fail at the same time: if there are always
// more than 5, one pause of Redis that is longer than the budget opens the breaker, for
// 200ms. If that is too soon, use a longer budget or more failures.
//
// The breaker is github.com/sony/gobreaker. While it is closed, it costs two locks for
// each call, and without a budget no allocation; while it is open, one lock.
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

// A BreakerOption is [WithFailures] or [WithProbeEvery].
type BreakerOption interface {
	setBreaker(*breakerSettings)
}

// WithFailures opens the breaker after n failures in a row, 5 if not given. A success
// sets the count to 0. n is 1 to 2^31 - 1.
func WithFailures(n int) BreakerOption {
	return breakerSetter(func(s *breakerSettings) {
		if n < 1 || n > math.MaxInt32 {
			s.refuse("WithFailures: %d is not between 1 and %d", n, math.MaxInt32)
		}
		s.once("WithFailures")
		s.failures = n
	})
}

// WithProbeEvery lets one call try the primary once the breaker has been open for d,
// 200ms if not given. So a primary that works again is used after d at most, plus the
// time that its client takes to connect: after as many failed dials as its pool has
// connections, go-redis dials only once a second. d is at least 1ms.
func WithProbeEvery(d time.Duration) BreakerOption {
	return breakerSetter(func(s *breakerSettings) {
		if d < time.Millisecond {
			s.refuse("WithProbeEvery: %v is below 1ms; leave the option out for %v", d, defaultProbeEvery)
		}
		s.once("WithProbeEvery")
		s.probeEvery = d
	})
}

const (
	defaultFailures   = 5
	defaultProbeEvery = 200 * time.Millisecond
)

type breakerSettings struct {
	*settings  // of the Fallback: the options given, and the first error
	failures   int
	probeEvery time.Duration
}

type breakerSetter func(*breakerSettings)

func (f breakerSetter) setBreaker(s *breakerSettings) { f(s) }

// A breaker decides whether a call may ask the primary. One of whole and steps is set:
// whole for calls that end when the primary returns, which costs no allocation, and
// steps for calls with a budget, whose verdict may be known before the primary returns.
type breaker struct {
	whole *gobreaker.CircuitBreaker[struct{}]
	steps *gobreaker.TwoStepCircuitBreaker[struct{}]

	observe func(Event)
	changes changes
}

func newBreaker(s *breakerSettings, inSteps bool, observe func(Event)) *breaker {
	b := &breaker{observe: observe}
	st := gobreaker.Settings{
		MaxRequests: 1, // one probe at a time
		Timeout:     s.probeEvery,
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= uint32(s.failures) },
		IsExcluded:  func(err error) bool { return err == errNeutral },
	}
	if observe != nil {
		st.OnStateChange = func(_ string, from, to gobreaker.State) {
			b.changes.add(Event{Kind: EventBreakerState, From: breakerState(from), To: breakerState(to)})
		}
	}
	if inSteps {
		b.steps = gobreaker.NewTwoStepCircuitBreaker[struct{}](st)
	} else {
		b.whole = gobreaker.NewCircuitBreaker[struct{}](st)
	}
	return b
}

func breakerState(s gobreaker.State) BreakerState {
	switch s {
	case gobreaker.StateHalfOpen:
		return StateHalfOpen
	case gobreaker.StateOpen:
		return StateOpen
	}
	return StateClosed
}

// during calls ask unless the breaker is open, and reports whether it called ask. ask
// returns nil, errFailure or errNeutral.
func (b *breaker) during(ask func() error) bool {
	_, err := b.whole.Execute(func() (struct{}, error) { return struct{}{}, ask() })
	b.deliver()
	return err == nil || err == errFailure || err == errNeutral
}

// begin returns nil when the breaker is open. Otherwise it returns a function that must
// be called once, with nil, errFailure or errNeutral.
func (b *breaker) begin() (end func(error)) {
	end, _ = b.steps.Allow()
	b.deliver()
	return end
}

// failureAfter is how long a call whose caller has left must have taken to count as a
// failure, where there is no budget. Without such a rule, a hung Redis would never open
// the breaker of a service whose requests have deadlines. It is not shorter, so that
// requests with very short deadlines cannot open the breaker.
const failureAfter = 250 * time.Millisecond

// decideGuarded asks the primary unless the breaker is open.
func (f *Fallback) decideGuarded(ctx context.Context, q question) (r Result, err error) {
	asked := f.breaker.during(func() error {
		start := time.Now()
		r, err = q.ask(ctx, f.primary)
		if outage(err) && endOf(ctx) != nil {
			// The context ended before the primary answered. The primary may have
			// been too slow: see failureAfter.
			if time.Since(start) < failureAfter {
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

// verdict is how a call that the primary answered with err counts for a breaker.
func verdict(err error) error {
	switch {
	case err == nil || errors.Is(err, ErrDenied):
		return nil
	case !outage(err) || errors.Is(err, ErrCorruptState):
		return errNeutral
	}
	return errFailure
}

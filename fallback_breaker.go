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

// A BreakerOption is [WithFailures] or [WithProbeEvery].
type BreakerOption interface {
	setBreaker(*breakerSettings)
}

// WithFailures opens the breaker after n failures in a row, 5 if not given. One
// success in between starts the count anew.
func WithFailures(n int) BreakerOption {
	return breakerSetter(func(s *breakerSettings) {
		if n < 1 || n > math.MaxInt32 {
			s.refuse("WithFailures: %d is not between 1 and %d", n, math.MaxInt32)
		}
		s.once("WithFailures")
		s.failures = n
	})
}

// WithProbeEvery lets one call try the primary once the breaker has been open
// for d, 200ms if not given. That is the longest that a primary can be back
// without being used, but for what its client takes to connect: go-redis tries
// only once a second after as many failed dials as its pool has connections.
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
	*settings  // of the Fallback: what was given, and the first error
	failures   int
	probeEvery time.Duration
}

type breakerSetter func(*breakerSettings)

func (f breakerSetter) setBreaker(s *breakerSettings) { f(s) }

// A breaker decides whether a call may ask the primary. One of the two inside
// is set: whole for calls that are over when the primary returns, which costs
// no allocation, and steps for calls with a budget, whose verdict may be known
// before that.
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

// during calls ask unless the breaker is open, and reports whether it did. What
// ask returns is nil, errFailure or errNeutral.
func (b *breaker) during(ask func() error) bool {
	_, err := b.whole.Execute(func() (struct{}, error) { return struct{}{}, ask() })
	b.deliver()
	return err == nil || err == errFailure || err == errNeutral
}

// begin returns nil when the breaker is open, else a function that must be
// called once, with nil, errFailure or errNeutral.
func (b *breaker) begin() (end func(error)) {
	end, _ = b.steps.Allow()
	b.deliver()
	return end
}

// failureAfter is when a call that the caller gave up on counts as a failure, where
// no budget says so. Without it a hung Redis would never open the breaker of a
// service whose requests have a deadline of their own. It is not shorter, so
// that a client who sends requests with tiny deadlines cannot open it.
const failureAfter = 250 * time.Millisecond

// decideGuarded asks the primary unless the breaker is open.
func (f *Fallback) decideGuarded(ctx context.Context, q question) (r Result, err error) {
	asked := f.breaker.during(func() error {
		start := time.Now()
		r, err = q.ask(ctx, f.primary)
		if outage(err) && endOf(ctx) != nil {
			// The context took the call from the primary, which may be the
			// reason: see failureAfter.
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

package ratelimit

import (
	"cmp"
	"math"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"
)

// A Breaker is the circuit breaker of one Redis. [WithSharedBreaker] gives it to the
// [Fallback] of each limiter on that Redis, so that an outage is noticed once, not once
// for each limiter.
//
// A Breaker is safe for concurrent use, starts no goroutine, and needs no closing.
type Breaker struct {
	made       int64 // its number among those of this process
	machine    *gobreaker.TwoStepCircuitBreaker[struct{}]
	probeEvery time.Duration
	watch      *watch // nil: nobody observes
	changes    changes

	// As of the last change that gobreaker announced. Its own State would make an open
	// breaker half-open, and it does not say when it opened.
	state    atomic.Int32 // a BreakerState
	openedAt atomic.Pointer[time.Time]
}

// NewBreaker returns a breaker that is closed. The error wraps ErrInvalidConfig: an option
// is nil, its value cannot work, or it is given twice.
func NewBreaker(opts ...BreakerOption) (*Breaker, error) {
	var all settings
	s := newBreakerSettings(&all, "NewBreaker", opts)
	if all.err != nil {
		return nil, all.err
	}
	return s.build(all.watch(cmp.Or(all.name, defaultName))), nil
}

// State is the breaker's state now. An open breaker becomes half-open with the first call
// that begins or ends after the time of WithProbeEvery, and not at that time itself.
// It is BreakerClosed for a breaker that NewBreaker did not make.
func (b *Breaker) State() BreakerState {
	if b == nil {
		return BreakerClosed
	}
	return BreakerState(b.state.Load())
}

// A BreakerOption is [WithFailures], [WithProbeEvery] or, for NewBreaker, [WithObserver] and
// [WithName].
type BreakerOption interface {
	setBreaker(*breakerSettings)
}

// WithFailures opens the breaker after n failures in a row; without it n is 5. A success
// sets the count to 0. With 1, one call that is over budget opens the breaker, for as long
// as WithProbeEvery says. n is 1 to 2^31 - 1.
func WithFailures(n int) BreakerOption {
	return breakerSetter(func(s *breakerSettings) {
		if n < 1 || n > math.MaxInt32 {
			s.refuse("WithFailures: %d is not between 1 and %d", n, math.MaxInt32)
		}
		s.once("WithFailures")
		s.failures = n
	})
}

// WithProbeEvery lets one call try the primary once the breaker has been open for d;
// without it d is 200ms. So a primary that works again is used after at most d, plus the
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
	*settings  // the options given, and the first error
	maker      string
	failures   int
	probeEvery time.Duration
}

type breakerSetter func(*breakerSettings)

func (f breakerSetter) setBreaker(s *breakerSettings) { f(s) }

func newBreakerSettings(all *settings, maker string, opts []BreakerOption) *breakerSettings {
	s := &breakerSettings{settings: all, maker: maker, failures: defaultFailures, probeEvery: defaultProbeEvery}
	for i, o := range opts {
		if o == nil {
			s.refuse("%s: option %d is nil", maker, i+1)
			break
		}
		o.setBreaker(s)
	}
	return s
}

func (s *breakerSettings) build(w *watch) *Breaker {
	b := &Breaker{made: breakersMade.Add(1), probeEvery: s.probeEvery, watch: w}
	b.machine = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		MaxRequests:   1,                // one probe at a time
		Timeout:       s.probeEvery - 1, // a call probes when more time has passed, so at probeEvery
		ReadyToTrip:   func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= uint32(s.failures) },
		IsExcluded:    func(verdict error) bool { return verdict == errNeutral },
		OnStateChange: func(_ string, from, to gobreaker.State) { b.changed(breakerState(from), breakerState(to)) },
	})
	return b
}

var breakersMade atomic.Int64

func breakerState(s gobreaker.State) BreakerState {
	switch s {
	case gobreaker.StateHalfOpen:
		return BreakerHalfOpen
	case gobreaker.StateOpen:
		return BreakerOpen
	}
	return BreakerClosed
}

// changed notes a change of the state. gobreaker's lock is held.
func (b *Breaker) changed(from, to BreakerState) {
	if to == BreakerOpen {
		now := time.Now()
		b.openedAt.Store(&now)
	}
	b.state.Store(int32(to))
	if b.watch != nil {
		b.changes.add(Observation{Call: CallBreaker, Outcome: OutcomeDone, From: from, Breaker: to})
	}
}

// deliver passes the changes of state to the observers.
func (b *Breaker) deliver() {
	if b.watch != nil {
		b.changes.deliver(b.watch)
	}
}

// begin returns nil if a call must not ask the primary. Otherwise end must be called once
// with what it returns.
func (b *Breaker) begin() (done func(error)) {
	done, _ = b.machine.Allow()
	b.deliver()
	return done
}

// end counts a call as verdict says, which is nil for a success, errFailed or errNeutral.
func (b *Breaker) end(done func(error), verdict error) {
	done(verdict)
	b.deliver()
}

// untilProbe is the time until an open breaker lets a call try, and the time between two
// probes in the other states.
func (b *Breaker) untilProbe() time.Duration {
	if b.State() != BreakerOpen {
		return b.probeEvery
	}
	return max(b.probeEvery-time.Since(*b.openedAt.Load()), time.Microsecond)
}

package ratelimit

import (
	"cmp"
	"math"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"
)

// A Breaker is the circuit breaker of one Redis. [WithBreaker] gives it to the
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

// BreakerSettings are the two numbers of a breaker. The zero value has the defaults.
type BreakerSettings struct {
	// Failures is how many failures in a row open the breaker; 0 means 5. A success sets the
	// count to 0. With 1, one call that is over budget opens the breaker, for ProbeEvery.
	// Failures is at most 2^31 - 1.
	Failures int

	// ProbeEvery is how long the breaker is open before one call tries the primary; 0 means
	// 200ms. So a primary that works again is used after at most ProbeEvery, plus the time
	// that its client takes to connect: after as many failed dials as its pool has
	// connections, go-redis dials only once a second. ProbeEvery is at least 1ms.
	ProbeEvery time.Duration
}

// NewBreaker returns a breaker that is closed, to be shared by several Fallbacks. Its changes of
// state go to the observers of [WithObserver]. The error wraps ErrInvalidConfig: a setting cannot
// work, or an option is nil, cannot work or is given twice.
func NewBreaker(s BreakerSettings, opts ...CommonOption) (*Breaker, error) {
	all := settings{}
	s = s.complete(&all, "NewBreaker")
	for i, o := range opts {
		if o == nil {
			all.refuse("NewBreaker: option %d is nil", i+1)
			break
		}
		o.setCommon(&all)
	}
	if all.err != nil {
		return nil, all.err
	}
	return s.build(all.watch(cmp.Or(all.name, defaultName))), nil
}

// State is the breaker's state now. An open breaker becomes half-open with the first call
// that begins or ends after ProbeEvery, and not at that time itself.
// It is BreakerClosed for a breaker that NewBreaker did not make.
func (b *Breaker) State() BreakerState {
	if b == nil {
		return BreakerClosed
	}
	return BreakerState(b.state.Load())
}

const (
	defaultFailures   = 5
	defaultProbeEvery = 200 * time.Millisecond
)

// complete is s with the defaults. What cannot work is refused for the constructor or option.
func (s BreakerSettings) complete(all *settings, what string) BreakerSettings {
	if s.Failures < 0 || s.Failures > math.MaxInt32 {
		all.refuse("%s: %d Failures are not between 1 and %d; leave the field out for %d", what, s.Failures, math.MaxInt32, defaultFailures)
	}
	if s.ProbeEvery != 0 && s.ProbeEvery < time.Millisecond {
		all.refuse("%s: a ProbeEvery of %v is below 1ms; leave the field out for %v", what, s.ProbeEvery, defaultProbeEvery)
	}
	return BreakerSettings{cmp.Or(s.Failures, defaultFailures), cmp.Or(s.ProbeEvery, defaultProbeEvery)}
}

// build makes the breaker of complete settings.
func (s BreakerSettings) build(w *watch) *Breaker {
	b := &Breaker{made: breakersMade.Add(1), probeEvery: s.ProbeEvery, watch: w}
	b.machine = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		MaxRequests:   1,                // one probe at a time
		Timeout:       s.ProbeEvery - 1, // a call probes when more time has passed, so at probeEvery
		ReadyToTrip:   func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= uint32(s.Failures) },
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

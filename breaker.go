package ratelimit

import (
	"cmp"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"
)

// A Breaker is the circuit breaker of one Redis. [WithBreaker] gives it to the [Fallback] of each
// limiter on that Redis, so that an outage is noticed once, not once for each limiter. The zero
// value is a breaker with the defaults:
//
//	limiter, err := ratelimit.NewFallback(primary, secondary, ratelimit.WithBreaker(&ratelimit.Breaker{}))
//
// Its fields must not change once a Fallback has it. A Breaker is safe for concurrent use, starts no
// goroutine, needs no closing, and must not be copied.
type Breaker struct {
	// Failures is how many failures in a row open the breaker; 0 means 5. A success sets the
	// count to 0. With 1, one call that is over budget opens the breaker, for ProbeEvery.
	// Failures is at most 2^31 - 1.
	Failures int

	// ProbeEvery is how long the breaker is open before one call tries the primary; 0 means
	// 200ms. So a primary that works again is used after at most ProbeEvery, plus the time
	// that its client takes to connect: after as many failed dials as its pool has
	// connections, go-redis dials only once a second. ProbeEvery is at least 1ms.
	ProbeEvery time.Duration

	// Observers get each change of the state once, see [CallBreaker]. If there are none, those of
	// the first Fallback that has the breaker and observers get the changes.
	Observers []Observer

	// Name is the Limiter of what Observers get. If it is empty, that is the name of the Fallback
	// whose observers they are, or "default".
	Name string

	start   sync.Once
	made    int64 // its number among those of this process
	machine *gobreaker.TwoStepCircuitBreaker[struct{}]
	watch   atomic.Pointer[watch] // nil: nobody observes
	changes changes

	// As of the last change that gobreaker announced. Its own State would make an open
	// breaker half-open, and it does not say when it opened.
	state    atomic.Int32 // a BreakerState
	openedAt atomic.Pointer[time.Time]
}

// check refuses fields that cannot work.
func (b *Breaker) check() error {
	switch {
	case b == nil:
		return invalidConfig("WithBreaker: the breaker is nil; &Breaker{} has the defaults")
	case b.Failures < 0 || b.Failures > math.MaxInt32:
		return invalidConfig("WithBreaker: %d Failures are not between 1 and %d; leave the field out for %d", b.Failures, math.MaxInt32, defaultFailures)
	case b.ProbeEvery != 0 && b.ProbeEvery < time.Millisecond:
		return invalidConfig("WithBreaker: a ProbeEvery of %v is below 1ms; leave the field out for %v", b.ProbeEvery, defaultProbeEvery)
	}
	for i, o := range b.Observers {
		if o == nil {
			return invalidConfig("WithBreaker: observer %d is nil; leave it out", i+1)
		}
	}
	return nil
}

// begun makes the machine of a breaker that has passed check, with its first use.
func (b *Breaker) begun() *Breaker {
	b.start.Do(func() {
		b.made = breakersMade.Add(1)
		if len(b.Observers) > 0 {
			b.watch.Store(&watch{name: cmp.Or(b.Name, defaultName), observers: b.Observers})
		}
		failures := uint32(cmp.Or(b.Failures, defaultFailures))
		b.machine = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
			MaxRequests:   1,                  // one probe at a time
			Timeout:       b.probeEvery() - 1, // a call probes when more time has passed, so at probeEvery
			ReadyToTrip:   func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= failures },
			IsExcluded:    func(verdict error) bool { return verdict == errNeutral },
			OnStateChange: func(_ string, from, to gobreaker.State) { b.changed(breakerState(from), breakerState(to)) },
		})
	})
	return b
}

func (b *Breaker) probeEvery() time.Duration { return cmp.Or(b.ProbeEvery, defaultProbeEvery) }

// reportTo has the observers of a Fallback get the changes of the state, if nobody gets them yet.
func (b *Breaker) reportTo(w *watch) {
	if w != nil {
		b.watch.CompareAndSwap(nil, &watch{name: cmp.Or(b.Name, w.name), observers: w.observers})
	}
}

// State is the breaker's state now. An open breaker becomes half-open with the first call
// that begins or ends after ProbeEvery, and not at that time itself.
// It is BreakerClosed for a breaker that nobody uses.
func (b *Breaker) State() BreakerState {
	if b == nil {
		return BreakerClosed
	}
	return BreakerState(b.state.Load())
}

// BreakerState is the state of a [Breaker].
type BreakerState int

const (
	// BreakerClosed: every call asks the primary.
	BreakerClosed BreakerState = iota
	// BreakerHalfOpen: one call at a time asks the primary, to see whether it works
	// again; the others ask the secondary.
	BreakerHalfOpen
	// BreakerOpen: every call asks the secondary.
	BreakerOpen
)

// String is "closed", "half-open" or "open".
func (s BreakerState) String() string {
	switch s {
	case BreakerClosed:
		return "closed"
	case BreakerHalfOpen:
		return "half-open"
	case BreakerOpen:
		return "open"
	}
	return "unknown state"
}

const (
	defaultFailures   = 5
	defaultProbeEvery = 200 * time.Millisecond
)

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
	if b.watch.Load() != nil {
		b.changes.add(Observation{Call: CallBreaker, Outcome: OutcomeDone, From: from, Breaker: to})
	}
}

// deliver passes the changes of state to the observers.
func (b *Breaker) deliver() {
	if w := b.watch.Load(); w != nil {
		b.changes.deliver(w)
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
		return b.probeEvery()
	}
	return max(b.probeEvery()-time.Since(*b.openedAt.Load()), time.Microsecond)
}

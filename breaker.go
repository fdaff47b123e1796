package ratelimit

import (
	"cmp"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tryacquire/ratelimit/internal/guard"
)

// A Breaker is the circuit breaker of one Redis, which [WithBreaker] gives to the [Fallback] of each limiter there.
// The zero value has the defaults. Its fields must not change once a Fallback has it. It is safe for concurrent use,
// starts no goroutine, needs no closing, and must not be copied.
type Breaker struct {
	// Failures is how many failures in a row open the breaker, at most 2^31 - 1; 0 means 5. A success sets the count to
	// 0.
	Failures int

	// ProbeEvery is how long the breaker is open before one call tries the primary, at least 1ms; 0 means 200ms. A
	// primary that works again is used after at most that, plus the time that its client takes to connect.
	ProbeEvery time.Duration

	// Observers get each change of the state once, see "breaker". Without them, those of the first Fallback that has the
	// breaker and observers get the changes.
	Observers []Observer

	// Name is the Limiter of what Observers get; if empty, the name of the Fallback whose observers they are, or
	// "default".
	Name string

	start   sync.Once
	guard   atomic.Pointer[guard.Breaker] // nil: nobody uses it
	watch   atomic.Pointer[watch]         // nil: nobody observes
	changes changes
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

// begun returns what keeps calls from the primary. It makes that of a breaker that has passed check, with its first use.
func (b *Breaker) begun() *guard.Breaker {
	b.start.Do(func() {
		if len(b.Observers) > 0 {
			b.watch.Store(&watch{name: cmp.Or(b.Name, defaultName), observers: b.Observers})
		}
		failures, probeEvery := cmp.Or(b.Failures, defaultFailures), cmp.Or(b.ProbeEvery, defaultProbeEvery)
		b.guard.Store(guard.NewBreaker(failures, probeEvery, b.changed, b.deliver))
	})
	return b.guard.Load()
}

// reportTo has the observers of a Fallback get the changes of the state, if nobody gets them yet.
func (b *Breaker) reportTo(w *watch) {
	if w != nil {
		b.watch.CompareAndSwap(nil, &watch{name: cmp.Or(b.Name, w.name), observers: w.observers})
	}
}

// State is the breaker's state now, BreakerClosed if nobody uses it. An open breaker becomes half-open with the first
// call that begins or ends after ProbeEvery.
func (b *Breaker) State() BreakerState {
	if of := b.guard.Load(); of != nil {
		return BreakerState(of.State())
	}
	return BreakerClosed
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

// changed notes a change of the state. A lock of the breaker is held.
func (b *Breaker) changed(from, to guard.State) {
	if b.watch.Load() != nil {
		b.changes.add(Observation{Call: callBreaker, Outcome: OutcomeDone, From: BreakerState(from), Breaker: BreakerState(to)})
	}
}

// deliver passes the changes of state to the observers.
func (b *Breaker) deliver() {
	if w := b.watch.Load(); w != nil {
		b.changes.deliver(w)
	}
}

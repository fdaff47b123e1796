package ratelimit

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// A Breaker is the circuit breaker of one Redis. [WithSharedBreaker] gives it to the
// [Fallback] of each limiter on that Redis, so that an outage is noticed once, not once
// for each limiter.
//
// A Breaker is safe for concurrent use, starts no goroutine, and needs no closing.
type Breaker struct {
	failures   int64 // in a row, that open it
	probeEvery time.Duration
	observe    func(Event) // nil: none
	changes    changes

	start time.Time // probeAt counts from here, on the monotonic clock

	// A closed breaker without failures, and one that is open, are only read, so that
	// the cores do not wait for one another.
	phase   atomic.Uint64 // a breakerPhase
	inRow   atomic.Int64  // failures in a row while closed
	probeAt atomic.Int64  // when an open breaker lets a call try

	mu sync.Mutex // held while any of the three is written
}

// It is not github.com/sony/gobreaker, which does not say when it lets the next call try,
// and has two types with a state each, of which one allocates for each call and the other
// cannot judge a call before it returns, as a budget has to.

// A breakerPhase is how often the breaker's phase has changed, and in the lowest two bits
// one of the four below. The verdict on a call counts only in the phase in which the call
// began.
type breakerPhase uint64

const (
	phaseClosed breakerPhase = iota
	phaseOpen
	phaseIdle    // half-open: the next call probes
	phaseProbing // half-open: a call probes
)

func (p breakerPhase) kind() breakerPhase { return p & 3 }

func (p breakerPhase) next(kind breakerPhase) breakerPhase { return (p &^ 3) + 4 + kind }

func (p breakerPhase) state() BreakerState {
	switch p.kind() {
	case phaseClosed:
		return StateClosed
	case phaseOpen:
		return StateOpen
	}
	return StateHalfOpen
}

// A verdict is how a call counts for a breaker.
type verdict int

const (
	verdictFailed    verdict = iota
	verdictSucceeded         // a denial is a success, too
	verdictNeutral           // it says nothing about the primary
)

// NewBreaker returns a breaker that is closed. The error wraps ErrInvalidConfig: an option
// is nil, its value cannot work, or it is given twice.
func NewBreaker(opts ...BreakerOption) (*Breaker, error) {
	var all settings
	s := newBreakerSettings(&all, "NewBreaker", opts)
	if all.err != nil {
		return nil, all.err
	}
	return s.build(s.observe), nil
}

// State is the breaker's state now. An open breaker becomes half-open with the first call
// after its time has passed, not at that time.
func (b *Breaker) State() BreakerState {
	return breakerPhase(b.phase.Load()).state()
}

// A BreakerOption is [WithFailures], [WithProbeEvery] or, for NewBreaker, [WithObserver].
type BreakerOption interface {
	setBreaker(*breakerSettings)
}

// WithFailures opens the breaker after n failures in a row, 5 if not given. A success
// sets the count to 0. With 1, one call that is over budget opens it, for as long as
// WithProbeEvery says. n is 1 to 2^31 - 1.
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
	*settings  // the options given, and the first error
	maker      string
	failures   int
	probeEvery time.Duration
	observe    func(Event)
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

func (s *breakerSettings) build(observe func(Event)) *Breaker {
	return &Breaker{failures: int64(s.failures), probeEvery: s.probeEvery, observe: observe, start: time.Now()}
}

func (b *Breaker) now() int64 { return int64(time.Since(b.start)) }

// begin reports whether a call may ask the primary. If so, end must be called once, with
// the same phase.
func (b *Breaker) begin() (p breakerPhase, ok bool) {
	p = breakerPhase(b.phase.Load())
	switch {
	case p.kind() == phaseClosed:
		return p, true
	case !b.due(p):
		return p, false
	}
	defer b.deliver()
	b.mu.Lock()
	defer b.mu.Unlock()
	p = breakerPhase(b.phase.Load()) // another call may have been first
	switch {
	case p.kind() == phaseClosed:
		return p, true
	case !b.due(p):
		return p, false
	}
	return b.become(phaseProbing), true
}

// due reports whether the next call in phase p probes.
func (b *Breaker) due(p breakerPhase) bool {
	return p.kind() == phaseIdle || p.kind() == phaseOpen && b.now() >= b.probeAt.Load()
}

// end counts a call that began in phase p.
func (b *Breaker) end(p breakerPhase, v verdict) {
	if p.kind() == phaseClosed && (v == verdictNeutral || v == verdictSucceeded && b.inRow.Load() == 0) {
		return
	}
	defer b.deliver()
	b.mu.Lock()
	defer b.mu.Unlock()
	if breakerPhase(b.phase.Load()) != p {
		return
	}
	switch {
	case v == verdictNeutral:
		b.become(phaseIdle)
	case v == verdictSucceeded && p.kind() == phaseClosed:
		b.inRow.Store(0)
	case v == verdictSucceeded:
		b.become(phaseClosed)
	case p.kind() == phaseProbing || b.inRow.Add(1) >= b.failures:
		b.inRow.Store(0)
		now := b.now()
		b.probeAt.Store(now + min(int64(b.probeEvery), math.MaxInt64-now))
		b.become(phaseOpen)
	}
}

// become changes the phase. b.mu is held.
func (b *Breaker) become(kind breakerPhase) breakerPhase {
	from := breakerPhase(b.phase.Load())
	to := from.next(kind)
	b.phase.Store(uint64(to))
	if b.observe != nil && to.state() != from.state() {
		b.changes.add(Event{Kind: EventBreakerState, From: from.state(), To: to.state()})
	}
	return to
}

// untilProbe is the time until an open breaker lets a call try, and the time between two
// probes in the other states.
func (b *Breaker) untilProbe() time.Duration {
	if b.State() != StateOpen {
		return b.probeEvery
	}
	return max(time.Duration(b.probeAt.Load()-b.now()), time.Microsecond)
}

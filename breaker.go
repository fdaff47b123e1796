package ratelimit

import (
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"
)

// ErrBreakerOpen is why a [Fallback] did not ask its primary: the last calls
// failed, and it is not yet time to try again, or another call is trying.
var ErrBreakerOpen = errors.New("ratelimit: the breaker is open")

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

// What a breaker is told of a call. It needs no more, and never sees an error
// of the primary's.
var (
	errFailure = errors.New("the primary failed")
	errNeutral = errors.New("says nothing about the primary")
)

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
	b.tell()
	return err == nil || err == errFailure || err == errNeutral
}

// begin returns nil when the breaker is open, else a function that must be
// called once, with nil, errFailure or errNeutral.
func (b *breaker) begin() (end func(error)) {
	end, _ = b.steps.Allow()
	b.tell()
	return end
}

func (b *breaker) tell() {
	if b.observe != nil {
		b.changes.deliver(b.observe)
	}
}

// changes holds the changes of state until they can be told: gobreaker announces
// them with its lock held, where a slow observer would stop every decision, and
// one that makes a decision itself would never return.
type changes struct {
	waiting atomic.Bool // queue is not empty, to be read without mu

	mu      sync.Mutex // guards what follows
	queue   []Event
	telling bool // one at a time, so that the order is kept
}

func (c *changes) add(e Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue = append(c.queue, e)
	c.waiting.Store(true)
}

// deliver tells all that waits, unless another call is at it, which then tells
// these too.
func (c *changes) deliver(to func(Event)) {
	if !c.waiting.Load() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.telling {
		return
	}
	c.telling = true
	defer func() { c.telling = false }()
	for len(c.queue) > 0 {
		e := c.queue[0]
		c.queue = c.queue[1:]
		c.waiting.Store(len(c.queue) > 0)
		func() {
			c.mu.Unlock()
			defer c.mu.Lock()
			to(e)
		}()
	}
}

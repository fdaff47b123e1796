package ratelimit

import (
	"sync"
	"sync/atomic"
)

// EventKind says what an [Event] is about.
type EventKind int

const (
	// EventPrimaryFailed: the secondary was asked, as the primary returned an
	// error.
	EventPrimaryFailed EventKind = iota + 1
	// EventOverBudget: the secondary was asked, as the call took longer than the
	// budget or too many abandoned ones are still running.
	EventOverBudget
	// EventBreakerOpen: the secondary was asked, as the breaker is open.
	EventBreakerOpen
	// EventBreakerState: the breaker's state changed. An open breaker becomes
	// half-open by the first call after its time, not by the time itself.
	EventBreakerState
)

// String is "primary failed", "over budget", "breaker open" or "breaker state".
func (k EventKind) String() string {
	switch k {
	case EventPrimaryFailed:
		return "primary failed"
	case EventOverBudget:
		return "over budget"
	case EventBreakerOpen:
		return "breaker open"
	case EventBreakerState:
		return "breaker state"
	}
	return "unknown event"
}

// An Event is what an observer of a [Fallback] hears of.
type Event struct {
	Kind EventKind

	// Of a call that the secondary was asked for.
	Key          string // of the call
	Err          error  // why the primary did not decide; wraps ErrOverBudget or ErrBreakerOpen where that is the reason
	Result       Result // what the secondary answered; zero if it failed
	SecondaryErr error  // the secondary's error, nil if it answered

	// Of EventBreakerState.
	From, To BreakerState
}

// WithObserver calls observe for every call that the secondary was asked for and
// for every change of the breaker's state. It is called before the call returns,
// or by a goroutine of the Fallback's own, and by many at once (but for changes
// of state, which come one by one and in order), so that it must be quick, safe
// for concurrent use, and must not panic. It may call the Fallback.
func WithObserver(observe func(Event)) FallbackOption {
	return fallbackSetter(func(s *fallbackSettings) {
		if observe == nil {
			s.refuse("WithObserver: the function is nil; leave the option out to observe nothing")
		}
		s.once("WithObserver")
		s.observe = observe
	})
}

// deliver passes the changes of state to the observer.
func (b *breaker) deliver() {
	if b.observe != nil {
		b.changes.deliver(b.observe)
	}
}

// changes holds the changes of state until they can be delivered: gobreaker announces
// them with its lock held, where a slow observer would stop every decision, and
// one that makes a decision itself would never return.
type changes struct {
	waiting atomic.Bool // queue is not empty, to be read without mu

	mu         sync.Mutex // guards what follows
	queue      []Event
	delivering bool // one at a time, so that the order is kept
}

func (c *changes) add(e Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue = append(c.queue, e)
	c.waiting.Store(true)
}

// deliver passes on all that waits, unless another call is doing so, which then
// passes these on too.
func (c *changes) deliver(to func(Event)) {
	if !c.waiting.Load() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.delivering {
		return
	}
	c.delivering = true
	defer func() { c.delivering = false }()
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

package ratelimit

import (
	"sync"
	"sync/atomic"
)

// EventKind says what an [Event] is about.
type EventKind int

const (
	// EventPrimaryFailed: the secondary was asked because the primary returned an
	// error.
	EventPrimaryFailed EventKind = iota + 1
	// EventOverBudget: the secondary was asked because the call took longer than the
	// budget, or because too many abandoned calls are still running.
	EventOverBudget
	// EventBreakerOpen: the secondary was asked because the breaker is open.
	EventBreakerOpen
	// EventBreakerState: the breaker's state changed. An open breaker becomes
	// half-open with the first call that begins or ends after its time has passed, not
	// at that time.
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

// An Event is what the observer of a [Fallback] or a [Breaker] gets.
type Event struct {
	Kind EventKind

	// For the three kinds in which the secondary was asked.
	Key          string // of the call
	Err          error  // why the primary did not decide; wraps ErrOverBudget or ErrBreakerOpen where that is the reason
	Result       Result // what the caller got; zero if the secondary failed
	SecondaryErr error  // the secondary's error; nil if the caller got a Result

	// For EventBreakerState.
	From, To BreakerState
}

// An ObserverOption is [WithObserver], which applies to NewFallback and to NewBreaker.
type ObserverOption interface {
	FallbackOption
	BreakerOption
}

// WithObserver calls observe for every call for which the secondary was asked, and for
// every change of the breaker's state. A shared breaker ([WithSharedBreaker]) reports its
// changes once, to the observer that [NewBreaker] got, and no calls; the Fallbacks report
// their calls. So the same function, given to all of them, gets every event once.
//
// observe runs before the call returns, or in a goroutine of the Fallback, and in many
// goroutines at once (changes of state come one by one and in order). So it must be quick
// and safe for concurrent use, and must not panic. It may call the Fallback.
func WithObserver(observe func(Event)) ObserverOption { return observer(observe) }

type observer func(Event)

func (o observer) setFallback(s *fallbackSettings) {
	o.check(&s.settings)
	s.observe = o
}

func (o observer) setBreaker(s *breakerSettings) {
	if s.maker == "WithBreaker" {
		s.refuse("WithBreaker: WithObserver is given to NewFallback; its observer gets the changes of the breaker's state too")
	}
	o.check(s.settings)
	s.observe = o
}

func (o observer) check(s *settings) {
	if o == nil {
		s.refuse("WithObserver: the function is nil; leave the option out to observe nothing")
	}
	s.once("WithObserver")
}

// deliver passes the changes of state to the observer.
func (b *Breaker) deliver() {
	if b.observe != nil {
		b.changes.deliver(b.observe)
	}
}

// changes holds the changes of state until they can be delivered. gobreaker announces
// them with its lock held: there a slow observer would stop every decision, and an
// observer that calls the Fallback would never return.
type changes struct {
	waiting atomic.Bool // queue is not empty; read without mu

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

// deliver passes on all changes that wait. If another call is doing so, it returns at
// once, and that call passes these on too.
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

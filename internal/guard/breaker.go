package guard

import (
	"cmp"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/tryacquire/ratelimit/internal/errclass"
)

// A State is that of a Breaker. The later it stands here, the longer a breaker keeps calls from the primary.
type State int32

const (
	Closed   State = iota // every call asks the primary
	HalfOpen              // one call at a time asks, to see whether the primary works again
	Open                  // no call asks
)

// The verdicts on calls, beside nil for a success.
var (
	errFailed  = errors.New("the primary failed")
	errNeutral = errors.New("says nothing about the primary")
)

// A Breaker keeps calls from a primary that fails. It is safe for concurrent use.
type Breaker struct {
	made       int64 // its number among those of this process
	machine    *gobreaker.TwoStepCircuitBreaker[struct{}]
	probeEvery time.Duration
	delivers   func() // after each begin and end; nil: nothing

	// As of the last change that gobreaker announced. Its own State would make an open
	// breaker half-open, and it does not say when it opened.
	state    atomic.Int32
	openedAt atomic.Pointer[time.Time]
}

var breakersMade atomic.Int64

// NewBreaker returns a closed breaker that failures in a row open, and that lets one call try the primary again after
// probeEvery. changed gets each change of the state while gobreaker's lock is held: there it must ask nobody.
// delivers is called after each begin and end, without the lock. Both may be nil.
func NewBreaker(failures int, probeEvery time.Duration, changed func(from, to State), delivers func()) *Breaker {
	b := &Breaker{made: breakersMade.Add(1), probeEvery: probeEvery, delivers: delivers}
	b.machine = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		MaxRequests: 1,              // one probe at a time
		Timeout:     probeEvery - 1, // a call probes when more time has passed, so at probeEvery
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= uint32(failures) },
		IsExcluded:  func(verdict error) bool { return verdict == errNeutral },
		OnStateChange: func(_ string, from, to gobreaker.State) {
			if to == gobreaker.StateOpen {
				now := time.Now()
				b.openedAt.Store(&now)
			}
			b.state.Store(int32(stateOf(to)))
			if changed != nil {
				changed(stateOf(from), stateOf(to))
			}
		},
	})
	return b
}

func stateOf(s gobreaker.State) State {
	switch s {
	case gobreaker.StateHalfOpen:
		return HalfOpen
	case gobreaker.StateOpen:
		return Open
	}
	return Closed
}

// State is the breaker's state as of the last call that began or ended.
func (b *Breaker) State() State { return State(b.state.Load()) }

// Allow returns nil if a call must not ask the primary. Otherwise [Breaker.End] must be called once with what it returns.
func (b *Breaker) Allow() (done func(error)) {
	done, _ = b.machine.Allow()
	b.deliver()
	return done
}

// End counts a call that the primary has answered with err.
func (b *Breaker) End(done func(error), err error) { b.end(done, verdictOn(err)) }

func (b *Breaker) end(done func(error), verdict error) {
	done(verdict)
	b.deliver()
}

func (b *Breaker) deliver() {
	if b.delivers != nil {
		b.delivers()
	}
}

// untilProbe is the time until an open breaker lets a call try, and the time between two
// probes in the other states.
func (b *Breaker) untilProbe() time.Duration {
	if b.State() != Open {
		return b.probeEvery
	}
	return max(b.probeEvery-time.Since(*b.openedAt.Load()), time.Microsecond)
}

// Breakers are those around the claims of one call. A call asks the primaries only if all of them allow it. They are
// asked in the order in which they were made, so that two calls do not keep each other from probing.
type Breakers []*Breaker

// With has one more, unless it is among them.
func (all Breakers) With(b *Breaker) Breakers {
	at, found := slices.BinarySearchFunc(all, b, func(a, b *Breaker) int { return cmp.Compare(a.made, b.made) })
	if !found {
		all = slices.Insert(all, at, b)
	}
	return all
}

func (all Breakers) begin() (done func(error)) {
	if len(all) == 1 {
		return all[0].Allow()
	}
	each := make([]func(error), 0, len(all))
	end := func(verdict error) {
		for i, d := range each {
			all[i].end(d, verdict)
		}
	}
	for _, b := range all {
		d := b.Allow()
		if d == nil {
			end(errNeutral)
			return nil
		}
		each = append(each, d)
	}
	return end
}

func (all Breakers) end(done func(error), verdict error) {
	if len(all) == 1 {
		all[0].end(done, verdict)
		return
	}
	done(verdict)
}

// State is that of the breaker that keeps calls from the primary longest.
func (all Breakers) State() State {
	s := Closed
	for _, b := range all {
		s = max(s, b.State())
	}
	return s
}

// UntilProbe is the time until an open breaker lets a call try, the longest of all. Without breakers it is 0.
func (all Breakers) UntilProbe() time.Duration {
	var longest time.Duration
	for _, b := range all {
		longest = max(longest, b.untilProbe())
	}
	return longest
}

// NotAnswered reports whether err says that the primary was not asked, or has not answered within the budget.
func NotAnswered(err error) bool {
	return errors.Is(err, errclass.ErrBreakerOpen) || errors.Is(err, errclass.ErrOverBudget)
}

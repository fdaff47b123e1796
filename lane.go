package ratelimit

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"
)

// A lane is where the calls for one server wait for their flight. They wait for
// a landing, for a call that arrives when the last take-off was a while ago or
// when many wait, or for a timer: a network that is slow, or a reply that never
// comes, keeps nobody on the ground. The goroutine of a flight ends when nobody
// waits.
type lane struct {
	m *merger

	mu       sync.Mutex     // guards all below, and flights before their take-off
	boarding []*flight      // in their order
	open     *flight        // the last of those; nil when it takes no more calls
	last     map[string]int // of the open one: each key's last run
	waiting  int            // calls on all that board
	flying   int
	landing  int           // of the flying: about to take those who wait along
	tookOff  time.Duration // of the last flight, since epoch
	timer    *time.Timer   // lets those who wait take off before a landing
	armed    bool
}

const (
	maxFlying = 16                     // flights of a lane at a time
	maxKeys   = 128                    // keys of a flight: a server does nothing else meanwhile
	maxSeats  = 1024                   // and calls
	rush      = 64                     // so many go although one flight is in the air
	headway   = 200 * time.Microsecond // between take-offs while others are in flight
	lateness  = 500 * time.Microsecond // then those who wait go, though nobody else came
)

var epoch = time.Now()

// enter gives a call a seat, and returns the flight that may take off at once.
// Where nothing is in flight, a call need not wait if it can fly by itself: it is
// alone then, and counted as a flight.
func (l *lane) enter(ctx context.Context, key string, n int, patience time.Duration, itself bool) (s seat, f *flight, alone bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if itself && l.flying == 0 {
		l.flying, l.tookOff = 1, time.Since(epoch)
		return seat{}, nil, true
	}
	joined := false
	if l.open != nil {
		s, joined = l.open.join(key, n, patience)
	}
	if !joined {
		s = l.board(ctx, key, n, patience)
	}
	l.waiting++
	if !joined || l.landing == 0 { // or they go in a moment, and reading the clock would be felt
		f = l.depart()
	}
	return s, f, false
}

// board gives a call a seat on the open flight, or on another one behind it. It is
// called with mu held.
func (l *lane) board(ctx context.Context, key string, n int, patience time.Duration) seat {
	if l.open != nil {
		if s, ok := l.open.board(ctx, l.m.c.prefix, key, n, patience, l.last); ok {
			return s
		}
	}
	if l.last == nil {
		l.last = map[string]int{}
	}
	clear(l.last)
	l.open = newFlight()
	l.boarding = append(l.boarding, l.open)
	s, _ := l.open.board(ctx, l.m.c.prefix, key, n, patience, l.last)
	return s
}

// depart is the flight that may take off now, if any. It is called with mu held.
func (l *lane) depart() *flight {
	crowded := l.flying == 1 && l.waiting >= rush
	if l.flying > 0 && !crowded && time.Since(epoch)-l.tookOff < headway {
		l.setTimer()
		return nil
	}
	return l.takeOff()
}

// setTimer sees to it that those who wait take off if nobody lands or comes. It
// is called with mu held.
func (l *lane) setTimer() {
	if l.armed || l.flying == maxFlying || l.waiting == 0 {
		return
	}
	l.armed = true
	wait := l.tookOff + lateness - time.Since(epoch)
	if l.timer == nil {
		l.timer = time.AfterFunc(wait, func() { l.start(l.ring()) })
	} else {
		l.timer.Reset(wait)
	}
}

// ring is what the timer finds.
func (l *lane) ring() *flight {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.armed = false
	if l.flying == 0 {
		return nil // all have landed, and taken along who waited
	}
	return l.depart()
}

// takeOff takes the first flight from those that board and counts it, or returns
// nil if nobody waits or too many are in flight. It is called with mu held.
func (l *lane) takeOff() *flight {
	if l.flying == maxFlying || l.waiting == 0 {
		return nil
	}
	f := l.boarding[0]
	l.remove(f)
	l.waiting -= f.seats
	l.flying++
	l.tookOff = time.Since(epoch)
	l.setTimer() // for those who found no seat
	return f
}

// land ends a flight of so many calls and is the next, or nil when nobody waits.
func (l *lane) land(calls int) *flight {
	l.mu.Lock()
	defer l.mu.Unlock()
	if calls > 1 {
		l.gather(calls)
	}
	l.flying--
	return l.takeOff()
}

// idle reports whether nobody waits or flies.
func (l *lane) idle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waiting == 0 && l.flying == 0
}

// leave takes note that the caller in s no longer waits. A flight that nobody
// waits for is let go, lest a server that hangs fills the memory.
func (l *lane) leave(s seat) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := s.flight
	if f.departed {
		return
	}
	s.leave()
	l.waiting--
	if f.seats == 0 {
		l.remove(f)
	}
}

// remove takes f from those that board. It is called with mu held.
func (l *lane) remove(f *flight) {
	f.departed = true
	l.boarding = slices.DeleteFunc(l.boarding, func(other *flight) bool { return other == f })
	if l.open == f {
		l.open = nil // those before it were full, and last is not theirs
	}
}

// gather lets those who were just answered run, for as long as they come to wait
// again: a flight that took off at once would leave nearly empty. Nobody is waited
// for who is not about to run. It is called with mu held, and gives it up meanwhile.
func (l *lane) gather(most int) {
	l.landing++
	for last, now := -2, -1; now > last && now < most; {
		l.mu.Unlock()
		runtime.Gosched()
		l.mu.Lock()
		last, now = now, l.waiting
	}
	l.landing--
}

// start flies f, if there is one, and all that follow it.
func (l *lane) start(f *flight) {
	if f != nil {
		go l.fly(f)
	}
}

func (l *lane) fly(f *flight) {
	deepen()
	defer func() {
		if f != nil { // a hook of the client ended the goroutine
			l.start(l.land(1))
		}
	}()
	for f != nil {
		l.m.execute(f)
		f = l.land(f.seats)
	}
}

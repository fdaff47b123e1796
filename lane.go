package ratelimit

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"
)

// A lane is where the calls for one server wait for their flight. They wait for
// a landing, for a call that arrives when the last take-off was a while ago, or
// for a timer: a network that is slow, or a reply that never comes, keeps nobody
// on the ground. The goroutine of a flight ends when nobody waits.
type lane struct {
	mu      sync.Mutex // guards all below
	waiting []*passenger
	gone    int // of those waiting
	flying  int
	tookOff time.Duration // of the last flight, since epoch
	timer   *time.Timer   // lets those who wait take off before a landing
	armed   bool
}

const (
	maxFlying = 16                     // flights of a lane at a time
	maxKeys   = 128                    // keys of a flight: a server does nothing else meanwhile
	maxRuns   = 1024                   // and runs of equal requests
	headway   = 200 * time.Microsecond // between take-offs while others are in flight
	lateness  = 500 * time.Microsecond // then those who wait go, though nobody else came
)

// A passenger is one call on its way.
type passenger struct {
	ctx  context.Context
	key  string
	n    int
	next *passenger // of the same key

	// Guarded by lane.mu.
	boarded, gone bool

	// What the flight brings back.
	words   []int64
	index   int64 // of the call within its run
	err     error
	arrived chan struct{}
}

var passengers = sync.Pool{New: func() any {
	return &passenger{arrived: make(chan struct{}, 1)}
}}

// release makes p fit for another call.
func (p *passenger) release() {
	*p = passenger{arrived: p.arrived}
	passengers.Put(p)
}

func (p *passenger) arrive(err error) {
	p.err = err
	p.arrived <- struct{}{} // never blocks: it has room for the one arrival
}

var epoch = time.Now()

// enter lets p wait, and returns the flight that may take off at once. Where
// nothing is in flight, p need not wait if it can fly by itself: it is alone then,
// and counted as a flight.
func (l *lane) enter(p *passenger, m *merger, itself bool) (f *flight, alone bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if itself && l.flying == 0 {
		l.flying, l.tookOff = 1, time.Since(epoch)
		return nil, true
	}
	l.waiting = append(l.waiting, p)
	return l.depart(m), false
}

// depart is the flight that may take off now, if any. It is called with mu held.
func (l *lane) depart(m *merger) *flight {
	if l.flying > 0 && time.Since(epoch)-l.tookOff < headway {
		l.setTimer(m)
		return nil
	}
	return l.takeOff(m)
}

// setTimer sees to it that those who wait take off if nobody lands or comes. It
// is called with mu held.
func (l *lane) setTimer(m *merger) {
	if l.armed || l.flying == maxFlying || len(l.waiting) == l.gone {
		return
	}
	l.armed = true
	wait := l.tookOff + lateness - time.Since(epoch)
	if l.timer == nil {
		l.timer = time.AfterFunc(wait, func() { m.start(l, l.ring(m)) })
	} else {
		l.timer.Reset(wait)
	}
}

// ring is what the timer finds.
func (l *lane) ring(m *merger) *flight {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.armed = false
	if l.flying == 0 {
		return nil // all have landed, and taken along who waited
	}
	return l.depart(m)
}

// takeOff puts those who wait on a flight and counts it, or returns nil if nobody
// waits or too many are in flight. It is called with mu held.
func (l *lane) takeOff(m *merger) *flight {
	if l.flying == maxFlying {
		return nil
	}
	f := l.board(m.c.prefix)
	if f != nil {
		l.flying++
		l.tookOff = time.Since(epoch)
		l.setTimer(m) // for those who found no seat
	}
	return f
}

// board puts those who wait on a flight, in their order, as far as its bounds
// allow. It is called with mu held.
func (l *lane) board(prefix string) *flight {
	if len(l.waiting) == 0 {
		return nil
	}
	f := flights.Get().(*flight)
	done := 0
	for _, p := range l.waiting {
		if p.gone {
			l.gone--
		} else if !f.board(p, prefix) {
			break
		}
		done++
	}
	rest := copy(l.waiting, l.waiting[done:])
	clear(l.waiting[rest:])
	l.waiting = l.waiting[:rest]
	if f.seats == 0 {
		f.clear()
		return nil
	}
	return f
}

// land ends a flight and is the next, or nil when nobody waits.
func (l *lane) land(m *merger) *flight {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flying--
	return l.takeOff(m)
}

// leave takes note that p no longer waits. Should more be gone than are there,
// they are let go, lest a server that hangs fills the memory.
func (l *lane) leave(p *passenger) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.boarded {
		return
	}
	p.gone = true
	l.gone++
	if l.gone > len(l.waiting)/2 {
		l.waiting = slices.DeleteFunc(l.waiting, func(p *passenger) bool { return p.gone })
		l.gone = 0
	}
}

// gather lets those who were just answered run, for as long as they come to wait
// again: a flight that took off at once would leave nearly empty. Nobody is
// waited for who is not about to run.
func (l *lane) gather(most int) {
	for last := -1; ; {
		runtime.Gosched()
		l.mu.Lock()
		now := len(l.waiting)
		l.mu.Unlock()
		if now >= most || now <= last {
			return
		}
		last = now
	}
}

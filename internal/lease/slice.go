// Package lease spends slices of a quota in memory: permits that were taken at once, and that this process may use until
// they end. It also decides when to take the next slice, and how large it should be.
//
// The package asks nobody and starts no goroutine. [Table.Take] says what to do with a call: it was decided, or a
// [Flight] has to be flown, which asks for a slice, or the call goes to the limiter directly. All times are arguments.
package lease

import (
	"math"
	"sync/atomic"
	"time"
)

// A Clock reads instants.
type Clock struct{ base time.Time }

// NewClock returns a clock that begins now.
func NewClock() Clock { return Clock{time.Now()} }

// Now is an instant by the monotonic clock and by the wall clock.
func (c Clock) Now() Instant {
	now := time.Now()
	return Instant{Mono: now.Sub(c.base), Wall: time.Duration(now.UnixNano())}
}

// An Instant is one moment on two clocks, each since a time of its own. A slice ends when either has passed its end: the
// monotonic clock stands still while some machines are suspended, and the wall clock may be set back.
type Instant struct{ Mono, Wall time.Duration }

func (i Instant) add(d time.Duration) Instant { return Instant{i.Mono + d, i.Wall + d} }

func (i Instant) before(end Instant) bool { return i.Mono < end.Mono && i.Wall < end.Wall }

// A Ticket says of a slice where its permits are, for who gives them back.
type Ticket struct{ Where, Which int64 }

// Unused is permits of a slice that nobody will spend.
type Unused struct {
	Ticket
	N     int
	until Instant // see slice
}

// Over reports whether nothing can come back any more, as the permits' window is over: if the server's clock steps back, it
// can begin again, with another count.
func (u Unused) Over(now Instant) bool { return u.until != Instant{} && !now.before(u.until) }

// A slice is permits that may be spent until an instant.
type slice struct {
	left  atomic.Int64 // at most n; below what is there while a call finds that it does not get all it wants
	n     int64
	from  time.Duration // when it was there, by the monotonic clock
	ends  Instant
	place Ticket
	until Instant               // when its window is over; zero: it is of none
	of    int                   // which limit was the tightest when it was taken
	spare int64                 // no more than so many of them can come back; guarded by the key's mu
	early atomic.Int64          // with more left it is too early to ask for the next one
	next  atomic.Pointer[slice] // that was taken after it
}

// spend takes n permits if they are there. A call that fails takes them for a moment, so that the others find fewer,
// and never more.
func (s *slice) spend(n int64, now Instant) (left int64, ok bool) {
	if s.left.Load() < n || !now.before(s.ends) {
		return 0, false
	}
	if left = s.left.Add(-n); left < 0 {
		s.left.Add(n)
		return 0, false
	}
	return left, true
}

// none is what is left of a slice that is closed, whatever calls that fail add to it.
const none = -1 << 62

// close makes what is left unusable and returns it.
func (s *slice) close() Unused { return Unused{s.place, int(max(s.left.Swap(none), 0)), s.until} }

// returnable reports whether what is left of s may come back: all of it does, or nothing.
func (s *slice) returnable(u Unused) bool { return u.N > 0 && int64(u.N) <= s.spare }

// weight is what n permits that were spent since s was there count in a demand of this memory: they were spent half as
// long ago on average.
func (s *slice) weight(n int64, now, memory time.Duration) float64 {
	return float64(n) * math.Exp(-(now-s.from).Seconds()/2/memory.Seconds())
}

// live is how many permits of s and the slices after it may be spent.
func live(s *slice, now Instant) (left int64) {
	for ; s != nil; s = s.next.Load() {
		if now.before(s.ends) {
			left += max(s.left.Load(), 0)
		}
	}
	return left
}

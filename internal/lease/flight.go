package lease

import (
	"math/rand/v2"
	"time"
)

// A Flight asks for a slice of Want permits for Long, and for Waiting at least. It may get a shorter one, of fewer permits,
// but not shorter than Short. If Long is 0 it is an ordinary call for Waiting permits. Whoever flies it calls Landed or Lost,
// once.
type Flight struct {
	Want, Waiting int
	Short, Long   time.Duration
	Back          []Unused // permits to be given back beside it
	Ahead         *Flight  // to be flown beside an ordinary call; nobody waits for it

	table  *Table
	key    *key
	sent   Instant
	resets int
	backs  int
	gone   bool // guarded by key.mu: who asked for Waiting permits has left

	over    chan struct{} // closed when it has ended; nil of an ordinary call
	outcome Outcome       // written before that
}

// Key is the name of the key.
func (f *Flight) Key() string { return f.key.name }

// Over is closed when a flight for a slice has ended.
func (f *Flight) Over() <-chan struct{} { return f.over }

// An Outcome is what a flight has brought.
type Outcome struct {
	Got                    bool  // the Waiting permits are there for who asked for them
	Err                    error // the flight was lost
	Of                     int   // see Reply
	Left                   int   // permits beside those
	RetryAfter, ResetAfter time.Duration
}

// Outcome is that of a flight that is over.
func (f *Flight) Outcome() Outcome { return f.outcome }

// Leave says that who asked for the Waiting permits does not wait any more: they go into the slice.
func (f *Flight) Leave() {
	f.key.mu.Lock()
	defer f.key.mu.Unlock()
	f.gone = true
}

// A Reply is what a flight brings.
type Reply struct {
	Taken      int           // permits
	Lasts      time.Duration // for so long, from when they were taken; 0: to be used at once
	Ticket                   // of the slice
	Of         int           // of several limits, the one that the reply is about
	Ends       time.Duration // of a log: until the slot ends in which they were taken; 0: that is not known
	Left       int           // permits that others may take
	RetryAfter time.Duration // if there are none
	ResetAfter time.Duration // until all are there
}

// Landed ends the flight. If the permits it brings cannot be spent any more, because the table was closed or the state
// deleted, unused has them.
func (f *Flight) Landed(r Reply, now Instant) (unused Unused) {
	k := f.key
	k.mu.Lock()
	defer k.mu.Unlock()
	k.drop(now)
	left := int64(r.Taken)
	if f.Waiting > 0 && r.Taken >= f.Waiting && !f.gone {
		f.outcome.Got = true
		left -= int64(f.Waiting)
	}
	f.outcome.Left, f.outcome.Of = int(left), r.Of
	if r.Ends > 0 {
		k.turn = now.Mono + r.Ends
	}
	if r.Taken == 0 {
		k.of.Store(int64(r.Of))
	}
	if left > 0 && r.Lasts > 0 {
		unused = f.bring(left, r, now)
	}
	k.full.Store(int64(f.sent.Mono + r.ResetAfter))
	if !f.table.rule.Window {
		k.long = f.table.rule.longIf(r.Left)
	}
	switch {
	case f.Long > 0:
		f.table.trip.Store(int64(now.Mono - f.sent.Mono))
		f.pace(r)
	case k.demand(f.sent.Mono)*f.table.rule.Refill.Seconds() >= busy: // it waits too, or it would get what the others leave
		f.pace(r)
	case r.Taken == 0:
		f.deny(f.sent.Mono+r.RetryAfter, f.Waiting)
	default:
		k.pause /= 2
	}
	denied := k.until(now)
	if !f.outcome.Got {
		f.outcome.Of = denied.Of
	}
	if r.Taken == 0 { // also if permits have come back since
		denied.RetryAfter = max(denied.RetryAfter, f.sent.Mono+r.RetryAfter-now.Mono)
		denied.ResetAfter = max(denied.ResetAfter, denied.RetryAfter)
	}
	f.outcome.RetryAfter, f.outcome.ResetAfter = denied.RetryAfter, denied.ResetAfter
	f.end()
	return unused
}

// bring makes a slice of n permits of the reply, or returns those that nobody can spend.
func (f *Flight) bring(n int64, r Reply, now Instant) Unused {
	k := f.key
	s := &slice{n: n, from: now.Mono, ends: f.sent.add(r.Lasts - r.Lasts/1000), place: r.Ticket, of: r.Of, spare: n}
	s.left.Store(n)
	s.early.Store(n / 4)
	window := f.table.rule.Window && f.table.rule.Slot == 0
	if window {
		s.until = f.sent.add(r.ResetAfter)
	}
	if !f.table.rule.Window {
		k.bound(f.table.rule.spare(r))
	}
	deleted := f.resets != k.resets
	if !deleted && !k.gone {
		k.add(s)
		return Unused{}
	}
	// A window that has begun again could be taken for the one that was deleted, and its count would fall. The others
	// have an id in the ticket.
	if u := s.close(); s.returnable(u) && !(deleted && window) {
		return u
	}
	return Unused{}
}

// spare is how many permits were missing before a slice was taken, beyond those that had to be missing because they are
// restored before it ends. No more of an older slice come back, see docs/architecture.md, "A slice".
func (r Rule) spare(reply Reply) int64 {
	restored := float64(r.Limit) * reply.Lasts.Seconds() / r.Refill.Seconds()
	return int64(r.Limit - reply.Left - reply.Taken - int(restored))
}

// bound notes how many permits of the slices that are out can come back.
func (k *key) bound(spare int64) {
	for s := k.slices.Load(); s != nil; s = s.next.Load() {
		s.spare = min(s.spare, spare)
	}
}

// deny denies calls for n permits or more until an instant, unless permits have come back since the flight was sent.
func (f *Flight) deny(until time.Duration, n int) {
	k := f.key
	if f.backs != k.backs {
		return
	}
	k.least.Store(int64(max(n, 1)))
	k.next.Store(int64(until))
}

// pace sets when this process asks again. Scarce for all means a pause for each: if a process's own denials set it, those
// that got something would go on getting it. The wait shrinks with what is left, so that the bucket never fills while
// all processes wait. It does not depend on a process's demand, so that the hottest does not ask more often than the
// others; a process that took less than a slice could have been asks the sooner. A window that is used up stays so until its
// end, so there is nothing to share by waiting. The waits differ widely, because processes that ask at the same time find
// little, and then ask at the same time again.
func (f *Flight) pace(r Reply) {
	k, rule := f.key, f.table.rule
	if rule.Window {
		k.next.Store(0)
		if r.Taken == 0 { // until the window ends, or slices of others, whose rest comes back
			f.deny(f.sent.Mono+min(r.RetryAfter, rule.Long()), f.Waiting)
		}
		return
	}
	scarce := 1 - float64(4*r.Left)/float64(rule.Limit)
	if scarce <= 0 {
		if k.pause /= 2; k.pause < pauses {
			k.pause = 0
		}
		k.next.Store(0)
		return
	}
	wait, demand := rule.Refill.Seconds()*scarce, k.demand(f.sent.Mono)
	if r.Taken > 0 {
		wait *= min(1, float64(4*r.Taken)/float64(max(r.Left+r.Taken, 4)))
	}
	k.pause = min(max(mostly, demand*longest.Seconds()), max(pauses, 2*k.pause))
	if demand > 0 {
		wait = min(wait, k.pause*scarce/demand)
	}
	next, least := time.Duration(wait*(0.3+1.4*rand.Float64())*float64(time.Second)), 1
	if r.Taken == 0 {
		next, least = max(next, r.RetryAfter), f.Waiting
	}
	f.deny(f.sent.Mono+next, least)
}

// Lost ends a flight without a reply.
func (f *Flight) Lost(err error) {
	f.key.mu.Lock()
	defer f.key.mu.Unlock()
	f.outcome.Err = err
	f.key.lost = f.sent.Mono
	f.end()
}

func (f *Flight) end() {
	if f.over != nil {
		f.key.flight = nil
		close(f.over)
	}
}

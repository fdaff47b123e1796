package lease

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// A Rule is what the sizes and times of slices follow from.
type Rule struct {
	Limit  int           // permits: the burst, or what a window allows
	Refill time.Duration // until the full limit is there again
	Most   int           // unspent permits of a key that are held here; 0: as many as the demand is worth
	Window bool          // all of the limit is there again when a window ends, and none before; unused permits of it come back in full
	Slot   time.Duration // of a log, which also is a Window: its slices end with the slot in which they are taken; otherwise 0
}

// longest is how long a slice lasts at most. A longer one would save nothing more of a key that is worth one.
const longest = 10 * time.Second

// Long is how long a slice lasts, of a bucket at least.
func (r Rule) Long() time.Duration {
	if r.Slot > 0 {
		return min(r.Slot, longest)
	}
	return min(r.Refill/4, longest)
}

// longIf is how long a slice of a bucket lasts at most in which so much is missing that others may take so many permits. Until
// its end, rate × length has to be missing. If it is anyway, a longer slice costs nothing, and is worth more to a process with
// few calls. Of what is missing, an eighth of the limit is kept for what comes back: see docs/architecture.md, "A slice".
func (r Rule) longIf(left int) time.Duration {
	missing := r.Refill - r.Refill/8 - time.Duration(float64(left)/float64(r.Limit)*float64(r.Refill))
	return max(r.Long(), min(missing, longest))
}

// memory is for how long a call counts in the demand.
func (r Rule) memory() time.Duration { return max(time.Second, 4*r.Long()) }

const (
	few    = 8                      // fewer permits than these are no slice: the call goes to the limiter
	scanty = 5                      // the same while permits are scarce
	worth  = 4                      // as many unused permits are worth a call that gives them back
	ahead  = 4 * time.Millisecond   // the next slice is asked for when the permits left last so long, or twice a round trip
	busy   = 8                      // permits of a full refill are asked for here: then direct calls pause too if denied
	again  = 100 * time.Millisecond // after a lost flight, the next one is not asked for ahead for so long
	pauses = 4                      // calls that are denied in the first pause
	mostly = 200                    // and at most, or as many as come in the longest slice
)

// A key is what this process knows of one.
type key struct {
	name   string
	memory time.Duration         // for how long a call counts in the demand
	slices atomic.Pointer[slice] // the oldest that may have permits
	next   atomic.Int64          // no slice is asked for before this, by the monotonic clock; 0: now
	least  atomic.Int64          // calls for fewer permits are asked for even so
	full   atomic.Int64          // when the full limit was there again, as far as was known when a flight landed
	denied atomic.Int64          // permits that were denied from memory since the demand was counted
	of     atomic.Int64          // which limit denies

	mu     sync.Mutex    // guards all below, and changes of slices
	flight *Flight       // for a slice that is under way; nil: none is
	resets int           // how often the state was deleted
	backs  int           // how often permits came back, or the state was deleted
	calls  float64       // permits that were asked for, each counting less with time
	at     time.Duration // to when
	pause  float64
	long   time.Duration // of a slice of a bucket that is taken now, as far as is known; 0: as short as one can be
	lost   time.Duration // when the last flight that was lost had begun
	turn   time.Duration // of a log: when a slot ends at the latest; 0: it is not known
	back   []Unused      // to be given back
	closed bool          // calls go to the limiter
	gone   bool          // what a flight brings is given back
}

// decay lets what was asked for count less, up to now.
func (k *key) decay(now time.Duration) {
	if now > k.at {
		k.calls *= math.Exp(-(now - k.at).Seconds() / k.memory.Seconds())
		k.at = now
	}
}

// demand is the permits a second that are asked for of k.
func (k *key) demand(now time.Duration) float64 {
	k.decay(now)
	k.calls += float64(k.denied.Swap(0))
	calls := k.calls
	for s := k.slices.Load(); s != nil; s = s.next.Load() {
		calls += s.weight(s.n-max(s.left.Load(), 0), now, k.memory)
	}
	return calls / k.memory.Seconds()
}

// ends is when slices end that are taken now, beside their length: with the window or the slot. 0: that is not known.
func (k *key) ends(r Rule, now time.Duration) time.Duration {
	switch {
	case r.Slot == 0 && r.Window:
		return max(time.Duration(k.full.Load())-now, 0)
	case r.Slot == 0 || k.turn == 0:
		return 0
	case now < k.turn:
		return min(k.turn-now, r.Slot)
	}
	return r.Slot - (now-k.turn)%r.Slot
}

// drop drops the slices that are over or used up. What is left of them, if it is worth a call, goes back with the next
// flight.
func (k *key) drop(now Instant) {
	for s := k.slices.Load(); s != nil; s = s.next.Load() {
		over := !now.before(s.ends)
		if !over && s.left.Load() != 0 {
			break
		}
		u := s.close()
		k.decay(now.Mono)
		k.calls += s.weight(s.n-int64(u.N), now.Mono, k.memory)
		if over && u.N >= worth && s.returnable(u) {
			k.back = append(k.back, u)
		}
		k.slices.Store(s.next.Load())
	}
}

// takeBack is what the next flight gives back.
func (k *key) takeBack() []Unused {
	back := k.back
	k.back = nil
	return back
}

// add puts a slice behind the others.
func (k *key) add(s *slice) {
	last := k.slices.Load()
	if last == nil {
		k.slices.Store(s)
		return
	}
	for next := last.next.Load(); next != nil; next = last.next.Load() {
		last = next
	}
	last.next.Store(s)
}

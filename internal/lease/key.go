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
}

// longest is how long a slice lasts at most. A longer one would save nothing more of a key that is worth one.
const longest = 10 * time.Second

// Long is how long a slice lasts.
func (r Rule) Long() time.Duration { return min(r.Refill/4, longest) }

// memory is for how long a call counts in the demand.
func (r Rule) memory() time.Duration { return max(time.Second, 4*r.Long()) }

const (
	few    = 8                    // fewer permits than these are no slice: the call goes to the limiter
	worth  = 4                    // as many unused permits are worth a call that gives them back
	ahead  = 4 * time.Millisecond // the next slice is asked for when the permits left last so long, or twice a round trip
	busy   = 8                    // permits of a full refill are asked for here: then direct calls pause too if denied
	pauses = 4                    // calls that are denied in the first pause
	mostly = 200                  // and at most
)

// A key is what this process knows of one.
type key struct {
	name   string
	slices atomic.Pointer[slice] // the oldest that may have permits
	next   atomic.Int64          // no slice is asked for before this, by the monotonic clock; 0: now
	least  atomic.Int64          // calls for fewer permits are asked for even so
	full   atomic.Int64          // when the full limit was there again, as far as was known when a flight landed
	denied atomic.Int64          // permits that were denied from memory since the demand was counted

	mu     sync.Mutex    // guards all below, and changes of slices
	flight *Flight       // for a slice that is under way; nil: none is
	resets int           // how often the state was deleted
	calls  float64       // permits that were asked for, each counting less with time
	at     time.Duration // to when
	spent  int64         // permits that were spent or asked for directly since then
	pause  float64
	closed bool // calls go to the limiter
	gone   bool // what a flight brings is given back
}

// demand is the permits a second that are asked for of k.
func (k *key) demand(r Rule, now time.Duration) float64 {
	memory := r.memory().Seconds()
	if now > k.at {
		k.calls *= math.Exp(-(now - k.at).Seconds() / memory)
		k.at = now
	}
	k.calls += float64(k.spent + k.denied.Swap(0))
	k.spent = 0
	return k.calls / memory
}

// drop drops the slices that are over, and returns what is left of them if it is worth a call.
func (k *key) drop(now Instant) (unused []Unused) {
	for s := k.slices.Load(); s != nil; s = s.next.Load() {
		over := !now.before(s.ends)
		if !over && s.left.Load() != 0 {
			break
		}
		u := s.close()
		k.spent += s.n - int64(u.N)
		if over && u.N >= worth {
			unused = append(unused, u)
		}
		k.slices.Store(s.next.Load())
	}
	return unused
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

package lease

import (
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// A Rule is what the sizes and times of slices follow from.
type Rule struct {
	Limit  int           // permits: the burst, or what a window allows
	Refill time.Duration // until the full limit is there again
}

// long is how long a slice lasts.
func (r Rule) long() time.Duration { return r.Refill / 4 }

// memory is for how long a call counts in the demand.
func (r Rule) memory() time.Duration { return max(time.Second, r.Refill) }

const (
	few     = 16                   // fewer permits than these are no slice: the call goes to the limiter
	worth   = 4                    // as many unused permits are worth a call that gives them back
	ahead   = 4 * time.Millisecond // the next slice is asked for when the permits left last so long
	pauses  = 4                    // calls that are denied after the first slice that is smaller for being scarce
	longest = 200                  // and at most
)

// A key is what this process knows of one.
type key struct {
	name   string
	slices atomic.Pointer[slice] // the oldest that may have permits
	next   atomic.Int64          // no slice is asked for before this, by the monotonic clock; 0: now
	least  atomic.Int64          // calls for fewer permits are asked for even so
	denied atomic.Int64          // permits that were denied from memory since the demand was counted

	mu     sync.Mutex    // guards all below, and changes of slices
	flight chan struct{} // closed when the flight that is under way has ended; nil: none is
	calls  float64       // permits that were asked for, each counting less with time
	at     time.Duration // to when
	spent  int64         // permits that were spent or asked for directly since then
	pause  float64
	closed bool
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

// A Flight asks for a slice of Want permits for Long, and for Waiting at least. If Long is 0 it is an ordinary call for
// Waiting permits. Whoever flies it calls Landed or Lost, once.
type Flight struct {
	Want, Waiting int
	Long          time.Duration
	Back          []Unused // permits to be given back before

	table *Table
	key   *key
	sent  Instant
}

// Key is the name of the key.
func (f *Flight) Key() string { return f.key.name }

// A Reply is what a flight brings.
type Reply struct {
	Taken      int           // permits
	Lasts      time.Duration // for so long, from when they were taken; 0: to be used at once
	Ticket                   // of the slice
	Left       int           // permits that others may take
	RetryAfter time.Duration // if there are none
}

// Landed ends the flight. got is true if the Waiting permits of who flies it are among those that were taken; the others
// may be spent from now on. If the table does not know the key any more, nobody will spend them, and unused has them.
func (f *Flight) Landed(r Reply) (got bool, unused Unused) {
	k, rule := f.key, f.table.rule
	k.mu.Lock()
	defer k.mu.Unlock()
	left := int64(r.Taken)
	if f.Waiting > 0 && r.Taken >= f.Waiting {
		got = true
		left -= int64(f.Waiting)
	}
	if left > 0 && r.Lasts > 0 {
		if k.closed {
			unused = Unused{r.Ticket, int(left)}
		} else {
			s := &slice{n: left, ends: f.sent.add(r.Lasts - r.Lasts/1000), place: r.Ticket}
			s.left.Store(left)
			k.add(s)
		}
	}
	// Scarce for all means a pause for each: if a process's own denials set it, those that got something would go on
	// getting it.
	if scarce := 1 - float64(4*r.Left)/float64(rule.Limit); scarce <= 0 {
		if k.pause /= 2; k.pause < pauses {
			k.pause = 0
		}
		k.next.Store(0)
	} else {
		k.pause = min(longest, max(pauses, 2*k.pause))
		wait := rule.Refill.Seconds()
		if demand := k.demand(rule, f.sent.Mono); demand > 0 {
			wait = min(wait, k.pause*scarce/demand)
		}
		next := time.Duration(wait * (0.9 + 0.2*rand.Float64()) * float64(time.Second))
		least := int64(1)
		if r.Taken == 0 {
			next, least = max(next, r.RetryAfter), int64(max(f.Waiting, 1))
		}
		k.least.Store(least)
		k.next.Store(int64(f.sent.Mono + next))
	}
	f.end()
	return got, unused
}

// Lost ends a flight without a reply.
func (f *Flight) Lost() {
	f.key.mu.Lock()
	defer f.key.mu.Unlock()
	f.end()
}

func (f *Flight) end() {
	if f.Long > 0 {
		close(f.key.flight)
		f.key.flight = nil
	}
}

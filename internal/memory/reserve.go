package memory

import (
	"slices"
	"time"

	"github.com/tryacquire/ratelimit/internal/decision"
	"github.com/tryacquire/ratelimit/internal/exact"
)

// Reserved is what Reserve answers.
type Reserved struct {
	Taken   bool          // the permits
	Delay   time.Duration // until they may be used, or could be if they were taken
	Before  int           // permits that were left
	Result  decision.Result
	Receipt Receipt
}

// Reserve takes n permits that may be used at once, or later, within the longest delay.
func (b *Buckets) Reserve(key string, n int, longest time.Duration) (r Reserved) {
	var s state
	b.lock(key, &s)
	defer s.shard.mu.Unlock()
	owed := s.missing.Plus(int64(n))
	if owed.Ceil() > b.Rule.Size {
		r.Delay = exact.Duration(b.Rule.Restores(owed.Plus(-b.Rule.Size)) + s.present - s.now)
	}
	if r.Delay > longest || owed.Permits > mostDebt {
		return r
	}
	r.Taken = true
	r.Receipt.table = b.Table
	if s.b != nil {
		r.Receipt.before, r.Receipt.there = s.b.written, true
	}
	r.Before = b.left(&s)
	r.Result = b.owe(&s, n, owed)
	is := s.shard.keys[key]
	if is.due <= s.now { // those that waited behind others are too late
		is.cancelled = nil
	}
	if r.Delay > 0 {
		is.due = max(is.due, s.now+r.Delay.Microseconds())
	}
	r.Receipt.wrote = is.written
	return r
}

// A Receipt cancels a reservation, as on Redis: if the key still holds what the reservation
// wrote, it gets what it held before.
type Receipt struct {
	table         *Table
	wrote, before written
	there         bool // the key was, before
}

// mostCancelled bounds the cancels of a key that wait.
const mostCancelled = 1000

// Cancel gives the permits of key back if no others have been taken since. If others have reserved, it
// waits until they are cancelled too.
func (r *Receipt) Cancel(key string) {
	s := r.table.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.keys[key]
	if b == nil {
		return
	}
	if b.written != r.wrote {
		if len(b.cancelled) < mostCancelled {
			b.cancelled = append(b.cancelled, *r)
		}
		return
	}
	for again := r; again != nil; again = b.behind() {
		if !again.there {
			s.drop(b)
			return
		}
		is := again.before
		r.table.store(s, b, key, is.rule, is.at, is.missing, is.own)
		b.due = is.due
	}
}

// behind takes the cancel that has waited for the state that b has now.
func (b *bucket) behind() *Receipt {
	for i, r := range b.cancelled {
		if r.wrote == b.written {
			b.cancelled = slices.Delete(b.cancelled, i, i+1)
			return &r
		}
	}
	return nil
}

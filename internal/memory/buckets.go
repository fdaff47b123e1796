package memory

import (
	"container/heap"
	"math/bits"

	"github.com/tryacquire/ratelimit/internal/decision"
	"github.com/tryacquire/ratelimit/internal/exact"
	"github.com/tryacquire/ratelimit/internal/gcra"
)

// Buckets are the buckets of a table under one rule. The methods check nothing: n is from 1 to exact.Permits, and, except
// for UpTo and Charge, at most the rule's Size.
//
// They do not use golang.org/x/time/rate, which counts in float64: RetryAfter would
// sometimes be off by a microsecond, and Remaining by a permit. Each key would have a
// mutex and a clock reading of its own, and nothing would show which keys to drop.
type Buckets struct {
	*Table
	Rule *gcra.Bucket
}

// A state is what a key is now. The lock of its shard is held.
type state struct {
	shard   *shard
	b       *bucket // nil for a new key
	key     string
	now     int64
	present int64 // now, or the latest instant of the state: as in Redis, no call moves it back in time
	missing gcra.Level
	own     gcra.Level // see written
	theirs  bool       // another rule wrote the state
}

// lock locks the state of key and loads it. The caller unlocks its shard.
func (b *Buckets) lock(key string, s *state) {
	shard := b.shard(key)
	shard.mu.Lock()
	b.load(shard, key, s)
}

func (b *Buckets) load(in *shard, key string, s *state) {
	s.now = b.now()
	b.loadAt(in, key, s)
}

// loadAt loads the state at s.now.
func (b *Buckets) loadAt(in *shard, key string, s *state) {
	s.shard, s.key = in, key
	s.b = in.keys[key]
	s.present = max(s.now, in.dropped)
	if is := s.b; is != nil {
		s.present = max(s.now, is.at)
		if s.theirs = !is.rule.RefillsAs(b.Rule); s.theirs {
			i := b.inherit(s)
			s.missing, s.own = i.Missing(is.missing), i.Missing(is.own)
			return
		}
		s.missing = b.Rule.Minus(is.missing, s.present-is.at)
		if is.own != (gcra.Level{}) {
			s.own = b.Rule.Minus(is.own, s.present-is.at)
		}
	} else if b.empty && s.now >= in.lacking {
		s.missing = b.all() // otherwise it may be a key that was dropped
	}
}

// all is what is missing of an empty bucket.
func (b *Buckets) all() gcra.Level { return gcra.Level{Permits: b.Rule.Size} }

// inherit is how the rule counts what another rule has written.
func (b *Buckets) inherit(s *state) gcra.Inheritance {
	return b.Rule.Inherit(s.b.rule, s.b.at, s.b.due, s.present)
}

// look is the answer to a call for n permits, which it takes if they are there and take is true.
func (b *Buckets) look(s *state, n int, take bool) decision.Result {
	allowed, taken := s.missing.Ceil()+int64(n) <= b.Rule.Size, int64(0)
	switch {
	case allowed && take:
		taken = int64(n)
		b.write(s, s.missing.Plus(taken))
	case take && b.empty && s.b == nil:
		b.beginEmpty(s)
	}
	if s.theirs && taken == 0 {
		i, lag := b.inherit(s), s.present-s.now
		return b.Rule.Beside(s.missing, allowed, i.Wait(s.b.missing, int64(n))+lag, i.Wait(s.b.missing, b.Rule.Size)+lag)
	}
	return b.Rule.Result(s.missing, int64(n), taken, allowed, s.present-s.now)
}

// beginEmpty notes that a new key was asked for: it refills from now on.
func (b *Buckets) beginEmpty(s *state) {
	b.write(s, s.missing)
	begun := s.shard.keys[s.key]
	begun.order = begun.at
	heap.Fix(&s.shard.queue, begun.place)
}

// write makes missing what is missing now. The difference was taken or given back here.
func (b *Buckets) write(s *state, missing gcra.Level) {
	own := s.own.Plus(missing.Permits - s.missing.Permits)
	if own.Permits < 0 || missing == (gcra.Level{}) {
		own = gcra.Level{}
	}
	b.store(s.shard, s.b, s.key, b.Rule, s.present, missing, own)
}

// Ask answers a call for n permits in r, and takes them if they are there and take is true. To return the answer would cost a
// copy, which is a tenth of the call.
func (b *Buckets) Ask(key string, n int, take bool, r *decision.Result) {
	in := b.shard(key)
	in.mu.Lock()
	defer in.mu.Unlock()
	var s state
	b.load(in, key, &s)
	*r = b.look(&s, n, take)
}

// UpTo takes up to n permits. If it takes only a part, RetryAfter is when one more fits.
func (b *Buckets) UpTo(key string, n int) (taken int, r decision.Result) {
	var s state
	b.lock(key, &s)
	defer s.shard.mu.Unlock()
	taken = min(n, b.left(&s))
	r = b.look(&s, max(taken, 1), true)
	if 0 < taken && taken < n {
		var after state
		b.load(s.shard, key, &after)
		r.RetryAfter = b.look(&after, 1, false).RetryAfter
	}
	return taken, r
}

// mostDebt is the most permits that a key may lack.
const mostDebt = 4 * exact.Permits

// Charge takes n permits, even if fewer are left; before is how many were. ok is false if the debt would be too large.
func (b *Buckets) Charge(key string, n int) (r decision.Result, before int, ok bool) {
	var s state
	b.lock(key, &s)
	defer s.shard.mu.Unlock()
	owed := s.missing.Plus(int64(n))
	if n > exact.Permits || owed.Permits > mostDebt || b.Rule.Restores(owed) > exact.Micros {
		return decision.Result{}, 0, false
	}
	before = b.left(&s)
	return b.owe(&s, n, owed), before, true
}

// left is how many permits are left.
func (b *Buckets) left(s *state) int { return int(max(b.Rule.Size-s.missing.Ceil(), 0)) }

// owe takes n permits, of which some may not be there yet.
func (b *Buckets) owe(s *state, n int, owed gcra.Level) decision.Result {
	b.write(s, owed)
	r := b.Rule.Result(s.missing, int64(n), int64(n), true, s.present-s.now)
	r.Remaining = max(r.Remaining, 0)
	return r
}

// GiveBack gives back n permits, of an estimate or as a credit, and returns how many of them were missing, rounded up. A key
// that has been dropped is full.
func (b *Buckets) GiveBack(key string, n int) (given int) {
	var s state
	b.lock(key, &s)
	defer s.shard.mu.Unlock()
	if s.b == nil || s.b.due > s.present {
		return 0 // those who wait have their instants, which the next caller would get too
	}
	lowered := func(l gcra.Level) gcra.Level {
		if l.Permits < int64(n) {
			return gcra.Level{}
		}
		return l.Plus(-int64(n))
	}
	// The key keeps its rule and its instant: from now on, by a slower rule, it would have less than it has by a faster one.
	if s.missing != (gcra.Level{}) {
		b.store(s.shard, s.b, key, s.b.rule, s.b.at, lowered(s.b.missing), lowered(s.b.own))
	}
	return int(min(int64(n), s.missing.Ceil()))
}

// Owe takes n permits that others have promised for later, or what is left of them.
func (b *Buckets) Owe(key string, n int) {
	var s state
	b.lock(key, &s)
	defer s.shard.mu.Unlock()
	if all := b.all(); s.missing.Permits+int64(n) > all.Permits {
		if s.missing.Permits < all.Permits {
			b.write(&s, all)
		}
		return
	}
	b.write(&s, s.missing.Plus(int64(n)))
}

// Reset makes the bucket of key full.
func (b *Buckets) Reset(key string) {
	var s state
	b.lock(key, &s)
	defer s.shard.mu.Unlock()
	switch {
	case b.empty: // a key that is not there would begin empty
		b.write(&s, gcra.Level{})
	case s.b != nil:
		s.shard.drop(s.b)
	}
}

// Note notes what a primary has left of its own limit: as large a share is missing here, or as much as was taken here, if
// that is more.
func (b *Buckets) Note(key string, left, limit int) {
	if limit < 1 {
		return
	}
	high, low := bits.Mul64(uint64(b.Rule.Size), uint64(min(max(left, 0), limit)))
	share, _ := bits.Div64(high, low, uint64(limit)) // high < limit, as both are counts of permits
	var s state
	b.lock(key, &s)
	defer s.shard.mu.Unlock()
	b.note(&s, gcra.Level{Permits: b.Rule.Size - int64(share)})
}

// NoteChange notes that permits of key came back to the primary, or were charged if back is
// below 0. If no answer of it is known, it changes nothing.
func (b *Buckets) NoteChange(key string, back, limit int) {
	var s state
	b.lock(key, &s)
	defer s.shard.mu.Unlock()
	if s.b == nil || limit < 1 {
		return
	}
	switch missing := s.missing.Plus(-b.share(back, limit)); {
	case missing.Permits < 0:
		b.note(&s, gcra.Level{})
	case missing.Ceil() > b.Rule.Size:
		b.note(&s, b.all())
	default:
		b.note(&s, missing)
	}
}

// share is back permits of the primary's limit as a share of the size, rounded down.
func (b *Buckets) share(back, limit int) int64 {
	const beyond = 1 << 62 // what any key lacks
	high, low := bits.Mul64(uint64(max(back, -back)), uint64(b.Rule.Size))
	share, rest := uint64(beyond), uint64(0)
	if high < uint64(limit) {
		share, rest = bits.Div64(high, low, uint64(limit))
	}
	if back < 0 && rest > 0 {
		share++
	}
	if share = min(share, beyond); back < 0 {
		return -int64(share)
	}
	return int64(share)
}

// note makes missing what is missing of what the primary has answered for, or more if more was allowed here.
func (b *Buckets) note(s *state, missing gcra.Level) {
	if own := s.own; own.Permits > missing.Permits || own.Permits == missing.Permits && own.Units > missing.Units {
		missing = own
	}
	b.store(s.shard, s.b, s.key, b.Rule, s.present, missing, s.own)
}

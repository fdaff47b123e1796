// Package denials remembers for how long calls can only be denied.
package denials

import (
	"hash/maphash"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tryacquire/ratelimit/internal/decision"
	"github.com/tryacquire/ratelimit/internal/identity"
)

const (
	ways    = 4
	stripes = 256
)

// A Table stores the denials of one limiter, or of those that are picked call by call. Such a
// picked limiter is the argument by of the methods, which is nil if there is one limiter only.
type Table struct {
	Now func() time.Duration // monotonic; a test may set it

	max  time.Duration             // for which a denial is answered
	most func(limiter any) (n int) // that a picked limiter decides on

	seed    maphash.Seed
	sets    []set // a power of two
	stripes [stripes]stripe

	// decided is the largest n that the limiter is known to decide on, instead of
	// returning ErrExceedsLimit: its bound, or the largest n that it has decided on.
	decided atomic.Int64
}

// New returns a table for so many keys, rounded up to a power of two, that answers a denial for at most max.
// most says how many permits a picked limiter is known to decide on.
func New(keys int, max time.Duration, most func(limiter any) (n int)) *Table {
	sets := 1
	for sets*ways < keys {
		sets *= 2
	}
	start := time.Now()
	return &Table{
		Now:  func() time.Duration { return time.Since(start) },
		max:  max,
		most: most,
		seed: maphash.MakeSeed(),
		sets: make([]set, sets),
	}
}

// A set holds the denials of the keys that hash to it. It is one cache line.
// Reading it takes no lock; writing to it takes the lock of its stripe.
//
// A sharded map under an RWMutex would be simpler. But all cores would write to one
// word when they ask for one hot key, as they do under an attack.
type set [ways]struct {
	hash   atomic.Uint64 // of the key of denial, stored just before denial: saves following the pointer
	denial atomic.Pointer[denial]
}

// A stripe guards the writing of every so many-th set.
type stripe struct {
	mu sync.Mutex
	// generation counts how often permits of one of the stripe's keys have been given
	// back. Written under mu.
	generation atomic.Uint64
	returning  int // how many calls are giving permits back now; guarded by mu
	turn       int // the way that is replaced next; guarded by mu

	_ [32]byte // so that each stripe has a cache line of its own
}

// A denial says that n or more permits of key are denied until then. It never
// changes.
type denial struct {
	key     string
	n       int
	by      *any          // the picked limiter that denied; else nil
	until   time.Duration // earliest instant at which n permits can be taken
	trusted time.Duration // calls are denied from memory before this instant, which is before until

	limit     int
	window    time.Duration
	remaining int
	resetAt   time.Duration
}

// covers reports whether d denies all that o denies. Both are for the same key.
func (d *denial) covers(o *denial) bool {
	return d.n <= o.n && d.until >= o.until && d.trusted >= o.trusted
}

// Hash is what the other methods find key by.
func (t *Table) Hash(key string) uint64 { return maphash.String(t.seed, key) }

// NoteDecided notes that the limiter can decide on n permits.
func (t *Table) NoteDecided(n int) {
	for m := t.decided.Load(); int64(n) > m && !t.decided.CompareAndSwap(m, int64(n)); {
		m = t.decided.Load()
	}
}

// Decided is the largest n that the limiter is known to decide on.
func (t *Table) Decided() int { return int(t.decided.Load()) }

// Len counts the denials that are stored.
func (t *Table) Len() (count int) {
	for i := range t.sets {
		for way := range t.sets[i] {
			if t.sets[i][way].denial.Load() != nil {
				count++
			}
		}
	}
	return count
}

// A Request is what BeforeSending notes about a request.
type Request struct {
	generation uint64 // of the key's stripe
	at         time.Duration
}

// BeforeSending notes the generation and the time before the request is sent, so that
// nothing that happens between then and the decision can make the denial last too long.
func (t *Table) BeforeSending(hash uint64) Request {
	generation := t.stripe(hash).generation.Load()
	return Request{generation, t.Now()}
}

// Find denies by the denial of n or fewer permits of key that lasts longest, if there
// is one. What another limiter than the picked one has denied is forgotten: even if that
// one is picked again, it may allow more by then.
func (t *Table) Find(hash uint64, key string, n int, by any) (r decision.Result, ok bool) {
	set := t.set(hash)
	var until time.Duration
	stale := false
	for i := range set {
		if set[i].hash.Load() != hash {
			continue
		}
		d := set[i].denial.Load()
		if d == nil || d.key != key {
			continue
		}
		if by != nil && !identity.Same(*d.by, by) {
			stale = true
			continue
		}
		if n < d.n {
			continue
		}
		// n may be more than the limiter can ever allow, for which the limiter returns
		// an error. Limit alone does not show that: of several rules it is not always
		// the smallest limit. A limit of 0 is that of a pause, which denies any number.
		if n > d.n && (d.limit > 0 && n > d.limit || int64(n) > t.mostOf(by)) {
			continue
		}
		// The clock is read after the denial. With an earlier reading, RetryAfter could
		// be too long for a denial that was stored in between.
		now := t.Now()
		if now >= d.trusted || d.until <= until {
			continue
		}
		until, ok = d.until, true
		r = decision.Result{
			Limit:      d.limit,
			Window:     d.window,
			Remaining:  d.remaining,
			RetryAfter: d.until - now,
			ResetAfter: max(d.resetAt-now, 0),
		}
	}
	if stale {
		t.forgetOthers(hash, key, by)
	}
	return r, ok
}

// mostOf is the largest n that the limiter is known to decide on.
func (t *Table) mostOf(by any) int64 {
	if by != nil {
		return int64(t.most(by))
	}
	return t.decided.Load()
}

// forgetOthers removes what other limiters than by have denied of key.
func (t *Table) forgetOthers(hash uint64, key string, by any) {
	stripe, set := t.stripe(hash), t.set(hash)
	stripe.mu.Lock()
	defer stripe.mu.Unlock()
	for i := range set {
		if d := set[i].denial.Load(); d != nil && d.key == key && !identity.Same(*d.by, by) {
			set[i].denial.Store(nil)
		}
	}
}

// Remember stores a denial of n permits of key, unless permits may have been given back since its request
// was sent.
//
// Denials of one key for different n are stored side by side when neither covers the
// other: the denial of one permit denies most calls, the denial of five permits denies
// calls for five for longer. Two are kept, the one for the fewest permits and one other.
func (t *Table) Remember(hash uint64, key string, n int, by any, r decision.Result, sent Request) {
	d := newDenial(n, r, sent.at, t.max)
	now := t.Now()
	if now >= d.trusted {
		return
	}

	stripe := t.stripe(hash)
	stripe.mu.Lock()
	defer stripe.mu.Unlock()
	if stripe.returning > 0 || stripe.generation.Load() != sent.generation {
		return
	}
	set := t.set(hash)
	free, fewest, more := -1, -1, -1 // ways: a free one, and this key's two
	for i := range set {
		old := set[i].denial.Load()
		switch {
		case old == nil:
			free = i
		case old.key == key && old.covers(&d) && now < old.trusted:
			return
		case old.key == key:
			d.key = old.key
			switch {
			case now >= old.trusted || d.covers(old):
				set[i].denial.Store(nil)
				free = i
			case fewest < 0:
				fewest = i
			case old.n < set[fewest].denial.Load().n:
				fewest, more = i, fewest
			default:
				more = i
			}
		case now >= old.trusted:
			free = i
		}
	}
	way := free
	switch {
	case more >= 0:
		way = more
	case free < 0:
		way = stripe.turn
		if way == fewest { // it is this key's own: replace another
			way = (way + 1) % ways
		}
		stripe.turn = (stripe.turn + 1) % ways
	}
	if d.key == "" {
		d.key = strings.Clone(key) // a part of a large string would keep all of it alive
	}
	if by != nil {
		picked := by
		d.by = &picked
	}
	kept := d // allocated here, so that a denial that is not stored costs nothing
	set[way].hash.Store(hash)
	set[way].denial.Store(&kept)
}

// newDenial returns the denial r of a request for n permits that was sent at an instant, trusted for at most longest.
func newDenial(n int, r decision.Result, sent, longest time.Duration) denial {
	// RetryAfter counts from the last tick of the clock that decides. That tick may be
	// earlier than the instant of sending, by less than the length of a tick: a
	// millisecond for fixed windows, whose RetryAfter is a whole number of
	// milliseconds, and a microsecond for the others. A pause, whose limit is 0, is kept to its
	// end: while Redis is down, no call may come before.
	grain := time.Microsecond
	switch {
	case r.Limit == 0:
		grain = 0
	case r.RetryAfter%time.Millisecond == 0:
		grain = time.Millisecond
	}
	after := func(d time.Duration) time.Duration { return sent + min(d, math.MaxInt64-sent) }
	return denial{
		n:         n,
		until:     after(r.RetryAfter),
		trusted:   min(after(r.RetryAfter)-grain, after(longest)),
		limit:     r.Limit,
		window:    r.Window,
		remaining: r.Remaining,
		resetAt:   after(r.ResetAfter),
	}
}

// ReturnPermits is called before permits of key are given back, and done after it. It
// removes the stored denials of key. A denial whose request is sent before done returns
// is not stored: it may have been decided before the permits were given back.
func (t *Table) ReturnPermits(key string) (done func()) {
	hash := t.Hash(key)
	stripe, set := t.stripe(hash), t.set(hash)

	stripe.mu.Lock()
	defer stripe.mu.Unlock()
	stripe.returning++
	for i := range set {
		if d := set[i].denial.Load(); d != nil && d.key == key {
			set[i].denial.Store(nil)
		}
	}
	return func() {
		stripe.mu.Lock()
		defer stripe.mu.Unlock()
		stripe.returning--
		stripe.generation.Add(1)
	}
}

func (t *Table) set(hash uint64) *set {
	return &t.sets[hash&uint64(len(t.sets)-1)]
}

// stripe is the stripe of the set. It depends on the set only, so that a set has just
// one stripe.
func (t *Table) stripe(hash uint64) *stripe {
	return &t.stripes[(hash&uint64(len(t.sets)-1))%stripes]
}

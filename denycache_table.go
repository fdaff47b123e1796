package ratelimit

import (
	"hash/maphash"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	denyWays    = 4
	denyStripes = 256
)

// A denyTable remembers denials.
type denyTable struct {
	max time.Duration        // for which a denial is answered
	now func() time.Duration // monotonic

	seed    maphash.Seed
	sets    []denySet // a power of two
	stripes [denyStripes]denyStripe

	// decided is the largest n that the limiter is known to allow or deny, rather
	// than refuse with ErrExceedsLimit: the largest it ever did.
	decided atomic.Int64
}

func newDenyTable(keys int, max time.Duration) *denyTable {
	sets := 1
	for sets*denyWays < keys {
		sets *= 2
	}
	start := time.Now()
	return &denyTable{
		max:  max,
		now:  func() time.Duration { return time.Since(start) },
		seed: maphash.MakeSeed(),
		sets: make([]denySet, sets),
	}
}

// A denySet holds the denials of the keys that hash to it. It is one cache line.
// Reading takes no lock; writing takes its stripe's.
//
// A sharded map under an RWMutex, the plainer way, has all cores write to one
// word when they ask for one hot key, which is what they do under an attack.
type denySet [denyWays]struct {
	hash   atomic.Uint64 // of denial's key, or about to be: saves following the pointer
	denial atomic.Pointer[denial]
}

// A denyStripe guards the writing of every denyStripes-th set.
type denyStripe struct {
	mu sync.Mutex
	// generation counts the times that permits have come back for one of the
	// stripe's keys. Written under mu.
	generation atomic.Uint64
	returning  int // times that they are about to; guarded by mu
	turn       int // the way that gives way next; guarded by mu

	_ [32]byte // a cache line each
}

// A denial says that n or more permits for key are denied until then. It never
// changes.
type denial struct {
	key     string
	n       int
	until   time.Duration // earliest instant at which n can be granted
	trusted time.Duration // it is answered before this instant, which is before until

	limit     int
	window    time.Duration
	remaining int
	resetAt   time.Duration
}

// covers reports whether o says nothing that d does not say, for the same key.
func (d *denial) covers(o *denial) bool {
	return d.n <= o.n && d.until >= o.until && d.trusted >= o.trusted
}

func (t *denyTable) hash(key string) uint64 { return maphash.String(t.seed, key) }

// noteDecided notes that the limiter decides on n permits.
func (t *denyTable) noteDecided(n int) {
	for m := t.decided.Load(); int64(n) > m && !t.decided.CompareAndSwap(m, int64(n)); {
		m = t.decided.Load()
	}
}

// A denySending is what was noted before a request was sent.
type denySending struct {
	generation uint64 // of the key's stripe
	at         time.Duration
}

// beforeSending notes both before the request is sent, so that nothing that comes
// between them and the decision can make the denial last too long.
func (t *denyTable) beforeSending(hash uint64) denySending {
	generation := t.stripe(hash).generation.Load()
	return denySending{generation, t.now()}
}

// lookup answers by the denial of n or fewer permits that holds key back longest.
func (t *denyTable) lookup(hash uint64, key string, n int) (r Result, ok bool) {
	set := t.set(hash)
	var until time.Duration
	for i := range set {
		if set[i].hash.Load() != hash {
			continue
		}
		d := set[i].denial.Load()
		if d == nil || n < d.n || d.key != key {
			continue
		}
		// Would the limiter refuse n altogether? Limit does not say: with several
		// rules it is not always the smallest.
		if n > d.n && (n > d.limit || int64(n) > t.decided.Load()) {
			continue
		}
		// Read after the denial: one stored later would be answered too early.
		now := t.now()
		if now >= d.trusted || d.until <= until {
			continue
		}
		until, ok = d.until, true
		r = Result{
			Limit:      d.limit,
			Window:     d.window,
			Remaining:  d.remaining,
			RetryAfter: d.until - now,
			ResetAfter: max(d.resetAt-now, 0),
		}
	}
	return r, ok
}

// remember keeps a denial, unless permits may have come back since it was sent.
//
// Denials of one key for different n stand side by side when each says something
// that the other does not: that of one denies most calls, that of five denies five
// for longer. Two are kept, the one for the fewest permits and one other.
func (t *denyTable) remember(hash uint64, key string, n int, r Result, sending denySending) {
	// A retry-after runs from the tick of the deciding clock, which may lie before
	// the instant of sending by less than the tick: a microsecond, but for fixed
	// windows a millisecond, which whole milliseconds give away.
	grain := time.Microsecond
	if r.RetryAfter%time.Millisecond == 0 {
		grain = time.Millisecond
	}
	sent := sending.at
	d := denial{
		n:         n,
		until:     sent + min(r.RetryAfter, math.MaxInt64-sent),
		limit:     r.Limit,
		window:    r.Window,
		remaining: r.Remaining,
		resetAt:   sent + min(r.ResetAfter, math.MaxInt64-sent),
	}
	d.trusted = min(d.until-grain, sent+min(t.max, math.MaxInt64-sent))
	now := t.now()
	if now >= d.trusted {
		return
	}

	stripe := t.stripe(hash)
	stripe.mu.Lock()
	defer stripe.mu.Unlock()
	if stripe.returning > 0 || stripe.generation.Load() != sending.generation {
		return
	}
	set := t.set(hash)
	free, fewest, more := -1, -1, -1 // ways: one to spare, and this key's two
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
		if way == fewest { // of its own key: another gives way
			way = (way + 1) % denyWays
		}
		stripe.turn = (stripe.turn + 1) % denyWays
	}
	if d.key == "" {
		d.key = strings.Clone(key) // a part of a large string would keep it all
	}
	kept := d // allocated here, not where nothing is kept
	set[way].hash.Store(hash)
	set[way].denial.Store(&kept)
}

// returnPermits is called before anything that may let key be granted earlier
// than it was told, and what it returns afterwards. What was remembered of key is
// forgotten, and what is decided in between, or was sent before the end, is not
// remembered: it may have been decided before the permits came back.
func (t *denyTable) returnPermits(key string) (done func()) {
	hash := t.hash(key)
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

func (t *denyTable) set(hash uint64) *denySet {
	return &t.sets[hash&uint64(len(t.sets)-1)]
}

// stripe follows from the set, so that a set has one.
func (t *denyTable) stripe(hash uint64) *denyStripe {
	return &t.stripes[(hash&uint64(len(t.sets)-1))%denyStripes]
}

package observe

import (
	"cmp"
	"container/heap"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tryacquire/ratelimit"
)

// A Top counts which keys this process denies most, in bounded memory: for an admin page, or
// for an operator on call. It counts the denials ([ratelimit.OutcomeDenied]) of the limiters
// that it observes, by limiter and key.
//
// It uses the Space-Saving algorithm of Metwally, Agrawal and El Abbadi ("Efficient Computation
// of Frequent and Top-k Elements in Data Streams", 2005). With room for m keys and after N
// denials:
//
//   - it holds every key that was denied more than N/m times;
//   - the true number of a key's denials is at most Count, and at least Count − Error;
//   - no Error is above N/m.
//
// So with room for ten times as many keys as a page shows, the order is right unless nearly
// all keys are denied about equally often. While no more than m keys have been denied, the
// counts are exact.
//
// Memory: some 200 bytes a key, and the key itself. A denial costs less than a
// microsecond, under one lock.
// Top is safe for concurrent use.
type Top struct {
	size int

	mu      sync.Mutex // guards what follows
	counts  map[topKey]*count
	least   leastFirst
	denials uint64
	since   time.Time
}

type topKey struct{ limiter, key string }

type count struct {
	topKey
	count, error uint64
	place        int // in least
}

// maxTop is the most keys, which take some 200 MB.
const maxTop = 1 << 20

// NewTop returns a Top with room for size keys: 1,000 is enough for a page that shows 100. size
// is 1 to 1,048,576. The error wraps [ratelimit.ErrInvalidConfig].
func NewTop(size int) (*Top, error) {
	if size < 1 || size > maxTop {
		return nil, invalidConfig("NewTop: %d is not between 1 and %d", size, maxTop)
	}
	return &Top{size: size, counts: map[topKey]*count{}, since: time.Now()}, nil
}

// Observe is the observer, for [ratelimit.WithObserver].
func (t *Top) Observe(_ context.Context, o ratelimit.Observation) {
	if o.Outcome == ratelimit.OutcomeDenied && t.made() {
		t.add(topKey{o.Limiter, o.Key})
	}
}

// made is false for a Top that NewTop did not make, which counts nothing.
func (t *Top) made() bool { return t != nil && t.size > 0 }

func (t *Top) add(key topKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.denials++
	c := t.counts[key]
	switch {
	case c != nil:
	case len(t.least) < t.size:
		c = &count{topKey: key.clone()}
		t.counts[c.topKey] = c
		heap.Push(&t.least, c)
	default: // the key that was denied least makes room, and the new one takes over its count
		c = t.least[0]
		delete(t.counts, c.topKey)
		c.topKey, c.error = key.clone(), c.count
		t.counts[c.topKey] = c
	}
	c.count++
	heap.Fix(&t.least, c.place)
}

// clone keeps a part of a large string from keeping all of it alive.
func (k topKey) clone() topKey { return topKey{k.limiter, strings.Clone(k.key)} }

// A TopKey is a key that is denied often.
type TopKey struct {
	Limiter string // the limiter's name
	Key     string // the caller's key: it may be secret, or hold HTML that a client has sent
	Count   uint64 // denials, at most Error too many
	Error   uint64
}

// Top returns the n keys with the most denials, in descending order, or all keys if there
// are fewer. Keys of equal counts are in the order of limiter and key.
func (t *Top) Top(n int) []TopKey {
	if !t.made() {
		return nil
	}
	t.mu.Lock()
	all := make([]TopKey, len(t.least))
	for i, c := range t.least {
		all[i] = TopKey{c.limiter, c.key, c.count, c.error}
	}
	t.mu.Unlock()
	slices.SortFunc(all, func(a, b TopKey) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(a.Limiter, b.Limiter), strings.Compare(a.Key, b.Key))
	})
	return slices.Clip(all[:min(max(n, 0), len(all))])
}

// Denials returns the number of denials of all keys, and since when they are counted.
func (t *Top) Denials() (n uint64, since time.Time) {
	if !t.made() {
		return 0, time.Time{}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.denials, t.since
}

// Reset forgets all counts. Call it every hour or so to see which keys are denied now.
func (t *Top) Reset() {
	if !t.made() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.counts)
	t.least, t.denials, t.since = nil, 0, time.Now()
}

// leastFirst is a heap, the key with the fewest denials first.
type leastFirst []*count

func (l leastFirst) Len() int           { return len(l) }
func (l leastFirst) Less(i, j int) bool { return l[i].count < l[j].count }

func (l leastFirst) Swap(i, j int) {
	l[i], l[j] = l[j], l[i]
	l[i].place, l[j].place = i, j
}

// Push is for container/heap.
func (l *leastFirst) Push(c any) {
	c.(*count).place = len(*l)
	*l = append(*l, c.(*count))
}

// Pop is for container/heap, which needs it for nothing here.
func (l *leastFirst) Pop() any { panic("observe: a key is replaced, never removed") }

package ratelimit

import (
	"container/heap"
	"context"
	"fmt"
	"hash/maphash"
	"strings"
	"sync"
	"time"
)

// A LocalTokenBucket is a token bucket for each key in the memory of this
// process, made to be the secondary of a [Fallback]: it asks nobody, so it
// cannot fail. It decides exactly as a [TokenBucket] of the same rate and burst
// would, but that it shares nothing with other processes.
//
// To keep the limit of a fleet, divide rate and burst by the number of its
// instances, rounded down but to no less than 1: a quota of 100 per second with
// a burst of 200 over 8 instances becomes PerSecond(12) and 25. Rounded down,
// the fleet grants at most the quota while traffic is spread evenly, and less
// where it is not, as a key that always comes to one instance gets an eighth.
// Raised to 1, a quota smaller than the fleet grants more: for a rate, PerMinute
// divides further than PerSecond; the burst is at least 1. And as buckets
// start full, a key can have the burst once more when an outage begins.
//
// It keeps at most 65,536 keys, or as many as [WithLocalKeys] says, at about 150
// bytes each and the key. When there is no room for a new key, the one whose
// bucket is the nearest to full is forgotten, and starts full when it comes again:
// at first those that are full, for which that is no difference, then those that
// used least. Only if more keys than that are short of permits at once does any
// get more than its rate; new keys evict other new keys first, and so a flood of them
// does not free those that are denied.
//
// A call takes less than a microsecond and allocates only for a new key. It is
// safe for concurrent use, starts no goroutine and needs no closing.
type LocalTokenBucket struct {
	bucket *bucket
	now    func() int64 // microseconds
	seed   maphash.Seed
	shards []localShard // their number is a power of two
}

// Not golang.org/x/time/rate: it counts in float64, with which RetryAfter is off
// by a microsecond now and then and Remaining by a permit, and it has a mutex
// and a clock to read for each key, but nothing that says which keys to forget.

// localShard is the keys of one part, which calls for other parts do not wait
// for. Each key has its bucket in both a map and a heap.
type localShard struct {
	mu    sync.Mutex // guards all of it, and orders the readings of the clock
	keys  map[string]*localBucket
	queue localQueue
	most  int
	_     [64]byte // keep the neighbour's mutex off this one's cache line
}

// localBucket is full at the microsecond full, less part units that have been
// restored by the microsecond before and are beyond it: at the time now it misses
// (full-now)×flow - part units. So time alone refills it, and only a grant
// writes.
type localBucket struct {
	key        string
	full, part int64
	place      int // in the queue
}

// A LocalOption is [WithLocalKeys] or [WithClock]. Another [Option] is refused.
type LocalOption interface {
	set(*settings)
}

// WithLocalKeys keeps at most n keys, 65,536 if not given. The keys are divided
// by their hash into up to 64 parts of n/64 each, so that some are forgotten a
// little before all n are in use.
func WithLocalKeys(n int) LocalOption { return localKeys(n) }

type localKeys int

func (n localKeys) set(s *settings) {
	if n < 1 {
		s.refuse("WithLocalKeys: %d is below 1; leave the option out for %d", int(n), defaultLocalKeys)
	}
	s.once("WithLocalKeys")
}

const (
	defaultLocalKeys = 1 << 16
	mostLocalShards  = 64
	leastShardKeys   = 256 // fewer make a part that is full while others are not
)

// NewLocalTokenBucket returns a limiter that holds up to burst permits for each
// key and adds rate.Count of them every rate.Period, evenly.
//
// The error is nil or wraps ErrInvalidConfig, and names the value: the bounds
// are those of [NewTokenBucket], and an option that does not apply or is given
// twice is refused.
func NewLocalTokenBucket(rate Rate, burst int, opts ...LocalOption) (*LocalTokenBucket, error) {
	s, err := collect(opts)
	if err != nil {
		return nil, err
	}
	for _, name := range s.given {
		if name != "WithClock" && name != "WithLocalKeys" {
			return nil, invalidConfig("%s does not apply to a limiter in this process", name)
		}
	}
	b, err := newBucket(rate, burst, "burst")
	if err != nil {
		return nil, err
	}
	keys := defaultLocalKeys
	for _, o := range opts {
		if n, ok := o.(localKeys); ok {
			keys = int(n)
		}
	}
	shards := 1
	for shards < mostLocalShards && keys/(2*shards) >= leastShardKeys {
		shards *= 2
	}
	l := &LocalTokenBucket{bucket: b, seed: maphash.MakeSeed(), shards: make([]localShard, shards)}
	for i := range l.shards {
		l.shards[i].keys = make(map[string]*localBucket)
		l.shards[i].most = keys / shards
	}
	if s.clock != nil {
		l.now = func() int64 { return s.clock().UnixMicro() }
	} else {
		start := time.Now() // its monotonic reading, which no change of the wall clock moves
		l.now = func() int64 { return time.Since(start).Microseconds() }
	}
	return l, nil
}

// TryAcquire is TryAcquireN(ctx, key, 1).
func (l *LocalTokenBucket) TryAcquire(ctx context.Context, key string) (Result, error) {
	return l.decide(ctx, key, 1, true)
}

// TryAcquireN takes n permits from key, all or none. It fails with
// ErrInvalidKey for an empty key, ErrInvalidPermits for n below 1,
// ErrExceedsLimit for n above the burst, and the context's error when that has
// ended, in this order, and for nothing else (but a limiter that was not made by
// NewLocalTokenBucket, which is ErrInvalidConfig).
func (l *LocalTokenBucket) TryAcquireN(ctx context.Context, key string, n int) (Result, error) {
	return l.decide(ctx, key, n, true)
}

// Peek returns what TryAcquire would answer now, and neither takes a permit nor
// keeps a key. Its errors are those of TryAcquire.
func (l *LocalTokenBucket) Peek(ctx context.Context, key string) (Result, error) {
	return l.decide(ctx, key, 1, false)
}

// Reset forgets key, whose bucket is then full. It fails with ErrInvalidKey for
// an empty key, and the context's error when that has ended.
func (l *LocalTokenBucket) Reset(ctx context.Context, key string) error {
	if l == nil || l.bucket == nil {
		return errUnmade
	}
	if err := checkLocal(ctx, key, 1); err != nil {
		return err
	}
	s := l.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.keys[key]; b != nil {
		s.forget(b)
	}
	return nil
}

func (l *LocalTokenBucket) shard(key string) *localShard {
	return &l.shards[maphash.String(l.seed, key)&uint64(len(l.shards)-1)]
}

func (l *LocalTokenBucket) ceiling() int {
	if l.bucket == nil {
		return 0
	}
	return int(l.bucket.size)
}

func (l *LocalTokenBucket) decide(ctx context.Context, key string, n int, take bool) (Result, error) {
	if l == nil || l.bucket == nil {
		return Result{}, errUnmade
	}
	if n > int(l.bucket.size) && key != "" {
		return Result{}, fmt.Errorf("%w: %d permits of a local token bucket that grants %d at most",
			ErrExceedsLimit, n, l.bucket.size)
	}
	if err := checkLocal(ctx, key, n); err != nil {
		return Result{}, err
	}
	s := l.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := l.now()

	var missing int64
	b := s.keys[key]
	if b != nil {
		missing = l.missing(s, b, now)
	}
	after := missing + int64(n)*l.bucket.permit
	words := [bucketWords]int64{wordMissing: missing}
	if after <= l.bucket.capacity {
		words[wordGranted] = 1
		if take {
			l.store(s, b, key, now, after)
		}
	}
	return l.bucket.explain(words[:], int64(n), 0), nil
}

// missing is the units that b is short of at now. It is never more than all: a
// clock that was set back cannot keep a key waiting for longer than its rule.
func (l *LocalTokenBucket) missing(s *localShard, b *localBucket, now int64) int64 {
	wait := b.full - now
	if wait <= 0 {
		return 0
	}
	if most := ceilDiv(l.bucket.capacity, l.bucket.flow); wait > most {
		b.full, b.part = now+most, most*l.bucket.flow-l.bucket.capacity
		heap.Fix(&s.queue, b.place)
		wait = most
	}
	return wait*l.bucket.flow - b.part
}

// store notes that key, whose bucket is b unless it is new, misses so many units
// at now.
func (l *LocalTokenBucket) store(s *localShard, b *localBucket, key string, now, missing int64) {
	wait := ceilDiv(missing, l.bucket.flow)
	full, part := now+wait, wait*l.bucket.flow-missing
	if b != nil {
		b.full, b.part = full, part
		heap.Fix(&s.queue, b.place)
		return
	}
	b = s.room(now)
	b.key = strings.Clone(key) // it may be a part of something large
	b.full, b.part = full, part
	s.keys[b.key] = b
	heap.Push(&s.queue, b)
}

// room makes room for one key more and returns a bucket to use, that of a
// forgotten key or a new one. A full bucket is nothing to remember: up to two of
// them go for each key that comes, so that memory also shrinks.
func (s *localShard) room(now int64) *localBucket {
	var free *localBucket
	for range 2 {
		if len(s.queue) == 0 || len(s.queue) < s.most && s.queue[0].full > now {
			break
		}
		free = s.queue[0]
		s.forget(free)
	}
	if free == nil {
		free = new(localBucket)
	}
	return free
}

func (s *localShard) forget(b *localBucket) {
	heap.Remove(&s.queue, b.place)
	delete(s.keys, b.key)
}

// localQueue is a heap of buckets, the soonest to be full first.
type localQueue []*localBucket

func (q localQueue) Len() int           { return len(q) }
func (q localQueue) Less(i, j int) bool { return q[i].full < q[j].full }

func (q localQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].place, q[j].place = i, j
}

// Push is for container/heap.
func (q *localQueue) Push(b any) {
	b.(*localBucket).place = len(*q)
	*q = append(*q, b.(*localBucket))
}

// Pop is for container/heap.
func (q *localQueue) Pop() any {
	last := len(*q) - 1
	b := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	return b
}

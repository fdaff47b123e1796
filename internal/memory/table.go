// Package memory keeps limits in the memory of this process.
package memory

import (
	"container/heap"
	"hash/maphash"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/tryacquire/ratelimit/internal/gcra"
)

// A Table has a bucket for each key, under one rule or several, see [Buckets].
type Table struct {
	number int64        // see lock
	empty  bool         // a new key's bucket is empty
	now    func() int64 // microseconds
	seed   maphash.Seed
	shards []shard // their number is a power of two
}

// A shard is one part of the keys. Calls for keys of other shards do not wait for
// it. The bucket of each key is in both a map and a heap.
type shard struct {
	mu    sync.Mutex // guards all of it, and orders the readings of the clock
	keys  map[string]*bucket
	queue queue
	most  int

	lacking int64    // until then keys may be missing that were dropped although their bucket was not full
	dropped int64    // the latest instant at which a key was dropped; a new key's state begins no earlier
	_       [64]byte // keeps the next shard's mutex off this one's cache line
}

// A bucket is what was missing from a key's bucket at an instant. So the bucket refills
// without a write; only a call that takes permits writes.
type bucket struct {
	key string
	written
	full  int64 // the instant at which nothing is missing any more
	order int64 // those with the least are dropped first: full, or before that for a key that has begun empty and taken nothing

	cancelled []Receipt // of reservations behind which others have reserved
	place     int       // its index in the queue
}

// written is what a call has written about a key.
type written struct {
	rule    *gcra.Bucket // of the call, by which the levels count
	at      int64
	missing gcra.Level
	own     gcra.Level // the part of missing that was taken here, and is in no answer of a primary
	due     int64      // the instant at which the last promised permit is due, see Buckets.Reserve
}

const (
	mostShards     = 64
	leastShardKeys = 256 // with fewer, one shard is full long before the others
)

// NewTable returns a table for so many keys. With empty, the bucket of a new key begins empty, otherwise full.
// now reads a clock in microseconds; nil: a monotonic one.
func NewTable(keys int, empty bool, now func() int64) *Table {
	shards := 1
	for shards < mostShards && keys/(2*shards) >= leastShardKeys {
		shards *= 2
	}
	t := &Table{number: number(), empty: empty, seed: maphash.MakeSeed(), shards: make([]shard, shards)}
	for i := range t.shards {
		t.shards[i].keys = make(map[string]*bucket)
		t.shards[i].most = keys / shards
		t.shards[i].dropped, t.shards[i].lacking = math.MinInt64, math.MinInt64 // none: a clock may begin before 1970
	}
	if now != nil {
		// Instants within 36,000 years of 1970 can be added and subtracted.
		t.now = func() int64 { return min(max(now(), -1<<60), 1<<60) }
	} else {
		start := time.Now() // it has a monotonic reading, which a change of the wall clock does not affect
		t.now = func() int64 { return time.Since(start).Microseconds() }
	}
	return t
}

// Len is the number of keys that are kept.
func (t *Table) Len() (keys int) {
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		keys += len(s.keys)
		s.mu.Unlock()
	}
	return keys
}

func (t *Table) shard(key string) *shard { return &t.shards[t.place(key)] }

// place is where key's shard is.
func (t *Table) place(key string) int {
	return int(maphash.String(t.seed, key) & uint64(len(t.shards)-1))
}

// store notes what is missing from key at an instant, by a rule. b is the key's bucket, or nil for a new
// key.
func (t *Table) store(s *shard, b *bucket, key string, rule *gcra.Bucket, at int64, missing, own gcra.Level) {
	full := at + rule.Restores(missing)
	if b != nil {
		b.rule, b.at, b.missing, b.own, b.full, b.order = rule, at, missing, own, full, full
		heap.Fix(&s.queue, b.place)
		return
	}
	b = t.room(s, at)
	b.key = strings.Clone(key) // a part of a large string would keep all of it alive
	b.rule, b.at, b.missing, b.own, b.full, b.order = rule, at, missing, own, full, full
	s.keys[b.key] = b
	heap.Push(&s.queue, b)
}

// room makes room for one more key and returns a bucket to use, that of a dropped key
// or a new one. A full bucket need not be kept, unless it would begin empty: for each new key
// up to two full ones are dropped, so that memory also shrinks.
func (t *Table) room(s *shard, now int64) *bucket {
	var free *bucket
	for range 2 {
		if len(s.queue) == 0 || len(s.queue) < s.most && (t.empty || s.queue[0].full > now) {
			break
		}
		free = s.queue[0]
		if free.full > now {
			s.lacking = max(s.lacking, now+free.rule.Window.Microseconds())
		}
		s.drop(free)
		s.dropped = max(s.dropped, min(free.full, now))
	}
	if free == nil {
		free = new(bucket)
	}
	free.due, free.cancelled = math.MinInt64, nil
	return free
}

func (s *shard) drop(b *bucket) {
	heap.Remove(&s.queue, b.place)
	delete(s.keys, b.key)
}

// A queue is a heap of buckets, in the order in which they are dropped.
type queue []*bucket

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].order < q[j].order }

func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].place, q[j].place = i, j
}

// Push is for container/heap.
func (q *queue) Push(b any) {
	b.(*bucket).place = len(*q)
	*q = append(*q, b.(*bucket))
}

// Pop is for container/heap.
func (q *queue) Pop() any {
	last := len(*q) - 1
	b := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	return b
}

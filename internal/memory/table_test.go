package memory

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/decision"
	"github.com/tryacquire/ratelimit/internal/gcra"
)

// A testBuckets has a clock that the test sets, in microseconds.
type testBuckets struct {
	*Buckets
	now int64
}

func newTestBuckets(keys int, count int64, per time.Duration, burst int64) *testBuckets {
	b := &testBuckets{now: 1_763_670_000_000_000}
	b.Buckets = &Buckets{NewTable(keys, false, func() int64 { return b.now }), gcra.New(count, per, burst, 0)}
	return b
}

func (b *testBuckets) call(key string, n int, take bool) (r decision.Result) {
	b.Ask(key, n, take, &r)
	return r
}

// inOrder checks that the nearest to full is at hand in each shard.
func (t *Table) inOrder() bool {
	for i := range t.shards {
		s := &t.shards[i]
		if len(s.keys) != len(s.queue) {
			return false
		}
		for j, b := range s.queue {
			if b.place != j || s.keys[b.key] != b || j > 0 && s.queue[(j-1)/2].order > b.order {
				return false
			}
		}
	}
	return true
}

func TestDropsFullBucketsFirst(t *testing.T) {
	b := newTestBuckets(3, 1, time.Second, 10)
	take := func(key string, n, remaining int) {
		t.Helper()
		r := b.call(key, n, true)
		require.True(t, r.Allowed, key)
		require.Equal(t, remaining, r.Remaining, key)
	}
	take("drained", 10, 0)
	take("half", 5, 5)
	take("little", 1, 9)
	b.now += 1_000_000 // little is full again
	take("new", 9, 1)
	require.Equal(t, 3, b.Len())
	take("half", 1, 5)
	take("drained", 1, 0)

	// None is full: the nearest to it goes, however recently it was used.
	take("newer", 2, 8)
	require.Equal(t, 3, b.Len())
	take("half", 1, 9) // forgotten for newer, and now newer for it
	take("newer", 2, 8)
	take("new", 1, 0)
	require.Equal(t, decision.Result{Limit: 10, Window: 10 * time.Second, RetryAfter: time.Second, ResetAfter: 10 * time.Second},
		b.call("drained", 1, true), "what is denied stays denied")
}

func TestIsBoundedUnderAFloodOfKeys(t *testing.T) {
	const most = 4096
	b := newTestBuckets(most, 1, time.Minute, 5)
	require.Len(t, b.shards, 16)
	victims := make([]string, 100)
	for i := range victims {
		victims[i] = fmt.Sprint("drained", i)
		require.True(t, b.call(victims[i], 5, true).Allowed)
	}
	for i := range 20 * most {
		b.now++
		require.True(t, b.call(fmt.Sprint("flood", i), 1, true).Allowed)
	}
	require.LessOrEqual(t, b.Len(), most)
	require.Greater(t, b.Len(), most*9/10)
	for _, key := range victims {
		require.False(t, b.call(key, 1, true).Allowed, "a flood does not free a denied key")
	}

	// When all are full again, new keys take their places, two for one.
	b.now += time.Hour.Microseconds()
	for i := range 2 * most {
		b.call(fmt.Sprint("later", i), 1, true)
		b.now += time.Minute.Microseconds()
	}
	require.LessOrEqual(t, b.Len(), 2*16)
}

func TestKeepsItsKeysInOrder(t *testing.T) {
	b := newTestBuckets(50, 1, time.Second, 10)
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 5000 {
		b.now += rnd.Int64N(300_000) - 20_000
		key := fmt.Sprint(rnd.IntN(80))
		if rnd.IntN(20) == 0 {
			b.Reset(key)
		}
		b.call(key, 1+rnd.IntN(10), true)
		require.LessOrEqual(t, b.Len(), 50)
		require.True(t, b.inOrder())
	}
}

// A key that was dropped while its bucket was full is not full at an earlier instant of a clock that
// jumps back: at 0 s, 0 s and 1 s, a burst of 1 at 1 a second allows two calls.
func TestADroppedKeyIsNotFullBeforeItWasDropped(t *testing.T) {
	b := newTestBuckets(2, 1, time.Second, 1)
	start := b.now
	at := func(seconds int64, key string) decision.Result {
		b.now = start + seconds*1_000_000
		return b.call(key, 1, true)
	}
	taken := decision.Result{Allowed: true, Limit: 1, Window: time.Second, ResetAfter: time.Second}
	require.Equal(t, taken, at(0, "k"))
	require.Equal(t, taken, at(1, "other"), "which drops k")
	behind := taken
	behind.ResetAfter = 2 * time.Second // counted from 1 s
	require.Equal(t, behind, at(0, "k"))
	require.Equal(t, decision.Result{Limit: 1, Window: time.Second, RetryAfter: time.Second, ResetAfter: time.Second}, at(1, "k"))
}

func TestKeysPerShard(t *testing.T) {
	for _, c := range []struct{ keys, shards, each int }{
		{1, 1, 1}, {511, 1, 511}, {512, 2, 256}, {65_536, 64, 1024}, {1_000_000, 64, 15_625},
	} {
		table := NewTable(c.keys, false, nil)
		require.Len(t, table.shards, c.shards)
		require.Equal(t, c.each, table.shards[0].most)
	}
}

func TestDoesNotKeepTheCallersMemory(t *testing.T) {
	b := newTestBuckets(100, 1, time.Second, 1)
	large := []byte(strings.Repeat("x", 1<<20))
	freed := make(chan struct{})
	runtime.AddCleanup(&large[0], func(int) { close(freed) }, 0)
	b.call(unsafe.String(&large[0], 3), 1, true) // a part of a request, say
	for range 100 {
		runtime.GC()
		select {
		case <-freed:
			require.Equal(t, 1, b.Len())
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
	t.Error("the request's memory is still held")
}

// Limits that share a state decide one after the other, whatever the order in which they are asked.
func TestTogetherTakesAllOrNothing(t *testing.T) {
	a, b := newTestBuckets(1000, 1, time.Second, 3), newTestBuckets(1000, 1, time.Second, 2)
	held := &Holds{Held: NewHeld(), Limit: 1, Retry: time.Second}
	questions := func() []Question {
		return []Question{{Limit: b, Key: "k", N: 1}, {Limit: held, Key: "k", N: 1}, {Limit: a, Key: "k", N: 1}, {Limit: a, Key: "l", N: 1}}
	}
	q := questions()
	require.True(t, Together(q, true))
	require.Equal(t, []int{1, 0, 2, 2}, []int{q[0].Answer.Remaining, q[1].Answer.Remaining, q[2].Answer.Remaining, q[3].Answer.Remaining})
	q = questions()
	require.False(t, Together(q, true), "the permit is held")
	require.True(t, q[0].Answer.Allowed)
	require.Equal(t, 1, b.call("k", 1, false).Remaining, "nothing is taken")
	held.Release("k", "", 1)
	require.True(t, Together(questions(), false))
	require.Equal(t, 1, b.call("k", 1, false).Remaining, "a look takes nothing")
}

// TestHoldsLeaveNothingBehind: a key goes with its last hold, and an ID with its own.
func TestHoldsLeaveNothingBehind(t *testing.T) {
	h := &Holds{Held: NewHeld(), Limit: 3, Retry: time.Second}
	take := func(id string, n int) Found {
		q := []Question{{Limit: h, Key: "k", N: n, ID: id}}
		require.Equal(t, id != "a" || n == 2, Together(q, true))
		return q[0].Found
	}
	require.Equal(t, []Found{None, None, Same, Other}, []Found{take("", 1), take("a", 2), take("a", 2), take("a", 1)})
	require.Equal(t, map[string]int{"k": 3}, h.held)
	h.Release("k", "", 1)
	h.Release("k", "a", 2)
	h.Release("k", "a", 2)
	require.Empty(t, h.held)
	require.Empty(t, h.named)
}

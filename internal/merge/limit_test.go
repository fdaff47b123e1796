package merge

import (
	"runtime"
	"testing"
	"time"
	"unique"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/redisexec"
	"github.com/tryacquire/ratelimit/internal/script"
)

func limitOf(states string) *Limit {
	return &Limit{Exec: &redisexec.Executor{}, Name: func(key string) string { return states + key }, States: unique.Make(states)}
}

// TestLimitsOfOneKeyKeepTheOrderOfCalls: a call of another limit begins a list of its own behind those
// before it, and so does the next call of the first limit. Limits of other keys do not matter.
func TestLimitsOfOneKeyKeepTheOrderOfCalls(t *testing.T) {
	plan, other, elsewhere := limitOf("a:"), limitOf("a:"), limitOf("b:")
	b, last := newBatch(), map[lastKey]int{}
	add := func(l *Limit, n int) slot {
		s, ok := b.join(l, "k", take(n), noDeadline)
		if !ok {
			s, ok = b.add(ctx, l, "k", take(n), noDeadline, last)
		}
		require.True(t, ok)
		return s
	}
	require.Equal(t, 0, add(plan, 1).run)
	require.Equal(t, 1, add(elsewhere, 1).run)
	require.Equal(t, 0, add(plan, 1).run)
	require.Equal(t, 2, add(other, 1).run)
	require.Equal(t, 3, add(plan, 1).run, "behind the call of the other limit")
	require.Equal(t, 4, add(plan, 2).run)
	require.Equal(t, 1, add(elsewhere, 1).run)
	require.Equal(t, []int{0, 1, 2, 3}, b.pendingKeys())
	require.Equal(t, []string{"a:k", "b:k", "a:k", "a:k", ""}, []string{b.runs[0].key, b.runs[1].key, b.runs[2].key, b.runs[3].key, b.runs[4].key})
	var requests []string
	for _, key := range b.pendingKeys() {
		switch r := b.requests(key).(type) {
		case string:
			requests = append(requests, r)
		case []byte:
			requests = append(requests, string(r))
		}
	}
	require.Equal(t, []string{"1x2", "1x2", "1", "1x1,2x1"}, requests)
	require.Equal(t, []*Limit{plan, elsewhere, other, plan}, []*Limit{b.limitOf(0), b.limitOf(1), b.limitOf(2), b.limitOf(3)})
	require.Equal(t, 4, b.keys)
}

// TestQueuesAreSharedWhileTheyAreUsed by the limiters of a client and a script, and forgotten then.
func TestQueuesAreSharedWhileTheyAreUsed(t *testing.T) {
	client, another := redis.NewClient(&redis.Options{}), redis.NewClient(&redis.Options{})
	defer client.Close()
	defer another.Close()
	many, other := script.New("many"), script.New("other")
	q := Shared(client, many, nil)
	require.Same(t, q, Shared(client, many, nil))
	require.NotSame(t, q, Shared(another, many, nil))
	require.NotSame(t, q, Shared(client, other, nil))
	runtime.KeepAlive(q)
	known := func() bool {
		shared.Lock()
		defer shared.Unlock()
		_, ok := shared.of[sharing{client, many, nil}]
		return ok
	}
	require.True(t, known())
	q = nil
	for deadline := time.Now().Add(30 * time.Second); known(); runtime.GC() {
		require.True(t, time.Now().Before(deadline), "the queues are never forgotten")
	}
	require.NotNil(t, Shared(client, many, nil))
}

package faulttest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// infoField is a number that INFO reports.
func infoField(t testing.TB, admin redis.UniversalClient, section, field string) int {
	t.Helper()
	info, err := admin.Info(ctx, section).Result()
	require.NoError(t, err)
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), field+":"); ok {
			n, err := strconv.Atoi(value)
			require.NoError(t, err)
			return n
		}
	}
	require.Fail(t, "INFO has no such field", field)
	return 0
}

// inParallel calls do with 0 to n-1, in 64 goroutines.
func inParallel(n int, do func(i int)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				do(i)
			}
		})
	}
	wg.Wait()
}

// TestAnEvictedKeyIsAnUnusedKey: a server whose memory is full, and that may evict any key,
// forgets what was taken. The log has the figures of docs/outages.md.
func TestAnEvictedKeyIsAnUnusedKey(t *testing.T) {
	const limit, calls = 5, 10 // of each key
	server := redistest.Start(t)
	admin := server.Client(t)
	require.NoError(t, admin.ConfigSet(ctx, "maxmemory-policy", "allkeys-lru").Err())
	l, err := ratelimit.NewTokenBucket(server.Client(t), ratelimit.Per(limit, 100*aDay), limit, ratelimit.WithName("api"))
	require.NoError(t, err)

	inParallel(2_000, func(i int) { // connections and buffers take memory too
		if _, err := l.TryAcquire(ctx, fmt.Sprint("first:", i)); err != nil {
			t.Error(err)
		}
	})
	require.NoError(t, admin.FlushAll(ctx).Err())
	require.NoError(t, admin.ConfigSet(ctx, "maxmemory", strconv.Itoa(infoField(t, admin, "memory", "used_memory")+1<<20)).Err())
	// What fits into a megabyte: the keys that are left when many more have come.
	var failed atomic.Int64
	count := func(r ratelimit.Result, err error) int {
		switch {
		case err != nil:
			failed.Add(1)
			return 0
		case r.Allowed:
			return 1
		}
		return 0
	}
	inParallel(20_000, func(i int) { count(l.TryAcquire(ctx, fmt.Sprintf("user:%06d", i))) })
	fits := int(admin.DBSize(ctx).Val())
	require.NoError(t, admin.FlushAll(ctx).Err())

	for _, percent := range []int{50, 150, 200} {
		require.NoError(t, admin.ConfigResetStat(ctx).Err())
		keys := fits * percent / 100
		order := rand.New(rand.NewPCG(1, uint64(percent))).Perm(keys * calls)
		var allowed atomic.Int64
		inParallel(len(order), func(i int) {
			allowed.Add(int64(count(l.TryAcquire(ctx, fmt.Sprintf("user:%06d", order[i]%keys)))))
		})
		evicted := infoField(t, admin, "stats", "evicted_keys")
		t.Logf("%d keys, %d %% of the %d that fit into 1 MiB, %d calls of each at a limit of %d: %d evictions, %.2f allowed of each key",
			keys, percent, fits, calls, limit, evicted, float64(allowed.Load())/float64(keys))
		require.LessOrEqual(t, int(allowed.Load()), limit*(keys+evicted), "an eviction allows the limit once more, no more")
		if percent < 100 {
			require.Zero(t, evicted)
			require.EqualValues(t, limit*keys, allowed.Load())
		} else {
			require.Positive(t, evicted)
			require.Greater(t, int(allowed.Load()), limit*keys)
		}
		require.NoError(t, admin.FlushAll(ctx).Err())
	}
	require.Zero(t, failed.Load(), "an eviction is no error, so that nobody notices it")
}

// A ringRig is a Ring of two shards, either of which can be cut off, and keys of both.
type ringRig struct {
	ring    *redis.Ring
	limiter ratelimit.Limiter
	shards  map[string]*redistest.Proxy
	keys    map[string][]string // by the name of their shard
}

func newRingRig(t *testing.T, limit int, tweak func(*redis.RingOptions)) *ringRig {
	rig := &ringRig{shards: map[string]*redistest.Proxy{}, keys: map[string][]string{}}
	o := &redis.RingOptions{Addrs: map[string]string{}, MaxRetries: -1, DialTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second}
	names := map[string]string{} // by address
	for _, name := range []string{"one", "two"} {
		rig.shards[name] = redistest.NewProxy(t, redistest.Start(t).Addr())
		o.Addrs[name] = rig.shards[name].Addr()
		names[o.Addrs[name]] = name
	}
	tweak(o)
	rig.ring = redis.NewRing(o)
	t.Cleanup(func() { _ = rig.ring.Close() })
	var err error
	rig.limiter, err = ratelimit.NewFixedWindow(rig.ring, limit, aDay, ratelimit.WithName("api"))
	require.NoError(t, err)
	for i := range 200 {
		key := fmt.Sprint("user:", i)
		shard, err := rig.ring.GetShardClientForKey("ratelimit:api:fixedwindow{" + key + "}")
		require.NoError(t, err)
		name := names[shard.Options().Addr]
		rig.keys[name] = append(rig.keys[name], key)
	}
	require.NotEmpty(t, rig.keys["one"])
	require.NotEmpty(t, rig.keys["two"])
	return rig
}

// take asks for each key of a shard until the limiter denies, and returns how many calls
// it allowed in all.
func (rig *ringRig) take(t *testing.T, shard string) (allowed int) {
	t.Helper()
	for _, key := range rig.keys[shard] {
		for must(t)(rig.limiter.TryAcquire(ctx, key)).Allowed {
			allowed++
		}
	}
	return allowed
}

// TestARingGivesTheKeysOfADeadShardASecondQuota: it moves them to the shards that are
// left, which know nothing of what was taken.
func TestARingGivesTheKeysOfADeadShardASecondQuota(t *testing.T) {
	t.Parallel()
	const limit = 5
	rig := newRingRig(t, limit, func(*redis.RingOptions) {}) // as it comes
	one, two := len(rig.keys["one"]), len(rig.keys["two"])
	require.Equal(t, limit*one, rig.take(t, "one"))
	require.Equal(t, limit*two, rig.take(t, "two"))

	down := time.Now()
	rig.shards["one"].Refuse()
	errs := 0
	key := rig.keys["one"][0]
	eventually(t, "a decision for a key of the dead shard", func() bool {
		_, err := rig.limiter.Peek(ctx, key)
		if err != nil {
			errs++
		}
		return err == nil
	})
	took := time.Since(down)
	require.Positive(t, errs, "until the ring has noticed, a call is an error")
	require.Equal(t, limit*one, rig.take(t, "one"), "the whole limit once more")
	require.Zero(t, rig.take(t, "two"), "the keys of the other shard stay where they are")

	rig.shards["one"].Allow()
	eventually(t, "the shard's return", func() bool { return rig.ring.Len() == 2 })
	require.Zero(t, rig.take(t, "one"), "it has counted, and its keys are back there")
	rig.shards["one"].Refuse()
	eventually(t, "the shard's second death", func() bool { return rig.ring.Len() == 1 })
	require.Zero(t, rig.take(t, "one"), "the other shard has counted, too: there is no third quota")
	t.Logf("%d keys of the dead shard and %d of the other: %d and 0 calls allowed beyond their limits of %d; the ring moved the keys after %v",
		one, two, limit*one, limit, took.Round(10*time.Millisecond))
}

// TestARingThatMovesNoKeysAllowsNothingTwice: with a HeartbeatFn that takes every shard for
// alive, the keys of a dead shard are errors, which a Fallback turns into its policy.
func TestARingThatMovesNoKeysAllowsNothingTwice(t *testing.T) {
	t.Parallel()
	const limit = 5
	var beats atomic.Int64
	rig := newRingRig(t, limit, func(o *redis.RingOptions) {
		o.HeartbeatFrequency = 10 * time.Millisecond
		o.HeartbeatFn = func(context.Context, *redis.Client) bool {
			beats.Add(1)
			return true
		}
	})
	require.Equal(t, limit*len(rig.keys["one"]), rig.take(t, "one"))
	require.Equal(t, limit*len(rig.keys["two"]), rig.take(t, "two"))
	rig.shards["one"].Refuse()
	from := beats.Load()
	eventually(t, "heartbeats", func() bool { return beats.Load() > from+20 })
	f := ratelimit.Must(ratelimit.NewFallback(rig.limiter, ratelimit.DenyAll()))
	r := must(t)(f.TryAcquire(ctx, rig.keys["one"][0]))
	require.True(t, r.Fallback, "an error of the limiter")
	require.False(t, r.Allowed)
	require.Zero(t, rig.take(t, "two"))
}

// TestSharedBreakerWaitsForAHungServerOnce: requests that ask eight limiters of a server
// that hangs. The log has the figures of docs/outages.md.
func TestSharedBreakerWaitsForAHungServerOnce(t *testing.T) {
	const limiters, requests, budget = 8, 10, 20 * time.Millisecond
	server := redistest.Start(t)
	client := server.Client(t, func(o *redis.Options) { o.ContextTimeoutEnabled = true })
	require.NoError(t, client.Ping(ctx).Err())
	server.Pause()
	t.Cleanup(server.Resume)
	breaker := func(failures int) *ratelimit.Breaker {
		return &ratelimit.Breaker{Failures: failures, ProbeEvery: time.Hour} // no probe
	}
	shared, atOnce := breaker(5), breaker(1)
	for _, c := range []struct {
		name  string
		of    func() *ratelimit.Breaker // of each limiter
		waits int                       // calls that waited for the server
	}{
		{"a breaker each", func() *ratelimit.Breaker { return breaker(5) }, 5 * limiters},
		{"one breaker", func() *ratelimit.Breaker { return shared }, 5},
		{"one breaker that opens at once", func() *ratelimit.Breaker { return atOnce }, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			var waits atomic.Int64
			var all []ratelimit.Limiter
			for i := range limiters {
				shared := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(1), 5, ratelimit.WithName(fmt.Sprint("limiter-", i))))
				all = append(all, ratelimit.Must(ratelimit.NewFallback(shared, ratelimit.AllowAll(), ratelimit.WithBudget(budget), ratelimit.WithBreaker(c.of()),
					ratelimit.WithObserver(func(_ context.Context, e ratelimit.Observation) {
						if errors.Is(e.Reason, ratelimit.ErrOverBudget) {
							waits.Add(1)
						}
					}))))
			}
			var first, total time.Duration
			for i := range requests {
				start := time.Now()
				for _, l := range all {
					require.True(t, must(t)(l.TryAcquire(ctx, "k")).Unlimited())
				}
				took := time.Since(start)
				if total += took; i == 0 {
					first = took
				}
			}
			t.Logf("%d calls waited; the first request took %v, %d requests %v",
				waits.Load(), first.Round(time.Millisecond), requests, total.Round(time.Millisecond))
			require.EqualValues(t, c.waits, waits.Load())
		})
	}
}

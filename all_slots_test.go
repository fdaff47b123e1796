package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/fakes"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// ringOf is a Ring of one server: the library cannot know that its keys are on one shard.
func ringOf(t testing.TB, addr string) *redis.Ring {
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": addr}})
	t.Cleanup(func() { _ = ring.Close() })
	return ring
}

// TestAcrossSlotsGivesBackWhatAnotherSlotDenies, for every algorithm, to the instant.
func TestAcrossSlotsGivesBackWhatAnotherSlotDenies(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	ring := ringOf(t, s.Client.(*redis.Client).Options().Addr)
	for _, v := range limitertest.Variants() {
		l, err := v.Build(ring)
		require.NoError(t, err)
		if _, several := l.(*ratelimit.All); several {
			require.Contains(t, v.Name, "in an All")
			continue
		}
		s.Wipe(t)
		s.Move(limitertest.Start)
		gate := ratelimit.Must(ratelimit.NewFixedWindow(ring, 1, time.Hour, ratelimit.WithName("gate")))
		r, err := ratelimit.TryAcquireAcrossSlots(ctx, ratelimit.ClaimOf(l, v.Of("k"), 2), ratelimit.ClaimOf(gate, "all", 1))
		require.NoError(t, err)
		limits := must(t)(l.Peek(ctx, v.Of("k")))
		first := ratelimit.Result{Allowed: true, Limit: v.Limit, Window: limits.Window, Remaining: 1, ResetAfter: v.Resets[1]}
		require.Equal(t, ratelimit.AllResult{
			Result: allowedBy(1, time.Hour, 0, time.Hour),
			Parts:  []ratelimit.PartResult{ratelimit.OfBucket(isBucket(l), ratelimit.PartResult{Name: "default", Key: v.Of("k"), Result: first}), {Name: "gate", Key: "all", Result: allowedBy(1, time.Hour, 0, time.Hour)}},
		}, r, v.Name)
		r, err = ratelimit.TryAcquireAcrossSlots(ctx, ratelimit.ClaimOf(l, v.Of("k"), 1), ratelimit.ClaimOf(gate, "all", 1))
		require.NoError(t, err)
		require.Equal(t, deniedBy(1, time.Hour, 0, time.Hour, time.Hour), r.Result, v.Name)
		require.True(t, r.Parts[0].Result.Allowed)
		require.Equal(t, 1, r.Parts[0].Result.Remaining)
		require.Equal(t, limits, must(t)(l.Peek(ctx, v.Of("k"))), "%s: as before", v.Name)
	}
}

// TestAcrossSlotsNeverExceedsALimit: many callers of keys all over a cluster. When nobody
// calls any more, what is taken is what was allowed.
func TestAcrossSlotsNeverExceedsALimit(t *testing.T) {
	client := redistest.StartCluster(t).Client(t)
	perUser := ratelimit.Must(ratelimit.NewFixedWindow(client, 3, 24*time.Hour, ratelimit.WithName("user")))
	perAddress := ratelimit.Must(ratelimit.NewSlidingWindow(client, 12, 24*time.Hour, ratelimit.WithName("address")))
	global := ratelimit.Must(ratelimit.NewSlidingLog(client, []ratelimit.Rule{{Limit: 60, Window: 24 * time.Hour}}, ratelimit.WithName("global")))
	var allowed atomic.Int64
	var byUser [40]atomic.Int64
	var callers sync.WaitGroup
	for caller := range 16 {
		callers.Go(func() {
			for i := range 15 {
				user := (caller*7 + i) % len(byUser)
				r, err := ratelimit.TryAcquireAcrossSlots(ctx, ratelimit.ClaimOf(perUser, fmt.Sprint(user), 1), ratelimit.ClaimOf(perAddress, fmt.Sprint(user%8), 1), ratelimit.ClaimOf(global, "all", 1))
				if err != nil {
					t.Error(err)
					return
				}
				if r.Allowed {
					allowed.Add(1)
					byUser[user].Add(1)
				}
			}
		})
	}
	callers.Wait()
	require.EqualValues(t, 60-allowed.Load(), must(t)(global.Peek(ctx, "all")).Remaining)
	for user := range byUser {
		require.EqualValues(t, 3-byUser[user].Load(), must(t)(perUser.Peek(ctx, fmt.Sprint(user))).Remaining)
	}
	require.Positive(t, allowed.Load())
	// While nobody else calls, everything that is left can be taken.
	for user := range byUser {
		if must(t)(global.Peek(ctx, "all")).Remaining == 0 {
			break
		}
		for range 3 {
			if _, err := ratelimit.TryAcquireAcrossSlots(ctx, ratelimit.ClaimOf(perUser, fmt.Sprint(user), 1), ratelimit.ClaimOf(perAddress, fmt.Sprint(user%8), 1), ratelimit.ClaimOf(global, "all", 1)); err != nil {
				t.Fatal(err)
			}
		}
	}
	require.Zero(t, must(t)(global.Peek(ctx, "all")).Remaining)
}

// One slot is decided by one script, and what cannot work is found before anything is sent.
func TestAcrossSlotsInOneSlotIsAcquireAll(t *testing.T) {
	shared := redistest.Shared(t)
	ring := ringOf(t, shared.Addr())
	var trips atomic.Int64 // with scripts
	ring.AddHook(fakes.Counting(func(cmds ...redis.Cmder) {
		if slices.ContainsFunc(cmds, fakes.IsScript) {
			trips.Add(1)
		}
	}))
	bucket := ratelimit.Must(ratelimit.NewTokenBucket(ring, ratelimit.PerHour(1), 2, ratelimit.WithPrefix("across")))
	window := ratelimit.Must(ratelimit.NewFixedWindow(ring, 5, time.Hour, ratelimit.WithPrefix("across")))
	for _, row := range []struct {
		claims []ratelimit.Claim
		is     error
	}{
		{nil, ratelimit.ErrInvalidConfig},
		{[]ratelimit.Claim{{}}, ratelimit.ErrInvalidConfig},
		{[]ratelimit.Claim{ratelimit.ClaimOf(bucket, "a", 1), ratelimit.ClaimOf(window, "", 1)}, ratelimit.ErrInvalidKey},
		{[]ratelimit.Claim{ratelimit.ClaimOf(bucket, "a", 3), ratelimit.ClaimOf(window, "b", 1)}, ratelimit.ErrExceedsLimit},
		{[]ratelimit.Claim{ratelimit.ClaimOf(bucket, "a", 1), ratelimit.ClaimOf(window, "b", 0)}, ratelimit.ErrInvalidPermits},
		{[]ratelimit.Claim{ratelimit.ClaimOf(window, "b", -3), ratelimit.ClaimOf(bucket, "a", 1), ratelimit.ClaimOf(window, "b", 4)}, ratelimit.ErrInvalidPermits},
	} {
		r, err := ratelimit.TryAcquireAcrossSlots(ctx, row.claims...)
		require.ErrorIs(t, err, row.is)
		require.Zero(t, r)
	}
	other := ratelimit.Must(ratelimit.NewFixedWindow(redis.NewClient(&redis.Options{Addr: "localhost:1"}), 5, time.Hour))
	_, err := ratelimit.TryAcquireAcrossSlots(ctx, ratelimit.ClaimOf(bucket, "a", 1), ratelimit.ClaimOf(other, "b", 1))
	require.ErrorContains(t, err, "different clients")
	require.Zero(t, trips.Load())

	for range 2 { // the second knows the script
		trips.Store(0)
		r, err := ratelimit.TryAcquireAcrossSlots(ctx, ratelimit.ClaimOf(bucket, "t", 1), ratelimit.ClaimOf(window, "{t}b", 1))
		require.NoError(t, err)
		require.True(t, r.Allowed)
	}
	require.EqualValues(t, 1, trips.Load())
	// Claims for one key count together here too.
	r, err := ratelimit.TryAcquireAcrossSlots(ctx, ratelimit.ClaimOf(bucket, "x", 1), ratelimit.ClaimOf(window, "y", 1), ratelimit.ClaimOf(bucket, "x", 1))
	require.NoError(t, err)
	require.Equal(t, []int{0, 4, 0}, []int{r.Parts[0].Result.Remaining, r.Parts[1].Result.Remaining, r.Parts[2].Result.Remaining})
}

// After an error of one slot the others get their permits back.
func TestAcrossSlotsAfterAnError(t *testing.T) {
	shared := redistest.Shared(t)
	ring := ringOf(t, shared.Addr())
	admin := shared.Client(t)
	require.NoError(t, admin.FlushAll(ctx).Err())
	bucket := ratelimit.Must(ratelimit.NewLeakyBucket(ring, ratelimit.PerHour(1), 2))
	window := ratelimit.Must(ratelimit.NewFixedWindow(ring, 5, time.Hour))
	require.NoError(t, admin.SAdd(ctx, "ratelimit:default:leakybucket{k}", "x").Err())
	r, err := ratelimit.TryAcquireAcrossSlots(ctx, ratelimit.ClaimOf(bucket, "k", 1), ratelimit.ClaimOf(window, "w", 2))
	require.ErrorIs(t, err, ratelimit.ErrCorruptState)
	require.Zero(t, r)
	require.Equal(t, 5, must(t)(window.Peek(ctx, "w")).Remaining)

	ended, cancel := context.WithCancel(ctx)
	cancel()
	_, err = ratelimit.TryAcquireAcrossSlots(ended, ratelimit.ClaimOf(bucket, "k", 1), ratelimit.ClaimOf(window, "w", 2))
	require.True(t, errors.Is(err, context.Canceled))
	require.Equal(t, 5, must(t)(window.Peek(ctx, "w")).Remaining)
}

// A panic of the client or the clock is an error of its claim, whichever claim that is. The
// others get their permits back.
func TestAcrossSlotsAPanicIsAnError(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	ring := ringOf(t, s.Client.(*redis.Client).Options().Addr)
	window := ratelimit.Must(ratelimit.NewFixedWindow(ring, 5, time.Hour))
	for _, clock := range []func() time.Time{func() time.Time { panic("no clock") }, func() time.Time { runtime.Goexit(); return time.Time{} }} {
		bucket := ratelimit.Must(ratelimit.NewTokenBucket(ring, ratelimit.PerHour(1), 2, ratelimit.WithClock(clock)))
		running := ratelimit.Must(ratelimit.NewInFlight(ring, 2, time.Minute, ratelimit.WithClock(clock)))
		for _, claim := range []ratelimit.Claim{ratelimit.ClaimOf(bucket, "b", 1), ratelimit.ClaimHold(running, "r", 1)} {
			r, err := ratelimit.TryAcquireAcrossSlots(ctx, ratelimit.ClaimOf(window, "w", 1), claim)
			require.Error(t, err)
			require.Zero(t, r)
		}
	}
	bucket := ratelimit.Must(ratelimit.NewTokenBucket(ring, ratelimit.PerHour(1), 2, ratelimit.WithClock(func() time.Time { panic("no clock") })))
	_, err := ratelimit.TryAcquireAcrossSlots(ctx, ratelimit.ClaimOf(bucket, "b", 1), ratelimit.ClaimOf(window, "w", 1))
	require.ErrorContains(t, err, `token bucket "default", key "b": the client or the clock panicked: no clock`)
	require.Equal(t, 5, must(t)(window.Peek(ctx, "w")).Remaining)

	// A panic while permits are given back changes nothing but that they stay taken.
	gate := ratelimit.Must(ratelimit.NewFixedWindow(ring, 1, time.Hour, ratelimit.WithName("gate")))
	must(t)(gate.TryAcquire(ctx, "g"))
	_, err = ratelimit.TryAcquireAcrossSlots(ctx, ratelimit.ClaimOf(window, "w", 1), ratelimit.ClaimOf(gate, "g", 1)) // the scripts are there now
	require.NoError(t, err)
	asked := atomic.Int64{}
	ring.AddHook(before(func() {
		if asked.Add(1) > 2 {
			panic("no network")
		}
	}))
	r, err := ratelimit.TryAcquireAcrossSlots(ctx, ratelimit.ClaimOf(window, "w", 1), ratelimit.ClaimOf(gate, "g", 1))
	require.NoError(t, err)
	require.False(t, r.Allowed)
	require.EqualValues(t, 3, asked.Load())
}

// The caller does not wait for permits that are given back when its context has ended.
func TestAcrossSlotsReturnsWhenItsContextEnds(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	ring := ringOf(t, s.Client.(*redis.Client).Options().Addr)
	window := ratelimit.Must(ratelimit.NewFixedWindow(ring, 5, time.Hour))
	gate := ratelimit.Must(ratelimit.NewFixedWindow(ring, 1, time.Hour, ratelimit.WithName("gate")))
	must(t)(gate.TryAcquire(ctx, "g"))
	_, err := ratelimit.TryAcquireAcrossSlots(ctx, ratelimit.ClaimOf(window, "w", 1), ratelimit.ClaimOf(gate, "g", 1)) // the scripts are there now
	require.NoError(t, err)
	within, cancel := context.WithCancel(ctx)
	answer, returned := make(chan struct{}), make(chan struct{})
	asked := atomic.Int64{}
	ring.AddHook(before(func() {
		if asked.Add(1) == 3 { // permits are given back
			cancel()
			<-answer
			close(returned)
		}
	}))
	r, err := ratelimit.TryAcquireAcrossSlots(within, ratelimit.ClaimOf(window, "w", 2), ratelimit.ClaimOf(gate, "g", 1))
	require.NoError(t, err)
	require.Equal(t, deniedBy(1, time.Hour, 0, time.Hour, time.Hour), r.Result)
	require.Equal(t, 5, r.Parts[0].Result.Remaining)
	close(answer)
	<-returned
}

// A client that only wraps a ClusterClient gets there too: the Cluster says that it needs
// several scripts.
func TestAcrossSlotsOfAWrappedCluster(t *testing.T) {
	cluster := redistest.StartCluster(t).Client(t)
	for name, client := range map[string]ratelimit.Client{"wrapped": &wrapped{cluster}} {
		t.Run(name, func(t *testing.T) {
			bucket := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerHour(1), 2))
			window := ratelimit.Must(ratelimit.NewFixedWindow(client, 1, time.Hour))
			running := ratelimit.Must(ratelimit.NewInFlight(client, 1, time.Hour))
			r, err := ratelimit.TryAcquireAcrossSlots(ctx, ratelimit.ClaimOf(bucket, "a", 1), ratelimit.ClaimOf(window, "b", 1), ratelimit.ClaimHold(running, "c", 1))
			require.NoError(t, err)
			require.True(t, r.Allowed)
			require.Zero(t, must(t)(running.Peek(ctx, "c")).Remaining)
			require.NoError(t, r.Finish(ctx, nil))
			r, err = ratelimit.TryAcquireAcrossSlots(ctx, ratelimit.ClaimOf(bucket, "a", 1), ratelimit.ClaimOf(window, "b", 1), ratelimit.ClaimHold(running, "c", 1))
			require.NoError(t, err)
			require.False(t, r.Allowed)
			require.Equal(t, 1, must(t)(bucket.Peek(ctx, "a")).Remaining)
			require.Equal(t, 1, must(t)(running.Peek(ctx, "c")).Remaining)
		})
	}
}

// before calls do before each command, but not those of a pipeline.
func before(do func()) redis.Hook {
	return fakes.Hook{Command: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		do()
		return next(ctx, cmd)
	}}
}

// TestDenialsAcrossSlotsLeaveABucketInStepsAsItIs: no step comes between a denied call and its
// second round trip, so the bucket has refilled nothing of what it gets back.
func TestDenialsAcrossSlotsLeaveABucketInStepsAsItIs(t *testing.T) {
	for name, opts := range map[string][]ratelimit.Option{"even": nil, "stepped": {ratelimit.WithRefillEvery(time.Second)}} {
		t.Run(name, func(t *testing.T) {
			s := limitertest.OnMiniredis(t)
			ring := ringOf(t, s.Client.(*redis.Client).Options().Addr)
			var clock sync.Mutex
			ring.AddHook(before(func() {
				clock.Lock()
				defer clock.Unlock()
				s.Advance(100 * time.Microsecond)
			}))
			gate := ratelimit.Must(ratelimit.NewFixedWindow(ring, 1, time.Hour, ratelimit.WithName("gate")))
			shared := ratelimit.Must(ratelimit.NewTokenBucket(ring, ratelimit.PerMinute(600), 600, opts...))
			require.True(t, must(t)(gate.TryAcquire(ctx, "user")).Allowed)
			for range 600 {
				r, err := ratelimit.TryAcquireAcrossSlots(ctx, ratelimit.ClaimOf(gate, "user", 1), ratelimit.ClaimOf(shared, "all", 1))
				require.NoError(t, err)
				require.False(t, r.Allowed)
			}
			require.Equal(t, 600, must(t)(shared.Peek(ctx, "all")).Remaining)
		})
	}
}

package redis_test

import (
	"context"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"github.com/ulule/limiter/v3"
	sredis "github.com/ulule/limiter/v3/drivers/store/redis"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/shims/ulule/redis"
)

// newStore returns a store on a server of its own, whose time stands still.
func newStore(t *testing.T) limiter.Store {
	store, _, _ := onServer(t)
	return store
}

func onServer(t *testing.T) (limiter.Store, *goredis.Client, *miniredis.Miniredis) {
	server := miniredis.RunT(t)
	server.SetTime(time.Unix(1_763_670_000, 0))
	client := goredis.NewClient(&goredis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	store, err := redis.NewStore(client)
	require.NoError(t, err)
	return store, client, server
}

// soon asserts that a context's Reset is so long from now, by this host's clock, which moves on
// during the call, and returns the context without it.
func soon(t *testing.T, before time.Time, period time.Duration, c limiter.Context) limiter.Context {
	t.Helper()
	require.GreaterOrEqual(t, c.Reset, before.Add(period).Unix())
	require.LessOrEqual(t, c.Reset, time.Now().Add(period).Unix())
	c.Reset = 0
	return c
}

// TestIncrementTakesWhatIsLeft: like the original, more than what is left uses up the window, and is
// Reached.
func TestIncrementTakesWhatIsLeft(t *testing.T) {
	ctx := t.Context()
	store, client, server := onServer(t)
	rate, err := limiter.NewRateFromFormatted("10-M")
	require.NoError(t, err)
	for _, step := range []struct {
		count     int64
		remaining int64
		reached   bool
	}{{0, 10, false}, {4, 6, false}, {0, 6, false}, {7, 0, true}, {0, 0, true}, {1, 0, true}, {math.MaxInt64, 0, true}} {
		before := time.Now()
		got, err := store.Increment(ctx, "k", step.count, rate)
		require.NoError(t, err)
		require.Equal(t, limiter.Context{Limit: 10, Remaining: step.remaining, Reached: step.reached}, soon(t, before, time.Minute, got), step)
	}
	require.Equal(t, []string{"limiter:ulule:fixedwindow{k}"}, client.Keys(ctx, "*").Val())

	server.SetTime(time.Unix(1_763_670_020, 0))
	server.FastForward(20 * time.Second)
	before := time.Now()
	got, err := store.Peek(ctx, "k", rate)
	require.NoError(t, err)
	require.Equal(t, limiter.Context{Limit: 10, Reached: true}, soon(t, before, 40*time.Second, got))

	server.SetTime(time.Unix(1_763_670_060, 0))
	server.FastForward(40 * time.Second)
	got, err = store.Get(ctx, "k", rate)
	require.NoError(t, err)
	require.Equal(t, limiter.Context{Limit: 10, Remaining: 9}, soon(t, before, time.Minute, got))
}

// TestALimitOfZeroDeniesEverything, as in the original, and touches no key.
func TestALimitOfZeroDeniesEverything(t *testing.T) {
	ctx := t.Context()
	store, client, _ := onServer(t)
	for _, limit := range []int64{0, -1} {
		rate := limiter.Rate{Limit: limit, Period: time.Minute}
		for _, call := range []func(context.Context, string, limiter.Rate) (limiter.Context, error){store.Get, store.Peek, store.Reset} {
			before := time.Now()
			got, err := call(ctx, "k", rate)
			require.NoError(t, err)
			require.Equal(t, limiter.Context{Limit: limit, Reached: true}, soon(t, before, time.Minute, got))
		}
	}
	require.Empty(t, client.Keys(ctx, "*").Val())
}

// TestWhatIsAnErrorHere: a window without a period never ends in the original, and a negative count
// gives permits back.
func TestWhatIsAnErrorHere(t *testing.T) {
	ctx, store := t.Context(), newStore(t)
	for _, call := range []func(context.Context, string, limiter.Rate) (limiter.Context, error){store.Get, store.Peek, store.Reset} {
		for _, limit := range []int64{0, 1} {
			got, err := call(ctx, "k", limiter.Rate{Limit: limit})
			require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
			require.ErrorContains(t, err, "per 0s: ratelimit: invalid configuration: the window is 0s; it must be at least 1ms")
			require.Zero(t, got)
		}
		_, err := call(ctx, "k", limiter.Rate{Limit: math.MaxInt64, Period: time.Second})
		require.ErrorContains(t, err, "ulule: 9223372036854775807 per 1s: ")
		got, err := call(ctx, strings.Repeat("k", 4097), limiter.Rate{Limit: 1, Period: time.Second})
		require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
		require.Zero(t, got)
	}
	_, err := store.Increment(ctx, "k", -1, limiter.Rate{Limit: 1, Period: time.Second})
	require.ErrorIs(t, err, ratelimit.ErrInvalidPermits)
	_, err = redis.NewStore(nil)
	require.EqualError(t, err, "ulule: the store: ratelimit: invalid configuration: the client is nil")
	_, err = redis.NewStoreWithOptions(goredis.NewClient(&goredis.Options{}), limiter.StoreOptions{Prefix: "a{b}"})
	require.ErrorContains(t, err, "WithPrefix")
}

// TestAnEmptyKeyIsAKey, as in the original, whose middlewares panic on an error: gin's ClientIP is "" on a Unix socket. It
// is none of the caller's other keys.
func TestAnEmptyKeyIsAKey(t *testing.T) {
	ctx := t.Context()
	original, err := sredis.NewStore(func() *goredis.Client { _, client, _ := onServer(t); return client }())
	require.NoError(t, err)
	ours, client, _ := onServer(t)
	rate := limiter.Rate{Limit: 2, Period: time.Minute}
	for name, store := range map[string]limiter.Store{"original": original, "here": ours} {
		l := limiter.New(store, rate)
		for _, key := range []string{"", "\x00", "\x00\x00", "x", "\x00x"} {
			for i, want := range []limiter.Context{{Limit: 2, Remaining: 1}, {Limit: 2}, {Limit: 2, Reached: true}} {
				before := time.Now()
				got, err := l.Get(ctx, key)
				require.NoError(t, err, name)
				require.Equal(t, want, soon(t, before, time.Minute, got), "%s: call %d of %q", name, i+1, key)
			}
			got, err := l.Increment(ctx, key, 1)
			require.NoError(t, err, name)
			require.True(t, got.Reached)
			got, err = l.Reset(ctx, key)
			require.NoError(t, err, name)
			require.Equal(t, int64(2), got.Remaining, name)
			got, err = l.Peek(ctx, key)
			require.NoError(t, err, name)
			require.Equal(t, int64(2), got.Remaining, name)
			_, err = l.Get(ctx, key)
			require.NoError(t, err, name)
		}
	}
	require.Len(t, client.Keys(ctx, "*").Val(), 5)
}

// TestAStoreNeedsNoServerToBeMade, unlike the original.
func TestAStoreNeedsNoServerToBeMade(t *testing.T) {
	client := goredis.NewClient(&goredis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	t.Cleanup(func() { _ = client.Close() })
	store, err := redis.NewStoreWithOptions(client, limiter.StoreOptions{Prefix: "service:login", MaxRetry: 3})
	require.NoError(t, err)
	_, err = limiter.New(store, limiter.Rate{Limit: 1, Period: time.Second}).Get(t.Context(), "k")
	require.Error(t, err)
}

// TestTheLibraryGoesOnFromTheStore: a limiter of the same name and prefix has what the store has
// counted.
func TestTheLibraryGoesOnFromTheStore(t *testing.T) {
	ctx := t.Context()
	store, client, _ := onServer(t)
	_, err := store.Increment(ctx, "k", 3, limiter.Rate{Limit: 5, Period: time.Minute})
	require.NoError(t, err)
	after, err := ratelimit.NewFixedWindow(client, 5, time.Minute, ratelimit.WithName(redis.Name), ratelimit.WithPrefix(limiter.DefaultPrefix))
	require.NoError(t, err)
	r, err := after.TryAcquire(ctx, "k")
	require.NoError(t, err)
	require.Equal(t, ratelimit.Result{Allowed: true, Limit: 5, Window: time.Minute, Remaining: 1, ResetAfter: time.Minute}, r)
}

func TestManyCallersGetTheLimit(t *testing.T) {
	store := newStore(t)
	rate := limiter.Rate{Limit: 100, Period: time.Minute}
	var allowed, denied atomic.Int64
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for range 10 {
				got, err := store.Get(t.Context(), "k", rate)
				switch {
				case err != nil:
					t.Error(err)
				case got.Reached:
					denied.Add(1)
				default:
					allowed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	require.Equal(t, int64(100), allowed.Load())
	require.Equal(t, int64(400), denied.Load())
}

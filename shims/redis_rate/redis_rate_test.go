package redis_rate_test

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/shims/redis_rate"
)

// rateLimiter returns a limiter on a server whose time stands still.
func rateLimiter(t *testing.T) *redis_rate.Limiter {
	l, _ := onServer(t)
	return l
}

func onServer(t *testing.T) (*redis_rate.Limiter, *redis.Ring) {
	server := miniredis.RunT(t)
	server.SetTime(time.Unix(1_763_670_000, 0))
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"server0": server.Addr()}})
	t.Cleanup(func() { _ = ring.Close() })
	return redis_rate.NewLimiter(ring), ring
}

// TestADenialSaysWhatIsLeft, where the original says 0.
func TestADenialSaysWhatIsLeft(t *testing.T) {
	ctx, l, limit := t.Context(), rateLimiter(t), redis_rate.PerSecond(10)
	_, err := l.AllowN(ctx, "k", limit, 6)
	require.NoError(t, err)
	got, err := l.AllowN(ctx, "k", limit, 5)
	require.NoError(t, err)
	require.Equal(t, &redis_rate.Result{
		Limit: limit, Allowed: 0, Remaining: 4, RetryAfter: 100 * time.Millisecond, ResetAfter: 600 * time.Millisecond,
	}, got)
	got, err = l.AllowN(ctx, "k", limit, 11)
	require.NoError(t, err)
	require.Equal(t, &redis_rate.Result{
		Limit: limit, Allowed: 0, Remaining: 4, RetryAfter: 700 * time.Millisecond, ResetAfter: 600 * time.Millisecond,
	}, got, "more than the burst is denied, not an error")
	got, err = l.AllowAtMost(ctx, "k", limit, 11)
	require.NoError(t, err)
	require.Equal(t, &redis_rate.Result{
		Limit: limit, Allowed: 4, Remaining: 0, RetryAfter: -1, ResetAfter: time.Second,
	}, got)
	got, err = l.AllowAtMost(ctx, "k", limit, 0)
	require.NoError(t, err)
	require.Equal(t, &redis_rate.Result{
		Limit: limit, Allowed: 0, Remaining: 0, RetryAfter: 100 * time.Millisecond, ResetAfter: time.Second,
	}, got, "as of the original: AllowAtMost for 0 says when there is one")
}

// TestABurstOfZeroDeniesEverything, as in the original, and touches no key.
func TestABurstOfZeroDeniesEverything(t *testing.T) {
	ctx := t.Context()
	l, ring := onServer(t)
	limit := redis_rate.Limit{Rate: 10, Burst: 0, Period: time.Second}
	denied := &redis_rate.Result{Limit: limit, RetryAfter: 100 * time.Millisecond}
	got, err := l.Allow(ctx, "k", limit)
	require.NoError(t, err)
	require.Equal(t, denied, got)
	got, err = l.AllowAtMost(ctx, "k", limit, 5)
	require.NoError(t, err)
	require.Equal(t, denied, got)
	got, err = l.AllowN(ctx, "k", limit, 0)
	require.NoError(t, err)
	require.Equal(t, &redis_rate.Result{Limit: limit, RetryAfter: -1}, got)
	require.Empty(t, ring.Keys(ctx, "*").Val())

	ended, cancel := context.WithCancel(ctx)
	cancel()
	_, err = l.Allow(ended, "k", limit)
	require.ErrorIs(t, err, context.Canceled)
}

// TestWhatIsAnErrorHere: the original allows everything with a Period of 0, adds permits for a
// negative n, and panics without a client. A Rate of 0 is an error of Redis there.
func TestWhatIsAnErrorHere(t *testing.T) {
	ctx, l := t.Context(), rateLimiter(t)
	_, err := l.Allow(ctx, "k", redis_rate.Limit{})
	require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
	require.EqualError(t, err, "redis_rate: the limit 0 req/0s (burst 0): ratelimit: invalid configuration: the rate's Count is 0; it must be at least 1")
	for _, limit := range []redis_rate.Limit{
		redis_rate.PerSecond(0),
		{Rate: 5, Burst: 5},
		{Rate: 5, Burst: 0},
		{Rate: 5, Burst: 5, Period: 999 * time.Microsecond},
		redis_rate.PerSecond(math.MaxInt),
		{Rate: 1, Burst: math.MaxInt, Period: time.Second},
	} {
		_, err = l.Allow(ctx, "k", limit)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig, limit)
		_, err = l.AllowAtMost(ctx, "k", limit, 1)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig, limit)
	}
	for _, call := range []func(context.Context, string, redis_rate.Limit, int) (*redis_rate.Result, error){l.AllowN, l.AllowAtMost} {
		_, err = call(ctx, "k", redis_rate.PerSecond(10), -1)
		require.ErrorIs(t, err, ratelimit.ErrInvalidPermits)
		_, err = call(ctx, "", redis_rate.PerSecond(10), 1)
		require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
	}
	none := redis_rate.NewLimiter(nil)
	_, err = none.Allow(ctx, "k", redis_rate.PerSecond(10))
	require.ErrorContains(t, err, "the client is nil")
	require.ErrorContains(t, none.Reset(ctx, "k"), "the client is nil")
	_, err = redis_rate.Limiter{}.Allow(ctx, "k", redis_rate.PerSecond(10))
	require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
}

func TestAWaitIsNeverNegative(t *testing.T) {
	got, err := rateLimiter(t).AllowN(t.Context(), "k", redis_rate.PerHour(1), math.MaxInt)
	require.NoError(t, err)
	require.Equal(t, time.Duration(1<<62), got.RetryAfter)
}

// TestTheLibraryGoesOnFromTheShim: a limiter of the same name has what the shim has counted, and
// the shim what the limiter has.
func TestTheLibraryGoesOnFromTheShim(t *testing.T) {
	ctx := t.Context()
	l, ring := onServer(t)
	_, err := l.AllowN(ctx, "k", redis_rate.PerSecond(10), 4)
	require.NoError(t, err)
	after, err := ratelimit.NewTokenBucket(ring, ratelimit.PerSecond(10), 10, ratelimit.WithName(redis_rate.Name))
	require.NoError(t, err)
	r, err := after.TryAcquireN(ctx, "k", 5)
	require.NoError(t, err)
	require.Equal(t, ratelimit.Result{Allowed: true, Limit: 10, Window: time.Second, Remaining: 1, ResetAfter: 900 * time.Millisecond}, r)
	got, err := l.Allow(ctx, "k", redis_rate.PerSecond(10))
	require.NoError(t, err)
	require.Equal(t, 0, got.Remaining)
	require.NoError(t, l.Reset(ctx, "k"))
	require.Empty(t, ring.Keys(ctx, "*").Val())
}

func TestLimitStrings(t *testing.T) {
	for want, limit := range map[string]redis_rate.Limit{
		"5 req/m (burst 5)":     redis_rate.PerMinute(5),
		"5 req/h (burst 5)":     redis_rate.PerHour(5),
		"5 req/1m30s (burst 7)": {Rate: 5, Burst: 7, Period: 90 * time.Second},
	} {
		require.Equal(t, want, limit.String())
	}
	require.True(t, redis_rate.Limit{}.IsZero())
}

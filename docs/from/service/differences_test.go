package service

import (
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	shim "github.com/tryacquire/ratelimit/shims/redis_rate"
)

func limiters(t *testing.T) (*redis_rate.Limiter, *shim.Limiter) {
	server := miniredis.RunT(t)
	server.SetTime(time.Unix(1_500_000_000, 0))
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	return redis_rate.NewLimiter(client), shim.NewLimiter(client)
}

// TestAChangedLimitOfAUsedKey: redis_rate keeps what was used as time, the shim as permits.
func TestAChangedLimitOfAUsedKey(t *testing.T) {
	ctx := t.Context()
	for name, change := range map[string]struct {
		used, from, to        int
		oldAllowed, oldLeft   int
		oldRetry              time.Duration
		shimAllowed, shimLeft int
		shimRetry             time.Duration
	}{
		"upgrade":   {10, 10, 100, 0, 0, 600 * time.Millisecond, 1, 89, -1},
		"downgrade": {50, 100, 10, 1, 4, -1, 0, 0, 24_600 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			old, now := limiters(t)
			_, err := old.AllowN(ctx, "k", redis_rate.PerMinute(change.from), change.used)
			require.NoError(t, err)
			_, err = now.AllowN(ctx, "k", shim.PerMinute(change.from), change.used)
			require.NoError(t, err)
			o, err := old.Allow(ctx, "k", redis_rate.PerMinute(change.to))
			require.NoError(t, err)
			n, err := now.Allow(ctx, "k", shim.PerMinute(change.to))
			require.NoError(t, err)
			require.Equal(t, []int{change.oldAllowed, change.oldLeft}, []int{o.Allowed, o.Remaining})
			require.InDelta(t, change.oldRetry, o.RetryAfter, float64(time.Microsecond), "floating point numbers")
			require.Equal(t, []any{change.shimAllowed, change.shimLeft, change.shimRetry}, []any{n.Allowed, n.Remaining, n.RetryAfter})
		})
	}
}

// TestLimitsOfZero: what the table of the shim says of a Rate, a Period and a Burst of 0. What
// redis_rate answers to Limit{} depends on the server: Redis writes "-nan", which it cannot read.
func TestLimitsOfZero(t *testing.T) {
	ctx := t.Context()
	old, now := limiters(t)
	noRate := redis_rate.Limit{Rate: 0, Burst: 5, Period: time.Minute}
	_, err := old.Allow(ctx, "no rate", noRate)
	require.ErrorContains(t, err, "ERR value is not an integer or out of range")
	_, err = now.Allow(ctx, "no rate", shim.Limit(noRate))
	require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)

	noPeriod := redis_rate.Limit{Rate: 5, Burst: 5}
	for range 7 {
		o, err := old.Allow(ctx, "no period", noPeriod)
		require.NoError(t, err)
		require.Equal(t, 1, o.Allowed)
	}
	_, err = now.Allow(ctx, "no period", shim.Limit(noPeriod))
	require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)

	short := redis_rate.Limit{Rate: 5, Burst: 5, Period: 100 * time.Microsecond}
	_, err = old.Allow(ctx, "short", short)
	require.NoError(t, err)
	_, err = now.Allow(ctx, "short", shim.Limit(short))
	require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)

	noBurst := redis_rate.Limit{Rate: 5, Burst: 0, Period: time.Minute}
	o, err := old.Allow(ctx, "no burst", noBurst)
	require.NoError(t, err)
	n, err := now.Allow(ctx, "no burst", shim.Limit(noBurst))
	require.NoError(t, err)
	for _, allowed := range []int{o.Allowed, n.Allowed} {
		require.Zero(t, allowed)
	}
	require.Equal(t, 12*time.Second, o.RetryAfter)
	require.Equal(t, 12*time.Second, n.RetryAfter)

	_, err = now.Allow(ctx, "zero", shim.Limit{})
	require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
}

package ratelimit_test

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
)

// halves is a user's limiter around one of this package: it allows more at once
// than that.
type halves struct{ *ratelimit.TokenBucket }

func TestALimiterThatEmbedsOneHasNoCeilingOfItsOwn(t *testing.T) {
	down := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1})
	t.Cleanup(func() { _ = down.Close() })
	l := halves{ratelimit.Must(ratelimit.NewTokenBucket(down, ratelimit.PerSecond(1), 3))}
	for _, primary := range []ratelimit.Limiter{l, &l} {
		f := ratelimit.Must(ratelimit.NewFallback(primary, ratelimit.AllowAll()))
		for n := 1; n <= 3; n++ {
			r, err := f.TryAcquireN(t.Context(), "k", n)
			require.NoError(t, err)
			require.True(t, r.Fallback)
		}
		_, err := f.TryAcquireN(t.Context(), "k", 4)
		require.ErrorIs(t, err, ratelimit.ErrExceedsLimit, "the one inside says so")
	}
}

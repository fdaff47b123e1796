package ratelimit_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/limiterkind"
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

// TestWhatOtherPackagesAskOfALimiter is the table that httplimit and the RPC packages use.
func TestWhatOtherPackagesAskOfALimiter(t *testing.T) {
	down := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1})
	t.Cleanup(func() { _ = down.Close() })
	rate := ratelimit.PerSecond(1)
	token := ratelimit.Must(ratelimit.NewTokenBucket(down, rate, 3))
	window := ratelimit.Must(ratelimit.NewFixedWindow(down, 3, time.Second))
	made, bucket, absent := limiterkind.Kind{}, limiterkind.Kind{Bucket: true}, limiterkind.Kind{Absent: true}
	for _, test := range []struct {
		limiter any
		want    limiterkind.Kind
	}{
		{token, bucket},
		{ratelimit.Must(ratelimit.NewLeakyBucket(down, rate, 3)), bucket},
		{ratelimit.Must(ratelimit.NewLocalTokenBucket(rate, 3)), bucket},
		{window, made},
		{ratelimit.Must(ratelimit.NewInFlight(down, 3, time.Second)), made},
		{ratelimit.Must(ratelimit.NewAll(token, window)), made},
		{ratelimit.Must(ratelimit.NewFallback(token, ratelimit.AllowAll())), made},
		{ratelimit.AllowHolds(), made},
		{halves{token}, made},
		{nil, absent},
		{(*ratelimit.FixedWindow)(nil), absent},
		{(*ratelimit.Fallback)(nil), absent},
		{(*ratelimit.InFlight)(nil), absent},
		{(*ratelimit.HoldChoice)(nil), absent},
	} {
		require.Equal(t, test.want, limiterkind.Of(test.limiter), "%T", test.limiter)
	}
	for _, l := range []any{(*ratelimit.TokenBucket)(nil), (*ratelimit.LeakyBucket)(nil), (*ratelimit.LocalTokenBucket)(nil)} {
		require.True(t, limiterkind.Of(l).Absent, "%T", l)
	}
	require.NoError(t, limiterkind.CheckClaims([]ratelimit.Claim{token.Claim("k", 1), window.Claim("k", 1)}))
	require.ErrorIs(t, limiterkind.CheckClaims([]ratelimit.Claim{token.Claim("k", 4)}), ratelimit.ErrExceedsLimit)
}

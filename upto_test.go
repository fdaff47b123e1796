package ratelimit_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

func TestAsManyAsThereAreAreTaken(t *testing.T) {
	eachSettling(t, func(t *testing.T, s *limitertest.Stage, v limitertest.Variant, l settling) {
		upTo := func(n int) (int, ratelimit.Result) {
			taken, r, err := l.TryAcquireUpTo(ctx, v.Of("k"), n)
			require.NoError(t, err)
			return taken, r
		}
		taken, r := upTo(1)
		require.Equal(t, 1, taken)
		require.Equal(t, ratelimit.Result{Allowed: true, Limit: v.Limit, Window: v.Window, Remaining: 2, ResetAfter: v.Resets[0]}, r)
		taken, r = upTo(5)
		require.Equal(t, 2, taken)
		require.Equal(t, ratelimit.Result{Allowed: true, Limit: v.Limit, Window: v.Window, RetryAfter: v.Retry, ResetAfter: v.Resets[2]}, r)
		taken, r = upTo(5)
		require.Zero(t, taken)
		require.Equal(t, ratelimit.Result{Limit: v.Limit, Window: v.Window, RetryAfter: v.Retry, ResetAfter: v.Resets[2], ByShare: v.ByShare(1, 0)}, r)
		s.Advance(v.Retry - v.Grain)
		taken, _ = upTo(5)
		require.Zero(t, taken)
		s.Advance(v.Grain)
		taken, _ = upTo(5)
		require.Positive(t, taken)
		require.NoError(t, v.Forget(l, "k"))
		taken, r = upTo(3)
		require.Equal(t, 3, taken)
		require.Zero(t, r.RetryAfter)
		require.NoError(t, v.Forget(l, "k"))
		taken, r = upTo(math.MaxInt/2 + 1)
		require.Equal(t, 3, taken, "at most the limit")
		require.Positive(t, r.RetryAfter)
	})
}

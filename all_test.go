package ratelimit_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/limitertest"
)

func TestAllTakesFromEveryLimiterOrFromNone(t *testing.T) {
	for _, stage := range []func(testing.TB) *limitertest.Stage{limitertest.OnMiniredis, limitertest.OnHeldRedis} {
		s := stage(t)
		second := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(2), 2, ratelimit.WithName("second")))
		hour := ratelimit.Must(ratelimit.NewSlidingWindow(s.Client, 3, time.Hour, ratelimit.WithName("hour")))
		all, err := ratelimit.NewAll(second, hour)
		require.NoError(t, err)
		r := must(t)(all.TryAcquireN(ctx, "k", 2))
		require.Equal(t, ratelimit.Result{Allowed: true, Limit: 2, Window: time.Second, ResetAfter: time.Hour + 60*time.Second - time.Microsecond}, r)
		r = must(t)(all.TryAcquireN(ctx, "k", 2))
		t.Logf("%+v", r)
		r = must(t)(all.Peek(ctx, "k"))
		t.Logf("%+v", r)
		res, err := ratelimit.AcquireAll(ctx, all.Claims("k", 1)...)
		t.Logf("%+v %v", res, err)
		s.Advance(500 * time.Millisecond)
		res, err = ratelimit.AcquireAll(ctx, all.Claims("k", 1)...)
		t.Logf("%+v %v", res, err)
		require.NoError(t, all.Reset(ctx, "k"))
		require.Empty(t, s.Admin.Keys(ctx, "*").Val())
	}
}

package integration_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/integration"
	"github.com/tryacquire/ratelimit/internal/testing/fakes"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// TestIsBucket: it is about who answered, behind policies and in an outage too.
func TestIsBucket(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	local := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1), 5))
	window := ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 5, time.Hour))
	leaky := ratelimit.Must(ratelimit.NewLeakyBucket(s.Client, ratelimit.PerSecond(1), 5))
	down := ratelimit.Must(ratelimit.NewFixedWindow(fakes.Failing(errors.New("down")), 5, time.Hour))
	fallback := func(primary ratelimit.Limiter) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.NewFallback(primary, local))
	}
	for _, test := range []struct {
		limiters []ratelimit.Limiter
		want     []bool
	}{
		{[]ratelimit.Limiter{local}, []bool{true}},
		{[]ratelimit.Limiter{window}, []bool{false}},
		{[]ratelimit.Limiter{window, leaky}, []bool{false, true}},
		{[]ratelimit.Limiter{fallback(window), fallback(leaky)}, []bool{false, true}},
		{[]ratelimit.Limiter{fallback(down)}, []bool{true}},
		{[]ratelimit.Limiter{ratelimit.AllowAll(), local}, []bool{false, true}},
	} {
		var claims []ratelimit.Claim
		for _, l := range test.limiters {
			claims = append(claims, ratelimit.ClaimOf(l, "k", 1))
		}
		r, err := ratelimit.TryAcquireAll(t.Context(), claims...)
		require.NoError(t, err)
		var got []bool
		for i := range r.Parts {
			got = append(got, integration.IsBucket(&r.Parts[i]))
		}
		require.Equal(t, test.want, got)
	}
}

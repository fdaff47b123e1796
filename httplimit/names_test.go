package httplimit_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// TestDecoratorsTellClientsTheNameOfTheirLimit: the set-up for outages of the README, and others.
func TestDecoratorsTellClientsTheNameOfTheirLimit(t *testing.T) {
	client := limitertest.OnMiniredis(t).Client
	api := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(10), 20, ratelimit.WithName("api")))
	local := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(5), 10, ratelimit.WithName("local")))
	fallback := func(primary ratelimit.Limiter, opts ...ratelimit.PolicyOption) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.NewFallback(primary, local, append(opts, ratelimit.WithBudget(time.Hour))...))
	}
	hour := ratelimit.Must(ratelimit.NewFixedWindow(client, 10, time.Hour, ratelimit.WithName("hour")))
	for _, test := range []struct {
		limiter ratelimit.Limiter
		want    string
	}{
		{fallback(api), "api"},
		{fallback(fallback(api)), "api"},
		{fallback(fallback(api, ratelimit.WithName("inner"))), "inner"},
		{fallback(fallback(api), ratelimit.WithName("outer")), "outer"},
		{ratelimit.Must(ratelimit.NewDenyCache(fallback(api))), "api"},
		{ratelimit.Must(ratelimit.NewShadow(fallback(api), local, func(ratelimit.Trial) {})), "api"},
		{local, "local"},
		{fallback(limitertest.Named("own", limitertest.Allowing())), "own"},
		{fallback(limitertest.Allowing()), "default"},
		{fallback(ratelimit.Must(ratelimit.NewAll(hour))), "hour"},
	} {
		w := serve(t, test.limiter, newRequest("GET", "/"))
		require.Contains(t, w.Header().Get("RateLimit-Policy"), `"`+test.want+`"`)
		named, ok := test.limiter.(interface{ Name() string })
		require.True(t, ok, "%T", test.limiter)
		require.Equal(t, test.want, named.Name())
	}
}

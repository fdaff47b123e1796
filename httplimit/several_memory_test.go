package httplimit_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/httplimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// TestRetryAfterFromMemory is that of the limit that governs, whichever limits are cached.
func TestRetryAfterFromMemory(t *testing.T) {
	cached := func(l ratelimit.Limiter) ratelimit.Limiter { return ratelimit.Must(ratelimit.NewDenyCache(l)) }
	bare := func(l ratelimit.Limiter) ratelimit.Limiter { return l }
	for name, around := range map[string][2]func(ratelimit.Limiter) ratelimit.Limiter{
		"both": {cached, cached}, "the shorter": {cached, bare}, "the longer": {bare, cached},
	} {
		t.Run(name, func(t *testing.T) {
			s := limitertest.OnMiniredis(t)
			short := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.Per(1, 20*time.Second), 1, ratelimit.WithName("short")))
			long := ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 1, time.Hour, ratelimit.WithName("long")))
			h := all(t, httplimit.Limit(around[0](short), httplimit.Everyone()), httplimit.Limit(around[1](long), httplimit.Everyone()))(served)
			require.Equal(t, 204, do(h, newRequest("GET", "/")).Code)
			for range 3 {
				w := do(h, newRequest("GET", "/"))
				require.Equal(t, 429, w.Code)
				after, err := strconv.Atoi(w.Header().Get("Retry-After"))
				require.NoError(t, err)
				require.Greater(t, after, 3000) // memory counts it down by this machine's clock
			}
		})
	}
}

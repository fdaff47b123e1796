package integration_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/integration"
	"github.com/tryacquire/ratelimit/ratelimittest"
)

// TestRequestsThatWaitAreObservedOnce: 20 requests at once, of which all are served in the end, are
// 20 observations and no denial, by windows, buckets, caches and several limiters.
func TestRequestsThatWaitAreObservedOnce(t *testing.T) {
	for name, build := range map[string]func(env *ratelimittest.Env, o ratelimit.Option) ratelimit.Limiter{
		"fixed window": func(env *ratelimittest.Env, o ratelimit.Option) ratelimit.Limiter {
			return ratelimit.Must(ratelimit.NewFixedWindow(env.Client(), 5, time.Second, o))
		},
		"token bucket": func(env *ratelimittest.Env, o ratelimit.Option) ratelimit.Limiter {
			return ratelimit.Must(ratelimit.NewTokenBucket(env.Client(), ratelimit.PerSecond(5), 1, o))
		},
		"local bucket": func(_ *ratelimittest.Env, o ratelimit.Option) ratelimit.Limiter {
			return ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(5), 1, o))
		},
		"cache": func(env *ratelimittest.Env, o ratelimit.Option) ratelimit.Limiter {
			window := ratelimit.Must(ratelimit.NewFixedWindow(env.Client(), 5, time.Second, o))
			return ratelimit.Must(ratelimit.NewDenyCache(window, o))
		},
		"fallback": func(env *ratelimittest.Env, o ratelimit.Option) ratelimit.Limiter {
			window := ratelimit.Must(ratelimit.NewFixedWindow(env.Client(), 5, time.Second, o))
			return ratelimit.Must(ratelimit.NewFallback(window, ratelimit.DenyAll(), ratelimit.WithBudget(time.Hour), o))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				var seen []ratelimit.Observation
				l := build(ratelimittest.New(t), ratelimit.WithObserver(func(_ context.Context, o ratelimit.Observation) {
					mu.Lock()
					defer mu.Unlock()
					seen = append(seen, o)
				}))
				var all sync.WaitGroup
				for range 20 {
					all.Go(func() {
						r, err := integration.Acquire(t.Context(), l, "k", 1, time.Hour)
						require.NoError(t, err)
						require.True(t, r.Allowed)
					})
				}
				all.Wait()
				require.Len(t, seen, 20)
				waited := 0
				for _, o := range seen {
					require.Equal(t, ratelimit.OutcomeAllowed, o.Outcome)
					require.Equal(t, 1, o.Taken)
					if o.Call == "wait" {
						require.Positive(t, o.Waited)
						require.GreaterOrEqual(t, o.Latency, o.Waited)
						waited++
					}
				}
				require.GreaterOrEqual(t, waited, 15, "those that were not served at once")

				seen = nil
				r, err := integration.Acquire(t.Context(), l, "k", 1, time.Millisecond)
				require.NoError(t, err)
				require.False(t, r.Allowed)
				require.Len(t, seen, 1, "a denial is reported, once")
				require.Equal(t, ratelimit.OutcomeDenied, seen[0].Outcome)
			})
		})
	}
}

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

// TestSeveralLimitsAreWaitedFor: 20 calls at once are all served, as two limits allow, each is observed once by each limit,
// and a denial that no wait in time would help is told at once.
func TestSeveralLimitsAreWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := ratelimittest.New(t)
		var mu sync.Mutex
		seen := map[string][]ratelimit.Observation{}
		observer := ratelimit.WithObserver(func(_ context.Context, o ratelimit.Observation) {
			mu.Lock()
			defer mu.Unlock()
			seen[o.Limiter] = append(seen[o.Limiter], o)
		})
		window := ratelimit.Must(ratelimit.NewFixedWindow(env.Client(), 5, time.Second, ratelimit.WithName("window"), observer))
		bucket := ratelimit.Must(ratelimit.NewTokenBucket(env.Client(), ratelimit.PerSecond(4), 4, ratelimit.WithName("bucket"), observer))
		claims := []ratelimit.Claim{ratelimit.ClaimOf(window, "k", 1), ratelimit.ClaimOf(bucket, "k", 1)}
		ready := func() bool { return true }
		began := time.Now()
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				answer, err := integration.AcquireAll(t.Context(), claims, time.Hour, ready, nil)
				require.NoError(t, err)
				require.True(t, answer.Allowed)
			})
		}
		all.Wait()
		require.GreaterOrEqual(t, time.Since(began), 4*time.Second, "(20 - 4) / 4 a second")
		for _, name := range []string{"window", "bucket"} {
			require.Len(t, seen[name], 20, name)
			waited := 0
			for _, o := range seen[name] {
				require.Equal(t, ratelimit.OutcomeAllowed, o.Outcome)
				if o.Waited > 0 {
					waited++
				}
			}
			require.Equal(t, 16, waited, name)
		}

		clear(seen)
		at := time.Now()
		answer, err := integration.AcquireAll(t.Context(), claims, time.Millisecond, ready, nil)
		require.NoError(t, err)
		require.False(t, answer.Allowed)
		require.Zero(t, time.Since(at), "longer than it may wait")
		require.Len(t, seen["bucket"], 1, "a denial is reported, once")
		require.Equal(t, ratelimit.OutcomeDenied, seen["bucket"][0].Outcome)

		short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		answer, err = integration.AcquireAll(short, claims, time.Hour, ready, nil)
		require.NoError(t, err)
		require.False(t, answer.Allowed)
		require.Zero(t, time.Since(at), "longer than its deadline")

		gone, leave := context.WithCancel(t.Context())
		time.AfterFunc(100*time.Millisecond, leave)
		_, err = integration.AcquireAll(gone, claims, time.Hour, ready, nil)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, 100*time.Millisecond, time.Since(at))

		answer, err = integration.AcquireAll(t.Context(), claims, time.Hour, func() bool { return false }, nil)
		require.NoError(t, err)
		require.False(t, answer.Allowed, "not ready to wait")
	})
}

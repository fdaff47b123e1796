package integration_test

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/integration"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// TestASpreadServesAStampede: 50 clients of five tries each, which come back when they are told to, and a permit every
// 20 ms. All come at once; without a spread, so they do again.
func TestASpreadServesAStampede(t *testing.T) {
	type try struct {
		at     time.Duration
		number int
	}
	stampede := func(spread integration.Spread) (served, attempts int) {
		clock := limitertest.NewClock()
		limiter := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.Per(1, 20*time.Millisecond), 1, ratelimit.WithClock(clock.Now)))
		tries := make([]try, 50)
		for len(tries) > 0 {
			slices.SortStableFunc(tries, func(a, b try) int { return cmp.Compare(a.at, b.at) })
			next := tries[0]
			tries = tries[1:]
			clock.Set(limitertest.Start.Add(next.at))
			r, err := limiter.TryAcquire(t.Context(), "k")
			require.NoError(t, err)
			attempts++
			if r.Allowed {
				served++
			} else if next.number++; next.number < 5 {
				next.at += spread.Of(r).RetryAfter
				tries = append(tries, next)
			}
		}
		return served, attempts
	}
	served, attempts := stampede(integration.Spread{})
	require.Equal(t, []int{5, 240}, []int{served, attempts})
	allServed, allAttempts := 0, 0
	const rounds = 100
	for seed := range uint64(rounds) {
		rng := rand.New(rand.NewPCG(seed, 0))
		served, attempts = stampede(integration.Spread{Most: 2500 * time.Millisecond, Draw: func(most time.Duration) time.Duration { return time.Duration(rng.Int64N(int64(most) + 1)) }})
		require.GreaterOrEqual(t, served, 45, "seed %d", seed)
		allServed, allAttempts = allServed+served, allAttempts+attempts
	}
	t.Logf("%.1f served by %.1f attempts", float64(allServed)/rounds, float64(allAttempts)/rounds)
	require.GreaterOrEqual(t, allServed, 49*rounds)
	require.LessOrEqual(t, allAttempts, 120*rounds)
}

func TestSpread(t *testing.T) {
	denied := ratelimit.Result{RetryAfter: time.Second, ResetAfter: 2 * time.Second}
	most := integration.Spread{Most: 3 * time.Second, Draw: func(most time.Duration) time.Duration { return most }}
	require.Equal(t, ratelimit.Result{RetryAfter: 4 * time.Second, ResetAfter: 4 * time.Second}, most.Of(denied))
	require.Equal(t, ratelimit.Result{Allowed: true}, most.Of(ratelimit.Result{Allowed: true}))
	require.Equal(t, denied, integration.NewSpread(0).Of(denied))
	for range 1000 {
		r := integration.NewSpread(time.Second).Of(denied)
		require.GreaterOrEqual(t, r.RetryAfter, time.Second)
		require.LessOrEqual(t, r.RetryAfter, 2*time.Second)
	}
}

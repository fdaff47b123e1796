package observe_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/observe"
)

var ctx = context.Background()

func denied(limiter, key string) ratelimit.Observation {
	return ratelimit.Observation{Limiter: limiter, Call: "acquire", Outcome: ratelimit.OutcomeDenied, Source: ratelimit.SourceRedis, Key: key, N: 1}
}

func newTop(t *testing.T, size int) *observe.Top {
	top, err := observe.NewTop(size)
	require.NoError(t, err)
	return top
}

// With room for two keys, c takes over b's count, as the paper says.
func TestTopByHand(t *testing.T) {
	top := newTop(t, 2)
	for _, key := range []string{"a", "a", "a", "b", "b", "c"} {
		top.Observe(ctx, denied("api", key))
	}
	require.Equal(t, []observe.TopKey{{"api", "a", 3, 0}, {"api", "c", 3, 2}}, top.Top(5))
	require.Equal(t, []observe.TopKey{{"api", "a", 3, 0}}, top.Top(1))
	require.Empty(t, top.Top(0))
	require.Empty(t, top.Top(-1))
	n, since := top.Denials()
	require.EqualValues(t, 6, n)
	top.Reset()
	require.Empty(t, top.Top(5))
	n, later := top.Denials()
	require.Zero(t, n)
	require.False(t, later.Before(since))
}

func TestTopCountsDenialsOnly(t *testing.T) {
	top := newTop(t, 10)
	for outcome := range ratelimit.OutcomeFailed + 1 {
		for _, limiter := range []string{"api", "login"} {
			o := denied(limiter, "k")
			o.Outcome = outcome
			top.Observe(ctx, o)
		}
	}
	require.Equal(t, []observe.TopKey{{"api", "k", 1, 0}, {"login", "k", 1, 0}}, top.Top(10), "one for each limiter")
}

// TestTopBounds compares random streams, even and skewed, with exact counts after each
// hundred denials: count − error <= true <= count, no error above N/size, and every key with
// more than N/size is there.
func TestTopBounds(t *testing.T) {
	rng := rand.New(rand.NewPCG(limitertest.Seed(t), 1))
	for range limitertest.Rounds(60, 20) {
		size, keys, denials := 1+rng.IntN(40), 1+rng.IntN(400), 100*(1+rng.IntN(30))
		skew := rand.NewZipf(rng, 1.01+rng.Float64(), 1+10*rng.Float64(), uint64(keys-1))
		even := rng.IntN(3) == 0
		top, exact := newTop(t, size), map[string]uint64{}
		for i := 1; i <= denials; i++ {
			key := fmt.Sprint("key ", skew.Uint64())
			if even {
				key = fmt.Sprint("key ", rng.IntN(keys))
			}
			exact[key]++
			top.Observe(ctx, denied("api", key))
			if i%100 != 0 {
				continue
			}
			got, sum := map[string]bool{}, uint64(0)
			list := top.Top(size + 1)
			require.Len(t, list, min(size, len(exact)))
			for j, k := range list {
				require.LessOrEqual(t, k.Count-k.Error, exact[k.Key], "%+v of %d", k, i)
				require.LessOrEqual(t, exact[k.Key], k.Count, "%+v of %d", k, i)
				require.LessOrEqual(t, k.Error, uint64(i/size))
				require.True(t, j == 0 || list[j-1].Count >= k.Count, "in order")
				require.False(t, got[k.Key], "twice")
				got[k.Key] = true
				sum += k.Count
			}
			require.EqualValues(t, i, sum, "the counts add up to all denials")
			for key, n := range exact {
				require.True(t, got[key] || n <= uint64(i/size), "%s: %d of %d, size %d", key, n, i, size)
			}
		}
	}
}

func TestTopConcurrently(t *testing.T) {
	top := newTop(t, 50)
	const callers, each = 8, 2000
	var all sync.WaitGroup
	for c := range callers {
		all.Go(func() {
			for i := range each {
				key := "hot"
				if i%2 == 0 {
					key = fmt.Sprint(c, " ", i)
				}
				top.Observe(ctx, denied("api", key))
				if i%500 == 0 {
					_ = top.Top(10)
					_, _ = top.Denials()
				}
			}
		})
	}
	all.Wait()
	n, _ := top.Denials()
	require.EqualValues(t, callers*each, n)
	first := top.Top(1)[0]
	require.Equal(t, "hot", first.Key)
	require.LessOrEqual(t, first.Count-first.Error, uint64(callers*each/2))
	require.GreaterOrEqual(t, first.Count, uint64(callers*each/2))
	require.LessOrEqual(t, first.Error, uint64(callers*each/50))
}

// A part of a large string does not keep all of it alive, and a known key costs nothing.
func TestTopAllocations(t *testing.T) {
	top := newTop(t, 2)
	o := denied("api", "k")
	top.Observe(ctx, o)
	require.Zero(t, testing.AllocsPerRun(100, func() { top.Observe(ctx, o) }))
}

func TestTopConfigErrors(t *testing.T) {
	for _, size := range []int{-1, 0, 1<<20 + 1} {
		_, err := observe.NewTop(size)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
		require.ErrorContains(t, err, fmt.Sprintf("NewTop: %d is not between 1 and 1048576", size))
	}
	_, err := observe.NewTop(1 << 20)
	require.NoError(t, err)
}

func BenchmarkTop(b *testing.B) {
	top, _ := observe.NewTop(1000)
	var all []ratelimit.Observation
	for i := range 10_000 {
		all = append(all, denied("api", fmt.Sprint("user:", i)))
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		top.Observe(ctx, all[i%len(all)])
	}
}

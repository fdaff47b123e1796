package ratelimit_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
)

// TestHeldIsTheSumOverAllKeys, in what observers get, after random holds and releases.
func TestHeldIsTheSumOverAllKeys(t *testing.T) {
	random := model.Seeded(limitertest.Seed(t))
	var seen []ratelimit.Observation
	l := ratelimit.Must(ratelimit.NewLocalInFlight(5, ratelimit.WithObserver(func(_ context.Context, o ratelimit.Observation) { seen = append(seen, o) })))
	held, denied := map[string]int{}, 0
	var open []*ratelimit.Hold
	var keys []string
	var sizes []int
	for range 2000 {
		if len(open) > 0 && random.IntN(2) == 0 {
			at := random.IntN(len(open))
			require.NoError(t, open[at].Release(ctx))
			require.NoError(t, open[at].Release(ctx), "which releases nothing more")
			held[keys[at]] -= sizes[at]
			last := len(open) - 1
			open[at], keys[at], sizes[at] = open[last], keys[last], sizes[last]
			open, keys, sizes = open[:last], keys[:last], sizes[:last]
		} else {
			key, n := fmt.Sprint(random.IntN(10)), 1+random.IntN(4)
			h, r, err := l.TryAcquireN(ctx, key, n)
			require.NoError(t, err)
			require.Equal(t, held[key]+n <= 5, r.Allowed)
			if denied++; r.Allowed {
				denied--
				held[key] += n
				open, keys, sizes = append(open, h), append(keys, key), append(sizes, n)
			}
		}
		sum := 0
		for _, n := range held {
			sum += n
		}
		require.Equal(t, sum, seen[len(seen)-1].Held)
	}
	require.Greater(t, denied, 30)
}

// BenchmarkObservedLocalInFlight: a hold and its release beside holds of so many other keys.
func BenchmarkObservedLocalInFlight(b *testing.B) {
	for _, others := range []int{0, 100_000} {
		b.Run(fmt.Sprint(others, " others"), func(b *testing.B) {
			l := ratelimit.Must(ratelimit.NewLocalInFlight(5, ratelimit.WithObserver(func(context.Context, ratelimit.Observation) {})))
			for i := range others {
				_, _, _ = l.TryAcquire(ctx, fmt.Sprint(i))
			}
			for b.Loop() {
				h, _, err := l.TryAcquire(ctx, "k")
				if err != nil {
					b.Fatal(err)
				}
				_ = h.Release(ctx)
			}
		})
	}
}

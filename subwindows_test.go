package ratelimit_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
)

// TestASlidingWindowAllowsNearlyItsLimit: under a steady demand of twice the limit, a
// sliding window as it comes allows 97 % of its limit, whatever its window.
func TestASlidingWindowAllowsNearlyItsLimit(t *testing.T) {
	raceflag.SkipSequential(t)
	t.Parallel()
	const limit = 50
	windows := limitertest.Rounds(20, 10)
	for _, window := range []time.Duration{time.Millisecond, 7 * time.Millisecond, 999 * time.Millisecond, time.Second, 24 * time.Hour} {
		for _, storage := range []ratelimit.Storage{ratelimit.Hash, ratelimit.List} {
			s := limitertest.OnMiniredis(t)
			l := ratelimit.Must(ratelimit.NewSlidingWindow(s.Client, limit, window, ratelimit.WithStorage(storage)))
			allowed := 0
			for i := range 2 * limit * (windows + 2) {
				s.Move(limitertest.Start.Add(window * time.Duration(i) / (2 * limit)))
				if must(t)(l.TryAcquire(ctx, "k")).Allowed && i >= 4*limit {
					allowed++
				}
			}
			require.GreaterOrEqual(t, allowed*100, windows*limit*97, "%v per %v", storage, window)
			require.LessOrEqual(t, allowed, windows*limit)
		}
	}
}

// TestASlidingWindowIsDividedByDefault whatever the whole milliseconds of its window.
func TestASlidingWindowIsDividedByDefault(t *testing.T) {
	for ms := range 1000 {
		_, err := ratelimit.NewSlidingWindow(limitertest.Offline(t), 1, time.Duration(ms+1)*time.Millisecond)
		require.NoError(t, err)
	}
}

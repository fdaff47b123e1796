package ratelimit_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/exact"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
)

// TestMoreThanTheBurst can be reserved, and is due when as many would have come. 9 of 3 a second and 3 at once: after 2 s.
func TestMoreThanTheBurst(t *testing.T) {
	const us = time.Microsecond
	eachShaper(t, func(t *testing.T, s *limitertest.Stage, l ratelimit.Reserver, name string) {
		_, err := l.Reserve(ctx, "k", 9, 2*time.Second-us)
		require.Equal(t, &ratelimit.WaitError{Key: "k", Wait: 2 * time.Second}, waitError(t, err))
		require.Equal(t, "none does not expire", s.Look(t, shaperKeys[name]))
		r := reserve(t, l, 9, 2*time.Second)
		require.Equal(t, 2*time.Second, r.Delay())
		require.Equal(t, ratelimit.Result{Allowed: true, Limit: 3, Window: time.Second, ResetAfter: 3 * time.Second}, r.Result())
		one := 2_333_334 * us // when one more fits
		if name == "TokenBucket stepped" {
			one = 3 * time.Second
		}
		require.Equal(t, one, must(t)(l.TryAcquire(ctx, "k")).RetryAfter)
		require.NoError(t, r.Cancel(ctx))
		require.Equal(t, 3, must(t)(l.Peek(ctx, "k")).Remaining)
		_, err = l.Reserve(ctx, "k", exact.Permits+1, time.Hour)
		require.ErrorIs(t, err, ratelimit.ErrTooMuchDebt)
		_, err = ratelimit.WaitN(ctx, l, "k", 4)
		require.ErrorIs(t, err, ratelimit.ErrExceedsLimit, "a wait takes no more than there can be at once")
	})
}

// TestMoreThanTheBurstInMemory is the same, and no interval has more than the largest reservation and what the rate adds:
// random calls at random instants, each reservation used when it is due.
func TestMoreThanTheBurstInMemory(t *testing.T) {
	now := limitertest.Start
	l := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(4), 4, ratelimit.WithClock(func() time.Time { return now })))
	_, err := l.Reserve(ctx, "one", 12, 2*time.Second-1)
	require.Equal(t, &ratelimit.WaitError{Key: "one", Wait: 2 * time.Second}, waitError(t, err))
	r, err := l.Reserve(ctx, "one", 12, 2*time.Second)
	require.NoError(t, err)
	require.Equal(t, ratelimit.Result{Allowed: true, Limit: 4, Window: time.Second, ResetAfter: 3 * time.Second}, r.Result())
	_, err = l.Reserve(ctx, "one", exact.Permits+1, time.Hour)
	require.ErrorIs(t, err, ratelimit.ErrTooMuchDebt)
	_, err = ratelimit.WaitN(ctx, l, "one", 5)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)

	rng := model.Seeded(limitertest.Seed(t))
	for round := range 200 {
		type use struct {
			at time.Duration
			n  int
		}
		var uses []use
		key, most, began := fmt.Sprint(round), 4, now
		for range 60 {
			now = now.Add(time.Duration(rng.IntN(3)) * time.Duration(rng.IntN(8)) * 125 * time.Millisecond) // no fraction of a permit is rounded
			n := 1 + rng.IntN(3)
			if rng.IntN(3) > 0 {
				if must(t)(l.TryAcquireN(ctx, key, n)).Allowed {
					uses = append(uses, use{now.Sub(began), n})
				}
				continue
			}
			if rng.IntN(2) == 0 {
				n = 1 + rng.IntN(20)
			}
			reserved, err := ratelimit.ReserveBy(func() time.Time { return now }, l, key, n, time.Duration(rng.IntN(8))*time.Second)
			if err == nil {
				most = max(most, n)
				uses = append(uses, use{now.Sub(began) + reserved.Delay(), n})
			}
		}
		for _, from := range uses {
			for _, to := range uses {
				if to.at < from.at {
					continue
				}
				sum := 0
				for _, u := range uses {
					if u.at >= from.at && u.at <= to.at {
						sum += u.n
					}
				}
				require.LessOrEqual(t, float64(sum), float64(most)+4*(to.at-from.at).Seconds(), "%v", uses)
			}
		}
	}
}

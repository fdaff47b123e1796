package ratelimit_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
)

// TestALookAtHoldsAfterAClockStep: random holds of several leases while the server's clock steps back. A look says what a denied call
// says, alone and beside another limiter, and the RetryAfter of the denial is exact.
func TestALookAtHoldsAfterAClockStep(t *testing.T) {
	s := limitertest.OnHeldRedis(t)
	rng := model.Seeded(limitertest.Seed(t))
	leases := []time.Duration{time.Second, 10 * time.Second, time.Minute}
	denied, exact := 0, 0
	span := func(most time.Duration) time.Duration {
		return time.Duration(rng.Int64N(int64(most))).Truncate(time.Microsecond)
	}
	for range limitertest.Rounds(600, 60) {
		s.Wipe(t)
		s.Move(limitertest.Start)
		limit := 1 + rng.IntN(4)
		var all []*ratelimit.InFlight
		for range 1 + rng.IntN(3) {
			all = append(all, newInFlight(t, s, limit+rng.IntN(4)/3, leases[rng.IntN(3)]))
		}
		bucket := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(1000), 1000))
		for range 30 {
			switch rng.IntN(8) {
			case 0:
				s.Advance(-span(90 * time.Second))
			case 1, 2, 3:
				s.Advance(span(4 * time.Second))
			}
			claims := []ratelimit.Claim{ratelimit.ClaimHold(all[rng.IntN(len(all))], "k", min(1+rng.IntN(2), limit))}
			if rng.IntN(3) == 0 {
				claims = append(claims, ratelimit.ClaimOf(bucket, "k", 1))
			}
			look, err := ratelimit.Look(ctx, claims...)
			require.NoError(t, err)
			call, err := ratelimit.TryAcquireAll(ctx, claims...)
			require.NoError(t, err)
			require.Equal(t, call.Allowed, look.Allowed)
			if call.Allowed {
				if rng.IntN(3) == 0 {
					require.NoError(t, call.Release(ctx))
				}
				continue
			}
			denied++
			require.Equal(t, call, look)
			if rng.IntN(2) == 0 {
				exact++
				s.Advance(call.RetryAfter - time.Microsecond)
				early, err := ratelimit.Look(ctx, claims...)
				require.NoError(t, err)
				require.False(t, early.Allowed)
				s.Advance(time.Microsecond)
				due, err := ratelimit.Look(ctx, claims...)
				require.NoError(t, err)
				require.True(t, due.Allowed)
			}
		}
	}
	t.Logf("%d denied, of %d the instant", denied, exact)
}

// TestAShortLeaseBetweenLongOnesAfterAClockStep ends first, although Redis has it behind a long one.
func TestAShortLeaseBetweenLongOnesAfterAClockStep(t *testing.T) {
	s := limitertest.OnHeldRedis(t)
	long, short := newInFlight(t, s, 3, 10*time.Second), newInFlight(t, s, 3, time.Second)
	_, _ = take(t, long, 1)
	s.Advance(9500 * time.Millisecond)
	_, _ = take(t, short, 1)
	_, _ = take(t, long, 1)
	s.Advance(-time.Minute)
	want := ratelimit.Result{Limit: 3, Window: 10 * time.Second, RetryAfter: time.Second, ResetAfter: 10 * time.Second}
	require.Equal(t, want, must(t)(long.Peek(ctx, "k")))
	_, r := take(t, long, 1)
	require.Equal(t, want, r)
	s.Advance(time.Second)
	_, r = take(t, long, 1)
	require.True(t, r.Allowed)
}

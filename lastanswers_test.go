package ratelimit_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// following is a bucket of n in this process that follows a primary's answers, by the stage's clock.
func following(s *limitertest.Stage, n int) *ratelimit.LocalTokenBucket {
	return ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerHour(1), n, ratelimit.WithLastAnswers(),
		ratelimit.WithClock(func() time.Time { return s.Now })))
}

// TestAnOutageBeginsWithTheLastAnswer, and not with less, however the primary has come by its permits.
func TestAnOutageBeginsWithTheLastAnswer(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	bucket := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerHour(1), 100))
	begins := func(l *ratelimit.LocalTokenBucket) int { return must(t)(l.Peek(ctx, "k")).Remaining }
	fresh := func() (*ratelimit.Fallback, *ratelimit.LocalTokenBucket) {
		s.Wipe(t)
		local := following(s, 100)
		return ratelimit.Must(ratelimit.NewFallback(bucket, local)), local
	}

	t.Run("a settlement", func(t *testing.T) {
		f, local := fresh()
		ticket, _, err := f.Estimate(ctx, "k", 96)
		require.NoError(t, err)
		require.Equal(t, 4, begins(local))
		require.NoError(t, ticket.Settle(ctx, 6))
		require.Equal(t, 94, begins(local), "no answer has come since")
		require.Equal(t, 93, must(t)(f.TryAcquire(ctx, "k")).Remaining)
		require.Equal(t, 93, begins(local))
		ticket, _, err = f.Estimate(ctx, "k", 1)
		require.NoError(t, err)
		require.NoError(t, ticket.Settle(ctx, 50))
		require.Equal(t, 43, begins(local), "more was used")
		require.Equal(t, 43, must(t)(f.Peek(ctx, "k")).Remaining)
	})
	t.Run("a settlement that fails", func(t *testing.T) {
		f, local := fresh()
		ticket, _, err := f.Estimate(ctx, "k", 96)
		require.NoError(t, err)
		ended, cancel := context.WithCancel(ctx)
		cancel()
		require.ErrorIs(t, ticket.Settle(ended, 6), context.Canceled)
		require.Equal(t, 4, begins(local))
	})
	t.Run("claims", func(t *testing.T) {
		f, local := fresh()
		r := acquire(t, ratelimit.ClaimOf(f, "k", 60).Estimate(), ratelimit.ClaimOf(f, "j", 1))
		require.Equal(t, 40, begins(local))
		require.NoError(t, r.Parts[0].Ticket.Settle(ctx, 10))
		require.Equal(t, 90, begins(local))
	})
	t.Run("a cancelled reservation", func(t *testing.T) {
		f, local := fresh()
		_, err := f.TryAcquireN(ctx, "k", 50)
		require.NoError(t, err)
		reservation, err := f.Reserve(ctx, "k", 60, 24*time.Hour)
		require.NoError(t, err)
		require.Zero(t, begins(local))
		require.NoError(t, reservation.Cancel(ctx))
		require.Equal(t, 60, begins(local), "of which 10 were promised for later")
		require.Equal(t, 50, must(t)(f.Peek(ctx, "k")).Remaining)
		require.Equal(t, 50, begins(local))
	})
	t.Run("a reset elsewhere", func(t *testing.T) {
		f, local := fresh()
		must(t)(f.TryAcquireN(ctx, "k", 100))
		require.NoError(t, bucket.Reset(ctx, "k"))
		must(t)(f.TryAcquire(ctx, "k"))
		require.Equal(t, 99, begins(local))
	})
	t.Run("a new window", func(t *testing.T) {
		s.Wipe(t)
		local := following(s, 10)
		f := ratelimit.Must(ratelimit.NewFallback(ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 10, time.Minute)), local))
		must(t)(f.TryAcquireN(ctx, "k", 10))
		require.Zero(t, begins(local))
		s.Advance(time.Minute)
		must(t)(f.TryAcquire(ctx, "k"))
		require.Equal(t, 9, begins(local))
	})
	t.Run("a raised limit", func(t *testing.T) {
		s.Wipe(t)
		limit, local := 10, following(s, 10)
		plans := ratelimit.Must(ratelimit.NewChoice(func(context.Context, string) (ratelimit.Limiter, error) {
			return ratelimit.NewTokenBucket(s.Client, ratelimit.PerHour(1), limit)
		}))
		f := ratelimit.Must(ratelimit.NewFallback(plans, local))
		must(t)(f.TryAcquireN(ctx, "k", 10))
		require.Zero(t, begins(local))
		limit = 100
		require.Equal(t, 89, must(t)(f.TryAcquire(ctx, "k")).Remaining)
		require.Equal(t, 8, begins(local), "the same share, rounded down")
	})
	t.Run("what it has allowed stays counted", func(t *testing.T) {
		s.Wipe(t)
		down, local := false, following(s, 10)
		f := ratelimit.Must(ratelimit.NewFallback(downAtTimes{bucket, &down}, local))
		must(t)(f.TryAcquireN(ctx, "k", 50))
		require.Equal(t, 5, begins(local))
		down = true
		require.True(t, must(t)(f.TryAcquireN(ctx, "k", 3)).Allowed)
		down = false
		require.NoError(t, bucket.Reset(ctx, "k"))
		must(t)(f.TryAcquire(ctx, "k"))
		require.Equal(t, 7, begins(local), "3 of 10 were allowed here, and 1 of 100 by the primary")
	})
}

// TestABucketInsideOfTheSecondaryFollowsToo.
func TestABucketInsideOfTheSecondaryFollowsToo(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	bucket := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerHour(1), 100))
	for name, around := range map[string]func(l ratelimit.Limiter) ratelimit.Limiter{
		"a Choice": func(l ratelimit.Limiter) ratelimit.Limiter {
			return ratelimit.Must(ratelimit.NewChoice(func(context.Context, string) (ratelimit.Limiter, error) { return l, nil }))
		},
		"a Fallback": func(l ratelimit.Limiter) ratelimit.Limiter {
			return ratelimit.Must(ratelimit.NewFallback(ratelimit.DenyAll(), l))
		},
	} {
		s.Wipe(t)
		local := following(s, 10)
		f := ratelimit.Must(ratelimit.NewFallback(bucket, around(local)))
		must(t)(f.TryAcquireN(ctx, "k", 30))
		require.Equal(t, 7, must(t)(local.Peek(ctx, "k")).Remaining, name)
		acquire(t, ratelimit.ClaimOf(f, "k", 30), ratelimit.ClaimOf(f, "j", 1))
		require.Equal(t, 4, must(t)(local.Peek(ctx, "k")).Remaining, name)
	}
	_, err := ratelimit.NewFallback(bucket, ratelimit.Must(ratelimit.NewAll(following(s, 1), following(s, 2))))
	require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
	require.ErrorContains(t, err, "put a Fallback around each limiter")
	_, err = ratelimit.NewFallback(bucket, ratelimit.Must(ratelimit.NewAll(localBucket(1), localBucket(2))))
	require.NoError(t, err)
}

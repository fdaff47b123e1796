package ratelimit_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// TestAlignedStepsByHand: two tokens at 250 ms past each second, of a burst of 5.
func TestAlignedStepsByHand(t *testing.T) {
	const ms, us = time.Millisecond, time.Microsecond
	limitertest.Everywhere(t, func(t *testing.T, s *limitertest.Stage) {
		s.Wipe(t)
		l := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(2), 5,
			append(s.Opts, ratelimit.WithRefillEvery(time.Second), ratelimit.WithAlignment(250*ms-time.Hour))...))
		second := s.Now.Truncate(time.Second).Add(time.Second)
		for _, row := range []struct {
			at                     time.Duration
			n                      int // 0: a look
			allowed                bool
			remaining              int
			retryAfter, resetAfter time.Duration
		}{
			{249_999 * us, 5, true, 0, 0, 2*time.Second + us}, // full until just before a step
			{249_999 * us, 1, false, 0, us, 2*time.Second + us},
			{250 * ms, 3, false, 2, time.Second, 2 * time.Second},
			{250 * ms, 1, true, 1, 0, 2 * time.Second},
			{1_100 * ms, 0, true, 1, 0, 1_150 * ms},
			{1_250 * ms, 3, true, 0, 0, 3 * time.Second},
			{5_250 * ms, 0, true, 5, 0, 0}, // three steps fill it; a longer pause gives no more
			{5_250 * ms, 1, true, 4, 0, time.Second},
			{6_249_999 * us, 4, true, 0, 0, 2*time.Second + us},
			{6_250 * ms, 2, true, 0, 0, 3 * time.Second},
			{6_250 * ms, 1, false, 0, time.Second, 3 * time.Second},
		} {
			s.Move(second.Add(row.at))
			want := ratelimit.Result{Allowed: row.allowed, Limit: 5, Window: 3 * time.Second, Remaining: row.remaining, RetryAfter: row.retryAfter, ResetAfter: row.resetAfter}
			if row.n == 0 {
				require.Equal(t, want, must(t)(l.Peek(ctx, "k")), "a look at %v", row.at)
				continue
			}
			require.Equal(t, want, must(t)(l.TryAcquireN(ctx, "k", row.n)), "%d at %v", row.n, row.at)
		}
	})
}

// TestAnAlignedStepCountsOnceWhenTheClockStepsBack: its tokens are missing until it comes again, after a denial and
// after a take. What has been taken stays taken, and no wait is longer than the bucket's and a step.
func TestAnAlignedStepCountsOnceWhenTheClockStepsBack(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	l := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(2), 4, ratelimit.WithRefillEvery(time.Second), ratelimit.WithAlignment(0)))
	second := s.Now.Truncate(time.Second).Add(time.Second)
	for _, denied := range []bool{true, false} {
		s.Wipe(t)
		s.Move(second.Add(-time.Millisecond))
		require.True(t, must(t)(l.TryAcquireN(ctx, "k", 4)).Allowed)
		s.Move(second.Add(time.Millisecond))
		n := 2
		if !denied {
			n = 1
		}
		require.True(t, must(t)(l.TryAcquireN(ctx, "k", n)).Allowed)
		s.Move(second.Add(-10 * time.Second))
		// The step comes again after a second, and gives nothing; then it takes one or two more.
		require.Equal(t, ratelimit.Result{Limit: 4, Window: 2 * time.Second, RetryAfter: 2 * time.Second, ResetAfter: 3 * time.Second},
			must(t)(l.TryAcquireN(ctx, "k", 2)), denied)
		s.Move(second.Add(-9 * time.Second))
		require.Equal(t, 2-n, must(t)(l.Peek(ctx, "k")).Remaining, denied)
		s.Move(second.Add(-8 * time.Second))
		require.Equal(t, 4-n, must(t)(l.Peek(ctx, "k")).Remaining, denied)
	}
}

// TestAnAlignedBucketTakesOverFromAnother: what was used stays used, and nobody gets a step for the time before the
// state of the other.
func TestAnAlignedBucketTakesOverFromAnother(t *testing.T) {
	const ms = time.Millisecond
	s := limitertest.OnMiniredis(t)
	build := func(per int, o ...ratelimit.Option) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerMinute(per), 60, o...))
	}
	aligned := build(60, ratelimit.WithRefillEvery(time.Minute), ratelimit.WithAlignment(0))
	minute := s.Now.Truncate(time.Minute).Add(time.Minute)
	for about, other := range map[string]ratelimit.Limiter{
		"even":                    build(60),
		"even, ten times as fast": build(600),
		"in steps":                build(60, ratelimit.WithRefillEvery(time.Minute)),
	} {
		s.Wipe(t)
		s.Move(minute.Add(59 * time.Second))
		require.True(t, must(t)(aligned.TryAcquireN(ctx, "k", 60)).Allowed, about)
		require.Zero(t, must(t)(other.Peek(ctx, "k")).Remaining, "%s: the other restores from now on", about)
		s.Move(minute.Add(59*time.Second + 50*ms))
		require.Zero(t, must(t)(other.Peek(ctx, "k")).Remaining, about)

		s.Wipe(t)
		require.True(t, must(t)(other.TryAcquireN(ctx, "k", 60)).Allowed, about)
		require.Equal(t, 0, must(t)(aligned.Peek(ctx, "k")).Remaining, about)
		s.Move(minute.Add(time.Minute))
		require.Equal(t, 60, must(t)(aligned.Peek(ctx, "k")).Remaining, "%s: the aligned one has its step", about)
	}
}

// TestAnAlignedBucketBesideAPromise: permits promised to others come at the slower rate, and an aligned one that is faster
// counts its steps back from the last of them.
func TestAnAlignedBucketBesideAPromise(t *testing.T) {
	const ms = time.Millisecond
	s := limitertest.OnMiniredis(t)
	slow := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(1), 2))
	fast := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(4), 8, ratelimit.WithRefillEvery(time.Second), ratelimit.WithAlignment(0)))
	begin := s.Now.Truncate(time.Second).Add(1400 * ms)
	s.Move(begin)
	require.True(t, must(t)(slow.TryAcquireN(ctx, "k", 2)).Allowed)
	_, err := slow.Reserve(ctx, "k", 2, time.Minute)
	require.NoError(t, err)
	// Two are missing when they are due, in two seconds, and so six after the step 600 ms from now.
	require.Equal(t, 600*ms, must(t)(fast.TryAcquire(ctx, "k")).RetryAfter)
	require.Equal(t, 1600*ms, must(t)(fast.TryAcquireN(ctx, "k", 6)).RetryAfter)
	s.Move(begin.Add(600*ms - time.Microsecond))
	require.Equal(t, time.Microsecond, must(t)(fast.TryAcquire(ctx, "k")).RetryAfter)
	s.Move(begin.Add(600 * ms))
	require.Equal(t, 1, must(t)(fast.TryAcquire(ctx, "k")).Remaining)
}

// TestASliceOfAnAlignedBucket: at its end as much is missing as the steps until then restore, and the state says when that
// is, after its own instant.
func TestASliceOfAnAlignedBucket(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	l := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(4), 40, ratelimit.WithRefillEvery(time.Second), ratelimit.WithAlignment(0)))
	s.Move(s.Now.Truncate(time.Second).Add(1400 * time.Millisecond))
	_, err := ratelimit.DecideList(l, "k", []byte("5d5/700000/700000/77"))
	require.NoError(t, err)
	require.Equal(t, fmt.Sprintf("%016d/9+0/250000/1/1000000~700000,77,0,40", s.Now.UnixMicro()), s.Admin.Get(ctx, bucketKey).Val())
	s.Advance(300 * time.Millisecond)
	require.True(t, must(t)(l.TryAcquire(ctx, "k")).Allowed)
	require.Equal(t, fmt.Sprintf("%016d/10+0/250000/1/1000000~400000,77,300000,9", s.Now.UnixMicro()), s.Admin.Get(ctx, bucketKey).Val())
}

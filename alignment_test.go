package ratelimit_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

func TestAChangedAlignmentGivesNoNewQuota(t *testing.T) {
	limitertest.Everywhere(t, func(t *testing.T, s *limitertest.Stage) {
		s.Wipe(t)
		build := func(offset time.Duration) ratelimit.Limiter {
			l, err := ratelimit.NewFixedWindow(s.Client, 3, time.Minute, ratelimit.WithOptions(s.Opts...), ratelimit.WithAlignment(offset))
			require.NoError(t, err)
			return l
		}
		now := time.Duration(limitertest.Start.UnixMicro()) * time.Microsecond % time.Minute
		old := build(now - 30*time.Second) // half of its window is over
		must(t)(old.TryAcquireN(ctx, "k", 3))
		changed := build(now - 15*time.Second)
		r := must(t)(changed.TryAcquire(ctx, "k"))
		require.Equal(t, ratelimit.Result{Limit: 3, Window: time.Minute, RetryAfter: 30 * time.Second, ResetAfter: 30 * time.Second}, r,
			"the window that is used up lasts to its end")
		s.Advance(30 * time.Second)
		r = must(t)(changed.TryAcquireN(ctx, "k", 3))
		require.Equal(t, ratelimit.Result{Allowed: true, Limit: 3, Window: time.Minute, ResetAfter: 15 * time.Second}, r)
	})
}

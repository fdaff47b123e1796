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
			l, err := ratelimit.NewFixedWindow(s.Client, 3, time.Minute, append(s.Opts, ratelimit.WithAlignment(offset))...)
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

// TestAlignedWindowKeepsItsCountWhenTheClockStepsBackOverItsStart, and so two
// hosts whose clocks differ slightly do not reopen it alternately.
func TestAlignedWindowKeepsItsCountWhenTheClockStepsBackOverItsStart(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	h := limitertest.NewClock()
	for name, l := range map[string]ratelimit.Limiter{
		"server": ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 5, time.Second, ratelimit.WithAlignment(0))),
		"caller": ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 5, time.Second, ratelimit.WithAlignment(0), ratelimit.WithClock(h.Now), ratelimit.WithPrefix("c"))),
	} {
		allowed := 0
		for i := range 40 {
			at := limitertest.Start.Add(time.Duration(i%2*2-1) * time.Millisecond) // 1 ms before and after
			s.Move(at)
			h.Set(at)
			if must(t)(l.TryAcquire(ctx, name)).Allowed {
				allowed++
			}
		}
		require.LessOrEqual(t, allowed, 10, name)
		require.Greater(t, allowed, 5, name)
	}
}

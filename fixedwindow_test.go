package ratelimit_test

import (
	"fmt"
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

// TestAlignedRulesByClocksApartDoNotReopenEachOthersWindows: an hour is longer ago for a rule of minutes than its window,
// and the minute that has just ended is over for one clock and not for the other.
func TestAlignedRulesByClocksApartDoNotReopenEachOthersWindows(t *testing.T) {
	limitertest.Everywhere(t, func(t *testing.T, s *limitertest.Stage) {
		s.Wipe(t)
		hour := limitertest.Start.Truncate(time.Hour)
		minute := hour.Add(7 * time.Minute)
		s.Move(minute.Add(24 * time.Hour))
		hour, minute = hour.Add(24*time.Hour), minute.Add(24*time.Hour)
		build := func(limit int, window time.Duration, reads time.Time) ratelimit.Limiter {
			return ratelimit.Must(ratelimit.NewFixedWindow(s.Client, limit, window, ratelimit.WithAlignment(0),
				ratelimit.WithClock(func() time.Time { return reads }), ratelimit.WithMaxSkew(time.Second)))
		}
		hourly := build(2, time.Hour, minute.Add(10*time.Millisecond))
		minutely := build(1, time.Minute, minute.Add(-10*time.Millisecond))
		var allowed []bool
		for range 4 {
			allowed = append(allowed, must(t)(hourly.TryAcquire(ctx, "k")).Allowed, must(t)(minutely.TryAcquire(ctx, "k")).Allowed)
		}
		require.Equal(t, []bool{true, true, true, false, true, false, false, false}, allowed)
		left := hour.Add(time.Hour).Sub(minute) - 10*time.Millisecond
		require.Equal(t, ratelimit.Result{Limit: 2, Window: time.Hour, RetryAfter: left, ResetAfter: left},
			must(t)(hourly.TryAcquire(ctx, "k")), "the rest of the hour")
		require.Equal(t, ratelimit.Result{Limit: 1, Window: time.Minute, RetryAfter: time.Minute + 10*time.Millisecond,
			ResetAfter: time.Minute + 10*time.Millisecond}, must(t)(minutely.TryAcquire(ctx, "k")))
	})
}

// TestFixedWindowAfterTheRestOfAnAlignedOne, which is not always whole milliseconds, as TTLs are.
func TestFixedWindowAfterTheRestOfAnAlignedOne(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	l := ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 3, time.Second))
	held := fmt.Sprintf("1/%d/1000500", s.Now.UnixMicro()-999_500)
	require.NoError(t, s.Admin.Set(ctx, "ratelimit:default:fixedwindow{k}", held, 2*time.Millisecond).Err())
	require.Equal(t, ratelimit.Result{Allowed: true, Limit: 3, Window: time.Second, Remaining: 1, ResetAfter: time.Millisecond},
		must(t)(l.TryAcquire(ctx, "k")))
}

// TestAFirstPeriodThatIsPartlyOver: docs/from/bucket4j.md gives a new account what is left of its first aligned window.
func TestAFirstPeriodThatIsPartlyOver(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	hourly := ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 100, time.Hour, ratelimit.WithAlignment(0)))
	now := s.Now.Truncate(time.Hour).Add(time.Hour + 45*time.Minute)
	s.Move(now)
	charged, err := hourly.Charge(ctx, "account", int(100*now.Sub(now.Truncate(time.Hour))/time.Hour))
	require.NoError(t, err)
	require.Equal(t, ratelimit.Result{Allowed: true, Limit: 100, Window: time.Hour, Remaining: 25, ResetAfter: 15 * time.Minute}, charged)
	for _, left := range []int{25, 100} { // until 13:00, and from then on
		r, err := hourly.TryAcquireN(ctx, "account", left)
		require.NoError(t, err)
		require.True(t, r.Allowed)
		r, err = hourly.TryAcquire(ctx, "account")
		require.NoError(t, err)
		require.False(t, r.Allowed)
		s.Advance(r.RetryAfter)
	}
	require.Equal(t, now.Add(75*time.Minute), s.Now)
}

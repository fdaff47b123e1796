package ratelimit_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
)

func calendarWindow(t *testing.T, s *limitertest.Stage, limit int, calendar ratelimit.Calendar) ratelimit.Limiter {
	l, err := ratelimit.NewCalendarWindow(s.Client, limit, calendar, s.Opts...)
	require.NoError(t, err)
	return l
}

// A day of 23 hours, with each field, from the first permit to the next day.
func TestADayOf23Hours(t *testing.T) {
	limitertest.Everywhere(t, func(t *testing.T, s *limitertest.Stage) {
		const h, us = time.Hour, time.Microsecond
		s.Wipe(t)
		s.Move(time.Date(2026, 3, 28, 23, 0, 0, 0, time.UTC)) // midnight in Berlin; clocks are set two hours later
		l := calendarWindow(t, s, 2, ratelimit.Daily(limitertest.Zone("Europe/Berlin")))
		must := must(t)
		require.Equal(t, ratelimit.Result{Allowed: true, Limit: 2, Window: 23 * h, Remaining: 2}, must(l.Peek(ctx, "k")))
		require.Equal(t, ratelimit.Result{Allowed: true, Limit: 2, Window: 23 * h, Remaining: 1, ResetAfter: 23 * h}, must(l.TryAcquire(ctx, "k")))
		require.Equal(t, ratelimit.Result{Limit: 2, Window: 23 * h, Remaining: 1, RetryAfter: 23 * h, ResetAfter: 23 * h}, must(l.TryAcquireN(ctx, "k", 2)))
		s.Advance(5 * h)
		require.Equal(t, ratelimit.Result{Allowed: true, Limit: 2, Window: 23 * h, ResetAfter: 18 * h}, must(l.TryAcquire(ctx, "k")))
		s.Advance(18*h - us)
		require.Equal(t, ratelimit.Result{Limit: 2, Window: 23 * h, RetryAfter: us, ResetAfter: us}, must(l.TryAcquire(ctx, "k")))
		require.Equal(t, ratelimit.Result{Limit: 2, Window: 23 * h, RetryAfter: us, ResetAfter: us}, must(l.Peek(ctx, "k")))
		s.Advance(us)
		require.Equal(t, ratelimit.Result{Allowed: true, Limit: 2, Window: 24 * h, Remaining: 2}, must(l.Peek(ctx, "k")))
		require.Equal(t, ratelimit.Result{Allowed: true, Limit: 2, Window: 24 * h, ResetAfter: 24 * h}, must(l.TryAcquireN(ctx, "k", 2)))
	})
}

// What was used carries over to another limit and to another calendar.
func TestAChangedCalendarInheritsWhatWasUsed(t *testing.T) {
	const h, day = time.Hour, 24 * time.Hour
	noon := time.Date(2026, 11, 18, 12, 0, 0, 0, time.UTC) // a Wednesday
	daily, weekly, monthly := ratelimit.Daily(time.UTC), ratelimit.Weekly(time.Monday, time.UTC), ratelimit.Monthly(1, time.UTC)
	type rule struct {
		limit    int
		calendar ratelimit.Calendar
	}
	for _, test := range []struct {
		about         string
		before, after rule
		use           int
		wait          time.Duration
		left          ratelimit.Result // of a Peek after that, and of another when all are taken
		taken         time.Duration    // the ResetAfter then
	}{
		{"a larger limit", rule{10, daily}, rule{100, daily}, 10, h,
			ratelimit.Result{Allowed: true, Limit: 100, Window: day, Remaining: 90, ResetAfter: 11 * h}, 11 * h},
		{"a smaller limit", rule{100, daily}, rule{10, daily}, 8, h,
			ratelimit.Result{Allowed: true, Limit: 10, Window: day, Remaining: 2, ResetAfter: 11 * h}, 11 * h},
		{"a limit smaller than what was used", rule{100, daily}, rule{10, daily}, 50, h,
			ratelimit.Result{Limit: 10, Window: day, RetryAfter: 11 * h, ResetAfter: 11 * h}, 0},
		{"from days to months: what was used today counts, and when a permit is taken until the month ends", rule{10, daily}, rule{100, monthly}, 10, h,
			ratelimit.Result{Allowed: true, Limit: 100, Window: 30 * day, Remaining: 90, ResetAfter: 11 * h}, 12*day + 11*h},
		{"from days to months, on the next day", rule{10, daily}, rule{100, monthly}, 10, 12 * h,
			ratelimit.Result{Allowed: true, Limit: 100, Window: 30 * day, Remaining: 100}, 12 * day},
		{"from months to days: what was used this month counts today", rule{100, monthly}, rule{10, daily}, 7, h,
			ratelimit.Result{Allowed: true, Limit: 10, Window: day, Remaining: 3, ResetAfter: 11 * h}, 11 * h},
		{"from months to days, more than a day's limit", rule{100, monthly}, rule{10, daily}, 70, h,
			ratelimit.Result{Limit: 10, Window: day, RetryAfter: 11 * h, ResetAfter: 11 * h}, 0},
		{"from months to days, on the next day", rule{100, monthly}, rule{10, daily}, 70, 12 * h,
			ratelimit.Result{Allowed: true, Limit: 10, Window: day, Remaining: 10}, day},
		{"from weeks to months", rule{100, weekly}, rule{200, monthly}, 100, 4 * day,
			ratelimit.Result{Allowed: true, Limit: 200, Window: 30 * day, Remaining: 100, ResetAfter: 12 * h}, 8*day + 12*h},
		{"another billing day, before it", rule{10, monthly}, rule{10, ratelimit.Monthly(20, time.UTC)}, 4, day,
			ratelimit.Result{Allowed: true, Limit: 10, Window: 31 * day, Remaining: 6, ResetAfter: 12 * h}, 12 * h},
		{"another billing day, after it", rule{10, monthly}, rule{10, ratelimit.Monthly(20, time.UTC)}, 10, day + 12*h,
			ratelimit.Result{Allowed: true, Limit: 10, Window: 30 * day, Remaining: 10}, 30 * day},
		{"another zone", rule{10, daily}, rule{10, ratelimit.Daily(limitertest.Zone("Asia/Kolkata"))}, 4, h,
			ratelimit.Result{Allowed: true, Limit: 10, Window: day, Remaining: 6, ResetAfter: 5*h + h/2}, 5*h + h/2},
	} {
		t.Run(test.about, func(t *testing.T) {
			limitertest.Everywhere(t, func(t *testing.T, s *limitertest.Stage) {
				s.Wipe(t)
				s.Move(noon)
				before, after := calendarWindow(t, s, test.before.limit, test.before.calendar), calendarWindow(t, s, test.after.limit, test.after.calendar)
				must := must(t)
				require.True(t, must(before.TryAcquireN(ctx, "k", test.use)).Allowed)
				s.Advance(test.wait)
				require.Equal(t, test.left, must(after.Peek(ctx, "k")))
				if test.left.Remaining > 0 {
					r := must(after.TryAcquireN(ctx, "k", test.left.Remaining))
					require.Equal(t, ratelimit.Result{Allowed: true, Limit: test.left.Limit, Window: test.left.Window, ResetAfter: test.taken}, r)
				}
				r := must(after.TryAcquire(ctx, "k"))
				require.False(t, r.Allowed)
				s.Advance(r.RetryAfter - time.Microsecond)
				require.False(t, must(after.TryAcquire(ctx, "k")).Allowed)
				s.Advance(time.Microsecond)
				require.True(t, must(after.TryAcquire(ctx, "k")).Allowed)
			})
		})
	}
}

// A shorter rule's permit does not shorten what a longer one still needs.
func TestALongerCalendarKeepsItsCount(t *testing.T) {
	limitertest.Everywhere(t, func(t *testing.T, s *limitertest.Stage) {
		s.Wipe(t)
		s.Move(time.Date(2026, 11, 18, 12, 0, 0, 0, time.UTC))
		month, day := calendarWindow(t, s, 100, ratelimit.Monthly(1, time.UTC)), calendarWindow(t, s, 100, ratelimit.Daily(time.UTC))
		must := must(t)
		must(month.TryAcquireN(ctx, "k", 70))
		require.Equal(t, 29, must(day.TryAcquire(ctx, "k")).Remaining)
		s.Advance(24 * time.Hour)
		require.Equal(t, 29, must(month.Peek(ctx, "k")).Remaining)
		require.Equal(t, 100, must(day.Peek(ctx, "k")).Remaining)
	})
}

// A shorter rule's new window begins the count again: a ticket of the longer one finds none of its
// permits there.
func TestATicketOfALongerCalendarLeavesANewDayAlone(t *testing.T) {
	limitertest.Everywhere(t, func(t *testing.T, s *limitertest.Stage) {
		s.Wipe(t)
		s.Move(time.Date(2026, 11, 18, 12, 0, 0, 0, time.UTC))
		month, day := calendarWindow(t, s, 100, ratelimit.Monthly(1, time.UTC)), calendarWindow(t, s, 100, ratelimit.Daily(time.UTC))
		of := month.(ratelimit.Settler)
		before, _, err := of.Estimate(ctx, "k", 60)
		require.NoError(t, err)
		same, _, err := of.Estimate(ctx, "k", 30)
		require.NoError(t, err)
		require.Equal(t, 9, must(t)(day.TryAcquire(ctx, "k")).Remaining)
		require.NoError(t, same.Settle(ctx, 10))
		require.Equal(t, 29, must(t)(day.Peek(ctx, "k")).Remaining, "of the same count")

		s.Advance(24 * time.Hour)
		require.True(t, must(t)(day.TryAcquireN(ctx, "k", 100)).Allowed)
		require.NoError(t, before.Settle(ctx, 0))
		require.False(t, must(t)(day.TryAcquire(ctx, "k")).Allowed, "the day has allowed its limit")
	})
}

// A caller whose clock is behind moves nothing back: the day that another's clock has begun
// does not begin again.
func TestACallersClockBehindMidnight(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	midnight := time.Date(2026, 11, 18, 0, 0, 0, 0, time.UTC)
	s.Move(midnight)
	at := func(offset time.Duration) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.NewCalendarWindow(s.Client, 3, ratelimit.Daily(time.UTC), ratelimit.WithClock(func() time.Time { return s.Now.Add(offset) })))
	}
	ahead, behind := at(time.Second/2), at(-time.Second/2)
	must := must(t)
	require.Equal(t, 1, must(ahead.TryAcquireN(ctx, "k", 2)).Remaining)
	half := 24*time.Hour + time.Second/2
	require.Equal(t, ratelimit.Result{Allowed: true, Limit: 3, Window: 24 * time.Hour, ResetAfter: half}, must(behind.TryAcquire(ctx, "k")))
	require.Equal(t, ratelimit.Result{Limit: 3, Window: 24 * time.Hour, RetryAfter: half, ResetAfter: half}, must(behind.TryAcquire(ctx, "k")))
	require.False(t, must(ahead.TryAcquire(ctx, "k")).Allowed)
}

// Hosts with other time zone data: the limit between any two successive boundaries. Some
// days reach it twice, which no rule of one counter avoids without longer denials.
func TestHostsWithOtherTimeZoneData(t *testing.T) {
	raceflag.SkipSequential(t)
	const limit, days = 20, 60
	rng := model.Seeded(limitertest.Seed(t))
	s := limitertest.OnMiniredis(t)
	for range limitertest.Rounds(40, 8) {
		s.Wipe(t)
		var hosts []ratelimit.Limiter
		var zones []*time.Location
		for range 2 + rng.IntN(2) {
			loc := time.FixedZone("", 1800*rng.IntN(5))
			zones, hosts = append(zones, loc), append(hosts, calendarWindow(t, s, limit, ratelimit.Daily(loc)))
		}
		date := func() (all string) { // by every host's data
			for _, loc := range zones {
				all += s.Now.In(loc).Format("2006-01-02 ")
			}
			return all
		}
		taken := map[string]int{}
		for end := s.Now.Add(days * 24 * time.Hour); s.Now.Before(end); s.Advance(time.Duration(rng.IntN(3600)) * time.Second) {
			n := 1 + rng.IntN(limit)
			if must(t)(hosts[rng.IntN(len(hosts))].TryAcquireN(ctx, "k", n)).Allowed {
				taken[date()] += n
				require.LessOrEqual(t, taken[date()], limit, date())
			}
		}
	}
}

// The server's clock steps back over midnight: nothing is allowed twice.
func TestTheServersClockStepsBackOverMidnight(t *testing.T) {
	for name, open := range map[string]func(t testing.TB) *limitertest.Stage{"miniredis": limitertest.OnMiniredis, "Redis": limitertest.OnHeldRedis} {
		t.Run(name, func(t *testing.T) {
			const day, s10 = 24 * time.Hour, 10 * time.Second
			s := open(t)
			midnight := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
			l := calendarWindow(t, s, 2, ratelimit.Daily(time.UTC))
			must := must(t)
			s.Move(midnight)
			must(l.TryAcquireN(ctx, "k", 2))
			s.Move(midnight.Add(-s10))
			require.Equal(t, ratelimit.Result{Limit: 2, Window: day, RetryAfter: day + s10, ResetAfter: day + s10}, must(l.TryAcquire(ctx, "k")))
			s.Move(midnight)
			require.Equal(t, ratelimit.Result{Limit: 2, Window: day, RetryAfter: day, ResetAfter: day}, must(l.TryAcquire(ctx, "k")))

			s.Move(midnight.Add(20 * time.Hour))
			require.NoError(t, l.Reset(ctx, "k"))
			must(l.TryAcquireN(ctx, "k", 2))
			s.Move(midnight.Add(-5 * day)) // by more than a window: the state is of the server's own day then, with its count
			require.Equal(t, ratelimit.Result{Limit: 2, Window: day, RetryAfter: day, ResetAfter: day}, must(l.TryAcquire(ctx, "k")))
			s.Advance(day - time.Microsecond)
			require.False(t, must(l.TryAcquire(ctx, "k")).Allowed)
			s.Advance(time.Microsecond)
			require.True(t, must(l.TryAcquireN(ctx, "k", 2)).Allowed)
		})
	}
}

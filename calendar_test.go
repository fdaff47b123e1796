package ratelimit

import (
	"context"
	"testing"
	"time"
	_ "time/tzdata" // so that the zones are those of the toolchain, on every machine

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/testing/fakes"
)

func TestTheWindowOfAnInstant(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	require.NoError(t, err)
	begin, end := Daily(berlin).Window(time.Date(2026, 3, 29, 12, 0, 0, 0, time.UTC))
	require.Equal(t, time.Date(2026, 3, 29, 0, 0, 0, 0, berlin), begin)
	require.Equal(t, time.Date(2026, 3, 30, 0, 0, 0, 0, berlin), end)
	require.Equal(t, 23*time.Hour, end.Sub(begin))

	begin, end = Monthly(1, time.UTC).Window(time.Date(1960, 1, 1, 0, 0, 0, 0, time.UTC))
	require.Equal(t, time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC), begin)
	require.Equal(t, time.Date(1970, 2, 1, 0, 0, 0, 0, time.UTC), end)

	for _, none := range []Calendar{{}, Daily(nil), Monthly(32, time.UTC)} {
		begin, end = none.Window(time.Now())
		require.Zero(t, begin)
		require.Zero(t, end)
	}
}

func TestCalendarsThatCannotWork(t *testing.T) {
	for _, test := range []struct {
		calendar Calendar
		says     string
	}{
		{Calendar{}, "the calendar is a zero value; make one with Daily, Weekly or Monthly"},
		{Daily(nil), "the calendar's location is nil; give time.UTC"},
		{Weekly(7, time.UTC), "Weekly: the first day is 7"},
		{Weekly(-1, time.UTC), "Weekly: the first day is -1"},
		{Monthly(0, time.UTC), "Monthly: the day is 0; it must be 1 to 31"},
		{Monthly(32, time.UTC), "Monthly: the day is 32"},
	} {
		_, err := NewCalendarWindow(fakes.Offline(t), 1, test.calendar)
		require.ErrorIs(t, err, ErrInvalidConfig)
		require.ErrorContains(t, err, test.says)
	}
	_, err := NewCalendarWindow(fakes.Offline(t), 0, Daily(time.UTC))
	require.ErrorContains(t, err, "the limit is 0; it must be at least 1")
	_, err = NewCalendarWindow(nil, 1, Daily(time.UTC))
	require.ErrorContains(t, err, "the client is nil")
	_, err = NewCalendarWindow(fakes.Offline(t), 1, Daily(time.UTC), nil)
	require.ErrorContains(t, err, "option 1 is nil")

	require.Equal(t, "daily, UTC", Daily(time.UTC).String())
	require.Equal(t, "weekly from Monday, UTC", Weekly(time.Monday, time.UTC).String())
	require.Equal(t, "monthly from day 31, UTC", Monthly(31, time.UTC).String())
	require.Equal(t, "no calendar", Calendar{}.String())
}

// TestAHostsClockMayBeWrong: the windows are those of the server's clock, whatever the
// host's is, and no call takes a permit twice. A host whose clock is further off than a
// window asks twice, once.
func TestAHostsClockMayBeWrong(t *testing.T) {
	for _, merged := range []bool{false, true} {
		for _, test := range []struct {
			wrong time.Duration
			asks  int // executions of two calls
		}{
			{0, 2}, {3 * time.Hour, 2}, {-24 * time.Hour, 2}, {24 * time.Hour, 2},
			{-25 * time.Hour, 2}, {50 * time.Hour, 3}, {-50 * time.Hour, 3}, {-56 * 365 * 24 * time.Hour, 3}, {1000 * 24 * time.Hour, 3},
		} {
			s := onMini(t)
			asked := 0
			count := fakes.Before(s.client, func(context.Context, redis.Cmder) error { asked++; return nil })
			l := Must(NewCalendarWindow(s.client, 5, Daily(time.UTC)))
			require.NoError(t, Preload(ctx, ClaimOf(l, "k", 1)))
			l.exec.Client = count
			l.exec.Instants.Here = func() int64 { return start.Add(test.wrong).UnixMicro() } // the server reads start, 20:20
			if !merged {
				l.merger = nil
			}
			left := 3*time.Hour + 40*time.Minute
			want := Result{Allowed: true, Limit: 5, Window: 24 * time.Hour, Remaining: 4, ResetAfter: left}
			require.Equal(t, want, must(t)(l.TryAcquire(ctx, "k")), "%v", test.wrong)
			want.Remaining = 3
			require.Equal(t, want, must(t)(l.TryAcquire(ctx, "k")), "%v", test.wrong)
			require.Equal(t, test.asks, asked, "%v", test.wrong)
			require.Equal(t, want, must(t)(l.Peek(ctx, "k")))
			many := decideTogether(t, &l.core, ones(3), []string{"k", "k", "k"})
			require.Equal(t, 0, many[2].Remaining)
			require.True(t, many[2].Allowed)
		}
	}
}

// TestAPipelineAsksAgain is the same test for pipelines, where each key has a command of its
// own: with a script that Redis knows, and with one that it does not know.
func TestAPipelineAsksAgain(t *testing.T) {
	for _, known := range []bool{false, true} {
		s := onMini(t)
		ring := redisRing(t, s)
		l := Must(NewCalendarWindow(ring, 100, Daily(time.UTC)))
		if known {
			require.NoError(t, Preload(ctx, ClaimOf(l, "k", 1)))
		}
		l.exec.Instants.Here = func() int64 { return 0 }
		results, errs := together(t, l, "a", "b", "a", "c")
		for i, left := range []int{99, 99, 98, 99} {
			require.NoError(t, errs[i])
			require.Equal(t, Result{Allowed: true, Limit: 100, Window: 24 * time.Hour, Remaining: left, ResetAfter: 3*time.Hour + 40*time.Minute}, results[i])
		}
	}
}

// redisRing is a ring of one shard on a stage.
func redisRing(t testing.TB, s *stage) *redis.Ring {
	addr := s.client.(*redis.Client).Options().Addr
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": addr}})
	t.Cleanup(func() { _ = ring.Close() })
	return ring
}

// TestCalendarWindowsInAnAll: each has instants of its own, also from a host whose clock is
// off by more than a window.
func TestCalendarWindowsInAnAll(t *testing.T) {
	const h, day = time.Hour, 24 * time.Hour
	for _, wrong := range []time.Duration{0, 100 * day} {
		s := onMini(t) // it reads 2025-11-20 20:20 UTC
		bucket := Must(NewTokenBucket(s.client, PerHour(1), 5))
		daily := Must(NewCalendarWindow(s.client, 3, Daily(time.UTC), WithName("day")))
		monthly := Must(NewCalendarWindow(s.client, 4, Monthly(15, time.UTC), WithName("month")))
		all := Must(NewAll(monthly, bucket, daily))
		all.group.exec.Instants.Here = func() int64 { return start.Add(wrong).UnixMicro() }
		left, month := 3*h+40*time.Minute, 24*day+3*h+40*time.Minute
		for i := range 3 {
			r := must(t)(all.TryAcquire(ctx, "k"))
			require.Equal(t, Result{Allowed: true, Limit: 3, Window: day, Remaining: 2 - i, ResetAfter: r.ResetAfter}, r, "the day has the least left")
		}
		denied := must(t)(all.TryAcquire(ctx, "k"))
		require.Equal(t, Result{Limit: 3, Window: day, RetryAfter: left, ResetAfter: denied.ResetAfter}, denied)
		require.Equal(t, Result{Allowed: true, Limit: 4, Window: 30 * day, Remaining: 1, ResetAfter: month}, must(t)(monthly.Peek(ctx, "k")))
		require.Equal(t, Result{Limit: 3, Window: day, RetryAfter: left, ResetAfter: left}, must(t)(daily.Peek(ctx, "k")))

		many, failed := AllMerged(t, [][]Claim{{ClaimOf(monthly, "l", 1), ClaimOf(daily, "l", 2)}, {ClaimOf(monthly, "l", 2), ClaimOf(daily, "l", 1)}, {ClaimOf(monthly, "l", 1), ClaimOf(daily, "l", 1)}})
		require.NotContains(t, failed, true)
		require.Equal(t, []bool{true, true, false}, []bool{many[0].Allowed, many[1].Allowed, many[2].Allowed})
	}
}

// TestAHostADayBehind: it knows the window after its next one, in which another host has
// taken permits before the server's clock stepped back over midnight.
func TestAHostADayBehind(t *testing.T) {
	const day, s10 = 24 * time.Hour, 10 * time.Second
	server := miniredis.RunT(t)
	server.ClockTTL(true)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	midnight := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	host := func(clock time.Time) *CalendarWindow {
		l := Must(NewCalendarWindow(client, 2, Daily(time.UTC)))
		l.exec.Instants.Here = clock.UnixMicro
		return l
	}
	server.SetTime(midnight)
	must(t)(host(midnight).TryAcquireN(ctx, "k", 2))
	server.SetTime(midnight.Add(-s10))
	want := Result{Limit: 2, Window: day, RetryAfter: day + s10, ResetAfter: day + s10}
	require.Equal(t, want, must(t)(host(midnight.Add(-s10)).TryAcquire(ctx, "k")))
	require.Equal(t, want, must(t)(host(midnight.Add(-s10-day)).TryAcquire(ctx, "k")))
}

package ratelimit_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/exact"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

func credited(t *testing.T, l ratelimit.Settler, n int) int {
	t.Helper()
	given, err := l.Credit(ctx, "k", n)
	require.NoError(t, err)
	return given
}

// TestACreditGivesBackNoMoreThanIsMissing, a debt included.
func TestACreditGivesBackNoMoreThanIsMissing(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	for name, l := range map[string]operator{
		"token bucket":    ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerHour(1), 10)),
		"in steps":        ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerHour(1), 10, ratelimit.WithRefillEvery(time.Hour), ratelimit.WithName("steps"))),
		"leaky bucket":    ratelimit.Must(ratelimit.NewLeakyBucket(s.Client, ratelimit.PerHour(1), 10)),
		"fixed window":    ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 10, time.Hour)),
		"aligned window":  ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 10, time.Hour, ratelimit.WithAlignment(0), ratelimit.WithName("aligned"))),
		"calendar window": ratelimit.Must(ratelimit.NewCalendarWindow(s.Client, 10, ratelimit.Daily(time.UTC))),
		"in memory":       ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerHour(1), 10, ratelimit.WithClock(func() time.Time { return s.Now }))),
	} {
		t.Run(name, func(t *testing.T) {
			require.Zero(t, credited(t, l, 5), "an unused key")
			require.Equal(t, 10, must(t)(l.Peek(ctx, "k")).Remaining)
			must(t)(l.TryAcquireN(ctx, "k", 7))
			require.Equal(t, 2, credited(t, l, 2))
			require.Equal(t, 5, must(t)(l.Peek(ctx, "k")).Remaining)
			require.Equal(t, 5, credited(t, l, exact.Permits), "more than was taken")
			require.Equal(t, 10, must(t)(l.Peek(ctx, "k")).Remaining)
			must(t)(l.Charge(ctx, "k", 14))
			require.Equal(t, 3, credited(t, l, 3), "of a debt")
			require.Zero(t, must(t)(l.Peek(ctx, "k")).Remaining)
			require.Equal(t, 11, credited(t, l, 20))
			require.Equal(t, 10, must(t)(l.Peek(ctx, "k")).Remaining)
		})
	}
}

// TestWhoTakesNoCredit says so, and the remedy.
func TestWhoTakesNoCredit(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	window := ratelimit.Must(ratelimit.NewSlidingWindow(s.Client, 10, time.Hour))
	for remedy, l := range map[string]ratelimit.Limiter{
		"the sliding window \"default\" takes no credit; take permits that may come back with Estimate": window,
		"the sliding window \"zset\"": ratelimit.Must(ratelimit.NewSlidingWindow(s.Client, 10, time.Hour, ratelimit.WithStorage(ratelimit.StorageZSet), ratelimit.WithName("zset"))),
		"the sliding log":             ratelimit.Must(ratelimit.NewSlidingLog(s.Client, []ratelimit.Rule{{Limit: 10, Window: time.Hour}})),
		"the fair token bucket":       ratelimit.Must(ratelimit.NewFairTokenBucket(s.Client, ratelimit.PerHour(1), 10)),
		"cannot settle":               ratelimit.Must(ratelimit.NewAll(window, ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerHour(1), 10)))),
	} {
		key := "k"
		if _, fair := l.(*ratelimit.FairTokenBucket); fair {
			key = "{k}:a"
		}
		around := ratelimit.Must(ratelimit.NewDenyCache(l))
		_, err := around.Credit(ctx, key, 1)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
		require.ErrorContains(t, err, remedy)
	}
	_, err := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerHour(1), 10)).Credit(ctx, "k", 0)
	require.ErrorIs(t, err, ratelimit.ErrInvalidPermits)
}

// TestACreditDoesNotTakeAWaitersTurn: while permits are promised, none come back.
func TestACreditDoesNotTakeAWaitersTurn(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	for _, l := range []interface {
		operator
		ratelimit.Reserver
	}{
		ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(1), 2)),
		ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1), 2, ratelimit.WithClock(func() time.Time { return s.Now }))),
	} {
		_, err := l.Reserve(ctx, "k", 2, 0)
		require.NoError(t, err)
		r, err := l.Reserve(ctx, "k", 1, time.Minute)
		require.NoError(t, err)
		require.Positive(t, r.Delay())
		require.Zero(t, credited(t, l, 2))
		s.Advance(time.Second)
		require.Equal(t, 1, credited(t, l, 1))
		s.Advance(-time.Second)
	}
}

// TestACreditToAnotherRulesState: a bucket keeps the writer's rule; a window goes on as for a call.
func TestACreditToAnotherRulesState(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	slow := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerHour(1), 10))
	fast := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerMinute(1), 8))
	must(t)(slow.TryAcquireN(ctx, "k", 9))
	require.Equal(t, 3, credited(t, fast, 3))
	require.Equal(t, 4, must(t)(slow.Peek(ctx, "k")).Remaining)
	require.Equal(t, 2, must(t)(fast.Peek(ctx, "k")).Remaining)

	hour := ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 10, time.Hour))
	minute := ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 10, time.Minute))
	must(t)(hour.TryAcquireN(ctx, "k", 9))
	require.Equal(t, 3, credited(t, minute, 3))
	require.Equal(t, 4, must(t)(hour.Peek(ctx, "k")).Remaining)
	require.NoError(t, hour.Reset(ctx, "k"))
	must(t)(minute.TryAcquireN(ctx, "k", 9))
	require.Equal(t, 3, credited(t, hour, 3))
	require.Equal(t, 4, must(t)(minute.Peek(ctx, "k")).Remaining)
	require.Equal(t, 6, credited(t, hour, 9))
	require.Equal(t, 10, must(t)(minute.Peek(ctx, "k")).Remaining)
}

// TestWhoHearsOfACredit: memory forgets the denial, a secondary and a trial get as much.
func TestWhoHearsOfACredit(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	bucket := func(name string) *ratelimit.TokenBucket {
		return ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerHour(1), 10, ratelimit.WithName(name)))
	}
	cached := ratelimit.Must(ratelimit.NewDenyCache(bucket("cached")))
	must(t)(cached.TryAcquireN(ctx, "k", 10))
	require.False(t, must(t)(cached.TryAcquire(ctx, "k")).Allowed)
	require.Equal(t, 1, credited(t, cached, 1))
	require.True(t, must(t)(cached.TryAcquire(ctx, "k")).Allowed)

	local := following(s, 5)
	guarded := ratelimit.Must(ratelimit.NewFallback(bucket("guarded"), local))
	must(t)(guarded.TryAcquireN(ctx, "k", 10))
	require.Zero(t, must(t)(local.Peek(ctx, "k")).Remaining)
	require.Equal(t, 4, credited(t, guarded, 4))
	require.Equal(t, 2, must(t)(local.Peek(ctx, "k")).Remaining, "the same share")

	o := newOutage(t)
	down := ratelimit.Must(ratelimit.NewFallback(ratelimit.Must(ratelimit.NewTokenBucket(o.client, ratelimit.PerHour(1), 10)), local))
	o.begin()
	require.Equal(t, 3, credited(t, down, 9), "of the secondary")
	require.Equal(t, 5, must(t)(local.Peek(ctx, "k")).Remaining)
	for _, constant := range []ratelimit.Limiter{ratelimit.AllowAll(), ratelimit.DenyAll()} {
		require.Zero(t, credited(t, ratelimit.Must(ratelimit.NewFallback(ratelimit.Must(ratelimit.NewTokenBucket(o.client, ratelimit.PerHour(1), 10)), constant)), 9))
	}

	trial := bucket("trial")
	shadow := ratelimit.Must(ratelimit.NewShadow(bucket("enforced"), trial, func(trial ratelimit.Trial) { t.Errorf("nothing to compare: %+v", trial) }))
	must(t)(trial.TryAcquireN(ctx, "k", 6))
	heard := make(chan struct{}, 10)
	s.Client.(*redis.Client).AddHook(onCommand(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		err := next(ctx, cmd)
		heard <- struct{}{}
		return err
	}))
	require.Zero(t, credited(t, shadow, 2))
	<-heard
	<-heard
	require.Equal(t, 6, must(t)(trial.Peek(ctx, "k")).Remaining)
}

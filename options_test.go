package ratelimit_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/exact"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// TestConstructorsNameWhatIsWrong holds a configuration that cannot work and
// what the error must say, for each reason.
func TestConstructorsNameWhatIsWrong(t *testing.T) {
	c := limitertest.Offline(t)
	fixed := func(limit int, window time.Duration, o ...ratelimit.Option) error {
		_, err := ratelimit.NewFixedWindow(c, limit, window, o...)
		return err
	}
	sliding := func(limit int, window time.Duration, o ...ratelimit.Option) error {
		_, err := ratelimit.NewSlidingWindow(c, limit, window, o...)
		return err
	}
	log := func(rules []ratelimit.Rule, o ...ratelimit.Option) error {
		_, err := ratelimit.NewSlidingLog(c, rules, o...)
		return err
	}
	token := func(rate ratelimit.Rate, burst int, o ...ratelimit.Option) error {
		_, err := ratelimit.NewTokenBucket(c, rate, burst, o...)
		return err
	}
	leaky := func(rate ratelimit.Rate, capacity int, o ...ratelimit.Option) error {
		_, err := ratelimit.NewLeakyBucket(c, rate, capacity, o...)
		return err
	}
	const s = time.Second
	for _, test := range []struct {
		err  error
		says string
	}{
		{fixed(0, s), "the limit is 0; it must be at least 1"},
		{fixed(-5, s), "the limit is -5"},
		{fixed(exact.Permits+1, s), fmt.Sprintf("the limit is %d; it must be at most %d; count in a larger unit", exact.Permits+1, exact.Permits)},
		{fixed(1, 0), "the window is 0s; it must be at least 1ms"},
		{fixed(1, -s), "the window is -1s"},
		{fixed(1, 999*time.Microsecond), "the window is 999µs; it must be at least 1ms"},
		{fixed(1, math.MaxInt64), "it must be at most"},
		{fixed(1, s+time.Microsecond), "must be a whole number of milliseconds"},
		{fixed(1, s, ratelimit.WithAlignment(time.Nanosecond)), "WithAlignment: 1ns"},
		{fixed(1, s, ratelimit.WithPrefix("")), "WithPrefix: the prefix is empty"},
		{fixed(1, s, ratelimit.WithClock(nil)), "WithClock: the clock is nil"},
		{fixed(1, s, nil), "option 1 is nil"},
		{fixed(1, s, ratelimit.WithPrefix("a"), ratelimit.WithPrefix("b")), "WithPrefix is given twice"},

		{sliding(0, s), "the limit is 0"},
		{sliding(1, time.Microsecond), "the window is 1µs"},
		{sliding(1, s+1), "the window is 1.000000001s; it must be a whole number of microseconds"},
		{sliding(1, s, ratelimit.WithSubWindows(0)), "WithSubWindows: 0 is not between 1 and 100000"},
		{sliding(1, s, ratelimit.WithSubWindows(100_001)), "WithSubWindows: 100001"},
		{sliding(1, s, ratelimit.WithSubWindows(7)), "the window 1s is not divisible into 7 sub-windows"},
		{sliding(1, s, ratelimit.WithStorage(3)), "WithStorage: 3 is not a storage; the last is StorageZSet"},
		{sliding(1, s, ratelimit.WithStorage(-1)), "WithStorage: -1"},
		{sliding(1, s, ratelimit.WithStorage(ratelimit.StorageZSet), ratelimit.WithSubWindows(10)), "WithSubWindows: the storage ZSet is exact and has no sub-windows"},
		{sliding(10_001, s, ratelimit.WithStorage(ratelimit.StorageZSet)), "the limit is 10001; with the storage ZSet it must be at most 10000; a SlidingLog is as exact, for any limit"},

		{log(nil), "there are 0 rules; give 1 to 100"},
		{log(make([]ratelimit.Rule, 101)), "there are 101 rules"},
		{log([]ratelimit.Rule{{0, s}}), "the limit is 0"},
		{log([]ratelimit.Rule{{1, 0}}), "the window is 0s"},
		{log([]ratelimit.Rule{{10, time.Minute}, {20, s}}), "the rule of 20 per 1s never applies beside 10 per 1m0s; leave it out"},
		{log([]ratelimit.Rule{{10, s}, {10, time.Minute}}), "the rule of 10 per 1s never applies beside 10 per 1m0s"},
		{log([]ratelimit.Rule{{10, s}, {5, s}}), "the rule of 10 per 1s never applies beside 5 per 1s"},
		{log([]ratelimit.Rule{{5, s}, {5, s}}), "the rule of 5 per 1s never applies beside 5 per 1s"},
		{log([]ratelimit.Rule{{5, s}}, ratelimit.WithResolution(0)), "WithResolution: 0s"},
		{log([]ratelimit.Rule{{5, s}}, ratelimit.WithResolution(1500)), "WithResolution: 1.5µs"},
		{log([]ratelimit.Rule{{5, s}, {50, time.Hour}}, ratelimit.WithResolution(2*s)), "WithResolution: 2s is more than the window 1s"},

		{token(ratelimit.PerSecond(0), 1), "the rate's Count is 0"},
		{token(ratelimit.Per(1, 0), 1), "the rate's Period is 0s"},
		{token(ratelimit.Per(1, 1500), 1), "the rate's Period is 1.5µs"},
		{token(ratelimit.PerSecond(1), 0), "the burst is 0"},
		{token(ratelimit.Per(999_999_937, 1000*time.Hour), 999_999_937), ""},
		{token(ratelimit.PerHour(1), 625_499), ""},
		{token(ratelimit.PerHour(1), 625_500), "a burst of 625500 at 1 per 1h0m0s takes more than 625499h56m53.685248s to refill; " +
			"lower the burst to at most 625499, or raise the rate to at least 2 per 1h0m0s"},
		{leaky(ratelimit.Per(1, 600_000*time.Hour), 1_000_000_000), "lower the capacity to at most 1, or raise the rate to at least 959"},
		{token(ratelimit.PerSecond(1), 1, ratelimit.WithRefillEvery(0)), "WithRefillEvery: 0s"},
		{token(ratelimit.PerSecond(1), 1, ratelimit.WithAlignment(0)), "WithAlignment: tokens arrive continuously, and only steps are aligned; add WithRefillEvery, or leave it out"},
		{token(ratelimit.PerSecond(1), 1, ratelimit.WithAlignment(time.Nanosecond), ratelimit.WithRefillEvery(s)), "WithAlignment: 1ns is not a whole number of microseconds"},
		{token(ratelimit.PerSecond(1), 1, ratelimit.WithAlignment(-100*time.Hour), ratelimit.WithRefillEvery(s)), ""},
		{token(ratelimit.Per(999_999_937, time.Hour), 1, ratelimit.WithRefillEvery(100*time.Hour)), ""},
		{token(ratelimit.PerSecond(1), 1, ratelimit.WithRefillEvery(700_000*time.Hour)), "WithRefillEvery: 700000h0m0s is more than 625499h56m53.685248s"},
		{token(ratelimit.PerSecond(1), 2, ratelimit.WithRefillEvery(600_000*time.Hour)), ""},
		{token(ratelimit.PerSecond(1), 1, ratelimit.WithMaxSkew(time.Second)), "WithMaxSkew: the server's clock decides"},
		{token(ratelimit.PerSecond(1), 1, ratelimit.WithClock(time.Now), ratelimit.WithMaxSkew(-1)), "WithMaxSkew: -1ns is not between 0 and 24h0m0s"},
		{token(ratelimit.PerSecond(1), 1, ratelimit.WithClock(time.Now), ratelimit.WithMaxSkew(25*time.Hour)), "WithMaxSkew: 25h0m0s is not between"},
		{token(ratelimit.PerHour(1), 100_000, ratelimit.WithRefillEvery(time.Millisecond)), ""},
		{leaky(ratelimit.PerSecond(1), -1), "the capacity is -1"},
		{leaky(ratelimit.PerSecond(-1), 1), "the rate's Count is -1"},
	} {
		if test.says == "" {
			require.NoError(t, test.err)
			continue
		}
		require.ErrorIs(t, test.err, ratelimit.ErrInvalidConfig, test.says)
		require.ErrorContains(t, test.err, test.says)
	}
	_, err := ratelimit.NewTokenBucket(nil, ratelimit.PerSecond(1), 1)
	require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
	require.ErrorContains(t, err, "the client is nil")
	_, err = ratelimit.NewTokenBucket((*redis.Client)(nil), ratelimit.PerSecond(1), 1)
	require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
	require.ErrorContains(t, err, "the client is nil")
	client := limitertest.OnMiniredis(t).Client.(*redis.Client)
	_, err = ratelimit.NewTokenBucket(client.Pipeline(), ratelimit.PerSecond(1), 1)
	require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
	require.ErrorContains(t, err, "the client is a pipeline")
}

func TestClockOutsideItsRangeIsAnError(t *testing.T) {
	for _, at := range []time.Time{{}, time.Unix(-1, 0), time.Date(2113, 1, 1, 0, 0, 0, 0, time.UTC)} {
		for _, merging := range [][]ratelimit.Option{nil, {ratelimit.WithoutMerging()}} {
			l := ratelimit.Must(ratelimit.NewTokenBucket(limitertest.Offline(t), ratelimit.PerSecond(1), 1, append(merging, ratelimit.WithClock(func() time.Time { return at }))...))
			r, err := l.TryAcquire(ctx, "k")
			require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
			require.ErrorContains(t, err, "WithClock: the clock reads")
			require.Zero(t, r)
		}
	}
}

// A change is a configuration that a key meets after another.
type change struct {
	about         string
	before, after func(c ratelimit.Client) (ratelimit.Limiter, error)
	use           int           // permits taken before
	wait          time.Duration // until after
	left          int           // permits that after still allows, at once
	retry         time.Duration // of the denial that follows
}

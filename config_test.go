package ratelimit_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// TestConstructorsNameWhatIsWrong holds a configuration that cannot work and
// what the error must say, for each reason.
func TestConstructorsNameWhatIsWrong(t *testing.T) {
	c := limitertest.Offline(t)
	fixed := func(limit int, window time.Duration, o ...ratelimit.FixedWindowOption) error {
		_, err := ratelimit.NewFixedWindow(c, limit, window, o...)
		return err
	}
	sliding := func(limit int, window time.Duration, o ...ratelimit.SlidingWindowOption) error {
		_, err := ratelimit.NewSlidingWindow(c, limit, window, o...)
		return err
	}
	log := func(rules []ratelimit.Rule, o ...ratelimit.SlidingLogOption) error {
		_, err := ratelimit.NewSlidingLog(c, rules, o...)
		return err
	}
	token := func(rate ratelimit.Rate, burst int, o ...ratelimit.TokenBucketOption) error {
		_, err := ratelimit.NewTokenBucket(c, rate, burst, o...)
		return err
	}
	leaky := func(rate ratelimit.Rate, capacity int, o ...ratelimit.LeakyBucketOption) error {
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
		{fixed(1_000_000_001, s), "the limit is 1000000001; it must be at most 1000000000"},
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
		{sliding(1, s, ratelimit.WithStorage(3)), "WithStorage: 3 is not one of Hash, List and ZSet"},
		{sliding(1, s, ratelimit.WithStorage(-1)), "WithStorage: -1"},
		{sliding(1, s, ratelimit.WithStorage(ratelimit.ZSet), ratelimit.WithSubWindows(10)), "WithSubWindows: the storage ZSet is exact and has no sub-windows"},
		{sliding(10_001, s, ratelimit.WithStorage(ratelimit.ZSet)), "the limit is 10001; with the storage ZSet it must be at most 10000; a SlidingLog is as exact, for any limit"},

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

func TestRulesAreSortedWithoutTouchingTheCallers(t *testing.T) {
	rules := []ratelimit.Rule{{100, time.Hour}, {10, time.Minute}, {1, time.Second}}
	_, err := ratelimit.NewSlidingLog(limitertest.Offline(t), rules)
	require.NoError(t, err)
	require.Equal(t, []ratelimit.Rule{{100, time.Hour}, {10, time.Minute}, {1, time.Second}}, rules)
}

func TestRates(t *testing.T) {
	require.Equal(t, ratelimit.Rate{5, time.Second}, ratelimit.PerSecond(5))
	require.Equal(t, ratelimit.Rate{5, time.Minute}, ratelimit.PerMinute(5))
	require.Equal(t, ratelimit.Rate{5, time.Hour}, ratelimit.PerHour(5))
	require.Equal(t, ratelimit.Rate{5, 90 * time.Second}, ratelimit.Per(5, 90*time.Second))
	require.Equal(t, []string{"Hash", "List", "ZSet", "unknown storage"}, []string{ratelimit.Hash.String(), ratelimit.List.String(), ratelimit.ZSet.String(), ratelimit.Storage(9).String()})
}

func TestSlidingLogNamesTheRuleThatGoverns(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	l := ratelimit.Must(ratelimit.NewSlidingLog(s.Client, []ratelimit.Rule{{5, time.Minute}, {2, time.Second}}))
	must := must(t)
	const sec, min = time.Second, time.Minute
	require.Equal(t, ratelimit.Result{Allowed: true, Limit: 2, Window: sec, Remaining: 1, ResetAfter: min}, must(l.TryAcquire(ctx, "k")))
	require.Equal(t, ratelimit.Result{Allowed: true, Limit: 2, Window: sec, Remaining: 0, ResetAfter: min}, must(l.TryAcquire(ctx, "k")))
	require.Equal(t, ratelimit.Result{Limit: 2, Window: sec, RetryAfter: sec, ResetAfter: min}, must(l.TryAcquire(ctx, "k")))
	s.Advance(sec)
	require.Equal(t, ratelimit.Result{Allowed: true, Limit: 2, Window: sec, Remaining: 1, ResetAfter: min}, must(l.TryAcquire(ctx, "k")))
	s.Advance(sec)
	require.Equal(t, ratelimit.Result{Allowed: true, Limit: 2, Window: sec, Remaining: 1, ResetAfter: min}, must(l.TryAcquire(ctx, "k")), "of two with as much left, the shorter")
	s.Advance(sec)
	require.Equal(t, ratelimit.Result{Allowed: true, Limit: 5, Window: min, Remaining: 0, ResetAfter: min}, must(l.TryAcquire(ctx, "k")), "the minute has less left")
	require.Equal(t, ratelimit.Result{Limit: 5, Window: min, RetryAfter: min - 3*sec, ResetAfter: min}, must(l.TryAcquire(ctx, "k")), "the minute blocks longest")
	s.Advance(min - 3*sec - time.Microsecond)
	require.Equal(t, ratelimit.Result{Limit: 5, Window: min, RetryAfter: time.Microsecond, ResetAfter: 3*sec + time.Microsecond}, must(l.TryAcquire(ctx, "k")))
	s.Advance(time.Microsecond)
	require.True(t, must(l.TryAcquire(ctx, "k")).Allowed)
}

func TestClockOutsideItsRangeIsAnError(t *testing.T) {
	for _, at := range []time.Time{{}, time.Unix(-1, 0), time.Date(2113, 1, 1, 0, 0, 0, 0, time.UTC)} {
		for _, merging := range [][]ratelimit.Option{nil, {ratelimit.WithoutMerging()}} {
			l := ratelimit.Must(ratelimit.NewTokenBucket(limitertest.Offline(t), ratelimit.PerSecond(1), 1, ratelimit.WithOptions(append(merging, ratelimit.WithClock(func() time.Time { return at }))...)))
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

// TestChangedConfigurationInheritsWhatWasUsed: never an error, and never more
// than the new rule would allow a key that had used as much.
func TestChangedConfigurationInheritsWhatWasUsed(t *testing.T) {
	const s, ms = time.Second, time.Millisecond
	fixed := func(n int, w time.Duration, o ...ratelimit.FixedWindowOption) func(ratelimit.Client) (ratelimit.Limiter, error) {
		return func(c ratelimit.Client) (ratelimit.Limiter, error) { return ratelimit.NewFixedWindow(c, n, w, o...) }
	}
	token := func(rate ratelimit.Rate, burst int, o ...ratelimit.TokenBucketOption) func(ratelimit.Client) (ratelimit.Limiter, error) {
		return func(c ratelimit.Client) (ratelimit.Limiter, error) {
			return ratelimit.NewTokenBucket(c, rate, burst, o...)
		}
	}
	sliding := func(storage ratelimit.Storage, n int, w time.Duration, buckets int) func(ratelimit.Client) (ratelimit.Limiter, error) {
		return func(c ratelimit.Client) (ratelimit.Limiter, error) {
			o := []ratelimit.SlidingWindowOption{ratelimit.WithStorage(storage)}
			if storage != ratelimit.ZSet {
				o = append(o, ratelimit.WithSubWindows(buckets))
			}
			return ratelimit.NewSlidingWindow(c, n, w, o...)
		}
	}
	log := func(o []ratelimit.SlidingLogOption, rules ...ratelimit.Rule) func(ratelimit.Client) (ratelimit.Limiter, error) {
		return func(c ratelimit.Client) (ratelimit.Limiter, error) { return ratelimit.NewSlidingLog(c, rules, o...) }
	}
	every := ratelimit.WithRefillEvery(s)
	for _, test := range []change{
		{"fixed: higher limit", fixed(5, s), fixed(8, s), 5, 100 * ms, 3, 900 * ms},
		{"fixed: lower limit", fixed(5, s), fixed(3, s), 4, 100 * ms, 0, 900 * ms},
		{"fixed: longer window, from the same opening", fixed(5, s), fixed(5, 10*s), 3, 400 * ms, 2, 9600 * ms},
		{"fixed: shorter window, from the same opening", fixed(5, 10*s), fixed(5, s), 3, 400 * ms, 2, 600 * ms},
		{"fixed: shorter window, over by now", fixed(5, 10*s), fixed(5, s), 5, 2 * s, 5, s},
		{"fixed: longer window, used up", fixed(3, s), fixed(3, 10*s), 3, 400 * ms, 0, 600 * ms},            // nobody has taken a permit under it
		{"fixed: odd window", fixed(5, 123_456*ms), fixed(5, 200*s), 3, 400 * ms, 2, 200*s - 400*ms + 6*ms}, // it keeps five digits
		{"fixed: aligned", fixed(5, s), fixed(5, s, ratelimit.WithAlignment(0)), 3, 400 * ms, 2, 600 * ms},
		{"fixed: no longer aligned", fixed(5, s, ratelimit.WithAlignment(0)), fixed(5, s), 3, 400 * ms, 2, 600*ms + 2*ms}, // what is left of its TTL, but for what that is longer by

		{"token: higher rate", token(ratelimit.PerSecond(1), 10), token(ratelimit.PerSecond(2), 10), 10, 3 * s, 6, 500 * ms},
		{"token: lower rate", token(ratelimit.PerSecond(2), 10), token(ratelimit.PerSecond(1), 10), 10, 2 * s, 4, s},
		{"token: higher burst", token(ratelimit.PerSecond(1), 10), token(ratelimit.PerSecond(1), 20), 10, s, 11, s},
		{"token: lower burst", token(ratelimit.PerSecond(1), 10), token(ratelimit.PerSecond(1), 5), 10, 0, 0, 6 * s},
		{"token: the same size of a permit", token(ratelimit.PerSecond(3), 10), token(ratelimit.PerSecond(1), 10), 10, 500 * ms, 1, 500 * ms},
		{"token: another size of a permit", token(ratelimit.PerSecond(3), 10), token(ratelimit.PerSecond(2), 10), 10, 500 * ms, 1, 250 * ms},
		{"token: fractions round against the caller", token(ratelimit.PerSecond(3), 10), token(ratelimit.PerSecond(7), 10), 10, 100 * ms, 0, 42_858 * time.Microsecond},
		{"token: in steps", token(ratelimit.PerSecond(1), 10), token(ratelimit.PerSecond(1), 10, every), 10, 3 * s, 3, s},
		{"token: no longer in steps", token(ratelimit.PerSecond(1), 10, every), token(ratelimit.PerSecond(1), 10), 10, 2500 * ms, 2, 500 * ms},
		{"token: other steps", token(ratelimit.PerSecond(1), 10, every), token(ratelimit.PerSecond(2), 10, ratelimit.WithRefillEvery(2*s)), 10, 2500 * ms, 4, 1500 * ms},

		{"sliding: higher limit", sliding(ratelimit.Hash, 5, s, 10), sliding(ratelimit.Hash, 8, s, 10), 5, 200 * ms, 3, 1099999*time.Microsecond - 200*ms},
		{"sliding: lower limit", sliding(ratelimit.List, 5, s, 10), sliding(ratelimit.List, 3, s, 10), 5, 200 * ms, 0, 1099999*time.Microsecond - 200*ms},
		{"sliding: other sub-windows", sliding(ratelimit.Hash, 5, s, 10), sliding(ratelimit.Hash, 5, s, 2), 3, 600 * ms, 2, 1099999*time.Microsecond - 600*ms},
		{"sliding: longer window", sliding(ratelimit.List, 5, s, 10), sliding(ratelimit.List, 5, 10*s, 10), 3, 600 * ms, 2, 10*s + 99999*time.Microsecond - 600*ms},
		{"sliding: ZSet, longer window", sliding(ratelimit.ZSet, 5, s, 0), sliding(ratelimit.ZSet, 5, 10*s, 0), 3, 600 * ms, 2, 9400 * ms},

		{"log: more rules", log(nil, ratelimit.Rule{5, s}), log(nil, ratelimit.Rule{5, s}, ratelimit.Rule{6, 10 * s}), 4, 500 * ms, 1, 500 * ms},
		{"log: fewer rules", log(nil, ratelimit.Rule{5, s}, ratelimit.Rule{6, 10 * s}), log(nil, ratelimit.Rule{6, 10 * s}), 5, 0, 1, 10 * s},
		{"log: coarser", log(nil, ratelimit.Rule{5, s}), log([]ratelimit.SlidingLogOption{ratelimit.WithResolution(100 * ms)}, ratelimit.Rule{5, s}), 3, 0, 2, s},
	} {
		t.Run(test.about, func(t *testing.T) {
			s := limitertest.OnMiniredis(t)
			before, err := test.before(s.Client)
			require.NoError(t, err)
			after, err := test.after(s.Client)
			require.NoError(t, err)
			for range test.use {
				require.True(t, must(t)(before.TryAcquire(ctx, "k")).Allowed)
			}
			s.Advance(test.wait)
			for i := range test.left {
				r := must(t)(after.TryAcquire(ctx, "k"))
				require.True(t, r.Allowed, "call %d: %+v", i+1, r)
			}
			r := must(t)(after.TryAcquire(ctx, "k"))
			require.False(t, r.Allowed, "%+v", r)
			require.Equal(t, test.retry, r.RetryAfter)
		})
	}
}

// TestChangedRateHoldsFromTheFirstDenial: it does not take an allowed call by the old
// rate to change to the new one.
func TestChangedRateHoldsFromTheFirstDenial(t *testing.T) {
	slow, fast := ratelimit.PerHour(1), ratelimit.PerSecond(100)
	every := ratelimit.WithRefillEvery(500 * time.Millisecond)
	for _, test := range []struct {
		about         string
		before, after []ratelimit.TokenBucketOption
		from, to      ratelimit.Rate
	}{
		{"raised", nil, nil, slow, fast},
		{"lowered", nil, nil, fast, slow},
		{"raised, now in steps", nil, []ratelimit.TokenBucketOption{every}, slow, fast},
		{"raised, no longer in steps", []ratelimit.TokenBucketOption{every}, nil, ratelimit.PerMinute(1), fast},
	} {
		t.Run(test.about, func(t *testing.T) {
			s := limitertest.OnMiniredis(t)
			before := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, test.from, 5, test.before...))
			after := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, test.to, 5, test.after...))
			must(t)(before.TryAcquireN(ctx, "k", 5))
			denied := must(t)(after.TryAcquireN(ctx, "k", 3))
			require.False(t, denied.Allowed)
			s.Advance(denied.RetryAfter - time.Microsecond)
			require.False(t, must(t)(after.TryAcquireN(ctx, "k", 3)).Allowed)
			s.Advance(time.Microsecond)
			require.True(t, must(t)(after.TryAcquireN(ctx, "k", 3)).Allowed)
		})
	}
}

// TestChangedBucketBlocksNoLongerThanTheRule, though its clock steps back too.
func TestChangedBucketBlocksNoLongerThanTheRule(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	steps := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(2), 5, ratelimit.WithRefillEvery(500*time.Millisecond)))
	flow := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(2), 5))
	for _, change := range [][2]ratelimit.Limiter{{steps, flow}, {flow, steps}} {
		s.Wipe(t)
		must(t)(change[0].TryAcquireN(ctx, "k", 5))
		s.Advance(-time.Hour)
		denied := must(t)(change[1].TryAcquire(ctx, "k"))
		require.False(t, denied.Allowed)
		require.LessOrEqual(t, denied.RetryAfter, 2500*time.Millisecond)
		s.Advance(denied.RetryAfter)
		require.True(t, must(t)(change[1].TryAcquire(ctx, "k")).Allowed)
	}
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

func TestErrorsAreThoseOfTheContract(t *testing.T) {
	for _, err := range []error{ratelimit.ErrInvalidConfig, ratelimit.ErrInvalidKey, ratelimit.ErrInvalidPermits, ratelimit.ErrExceedsLimit, ratelimit.ErrDenied, ratelimit.ErrCorruptState} {
		require.Regexp(t, "^ratelimit: ", err.Error())
		require.True(t, errors.Is(err, err))
	}
}

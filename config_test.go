package ratelimit

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// TestConstructorsNameWhatIsWrong holds a configuration that cannot work and
// what the error must say, for each reason.
func TestConstructorsNameWhatIsWrong(t *testing.T) {
	c := offline{t}
	fixed := func(limit int, window time.Duration, o ...FixedWindowOption) error {
		_, err := NewFixedWindow(c, limit, window, o...)
		return err
	}
	sliding := func(limit int, window time.Duration, o ...SlidingWindowOption) error {
		_, err := NewSlidingWindow(c, limit, window, o...)
		return err
	}
	log := func(rules []Rule, o ...SlidingLogOption) error {
		_, err := NewSlidingLog(c, rules, o...)
		return err
	}
	token := func(rate Rate, burst int, o ...TokenBucketOption) error {
		_, err := NewTokenBucket(c, rate, burst, o...)
		return err
	}
	leaky := func(rate Rate, capacity int, o ...LeakyBucketOption) error {
		_, err := NewLeakyBucket(c, rate, capacity, o...)
		return err
	}
	const s = time.Second
	for _, test := range []struct {
		err  error
		says string
	}{
		{fixed(0, s), "the limit is 0; it must be at least 1"},
		{fixed(-5, s), "the limit is -5"},
		{fixed(maxCount+1, s), "the limit is 1000000001; it must be at most 1000000000"},
		{fixed(1, 0), "the window is 0s; it must be at least 1ms"},
		{fixed(1, -s), "the window is -1s"},
		{fixed(1, 999*time.Microsecond), "the window is 999µs; it must be at least 1ms"},
		{fixed(1, math.MaxInt64), "it must be at most"},
		{fixed(1, s+time.Microsecond), "must be a whole number of milliseconds"},
		{fixed(1, s, WithAlignment(time.Nanosecond)), "WithAlignment: 1ns"},
		{fixed(1, s, WithPrefix("")), "WithPrefix: the prefix is empty"},
		{fixed(1, s, WithClock(nil)), "WithClock: the clock is nil"},
		{fixed(1, s, nil), "option 1 is nil"},
		{fixed(1, s, WithPrefix("a"), WithPrefix("b")), "WithPrefix is given twice"},

		{sliding(0, s), "the limit is 0"},
		{sliding(1, time.Microsecond), "the window is 1µs"},
		{sliding(1, s+1), "the window is 1.000000001s; it must be a whole number of microseconds"},
		{sliding(1, s, WithSubWindows(0)), "WithSubWindows: 0 is not between 1 and 100000"},
		{sliding(1, s, WithSubWindows(100_001)), "WithSubWindows: 100001"},
		{sliding(1, s, WithSubWindows(7)), "the window 1s is not divisible into 7 sub-windows"},
		{sliding(1, s, WithStorage(3)), "WithStorage: 3 is not one of Hash, List and ZSet"},
		{sliding(1, s, WithStorage(-1)), "WithStorage: -1"},
		{sliding(1, s, WithStorage(ZSet), WithSubWindows(10)), "WithSubWindows: the storage ZSet is exact and has none"},
		{sliding(maxZSet+1, s, WithStorage(ZSet)), "the limit is 1000001; with the storage ZSet"},

		{log(nil), "there are 0 rules; give 1 to 100"},
		{log(make([]Rule, 101)), "there are 101 rules"},
		{log([]Rule{{0, s}}), "the limit is 0"},
		{log([]Rule{{1, 0}}), "the window is 0s"},
		{log([]Rule{{10, time.Minute}, {20, s}}), "the rule of 20 per 1s never applies beside 10 per 1m0s; leave it out"},
		{log([]Rule{{10, s}, {10, time.Minute}}), "the rule of 10 per 1s never applies beside 10 per 1m0s"},
		{log([]Rule{{10, s}, {5, s}}), "the rule of 10 per 1s never applies beside 5 per 1s"},
		{log([]Rule{{5, s}, {5, s}}), "the rule of 5 per 1s never applies beside 5 per 1s"},
		{log([]Rule{{5, s}}, WithResolution(0)), "WithResolution: 0s"},
		{log([]Rule{{5, s}}, WithResolution(1500)), "WithResolution: 1.5µs"},
		{log([]Rule{{5, s}, {50, time.Hour}}, WithResolution(2*s)), "WithResolution: 2s is more than the window 1s"},

		{token(PerSecond(0), 1), "the rate's Count is 0"},
		{token(Per(1, 0), 1), "the rate's Period is 0s"},
		{token(Per(1, 1500), 1), "the rate's Period is 1.5µs"},
		{token(PerSecond(1), 0), "the burst is 0"},
		{token(Per(999_999_937, 1000*time.Hour), 999_999_937), "beyond what Redis holds exactly; lower the burst"},
		{token(PerHour(1), 1_000_000), "takes more than 625499h56m53.685248s to refill"},
		{token(PerSecond(1), 1, WithRefillEvery(0)), "WithRefillEvery: 0s"},
		{token(Per(999_999_937, time.Hour), 1, WithRefillEvery(100*time.Hour)), "WithRefillEvery: 100h0m0s at this rate needs"},
		{token(PerHour(1), 100_000, WithRefillEvery(time.Millisecond)), ""},
		{leaky(PerSecond(1), -1), "the capacity is -1"},
		{leaky(PerSecond(-1), 1), "the rate's Count is -1"},
	} {
		if test.says == "" {
			require.NoError(t, test.err)
			continue
		}
		require.ErrorIs(t, test.err, ErrInvalidConfig, test.says)
		require.ErrorContains(t, test.err, test.says)
	}
	_, err := NewTokenBucket(nil, PerSecond(1), 1)
	require.ErrorIs(t, err, ErrInvalidConfig)
	require.ErrorContains(t, err, "the client is nil")
	_, err = NewTokenBucket((*redis.Client)(nil), PerSecond(1), 1)
	require.ErrorIs(t, err, ErrInvalidConfig)
	require.ErrorContains(t, err, "the client is nil")
	client := onMini(t).client.(*redis.Client)
	_, err = NewTokenBucket(client.Pipeline(), PerSecond(1), 1)
	require.ErrorIs(t, err, ErrInvalidConfig)
	require.ErrorContains(t, err, "the client is a pipeline")
}

func TestRulesAreSortedWithoutTouchingTheCallers(t *testing.T) {
	rules := []Rule{{100, time.Hour}, {10, time.Minute}, {1, time.Second}}
	_, err := NewSlidingLog(offline{t}, rules)
	require.NoError(t, err)
	require.Equal(t, []Rule{{100, time.Hour}, {10, time.Minute}, {1, time.Second}}, rules)
}

func TestRates(t *testing.T) {
	require.Equal(t, Rate{5, time.Second}, PerSecond(5))
	require.Equal(t, Rate{5, time.Minute}, PerMinute(5))
	require.Equal(t, Rate{5, time.Hour}, PerHour(5))
	require.Equal(t, Rate{5, 90 * time.Second}, Per(5, 90*time.Second))
	require.Equal(t, []string{"Hash", "List", "ZSet", "unknown storage"}, []string{Hash.String(), List.String(), ZSet.String(), Storage(9).String()})
}

func TestSlidingLogNamesTheRuleThatGoverns(t *testing.T) {
	s := onMini(t)
	l := Must(NewSlidingLog(s.client, []Rule{{5, time.Minute}, {2, time.Second}}))
	must := must(t)
	const sec, min = time.Second, time.Minute
	require.Equal(t, Result{Allowed: true, Limit: 2, Window: sec, Remaining: 1, ResetAfter: min}, must(l.TryAcquire(ctx, "k")))
	require.Equal(t, Result{Allowed: true, Limit: 2, Window: sec, Remaining: 0, ResetAfter: min}, must(l.TryAcquire(ctx, "k")))
	require.Equal(t, Result{Limit: 2, Window: sec, RetryAfter: sec, ResetAfter: min}, must(l.TryAcquire(ctx, "k")))
	s.advance(sec)
	require.Equal(t, Result{Allowed: true, Limit: 2, Window: sec, Remaining: 1, ResetAfter: min}, must(l.TryAcquire(ctx, "k")))
	s.advance(sec)
	require.Equal(t, Result{Allowed: true, Limit: 2, Window: sec, Remaining: 1, ResetAfter: min}, must(l.TryAcquire(ctx, "k")), "of two with as much left, the shorter")
	s.advance(sec)
	require.Equal(t, Result{Allowed: true, Limit: 5, Window: min, Remaining: 0, ResetAfter: min}, must(l.TryAcquire(ctx, "k")), "the minute has less left")
	require.Equal(t, Result{Limit: 5, Window: min, RetryAfter: min - 3*sec, ResetAfter: min}, must(l.TryAcquire(ctx, "k")), "the minute blocks longest")
	s.advance(min - 3*sec - time.Microsecond)
	require.Equal(t, Result{Limit: 5, Window: min, RetryAfter: time.Microsecond, ResetAfter: 3*sec + time.Microsecond}, must(l.TryAcquire(ctx, "k")))
	s.advance(time.Microsecond)
	require.True(t, must(l.TryAcquire(ctx, "k")).Allowed)
}

func TestClockOutsideItsRangeIsAnError(t *testing.T) {
	for _, at := range []time.Time{{}, time.Unix(-1, 0), time.Date(2113, 1, 1, 0, 0, 0, 0, time.UTC)} {
		for _, merging := range [][]Option{nil, {WithoutMerging()}} {
			l := Must(NewTokenBucket(offline{t}, PerSecond(1), 1, widen[TokenBucketOption](append(merging, WithClock(func() time.Time { return at })))...))
			r, err := l.TryAcquire(ctx, "k")
			require.ErrorIs(t, err, ErrInvalidConfig)
			require.ErrorContains(t, err, "WithClock: the clock reads")
			require.Zero(t, r)
		}
	}
}

// A change is a configuration that a key meets after another.
type change struct {
	about         string
	before, after func(c Client) (Limiter, error)
	use           int           // permits taken before
	wait          time.Duration // until after
	left          int           // permits that after still grants, at once
	retry         time.Duration // of the denial that follows
}

// TestChangedConfigurationInheritsWhatWasUsed: never an error, and never more
// than the new rule would grant to a key that had used as much.
func TestChangedConfigurationInheritsWhatWasUsed(t *testing.T) {
	const s, ms = time.Second, time.Millisecond
	fixed := func(n int, w time.Duration, o ...FixedWindowOption) func(Client) (Limiter, error) {
		return func(c Client) (Limiter, error) { return NewFixedWindow(c, n, w, o...) }
	}
	token := func(rate Rate, burst int, o ...TokenBucketOption) func(Client) (Limiter, error) {
		return func(c Client) (Limiter, error) { return NewTokenBucket(c, rate, burst, o...) }
	}
	sliding := func(storage Storage, n int, w time.Duration, buckets int) func(Client) (Limiter, error) {
		return func(c Client) (Limiter, error) {
			o := []SlidingWindowOption{WithStorage(storage)}
			if storage != ZSet {
				o = append(o, WithSubWindows(buckets))
			}
			return NewSlidingWindow(c, n, w, o...)
		}
	}
	log := func(o []SlidingLogOption, rules ...Rule) func(Client) (Limiter, error) {
		return func(c Client) (Limiter, error) { return NewSlidingLog(c, rules, o...) }
	}
	every := WithRefillEvery(s)
	for _, test := range []change{
		{"fixed: higher limit", fixed(5, s), fixed(8, s), 5, 100 * ms, 3, 900 * ms},
		{"fixed: lower limit", fixed(5, s), fixed(3, s), 4, 100 * ms, 0, 900 * ms},
		{"fixed: longer window, from the same opening", fixed(5, s), fixed(5, 10*s), 3, 400 * ms, 2, 9600 * ms},
		{"fixed: shorter window, from the same opening", fixed(5, 10*s), fixed(5, s), 3, 400 * ms, 2, 600 * ms},
		{"fixed: shorter window, over by now", fixed(5, 10*s), fixed(5, s), 5, 2 * s, 5, s},
		{"fixed: longer window, used up", fixed(3, s), fixed(3, 10*s), 3, 400 * ms, 0, 9600 * ms},
		{"fixed: odd window", fixed(5, 123_456*ms), fixed(5, 200*s), 3, 400 * ms, 2, 200*s - 400*ms + 6*ms}, // it keeps five digits
		{"fixed: aligned", fixed(5, s), fixed(5, s, WithAlignment(0)), 3, 400 * ms, 2, 600 * ms},
		{"fixed: no longer aligned", fixed(5, s, WithAlignment(0)), fixed(5, s), 3, 400 * ms, 2, 600*ms + 3*ms}, // what is left of its TTL

		{"token: higher rate", token(PerSecond(1), 10), token(PerSecond(2), 10), 10, 3 * s, 3, 500 * ms},
		{"token: lower rate", token(PerSecond(2), 10), token(PerSecond(1), 10), 10, 2 * s, 4, s},
		{"token: higher burst", token(PerSecond(1), 10), token(PerSecond(1), 20), 10, s, 11, s},
		{"token: lower burst", token(PerSecond(1), 10), token(PerSecond(1), 5), 10, 0, 0, s},
		{"token: the same size of a permit", token(PerSecond(3), 10), token(PerSecond(1), 10), 10, 500 * ms, 1, 500 * ms},
		{"token: another size of a permit", token(PerSecond(3), 10), token(PerSecond(2), 10), 10, 500 * ms, 1, 250 * ms},
		{"token: fractions round against the caller", token(PerSecond(3), 10), token(PerSecond(7), 10), 10, 100 * ms, 0, 100 * ms},
		{"token: in steps", token(PerSecond(1), 10), token(PerSecond(1), 10, every), 10, 3 * s, 3, s},
		{"token: no longer in steps", token(PerSecond(1), 10, every), token(PerSecond(1), 10), 10, 2500 * ms, 2, 500 * ms},
		{"token: other steps", token(PerSecond(1), 10, every), token(PerSecond(2), 10, WithRefillEvery(2*s)), 10, 2500 * ms, 4, 1500 * ms},

		{"sliding: higher limit", sliding(Hash, 5, s, 10), sliding(Hash, 8, s, 10), 5, 200 * ms, 3, 1099999*time.Microsecond - 200*ms},
		{"sliding: lower limit", sliding(List, 5, s, 10), sliding(List, 3, s, 10), 5, 200 * ms, 0, 1099999*time.Microsecond - 200*ms},
		{"sliding: other sub-windows", sliding(Hash, 5, s, 10), sliding(Hash, 5, s, 2), 3, 600 * ms, 2, 1099999*time.Microsecond - 600*ms},
		{"sliding: longer window", sliding(List, 5, s, 10), sliding(List, 5, 10*s, 10), 3, 600 * ms, 2, 10*s + 99999*time.Microsecond - 600*ms},
		{"sliding: ZSet, longer window", sliding(ZSet, 5, s, 0), sliding(ZSet, 5, 10*s, 0), 3, 600 * ms, 2, 9400 * ms},

		{"log: more rules", log(nil, Rule{5, s}), log(nil, Rule{5, s}, Rule{6, 10 * s}), 4, 500 * ms, 1, 500 * ms},
		{"log: fewer rules", log(nil, Rule{5, s}, Rule{6, 10 * s}), log(nil, Rule{6, 10 * s}), 5, 0, 1, 10 * s},
		{"log: coarser", log(nil, Rule{5, s}), log([]SlidingLogOption{WithResolution(100 * ms)}, Rule{5, s}), 3, 0, 2, s},
	} {
		t.Run(test.about, func(t *testing.T) {
			s := onMini(t)
			before, err := test.before(s.client)
			require.NoError(t, err)
			after, err := test.after(s.client)
			require.NoError(t, err)
			for range test.use {
				require.True(t, must(t)(before.TryAcquire(ctx, "k")).Allowed)
			}
			s.advance(test.wait)
			for i := range test.left {
				r := must(t)(after.TryAcquire(ctx, "k"))
				require.True(t, r.Allowed, "grant %d: %+v", i+1, r)
			}
			r := must(t)(after.TryAcquire(ctx, "k"))
			require.False(t, r.Allowed, "%+v", r)
			require.Equal(t, test.retry, r.RetryAfter)
		})
	}
}

// TestChangedRateHoldsFromTheFirstDenial: it does not take a grant by the old
// rate to change to the new one.
func TestChangedRateHoldsFromTheFirstDenial(t *testing.T) {
	slow, fast := PerHour(1), PerSecond(100)
	every := WithRefillEvery(500 * time.Millisecond)
	for _, test := range []struct {
		about         string
		before, after []TokenBucketOption
		from, to      Rate
	}{
		{"raised", nil, nil, slow, fast},
		{"lowered", nil, nil, fast, slow},
		{"raised, now in steps", nil, []TokenBucketOption{every}, slow, fast},
		{"raised, no longer in steps", []TokenBucketOption{every}, nil, PerMinute(1), fast},
	} {
		t.Run(test.about, func(t *testing.T) {
			s := onMini(t)
			before := Must(NewTokenBucket(s.client, test.from, 5, test.before...))
			after := Must(NewTokenBucket(s.client, test.to, 5, test.after...))
			must(t)(before.TryAcquireN(ctx, "k", 5))
			denied := must(t)(after.TryAcquireN(ctx, "k", 3))
			require.False(t, denied.Allowed)
			s.advance(denied.RetryAfter - time.Microsecond)
			require.False(t, must(t)(after.TryAcquireN(ctx, "k", 3)).Allowed)
			s.advance(time.Microsecond)
			require.True(t, must(t)(after.TryAcquireN(ctx, "k", 3)).Allowed)
		})
	}
}

// TestChangedBucketBlocksNoLongerThanTheRule, though its clock steps back too.
func TestChangedBucketBlocksNoLongerThanTheRule(t *testing.T) {
	s := onMini(t)
	steps := Must(NewTokenBucket(s.client, PerSecond(2), 5, WithRefillEvery(500*time.Millisecond)))
	flow := Must(NewTokenBucket(s.client, PerSecond(2), 5))
	for _, change := range [][2]Limiter{{steps, flow}, {flow, steps}} {
		require.NoError(t, wipe(s))
		must(t)(change[0].TryAcquireN(ctx, "k", 5))
		s.advance(-time.Hour)
		denied := must(t)(change[1].TryAcquire(ctx, "k"))
		require.False(t, denied.Allowed)
		require.LessOrEqual(t, denied.RetryAfter, 2500*time.Millisecond)
		s.advance(denied.RetryAfter)
		require.True(t, must(t)(change[1].TryAcquire(ctx, "k")).Allowed)
	}
}

// TestAlignedWindowKeepsItsCountWhenTheClockStepsBackOverItsStart, and so two
// hosts whose clocks differ by a hair do not take turns in opening it.
func TestAlignedWindowKeepsItsCountWhenTheClockStepsBackOverItsStart(t *testing.T) {
	s := onMini(t)
	h := &hand{at: start}
	for name, l := range map[string]Limiter{
		"server": Must(NewFixedWindow(s.client, 5, time.Second, WithAlignment(0))),
		"caller": Must(NewFixedWindow(s.client, 5, time.Second, WithAlignment(0), WithClock(h.now), WithPrefix("c"))),
	} {
		granted := 0
		for i := range 40 {
			at := start.Add(time.Duration(i%2*2-1) * time.Millisecond) // 1 ms before and after
			s.move(at)
			h.set(at)
			if must(t)(l.TryAcquire(ctx, name)).Allowed {
				granted++
			}
		}
		require.LessOrEqual(t, granted, 10, name)
		require.Greater(t, granted, 5, name)
	}
}

func TestErrorsAreTheContracts(t *testing.T) {
	for _, err := range []error{ErrInvalidConfig, ErrInvalidKey, ErrInvalidPermits, ErrExceedsLimit, ErrDenied, ErrCorruptState} {
		require.Regexp(t, "^ratelimit: ", err.Error())
		require.True(t, errors.Is(err, err))
	}
}

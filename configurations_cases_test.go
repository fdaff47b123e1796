package ratelimit_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
)

// A plan is the limit of a configuration, and its clock.
type plan struct {
	limit    int
	window   time.Duration
	byCaller bool
	ahead    time.Duration
	late     time.Duration
	maxSkew  time.Duration
}

// inParallel is t.Parallel with -short, where no test uses the server that all share.
func inParallel(t *testing.T) {
	if testing.Short() {
		t.Parallel()
	}
}

// eachKind runs a test for every kind, on miniredis and on a server, with the server's
// clock and with the callers'; merged says whether calls that follow each other at one
// instant go together.
func eachKind(t *testing.T, test func(t *testing.T, open func(plans ...plan) *contest, byCaller, merged bool)) {
	for server, open := range map[string]func(t testing.TB) *limitertest.Stage{
		"miniredis": limitertest.OnMiniredis, "Redis": limitertest.OnHeldRedis,
	} {
		t.Run(server, func(t *testing.T) {
			s := open(t)
			for _, k := range limitertest.Kinds() {
				if k.Tenants { // see TestTenantsByTwoRulesGetWhatBothAllow
					continue
				}
				for _, byCaller := range []bool{false, true} {
					for _, merged := range []bool{false, true} {
						switch {
						case testing.Short() && !(merged && byCaller), // one of the four
							(server == "Redis" || limitertest.Rounds(2, 1) == 1) && merged != byCaller: // two; all with RATELIMIT_LONG
							continue
						}
						t.Run(fmt.Sprintf("%s, caller's clock %v, merged %v", k.Name, byCaller, merged), func(t *testing.T) {
							rng := model.Seeded(limitertest.Seed(t))
							test(t, func(plans ...plan) *contest {
								for i := range plans {
									plans[i].byCaller = byCaller
								}
								c := contestOf(t, s, rng, configurationsOf(t, s, k, plans...)...)
								c.looks = 10
								return c
							}, byCaller, merged)
						})
					}
				}
			}
		})
	}
}

func configurationsOf(t *testing.T, s *limitertest.Stage, k limitertest.Kind, plans ...plan) []*configuration {
	var all []*configuration
	for _, p := range plans {
		r := &configuration{about: fmt.Sprintf("%s %d per %v", k.Name, p.limit, p.window), most: p.limit, bound: k.Bound(p.limit, p.window)}
		var opts []ratelimit.Option
		if p.byCaller {
			opts = r.ownClock(max(p.maxSkew, time.Millisecond))
			r.ahead, r.late = p.ahead, p.late
		}
		l, err := k.Build(s.Client, p.limit, p.window, opts...)
		require.NoError(t, err)
		r.limiter = l
		all = append(all, r)
	}
	return all
}

// ones are n calls for one permit, in one execution if merged.
func (c *contest) ones(t *testing.T, by, n int, merged bool) {
	t.Helper()
	late := time.Duration(0)
	if r := c.all[by]; r.late > 0 {
		late = time.Duration(c.rng.Int64N(int64(r.late))).Truncate(time.Microsecond)
	}
	if merged && n > 1 {
		calls := make([]int, n)
		for i := range calls {
			calls[i] = 1
		}
		c.call(t, by, late, calls...)
		return
	}
	for range n {
		c.call(t, by, late, 1)
	}
}

func (c *contest) allowed() (sum int) {
	for _, g := range c.allowedCalls {
		sum += g.N
	}
	return sum
}

// TestTwoLimitsAtOneInstant: 100 an hour and 10 an hour; every tenth call is for the
// smaller. A denial by the smaller must not make room for the larger.
func TestTwoLimitsAtOneInstant(t *testing.T) {
	raceflag.SkipSequential(t)
	inParallel(t)
	eachKind(t, func(t *testing.T, open func(...plan) *contest, _, merged bool) {
		c := open(plan{limit: 100, window: time.Hour}, plan{limit: 10, window: time.Hour})
		for range 20 {
			c.ones(t, 0, 9, merged)
			c.ones(t, 1, 1, merged)
		}
		c.settle(t)
		require.Equal(t, 100, c.allowed())
	})
}

// TestOldWindowBesideAShorterOne: 100 per 10 s and 10 per 100 ms, in turns for 2 s.
func TestOldWindowBesideAShorterOne(t *testing.T) {
	raceflag.SkipSequential(t)
	inParallel(t)
	eachKind(t, func(t *testing.T, open func(...plan) *contest, _, merged bool) {
		c := open(plan{limit: 100, window: 10 * time.Second}, plan{limit: 10, window: 100 * time.Millisecond})
		for i := range 100 {
			c.ones(t, i%2, 1+i%5, merged)
			c.Advance(20 * time.Millisecond)
		}
		c.settle(t)
		require.GreaterOrEqual(t, c.allowed(), 100)
	})
}

// TestCallsArriveInAnotherOrderThanTheyReadTheirClockIn: many callers of one process,
// with a perfect clock.
func TestCallsArriveInAnotherOrderThanTheyReadTheirClockIn(t *testing.T) {
	raceflag.SkipSequential(t)
	inParallel(t)
	const limit, window, late = 100, 100 * time.Millisecond, 2 * time.Millisecond
	eachKind(t, func(t *testing.T, open func(...plan) *contest, byCaller, merged bool) {
		c := open(plan{limit: limit, window: window, late: late, maxSkew: late})
		for range 100 {
			c.ones(t, 0, 1+c.rng.IntN(6), merged)
			c.Advance(time.Millisecond)
		}
		c.settle(t)
		require.GreaterOrEqual(t, c.allowed(), limit)
	})
}

// TestClocksApart: two hosts whose clocks differ share one limit, also once it is full again.
func TestClocksApart(t *testing.T) {
	raceflag.SkipSequential(t)
	inParallel(t)
	for _, apart := range []time.Duration{5 * time.Millisecond, 10 * time.Second} {
		t.Run(apart.String(), func(t *testing.T) {
			eachKind(t, func(t *testing.T, open func(...plan) *contest, byCaller, merged bool) {
				const limit = 40
				window := 20 * apart // at 5 ms
				if apart > time.Second {
					window = time.Second
				}
				c := open(plan{limit: limit, window: window, maxSkew: apart}, plan{limit: limit, window: window, ahead: apart, maxSkew: apart})
				for range 2 { // at one instant
					for range 50 {
						c.ones(t, 0, 1, merged)
						c.ones(t, 1, 1, merged)
					}
					c.settle(t)
					c.Advance(4*window + 2*apart + time.Second)
				}
				c.settle(t)
			})
		})
	}
}

// TestRollout: instances of an old and a new configuration, first only the old ones, for
// a while both, then only the new ones.
func TestRollout(t *testing.T) {
	raceflag.SkipSequential(t)
	inParallel(t)
	rules := []plan{
		{limit: 10, window: time.Second},
		{limit: 100, window: time.Second},
		{limit: 10, window: 10 * time.Second},
		{limit: 100, window: 10 * time.Second},
		{limit: 3, window: 100 * time.Millisecond},
	}
	rules = rules[4-limitertest.Rounds(4, 1):] // all with RATELIMIT_LONG, otherwise two
	eachKind(t, func(t *testing.T, open func(...plan) *contest, byCaller, merged bool) {
		for i, old := range rules {
			for j, changed := range rules {
				if i == j {
					continue
				}
				c := open(old, changed)
				step := min(old.window, changed.window) / 10
				for tick := range 60 {
					if tick < 40 {
						c.ones(t, 0, 1+c.rng.IntN(4), merged)
					}
					if tick >= 20 {
						c.ones(t, 1, 1+c.rng.IntN(4), merged)
					}
					c.Advance(step)
				}
				c.settle(t)
				for _, r := range c.all { // neither is harmed for longer than the longest window
					c.Advance(c.longest() + 2*time.Second)
					*r.reads = c.Now.Add(r.ahead)
					got := must(t)(r.limiter.TryAcquireN(ctx, "k", r.most))
					require.True(t, got.Allowed, "%+v", got)
				}
			}
		}
	})
}

// TestLocalClocksApart: the clock of a LocalTokenBucket, too, may be read in one order
// and used in another, or differ between goroutines.
func TestLocalClocksApart(t *testing.T) {
	for _, apart := range []time.Duration{5 * time.Millisecond, 10 * time.Second} {
		rng := rand.New(rand.NewPCG(1, 2))
		at, ahead := limitertest.Start, time.Duration(0)
		l := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1000), 100,
			ratelimit.WithClock(func() time.Time { return at.Add(ahead) })))
		var allowed []limitertest.AllowedCall
		for i := range 4000 {
			if rng.IntN(20) == 0 {
				at = at.Add(time.Duration(rng.IntN(3000)) * time.Microsecond)
			}
			ahead = time.Duration(i%2) * apart
			if must(t)(l.TryAcquire(ctx, "k")).Allowed {
				allowed = append(allowed, limitertest.AllowedCall{At: at.UnixMicro(), N: 1})
			}
		}
		bound := limitertest.Bound{Limit: 100, Window: 100 * time.Millisecond, Rate: ratelimit.PerSecond(1000)}
		require.Empty(t, limitertest.Exceeded([]limitertest.Bound{bound}, allowed, apart))
	}
}

// TestChangedConfigurationInheritsWhatWasUsed: never an error, and never more
// than the new rule would allow a key that had used as much.
func TestChangedConfigurationInheritsWhatWasUsed(t *testing.T) {
	const s, ms = time.Second, time.Millisecond
	fixed := func(n int, w time.Duration, o ...ratelimit.Option) func(ratelimit.Client) (ratelimit.Limiter, error) {
		return func(c ratelimit.Client) (ratelimit.Limiter, error) { return ratelimit.NewFixedWindow(c, n, w, o...) }
	}
	token := func(rate ratelimit.Rate, burst int, o ...ratelimit.Option) func(ratelimit.Client) (ratelimit.Limiter, error) {
		return func(c ratelimit.Client) (ratelimit.Limiter, error) {
			return ratelimit.NewTokenBucket(c, rate, burst, o...)
		}
	}
	sliding := func(storage ratelimit.Storage, n int, w time.Duration, buckets int) func(ratelimit.Client) (ratelimit.Limiter, error) {
		return func(c ratelimit.Client) (ratelimit.Limiter, error) {
			o := []ratelimit.Option{ratelimit.WithStorage(storage)}
			if storage != ratelimit.StorageZSet {
				o = append(o, ratelimit.WithSubWindows(buckets))
			}
			return ratelimit.NewSlidingWindow(c, n, w, o...)
		}
	}
	log := func(o []ratelimit.Option, rules ...ratelimit.Rule) func(ratelimit.Client) (ratelimit.Limiter, error) {
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
		{"fixed: no longer aligned", fixed(5, s, ratelimit.WithAlignment(0)), fixed(5, s), 3, 400 * ms, 2, 600 * ms},

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

		{"sliding: higher limit", sliding(ratelimit.StorageHash, 5, s, 10), sliding(ratelimit.StorageHash, 8, s, 10), 5, 200 * ms, 3, 1099999*time.Microsecond - 200*ms},
		{"sliding: lower limit", sliding(ratelimit.StorageList, 5, s, 10), sliding(ratelimit.StorageList, 3, s, 10), 5, 200 * ms, 0, 1099999*time.Microsecond - 200*ms},
		{"sliding: other sub-windows", sliding(ratelimit.StorageHash, 5, s, 10), sliding(ratelimit.StorageHash, 5, s, 2), 3, 600 * ms, 2, 1099999*time.Microsecond - 600*ms},
		{"sliding: longer window", sliding(ratelimit.StorageList, 5, s, 10), sliding(ratelimit.StorageList, 5, 10*s, 10), 3, 600 * ms, 2, 10*s + 99999*time.Microsecond - 600*ms},
		{"sliding: ZSet, longer window", sliding(ratelimit.StorageZSet, 5, s, 0), sliding(ratelimit.StorageZSet, 5, 10*s, 0), 3, 600 * ms, 2, 9400 * ms},

		{"log: more rules", log(nil, ratelimit.Rule{5, s}), log(nil, ratelimit.Rule{5, s}, ratelimit.Rule{6, 10 * s}), 4, 500 * ms, 1, 500 * ms},
		{"log: fewer rules", log(nil, ratelimit.Rule{5, s}, ratelimit.Rule{6, 10 * s}), log(nil, ratelimit.Rule{6, 10 * s}), 5, 0, 1, 10 * s},
		{"log: coarser", log(nil, ratelimit.Rule{5, s}), log([]ratelimit.Option{ratelimit.WithResolution(100 * ms)}, ratelimit.Rule{5, s}), 3, 0, 2, s},
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
		before, after []ratelimit.Option
		from, to      ratelimit.Rate
	}{
		{"raised", nil, nil, slow, fast},
		{"lowered", nil, nil, fast, slow},
		{"raised, now in steps", nil, []ratelimit.Option{every}, slow, fast},
		{"raised, no longer in steps", []ratelimit.Option{every}, nil, ratelimit.PerMinute(1), fast},
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

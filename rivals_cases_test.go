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

// A plan is the limit of a rival, and its clock.
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
								c := contestOf(t, s, rng, rivalsOf(t, s, k, plans...)...)
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

func rivalsOf(t *testing.T, s *limitertest.Stage, k limitertest.Kind, plans ...plan) []*rival {
	var rivals []*rival
	for _, p := range plans {
		r := &rival{about: fmt.Sprintf("%s %d per %v", k.Name, p.limit, p.window), most: p.limit, bound: k.Bound(p.limit, p.window)}
		var opts []ratelimit.Option
		if p.byCaller {
			opts = r.ownClock(max(p.maxSkew, time.Millisecond))
			r.ahead, r.late = p.ahead, p.late
		}
		l, err := k.Build(s.Client, p.limit, p.window, opts...)
		require.NoError(t, err)
		r.limiter = l
		rivals = append(rivals, r)
	}
	return rivals
}

// ones are n calls for one permit, in one execution if merged.
func (c *contest) ones(t *testing.T, by, n int, merged bool) {
	t.Helper()
	late := time.Duration(0)
	if r := c.rivals[by]; r.late > 0 {
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
				for _, r := range c.rivals { // neither is harmed for longer than the longest window
					c.Advance(c.longest() + 2*time.Second)
					r.reads = c.Now.Add(r.ahead)
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

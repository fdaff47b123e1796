package limitertest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/algorithms"
	"github.com/tryacquire/ratelimit/internal/exact"
	"github.com/tryacquire/ratelimit/internal/testing/model"
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
	"github.com/tryacquire/ratelimit/simulate"
)

// A Pair is a limiter and the models that it must agree with.
type Pair struct {
	About   string
	Limiter ratelimit.Limiter
	Keys
	Model func() model.Model // of a key that was never used

	// Simulated is the same limiter for package simulate.
	Simulated simulate.Algorithm

	// Broken describes how the permits taken from one key break the rule that holds in
	// every interval, or is "". It is nil for a limiter whose rule holds only in its own
	// windows.
	Broken func(taken []model.Taken) string

	// Bound is what the limiter allows beside others of its algorithm on the same key.
	Bound Bound
}

// A Family draws random configurations of one limiter.
type Family struct {
	Name string
	Draw func(rng *rand.Rand, c ratelimit.Client, opts ...ratelimit.Option) (Pair, error)
	// Timeless is true for limiters that use only the expiry of their keys, and no clock,
	// unless they get one with WithClock.
	Timeless bool
}

// Families are all algorithms and storages.
func Families() []Family {
	fixedWindow := func(limit func(*rand.Rand) int, window func(*rand.Rand) time.Duration) func(*rand.Rand, ratelimit.Client, ...ratelimit.Option) (Pair, error) {
		return func(rng *rand.Rand, c ratelimit.Client, opts ...ratelimit.Option) (Pair, error) {
			n, w := limit(rng), window(rng)
			l, err := ratelimit.NewFixedWindow(c, n, w, opts...)
			return Pair{
				About: fmt.Sprintf("%d per %v", n, w), Limiter: l, Bound: Bound{Limit: n, Window: w},
				Simulated: simulate.FixedWindow{Limit: n, Window: w},
				Model: func() model.Model {
					if callers := len(opts) > 0; callers || n > exact.Counted { // its clock; its start
						m := model.NewClockWindow(n, w)
						m.CallersClock = callers
						return m
					}
					return model.NewFixedWindow(n, w)
				},
			}, err
		}
	}
	slidingWindow := func(storage ratelimit.Storage) func(*rand.Rand, ratelimit.Client, ...ratelimit.Option) (Pair, error) {
		return func(rng *rand.Rand, c ratelimit.Client, opts ...ratelimit.Option) (Pair, error) {
			n, w, parts := drawLimit(rng), drawWindow(rng), pick(rng, 1, 2, 3, 10, 60)
			if storage == ratelimit.StorageZSet {
				n = drawSmall(rng)
			}
			for w.Microseconds()%int64(parts) != 0 {
				parts--
			}
			own := append(opts, ratelimit.WithStorage(storage))
			callers := len(opts) > 0 // its clock
			fresh := func() model.Model {
				m := model.NewSlidingZSet(n, w)
				m.CallersClock = callers
				return m
			}
			slot, simulated := time.Duration(0), simulate.SlidingWindow{Limit: n, Window: w, Storage: storage}
			if storage != ratelimit.StorageZSet {
				slot, simulated.SubWindows = w/time.Duration(parts), parts
				own = append(own, ratelimit.WithSubWindows(parts))
				fresh = func() model.Model {
					m := model.NewSlidingWindow(n, w, parts)
					m.CallersClock = callers
					return m
				}
			}
			l, err := ratelimit.NewSlidingWindow(c, n, w, own...)
			return Pair{
				About: fmt.Sprintf("%v: %d per %v in %d", storage, n, w, parts), Limiter: l, Model: fresh, Simulated: simulated,
				Broken: func(taken []model.Taken) string { return brokenRule(taken, n, w) },
				Bound:  Bound{Limit: n, Window: w, Rules: []model.Rule{{Limit: n, Window: w}}, Slot: slot},
			}, err
		}
	}
	families := []Family{
		{Name: "FixedWindow", Timeless: true, Draw: fixedWindow(drawSmall, drawWindow)},
		{Name: "FixedWindow large", Draw: fixedWindow(drawLarge, drawWindow)},
		{Name: "FixedWindow wide", Timeless: true, Draw: fixedWindow(
			func(*rand.Rand) int { return exact.Counted },
			func(*rand.Rand) time.Duration { return 720 * time.Hour },
		)},
		{Name: "FixedWindow aligned", Draw: func(rng *rand.Rand, c ratelimit.Client, opts ...ratelimit.Option) (Pair, error) {
			n, w := drawLimit(rng), drawWindow(rng)
			offset := pick(rng, 0, -2*time.Hour, time.Millisecond, 333*time.Microsecond, 48*time.Hour)
			l, err := ratelimit.NewFixedWindow(c, n, w, append(opts, ratelimit.WithAlignment(offset))...)
			return Pair{
				About: fmt.Sprintf("%d per %v from %v", n, w, offset), Limiter: l,
				Simulated: simulate.FixedWindow{Limit: n, Window: w, Aligned: true, Offset: offset},
				Model: func() model.Model {
					m := model.NewAlignedWindow(n, w, offset)
					m.CallersClock = len(opts) > 0
					return m
				},
				Bound: Bound{Limit: n, Window: w, Aligned: true},
			}, err
		}},
		{Name: "CalendarWindow", Draw: func(rng *rand.Rand, c ratelimit.Client, opts ...ratelimit.Option) (Pair, error) {
			n, calendar, same := drawLimit(rng), ratelimit.Calendar{}, model.Calendar{}
			loc := Zones[rng.IntN(len(Zones))]
			bound := Bound{Limit: n, Aligned: true}
			switch rng.IntN(3) {
			case 0:
				calendar, same = ratelimit.Daily(loc), model.Days(loc)
				bound.Window = 22 * time.Hour
			case 1:
				first := time.Weekday(rng.IntN(7))
				calendar, same = ratelimit.Weekly(first, loc), model.Weeks(first, loc)
				bound.Window = 166 * time.Hour
			default:
				day := 1 + rng.IntN(31)
				calendar, same = ratelimit.Monthly(day, loc), model.Months(day, loc)
				bound.Window = 27 * 24 * time.Hour
			}
			bound.Slot = bound.Window / 4 // some windows are longer
			l, err := ratelimit.NewCalendarWindow(c, n, calendar, opts...)
			return Pair{
				About: fmt.Sprintf("%d %v", n, calendar), Limiter: l, Bound: bound,
				Simulated: simulate.CalendarWindow{Limit: n, Calendar: calendar},
				Model: func() model.Model {
					m := model.NewCalendarWindow(n, same)
					m.CallersClock = len(opts) > 0
					return m
				},
			}, err
		}},
		{Name: "SlidingLog", Draw: func(rng *rand.Rand, c ratelimit.Client, opts ...ratelimit.Option) (Pair, error) {
			var rules []ratelimit.Rule
			var same []model.Rule
			n, w := 0, time.Duration(0)
			for range 1 + rng.IntN(3) {
				n += drawLimit(rng)
				w += drawWindow(rng)
				rules = append(rules, ratelimit.Rule{Limit: n, Window: w})
				same = append(same, model.Rule{Limit: n, Window: w})
			}
			resolution := pick(rng, time.Microsecond, 7*time.Microsecond, rules[0].Window/10)
			rng.Shuffle(len(rules), func(i, j int) { rules[i], rules[j] = rules[j], rules[i] })
			own := opts
			if resolution > time.Microsecond {
				own = append(own, ratelimit.WithResolution(resolution))
			}
			l, err := ratelimit.NewSlidingLog(c, rules, own...)
			return Pair{
				About: fmt.Sprintf("%v to %v", rules, resolution), Limiter: l,
				Simulated: simulate.SlidingLog{Rules: rules, Resolution: resolution},
				Bound:     Bound{Limit: n, Window: w, Rules: same, Slot: resolution},
				Model: func() model.Model {
					m := model.NewSlidingLog(same, resolution)
					m.CallersClock = len(opts) > 0
					return m
				},
				Broken: func(taken []model.Taken) string {
					for _, r := range same {
						if broken := brokenRule(taken, r.Limit, r.Window); broken != "" {
							return broken
						}
					}
					return ""
				},
			}, err
		}},
		{Name: "TokenBucket", Draw: func(rng *rand.Rand, c ratelimit.Client, opts ...ratelimit.Option) (Pair, error) {
			rate, burst := drawBucket(rng)
			exact, own := drawExact(rng)
			l, err := ratelimit.NewTokenBucket(c, rate, burst, append(own, opts...)...)
			return Pair{
				About: fmt.Sprintf("%v, burst %d", rate, burst), Limiter: l,
				Simulated: simulate.TokenBucket{Rate: rate, Burst: burst},
				Model: func() model.Model {
					m := model.NewTokenBucket(rate.Count, rate.Period, burst)
					m.CallersClock = len(opts) > 0
					m.ExactReturns = exact
					return m
				},
				Broken: func(taken []model.Taken) string { return brokenRate(taken, rate, burst) },
				Bound:  bucketBound(rate, burst),
			}, err
		}},
		{Name: "TokenBucket stepped", Draw: func(rng *rand.Rand, c ratelimit.Client, opts ...ratelimit.Option) (Pair, error) {
			rate, burst := drawBucket(rng)
			every := pick(rng, time.Millisecond, 10*time.Millisecond, 333_333*time.Microsecond, time.Second, time.Minute)
			exact, own := drawExact(rng)
			own = append(append(own, opts...), ratelimit.WithRefillEvery(every))
			full := float64(burst) / float64(rate.Count) * float64(rate.Period)
			aligned, offset := rng.IntN(2) == 0 && full < float64(720*time.Hour), time.Duration(0) // miniredis has no time after 2262
			about, bound := fmt.Sprintf("%v every %v, burst %d", rate, every, burst), steppedBound(rate, burst, every)
			if aligned {
				offset = pick(rng, 0, -2*time.Hour, time.Millisecond, 333*time.Microsecond)
				own = append(own, ratelimit.WithAlignment(offset))
				about += fmt.Sprintf(", aligned to %v", offset)
				bound.Aligned, bound.Offset = true, offset
			}
			l, err := ratelimit.NewTokenBucket(c, rate, burst, own...)
			return Pair{
				About: about, Limiter: l,
				Simulated: simulate.TokenBucket{Rate: rate, Burst: burst, RefillEvery: every, Aligned: aligned, Offset: offset},
				Model: func() model.Model {
					m := model.NewSteppedBucket(rate.Count, rate.Period, burst, every)
					if aligned {
						m.Align(offset)
					}
					m.CallersClock = len(opts) > 0
					m.ExactReturns = exact
					return m
				},
				Bound: bound,
				Broken: func(taken []model.Taken) string {
					if exceeds, worst := model.ExceedsSteppedBucket(taken, rate.Count, rate.Period, burst, every); exceeds {
						return fmt.Sprintf("%+v", worst)
					}
					return ""
				},
			}, err
		}},
		{Name: "LeakyBucket", Draw: func(rng *rand.Rand, c ratelimit.Client, opts ...ratelimit.Option) (Pair, error) {
			rate, capacity := drawBucket(rng)
			exact := rng.IntN(2) == 0
			own := opts
			if exact {
				own = append(own, ratelimit.WithExactReturns())
			}
			l, err := ratelimit.NewLeakyBucket(c, rate, capacity, own...)
			return Pair{
				About: fmt.Sprintf("%v, capacity %d", rate, capacity), Limiter: l,
				Simulated: simulate.LeakyBucket{Rate: rate, Capacity: capacity},
				Model: func() model.Model {
					m := model.NewLeakyBucket(rate.Count, rate.Period, capacity)
					m.CallersClock = len(opts) > 0
					m.ExactReturns = exact
					return m
				},
				Broken: func(taken []model.Taken) string { return brokenRate(taken, rate, capacity) },
				Bound:  bucketBound(rate, capacity),
			}, err
		}},
	}
	for i, in := range algorithms.Storages() {
		families = append(families, Family{Name: "SlidingWindow " + in.Storage, Draw: slidingWindow(ratelimit.Storage(i))})
	}
	return families
}

// drawExact is whether a token bucket gives back exactly, and its option.
func drawExact(rng *rand.Rand) (bool, []ratelimit.Option) {
	if rng.IntN(2) == 0 {
		return false, nil
	}
	return true, []ratelimit.Option{ratelimit.WithExactReturns()}
}

func bucketBound(rate ratelimit.Rate, burst int) Bound {
	return Bound{Limit: burst, Window: model.NewTokenBucket(rate.Count, rate.Period, burst).Span(), Rate: rate}
}

func steppedBound(rate ratelimit.Rate, burst int, every time.Duration) Bound {
	return Bound{Limit: burst, Window: model.NewSteppedBucket(rate.Count, rate.Period, burst, every).Span(), Rate: rate, Step: every}
}

func brokenRule(taken []model.Taken, limit int, window time.Duration) string {
	if most := model.MaxInAnyWindow(taken, window); most > limit {
		return fmt.Sprintf("%d permits within %v", most, window)
	}
	return ""
}

func brokenRate(taken []model.Taken, rate ratelimit.Rate, burst int) string {
	if exceeds, worst := model.ExceedsBucket(taken, rate.Count, rate.Period, burst); exceeds {
		return fmt.Sprintf("%+v", worst)
	}
	return ""
}

func pick[T any](rng *rand.Rand, of ...T) T { return of[rng.IntN(len(of))] }

func drawLimit(rng *rand.Rand) int {
	if rng.IntN(6) == 0 {
		return drawLarge(rng)
	}
	return drawSmall(rng)
}

func drawSmall(rng *rand.Rand) int { return pick(rng, 1, 2, 3, 10, 100, 1+rng.IntN(50)) }

// drawLarge is at least a quarter of the bound, and above exact.Counted. Three of them are within the bound.
func drawLarge(rng *rand.Rand) int { return exact.Permits/4 + rng.IntN(exact.Permits/16) }

func drawWindow(rng *rand.Rand) time.Duration {
	return pick(rng, time.Millisecond, 7*time.Millisecond, time.Second, 90*time.Second, 123_456*time.Millisecond, time.Hour, 24*time.Hour)
}

// drawBucket is a rate and a burst. One in four is so large that one number does not hold
// the bucket's units.
func drawBucket(rng *rand.Rand) (ratelimit.Rate, int) {
	if rng.IntN(4) > 0 {
		return drawRate(rng), drawSmall(rng)
	}
	rate := pick(rng,
		ratelimit.Per(77_777, 24*time.Hour), ratelimit.Per(2_999, 720*time.Hour), ratelimit.Per(1_000_003, 24*time.Hour),
		ratelimit.Per(99_999_999, 31_535_999_999*time.Millisecond), ratelimit.Per(100_000_000, 999*time.Millisecond),
		ratelimit.Per(1+rng.IntN(1e8), time.Duration(1+rng.Int64N(31_536_000_000))*time.Millisecond),
		ratelimit.Per(exact.Permits-rng.IntN(1000), 24*time.Hour), ratelimit.Per(exact.Permits/7, time.Minute),
		ratelimit.Per(999_999_937, 2_160_000_000_000_001*time.Microsecond))
	return rate, pick(rng, rate.Count, 1+rng.IntN(rate.Count), min(10*rate.Count, max(rate.Count, 999_999_937)))
}

func drawRate(rng *rand.Rand) ratelimit.Rate {
	return ratelimit.Rate{
		Count:  pick(rng, 1, 2, 3, 7, 10, 60, 1000, 999_983, 1+rng.IntN(5000)),
		Period: pick(rng, time.Millisecond, 100*time.Millisecond, time.Second, time.Minute, time.Hour, time.Duration(1+rng.IntN(1e7))*time.Microsecond+time.Millisecond),
	}
}

// Seed is random, unless RATELIMIT_SEED is set to the seed of an earlier run.
func Seed(t testing.TB) uint64 {
	t.Helper()
	s := rand.Uint64()
	if given := os.Getenv("RATELIMIT_SEED"); given != "" {
		var err error
		s, err = strconv.ParseUint(given, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("RATELIMIT_SEED=%d", s)
	return s
}

// ResultOf is the result that a model's answer means.
func ResultOf(a model.Answer) ratelimit.Result {
	return ratelimit.Result{
		Allowed: a.Allowed, Limit: a.Limit, Window: a.Window, Remaining: a.Remaining,
		RetryAfter: a.RetryAfter, ResetAfter: a.ResetAfter, ByShare: a.ByShare,
	}
}

// Rounds is how often a test repeats a random check: once with -short or with
// RATELIMIT_ONCE=1 in the environment, full times with RATELIMIT_LONG=1, and usual times
// otherwise; but once under the race detector, which is ten times as slow and finds the same
// races then.
func Rounds(full, usual int) int {
	switch {
	case testing.Short(), os.Getenv("RATELIMIT_ONCE") != "":
		return 1
	case os.Getenv("RATELIMIT_LONG") != "":
		return full
	case raceflag.Enabled:
		return 1
	}
	return usual
}

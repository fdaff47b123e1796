package ratelimit_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// A logRule is a configuration of a sliding window or a sliding log.
type logRule struct {
	rules []model.Rule
	grain time.Duration // a sub-window, or the resolution
}

// logKinds are the limiters that keep a log, by the kind of key.
var logKinds = []struct {
	name, key string
	rules     int // at most
	build     func(c ratelimit.Client, r logRule, o ...ratelimit.Option) (ratelimit.Limiter, error)
}{
	{"Hash", "ratelimit:default:slidingwindow-hash{k}", 1, logWindow(ratelimit.StorageHash)},
	{"List", "ratelimit:default:slidingwindow-list{k}", 1, logWindow(ratelimit.StorageList)},
	{"SlidingLog", "ratelimit:default:slidinglog{k}", 3, func(c ratelimit.Client, r logRule, o ...ratelimit.Option) (ratelimit.Limiter, error) {
		var rules []ratelimit.Rule
		for _, rule := range r.rules {
			rules = append(rules, ratelimit.Rule(rule))
		}
		return ratelimit.NewSlidingLog(c, rules, append(o, ratelimit.WithResolution(r.grain))...)
	}},
}

func logWindow(storage ratelimit.Storage) func(ratelimit.Client, logRule, ...ratelimit.Option) (ratelimit.Limiter, error) {
	return func(c ratelimit.Client, r logRule, o ...ratelimit.Option) (ratelimit.Limiter, error) {
		rule := r.rules[0]
		return ratelimit.NewSlidingWindow(c, rule.Limit, rule.Window, append(o, ratelimit.WithStorage(storage), ratelimit.WithSubWindows(int(rule.Window/r.grain)))...)
	}
}

// drawLogRule draws short windows, so that the rules of a key often meet.
func drawLogRule(rng *rand.Rand, rules int) logRule {
	const us = time.Microsecond
	var r logRule
	limit, window := 0, time.Duration(0)
	for range 1 + rng.IntN(rules) {
		limit += 1 + rng.IntN(6)
		window += []time.Duration{time.Millisecond, 6 * time.Millisecond, 30 * time.Millisecond, 300 * time.Millisecond}[rng.IntN(4)]
		r.rules = append(r.rules, model.Rule{Limit: limit, Window: window})
	}
	shortest := r.rules[0].Window
	r.grain = []time.Duration{max(us, shortest/30_000), shortest / 1000, shortest / 5, shortest / 2, shortest}[rng.IntN(5)]
	return r
}

// A logConfiguration is one of the limiters of a key, and its model.
type logConfiguration struct {
	logRule
	limiter ratelimit.Limiter
	model   *model.SlidingLog
	skew    time.Duration // of the caller's clock
}

func (r logConfiguration) String() string {
	return fmt.Sprintf("%v to %v, caller's clock %v by %v", r.rules, r.grain, r.model.CallersClock, r.skew)
}

// TestLogsOfOneKeyAnswerAsTheirModel: two or three limiters with rules of their own use
// one key, by the server's clock, which steps back, and by callers' clocks that differ.
func TestLogsOfOneKeyAnswerAsTheirModel(t *testing.T) {
	for _, kind := range logKinds {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			rng := model.Seeded(limitertest.Seed(t))
			server := miniredis.RunT(t)
			server.ClockTTL(true)
			client := redis.NewClient(&redis.Options{Addr: server.Addr()})
			defer client.Close()
			for range limitertest.Rounds(150, 40) {
				server.FlushAll()
				logConfigurations(t, rng, client, kind.key, kind.rules, kind.build, 150, server.SetTime, func(ttl time.Duration) {
					server.SetTTL(kind.key, ttl)
				})
			}
		})
	}
}

// TestLogsOfOneKeyOnAServerAnswerAsTheirModel does the same on a server whose clock
// stands still during each call.
func TestLogsOfOneKeyOnAServerAnswerAsTheirModel(t *testing.T) {
	raceflag.SkipSequential(t)
	server, client := limitertest.HeldServer(t)
	for _, kind := range logKinds {
		t.Run(kind.name, func(t *testing.T) {
			rng := model.Seeded(limitertest.Seed(t))
			for range limitertest.Rounds(20, 5) {
				require.NoError(t, client.FlushAll(ctx).Err())
				logConfigurations(t, rng, client, kind.key, kind.rules, kind.build, 150, server.HoldClock, func(ttl time.Duration) {
					require.NoError(t, client.PExpire(ctx, kind.key, ttl).Err())
				})
			}
		})
	}
}

func logConfigurations(t *testing.T, rng *rand.Rand, client *redis.Client, key string, rules int,
	build func(ratelimit.Client, logRule, ...ratelimit.Option) (ratelimit.Limiter, error),
	steps int, set func(time.Time), setTTL func(time.Duration)) {
	t.Helper()
	var at time.Time // of the caller that asks
	clock := func() time.Time { return at }
	var all []logConfiguration
	for i := range 2 + rng.IntN(2) {
		r := logConfiguration{logRule: drawLogRule(rng, rules)}
		if i == 0 {
			r.model = model.NewSlidingLog(r.rules, r.grain)
		} else {
			r.model = all[0].model.Beside(r.rules, r.grain)
		}
		var o []ratelimit.Option
		if rng.IntN(2) == 0 {
			r.model.CallersClock = true
			r.skew = time.Duration(rng.Int64N(61)-30) * max(time.Microsecond, time.Duration(rng.IntN(3))*r.grain)
			o = append(o, ratelimit.WithClock(clock), ratelimit.WithMaxSkew(2*time.Second))
		}
		var err error
		r.limiter, err = build(client, r.logRule, o...)
		require.NoError(t, err)
		all = append(all, r)
	}
	scenario := model.NewScenario(rng, model.Shape{Max: 4, Span: all[0].model.Span(), Back: rng.IntN(2) == 0})
	var last model.Answer
	for i := range steps {
		step := scenario.Next(last)
		r := all[rng.IntN(len(all))]
		step.N = min(step.N, r.model.Max())
		now := time.UnixMicro(step.Now)
		set(now)
		if r.model.CallersClock {
			at = now.Add(r.skew).Truncate(time.Microsecond)
			now = at
		}
		about := fmt.Sprintf("step %d, %+v by %v of %v", i, step, r, all)
		switch {
		case step.Op == model.Reset:
			require.NoError(t, r.limiter.Reset(ctx, "k"))
			r.model.Reset()
		case step.Op == model.Peek:
			before := r.model.Needed(now.UnixMicro())
			last = r.model.Take(now.UnixMicro(), 1, true)
			got, err := r.limiter.Peek(ctx, "k")
			require.NoError(t, err, about)
			require.Equal(t, limitertest.ResultOf(last), got, about)
			require.Equal(t, before, r.model.Needed(now.UnixMicro()), about)
		default:
			var calls []model.Step
			var keys []string
			for range 1 + rng.IntN(3) {
				calls, keys = append(calls, model.Step{N: step.N}), append(keys, "k")
				if rng.IntN(2) == 0 {
					step.N = 1
				}
			}
			var got []ratelimit.Result
			if len(calls) > 1 {
				got = ratelimit.Merged(t, r.limiter, calls, keys)
			} else {
				got = []ratelimit.Result{must(t)(r.limiter.TryAcquireN(ctx, "k", calls[0].N))}
			}
			allowed := false
			for j, call := range calls {
				last = r.model.Take(now.UnixMicro(), call.N, false)
				require.Equal(t, limitertest.ResultOf(last), got[j], "call %d of %v: %s", j, calls, about)
				allowed = allowed || last.Allowed
			}
			if allowed { // the key lives as long as anybody needs it, and a second at most beyond
				spare := time.Duration(0)
				if r.model.CallersClock {
					spare = 2 * time.Second
				} else if r.model.DatedByCaller() {
					spare = time.Second
				}
				left := client.PTTL(ctx, key).Val() - r.model.Needed(now.UnixMicro()) - spare
				require.Greater(t, left, 49*time.Millisecond, about)
				require.Less(t, left, 954*time.Millisecond, about)
			}
		}
		// No key expires, because the clocks that the limiters go by differ from the one that
		// it would expire by.
		if client.Exists(ctx, key).Val() > 0 {
			setTTL(24 * time.Hour)
		}
	}
}

// eachLog runs a test for every kind of log, plain and merged.
func eachLog(t *testing.T, test func(t *testing.T, s *limitertest.Stage, key string, build func(limit int, window, grain time.Duration, o ...ratelimit.Option) ratelimit.Limiter)) {
	for _, kind := range logKinds {
		for name, merging := range map[string][]ratelimit.Option{"merged": nil, "plain": {ratelimit.WithoutMerging()}} {
			t.Run(kind.name+", "+name, func(t *testing.T) {
				s := limitertest.OnMiniredis(t)
				test(t, s, kind.key, func(limit int, window, grain time.Duration, o ...ratelimit.Option) ratelimit.Limiter {
					rule := logRule{[]model.Rule{{Limit: limit, Window: window}}, grain}
					return ratelimit.Must(kind.build(s.Client, rule, append(o, merging...)...))
				})
			})
		}
	}
}

// ask makes some calls for one permit at one instant, merged if the limiter merges, and
// returns how many are allowed.
func ask(t *testing.T, l ratelimit.Limiter, calls int) (allowed int) {
	t.Helper()
	steps, keys := make([]model.Step, calls), make([]string, calls)
	for i := range calls {
		steps[i].N, keys[i] = 1, "k"
	}
	if strings.HasSuffix(t.Name(), "plain") {
		for range calls {
			if must(t)(l.TryAcquire(ctx, "k")).Allowed {
				allowed++
			}
		}
		return allowed
	}
	for _, r := range ratelimit.Merged(t, l, steps, keys) {
		if r.Allowed {
			allowed++
		}
	}
	return allowed
}

// TestALogOfAShorterRuleForgetsNothing: an old rule of 100 per 10 s is in use beside a new
// one of 10 per 100 ms. Each allows a call only if its own rule holds over all permits.
func TestALogOfAShorterRuleForgetsNothing(t *testing.T) {
	raceflag.SkipSequential(t)
	inParallel(t)
	const ms = time.Millisecond
	eachLog(t, func(t *testing.T, s *limitertest.Stage, _ string, build func(int, time.Duration, time.Duration, ...ratelimit.Option) ratelimit.Limiter) {
		rules := []model.Rule{{Limit: 100, Window: 10 * time.Second}, {Limit: 10, Window: 100 * ms}}
		limiters := []ratelimit.Limiter{build(100, 10*time.Second, ms), build(10, 100*ms, ms)}
		var taken []model.Taken
		allowed := [2]int{}
		for i := range 200 { // in turns for 2 s
			by := i % 2
			n := ask(t, limiters[by], 10)
			allowed[by] += n
			if n > 0 {
				taken = append(taken, model.Taken{At: s.Now.UnixMicro(), N: n})
				recent := 0
				for _, u := range taken {
					if u.At > s.Now.Add(-rules[by].Window).UnixMicro() {
						recent += u.N
					}
				}
				require.LessOrEqual(t, recent, rules[by].Limit, "%v at %v", rules[by], s.Now)
			}
			s.Advance(10 * ms)
		}
		require.Equal(t, [2]int{100, 150}, allowed)
	})
}

// TestLogsOfHostsWhoseClocksDifferGiveTheLimitOnce, however far they are apart.
func TestLogsOfHostsWhoseClocksDifferGiveTheLimitOnce(t *testing.T) {
	raceflag.SkipSequential(t)
	inParallel(t)
	lags := []time.Duration{10 * time.Second, 10 * time.Microsecond, 5 * time.Millisecond, time.Hour}
	if testing.Short() {
		lags = lags[:1]
	}
	for _, apart := range lags {
		t.Run(apart.String(), func(t *testing.T) {
			eachLog(t, func(t *testing.T, s *limitertest.Stage, key string, build func(int, time.Duration, time.Duration, ...ratelimit.Option) ratelimit.Limiter) {
				for _, grain := range []time.Duration{time.Microsecond * 10, 100 * time.Millisecond, time.Second} {
					require.NoError(t, s.Admin.FlushAll(ctx).Err())
					at := s.Now
					var hosts []ratelimit.Limiter
					for i := range 2 {
						hosts = append(hosts, build(100, time.Second, grain, ratelimit.WithMaxSkew(20*time.Second), ratelimit.WithClock(func() time.Time {
							return at.Add(time.Duration(i) * apart)
						})))
					}
					allowed := 0
					for i := range 100 {
						allowed += ask(t, hosts[1-i%2], 5) // the one ahead is first
					}
					require.Equal(t, 100, allowed)

					// The one behind waits for the rule and its lag, the one ahead for the rule.
					behind := must(t)(hosts[0].TryAcquire(ctx, "k"))
					ahead := must(t)(hosts[1].TryAcquire(ctx, "k"))
					require.False(t, ahead.Allowed)
					require.Equal(t, ahead.RetryAfter+apart, behind.RetryAfter)
					at = at.Add(ahead.RetryAfter - time.Microsecond)
					require.Zero(t, ask(t, hosts[1], 1))
					at = at.Add(time.Microsecond)
					require.Positive(t, ask(t, hosts[1], 1))

					// The key outlives the rule by the skew that is allowed for.
					ttl := s.Admin.PTTL(ctx, key).Val()
					require.GreaterOrEqual(t, ttl, 21*time.Second)
					require.LessOrEqual(t, ttl, 22*time.Second+902*time.Millisecond)
				}
			})
		})
	}
}

// TestALogOfACoarserRuleIsNoStepBack: its entries are dated at the end of their slot, later
// than the clock of a limiter with finer slots, which must not date them earlier.
func TestALogOfACoarserRuleIsNoStepBack(t *testing.T) {
	eachLog(t, func(t *testing.T, s *limitertest.Stage, key string, build func(int, time.Duration, time.Duration, ...ratelimit.Option) ratelimit.Limiter) {
		coarse, fine := build(4, time.Second, time.Second), build(4, time.Second, time.Millisecond)
		require.Equal(t, 2, ask(t, coarse, 2))
		before := s.Look(t, key)
		require.Equal(t, 4, must(t)(build(6, time.Second, time.Millisecond).Peek(ctx, "k")).Remaining)
		require.Equal(t, before, s.Look(t, key))
		s.Advance(10 * time.Millisecond)
		require.Equal(t, 2, ask(t, fine, 3))
		s.Advance(10 * time.Millisecond)
		r := must(t)(fine.TryAcquire(ctx, "k"))
		require.Equal(t, 1999999*time.Microsecond-20*time.Millisecond, r.RetryAfter, "as long as the coarse rule counts them")
		s.Advance(r.RetryAfter - time.Microsecond)
		require.Zero(t, ask(t, fine, 1))
		s.Advance(time.Microsecond)
		require.Equal(t, 4, ask(t, fine, 5))
	})
}

// TestAServersClockBehindACallersWaits: it neither moves the entries back nor forgets that
// a caller's clock wrote them.
func TestAServersClockBehindACallersWaits(t *testing.T) {
	eachLog(t, func(t *testing.T, s *limitertest.Stage, key string, build func(int, time.Duration, time.Duration, ...ratelimit.Option) ratelimit.Limiter) {
		grain := 10 * time.Millisecond
		caller := build(3, time.Second, grain, ratelimit.WithClock(func() time.Time { return s.Now.Add(5 * time.Second) }))
		server := build(3, time.Second, 5*grain)
		require.Equal(t, 1, ask(t, caller, 1))
		require.Equal(t, 2, ask(t, server, 3))
		require.Equal(t, 0, ask(t, server, 1))
		require.Equal(t, 0, ask(t, caller, 1))
		ttl := s.Admin.PTTL(ctx, key).Val()
		require.GreaterOrEqual(t, ttl, 2*time.Second, "a second more than the rule")
		require.Less(t, ttl, 3*time.Second)
		r := must(t)(server.TryAcquireN(ctx, "k", 3))
		require.Equal(t, 6*time.Second+5*grain-time.Microsecond, r.RetryAfter, "the rule, and the lag")
	})
}

// TestALongerRuleWaitsForWhatIsKept: it asks where a shorter one has counted, and its
// denial changes nothing. So the state is forgotten when the shorter one's is, and both
// denial and Peek say so.
func TestALongerRuleWaitsForWhatIsKept(t *testing.T) {
	eachLog(t, func(t *testing.T, s *limitertest.Stage, key string, build func(int, time.Duration, time.Duration, ...ratelimit.Option) ratelimit.Limiter) {
		short, long := build(3, time.Second, time.Millisecond), build(1, time.Hour, time.Second)
		require.Equal(t, 3, ask(t, short, 3))
		s.Advance(10 * time.Millisecond)
		before, ttl := s.Look(t, key), s.Admin.PTTL(ctx, key).Val()
		look := must(t)(long.Peek(ctx, "k"))
		denied := must(t)(long.TryAcquire(ctx, "k"))
		require.Zero(t, ask(t, long, 3))
		require.Equal(t, before, s.Look(t, key))
		require.Equal(t, ttl, s.Admin.PTTL(ctx, key).Val())
		want := time.Second - 10*time.Millisecond + 999*time.Microsecond
		require.Equal(t, ratelimit.Result{Limit: 1, Window: time.Hour, RetryAfter: want, ResetAfter: want}, denied)
		require.Equal(t, denied, look)
		s.Advance(want - time.Microsecond)
		require.Zero(t, ask(t, long, 1))
		require.False(t, must(t)(long.Peek(ctx, "k")).Allowed)
		s.Advance(time.Microsecond)
		require.True(t, must(t)(long.Peek(ctx, "k")).Allowed)
		require.Equal(t, 1, ask(t, long, 1))
		// From here on it is kept for an hour.
		s.Advance(2 * time.Second)
		require.Equal(t, 3, ask(t, short, 4))
		s.Advance(2 * time.Second)
		require.Zero(t, ask(t, long, 1))
		require.Greater(t, s.Admin.PTTL(ctx, key).Val(), time.Hour-5*time.Second)
	})
}

// TestAPeekOfALogAfterAClockStep says what a denial says, which repairs the state: the permits
// count from now, as long as nothing is repaired.
func TestAPeekOfALogAfterAClockStep(t *testing.T) {
	eachLog(t, func(t *testing.T, s *limitertest.Stage, key string, build func(int, time.Duration, time.Duration, ...ratelimit.Option) ratelimit.Limiter) {
		l := build(2, time.Second, time.Millisecond)
		require.Equal(t, 1, ask(t, l, 1))
		s.Advance(100 * time.Millisecond)
		require.Equal(t, 1, ask(t, l, 1))
		s.Advance(-time.Minute)
		// Redis keeps the instant of expiry, miniredis what is left.
		require.True(t, s.Admin.PExpire(ctx, key, s.Admin.PTTL(ctx, key).Val()+time.Minute).Val())
		before := s.Look(t, key)
		wait := time.Second + 999*time.Microsecond // to the end of the slot
		want := ratelimit.Result{Limit: 2, Window: time.Second, RetryAfter: wait, ResetAfter: wait}
		require.Equal(t, want, must(t)(l.Peek(ctx, "k")))
		s.Advance(time.Second)
		require.Equal(t, want, must(t)(l.Peek(ctx, "k")))
		require.Equal(t, before, s.Look(t, key))
		require.Equal(t, want, must(t)(l.TryAcquire(ctx, "k")))
		s.Advance(wait - time.Microsecond)
		require.False(t, must(t)(l.Peek(ctx, "k")).Allowed)
		s.Advance(time.Microsecond)
		require.True(t, must(t)(l.Peek(ctx, "k")).Allowed)
	})
}

// TestADenialOfALogRepairsALostTTL, and lengthens no other.
func TestADenialOfALogRepairsALostTTL(t *testing.T) {
	eachLog(t, func(t *testing.T, s *limitertest.Stage, key string, build func(int, time.Duration, time.Duration, ...ratelimit.Option) ratelimit.Limiter) {
		l := build(1, time.Second, time.Millisecond)
		require.Equal(t, 1, ask(t, l, 1))
		require.NoError(t, s.Admin.PExpire(ctx, key, 5*time.Millisecond).Err())
		require.Zero(t, ask(t, l, 2))
		require.Equal(t, 5*time.Millisecond, s.Admin.PTTL(ctx, key).Val())
		require.True(t, s.Admin.Persist(ctx, key).Val())
		require.Zero(t, ask(t, l, 2))
		require.Equal(t, time.Second+901*time.Millisecond, s.Admin.PTTL(ctx, key).Val())
	})
}

func TestRulesAreSortedWithoutTouchingTheCallers(t *testing.T) {
	rules := []ratelimit.Rule{{100, time.Hour}, {10, time.Minute}, {1, time.Second}}
	_, err := ratelimit.NewSlidingLog(limitertest.Offline(t), rules)
	require.NoError(t, err)
	require.Equal(t, []ratelimit.Rule{{100, time.Hour}, {10, time.Minute}, {1, time.Second}}, rules)
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

// TestLogIsCompact: at most 16 bytes an entry at 10,000 entries.
func TestLogIsCompact(t *testing.T) {
	const entries = 10_000
	s := limitertest.OnRedis(t)
	client := s.Admin
	l := ratelimit.Must(ratelimit.NewSlidingLog(s.Client, []ratelimit.Rule{{entries, time.Hour}}, s.Opts...))
	for range entries {
		s.Advance(time.Millisecond)
		require.True(t, must(t)(l.TryAcquire(ctx, "k")).Allowed)
	}
	require.False(t, must(t)(l.TryAcquire(ctx, "k")).Allowed)
	require.Equal(t, int64(2*entries+2), client.LLen(ctx, "ratelimit:default:slidinglog{k}").Val())
	bytes := client.MemoryUsage(ctx, "ratelimit:default:slidinglog{k}", 0).Val()
	t.Logf("%d entries take %d bytes, %.2f each", entries, bytes, float64(bytes)/entries)
	require.LessOrEqual(t, float64(bytes)/entries, 16.0)

	s.Advance(time.Hour) // all but a base are dropped by the next allowed call
	require.True(t, must(t)(l.TryAcquire(ctx, "k")).Allowed)
	require.Equal(t, int64(4), client.LLen(ctx, "ratelimit:default:slidinglog{k}").Val())
}

// TestLogReadsFewEntries counts the commands of a decision: O(log limit) for
// each rule, whatever has expired.
func TestLogReadsFewEntries(t *testing.T) {
	const entries = 10_000
	server := redistest.Start(t)
	client := server.Client(t)
	s := limitertest.OnClock(client, client)
	l := ratelimit.Must(ratelimit.NewSlidingLog(s.Client, []ratelimit.Rule{{entries / 2, time.Minute}, {entries, time.Hour}}, s.Opts...))
	for range entries / 2 {
		s.Advance(7 * time.Millisecond)
		require.True(t, must(t)(l.TryAcquire(ctx, "k")).Allowed)
	}
	for _, silence := range []time.Duration{0, time.Second, 30 * time.Second, 30 * time.Minute, time.Hour - 20*time.Second} {
		s.Now = limitertest.Start.Add(entries / 2 * 7 * time.Millisecond)
		s.Advance(silence)
		reads := reads(t, client, func() { must(t)(l.Peek(ctx, "k")) })
		t.Logf("after %v: %d reads", silence, reads)
		require.LessOrEqual(t, reads, 14+6+3, "a read for each halving of 10,000, and a few")
	}
}

// reads is how many list commands f lets Redis run.
func reads(t testing.TB, client redis.UniversalClient, f func()) int {
	require.NoError(t, client.ConfigResetStat(ctx).Err())
	f()
	total := 0
	for line := range strings.Lines(client.Info(ctx, "commandstats").Val()) {
		for _, command := range []string{"lindex", "lrange", "llen"} {
			var calls int
			if n, _ := fmt.Sscanf(line, "cmdstat_"+command+":calls=%d,", &calls); n == 1 {
				total += calls
			}
		}
	}
	return total
}

// TestTotalsOfALogStayExact: after 2^52 permits the totals start from zero.
func TestTotalsOfALogStayExact(t *testing.T) {
	const window = time.Hour
	at := func(seconds int) time.Time { return limitertest.Start.Add(time.Duration(seconds) * time.Second) }
	for name, build := range map[string]func(c ratelimit.Client, o ...ratelimit.Option) ratelimit.Limiter{
		"SlidingLog": func(c ratelimit.Client, o ...ratelimit.Option) ratelimit.Limiter {
			return ratelimit.Must(ratelimit.NewSlidingLog(c, []ratelimit.Rule{{5, window}}, o...))
		},
		"SlidingLog, rules": func(c ratelimit.Client, o ...ratelimit.Option) ratelimit.Limiter {
			return ratelimit.Must(ratelimit.NewSlidingLog(c, []ratelimit.Rule{{5, window}, {6, 2 * window}}, o...))
		},
		"Hash": func(c ratelimit.Client, o ...ratelimit.Option) ratelimit.Limiter {
			return ratelimit.Must(ratelimit.NewSlidingWindow(c, 5, window, append(o, ratelimit.WithStorage(ratelimit.StorageHash), ratelimit.WithSubWindows(3600))...))
		},
	} {
		for _, merging := range [][]ratelimit.Option{nil, {ratelimit.WithoutMerging()}} {
			t.Run(name, func(t *testing.T) {
				s := limitertest.OnMiniredis(t)
				h := limitertest.NewClock()
				l := build(s.Client, append(merging, ratelimit.WithClock(h.Now))...)
				for i := range 3 {
					h.Set(at(i))
					require.Equal(t, 4-i, must(t)(l.TryAcquire(ctx, "k")).Remaining)
				}
				key := s.Admin.Keys(ctx, "*").Val()[0]
				grow := func(total string) string { // as if 2^52 permits had been taken long ago
					n, err := strconv.ParseInt(total, 10, 64)
					require.NoError(t, err)
					return strconv.FormatInt(n+1<<52, 10)
				}
				if s.Admin.Type(ctx, key).Val() == "list" {
					for i, v := range s.Admin.LRange(ctx, key, 0, -1).Val() {
						if i%2 == 1 {
							require.NoError(t, s.Admin.LSet(ctx, key, int64(i), grow(v)).Err())
						}
					}
				} else {
					for field, v := range s.Admin.HGetAll(ctx, key).Val() {
						instant, total, between := strings.Cut(v, "/")
						switch {
						case field == "rule":
						case between:
							v = instant + "/" + grow(total)
						case field == "total" || field == "base":
							v = grow(v)
						}
						require.NoError(t, s.Admin.HSet(ctx, key, field, v).Err())
					}
				}
				r := must(t)(l.Peek(ctx, "k"))
				require.Equal(t, 2, r.Remaining)
				for i := 3; i < 5; i++ {
					h.Set(at(i))
					require.Equal(t, 4-i, must(t)(l.TryAcquire(ctx, "k")).Remaining)
				}
				r = must(t)(l.TryAcquire(ctx, "k"))
				require.False(t, r.Allowed)
				grain := time.Duration(0)
				if name == "Hash" {
					grain = time.Second - time.Microsecond
				}
				require.Equal(t, window-time.Second+grain, r.RetryAfter, "what was taken before counts from the fourth on")
				if name == "SlidingLog, rules" {
					return
				}
				h.Set(at(4).Add(r.RetryAfter - time.Microsecond))
				require.False(t, must(t)(l.TryAcquire(ctx, "k")).Allowed)
				h.Set(at(4).Add(r.RetryAfter))
				require.Equal(t, 3, must(t)(l.TryAcquire(ctx, "k")).Remaining)
			})
		}
	}
}

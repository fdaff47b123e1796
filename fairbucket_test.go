package ratelimit_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/state"
	"github.com/tryacquire/ratelimit/internal/testing/fairshares"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// fairBucket is a limit of so many permits a second and as many at once; burst is a multiple of 8.
func fairBucket(t testing.TB, c ratelimit.Client, burst int, opts ...ratelimit.Option) *ratelimit.FairTokenBucket {
	l, err := ratelimit.NewFairTokenBucket(c, ratelimit.PerSecond(burst), burst, opts...)
	require.NoError(t, err)
	return l
}

func TestOneThatIsAloneHasABucketOfSevenEighths(t *testing.T) {
	limitertest.Everywhere(t, func(t *testing.T, s *limitertest.Stage) {
		l := fairBucket(t, s.Client, 16, s.Opts...)
		for i := range 14 {
			want := ratelimit.Result{Allowed: true, Limit: 16, Window: time.Second, Remaining: 13 - i, ResetAfter: time.Duration(i+1) * 62_500 * time.Microsecond}
			require.Equal(t, want, must(t)(l.TryAcquire(ctx, "{limit}:alone")))
		}
		denied := ratelimit.Result{Limit: 16, Window: time.Second, RetryAfter: 62_500 * time.Microsecond, ResetAfter: 875 * time.Millisecond, ByShare: true}
		require.Equal(t, denied, must(t)(l.TryAcquire(ctx, "{limit}:alone")), "what is left is kept for those who come new")
		require.Equal(t, denied, must(t)(l.Peek(ctx, "{limit}:alone")))

		require.True(t, must(t)(l.TryAcquire(ctx, "{limit}:new")).Allowed)
		require.True(t, must(t)(l.TryAcquire(ctx, "{limit}:newer")).Allowed)
		denied.ByShare, denied.RetryAfter, denied.ResetAfter = false, 62_500*time.Microsecond, time.Second
		require.Equal(t, denied, must(t)(l.TryAcquire(ctx, "{limit}:newest")), "the limit has no room")
		require.Equal(t, 14, must(t)(l.Peek(ctx, "{other}:alone")).Remaining, "another limit")
	})
}

// TestWhoHasHadLessGoesFirst: two greedy ones beside one that comes back.
func TestWhoHasHadLessGoesFirst(t *testing.T) {
	limitertest.Everywhere(t, func(t *testing.T, s *limitertest.Stage) {
		l := fairBucket(t, s.Client, 16, s.Opts...)
		must(t)(l.TryAcquire(ctx, "{limit}:modest"))
		for range 20 {
			must(t)(l.TryAcquire(ctx, "{limit}:greedy"))
		}
		r := must(t)(l.TryAcquire(ctx, "{limit}:greedy"))
		require.True(t, r.ByShare)
		r = must(t)(l.TryAcquireN(ctx, "{limit}:modest", 3))
		require.True(t, r.Allowed, "half of what is kept")
		require.False(t, must(t)(l.TryAcquire(ctx, "{limit}:greedy")).Allowed)
	})
}

// Terms are what a limiter says of its tenants: their weight, and how many parts of the rule they are promised.
type terms struct{ weight, promise int64 }

// A fairWorld is a limit and its tenants, on Redis and as package fairshares has them.
type fairWorld struct {
	t       *testing.T
	s       *limitertest.Stage
	rule    fairshares.Rule
	limit   fairshares.Limit
	tenants [4]fairshares.Tenant
	with    map[terms]*ratelimit.FairTokenBucket
	plans   []int64 // parts of the rule that may be promised
	about   string
	last    string
}

func newFairWorld(t *testing.T, s *limitertest.Stage, rng *rand.Rand) *fairWorld {
	s.Wipe(t)
	burst := 8 * (1 + rng.IntN(12))
	rate := ratelimit.Rate{Count: 1 + rng.IntN(200), Period: time.Duration(1+rng.IntN(2000)) * time.Millisecond}
	l, err := ratelimit.NewFairTokenBucket(s.Client, rate, burst, s.Opts...)
	require.NoError(t, err)
	w := &fairWorld{t: t, s: s, with: map[terms]*ratelimit.FairTokenBucket{}, plans: []int64{0}, about: fmt.Sprint(rate, burst)}
	for _, share := range []int{5, 3, 2} { // a fifth, a third, half of the rule
		if _, err := l.Promise(ratelimit.Rate{Count: rate.Count, Period: rate.Period * time.Duration(share)}); err == nil {
			w.plans = append(w.plans, int64(10_000/share))
		}
	}
	for weight := int64(1); weight <= 5; weight++ {
		of, err := l.Weight(int(weight))
		require.NoError(t, err)
		w.with[terms{weight, 0}] = of
		for _, parts := range w.plans[1:] {
			w.with[terms{weight, parts}], err = of.Promise(ratelimit.Rate{Count: rate.Count, Period: rate.Period * time.Duration(10_000/parts)})
			require.NoError(t, err)
		}
	}
	period, count := rate.Period.Microseconds(), int64(rate.Count)
	common := count
	for b := period; b != 0; {
		common, b = b, common%b
	}
	w.rule = fairshares.Rule{Burst: int64(burst), Permit: period / common, Flow: count / common, Kept: int64(burst) / 8 * 3, Spare: int64(burst) / 8, Grain: 1_000_000, Parts: 10_000}
	w.rule.Tau = int64(burst) * w.rule.Permit / w.rule.Flow / 4
	w.rule.Epoch = max((int64(burst)*w.rule.Permit+w.rule.Flow-1)/w.rule.Flow, 1_000_000)
	return w
}

func fairKey(tenant int) string { return fmt.Sprintf("{limit}:%d", tenant) }

func (w *fairWorld) now() int64 { return w.s.Now.UnixMicro() }

// call compares one call, and what a look before it says.
func (w *fairWorld) call(tenant int, n int64, p terms) ratelimit.Result {
	l, key := w.with[p], fairKey(tenant)
	look := must(w.t)(l.Peek(ctx, key))
	w.about = fmt.Sprint(w.s.Admin.Get(ctx, "ratelimit:default:fairtokenbucket:{limit}").Val(), " ", w.s.Admin.Get(ctx, "ratelimit:default:fairtokenbucket:"+key).Val(), fmt.Sprintf(" %+v %+v plan %+v", w.limit, w.tenants[tenant], p), w.last)
	defer func() { w.last = "call" }()
	for most := int64(look.Remaining); most <= int64(look.Remaining)+1 && most <= w.rule.Burst-w.rule.Spare; most++ {
		if limit, t := w.limit, w.tenants[tenant]; most > 0 {
			require.Equal(w.t, most == int64(look.Remaining), w.rule.Call(&limit, &t, w.now(), most, p.weight, p.promise).Allowed, "%s: Remaining %d, %d", w.about, look.Remaining, most)
		}
	}
	want := w.rule.Call(&w.limit, &w.tenants[tenant], w.now(), n, p.weight, p.promise)
	got := must(w.t)(l.TryAcquireN(ctx, key, int(n)))
	require.Equal(w.t, want, fairshares.Answer{Allowed: got.Allowed, ByShare: got.ByShare, Retry: got.RetryAfter.Microseconds()}, "%s: %d for %d", w.about, tenant, n)
	if got.Allowed {
		require.Equal(w.t, must(w.t)(l.Peek(ctx, key)).Remaining, got.Remaining, w.about)
	}
	return got
}

// TestFairBucketsDecideAsTheSearchedRule makes random calls of four tenants, whose weights and promises change. A server's
// clock steps back too.
func TestFairBucketsDecideAsTheSearchedRule(t *testing.T) {
	for name, stage := range map[string]func(testing.TB) *limitertest.Stage{
		"miniredis": limitertest.OnMiniredis, "Redis": limitertest.OnRedis, "Redis by its own clock": limitertest.OnHeldRedis,
	} {
		t.Run(name, func(t *testing.T) {
			s := stage(t)
			rng := model.Seeded(limitertest.Seed(t))
			var allowed, byShare, byLimit int
			rounds := limitertest.Rounds(150, 25)
			for range rounds {
				w := newFairWorld(t, s, rng)
				most := w.rule.Burst - w.rule.Spare
				plans := [4]terms{{1, 0}, {1, 0}, {2, 0}, {3, 0}}
				promise := func(tenant int) { plans[tenant].promise = w.plans[rng.IntN(len(w.plans))] }
				if rng.IntN(2) == 0 {
					for tenant := range plans {
						promise(tenant)
					}
				}
				for range 120 {
					tenant := rng.IntN(4)
					if rng.IntN(40) == 0 {
						plans[tenant].weight = 1 + rng.Int64N(5)
						if plans[tenant].promise > 0 {
							promise(tenant)
						}
					}
					p, n := plans[tenant], int64(1)
					switch rng.IntN(6) {
					case 0:
						n = 1 + rng.Int64N(max(most/3, 1))
					case 1:
						if rng.IntN(5) == 0 {
							n = 1 + rng.Int64N(most)
						}
					}
					switch rng.IntN(12) {
					case 0:
						w.last = "charge"
						debt := 1 + rng.Int64N(most)
						w.rule.Charge(&w.limit, &w.tenants[tenant], w.now(), debt, p.weight, p.promise)
						must(t)(w.with[p].Charge(ctx, fairKey(tenant), int(debt)))
					case 1:
						w.last = "settle"
						ticket, r, err := w.with[p].Estimate(ctx, fairKey(tenant), int(n))
						require.NoError(t, err)
						require.Equal(t, w.rule.Call(&w.limit, &w.tenants[tenant], w.now(), n, p.weight, p.promise).Allowed, r.Allowed, w.about)
						if r.Allowed {
							back := rng.Int64N(n + 1)
							if back > 0 {
								w.rule.GiveBack(&w.limit, &w.tenants[tenant], w.now(), back, p.weight)
							}
							require.NoError(t, ticket.Settle(ctx, int(n-back)))
						}
					case 2: // as many as are left, one by one; the first one would end an epoch, or give room by changing a promise
						had := w.tenants[tenant].Promise
						if age := w.now() - w.limit.Began; w.limit.Exists && (age < 0 || age >= w.rule.Epoch) || had > 0 && had != p.promise {
							continue
						}
						w.last = "upto"
						var taken int64
						for upto := n; taken < upto && w.rule.Call(&w.limit, &w.tenants[tenant], w.now(), 1, p.weight, p.promise).Allowed; taken++ {
						}
						got, _, err := w.with[p].TryAcquireUpTo(ctx, fairKey(tenant), int(n))
						require.NoError(t, err)
						require.Equal(t, int(taken), got, w.about)
					default:
						switch r := w.call(tenant, n, p); {
						case r.Allowed:
							allowed++
						case r.ByShare:
							byShare++
						default:
							byLimit++
						}
					}
					if rng.IntN(4) == 0 {
						window := w.rule.Burst * w.rule.Permit / w.rule.Flow
						s.Advance(time.Duration(rng.Int64N(max(window/8, 2))) * time.Microsecond)
						if rng.IntN(20) == 0 { // one epoch, and who is not in the next one counts no longer
							s.Advance(time.Duration(w.rule.Epoch+rng.Int64N(w.rule.Epoch)) * time.Microsecond)
						}
						if rng.IntN(20) == 0 {
							s.Advance(time.Duration(rng.Int64N(2*w.rule.Epoch)) * time.Microsecond)
						}
						if rng.IntN(10) == 0 && s.MaxSkew == 0 {
							s.Advance(-time.Duration(rng.Int64N(2*window)) * time.Microsecond)
						}
					}
					if s.Admin.Exists(ctx, "ratelimit:default:fairtokenbucket:{limit}").Val() == 0 {
						w.limit = fairshares.Limit{}
					}
					for i := range w.tenants {
						if s.Admin.Exists(ctx, "ratelimit:default:fairtokenbucket:"+fairKey(i)).Val() == 0 {
							w.tenants[i] = fairshares.Tenant{}
						}
					}
				}
			}
			if rounds > 1 { // one says nothing of how sharp the test is
				require.True(t, allowed > 100 && byShare > 100 && byLimit > 100, "%d, %d, %d", allowed, byShare, byLimit)
			}
		})
	}
}

func TestKeysThatNameNoTenantAreMistakes(t *testing.T) {
	l := fairBucket(t, limitertest.Offline(t), 16)
	require.NoError(t, ratelimit.Preload(ctx, ratelimit.ClaimOf(fairBucket(t, limitertest.OnMiniredis(t).Client, 16), "preload", 1)))
	for _, key := range []string{"tenant:42", "{gpt-4}", "{}:tenant", "tenant:{gpt-4}", "{gpt-4", "}"} {
		_, err := l.TryAcquire(ctx, key)
		require.ErrorIs(t, err, ratelimit.ErrInvalidKey, key)
		require.ErrorContains(t, err, "such as {gpt-4}:tenant:42")
		_, err = l.Peek(ctx, key)
		require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
		_, err = ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(l, key, 1))
		require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
	}
	_, err := l.TryAcquireN(ctx, "{gpt-4}:tenant", 15)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	for _, weight := range []int{0, -1, 1001} {
		_, err := l.Weight(weight)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
		require.ErrorContains(t, err, fmt.Sprint(weight))
	}
	for _, of := range []struct {
		rate  ratelimit.Rate
		burst int
	}{{ratelimit.PerSecond(1), 1}, {ratelimit.PerSecond(1), 0}, {ratelimit.Per(1, 3*time.Hour), 10}, {ratelimit.PerHour(7), 1_000_000_000}} {
		_, err := ratelimit.NewFairTokenBucket(limitertest.Offline(t), of.rate, of.burst)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
	}
}

func TestAResetOfATenantOrOfALimit(t *testing.T) {
	limitertest.Everywhere(t, func(t *testing.T, s *limitertest.Stage) {
		l := fairBucket(t, s.Client, 16, s.Opts...)
		must(t)(l.TryAcquireN(ctx, "{limit}:a", 14))
		require.NoError(t, l.Reset(ctx, "{limit}:a"))
		require.Equal(t, int64(1), s.Admin.Exists(ctx, "ratelimit:default:fairtokenbucket:{limit}").Val())
		require.Zero(t, s.Admin.Exists(ctx, "ratelimit:default:fairtokenbucket:{limit}:a").Val())
		require.False(t, must(t)(l.TryAcquireN(ctx, "{limit}:a", 3)).Allowed, "the permits stay taken")
		require.NoError(t, l.Reset(ctx, "{limit}"))
		require.True(t, must(t)(l.TryAcquireN(ctx, "{limit}:a", 14)).Allowed)
		require.Positive(t, s.Admin.PTTL(ctx, "ratelimit:default:fairtokenbucket:{limit}").Val())
		require.Positive(t, s.Admin.PTTL(ctx, "ratelimit:default:fairtokenbucket:{limit}:a").Val())
	})
}

// TestTenantsByTwoRulesGetWhatBothAllow: random calls of four tenants by two rules, of several weights and promises, on a
// clock that also steps back: nobody gets an error, in no interval all together get more than the larger burst and the
// faster rate × t, and a wait is over when it says.
func TestTenantsByTwoRulesGetWhatBothAllow(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	rng := model.Seeded(limitertest.Seed(t))
	for range limitertest.Rounds(300, 20) {
		s.Wipe(t)
		var limits []*ratelimit.FairTokenBucket
		burst, rate := 0, 0
		for range 2 {
			b, r := 8*(1+rng.IntN(8)), 1+rng.IntN(100)
			l, err := ratelimit.NewFairTokenBucket(s.Client, ratelimit.PerSecond(r), b)
			require.NoError(t, err)
			of, err := l.Weight(1 + rng.IntN(4))
			require.NoError(t, err)
			limits = append(limits, l, of)
			if p, err := l.Promise(ratelimit.Rate{Count: r, Period: 3 * time.Second}); err == nil {
				limits = append(limits, p)
			}
			burst, rate = max(burst, b), max(rate, r)
		}
		back := rng.IntN(2) == 0
		type take struct {
			at time.Duration
			n  int
		}
		var takes []take
		passed := time.Duration(0) // a step back is no time
		for range 150 {
			l, key := limits[rng.IntN(len(limits))], fairKey(rng.IntN(4))
			n := 1 + rng.IntN(3)
			r := must(t)(l.TryAcquireN(ctx, key, n))
			if r.Allowed {
				takes = append(takes, take{passed, n})
			} else {
				require.Positive(t, r.RetryAfter)
				if rng.IntN(4) == 0 && r.RetryAfter < 2*time.Second { // later the other rule may have forgotten a tenant, after three epochs
					s.Advance(r.RetryAfter)
					passed += r.RetryAfter
					require.True(t, must(t)(l.TryAcquireN(ctx, key, n)).Allowed, "after %v", r.RetryAfter)
					takes = append(takes, take{passed, n})
				}
			}
			switch step := time.Duration(rng.IntN(200)) * time.Millisecond; {
			case back && rng.IntN(10) == 0:
				s.Advance(-step)
			case rng.IntN(3) == 0:
				s.Advance(step)
				passed += step
			}
		}
		for i := range takes {
			sum := 0
			for _, later := range takes[i:] {
				sum += later.n
				require.LessOrEqual(t, float64(sum), float64(burst)+float64(rate)*(later.at-takes[i].at).Seconds()+1e-6, "%d at once, %d a second", burst, rate)
			}
		}
	}
}

// TestDamagedKeysOfAFairBucket: one of the two keys holds what no fair bucket wrote. Nothing is changed, and it is that key's
// tenants who get the error.
func TestDamagedKeysOfAFairBucket(t *testing.T) {
	limitertest.Everywhere(t, func(t *testing.T, s *limitertest.Stage) {
		const prefix = "ratelimit:default:fairtokenbucket:"
		l := fairBucket(t, s.Client, 16, s.Opts...)
		for _, used := range []bool{false, true} {
			for _, damage := range []struct {
				key    string
				write  func(key string) error
				others bool // are served
			}{
				{"{limit}", func(key string) error { return s.Admin.Set(ctx, key, "full", time.Hour).Err() }, false},
				{"{limit}", func(key string) error { return s.Admin.Set(ctx, key, "1/2,3,4;5,6,7,8,9,1/x/1", time.Hour).Err() }, false},
				{"{limit}", func(key string) error { return s.Admin.Set(ctx, key, "1/2,3,4;5,6,7,8,9,1,1,1/1/1", time.Hour).Err() }, false},
				{"{limit}", func(key string) error {
					return s.Admin.Set(ctx, key, "1/99999999999999999,3,4;5,6,7,8,9,1/62500/1", time.Hour).Err()
				}, false},
				{"{limit}", func(key string) error { return s.Admin.LPush(ctx, key, "full").Err() }, false},
				{"{limit}:a", func(key string) error { return s.Admin.Set(ctx, key, "1,2", time.Hour).Err() }, true},
				{"{limit}:a", func(key string) error { return s.Admin.Set(ctx, key, "1,0,5", time.Hour).Err() }, true},
				{"{limit}:a", func(key string) error { return s.Admin.Set(ctx, key, "99999999999999999,1,5", time.Hour).Err() }, true},
				{"{limit}:a", func(key string) error { return s.Admin.LPush(ctx, key, "full").Err() }, true},
			} {
				s.Wipe(t)
				if used {
					must(t)(l.TryAcquire(ctx, "{limit}:a"))
					must(t)(l.TryAcquire(ctx, "{limit}:b"))
				}
				require.NoError(t, s.Admin.Del(ctx, prefix+damage.key).Err())
				require.NoError(t, damage.write(prefix+damage.key))
				before := s.Look(t, prefix+"{limit}") + s.Look(t, prefix+"{limit}:a")
				for _, call := range []func() error{
					func() error { _, err := l.TryAcquire(ctx, "{limit}:a"); return err },
					func() error { _, err := l.Peek(ctx, "{limit}:a"); return err },
					func() error { _, err := l.Charge(ctx, "{limit}:a", 1); return err },
					func() error { _, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(l, "{limit}:a", 2)); return err },
				} {
					err := call()
					require.Error(t, err, before)
					if s.Admin.Type(ctx, prefix+damage.key).Val() == "string" {
						require.ErrorIs(t, err, ratelimit.ErrCorruptState, before)
					}
				}
				require.Equal(t, before, s.Look(t, prefix+"{limit}")+s.Look(t, prefix+"{limit}:a"))
				_, err := l.TryAcquire(ctx, "{limit}:b")
				require.Equal(t, damage.others, err == nil, "%v", err)
			}
		}
		for _, key := range []string{"{limit}:" + strings.Repeat("x", 4088), "{" + strings.Repeat("x", 4093) + "}t"} { // as long as keys may be
			require.Len(t, key, 4096)
			s.Wipe(t)
			for want := 13; want >= 12; want-- {
				require.Equal(t, want, must(t)(l.TryAcquire(ctx, key)).Remaining)
			}
		}
	})
}

// TestAPromiseIsKept: four greedy tenants take whatever they get, and one asks for the quarter of the rule that it is
// promised, in calls of one size or of two.
func TestAPromiseIsKept(t *testing.T) {
	raceflag.SkipSequential(t)
	s := limitertest.OnMiniredis(t)
	l := fairBucket(t, s.Client, 160)
	heavy, err := l.Weight(3)
	require.NoError(t, err)
	promised, err := l.Promise(ratelimit.PerSecond(40))
	require.NoError(t, err)
	for name, of := range map[string]struct {
		limiter *ratelimit.FairTokenBucket
		calls   []int
		denied  bool
	}{
		"promised":                    {promised, []int{1}, false},
		"promised, of two sizes":      {promised, []int{1, 3, 0, 0, 1, 1}, false},
		"promised, all that comes up": {promised, []int{10, 0, 0, 0, 0, 0, 0, 0, 0, 0}, false},
		"by its share":                {l, []int{1}, true},
	} {
		s.Wipe(t)
		denied, taken := 0, 0
		for step := range 100 {
			for i := range 4 {
				for must(t)(heavy.TryAcquire(ctx, fmt.Sprintf("{limit}:greedy%d", i))).Allowed {
					taken++
				}
			}
			s.Advance(25 * time.Millisecond)
			n := of.calls[step%len(of.calls)]
			if step < 30 { // it is counted from a small call on
				n = 1
			}
			if n > 0 && step > 20 {
				if r := must(t)(of.limiter.TryAcquireN(ctx, "{limit}:modest", n)); !r.Allowed {
					if step > 50 { // the promise begins with nothing
						denied += n
					}
				} else {
					taken += n
				}
			}
		}
		if of.denied {
			require.Greater(t, denied, 25, name)
		} else {
			require.Zero(t, denied, name)
		}
		require.LessOrEqual(t, taken, 160+100*4)
		require.GreaterOrEqual(t, taken, 100*4, name)
	}
}

func TestPromisesThatCannotBeKeptAreMistakes(t *testing.T) {
	l := fairBucket(t, limitertest.Offline(t), 160)
	for rate, says := range map[ratelimit.Rate]string{
		ratelimit.PerSecond(161): "more than the limit",
		ratelimit.PerSecond(3):   "never comes to a permit",
		ratelimit.PerSecond(0):   "0",
	} {
		_, err := l.Promise(rate)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
		require.ErrorContains(t, err, says)
	}
	slow := ratelimit.Must(ratelimit.NewFairTokenBucket(limitertest.Offline(t), ratelimit.PerMinute(7), 20_000))
	_, err := slow.Promise(ratelimit.PerMinute(3))
	require.ErrorContains(t, err, "cannot be kept exactly")
	of, err := l.Promise(ratelimit.PerSecond(4))
	require.NoError(t, err)
	weighed, err := of.Weight(2)
	require.NoError(t, err)
	again, err := weighed.Promise(ratelimit.PerSecond(4))
	require.NoError(t, err)
	require.Same(t, weighed, again, "a weight keeps the promise, and a promise the weight")
}

// TestWhatIsWrittenInPlaceExpires: the TTLs stay within an epoch, so that two are left at its end; a lost one is repaired.
func TestWhatIsWrittenInPlaceExpires(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	l := fairBucket(t, s.Client, 16)
	at := func(offset time.Duration, want time.Duration) {
		t.Helper()
		s.Move(limitertest.Start.Add(offset))
		require.True(t, must(t)(l.TryAcquire(ctx, "{limit}:a")).Allowed)
		for _, key := range []string{"{limit}", "{limit}:a"} {
			require.Equal(t, want, s.Admin.PTTL(ctx, "ratelimit:default:fairtokenbucket:"+key).Val(), key)
		}
	}
	require.Zero(t, limitertest.Start.UnixMicro()%16)
	at(time.Microsecond, 3003*time.Millisecond)
	at(501*time.Millisecond+time.Microsecond, 2502*time.Millisecond)
	at(time.Second-time.Microsecond, 2003*time.Millisecond)
	at(time.Second+time.Microsecond, 3003*time.Millisecond) // another epoch
	for _, key := range []string{"{limit}", "{limit}:a"} {
		require.True(t, s.Admin.Persist(ctx, "ratelimit:default:fairtokenbucket:"+key).Val())
	}
	at(time.Second+15*time.Microsecond, -1)
	at(time.Second+16*time.Microsecond, 3003*time.Millisecond)

	raw := s.Admin.Get(ctx, "ratelimit:default:fairtokenbucket:{limit}").Val()
	states, err := state.Read(ctx, s.Admin, []string{"ratelimit:default:fairtokenbucket:{limit}", "ratelimit:default:fairtokenbucket:{limit}:a"}, 0)
	require.NoError(t, err)
	require.NoError(t, states[0].Err)
	require.Equal(t, int64(4), states[0].Used, raw)
	require.NoError(t, states[1].Err)
	require.Equal(t, int64(1), states[1].Weight)
}

// TestATenantIsKnownForAsLongAsItsDebt: when its key expires it comes new, which was not what its RetryAfter said.
func TestATenantIsKnownForAsLongAsItsDebt(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	l := fairBucket(t, s.Client, 16)
	must(t)(l.TryAcquire(ctx, "{limit}:a"))
	must(t)(l.TryAcquire(ctx, "{limit}:b"))
	must(t)(l.Charge(ctx, "{limit}:a", 64))
	denied := must(t)(l.TryAcquire(ctx, "{limit}:a"))
	require.Equal(t, ratelimit.Result{Limit: 16, Window: time.Second, RetryAfter: 3500 * time.Millisecond, ResetAfter: 4125 * time.Millisecond}, denied)
	s.Advance(denied.RetryAfter - time.Microsecond)
	require.False(t, must(t)(l.TryAcquire(ctx, "{limit}:a")).Allowed)
	s.Advance(time.Microsecond)
	require.True(t, must(t)(l.TryAcquire(ctx, "{limit}:a")).Allowed)
}

// TestADenialGivesLostTTLsBack: to the limit and to the tenant, by either script.
func TestADenialGivesLostTTLsBack(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	l := fairBucket(t, s.Client, 16)
	must(t)(l.TryAcquireN(ctx, "{limit}:a", 14))
	for name, denied := range map[string]func(){
		"a call": func() { require.False(t, must(t)(l.TryAcquire(ctx, "{limit}:a")).Allowed) },
		"an estimate": func() {
			ticket, _, err := l.Estimate(ctx, "{limit}:a", 1)
			require.NoError(t, err)
			require.Nil(t, ticket)
		},
	} {
		for _, key := range []string{"ratelimit:default:fairtokenbucket:{limit}", "ratelimit:default:fairtokenbucket:{limit}:a"} {
			require.True(t, s.Admin.Persist(ctx, key).Val())
			denied()
			require.Equal(t, 3003*time.Millisecond, s.Admin.PTTL(ctx, key).Val(), "%s: %s", name, key)
		}
	}
}

// TestAFairBucketBesideOtherLimits: all or nothing, of several limits of one tag.
func TestAFairBucketBesideOtherLimits(t *testing.T) {
	limitertest.Everywhere(t, func(t *testing.T, s *limitertest.Stage) {
		l := fairBucket(t, s.Client, 16, s.Opts...)
		heavy, err := l.Weight(2)
		require.NoError(t, err)
		own := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(1), 2, append(s.Opts, ratelimit.WithName("own"))...))
		both := ratelimit.Must(ratelimit.NewAll(own, l))
		for range 2 {
			require.True(t, must(t)(both.TryAcquire(ctx, "{limit}:a")).Allowed)
		}
		require.False(t, must(t)(both.TryAcquire(ctx, "{limit}:a")).Allowed)
		require.Equal(t, 12, must(t)(l.Peek(ctx, "{limit}:a")).Remaining, "nothing was taken")
		require.True(t, must(t)(both.TryAcquire(ctx, "{limit}:b")).Allowed)

		r, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(own, "{limit}:c", 1), ratelimit.ClaimOf(heavy, "{limit}:c", 2))
		require.NoError(t, err)
		require.True(t, r.Allowed)
		_, err = ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(l, "{limit}:c", 1), ratelimit.ClaimOf(l, "{limit}:d", 1))
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
		require.ErrorContains(t, err, "tenants of one limit")

		var calls sync.WaitGroup
		var allowed atomic.Int64
		for i := range 64 {
			calls.Go(func() {
				if r, err := both.TryAcquire(ctx, fmt.Sprintf("{limit}:new%d", i)); err == nil && r.Allowed {
					allowed.Add(1)
				}
			})
		}
		calls.Wait()
		require.LessOrEqual(t, allowed.Load(), int64(11))
		require.Positive(t, allowed.Load())
	})
}

// TestADenialThatOthersCanEndIsNotRemembered: the tenant is allowed before its RetryAfter, because another one takes.
func TestADenialThatOthersCanEndIsNotRemembered(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	l := fairBucket(t, s.Client, 16)
	c := ratelimit.Must(ratelimit.NewDenyCache(l))
	chosen := ratelimit.Must(ratelimit.NewDenyCache(ratelimit.Must(ratelimit.NewChoice(func(context.Context, string) (ratelimit.Limiter, error) { return l, nil }))))
	for _, cached := range []*ratelimit.DenyCache{c, chosen} {
		for !must(t)(cached.TryAcquire(ctx, "{limit}:a")).ByShare {
		}
		require.NoError(t, l.Reset(ctx, "{limit}"))
		require.True(t, must(t)(cached.TryAcquire(ctx, "{limit}:a")).Allowed)
	}
}

// TestAllTenantsTogetherGetWhatTheRuleAllows: 64 callers of 64 tenants of three weights, of three clients; and each
// tenant gets something.
func TestAllTenantsTogetherGetWhatTheRuleAllows(t *testing.T) {
	server := redistest.Start(t)
	var limits []*ratelimit.FairTokenBucket
	for range 3 {
		l := fairBucket(t, server.Client(t), 800)
		for weight := 1; weight <= 3; weight++ {
			of, err := l.Weight(weight)
			require.NoError(t, err)
			limits = append(limits, of)
		}
	}
	var taken [64]atomic.Int64
	began := time.Now()
	var calls sync.WaitGroup
	for i := range taken {
		calls.Go(func() {
			for range 150 {
				r, err := limits[i%len(limits)].TryAcquire(ctx, fmt.Sprintf("{limit}:%d", i))
				if err != nil {
					t.Error(err)
					return
				}
				if r.Allowed {
					taken[i].Add(1)
				}
			}
		})
	}
	calls.Wait()
	took, sum := time.Since(began), int64(0)
	for i := range taken {
		require.Positive(t, taken[i].Load(), "tenant %d", i)
		sum += taken[i].Load()
	}
	require.LessOrEqual(t, sum, 800+int64(took.Seconds()*800)+1)
	require.GreaterOrEqual(t, sum, int64(400))
}

func BenchmarkFairTokenBucket(b *testing.B) {
	client := redis.NewClient(&redis.Options{Addr: redistest.Shared(b).Addr()})
	b.Cleanup(func() { _ = client.Close() })
	plain := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(1_000_000), 1_000_000, ratelimit.WithName("bench")))
	shared := ratelimit.Must(ratelimit.NewFairTokenBucket(client, ratelimit.PerSecond(1_000_000), 10_000_000, ratelimit.WithName("bench")))
	keys := make([]string, 1000)
	for i := range keys {
		keys[i] = fmt.Sprintf("{limit}:tenant:%d", i)
	}
	for _, of := range []struct {
		name    string
		limiter ratelimit.Limiter
	}{{"plain", plain}, {"shared", shared}} {
		b.Run(of.name+" alone", func(b *testing.B) {
			for i := range b.N {
				if _, err := of.limiter.TryAcquire(ctx, keys[i%len(keys)]); err != nil {
					b.Fatal(err)
				}
			}
			usec(b, client, b.N)
		})
		b.Run(of.name+" 256 callers", func(b *testing.B) {
			var next atomic.Int64
			var callers sync.WaitGroup
			for range 256 {
				callers.Go(func() {
					for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
						if _, err := of.limiter.TryAcquire(ctx, keys[i%1000]); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			callers.Wait()
			usec(b, client, b.N)
		})
	}
}

// usec reports the server's time of each call.
func usec(b *testing.B, client *redis.Client, calls int) {
	b.StopTimer()
	stats, err := client.InfoMap(ctx, "commandstats").Result()
	require.NoError(b, err)
	var count, micros int64
	_, err = fmt.Sscanf(stats["Commandstats"]["cmdstat_evalsha"], "calls=%d,usec=%d", &count, &micros)
	require.NoError(b, err)
	b.ReportMetric(float64(count)/float64(calls), "executions/op")
	b.ReportMetric(float64(micros)/float64(calls), "server-µs/op")
	require.NoError(b, client.ConfigResetStat(ctx).Err())
}

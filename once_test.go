package ratelimit_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/keyname"
	"github.com/tryacquire/ratelimit/internal/testing/fakes"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/observe"
)

var onceStages = map[string]func(testing.TB) *limitertest.Stage{"miniredis": limitertest.OnMiniredis, "Redis": limitertest.OnHeldRedis}

// TestTheSameIDTakesOnce: of every algorithm, until the id is forgotten.
func TestTheSameIDTakesOnce(t *testing.T) {
	for server, open := range onceStages {
		t.Run(server, func(t *testing.T) {
			s := open(t)
			for _, v := range limitertest.Variants() {
				t.Run(v.Name, func(t *testing.T) {
					s.Wipe(t)
					l, err := v.Build(s.Client, s.Opts...)
					require.NoError(t, err)
					claims := []ratelimit.Claim{ratelimit.ClaimOf(l, v.Of("k"), 2)}
					if all, ok := l.(*ratelimit.All); ok {
						claims = all.Claims("k", 2)
					}
					first, err := ratelimit.TryAcquireOnce(ctx, "job 1", 200*time.Millisecond, claims...)
					require.NoError(t, err)
					require.True(t, first.Allowed)
					require.False(t, first.Repeated)
					left := must(t)(l.Peek(ctx, v.Of("k")))
					for range 3 {
						s.Advance(10 * time.Millisecond)
						again, err := ratelimit.TryAcquireOnce(ctx, "job 1", 200*time.Millisecond, claims...)
						require.NoError(t, err)
						require.True(t, again.Repeated)
						require.Equal(t, first.Result, again.Result)
						require.Equal(t, first.Parts[0].Result, again.Parts[0].Result)
						require.Equal(t, left.Remaining, must(t)(l.Peek(ctx, v.Of("k"))).Remaining)
					}
					held := everything(t, s)
					denied, err := ratelimit.TryAcquireOnce(ctx, "job 2", time.Hour, claims...)
					require.NoError(t, err)
					require.False(t, denied.Allowed)
					require.Equal(t, held, everything(t, s), "a denial writes nothing")
					require.Len(t, s.Admin.Keys(ctx, "*/once*").Val(), 1)
					s.Advance(171 * time.Millisecond) // Redis keeps a key for its last millisecond
					require.Empty(t, s.Admin.Keys(ctx, "*/once*").Val(), "gone at its time to live")
					s.Advance(denied.RetryAfter)
					after, err := ratelimit.TryAcquireOnce(ctx, "job 2", time.Hour, claims...)
					require.NoError(t, err)
					require.True(t, after.Allowed, "a denial is not remembered")
					require.False(t, after.Repeated)
				})
			}
		})
	}
}

// TestOnceThroughSeveralLimits: with a model of what was taken, in random order.
func TestOnceThroughSeveralLimits(t *testing.T) {
	for server, open := range onceStages {
		t.Run(server, func(t *testing.T) {
			s := open(t)
			seed := limitertest.Seed(t)
			rng := rand.New(rand.NewPCG(seed, 1))
			window := ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 1_000_000, 10_000*time.Hour, ratelimit.WithName("w")))
			month := ratelimit.Must(ratelimit.NewCalendarWindow(s.Client, 1_000_000_000, ratelimit.Monthly(1, time.UTC), ratelimit.WithName("m")))
			log := ratelimit.Must(ratelimit.NewSlidingLog(s.Client, []ratelimit.Rule{{Limit: 2_000_000, Window: 9_000 * time.Hour}, {Limit: 3_000_000, Window: 10_000 * time.Hour}}, ratelimit.WithName("l")))
			type taken struct {
				n     int
				until time.Time
				r     ratelimit.AllResult
			}
			ids, used := map[string]taken{}, 0
			for range 300 {
				s.Advance(time.Duration(rng.IntN(100)) * 10 * time.Millisecond)
				id, n, ttl := fmt.Sprint("id", rng.IntN(5)), 1+rng.IntN(3), time.Duration(5+10*rng.IntN(300))*time.Millisecond
				known := ids[id]
				if known.n > 0 && rng.IntN(4) > 0 {
					n = known.n
				}
				r, err := ratelimit.TryAcquireOnce(ctx, id, ttl, ratelimit.ClaimOf(window, "k", n), ratelimit.ClaimOf(month, "k", 2*n), ratelimit.ClaimOf(log, "k", n))
				switch {
				case !s.Now.Before(known.until):
					require.NoError(t, err)
					require.False(t, r.Repeated)
					used += n
					ids[id] = taken{n, s.Now.Add(ttl), r}
				case known.n == n:
					require.NoError(t, err)
					require.True(t, r.Repeated)
					require.Equal(t, known.r.Result, r.Result)
					for i := range r.Parts {
						require.Equal(t, known.r.Parts[i].Result, r.Parts[i].Result)
					}
				default:
					require.ErrorIs(t, err, ratelimit.ErrIDReused)
				}
				require.Equal(t, 1_000_000-used, must(t)(window.Peek(ctx, "k")).Remaining)
				require.Equal(t, 1_000_000_000-2*used, must(t)(month.Peek(ctx, "k")).Remaining)
				require.Equal(t, 2_000_000-used, must(t)(log.Peek(ctx, "k")).Remaining)
			}
		})
	}
}

// TestAnIDThatStandsForAnotherCall is an error, and takes nothing.
func TestAnIDThatStandsForAnotherCall(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	window := func(name string, limit int) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.NewFixedWindow(s.Client, limit, time.Hour, ratelimit.WithName(name)))
	}
	l, other := window("a", 10), window("b", 10)
	_, err := ratelimit.TryAcquireOnce(ctx, "id", time.Hour, ratelimit.ClaimOf(l, "k", 1))
	require.NoError(t, err)
	for name, claims := range map[string][]ratelimit.Claim{
		"n":                     {ratelimit.ClaimOf(l, "k", 2)},
		"limit":                 {ratelimit.ClaimOf(window("a", 11), "k", 1)},
		"more":                  {ratelimit.ClaimOf(l, "k", 1), ratelimit.ClaimOf(other, "k", 1)},
		"in an outage's policy": {ratelimit.ClaimOf(ratelimit.Must(ratelimit.NewFallback(l, ratelimit.AllowAll())), "k", 2)},
	} {
		r, err := ratelimit.TryAcquireOnce(ctx, "id", time.Hour, claims...)
		require.ErrorIs(t, err, ratelimit.ErrIDReused, name)
		require.ErrorContains(t, err, `key "k"`, name)
		require.Zero(t, r)
	}
	for _, claim := range []ratelimit.Claim{ratelimit.ClaimOf(l, "k2", 1), ratelimit.ClaimOf(other, "k", 1)} {
		r, err := ratelimit.TryAcquireOnce(ctx, "id", time.Hour, claim)
		require.NoError(t, err)
		require.False(t, r.Repeated, "of another key, or limiter, it is another id")
	}
	require.Equal(t, 9, must(t)(l.Peek(ctx, "k")).Remaining)
}

// TestARepeatedCallAfterALostReply gets the answer that was lost.
func TestARepeatedCallAfterALostReply(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	lose := false
	lossy := fakes.Losing(s.Client, func(redis.Cmder) error {
		if lose {
			return io.ErrUnexpectedEOF
		}
		return nil
	})
	l := ratelimit.Must(ratelimit.NewTokenBucket(lossy, ratelimit.PerHour(1), 5))
	_, err := ratelimit.TryAcquireOnce(ctx, "warm", time.Hour, ratelimit.ClaimOf(l, "other", 1)) // Redis knows the script
	require.NoError(t, err)
	lose = true
	_, err = ratelimit.TryAcquireOnce(ctx, "id", time.Hour, ratelimit.ClaimOf(l, "k", 2))
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	lose = false
	r, err := ratelimit.TryAcquireOnce(ctx, "id", time.Hour, ratelimit.ClaimOf(l, "k", 2))
	require.NoError(t, err)
	require.True(t, r.Repeated)
	require.Equal(t, 3, r.Remaining)
	require.Equal(t, 3, must(t)(l.Peek(ctx, "k")).Remaining)
}

// TestManyCallersOfOneID: one of them takes, and all get its answer.
func TestManyCallersOfOneID(t *testing.T) {
	s := limitertest.OnHeldRedis(t)
	l := ratelimit.Must(ratelimit.NewSlidingWindow(s.Client, 1000, time.Hour))
	var wg sync.WaitGroup
	var took, failed atomic.Int64
	for range 64 {
		wg.Go(func() {
			for i := range 10 {
				r, err := ratelimit.TryAcquireOnce(ctx, fmt.Sprint("id", i), time.Hour, ratelimit.ClaimOf(l, "k", 1))
				if err != nil || !r.Allowed {
					failed.Add(1)
				} else if !r.Repeated {
					took.Add(1)
				}
			}
		})
	}
	wg.Wait()
	require.Zero(t, failed.Load())
	require.EqualValues(t, 10, took.Load())
	require.Equal(t, 990, must(t)(l.Peek(ctx, "k")).Remaining)
}

// TestPoliciesAroundACallWithAnID: memory denies none of them, a trial takes as often as what it follows, an outage's
// secondary may take again, and an observer hears that nothing was taken.
func TestPoliciesAroundACallWithAnID(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	told, rec := 0, &recorder{}
	crossings := ratelimit.Must(observe.Crossings(func(context.Context, int, ratelimit.Observation) { told++ }, 50))
	l := ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 2, time.Hour, ratelimit.WithObserver(rec.observe, crossings)))
	trial := ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 5, time.Hour, ratelimit.WithName("trial")))
	trials := make(chan ratelimit.Trial, 9)
	cached := ratelimit.Must(ratelimit.NewDenyCache(l))
	shadowed := ratelimit.Must(ratelimit.NewShadow(cached, trial, func(t ratelimit.Trial) { trials <- t }))
	outage := ratelimit.Must(ratelimit.NewFallback(shadowed, ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerHour(1), 9))))
	once := func(id string) (ratelimit.AllResult, error) {
		return ratelimit.TryAcquireOnce(ctx, id, time.Hour, ratelimit.ClaimOf(outage, "k", 1))
	}
	first, err := once("a")
	require.NoError(t, err)
	require.Equal(t, 1, (<-trials).Result.Limit-4)
	_, _ = once("b")
	<-trials
	rec.took(t)
	require.False(t, must(t)(cached.TryAcquire(ctx, "k")).Allowed, "and memory knows it")
	rec.took(t)
	again, err := once("a")
	require.NoError(t, err)
	require.True(t, again.Repeated)
	require.Equal(t, first.Result, again.Result)
	seen := rec.took(t)
	require.Len(t, seen, 1)
	require.Equal(t, []any{ratelimit.OutcomeAllowed, true, 0}, []any{seen[0].Outcome, seen[0].Repeated, seen[0].Taken})
	require.Equal(t, 1, told)
	require.Empty(t, trials)
	require.Equal(t, 3, must(t)(trial.Peek(ctx, "k")).Remaining)

	require.NoError(t, s.Client.(*redis.Client).Close())
	for range 2 {
		r, err := once("a")
		require.NoError(t, err)
		require.True(t, r.Fallback)
		require.False(t, r.Repeated)
	}
}

func TestMistakesOfACallWithAnID(t *testing.T) {
	c := limitertest.Offline(t)
	l := ratelimit.Must(ratelimit.NewTokenBucket(c, ratelimit.PerHour(1), 5))
	local := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerHour(1), 5))
	held := ratelimit.Must(ratelimit.NewInFlight(c, 5, time.Minute))
	all := ratelimit.Must(ratelimit.NewAll(l))
	down := ratelimit.Must(ratelimit.NewFallback(l, ratelimit.AllowAll()))
	ofHolds := "are held, and would be released once for each answer; TryAcquireAll holds them once under the id of Claim.As"
	for _, test := range []struct {
		id     string
		ttl    time.Duration
		claims []ratelimit.Claim
		is     error
		says   string
	}{
		{"", time.Hour, []ratelimit.Claim{ratelimit.ClaimOf(l, "k", 1)}, ratelimit.ErrInvalidKey, "the id of TryAcquireOnce has 0 bytes; it must have 1 to 4096"},
		{strings.Repeat("i", 4097), time.Hour, []ratelimit.Claim{ratelimit.ClaimOf(l, "k", 1)}, ratelimit.ErrInvalidKey, "has 4097 bytes"},
		{"id", time.Microsecond, []ratelimit.Claim{ratelimit.ClaimOf(l, "k", 1)}, ratelimit.ErrInvalidConfig, "for which the id is remembered is 1µs; it must be at least 1ms"},
		{"id", time.Hour, nil, ratelimit.ErrInvalidConfig, "there is no claim"},
		{"id", time.Hour, []ratelimit.Claim{ratelimit.ClaimOf(l, "k", 1).Estimate()}, ratelimit.ErrInvalidConfig, "is an estimate"},
		{"id", time.Hour, []ratelimit.Claim{ratelimit.ClaimHold(held, "k", 1)}, ratelimit.ErrInvalidConfig, ofHolds},
		{"id", time.Hour, []ratelimit.Claim{ratelimit.ClaimHold(held, "k", 1).As("job")}, ratelimit.ErrInvalidConfig, ofHolds},
		{"id", time.Hour, []ratelimit.Claim{ratelimit.ClaimOf(local, "k", 1)}, ratelimit.ErrInvalidConfig, "remembers no id"},
		{"id", time.Hour, []ratelimit.Claim{ratelimit.ClaimOf(local, "k", 1), ratelimit.ClaimOf(local, "l", 1)}, ratelimit.ErrInvalidConfig, "remembers no id"},
		{"id", time.Hour, []ratelimit.Claim{ratelimit.ClaimOf(all, "k", 1)}, ratelimit.ErrInvalidConfig, "of an All its claims"},
		{"id", time.Hour, []ratelimit.Claim{ratelimit.ClaimOf(down, "k", 6)}, ratelimit.ErrExceedsLimit, "6 permits"},
		{"id", time.Hour, []ratelimit.Claim{ratelimit.ClaimOf(l, "", 1)}, ratelimit.ErrInvalidKey, "it is empty"},
	} {
		r, err := ratelimit.TryAcquireOnce(ctx, test.id, test.ttl, test.claims...)
		require.ErrorIs(t, err, test.is)
		require.ErrorContains(t, err, test.says)
		require.Zero(t, r)
	}
}

// TestTheKeysOfIDs are in the slot of the caller's key, and are no two alike nor a limiter's.
func TestTheKeysOfIDs(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	l := ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 1000, time.Hour))
	parts, n := []string{"a", "{", "}", "/1", "1/", ":", ";", "tokenbucket", "{a}"}, 0
	for _, one := range parts {
		for _, two := range parts {
			for _, three := range parts {
				for _, cut := range []int{1, 2} {
					key, id := one, two+three
					if cut == 2 {
						key, id = one+two, three
					}
					r, err := ratelimit.TryAcquireOnce(ctx, id, time.Hour, ratelimit.ClaimOf(l, key, 1))
					require.NoError(t, err)
					if !r.Repeated {
						n++
					}
				}
			}
		}
	}
	distinct := map[[2]string]bool{}
	for _, one := range parts {
		for _, two := range parts {
			for _, three := range parts {
				distinct[[2]string{one, two + three}] = true
				distinct[[2]string{one + two, three}] = true
			}
		}
	}
	require.Equal(t, len(distinct), n)
	names := s.Admin.Keys(ctx, "*/once*").Val()
	require.Equal(t, n, len(names))
	for _, name := range names {
		_, is := keyname.Parse(name)
		require.False(t, is, name)
	}
}

// TestAnIDIsRememberedForAllOfItsTime: Redis counts milliseconds.
func TestAnIDIsRememberedForAllOfItsTime(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	l := ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 1000, time.Hour))
	for ttl, want := range map[time.Duration]time.Duration{
		time.Millisecond: time.Millisecond, 1001 * time.Microsecond: 2 * time.Millisecond, time.Hour: time.Hour,
	} {
		s.Wipe(t)
		_, err := ratelimit.TryAcquireOnce(ctx, "id", ttl, ratelimit.ClaimOf(l, "k", 1))
		require.NoError(t, err)
		require.Equal(t, want, s.Admin.PTTL(ctx, s.Admin.Keys(ctx, "*/once*").Val()[0]).Val(), "%v", ttl)
	}
}

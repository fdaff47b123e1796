package ratelimit_test

import (
	"fmt"
	"math/big"
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
)

// TestBucketsOfSeveralRulesKeepTheBound plays random calls of two or three buckets of
// different rules on one key, by the server's clock or by callers' clocks that differ.
// In every interval they take at most the largest burst + the fastest rate × (the
// interval + the skew + one longest step); a denial changes nothing; its RetryAfter is
// exact.
func TestBucketsOfSeveralRulesKeepTheBound(t *testing.T) {
	t.Parallel()
	histories := limitertest.Rounds(200, 30)
	rng := model.Seeded(limitertest.Seed(t))
	server := miniredis.RunT(t)
	server.ClockTTL(true)
	server.SetTime(limitertest.Start)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	const key = "ratelimit:default:tokenbucket{k}"
	type one struct {
		ratelimit.Limiter
		about string
		burst int
		lag   int64 // of its clock behind the true time, microseconds; below 0 ahead
	}
	pick := func(of ...int) int { return of[rng.IntN(len(of))] }
	for range histories {
		server.FlushAll()
		now := limitertest.Start.UnixMicro()
		server.SetTime(time.UnixMicro(now))
		var all []one
		var fastest *big.Rat
		longest := time.Duration(0) // step
		burst, slowest := 0, time.Duration(0)
		most := int64(pick(0, 10, 5_000, 300_000, 900_000)) // skew; 0: only the server's clock
		ahead := rng.Int64N(most + 1)
		clock := int64(0)
		for range 2 + rng.IntN(2) {
			rate := ratelimit.Per(pick(1, 2, 3, 7, 10, 100, 999_983), time.Duration(pick(1, 10, 1000, 1000, 7777, 60_000))*time.Millisecond)
			b := pick(1, 2, 5, 10, 30)
			var o []ratelimit.Option
			every := time.Duration(0)
			if rng.IntN(3) == 0 {
				every = time.Duration(pick(1, 50, 1000, 3333)) * time.Millisecond
				o = append(o, ratelimit.WithRefillEvery(every))
			}
			m := one{about: fmt.Sprintf("%v burst %d every %v", rate, b, every), burst: b}
			if most > 0 && rng.IntN(4) > 0 {
				o = append(o, ratelimit.WithClock(func() time.Time { return time.UnixMicro(clock) }))
				m.lag = rng.Int64N(most+1) - ahead
			}
			m.Limiter = ratelimit.Must(ratelimit.NewTokenBucket(client, rate, b, o...))
			all = append(all, m)
			perMicro := big.NewRat(int64(rate.Count), rate.Period.Microseconds())
			if fastest == nil || perMicro.Cmp(fastest) > 0 {
				fastest = perMicro
			}
			longest = max(longest, every)
			burst = max(burst, b)
			slowest = max(slowest, must(t)(m.Peek(ctx, "k")).Window)
		}
		about := fmt.Sprintf("skew %d:", most)
		for _, m := range all {
			about += fmt.Sprintf(" [%s, lag %d]", m.about, m.lag)
		}
		var taken []model.Taken
		back := int64(0) // how far the server's clock has been set back
		forward := now
		for call := range 60 {
			m := all[rng.IntN(len(all))]
			var passed int64
			switch rng.IntN(5) {
			case 0:
				passed = rng.Int64N(2_000)
			case 1:
				passed = rng.Int64N(300_000)
			case 2:
				passed = rng.Int64N(slowest.Microseconds()/8 + 1)
			}
			now += passed
			forward += passed
			if most == 0 && rng.IntN(15) == 0 {
				back = rng.Int64N(2 * slowest.Microseconds())
				now = max(now-back, 1)
			}
			from := server.TTL(key)
			set := func(at int64) {
				server.SetTime(time.UnixMicro(at))
				clock = at - m.lag
			}
			set(now)
			if back > 0 && from > 0 { // Redis keeps the instant of expiry
				server.SetTTL(key, server.TTL(key)+time.Duration(back)*time.Microsecond)
				back = 0
			}
			n := min(pick(1, 1, 2, m.burst, 1+rng.IntN(m.burst)), m.burst)
			before, _ := server.Get(key)
			peeked := must(t)(m.Peek(ctx, "k"))
			r := must(t)(m.TryAcquireN(ctx, "k", n))
			if n == 1 {
				require.Equal(t, peeked.Allowed, r.Allowed, "%s: call %d", about, call)
				require.Equal(t, peeked.RetryAfter, r.RetryAfter, "%s: call %d", about, call)
			}
			after, _ := server.Get(key)
			if r.Allowed {
				taken = append(taken, model.Taken{At: forward, N: n})
				continue
			}
			if most > 0 || before != "" && before[:16] <= fmt.Sprintf("%016d", now) {
				require.Equal(t, before, after, "%s: call %d", about, call)
			}
			require.LessOrEqual(t, r.RetryAfter, slowest+time.Duration(2*most)*time.Microsecond, "%s: call %d: %s: %+v", about, call, before, r)
			// A key that a server's clock wrote expires while a clock that is behind waits.
			if rng.IntN(3) == 0 && (m.lag <= 0 || strings.HasSuffix(before, "@")) { // exact
				now += r.RetryAfter.Microseconds() - 1
				forward += r.RetryAfter.Microseconds() - 1
				set(now)
				r = must(t)(m.TryAcquireN(ctx, "k", n))
				require.Equal(t, time.Microsecond, r.RetryAfter, "%s: call %d: %s: just before", about, call, before)
				now, forward = now+1, forward+1
				set(now)
				r = must(t)(m.TryAcquireN(ctx, "k", n))
				require.True(t, r.Allowed, "%s: call %d: %s: %+v", about, call, before, r)
				taken = append(taken, model.Taken{At: forward, N: n})
			}
		}
		// burst + fastest × skew + step
		allowance := new(big.Rat).SetInt64(int64(burst))
		allowance.Add(allowance, new(big.Rat).Mul(fastest, big.NewRat(most, 1)))
		allowance.Add(allowance, new(big.Rat).Mul(fastest, big.NewRat(longest.Microseconds(), 1)))
		for i := range taken {
			sum := 0
			for _, later := range taken[i:] {
				sum += later.N
				most := new(big.Rat).Mul(fastest, big.NewRat(later.At-taken[i].At, 1))
				most.Add(most, allowance)
				require.LessOrEqual(t, new(big.Rat).SetInt64(int64(sum)).Cmp(most), 0, "%s: %d permits from %d to %d", about, sum, taken[i].At, later.At)
			}
		}
	}
}

// TestServersClockKeepsTheSkewOfCallers: a bucket by the server's clock keeps the key for
// as long as the callers' WithMaxSkew says. If it did not, a caller whose clock is behind
// would find no key, and give the server's clock its lag again in every life of the key.
func TestServersClockKeepsTheSkewOfCallers(t *testing.T) {
	raceflag.SkipSequential(t)
	t.Parallel()
	const burst, skew = 100, 10 * time.Second
	for _, refill := range [][]ratelimit.Option{nil, {ratelimit.WithRefillEvery(time.Second)}} {
		server := miniredis.RunT(t)
		server.ClockTTL(true)
		server.SetTime(limitertest.Start)
		client := redis.NewClient(&redis.Options{Addr: server.Addr()})
		t.Cleanup(func() { _ = client.Close() })
		now := limitertest.Start
		exact := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(1), burst, refill...))
		behind := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(1), burst, append(refill,
			ratelimit.WithMaxSkew(skew), ratelimit.WithClock(func() time.Time { return now.Add(-skew) }))...))
		taken := 0
		for range 10 {
			server.SetTime(now)
			for _, l := range []ratelimit.Limiter{behind, exact} {
				for must(t)(l.TryAcquire(ctx, "k")).Allowed {
					taken++
				}
			}
			most := burst + int((now.Sub(limitertest.Start)+skew)/time.Second) + 1 // of the step
			require.LessOrEqual(t, taken, most, "after %v", now.Sub(limitertest.Start))
			now = now.Add(server.TTL("ratelimit:default:tokenbucket{k}") + time.Millisecond) // the key has expired
		}
	}
}

// TestPeekSaysWhenABucketOfAnotherRuleIsFull: the rule that wrote the state refills in
// steps longer than the looker's.
func TestPeekSaysWhenABucketOfAnotherRuleIsFull(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	writer := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.Per(2, time.Second), 2, ratelimit.WithRefillEvery(333_333*time.Microsecond)))
	steps := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.Per(1, time.Second), 2, ratelimit.WithRefillEvery(10*time.Millisecond)))
	even := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.Per(1, time.Second), 2))
	must(t)(writer.TryAcquireN(ctx, "k", 1))
	for _, row := range []struct {
		after      time.Duration
		left       int
		resetAfter time.Duration
	}{
		{0, 1, 666_666 * time.Microsecond},                      // by the writer's second step
		{400 * time.Millisecond, 1, 266_666 * time.Microsecond}, // 400 ms are restored by this rule, 333,333 µs twice as fast by the writer's
		{666_665 * time.Microsecond, 1, 1 * time.Microsecond},
		{666_666 * time.Microsecond, 2, 0},
	} {
		s.Move(limitertest.Start.Add(row.after))
		for _, l := range []ratelimit.Limiter{steps, even} {
			require.Equal(t, ratelimit.Result{Allowed: true, Limit: 2, Window: 2 * time.Second, Remaining: row.left, ResetAfter: row.resetAfter},
				must(t)(l.Peek(ctx, "k")), "after %v", row.after)
		}
	}
}

// TestARuleThatWaitsForAMuchLargerBurst: its wait times its rate is more than a number holds
// exactly. RetryAfter binds all the same.
func TestARuleThatWaitsForAMuchLargerBurst(t *testing.T) {
	// By the faster rate, that of large: until all but 28,334 − n permits are back.
	for n, want := range map[int]time.Duration{1: 577_907_216_679 * time.Microsecond, 5: 577_907_562_278 * time.Microsecond} {
		s := limitertest.OnMiniredis(t)
		large := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.Per(1_000_003, 24*time.Hour), 10_000_030))
		small := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.Per(77_777, 24*time.Hour), 28_334))
		must(t)(large.TryAcquireN(ctx, "k", 6_717_094))
		denied := must(t)(small.TryAcquireN(ctx, "k", n))
		require.Equal(t, want, denied.RetryAfter)
		require.Zero(t, denied.Remaining)
		s.Advance(want - time.Microsecond)
		require.Equal(t, time.Microsecond, must(t)(small.TryAcquireN(ctx, "k", n)).RetryAfter)
		s.Advance(time.Microsecond)
		require.True(t, must(t)(small.TryAcquireN(ctx, "k", n)).Allowed)
	}
}

// TestADenialBesideAFasterRule: a slow rule's Remaining is what is left, and its ResetAfter the
// time until the faster rule, which wrote the state, has filled the bucket.
func TestADenialBesideAFasterRule(t *testing.T) {
	eachBucket(t, func(t *testing.T, s *limitertest.Stage, slow, fast bucketKind) {
		s.Wipe(t)
		slowly := slow.build(s.Client, ratelimit.Per(1, 100*time.Second), 10)
		quickly := fast.build(s.Client, ratelimit.PerSecond(1), 10)
		require.True(t, must(t)(quickly.TryAcquireN(ctx, "k", 10)).Allowed)
		denied := func(remaining int, retryAfter, resetAfter time.Duration) ratelimit.Result {
			return ratelimit.Result{Limit: 10, Window: 1000 * time.Second, Remaining: remaining, RetryAfter: retryAfter, ResetAfter: resetAfter}
		}
		require.Equal(t, denied(0, time.Second, 10*time.Second), must(t)(slowly.Peek(ctx, "k")))
		require.Equal(t, denied(0, time.Second, 10*time.Second), must(t)(slowly.TryAcquire(ctx, "k")))
		require.Equal(t, denied(0, 9*time.Second, 10*time.Second), must(t)(slowly.TryAcquireN(ctx, "k", 9)))
		s.Advance(3 * time.Second)
		require.Equal(t, denied(3, 6*time.Second, 7*time.Second), must(t)(slowly.TryAcquireN(ctx, "k", 9)))
		_, estimate, err := slowly.Estimate(ctx, "k", 9)
		require.Equal(t, denied(3, 6*time.Second, 7*time.Second), must(t)(estimate, err))
	})
}

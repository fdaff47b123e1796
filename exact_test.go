package ratelimit_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// TestRatesNeitherLeakNorLoseAPermit asks a hundred times at each instant, and so often
// that the bucket, once emptied, is never full again: the permits taken are then what
// the rate yields, exactly. RATELIMIT_LONG makes it a million decisions for each rate.
func TestRatesNeitherLeakNorLoseAPermit(t *testing.T) {
	asks := limitertest.Rounds(10_000, 1000)
	for _, rate := range []ratelimit.Rate{ratelimit.PerSecond(3), ratelimit.PerMinute(7), ratelimit.PerHour(999_983), ratelimit.Per(13, 17*time.Second)} {
		t.Run(fmt.Sprintf("%d per %v", rate.Count, rate.Period), func(t *testing.T) {
			// The burst is so large that its key outlives any pause of the test: it
			// expires by the server's clock, while the limiter goes by the test's.
			const burst, at = 3000, 100
			s := limitertest.OnRedis(t)
			token := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, rate, burst, ratelimit.WithOptions(s.Opts...)))
			leaky := ratelimit.Must(ratelimit.NewLeakyBucket(s.Client, rate, burst, ratelimit.WithOptions(s.Opts...)))
			exact := model.NewTokenBucket(rate.Count, rate.Period, burst)
			// An odd step of about three quarters of a permit, but no less than a
			// microsecond.
			step := max(rate.Period*3/4/time.Duration(rate.Count), time.Microsecond).Truncate(time.Microsecond)
			require.True(t, must(t)(token.TryAcquireN(ctx, "k", burst)).Allowed)
			require.True(t, must(t)(leaky.TryAcquireN(ctx, "k", burst)).Allowed)
			require.True(t, exact.Take(s.Now.UnixMicro(), burst, false).Allowed)
			calls, keys := slices.Repeat([]model.Step{{N: 1}}, at), slices.Repeat([]string{"k"}, at)
			taken, poured, want := 0, 0, 0
			for range asks {
				s.Advance(step)
				before := taken
				for i, r := range ratelimit.Merged(t, token, calls, keys) {
					if r.Allowed {
						taken++
						require.Equal(t, taken-before, i+1, "the first calls are allowed")
					}
				}
				for exact.Take(s.Now.UnixMicro(), 1, false).Allowed {
					want++
				}
				require.Equal(t, want, taken)
				for _, r := range ratelimit.Merged(t, leaky, calls, keys) {
					if r.Allowed {
						poured++
					}
				}
				require.Equal(t, taken, poured, "the leaky bucket decides as the token bucket does")
			}
			elapsed := time.Duration(asks) * step // since it was emptied
			yield := int64(elapsed/time.Microsecond) * int64(rate.Count) / rate.Period.Microseconds()
			require.Equal(t, int(yield), taken)
			t.Logf("%d decisions, %d permits taken in %v", asks*at, taken, elapsed)
		})
	}
}

// TestNoIntervalHoldsMoreThanTheRule looks at all the permits taken in random runs.
func TestNoIntervalHoldsMoreThanTheRule(t *testing.T) {
	for _, f := range limitertest.Families() {
		if strings.HasPrefix(f.Name, "FixedWindow") || f.Name == "CalendarWindow" {
			continue // they promise it of their own windows only
		}
		t.Run(f.Name, func(t *testing.T) {
			rng := model.Seeded(limitertest.Seed(t))
			for played := 0; played < limitertest.Rounds(5, 3); {
				s := limitertest.OnMiniredis(t)
				p, err := f.Draw(rng, s.Client)
				require.NoError(t, err)
				scenario := model.NewScenario(rng, model.ShapeOf(p.Model(), false))
				var taken []model.Taken
				var last ratelimit.Result
				for range 300 {
					step := scenario.Next(model.Answer{
						Allowed: last.Allowed, Limit: last.Limit, Window: last.Window, Remaining: last.Remaining,
						RetryAfter: last.RetryAfter, ResetAfter: last.ResetAfter,
					})
					if step.Now > latest {
						break
					}
					if step.Op != model.Take {
						continue
					}
					s.Move(time.UnixMicro(step.Now))
					last = must(t)(p.Limiter.TryAcquireN(ctx, "k", step.N))
					if last.Allowed {
						taken = append(taken, model.Taken{At: step.Now, N: step.N})
					}
				}
				require.Empty(t, p.Broken(taken), p.About)
				if len(taken) > 0 { // the first step can be beyond the latest
					played++
				}
			}
		})
	}
}

// TestLogIsCompact: at most 16 bytes an entry at 10,000 entries.
func TestLogIsCompact(t *testing.T) {
	const entries = 10_000
	s := limitertest.OnRedis(t)
	client := s.Admin
	l := ratelimit.Must(ratelimit.NewSlidingLog(s.Client, []ratelimit.Rule{{entries, time.Hour}}, ratelimit.WithOptions(s.Opts...)))
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
	l := ratelimit.Must(ratelimit.NewSlidingLog(s.Client, []ratelimit.Rule{{entries / 2, time.Minute}, {entries, time.Hour}}, ratelimit.WithOptions(s.Opts...)))
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

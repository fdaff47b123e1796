package ratelimit

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/model"
	"github.com/tryacquire/ratelimit/internal/redistest"
)

// TestRatesNeitherLeakNorLose asks a million times, a hundred at a time and so
// often that the bucket, once emptied, is never full again: what is granted is then
// what the rate yields, to the permit.
func TestRatesNeitherLeakNorLose(t *testing.T) {
	for _, rate := range []Rate{PerSecond(3), PerMinute(7), PerHour(999_983), Per(13, 17*time.Second)} {
		t.Run(fmt.Sprintf("%d per %v", rate.Count, rate.Period), func(t *testing.T) {
			// The burst is so large that its key outlives any pause of the test: it
			// expires by the server's clock, while the limiter goes by the test's.
			const burst, asks, at = 3000, 10_000, 100
			client := redistest.Shared(t).Client(t)
			require.NoError(t, client.FlushAll(ctx).Err())
			s := onClock(client, client)
			token := Must(NewTokenBucket(s.client, rate, burst, widen[TokenBucketOption](s.opts)...))
			leaky := Must(NewLeakyBucket(s.client, rate, burst, widen[LeakyBucketOption](s.opts)...))
			exact := model.NewTokenBucket(rate.Count, rate.Period, burst)
			calls, keys := make([]model.Step, at), make([]string, at)
			for i := range calls {
				calls[i].N, keys[i] = 1, "k"
			}
			// An odd step of about three quarters of a permit, but no less than a
			// microsecond.
			step := max(rate.Period*3/4/time.Duration(rate.Count), time.Microsecond).Truncate(time.Microsecond)
			require.True(t, must(t)(token.TryAcquireN(ctx, "k", burst)).Allowed)
			require.True(t, must(t)(leaky.TryAcquireN(ctx, "k", burst)).Allowed)
			require.True(t, exact.Take(s.now.UnixMicro(), burst, false).Allowed)
			granted, mirrored, want := 0, 0, 0
			for range asks {
				s.advance(step)
				for i, r := range fly(t, token.core, calls, keys) {
					if r.Allowed {
						granted++
						require.Equal(t, granted-want, i+1, "grants come first")
					}
				}
				for exact.Take(s.now.UnixMicro(), 1, false).Allowed {
					want++
				}
				require.Equal(t, want, granted)
				for _, r := range fly(t, leaky.core, calls, keys) {
					if r.Allowed {
						mirrored++
					}
				}
			}
			require.Equal(t, granted, mirrored, "the leaky bucket is the mirror image")
			elapsed := asks * step // since it was emptied
			yield := int64(elapsed/time.Microsecond) * int64(rate.Count) / rate.Period.Microseconds()
			require.Equal(t, int(yield), granted)
			t.Logf("%d decisions, %d granted in %v", asks*at, granted, elapsed)
		})
	}
}

// TestNoIntervalHoldsMoreThanTheRule looks at all the grants of random runs.
func TestNoIntervalHoldsMoreThanTheRule(t *testing.T) {
	for _, f := range families() {
		if f.timeless || f.name == "FixedWindow aligned" {
			continue // they promise it of their own windows only
		}
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			rng := model.Seeded(seed(t))
			for range 5 {
				s := onMini(t)
				p, err := f.draw(rng, s.client)
				require.NoError(t, err)
				scenario := model.NewScenario(rng, model.ShapeOf(p.model, false))
				var grants []model.Grant
				var last Result
				for range 300 {
					step := scenario.Next(model.Answer{
						Allowed: last.Allowed, Limit: last.Limit, Window: last.Window, Remaining: last.Remaining,
						RetryAfter: last.RetryAfter, ResetAfter: last.ResetAfter,
					})
					if step.Op != model.Take {
						continue
					}
					s.advance(time.UnixMicro(step.Now).Sub(s.now))
					last = must(t)(p.limiter.TryAcquireN(ctx, "k", step.N))
					if last.Allowed {
						grants = append(grants, model.Grant{At: step.Now, N: step.N})
					}
				}
				require.NotEmpty(t, grants)
				checkIntervals(t, p, grants)
			}
		})
	}
}

func checkIntervals(t *testing.T, p pair, grants []model.Grant) {
	switch explain := coreOf(t, p.limiter).explainer.(type) {
	case grantLog:
		for _, rule := range explain {
			require.LessOrEqual(t, model.MaxInAnyWindow(grants, rule.Window), rule.Limit, p.about)
		}
	case *bucket:
		period := time.Duration(explain.permit) * time.Microsecond
		exceeds, worst := model.ExceedsBucket(grants, int(explain.flow), period, int(explain.size))
		require.False(t, exceeds, "%s: %+v", p.about, worst)
	case *stepped:
		period := time.Duration(explain.permit) * time.Microsecond
		exceeds, worst := model.ExceedsSteppedBucket(grants, int(explain.flow), period, int(explain.size), micros(explain.every))
		require.False(t, exceeds, "%s: %+v", p.about, worst)
	default:
		t.Fatalf("%T is not checked", explain)
	}
}

// TestLogIsCompact: at most 16 bytes an entry at 10,000 entries.
func TestLogIsCompact(t *testing.T) {
	const entries = 10_000
	client := redistest.Shared(t).Client(t)
	require.NoError(t, client.FlushAll(ctx).Err())
	s := onClock(client, client)
	l := Must(NewSlidingLog(s.client, []Rule{{entries, time.Hour}}, widen[SlidingLogOption](s.opts)...))
	for range entries {
		s.advance(time.Millisecond)
		require.True(t, must(t)(l.TryAcquire(ctx, "k")).Allowed)
	}
	require.False(t, must(t)(l.TryAcquire(ctx, "k")).Allowed)
	require.Equal(t, int64(2*entries+2), client.LLen(ctx, "ratelimit:default:slidinglog:k").Val())
	bytes := client.MemoryUsage(ctx, "ratelimit:default:slidinglog:k", 0).Val()
	t.Logf("%d entries take %d bytes, %.2f each", entries, bytes, float64(bytes)/entries)
	require.LessOrEqual(t, float64(bytes)/entries, 16.0)

	s.advance(time.Hour) // all but a base are forgotten by the next grant
	require.True(t, must(t)(l.TryAcquire(ctx, "k")).Allowed)
	require.Equal(t, int64(4), client.LLen(ctx, "ratelimit:default:slidinglog:k").Val())
}

// TestLogReadsFewEntries counts the commands of a decision: O(log limit) for
// each rule, whatever has expired.
func TestLogReadsFewEntries(t *testing.T) {
	const entries = 10_000
	server := redistest.Start(t)
	client := server.Client(t)
	s := onClock(client, client)
	l := Must(NewSlidingLog(s.client, []Rule{{entries / 2, time.Minute}, {entries, time.Hour}}, widen[SlidingLogOption](s.opts)...))
	for range entries / 2 {
		s.advance(7 * time.Millisecond)
		require.True(t, must(t)(l.TryAcquire(ctx, "k")).Allowed)
	}
	for _, silence := range []time.Duration{0, time.Second, 30 * time.Second, 30 * time.Minute, time.Hour - 20*time.Second} {
		s.now = start.Add(entries / 2 * 7 * time.Millisecond)
		s.advance(silence)
		reads := reads(t, client, func() { must(t)(l.Peek(ctx, "k")) })
		t.Logf("after %v: %d reads", silence, reads)
		require.LessOrEqual(t, reads, 14+6+3, "a read for each halving of 10,000, and a few")
	}
}

// reads is how many list commands f lets Redis run.
func reads(t testing.TB, client *redis.Client, f func()) int {
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

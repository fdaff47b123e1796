package ratelimit_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
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
			token := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, rate, burst, s.Opts...))
			leaky := ratelimit.Must(ratelimit.NewLeakyBucket(s.Client, rate, burst, s.Opts...))
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
	for _, f := range families() {
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
					last = must(t)(p.Limiter.TryAcquireN(ctx, p.Of("k"), step.N))
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

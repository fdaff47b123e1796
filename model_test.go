package ratelimit_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
)

// TestLimitersAnswerAsTheirModels drives every limiter and its model through the same
// random calls: 125,000 of them with RATELIMIT_LONG.
func TestLimitersAnswerAsTheirModels(t *testing.T) {
	const steps = 500
	configurations := limitertest.Rounds(25, 6) // of each family
	for _, f := range families() {
		t.Run(f.Name, func(t *testing.T) {
			t.Parallel()
			rng := model.Seeded(limitertest.Seed(t))
			server := miniredis.RunT(t)
			server.ClockTTL(true)
			server.SetTime(limitertest.Start) // and not by the time that the test takes
			client := redis.NewClient(&redis.Options{Addr: server.Addr()})
			defer client.Close()
			for range configurations {
				var opts []ratelimit.Option
				var at time.Time
				if rng.IntN(3) == 0 {
					opts = append(opts, ratelimit.WithClock(func() time.Time { return at }))
				}
				p, err := f.Draw(rng, client, opts...)
				require.NoError(t, err)
				server.FlushAll()
				compare(t, rng, p, steps, func(now int64) {
					if f.Timeless && opts == nil {
						now -= now % 1000 // miniredis cuts a TTL to milliseconds, Redis its clock
					}
					from := at
					at = time.UnixMicro(now)
					if opts != nil {
						return // no key expires while the caller's clock decides
					}
					server.SetTime(at)
					if at.Before(from) { // Redis keeps the instant of expiry, miniredis what is left
						for _, key := range server.Keys() {
							server.SetTTL(key, server.TTL(key)+from.Sub(at))
						}
					}
				}, func() bool { return len(server.Keys()) == 0 })
			}
		})
	}
}

// TestLimitersOnAServerAnswerAsTheirModels does the same on a server, whose clock stands still during each call.
func TestLimitersOnAServerAnswerAsTheirModels(t *testing.T) {
	const configurations, steps = 5, 200 // of each family: a step is a round trip
	server, client, still := limitertest.FaketimeServer(t)
	for _, f := range families() {
		t.Run(f.Name, func(t *testing.T) {
			rng := model.Seeded(limitertest.Seed(t))
			for range configurations {
				server.HoldClock(limitertest.Start) // so that no key expires while the caller's clock decides
				var opts []ratelimit.Option
				var at time.Time
				if !still || rng.IntN(3) == 0 {
					opts = append(opts, ratelimit.WithClock(func() time.Time { return at }))
				}
				p, err := f.Draw(rng, client, opts...)
				require.NoError(t, err)
				require.NoError(t, client.FlushAll(ctx).Err())
				compare(t, rng, p, steps, func(now int64) {
					if f.Timeless && opts == nil {
						now -= now % 1000 // TTLs are whole milliseconds
					}
					if at = time.UnixMicro(now); opts == nil {
						server.HoldClock(at)
					}
				}, func() bool { return len(client.Keys(ctx, "*").Val()) == 0 }) // DBSIZE counts those that have expired
			}
		})
	}
}

// latest is in the year 2096. After jumps of many long windows a random sequence is beyond
// it; clocks are accepted up to 2112.
const latest = 4e15

// compare runs random steps against a limiter whose clock set moves.
func compare(t *testing.T, rng *rand.Rand, p limitertest.Pair, steps int, set func(now int64), gone func() bool) {
	t.Helper()
	m := p.Model()
	// After a step back of the server's clock a limit outlives its tenant, and its model does not know.
	tenant, shared := m.(*lonelyTenant)
	scenario := model.NewScenario(rng, model.ShapeOf(m, !shared || tenant.CallersClock))
	var want model.Answer
	var before int64
	for i := range steps {
		step := scenario.Next(want)
		if step.Now > latest {
			return
		}
		if step.Now < before && m.Unused(before) {
			// Redis has forgotten the key, and does not remember as time goes back.
			require.NoError(t, p.Forget(p.Limiter, "k"))
			m.Reset()
		}
		before = step.Now
		set(step.Now)
		if gone() { // the key has expired, by the server's clock, while the caller's was behind
			m.Reset()
		}
		if step.Op == model.Reset {
			require.NoError(t, p.Forget(p.Limiter, "k"))
			m.Reset()
			continue
		}
		want = m.Take(step.Now, step.N, step.Op == model.Peek)
		var got ratelimit.Result
		var err error
		if step.Op == model.Peek {
			got, err = p.Limiter.Peek(ctx, p.Of("k"))
		} else {
			got, err = p.Limiter.TryAcquireN(ctx, p.Of("k"), step.N)
		}
		require.NoError(t, err, "%s: step %d: %+v", p.About, i, step)
		require.Equal(t, limitertest.ResultOf(want), got, "%s: step %d: %+v", p.About, i, step)
	}
}

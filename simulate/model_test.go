package simulate_test

import (
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
	"github.com/tryacquire/ratelimit/simulate"
)

// TestDecidesAsTheModels drives the simulation of every algorithm and its model through the
// same random calls, also with instants that go back: every field is the same.
func TestDecidesAsTheModels(t *testing.T) {
	raceflag.SkipSequential(t)
	const steps = 1000
	configurations := limitertest.Rounds(400, 40) // of each family
	for _, f := range limitertest.Families() {
		t.Run(f.Name, func(t *testing.T) {
			t.Parallel()
			rng := model.Seeded(limitertest.Seed(t))
			denied, back := 0, 0
			for c := range configurations {
				p, err := f.Draw(rng, noServer)
				require.NoError(t, err)
				m, l := p.Model(), ratelimit.Must(simulate.New(p.Simulated))
				scenario := model.NewScenario(rng, model.ShapeOf(m, c%2 == 0)) // every other one with a clock that steps back
				var last model.Answer
				before := int64(0)
				for i := range steps {
					step := scenario.Next(last)
					if step.Now < before {
						back++
					}
					before = step.Now
					if step.Op == model.Reset {
						m.Reset()
						require.NoError(t, l.Reset("k"))
						continue
					}
					last = m.Take(step.Now, step.N, step.Op == model.Peek)
					want, got := limitertest.ResultOf(last), ratelimit.Result{}
					if step.Op == model.Peek {
						got, err = l.Peek(time.UnixMicro(step.Now), "k")
					} else {
						got, err = l.TryAcquireN(time.UnixMicro(step.Now), "k", step.N)
					}
					require.NoError(t, err)
					if got != want { // require.Equal would be half of the time
						require.Equal(t, want, got, "%s, step %d: %+v", p.About, i, step)
					}
					if !want.Allowed {
						denied++
					}
				}
			}
			require.Greater(t, denied, configurations*steps/20)
			require.Greater(t, back, configurations)
		})
	}
}

// noServer is for limiters of which only the model and the simulation are used.
var noServer = redis.NewClient(&redis.Options{Addr: "127.0.0.1:0"})

// TestDecidesAsTheScripts sends random traffic of several keys to the limiters on a server and
// to their simulation: every field is the same.
func TestDecidesAsTheScripts(t *testing.T) {
	raceflag.SkipSequential(t)
	configurations := limitertest.Rounds(20, 3)
	for _, f := range limitertest.Families() {
		t.Run(f.Name, func(t *testing.T) {
			t.Parallel()
			rng := model.Seeded(limitertest.Seed(t))
			server := miniredis.RunT(t)
			server.ClockTTL(true)
			client := redis.NewClient(&redis.Options{Addr: server.Addr()})
			defer client.Close()
			for range configurations {
				server.FlushAll()
				at := limitertest.Start
				server.SetTime(at)
				p, err := f.Draw(rng, client)
				require.NoError(t, err)
				l := ratelimit.Must(simulate.New(p.Simulated))
				keys := []string{"a", "b", "c"}
				shape := model.ShapeOf(p.Model(), false)
				shape.Start = at.UnixMicro()
				scenario := model.NewScenario(rng, shape)
				var last model.Answer
				for i := range 300 {
					step := scenario.Next(last)
					now := time.UnixMicro(step.Now - step.Now%1000) // miniredis cuts TTLs to milliseconds
					if now.Year() > 2200 {                          // the longest windows lead far, and miniredis knows times up to 2262
						break
					}
					server.SetTime(now)
					key := keys[rng.IntN(len(keys))]
					want, err := p.Limiter.TryAcquireN(t.Context(), key, step.N)
					require.NoError(t, err)
					got, err := l.TryAcquireN(now, key, step.N)
					require.NoError(t, err)
					require.Equal(t, want, got, "%s, step %d: %+v", p.About, i, step)
					last = model.Answer{Allowed: got.Allowed, Window: got.Window, Remaining: got.Remaining, RetryAfter: got.RetryAfter, ResetAfter: got.ResetAfter}
				}
			}
		})
	}
}

// TestKeysThatDoNotMatterAreRemoved: of a long row of keys, those of a window are kept, and to
// remove the others changes no answer.
func TestKeysThatDoNotMatterAreRemoved(t *testing.T) {
	raceflag.SkipSequential(t)
	for _, a := range []simulate.Algorithm{
		simulate.FixedWindow{Limit: 2, Window: time.Second},
		simulate.FixedWindow{Limit: 2, Window: time.Second, Aligned: true},
		simulate.CalendarWindow{Limit: 2, Calendar: ratelimit.Daily(time.UTC)},
		simulate.SlidingWindow{Limit: 2, Window: time.Second},
		simulate.SlidingLog{Rules: []ratelimit.Rule{{Limit: 2, Window: time.Second}, {Limit: 3, Window: 2 * time.Second}}},
		simulate.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 2},
		simulate.LeakyBucket{Rate: ratelimit.PerSecond(1), Capacity: 2},
	} {
		l := ratelimit.Must(simulate.New(a))
		step := time.Second
		if _, days := a.(simulate.CalendarWindow); days {
			step = 24 * time.Hour
		}
		// 100 keys a step, of which each takes three permits of two.
		most := 0
		for i := range 100_000 {
			at := limitertest.Start.Add(step * time.Duration(i) / 100)
			key := string(rune('a'+i%10)) + time.Duration(i).String()
			for n := range 3 {
				r, err := l.TryAcquire(at, key)
				require.NoError(t, err)
				require.Equal(t, n < 2, r.Allowed, "%#v, %d", a, i)
			}
			most = max(most, l.Keys())
		}
		require.LessOrEqual(t, most, 1025, "%#v", a)
		require.NoError(t, l.Reset("nobody"))
	}
}

package ratelimit_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
)

// TestNoWindowEndsWhileSlicesAreOut: random takes and slices of two rules on one key, by a server's clock that steps back.
// As long as a slice may be spent, no rule begins the count again.
func TestNoWindowEndsWhileSlicesAreOut(t *testing.T) {
	const limit, tick = 100, 50 * time.Millisecond
	fixed := func(span time.Duration, opts ...ratelimit.Option) func(ratelimit.Client) ratelimit.Limiter {
		return func(c ratelimit.Client) ratelimit.Limiter {
			return ratelimit.Must(ratelimit.NewFixedWindow(c, limit, span, opts...))
		}
	}
	calendar := func(of ratelimit.Calendar) func(ratelimit.Client) ratelimit.Limiter {
		return func(c ratelimit.Client) ratelimit.Limiter {
			return ratelimit.Must(ratelimit.NewCalendarWindow(c, limit, of))
		}
	}
	aligned := ratelimit.WithAlignment(0)
	for name, rules := range map[string][]func(ratelimit.Client) ratelimit.Limiter{
		"from the first permit": {fixed(4 * time.Second), fixed(time.Second)},
		"aligned":               {fixed(4*time.Second, aligned), fixed(time.Second, aligned)},
		"aligned, one rule":     {fixed(2*time.Second, aligned)},
		"calendar":              {calendar(ratelimit.Monthly(1, time.UTC)), calendar(ratelimit.Daily(time.UTC))},
		"calendar, one rule":    {calendar(ratelimit.Daily(time.UTC))},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rng := model.Seeded(limitertest.Seed(t))
			server := miniredis.RunT(t)
			server.ClockTTL(true)
			client := redis.NewClient(&redis.Options{Addr: server.Addr()})
			defer client.Close()
			var limiters []ratelimit.Limiter
			for _, rule := range rules {
				limiters = append(limiters, rule(client))
			}
			slices, stepped, ended := 0, 0, 0
			for range limitertest.Rounds(300, 5) {
				server.FlushAll()
				clock := time.Date(2025, 11, 30, 23, 59, 50, 0, time.UTC).Add(time.Duration(rng.IntN(9000)) * time.Millisecond)
				server.SetTime(clock)
				elapsed, out, used := time.Duration(0), time.Duration(0), make([]int, len(limiters))
				var did []string
				for range 150 {
					before, by := out, rng.IntN(len(limiters))
					l := limiters[by]
					switch rng.IntN(8) {
					case 0:
						words, err := ratelimit.DecideList(l, "k", []byte("20d1/2000000/2000000/77"))
						require.NoError(t, err)
						if lasts := time.Duration(words[0]) * time.Microsecond; lasts > 0 {
							out = max(out, elapsed+lasts-time.Millisecond) // as a process has it, see lease.Flight
							slices++
						}
						did = append(did, fmt.Sprintf("%v: slice of %d by %d for %v", elapsed, words[1], by, words[0]))
					case 1:
						r := must(t)(l.TryAcquireN(ctx, "k", 1+rng.IntN(5)))
						did = append(did, fmt.Sprintf("%v: take by %d: %v", elapsed, by, r.Allowed))
					case 2:
						if rng.IntN(4) > 0 {
							break
						}
						back := time.Duration(rng.IntN(3000)) * time.Millisecond
						clock = clock.Add(-back)
						server.SetTime(clock)
						for _, key := range server.Keys() {
							server.SetTTL(key, server.TTL(key)+back)
						}
						stepped++
						did = append(did, fmt.Sprintf("%v: back by %v", elapsed, back))
					}
					for i, l := range limiters {
						now := limit - must(t)(l.Peek(ctx, "k")).Remaining
						if now < used[i] && elapsed < before {
							state, _ := server.Get(server.Keys()[0])
							require.Fail(t, "a window began", "rule %d has %d of %d, at %v, slices are out until %v, state %q\n%v", i, now, used[i], elapsed, before, state, did)
						}
						if now < used[i] {
							ended++
						}
						used[i] = now
					}
					elapsed += tick
					clock = clock.Add(tick)
					server.SetTime(clock)
				}
			}
			t.Logf("%d slices, %d steps back, %d windows that ended", slices, stepped, ended)
		})
	}
}

// TestAShorterRuleRepairsWhileSlicesAreOut: the clock steps back, and then a rule whose window is shorter than what is left of
// the slice writes the state twice.
func TestAShorterRuleRepairsWhileSlicesAreOut(t *testing.T) {
	server := miniredis.RunT(t)
	server.ClockTTL(true)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	long := ratelimit.Must(ratelimit.NewFixedWindow(client, 100, 8*time.Second))
	short := ratelimit.Must(ratelimit.NewFixedWindow(client, 100, time.Second))
	now := limitertest.Start
	pass := func(d time.Duration) {
		now = now.Add(d)
		server.SetTime(now)
		if d < 0 { // Redis keeps the instant at which a key expires
			server.SetTTL(windowName, server.TTL(windowName)-d)
		}
	}
	pass(0)
	words, err := ratelimit.DecideList(long, "k", []byte("20d1/4000000/4000000/77"))
	require.NoError(t, err)
	require.Equal(t, []int64{4_000_000, 20}, words[:2])
	pass(-3 * time.Second)
	for range 2 { // until 3.9 s have passed
		require.True(t, must(t)(short.TryAcquire(ctx, "k")).Allowed)
		pass(1950 * time.Millisecond)
	}
	require.Equal(t, 78, must(t)(long.Peek(ctx, "k")).Remaining)
	require.Equal(t, 78, must(t)(short.Peek(ctx, "k")).Remaining)
	pass(20 * time.Second)
	require.Equal(t, 100, must(t)(long.Peek(ctx, "k")).Remaining)
}

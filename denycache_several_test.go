package ratelimit_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// TestADenialOfSeveralFromMemory: memory denies a call of several limits for as long as the limit that governs, so that
// a client that comes back after RetryAfter is not denied again by what was known.
func TestADenialOfSeveralFromMemory(t *testing.T) {
	const short, long = 2 * time.Second, time.Hour
	type answer struct {
		retryAfter time.Duration
		asked      int    // executions
		unknown    string // limits, each a letter
	}
	type step struct {
		after time.Duration // the answer before
		want  answer
	}
	for _, test := range []struct {
		name   string
		cached string // limits
		taken  string // limits that are used up
		early  bool   // the short limit is denied on its own before
		steps  []step
	}{
		{"both are remembered: the longest of them", "sl", "sl", false, []step{
			{0, answer{long, 1, ""}},
			{0, answer{long, 0, ""}},
			{short - time.Second, answer{long - time.Second, 0, ""}},
			{time.Second, answer{long - short, 0, "s"}},
			{long - short - time.Millisecond, answer{time.Millisecond, 1, ""}}, // a window's grain
			{time.Millisecond, answer{0, 1, ""}},
		}},
		{"what governs is not remembered: Redis is asked", "s", "sl", false, []step{
			{0, answer{long, 1, ""}},
			{0, answer{long, 1, ""}},
			{short, answer{long - short, 1, ""}},
		}},
		{"what governs is remembered", "l", "sl", false, []step{
			{0, answer{long, 1, ""}},
			{0, answer{long, 0, "s"}},
			{long - time.Second, answer{time.Second, 0, "s"}},
		}},
		{"the other allows the call", "s", "s", false, []step{
			{0, answer{short, 1, ""}},
			{0, answer{short, 0, "l"}},
			{short, answer{0, 1, ""}},
		}},
		{"what nobody remembers is Unknown, and found when the client comes back", "sl", "sl", true, []step{
			{0, answer{short, 0, "l"}},
			{short, answer{long - short, 1, ""}},
			{0, answer{long - short, 0, "s"}},
		}},
	} {
		for _, order := range []string{"sl", "ls"} {
			t.Run(test.name+", "+order, func(t *testing.T) {
				s := limitertest.OnMiniredis(t)
				client := &keeper{Client: s.Client}
				now := time.Duration(0)
				clock := ratelimit.WithClock(func() time.Time { return limitertest.Start.Truncate(time.Hour).Add(now) })
				limits := map[rune]ratelimit.Limiter{
					's': ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.Per(1, short), 1, clock, ratelimit.WithName("s"))),
					'l': ratelimit.Must(ratelimit.NewFixedWindow(client, 1, long, clock, ratelimit.WithName("l"))),
				}
				for _, c := range test.taken {
					must(t)(limits[c].TryAcquire(t.Context(), "k"))
				}
				for _, c := range test.cached {
					cache := ratelimit.Must(ratelimit.NewDenyCache(limits[c]))
					cache.SetClock(func() time.Duration { return time.Hour + now })
					limits[c] = cache
				}
				if test.early {
					require.False(t, must(t)(limits['s'].TryAcquire(t.Context(), "k")).Allowed)
				}
				var claims []ratelimit.Claim
				for _, c := range order {
					claims = append(claims, ratelimit.ClaimOf(limits[c], "k", 1))
				}
				require.NoError(t, ratelimit.Preload(t.Context(), ratelimit.ClaimOf(ratelimit.Must(ratelimit.NewAll(innermost(limits['s']), innermost(limits['l']))), "k", 1)))
				for i, step := range test.steps {
					now += step.after
					sent := client.count()
					all, err := ratelimit.TryAcquireAll(t.Context(), claims...)
					require.NoError(t, err)
					got := answer{retryAfter: all.RetryAfter, asked: client.count() - sent}
					for j, p := range all.Parts {
						if p.Unknown {
							got.unknown += order[j : j+1]
							require.Zero(t, p.Result)
						} else if p.Result.RetryAfter > all.RetryAfter {
							t.Errorf("%s: %v", p.Name, p.Result.RetryAfter)
						}
					}
					require.Equal(t, step.want, got, "step %d", i+1)
				}
			})
		}
	}
}

func innermost(l ratelimit.Limiter) ratelimit.Limiter {
	if c, ok := l.(*ratelimit.DenyCache); ok {
		return c.Inside()
	}
	return l
}

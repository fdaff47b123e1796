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
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
)

// A logRules is a limiter of the key, and its rules.
type logRules struct {
	build func(c ratelimit.Client) ratelimit.Limiter
	rules []ratelimit.Rule
}

func slidingRule(limit int, window time.Duration, opts ...ratelimit.Option) logRules {
	return logRules{func(c ratelimit.Client) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.NewSlidingWindow(c, limit, window, opts...))
	}, []ratelimit.Rule{{Limit: limit, Window: window}}}
}

func loggedRules(resolution time.Duration, rules ...ratelimit.Rule) logRules {
	return logRules{func(c ratelimit.Client) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.NewSlidingLog(c, rules, ratelimit.WithResolution(resolution)))
	}, rules}
}

// allows is the most permits that some of the limiters allow within a window.
func allows(all []logRules, window time.Duration) (most int) {
	for _, l := range all {
		own := 1 << 30
		for _, r := range l.rules {
			if r.Window >= window {
				own = min(own, r.Limit)
			}
		}
		most = max(most, own)
	}
	return most
}

// A heldSlice is one that a process has: until when by a clock that does not step, and its ticket.
type heldSlice struct {
	n, by        int
	until        time.Duration
	where, which int64
}

// TestLogsWithSlicesKeepTheirRules: random takes, slices, spending and returns of several limiters on one key, by a server's
// clock that steps back. Slices are spent at any time until their end, or given back at any time, or lost with their reply.
func TestLogsWithSlicesKeepTheirRules(t *testing.T) {
	raceflag.SkipSequential(t)
	hash := ratelimit.WithStorage(ratelimit.StorageHash)
	eight, three := ratelimit.WithSubWindows(8), ratelimit.WithSubWindows(3)
	for name, all := range map[string][]logRules{
		"List":                  {slidingRule(40, 2*time.Second, eight)},
		"List, two rules":       {slidingRule(40, 2*time.Second, eight), slidingRule(35, 1200*time.Millisecond, three)},
		"Hash":                  {slidingRule(40, 2100*time.Millisecond, hash, three)},
		"Hash, two rules":       {slidingRule(40, 2*time.Second, hash, eight), slidingRule(35, 1200*time.Millisecond, hash, three)},
		"a log of two windows":  {loggedRules(200*time.Millisecond, ratelimit.Rule{Limit: 20, Window: 500 * time.Millisecond}, ratelimit.Rule{Limit: 40, Window: 2 * time.Second})},
		"logs, and two windows": {loggedRules(200*time.Millisecond, ratelimit.Rule{Limit: 20, Window: 500 * time.Millisecond}, ratelimit.Rule{Limit: 40, Window: 2 * time.Second}), loggedRules(300*time.Millisecond, ratelimit.Rule{Limit: 25, Window: time.Second})},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rng := model.Seeded(limitertest.Seed(t))
			server := miniredis.RunT(t)
			server.ClockTTL(true)
			client := redis.NewClient(&redis.Options{Addr: server.Addr()})
			defer client.Close()
			var limiters []ratelimit.Limiter
			for _, l := range all {
				limiters = append(limiters, l.build(client))
			}
			slices, stepped, back, tightest := 0, 0, int64(0), -100
			rounds := limitertest.Rounds(600, 6)
			for range rounds {
				server.FlushAll()
				clock, elapsed := limitertest.Start.Add(time.Duration(rng.IntN(3_000_000))*time.Microsecond), time.Duration(0)
				server.SetTime(clock)
				pass := func(d time.Duration) {
					elapsed, clock = elapsed+d, clock.Add(d)
					server.SetTime(clock)
				}
				var held []heldSlice
				var did []string
				type used struct {
					at time.Duration
					n  int
				}
				var spent []used
				spend := func(n int) {
					spent = append(spent, used{elapsed, n})
					for _, l := range all {
						for _, r := range l.rules {
							sum := 0
							for i := len(spent) - 1; i >= 0 && spent[i].at > elapsed-r.Window; i-- {
								sum += spent[i].n
							}
							most := allows(all, r.Window)
							tightest = max(tightest, sum-most)
							require.LessOrEqual(t, sum, most, "within %v until %v: %v\n%v", r.Window, elapsed, spent, did)
						}
					}
				}
				steps := rng.IntN(2) == 0
				for range 120 {
					by := rng.IntN(len(limiters))
					l := limiters[by]
					switch rng.IntN(10) {
					case 0, 1, 2:
						words, err := ratelimit.DecideList(l, "k", fmt.Appendf(nil, "%dd1/0/%d/%d", 4+rng.IntN(40), time.Second.Microseconds(), 2+rng.Int64N(1<<50)))
						require.NoError(t, err)
						did = append(did, fmt.Sprintf("%v: slice of %d by %d for %v", elapsed, words[1], by, words[0]))
						last := len(words) - 2
						s := heldSlice{int(words[1]), by, elapsed + time.Duration(words[0])*time.Microsecond, words[last], words[last+1]}
						if words[0] == 0 {
							spend(s.n)
						} else if rng.IntN(8) > 0 { // otherwise its reply is lost
							held = append(held, s)
							slices++
						}
					case 3, 4:
						n, all := 1+rng.IntN(5), rng.IntN(3) == 0
						for more := true; more; {
							allowed := must(t)(l.TryAcquireN(ctx, "k", n)).Allowed
							did = append(did, fmt.Sprintf("%v: take %d by %d: %v", elapsed, n, by, allowed))
							if allowed {
								spend(n)
							}
							more = allowed && all
						}
					case 5, 6: // one is spent, often at its last moment
						if len(held) == 0 {
							break
						}
						i := rng.IntN(len(held))
						if left := held[i].until - elapsed - time.Microsecond; left > 0 && rng.IntN(2) == 0 {
							pass(left)
						}
						if elapsed < held[i].until {
							n := held[i].n
							if rng.IntN(3) == 0 {
								n = 1 + rng.IntN(n)
							}
							did = append(did, fmt.Sprintf("%v: spend %d", elapsed, n))
							spend(n)
							if held[i].n -= n; held[i].n == 0 {
								held = append(held[:i], held[i+1:]...)
							}
						}
					case 7: // one is given back, at any time
						if len(held) == 0 {
							break
						}
						i := rng.IntN(len(held))
						s := held[i]
						held = append(held[:i], held[i+1:]...)
						words, err := ratelimit.DecideList(limiters[s.by], "k", fmt.Appendf(nil, "%dg%d/%d", s.n, s.where, s.which))
						require.NoError(t, err)
						back += words[0]
						did = append(did, fmt.Sprintf("%v: give back %d of %d dated %d: %d", elapsed, s.n, s.which, s.where, words[0]))
					case 8:
						if !steps || rng.IntN(3) > 0 {
							break
						}
						by := time.Duration(rng.IntN(3_000_000)) * time.Microsecond >> rng.IntN(5)
						clock = clock.Add(-by)
						server.SetTime(clock)
						for _, key := range server.Keys() { // Redis keeps the instant at which a key expires
							server.SetTTL(key, server.TTL(key)+by)
						}
						stepped++
						did = append(did, fmt.Sprintf("%v: back by %v", elapsed, by))
					default:
						pass(time.Duration(rng.IntN(300_000)) * time.Microsecond)
					}
				}
			}
			t.Logf("%d slices, %d steps back, %d permits given back; the rule was met but for %d", slices, stepped, back, -tightest)
			if rounds > 100 {
				require.Zero(t, tightest, "a test that gets nowhere near the rule proves nothing")
			}
		})
	}
}

package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
)

// madeIDs are those of holds and tickets.
var madeIDs = regexp.MustCompile(`[A-Z2-7]{16,26}`)

// heldFor is the lease of the holds. A reply that comes later by the real clock is an error, however slow the machine is.
const heldFor = time.Minute

// finishSides are limiters of which the first side finishes together what the second one settles and releases one by
// one.
type finishSides struct {
	s      *limitertest.Stage
	claims [2]func(n []int) []ratelimit.Claim
	about  []string
}

// drawFinishSides draws two to five limiters of any kinds, whose estimates have leases where they can.
func drawFinishSides(rng *rand.Rand, s *limitertest.Stage, byCaller bool) finishSides {
	sides := finishSides{s: s}
	variants := slices.DeleteFunc(limitertest.Variants(), func(v limitertest.Variant) bool { return strings.Contains(v.Name, "in an All") })
	rng.Shuffle(len(variants), func(i, j int) { variants[i], variants[j] = variants[j], variants[i] })
	number, leased, fair := 2+rng.IntN(3), rng.IntN(2) == 0 && !byCaller, rng.IntN(3) == 0
	for side, prefix := range []string{"one", "two"} {
		opts := []ratelimit.Option{ratelimit.WithPrefix(prefix)}
		if byCaller {
			opts = append(opts, ratelimit.WithClock(func() time.Time { return s.Now }))
		}
		var all []func(n int) ratelimit.Claim
		for i, v := range variants[:number] {
			own := append(slices.Clone(opts), ratelimit.WithName(fmt.Sprintf("l%d", i)))
			l, err := v.Build(s.Client, append(slices.Clone(own), ratelimit.WithTicketLease(300*time.Millisecond))...)
			if err != nil || !leased {
				l = ratelimit.Must(v.Build(s.Client, own...))
			}
			all = append(all, func(n int) ratelimit.Claim { return ratelimit.ClaimOf(l, "{k}:1", n).Estimate() })
			if side == 0 {
				sides.about = append(sides.about, v.Name)
			}
		}
		if fair {
			l := ratelimit.Must(ratelimit.NewFairTokenBucket(s.Client, ratelimit.PerSecond(3), 3, opts...))
			all = append(all, func(n int) ratelimit.Claim { return ratelimit.ClaimOf(l, "{k}:2", n).Estimate() })
		}
		running := ratelimit.Must(ratelimit.NewInFlight(s.Client, 3, heldFor, opts...))
		all = append(all, func(n int) ratelimit.Claim { return ratelimit.ClaimHold(running, "{k}:1", n) })
		sides.claims[side] = func(n []int) (claims []ratelimit.Claim) {
			for i, claim := range all {
				claims = append(claims, claim(n[i]))
			}
			return claims
		}
	}
	return sides
}

// contents is everything that a side has in Redis.
func (f finishSides) contents(t *testing.T, side int) map[string]string {
	own := map[string]string{}
	prefix := []string{"one:", "two:"}[side]
	for key, text := range contents(t, f.s) {
		if name, ok := strings.CutPrefix(key, prefix); ok {
			own[name] = madeIDs.ReplaceAllString(text, "ID")
		}
	}
	return own
}

// oneByOne does what Finish does, by executions of their own.
func oneByOne(r ratelimit.AllResult, used func(ratelimit.PartResult) int) error {
	var settled, released []error
	for _, p := range r.Parts {
		if p.Ticket != nil {
			settled = append(settled, p.Ticket.Settle(ctx, used(p)))
		} else {
			released = append(released, p.Hold.Release(ctx))
		}
	}
	return errors.Join(errors.Join(settled...), errors.Join(released...))
}

// TestFinishDoesWhatEachSettlementAndReleaseDoes: random limiters and costs, tickets and holds whose leases have
// ended, and keys that hold something else. Redis holds the same to the byte, and the errors are the same.
func TestFinishDoesWhatEachSettlementAndReleaseDoes(t *testing.T) {
	for server, stage := range map[string]struct {
		open        func(testing.TB) *limitertest.Stage
		usual, full int
	}{"miniredis": {limitertest.OnMiniredis, 20, 2000}, "Redis": {limitertest.OnHeldRedis, 5, 300}} {
		t.Run(server, func(t *testing.T) {
			s := stage.open(t)
			rng := model.Seeded(limitertest.Seed(t))
			finished, failed := 0, 0
			for round := range max(4, limitertest.Rounds(stage.full, stage.usual)) {
				s.Wipe(t)
				sides := drawFinishSides(rng, s, round%2 == 1)
				var kept [][2]ratelimit.AllResult
				for range 12 {
					s.Advance(time.Duration(rng.IntN(250)) * time.Millisecond)
					n := []int{1 + rng.IntN(2), 1 + rng.IntN(2), 1, 1, 1, 1}
					var all [2]ratelimit.AllResult
					for side := range all {
						r, err := ratelimit.TryAcquireAll(ctx, sides.claims[side](n)...)
						require.NoError(t, err)
						all[side] = r
					}
					require.Equal(t, all[1].Allowed, all[0].Allowed)
					if all[0].Allowed {
						kept = append(kept, all)
					}
					if len(kept) == 0 || rng.IntN(3) == 0 {
						continue
					}
					damage := rng.IntN(12) == 0
					if damage {
						damaged := fmt.Sprintf(":l%d:", rng.IntN(2))
						for _, key := range s.Admin.Keys(ctx, "*").Val() {
							if strings.Contains(key, damaged) && !strings.Contains(key, "tickets") {
								require.NoError(t, s.Admin.Set(ctx, key, "damaged", time.Hour).Err())
							}
						}
					}
					costs := map[string]int{}
					used := func(p ratelimit.PartResult) int {
						if _, ok := costs[p.Name]; !ok {
							costs[p.Name] = []int{0, 1, 2, 5}[rng.IntN(4)]
						}
						return costs[p.Name]
					}
					if rng.IntN(5) == 0 {
						s.Advance(time.Duration(rng.Int64N(int64(2 * heldFor)))) // leases of holds end
					}
					i := rng.IntN(len(kept))
					alone, together := oneByOne(kept[i][1], used), kept[i][0].Finish(ctx, used)
					if alone == nil {
						require.NoError(t, together, "%v", sides.about)
					} else {
						require.EqualError(t, together, alone.Error(), "%v", sides.about)
						failed++
					}
					finished++
					require.Equal(t, sides.contents(t, 1), sides.contents(t, 0), "%v at %d after %v", sides.about, s.Now.UnixMicro(), costs)
					if kept = slices.Delete(kept, i, i+1); damage {
						break
					}
				}
			}
			t.Logf("%d finished, %d with errors", finished, failed)
		})
	}
}

// TestCallsThatAreFinishedTogether: the same for several calls in one execution, of one group and of groups whose
// limits differ.
func TestCallsThatAreFinishedTogether(t *testing.T) {
	for server, stage := range map[string]func(testing.TB) *limitertest.Stage{"miniredis": limitertest.OnMiniredis, "Redis": limitertest.OnHeldRedis} {
		t.Run(server, func(t *testing.T) {
			s := stage(t)
			for _, plans := range []int{1, 2} {
				s.Wipe(t)
				var calls [2][]ratelimit.AllResult
				for side, prefix := range []string{"one", "two"} {
					prefixed := ratelimit.WithPrefix(prefix)
					for i := range 4 {
						more := i % plans
						tokens := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(1+more), 50+more, prefixed, ratelimit.WithTicketLease(time.Minute)))
						window := ratelimit.Must(ratelimit.NewSlidingWindow(s.Client, 50+more, time.Minute, prefixed))
						running := ratelimit.Must(ratelimit.NewInFlight(s.Client, 8+more, time.Minute, prefixed))
						r, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(tokens, "k", 5).Estimate(), ratelimit.ClaimOf(window, "k", 5).Estimate(), ratelimit.ClaimHold(running, "k", 2))
						require.NoError(t, err)
						require.True(t, r.Allowed)
						calls[side] = append(calls[side], r)
					}
				}
				used := func(p ratelimit.PartResult) int { return map[int]int{50: 2, 51: 9}[p.Result.Limit] }
				for _, r := range calls[1] {
					require.NoError(t, oneByOne(r, used))
				}
				require.Zero(t, ratelimit.FinishMerged(t, calls[0], used))
				sides := finishSides{s: s}
				require.Equal(t, sides.contents(t, 1), sides.contents(t, 0))
			}
		})
	}
}

// TestWhatFinishSends: one execution, and after a lost reply no other one but that of the release, which may be
// repeated. Where the server refuses it because of one key, each settlement is an execution of its own.
func TestWhatFinishSends(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	client := redis.NewClient(s.Admin.(*redis.Client).Options())
	t.Cleanup(func() { _ = client.Close() })
	tokens := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerHour(1), 10))
	window := ratelimit.Must(ratelimit.NewFixedWindow(client, 10, time.Hour))
	running := ratelimit.Must(ratelimit.NewInFlight(client, 5, time.Hour))
	call := func() ratelimit.AllResult {
		return acquire(t, ratelimit.ClaimOf(tokens, "k", 3).Estimate(), ratelimit.ClaimOf(window, "k", 3).Estimate(), ratelimit.ClaimHold(running, "k", 1))
	}
	left := func() []int {
		return []int{must(t)(tokens.Peek(ctx, "k")).Remaining, must(t)(window.Peek(ctx, "k")).Remaining, must(t)(running.Peek(ctx, "k")).Remaining}
	}
	require.NoError(t, ratelimit.Preload(ctx, ratelimit.ClaimOf(tokens, "k", 3).Estimate(), ratelimit.ClaimOf(window, "k", 3).Estimate(), ratelimit.ClaimHold(running, "k", 1)))
	sent := make(chan string, 99)
	var fate atomic.Pointer[func(cmd redis.Cmder) error] // of the next script
	client.AddHook(onCommand(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		sent <- cmd.Name()
		if do := fate.Load(); do != nil && cmd.Name() == "evalsha" {
			fate.Store(nil)
			err := (*do)(cmd)
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}))
	finish := func(used, commands int, do func(cmd redis.Cmder) error) ([]string, error) {
		r := call()
		<-sent
		if do != nil {
			fate.Store(&do)
		}
		err := r.Finish(ctx, func(ratelimit.PartResult) int { return used })
		var all []string
		for range commands {
			all = append(all, <-sent)
		}
		require.Empty(t, sent)
		return all, err
	}
	commands, err := finish(1, 1, nil)
	require.NoError(t, err)
	require.Equal(t, []string{"evalsha"}, commands)
	require.Equal(t, []int{9, 9, 5}, left())
	for range 3 {
		<-sent // what left has asked
	}

	commands, err = finish(0, 4, func(redis.Cmder) error {
		return refusal("NOPERM this user has no permissions to access one of the keys used as arguments")
	})
	require.NoError(t, err)
	slices.Sort(commands)
	require.Equal(t, []string{"evalsha", "evalsha", "evalsha", "zrem"}, commands)

	commands, err = finish(2, 2, func(cmd redis.Cmder) error {
		_ = s.Admin.Do(ctx, cmd.Args()...).Err() // on another connection
		return errLost
	})
	require.Equal(t, []string{"evalsha", "zrem"}, commands)
	for _, about := range []string{"token bucket", "fixed window", "in-flight limiter"} {
		require.ErrorContains(t, err, fmt.Sprintf(`%s "default", key "k": %v`, about, errLost))
	}
	require.ErrorIs(t, err, errLost)
	require.Equal(t, []int{7, 7, 5}, left(), "once")
}

// A refusal is an error of the server.
type refusal string

func (e refusal) Error() string { return string(e) }
func (refusal) RedisError()     {}

package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/fakes"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// idGroups are limiters of a thousand permits and more that decide together under ids.
var idGroups = map[string]func(c ratelimit.Client, opts ...ratelimit.Option) []ratelimit.Limiter{
	"a bucket": func(c ratelimit.Client, opts ...ratelimit.Option) []ratelimit.Limiter {
		return []ratelimit.Limiter{ratelimit.Must(ratelimit.NewTokenBucket(c, ratelimit.Per(1, time.Hour), 100_000, opts...))}
	},
	"a fair bucket and a window": func(c ratelimit.Client, opts ...ratelimit.Option) []ratelimit.Limiter {
		return []ratelimit.Limiter{
			ratelimit.Must(ratelimit.NewFixedWindow(c, 100_000, 24*time.Hour, opts...)),
			ratelimit.Must(ratelimit.NewFairTokenBucket(c, ratelimit.Per(1, time.Hour), 1_600, opts...)),
		}
	},
	"tickets": func(c ratelimit.Client, opts ...ratelimit.Option) []ratelimit.Limiter {
		lease := append(opts, ratelimit.WithTicketLease(time.Hour))
		return []ratelimit.Limiter{
			ratelimit.Must(ratelimit.NewTokenBucket(c, ratelimit.Per(1, time.Hour), 2_000, lease...)),
			ratelimit.Must(ratelimit.NewCalendarWindow(c, 100_000, ratelimit.Monthly(1, time.UTC), lease...)),
			ratelimit.Must(ratelimit.NewSlidingLog(c, []ratelimit.Rule{{Limit: 90_000, Window: time.Hour}, {Limit: 100_000, Window: 24 * time.Hour}}, lease...)),
		}
	},
}

// underID takes n permits of each limiter, once for the id.
func underID(id string, n int, of []ratelimit.Limiter) (ratelimit.AllResult, error) {
	var claims []ratelimit.Claim
	for _, l := range of {
		claims = append(claims, ratelimit.ClaimOf(l, "{m}:k", n))
	}
	return ratelimit.TryAcquireOnce(ctx, id, time.Hour, claims...)
}

// TestCallsUnderIDsAreSentTogether: of 256 callers, one takes for each id, all get its answer, another number of permits is an
// error for its caller only, and many calls share an execution.
func TestCallsUnderIDsAreSentTogether(t *testing.T) {
	for name, build := range idGroups {
		t.Run(name, func(t *testing.T) {
			for server, open := range onceStages {
				t.Run(server, func(t *testing.T) {
					s := open(t)
					var shared atomic.Int64
					of := build(s.Client, append(s.Opts, ratelimit.WithObserver(func(_ context.Context, o ratelimit.Observation) {
						if o.Batch > 1 {
							shared.Add(1)
						}
					}))...)
					const callers, ids = 256, 40
					before := make([]int, len(of))
					for i, l := range of {
						before[i] = must(t)(l.Peek(ctx, "{m}:k")).Remaining
					}
					var taken [ids]atomic.Int64
					var each sync.WaitGroup
					for i := range callers {
						each.Go(func() {
							id := i % ids
							r, err := underID(fmt.Sprint("job ", id), 1+id%3, of)
							if !assert.NoError(t, err) || !assert.True(t, r.Allowed) {
								return
							}
							if !r.Repeated {
								taken[id].Add(1)
							}
							if i%8 == 0 {
								_, err := underID(fmt.Sprint("job ", id), 5, of)
								assert.ErrorIs(t, err, ratelimit.ErrIDReused)
							}
						})
					}
					each.Wait()
					all := 0
					for id := range ids {
						require.EqualValues(t, 1, taken[id].Load(), "id %d", id)
						all += 1 + id%3
					}
					for i, l := range of {
						require.Equal(t, before[i]-all, must(t)(l.Peek(ctx, "{m}:k")).Remaining)
					}
					require.Positive(t, shared.Load())
				})
			}
		})
	}
}

// TestLostRepliesOfMergedCallsUnderIDs: a server executes each call, and every third reply is lost; repeated until there is an
// answer, each id takes once.
func TestLostRepliesOfMergedCallsUnderIDs(t *testing.T) {
	for name, build := range idGroups {
		t.Run(name, func(t *testing.T) {
			client := redistest.Start(t).Client(t)
			lost := errors.New("lost")
			var scripts, failed, repeated, mended atomic.Int64
			var losing atomic.Bool
			client.AddHook(fakes.Hook{Command: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
				err := next(ctx, cmd)
				if err == nil && losing.Load() && fakes.IsScript(cmd) && scripts.Add(1)%3 == 0 {
					cmd.SetErr(lost)
					return lost
				}
				return err
			}})
			of := build(client)
			const callers, calls = 64, 5
			before := make([]int, len(of))
			for i, l := range of {
				before[i] = must(t)(l.Peek(ctx, "{m}:k")).Remaining
			}
			losing.Store(true)
			var each sync.WaitGroup
			for i := range callers {
				each.Go(func() {
					for j := range calls {
						for again := false; ; again = true {
							r, err := underID(fmt.Sprint(i, "/", j), 1, of)
							if err != nil {
								assert.ErrorIs(t, err, lost)
								failed.Add(1)
								continue
							}
							assert.True(t, r.Allowed)
							if r.Repeated {
								repeated.Add(1)
								assert.True(t, again)
							} else if again {
								mended.Add(1)
							}
							break
						}
					}
				})
			}
			each.Wait()
			require.Positive(t, failed.Load())
			require.Positive(t, repeated.Load())
			require.Zero(t, mended.Load(), "a call whose reply was lost was executed")
			losing.Store(false)
			for i, l := range of {
				require.Equal(t, before[i]-callers*calls, must(t)(l.Peek(ctx, "{m}:k")).Remaining)
			}
		})
	}
}

// TestEqualCallsOfOneIDInOneExecution: one takes, the others get its answer; a denial is the answer of all, and is not remembered.
func TestEqualCallsOfOneIDInOneExecution(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	of := []ratelimit.Limiter{ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 1, time.Hour, s.Opts...))}
	var took, again, denied atomic.Int64
	for _, id := range []string{"id", "another"} {
		var each sync.WaitGroup
		for range 64 {
			each.Go(func() {
				switch r, err := underID(id, 1, of); {
				case !assert.NoError(t, err):
				case !r.Allowed:
					denied.Add(1)
					assert.False(t, r.Repeated)
					assert.Equal(t, time.Hour, r.RetryAfter)
				case r.Repeated:
					again.Add(1)
				default:
					took.Add(1)
				}
			})
		}
		each.Wait()
	}
	require.EqualValues(t, 1, took.Load())
	require.EqualValues(t, 63, again.Load())
	require.EqualValues(t, 64, denied.Load())
}

// BenchmarkTryAcquireOnce is 256 callers, each call under an id of its own.
func BenchmarkTryAcquireOnce(b *testing.B) {
	for name, opts := range map[string][]ratelimit.Option{"merged": nil, "alone": {ratelimit.WithoutMerging()}} {
		b.Run(name, func(b *testing.B) {
			l := ratelimit.Must(ratelimit.NewTokenBucket(redistest.Shared(b).Client(b), ratelimit.PerSecond(1_000_000), 1_000_000, opts...))
			b.SetParallelism(256 / runtime.GOMAXPROCS(0))
			b.ReportAllocs()
			var ids atomic.Int64
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					id := strconv.FormatInt(ids.Add(1), 10)
					_, err := ratelimit.TryAcquireOnce(ctx, name+id, time.Second, ratelimit.ClaimOf(l, "user:"+id[len(id)-1:], 1))
					require.NoError(b, err)
				}
			})
		})
	}
}

// TestPlansUnderIDsShareExecutions: limiters of several plans decide in one execution, each by its own limit.
func TestPlansUnderIDsShareExecutions(t *testing.T) {
	for name, clock := range map[string][]ratelimit.Option{"the server's clock": nil, "callers' clocks": {ratelimit.WithClock(time.Now)}} {
		t.Run(name, func(t *testing.T) {
			client := redistest.Start(t).Client(t)
			var scripts, calls atomic.Int64
			client.AddHook(fakes.Counting(func(cmds ...redis.Cmder) { scripts.Add(int64(len(cmds))) }))
			hour := ratelimit.Must(ratelimit.NewSlidingWindow(client, 10_000, time.Hour, append(clock, ratelimit.WithName("all"))...))
			var plans []ratelimit.Limiter
			for i := range 8 {
				plans = append(plans, ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerHour(1), 10*(i+1), clock...)))
			}
			var taken [8]atomic.Int64
			var each sync.WaitGroup
			for i := range 256 {
				each.Go(func() {
					plan := i % 8
					for call := range 12 {
						r, err := ratelimit.TryAcquireOnce(ctx, fmt.Sprint(i/16, "/", call), time.Hour,
							ratelimit.ClaimOf(plans[plan], fmt.Sprint("{m}:", plan), 1), ratelimit.ClaimOf(hour, "{m}:all", 1))
						calls.Add(1)
						if assert.NoError(t, err) && r.Allowed && !r.Repeated {
							taken[plan].Add(1)
						}
					}
				})
			}
			each.Wait()
			all := 0
			for plan := range plans {
				require.EqualValues(t, 10*(plan+1), taken[plan].Load(), "plan %d", plan)
				all += 10 * (plan + 1)
			}
			require.Equal(t, 10_000-all, must(t)(hour.Peek(ctx, "{m}:all")).Remaining)
			require.Less(t, 2*scripts.Load(), calls.Load())
		})
	}
}

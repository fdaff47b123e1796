package ratelimit_test

import (
	"context"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/fakes"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/ratelimittest"
)

// inBubble runs a test with a Redis whose clock is that of the processes.
func inBubble(t *testing.T, test func(t *testing.T, e *ratelimittest.Env)) {
	synctest.Test(t, func(t *testing.T) { test(t, ratelimittest.New(t)) })
}

// executions counts the commands of a client.
type executions struct{ atomic.Int64 }

func (x *executions) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (x *executions) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		x.Add(1)
		return next(ctx, cmd)
	}
}

func (x *executions) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// heat makes a call every 2 ms for about 2 s, so that the key has slices, and returns the answer to the last. After each
// call of l, the others make one.
func heat(t *testing.T, e *ratelimittest.Env, l ratelimit.Limiter, key string, others ...ratelimit.Limiter) (r ratelimit.Result) {
	for i := 0; i < 1000 || r.Remaining < 20; i++ {
		e.Advance(2 * time.Millisecond)
		r = must(t)(l.TryAcquire(ctx, key))
		for _, other := range others {
			must(t)(other.TryAcquire(ctx, key))
		}
	}
	require.True(t, r.Allowed && r.Leased)
	return r
}

// leasedBucket is a bucket of 1,000 a second with slices.
func leasedBucket(e *ratelimittest.Env, opts ...ratelimit.PolicyOption) (*ratelimit.TokenBucket, *ratelimit.Leased) {
	b := ratelimit.Must(ratelimit.NewTokenBucket(e.Client(), ratelimit.PerSecond(1000), 1000))
	return b, ratelimit.Must(ratelimit.NewLeased(b, opts...))
}

// TestSlicesWhilePermitsAreScarce: a process with 20 calls a second has none otherwise. It says the shortest and the longest that
// it wants, and Redis makes them as long as costs nothing.
func TestSlicesWhilePermitsAreScarce(t *testing.T) {
	inBubble(t, func(t *testing.T, e *ratelimittest.Env) {
		asked, seen := 0, map[string][]int{} // for so long at most, by for how long at least
		e.Client().AddHook(fakes.Hook{Command: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			if m := regexp.MustCompile(`d[01]/(\d+)/(\d+)/`).FindStringSubmatch(fmt.Sprintf("%s", cmd.Args())); m != nil {
				longest, err := strconv.Atoi(m[2])
				require.NoError(t, err)
				seen[m[1]] = append(seen[m[1]], longest)
			}
			asked++
			return next(ctx, cmd)
		}})
		b, l := leasedBucket(e)
		calls := func(n, others int) {
			asked = 0
			clear(seen)
			for range n {
				e.Advance(50 * time.Millisecond)
				if others > 0 {
					must(t)(b.TryAcquireN(ctx, "k", others))
				}
				must(t)(l.TryAcquire(ctx, "k"))
			}
			synctest.Wait()
		}
		calls(1, 0) // Redis gets to know the script
		calls(200, 0)
		require.Equal(t, 200, asked)
		require.Empty(t, seen)
		must(t)(b.TryAcquireN(ctx, "k", 900))
		calls(200, 49)
		require.Less(t, asked, 200+200/4)
		require.Len(t, seen, 1)
		require.Greater(t, len(seen["250000"]), 10)
		require.Greater(t, slices.Min(seen["250000"]), 700_000)
	})
}

func TestAHotKeyHardlyAsksRedis(t *testing.T) {
	inBubble(t, func(t *testing.T, e *ratelimittest.Env) {
		var asked executions
		e.Client().AddHook(&asked)
		_, l := leasedBucket(e)
		heat(t, e, l, "hot")
		from := asked.Load()
		for range 2500 {
			e.Advance(2 * time.Millisecond)
			r := must(t)(l.TryAcquire(ctx, "hot"))
			require.True(t, r.Allowed && r.Leased)
		}
		require.LessOrEqual(t, asked.Load()-from, int64(25), "5 s of slices of a quarter of a second")
		one, two := must(t)(l.TryAcquireN(ctx, "hot", 2)), must(t)(l.TryAcquire(ctx, "hot"))
		require.Equal(t, one.Remaining-1, two.Remaining)
		require.Positive(t, two.ResetAfter)
		two.Remaining, two.ResetAfter = 0, 0
		require.Equal(t, ratelimit.Result{Allowed: true, Limit: 1000, Window: time.Second, Leased: true}, two)

		from = asked.Load()
		for i := range 10 {
			require.False(t, must(t)(l.TryAcquire(ctx, fmt.Sprint("cold", i))).Leased)
		}
		require.Equal(t, int64(10), asked.Load()-from)
	})
}

func TestADenialFromMemoryEndsWithItsRetryAfter(t *testing.T) {
	inBubble(t, func(t *testing.T, e *ratelimittest.Env) {
		var asked executions
		b := ratelimit.Must(ratelimit.NewTokenBucket(e.Client(), ratelimit.PerSecond(1), 5))
		l := ratelimit.Must(ratelimit.NewLeased(b))
		require.True(t, must(t)(l.TryAcquireN(ctx, "k", 4)).Allowed)
		want := must(t)(l.TryAcquireN(ctx, "k", 3))
		require.Equal(t, 2*time.Second, want.RetryAfter)
		e.Client().AddHook(&asked)
		e.Advance(time.Second / 2)
		require.Equal(t, ratelimit.Result{Limit: 5, Window: 5 * time.Second, RetryAfter: 3 * time.Second / 2, ResetAfter: 7 * time.Second / 2, Leased: true},
			must(t)(l.TryAcquireN(ctx, "k", 3)))
		require.Zero(t, asked.Load())
		require.True(t, must(t)(l.TryAcquire(ctx, "k")).Allowed, "a permit is there")
		e.Advance(5 * time.Second / 2)
		require.True(t, must(t)(l.TryAcquireN(ctx, "k", 3)).Allowed)
	})
}

// TestWhatOthersFindWhileASliceIsOut: to everybody but this process, its permits are taken; what it gives back is there
// again.
func TestWhatOthersFindWhileASliceIsOut(t *testing.T) {
	inBubble(t, func(t *testing.T, e *ratelimittest.Env) {
		b, l := leasedBucket(e)
		must(t)(b.TryAcquireN(ctx, "k", 500)) // of a bucket that is nearly full, nothing comes back
		r := heat(t, e, l, "k", b)
		left := must(t)(b.Peek(ctx, "k")).Remaining
		require.Equal(t, left, must(t)(l.Peek(ctx, "k")).Remaining, "a look asks Redis")
		taken, _, err := l.TryAcquireUpTo(ctx, "k", 1000)
		require.NoError(t, err)
		require.Equal(t, left, taken)
		require.False(t, must(t)(b.TryAcquire(ctx, "k")).Allowed)
		require.Equal(t, r.Remaining-1, must(t)(l.TryAcquire(ctx, "k")).Remaining)
		require.NoError(t, l.Close(ctx))
		require.Equal(t, r.Remaining-1, must(t)(b.Peek(ctx, "k")).Remaining)
		require.NoError(t, l.Close(ctx), "a second time does nothing")
		r = must(t)(l.TryAcquire(ctx, "k"))
		require.True(t, r.Allowed && !r.Leased)
	})
}

func TestAResetEndsTheSlicesOfThisProcess(t *testing.T) {
	inBubble(t, func(t *testing.T, e *ratelimittest.Env) {
		b, l := leasedBucket(e)
		heat(t, e, l, "k")
		require.NoError(t, l.Reset(ctx, "k"))
		taken, _, err := b.TryAcquireUpTo(ctx, "k", 1000)
		require.NoError(t, err)
		require.Equal(t, 1000, taken)
		require.False(t, must(t)(l.TryAcquire(ctx, "k")).Allowed)
	})
}

// TestAResetWhileASliceIsUnderWay: what the slice brings is not given back to the count that begins after the Reset.
func TestAResetWhileASliceIsUnderWay(t *testing.T) {
	const limit = 100_000
	for name, build := range map[string]func(c ratelimit.Client) ratelimit.Limiter{
		"bucket": func(c ratelimit.Client) ratelimit.Limiter {
			return ratelimit.Must(ratelimit.NewTokenBucket(c, ratelimit.PerHour(limit), limit))
		},
		"fixed": func(c ratelimit.Client) ratelimit.Limiter {
			return ratelimit.Must(ratelimit.NewFixedWindow(c, limit, time.Minute))
		},
		"aligned": func(c ratelimit.Client) ratelimit.Limiter {
			return ratelimit.Must(ratelimit.NewFixedWindow(c, limit, time.Minute, ratelimit.WithAlignment(0)))
		},
		"calendar": func(c ratelimit.Client) ratelimit.Limiter {
			return ratelimit.Must(ratelimit.NewCalendarWindow(c, limit, ratelimit.Daily(time.UTC)))
		},
		"sliding": func(c ratelimit.Client) ratelimit.Limiter {
			return ratelimit.Must(ratelimit.NewSlidingWindow(c, limit, time.Minute))
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *ratelimittest.Env) {
				plain := build(e.Client())
				l := ratelimit.Must(ratelimit.NewLeased(plain))
				heat(t, e, l, "k")
				var arrive func()
				for taken := 0; taken < 8; {
					require.NoError(t, plain.Reset(ctx, "k"))
					if arrive != nil {
						arrive()
					}
					arrive = underWay(e, func() { must(t)(l.TryAcquire(ctx, "k")) })
					taken = limit - must(t)(plain.Peek(ctx, "k")).Remaining
				}
				require.NoError(t, l.Reset(ctx, "k"))
				taken, _, err := ratelimit.Must(ratelimit.NewDenyCache(plain)).TryAcquireUpTo(ctx, "k", limit)
				require.NoError(t, err)
				require.Equal(t, limit, taken)
				arrive()
				synctest.Wait()
				require.False(t, must(t)(plain.TryAcquire(ctx, "k")).Allowed)
			})
		})
	}
}

// TestASliceInAnOutage is spent to its end. Then callers get the outage, and those who wait for a slice too.
func TestASliceInAnOutage(t *testing.T) {
	inBubble(t, func(t *testing.T, e *ratelimittest.Env) {
		_, l := leasedBucket(e)
		breaker := &ratelimit.Breaker{Failures: 1, ProbeEvery: time.Hour}
		fallback := ratelimit.Must(ratelimit.NewFallback(l, ratelimit.DenyAll(), ratelimit.WithBreaker(breaker)))
		other := ratelimit.Must(ratelimit.NewFallback(ratelimit.Must(ratelimit.NewTokenBucket(e.Client(), ratelimit.PerSecond(1), 1, ratelimit.WithName("other"))),
			ratelimit.DenyAll(), ratelimit.WithBreaker(breaker)))
		left := heat(t, e, l, "k").Remaining
		e.Down()
		must(t)(other.TryAcquire(ctx, "k"))
		require.Equal(t, ratelimit.BreakerOpen, breaker.State())
		for i := range left {
			r := must(t)(fallback.TryAcquire(ctx, "k"))
			require.True(t, r.Allowed && r.Leased, "%d of %d: an open breaker keeps nobody from the slice", i, left)
		}
		require.Equal(t, ratelimit.Result{RetryAfter: time.Second, ResetAfter: time.Second, Fallback: true}, must(t)(fallback.TryAcquire(ctx, "k")))
		var failed atomic.Int64
		for range 20 {
			go func() {
				if _, err := l.TryAcquire(ctx, "k"); err != nil {
					failed.Add(1)
				}
			}()
		}
		synctest.Wait()
		require.Equal(t, int64(20), failed.Load())
		e.Up()
		e.Advance(time.Second)
		heat(t, e, l, "k")
		e.Down()
		require.ErrorContains(t, l.Close(ctx), `ratelimit: close: slices were not given back, such as that of ratelimit: token bucket "default", key "k": `)
	})
}

// TestACallerWhoLeaves does not take what others wait for, and does not end the flight.
func TestACallerWhoLeaves(t *testing.T) {
	inBubble(t, func(t *testing.T, e *ratelimittest.Env) {
		b, l := leasedBucket(e)
		for range heat(t, e, l, "k").Remaining {
			must(t)(l.TryAcquire(ctx, "k"))
		}
		e.Advance(time.Second / 2)    // the slice has ended
		e.Slow(20 * time.Millisecond) // go-redis may want a new connection: a slice lasts longer than its handshake
		soon, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
		defer cancel()
		var results [3]error
		over := make(chan struct{})
		go func() { _, results[0] = l.TryAcquire(soon, "k") }()
		synctest.Wait()
		go func() { _, results[1] = l.TryAcquire(soon, "k") }()
		go func() { _, results[2] = l.TryAcquire(ctx, "k"); close(over) }()
		e.Advance(10 * time.Millisecond)
		require.ErrorIs(t, results[0], context.DeadlineExceeded)
		require.ErrorContains(t, results[0], `token bucket "default", key "k"`)
		require.ErrorIs(t, results[1], context.DeadlineExceeded)
		<-over
		require.NoError(t, results[2])
		e.Up()
		left := must(t)(b.Peek(ctx, "k")).Remaining
		r := must(t)(l.TryAcquire(ctx, "k"))
		require.True(t, r.Leased && r.Allowed)
		require.Equal(t, left, must(t)(b.Peek(ctx, "k")).Remaining)

		_, err := l.TryAcquire(soon, "k")
		require.ErrorIs(t, err, context.DeadlineExceeded, "the context had ended before")
	})
}

// TestASliceWhoseReplyNeverComes, as of a client without timeouts whose connection is dead, is waited for no longer than a
// slice lasts.
func TestASliceWhoseReplyNeverComes(t *testing.T) {
	for name, opts := range map[string][]ratelimit.Option{"merged": nil, "alone": {ratelimit.WithoutMerging()}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *ratelimittest.Env) {
				l := ratelimit.Must(ratelimit.NewLeased(ratelimit.Must(ratelimit.NewTokenBucket(e.Client(), ratelimit.PerSecond(1000), 1000, opts...))))
				for range heat(t, e, l, "k").Remaining {
					must(t)(l.TryAcquire(ctx, "k"))
				}
				e.Advance(time.Second / 2)
				var dead atomic.Bool
				test := make(chan struct{})
				e.Client().AddHook(onCommand(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
					if dead.Load() { // it may be the return of an ended slice, too
						<-test
					}
					return next(ctx, cmd)
				}))
				dead.Store(true)
				from := time.Now()
				_, err := l.TryAcquire(ctx, "k")
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.Equal(t, 10*time.Second, time.Since(from))
				dead.Store(false)
				require.True(t, must(t)(l.TryAcquire(ctx, "k")).Allowed)
				close(test)
			})
		})
	}
}

// TestAHookThatPanics in a goroutine of a slice does not end the process.
func TestAHookThatPanics(t *testing.T) {
	inBubble(t, func(t *testing.T, e *ratelimittest.Env) {
		_, l := leasedBucket(e)
		for range heat(t, e, l, "k").Remaining {
			must(t)(l.TryAcquire(ctx, "k"))
		}
		e.Advance(time.Second / 2)
		e.Client().AddHook(&panicking{})
		_, err := l.TryAcquire(ctx, "k")
		require.ErrorContains(t, err, "panicked")
	})
}

type panicking struct{ executions }

func (*panicking) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(context.Context, redis.Cmder) error { panic("a hook") }
}

// TestWhatGoesPastSlices: every operation but taking n permits, and claims with others, ask Redis.
func TestWhatGoesPastSlices(t *testing.T) {
	inBubble(t, func(t *testing.T, e *ratelimittest.Env) {
		var mu sync.Mutex // guards seen: slices are asked for in goroutines of their own
		var seen []ratelimit.Observation
		observe := ratelimit.WithObserver(func(_ context.Context, o ratelimit.Observation) {
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, o)
		})
		b := ratelimit.Must(ratelimit.NewTokenBucket(e.Client(), ratelimit.PerSecond(1000), 1000, observe))
		l := ratelimit.Must(ratelimit.NewLeased(b, observe))
		heat(t, e, l, "k")
		synctest.Wait()
		mu.Lock()
		seen = nil
		mu.Unlock()
		ticket, _, err := l.Estimate(ctx, "k", 5)
		require.NoError(t, err)
		require.NoError(t, ticket.Settle(ctx, 1))
		must(t)(l.Charge(ctx, "k", 1))
		require.Zero(t, credited(t, l, 1), "slices are out")
		_, err = l.Reserve(ctx, "k", 1, time.Second)
		require.NoError(t, err)
		must(t)(l.Peek(ctx, "k"))
		_, _, err = l.TryAcquireUpTo(ctx, "k", 3)
		require.NoError(t, err)
		other := ratelimit.Must(ratelimit.NewTokenBucket(e.Client(), ratelimit.PerSecond(1), 1, ratelimit.WithName("other")))
		all, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(l, "k", 1), ratelimit.ClaimOf(other, "k", 1))
		require.NoError(t, err)
		require.True(t, all.Allowed)
		require.False(t, all.Parts[0].Result.Leased)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		var calls []ratelimit.Call
		for _, o := range seen {
			require.Equal(t, ratelimit.SourceRedis, o.Source)
			calls = append(calls, o.Call)
		}
		require.Equal(t, []ratelimit.Call{"estimate", "settle", "charge", "credit", "reserve", "peek", "up to", "acquire"}, calls)
	})
}

// TestWhatIsObservedOfSlices: the sum of what leases took, less what was spent and given back, is what is held or lost.
func TestWhatIsObservedOfSlices(t *testing.T) {
	inBubble(t, func(t *testing.T, e *ratelimittest.Env) {
		var mu sync.Mutex
		taken := map[ratelimit.Source]map[ratelimit.Call]int{}
		observe := ratelimit.WithObserver(func(_ context.Context, o ratelimit.Observation) {
			mu.Lock()
			defer mu.Unlock()
			require.Equal(t, "api", o.Limiter)
			require.NoError(t, o.Err)
			if taken[o.Source] == nil {
				taken[o.Source] = map[ratelimit.Call]int{}
			}
			if o.Call == "return" {
				taken[o.Source][o.Call] += o.N
			}
			taken[o.Source][o.Call] += o.Taken
		})
		b := ratelimit.Must(ratelimit.NewTokenBucket(e.Client(), ratelimit.PerSecond(1000), 1000, ratelimit.WithName("api"), observe))
		l := ratelimit.Must(ratelimit.NewLeased(b, observe))
		others := ratelimit.Must(ratelimit.NewTokenBucket(e.Client(), ratelimit.PerSecond(1000), 1000, ratelimit.WithName("api")))
		must(t)(others.TryAcquireN(ctx, "k", 500))
		heat(t, e, l, "k", others)
		require.NoError(t, l.Close(ctx))
		leased := taken[ratelimit.SourceRedis]["lease"]
		spent, back := taken[ratelimit.SourceLease]["acquire"], taken[ratelimit.SourceRedis]["return"]
		require.Positive(t, spent)
		require.Positive(t, back)
		require.Equal(t, leased, spent+back)
		require.Len(t, taken, 2)
	})
}

// TestWithMaxSlice: no more permits than that are here, however great the demand is.
func TestWithMaxSlice(t *testing.T) {
	inBubble(t, func(t *testing.T, e *ratelimittest.Env) {
		_, l := leasedBucket(e, ratelimit.WithMaxSlice(12))
		most := 0
		for range 3000 {
			e.Advance(time.Millisecond)
			if r := must(t)(l.TryAcquire(ctx, "k")); r.Leased {
				most = max(most, r.Remaining)
			}
		}
		require.LessOrEqual(t, most, 11, "one was spent")
		require.GreaterOrEqual(t, most, 9)
	})
}

func TestLimitersThatCannotBeLeased(t *testing.T) {
	c := limitertest.Offline(t)
	bucket := ratelimit.Must(ratelimit.NewTokenBucket(c, ratelimit.PerSecond(1), 1))
	window := ratelimit.Must(ratelimit.NewFixedWindow(c, 1, time.Second))
	for _, test := range []struct {
		l    ratelimit.Limiter
		says string
	}{
		{nil, "the limiter is nil"},
		{ratelimit.Must(ratelimit.NewSlidingWindow(c, 1, time.Second, ratelimit.WithStorage(ratelimit.StorageZSet))), "*ratelimit.SlidingWindow: the storage ZSet dates each permit at the microsecond at which it is taken; use the storage List or Hash"},
		{ratelimit.Must(ratelimit.NewSlidingWindow(c, 1, 196*time.Millisecond)), "*ratelimit.SlidingWindow: slices end with the sub-window, or the step of the resolution, in which they are taken, and these last 4.9ms, so that slices would end before they are here; let them last at least 5ms"},
		{ratelimit.Must(ratelimit.NewSlidingLog(c, []ratelimit.Rule{{Limit: 1, Window: time.Second}}, ratelimit.WithResolution(time.Millisecond))), "*ratelimit.SlidingLog: slices end with"},
		{ratelimit.Must(ratelimit.NewFixedWindow(c, 1, 19*time.Millisecond)), "the window lasts 19ms, so that slices would end before they are here; let it last at least 20ms"},
		{ratelimit.Must(ratelimit.NewTokenBucket(c, ratelimit.PerSecond(1), 1, ratelimit.WithTicketLease(time.Second))), "WithTicketLease: slices are not decided beside such tickets"},
		{ratelimit.Must(ratelimit.NewSlidingLog(c, []ratelimit.Rule{{Limit: 1, Window: time.Second}})), "*ratelimit.SlidingLog: it dates each permit at the microsecond at which it is taken; give it WithResolution, of 5ms at least"},
		{ratelimit.Must(ratelimit.NewTokenBucket(c, ratelimit.PerSecond(1), 1, ratelimit.WithClock(time.Now))), "WithClock: a slice ends by the server's clock; leave the option out"},
		{ratelimit.Must(ratelimit.NewFairTokenBucket(c, ratelimit.PerSecond(2), 2)), "*ratelimit.FairTokenBucket: only permits of buckets, windows and logs can be leased"},
		{ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1), 1)), "its permits are in this process already"},
		{ratelimit.Must(ratelimit.NewAll(bucket, window)), "put a Leased around a limit that is asked alone"},
		{ratelimit.Must(ratelimit.NewDenyCache(bucket)), "*ratelimit.DenyCache: it goes around the Leased"},
		{ratelimit.Must(ratelimit.NewFallback(bucket, ratelimit.AllowAll())), "*ratelimit.Fallback: it goes around the Leased"},
		{shadowed(bucket), "*ratelimit.Shadow: it goes around the Leased"},
		{chosen(bucket), "*ratelimit.Choice: it goes around the Leased"},
		{ratelimit.Must(ratelimit.NewLeased(bucket)), "*ratelimit.Leased: it goes around the Leased"},
		{struct{ *ratelimit.TokenBucket }{bucket}, "it is no limiter of this package"},
		{ratelimit.Must(ratelimit.NewTokenBucket(c, ratelimit.PerSecond(1000), 10)), "the bucket refills in 10ms, so that slices would end before they are here; let the burst be at least 20"},
		{ratelimit.Must(ratelimit.NewTokenBucket(c, ratelimit.PerSecond(1000), 30, ratelimit.WithHeadroom(15))), "let the burst be at least 35"},
	} {
		_, err := ratelimit.NewLeased(test.l)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
		require.ErrorContains(t, err, "NewLeased: ")
		require.ErrorContains(t, err, test.says)
	}
	for _, ok := range []ratelimit.Limiter{
		bucket, window, ratelimit.Must(ratelimit.NewLeakyBucket(c, ratelimit.PerHour(1), 1)),
		ratelimit.Must(ratelimit.NewSlidingWindow(c, 1, 200*time.Millisecond)),
		ratelimit.Must(ratelimit.NewSlidingWindow(c, 1, time.Second, ratelimit.WithStorage(ratelimit.StorageHash))),
		ratelimit.Must(ratelimit.NewSlidingLog(c, []ratelimit.Rule{{Limit: 1, Window: time.Second}, {Limit: 2, Window: time.Minute}}, ratelimit.WithResolution(5*time.Millisecond))),
		ratelimit.Must(ratelimit.NewTokenBucket(c, ratelimit.PerSecond(1000), 20)),
		ratelimit.Must(ratelimit.NewTokenBucket(c, ratelimit.PerSecond(1000), 35, ratelimit.WithHeadroom(15))),
		ratelimit.Must(ratelimit.NewTokenBucket(c, ratelimit.PerSecond(1), 1, ratelimit.WithRefillEvery(time.Second), ratelimit.WithoutMerging())),
	} {
		_, err := ratelimit.NewLeased(ok)
		require.NoError(t, err)
	}
	_, err := ratelimit.NewAll(ratelimit.Must(ratelimit.NewLeased(bucket)))
	require.ErrorContains(t, err, "limiter 1 is a *ratelimit.Leased, whose slices an All does not spend: give the limiter inside")
	_, err = ratelimit.NewLeased(bucket, ratelimit.WithMaxSlice(7))
	require.EqualError(t, err, "ratelimit: invalid configuration: WithMaxSlice: 7 is below 8, the fewest that are worth a call; leave out the Leased to hold none")
}

// TestManyCallersOfSlices run at once in real time, and get at most what the rule allows.
func TestManyCallersOfSlices(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	client := s.Client.(*redis.Client)
	bucket := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(2000), 1000))
	s.Move(time.Now())
	processes := make([]*ratelimit.Leased, 3)
	for i := range processes {
		processes[i] = ratelimit.Must(ratelimit.NewLeased(bucket))
	}
	var taken atomic.Int64
	var wg sync.WaitGroup
	for i := range 24 {
		wg.Go(func() {
			for range 500 {
				r, err := processes[i%3].TryAcquireN(ctx, "k", 1+i%2)
				require.NoError(t, err)
				if r.Allowed {
					taken.Add(int64(1 + i%2))
				}
			}
		})
	}
	wg.Wait()
	require.LessOrEqual(t, taken.Load(), int64(1000), "the server's clock stands still")
	require.GreaterOrEqual(t, taken.Load(), int64(1000-250*3))
	for _, l := range processes {
		require.NoError(t, l.Close(ctx))
	}
}

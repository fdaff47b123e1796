package ratelimittest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/ratelimittest"
)

// A made is a limiter that allows two permits at once, and a third one when the RetryAfter of a
// denial has passed.
type made struct {
	name       string
	limiter    ratelimit.Limiter
	retryAfter time.Duration // of the denial after two permits at midnight
	grain      time.Duration // of its RetryAfter
}

func limiters(env *ratelimittest.Env, opts ...ratelimit.Option) []made {
	const us, ms = time.Microsecond, time.Millisecond
	c := env.Client()
	all := []made{
		{"fixed window", ratelimit.Must(ratelimit.NewFixedWindow(c, 2, 10*time.Second, opts...)), 10 * time.Second, ms},
		{"aligned window", ratelimit.Must(ratelimit.NewFixedWindow(c, 2, 10*time.Second, append(opts, ratelimit.WithAlignment(4*time.Second), ratelimit.WithName("aligned"))...)), 4 * time.Second, us},
		{"calendar window", ratelimit.Must(ratelimit.NewCalendarWindow(c, 2, ratelimit.Daily(time.UTC), opts...)), 24 * time.Hour, us},
		{"sliding window, Hash", ratelimit.Must(ratelimit.NewSlidingWindow(c, 2, 10*time.Second, append(opts, ratelimit.WithStorage(ratelimit.StorageHash))...)), 10*time.Second + 250*ms - us, us},
		{"sliding window, List", ratelimit.Must(ratelimit.NewSlidingWindow(c, 2, 10*time.Second, opts...)), 10*time.Second + 250*ms - us, us},
		{"sliding window, ZSet", ratelimit.Must(ratelimit.NewSlidingWindow(c, 2, 10*time.Second, append(opts, ratelimit.WithStorage(ratelimit.StorageZSet))...)), 10 * time.Second, us},
		{"sliding log", ratelimit.Must(ratelimit.NewSlidingLog(c, []ratelimit.Rule{{Limit: 2, Window: 10 * time.Second}, {Limit: 9, Window: time.Hour}}, opts...)), 10 * time.Second, us},
		{"token bucket", ratelimit.Must(ratelimit.NewTokenBucket(c, ratelimit.PerSecond(1), 2, opts...)), time.Second, us},
		{"token bucket in steps", ratelimit.Must(ratelimit.NewTokenBucket(c, ratelimit.PerSecond(1), 2, append(opts, ratelimit.WithName("steps"), ratelimit.WithRefillEvery(3*time.Second))...)), 3 * time.Second, us},
		{"leaky bucket", ratelimit.Must(ratelimit.NewLeakyBucket(c, ratelimit.PerSecond(1), 2, opts...)), time.Second, us},
	}
	return all
}

// movesTo checks both sides of the instant at which a third permit is there.
func movesTo(t *testing.T, env *ratelimittest.Env, m made) {
	t.Helper()
	allow(t, m.limiter, "k")
	allow(t, m.limiter, "k")
	deny(t, m.limiter, "k", m.retryAfter)
	env.Advance(m.retryAfter - m.grain)
	deny(t, m.limiter, "k", m.grain)
	env.Advance(m.grain)
	allow(t, m.limiter, "k")
}

func TestAdvanceMovesEveryLimiter(t *testing.T) {
	count := 0
	synctest.Test(t, func(t *testing.T) { count = len(limiters(ratelimittest.New(t))) })
	for i := range count {
		for _, clock := range []string{"", " and WithClock"} {
			var name string
			synctest.Test(t, func(t *testing.T) { // one each: all begin at midnight
				env := ratelimittest.New(t)
				var opts []ratelimit.Option
				if clock != "" {
					opts = append(opts, ratelimit.WithClock(time.Now))
				}
				m := limiters(env, opts...)[i]
				name = m.name
				movesTo(t, env, m)
			})
			t.Log(name + clock)
		}
	}
}

func TestAdvanceMovesEveryDecorator(t *testing.T) {
	for name, make := range map[string]func(t *testing.T, l ratelimit.Limiter) ratelimit.Limiter{
		"deny cache": func(_ *testing.T, l ratelimit.Limiter) ratelimit.Limiter {
			return ratelimit.Must(ratelimit.NewDenyCache(l))
		},
		"fallback": func(_ *testing.T, l ratelimit.Limiter) ratelimit.Limiter {
			return ratelimit.Must(ratelimit.NewFallback(l, ratelimit.DenyAll(), ratelimit.WithBudget(time.Second), ratelimit.WithBreaker(&ratelimit.Breaker{})))
		},
		"choice": func(_ *testing.T, l ratelimit.Limiter) ratelimit.Limiter {
			choice := ratelimit.Must(ratelimit.NewChoice(func(context.Context, string) (ratelimit.Limiter, error) { return l, nil }))
			return ratelimit.Must(ratelimit.NewDenyCache(choice))
		},
		"shadow": func(_ *testing.T, l ratelimit.Limiter) ratelimit.Limiter {
			return ratelimit.Must(ratelimit.NewShadow(l, ratelimit.DenyAll(), func(ratelimit.Trial) {}))
		},
		"all": func(_ *testing.T, l ratelimit.Limiter) ratelimit.Limiter {
			return ratelimit.Must(ratelimit.NewAll(l))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for i := range 10 {
				synctest.Test(t, func(t *testing.T) {
					env := ratelimittest.New(t)
					m := limiters(env)[i]
					m.limiter = make(t, m.limiter)
					movesTo(t, env, m)
				})
			}
		})
	}
}

func TestAdvanceMovesALocalLimiter(t *testing.T) {
	inBubble(t, func(t *testing.T, env *ratelimittest.Env) {
		l := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1), 2))
		movesTo(t, env, made{"local", l, time.Second, time.Microsecond})
	})
}

// What the cache denies, the limiter is not asked about until the denial ends; the server's
// clock alone does not end it.
func TestAdvanceMovesADenyCache(t *testing.T) {
	inBubble(t, func(t *testing.T, env *ratelimittest.Env) {
		var asked ratelimittest.Recorder
		bucket := ratelimit.Must(ratelimit.NewTokenBucket(env.Client(), ratelimit.PerSecond(1), 1))
		cache := ratelimit.Must(ratelimit.NewDenyCache(asked.Around("bucket", bucket), ratelimit.WithMaxDenial(600*time.Millisecond)))
		allow(t, cache, "k")
		deny(t, cache, "k", time.Second) // it is stored
		require.Len(t, asked.Calls(), 2)
		env.Advance(600*time.Millisecond - 1)
		deny(t, cache, "k", 400*time.Millisecond+1)
		require.Len(t, asked.Calls(), 2)
		env.Advance(1)
		deny(t, cache, "k", 400*time.Millisecond)
		require.Len(t, asked.Calls(), 3, "the denial in memory is as old as it may become")
		env.Advance(399*time.Millisecond - time.Microsecond)
		deny(t, cache, "k", time.Millisecond+time.Microsecond)
		require.Len(t, asked.Calls(), 3)
		env.Advance(time.Microsecond)
		deny(t, cache, "k", time.Millisecond)
		require.Len(t, asked.Calls(), 4, "the last millisecond is the limiter's")
		env.Advance(time.Millisecond)
		allow(t, cache, "k")
	})
}

func TestAdvanceMovesABreaker(t *testing.T) {
	inBubble(t, func(t *testing.T, env *ratelimittest.Env) {
		var asked ratelimittest.Recorder
		bucket := ratelimit.Must(ratelimit.NewTokenBucket(env.Client(), ratelimit.PerSecond(1), 10))
		breaker := &ratelimit.Breaker{Failures: 2, ProbeEvery: 5 * time.Second}
		l := ratelimit.Must(ratelimit.NewFallback(asked.Around("primary", bucket), ratelimit.AllowAll(), ratelimit.WithBreaker(breaker)))
		env.Down()
		for range 2 {
			require.True(t, allow(t, l, "k").Fallback)
		}
		require.Equal(t, ratelimit.BreakerOpen, breaker.State())
		env.Up()
		env.Advance(5*time.Second - 1)
		require.True(t, allow(t, l, "k").Fallback)
		require.Len(t, asked.Calls(), 2)
		env.Advance(1)
		require.Equal(t, ratelimit.Result{Allowed: true, Limit: 10, Window: 10 * time.Second, Remaining: 9, ResetAfter: time.Second}, take(t, l, "k"))
		require.Equal(t, ratelimit.BreakerClosed, breaker.State())
	})
}

func TestAdvanceMovesABudget(t *testing.T) {
	inBubble(t, func(t *testing.T, env *ratelimittest.Env) {
		bucket := ratelimit.Must(ratelimit.NewTokenBucket(env.Client(), ratelimit.PerHour(1), 10))
		l := ratelimit.Must(ratelimit.NewFallback(bucket, ratelimit.DenyAll(), ratelimit.WithBudget(50*time.Millisecond)))
		allow(t, l, "k") // the script is loaded, so that a call is one command
		env.Slow(50*time.Millisecond - 1)
		require.False(t, allow(t, l, "k").Fallback)
		env.Slow(50*time.Millisecond + 1)
		start := time.Now()
		r := take(t, l, "k")
		require.True(t, r.Fallback)
		require.False(t, r.Allowed)
		require.Equal(t, 50*time.Millisecond, time.Since(start))
		env.Up()
		env.Advance(0)
		require.Equal(t, 6, allow(t, l, "k").Remaining, "the late call took its permit")
	})
}

func TestAdvanceMovesLeases(t *testing.T) {
	inBubble(t, func(t *testing.T, env *ratelimittest.Env) {
		l := ratelimit.Must(ratelimit.NewInFlight(env.Client(), 1, 10*time.Second))
		hold, r, err := l.TryAcquire(ctx, "k")
		require.NoError(t, err)
		require.True(t, r.Allowed)
		require.Equal(t, 10*time.Second-10*time.Millisecond, hold.Left(), "less a thousandth")
		env.Advance(10*time.Second - 10*time.Millisecond - 1)
		require.Equal(t, time.Duration(1), hold.Left())
		env.Advance(1)
		require.Zero(t, hold.Left())
		env.Advance(10*time.Millisecond - time.Microsecond)
		_, r, err = l.TryAcquire(ctx, "k")
		require.NoError(t, err)
		require.False(t, r.Allowed)
		require.Equal(t, time.Microsecond, r.RetryAfter)
		env.Advance(time.Microsecond)
		next, r, err := l.TryAcquire(ctx, "k")
		require.NoError(t, err)
		require.True(t, r.Allowed)
		require.ErrorIs(t, hold.Extend(ctx), ratelimit.ErrLeaseLost)
		require.NoError(t, next.Release(ctx))
	})
}

func TestAdvanceMovesTheWorkOfDo(t *testing.T) {
	inBubble(t, func(t *testing.T, env *ratelimittest.Env) {
		l := ratelimit.Must(ratelimit.NewInFlight(env.Client(), 1, 9*time.Second))
		finish, done := make(chan struct{}), make(chan error, 1)
		start := time.Now()
		var lostAfter time.Duration
		go func() {
			done <- l.Do(ctx, "k", func(ctx context.Context) error {
				select {
				case <-finish:
					return nil
				case <-ctx.Done():
					lostAfter = time.Since(start)
					return context.Cause(ctx)
				}
			})
		}()
		env.Advance(10 * time.Minute) // 200 extensions
		_, r, err := l.TryAcquire(ctx, "k")
		require.NoError(t, err)
		require.Equal(t, ratelimit.Result{Limit: 1, Window: 9 * time.Second, RetryAfter: 9 * time.Second, ResetAfter: 9 * time.Second}, r, "just extended")
		close(finish)
		require.NoError(t, <-done)

		// In an outage the work loses its lease a thousandth before Redis ends it.
		finish = nil
		start = time.Now()
		go func() {
			done <- l.Do(ctx, "k", func(ctx context.Context) error {
				<-ctx.Done()
				lostAfter = time.Since(start)
				return context.Cause(ctx)
			})
		}()
		env.Advance(3 * time.Second) // extended
		env.Down()
		require.ErrorIs(t, <-done, ratelimit.ErrLeaseLost)
		require.Equal(t, 3*time.Second+9*time.Second-9*time.Millisecond, lostAfter)
	})
}

// Three callers wait for a bucket that refills every second: each gets its permit at its
// instant, in the order of their calls.
func TestAdvanceMovesCallersThatWait(t *testing.T) {
	inBubble(t, func(t *testing.T, env *ratelimittest.Env) {
		bucket := ratelimit.Must(ratelimit.NewTokenBucket(env.Client(), ratelimit.PerSecond(1), 1))
		allow(t, bucket, "k")
		start := time.Now()
		served := make(chan time.Duration, 3)
		for range 3 {
			go func() {
				if _, err := ratelimit.Wait(ctx, bucket, "k"); err == nil {
					served <- time.Since(start)
				}
			}()
		}
		env.Advance(time.Second - 1)
		require.Empty(t, served)
		env.Advance(1)
		require.Len(t, served, 1)
		env.Advance(time.Second)
		require.Len(t, served, 2)
		env.Advance(time.Second)
		require.Len(t, served, 3)
		for i := range 3 {
			require.Equal(t, time.Duration(i+1)*time.Second, <-served)
		}
	})
}

// A window has no reservations: its callers ask again, up to a tenth of RetryAfter late.
func TestAdvanceMovesCallersThatAskAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, env *ratelimittest.Env) {
		window := ratelimit.Must(ratelimit.NewFixedWindow(env.Client(), 1, time.Second))
		allow(t, window, "k")
		served := make(chan error, 1)
		go func() {
			_, err := ratelimit.Wait(ctx, window, "k")
			served <- err
		}()
		env.Advance(time.Second - 1)
		require.Empty(t, served)
		env.Advance(100*time.Millisecond + 1)
		require.Len(t, served, 1)
		require.NoError(t, <-served)
	})
}

func TestAdvanceMovesReservationsAndDeadlines(t *testing.T) {
	inBubble(t, func(t *testing.T, env *ratelimittest.Env) {
		bucket := ratelimit.Must(ratelimit.NewLeakyBucket(env.Client(), ratelimit.PerSecond(1), 1))
		allow(t, bucket, "k")
		r, err := bucket.Reserve(ctx, "k", 1, time.Minute)
		require.NoError(t, err)
		require.Equal(t, time.Second, r.Delay())
		env.Advance(time.Second - 1)
		require.Equal(t, time.Duration(1), r.Delay())
		env.Advance(1)
		require.Zero(t, r.Delay())
		require.NoError(t, r.Wait(ctx))

		// A deadline ends a wait that could not have ended well, and one that lasts.
		soon, cancel := context.WithTimeout(ctx, time.Second-1)
		defer cancel()
		_, err = ratelimit.Wait(soon, bucket, "k")
		var late *ratelimit.WaitError
		require.ErrorAs(t, err, &late)
		require.Equal(t, time.Second, late.Wait)

		long, leave := context.WithCancelCause(ctx)
		done := make(chan error, 1)
		go func() {
			_, err := ratelimit.Wait(long, bucket, "k")
			done <- err
		}()
		env.Advance(500 * time.Millisecond)
		leave(errors.New("shutting down"))
		synctest.Wait()
		require.ErrorIs(t, <-done, context.Canceled)
		env.Advance(500 * time.Millisecond)
		allow(t, bucket, "k") // what was reserved is given back
	})
}

// An estimate that is settled gives its permits back to the window that they came from only.
func TestAdvanceMovesTickets(t *testing.T) {
	inBubble(t, func(t *testing.T, env *ratelimittest.Env) {
		window := ratelimit.Must(ratelimit.NewFixedWindow(env.Client(), 10, time.Minute))
		ticket, _, err := window.Estimate(ctx, "k", 8)
		require.NoError(t, err)
		env.Advance(time.Minute - time.Millisecond)
		require.NoError(t, ticket.Settle(ctx, 3))
		r, err := window.Peek(ctx, "k")
		require.NoError(t, err)
		require.Equal(t, ratelimit.Result{Allowed: true, Limit: 10, Window: time.Minute, Remaining: 7, ResetAfter: time.Millisecond}, r)
		env.Advance(time.Millisecond)
		r, err = window.Peek(ctx, "k")
		require.NoError(t, err)
		require.Equal(t, ratelimit.Result{Allowed: true, Limit: 10, Window: time.Minute, Remaining: 10}, r)
	})
}

func TestKeysExpire(t *testing.T) {
	inBubble(t, func(t *testing.T, env *ratelimittest.Env) {
		window := ratelimit.Must(ratelimit.NewFixedWindow(env.Client(), 10, time.Minute, ratelimit.WithName("api")))
		allow(t, window, "k")
		env.Advance(time.Minute - time.Millisecond)
		require.Equal(t, []string{"ratelimit:api:fixedwindow{k}"}, env.Miniredis().Keys())
		env.Advance(time.Millisecond)
		require.Empty(t, env.Miniredis().Keys())
	})
}

// More callers than are sent one by one: they are merged, and what is merged moves nothing.
func TestManyCallersAtOneInstant(t *testing.T) {
	inBubble(t, func(t *testing.T, env *ratelimittest.Env) {
		bucket := ratelimit.Must(ratelimit.NewTokenBucket(env.Client(), ratelimit.PerSecond(1), 50))
		results := make(chan ratelimit.Result, 100)
		for range cap(results) {
			go func() {
				if r, err := bucket.TryAcquire(ctx, "k"); err == nil {
					results <- r
				}
			}()
		}
		synctest.Wait()
		require.Len(t, results, 100)
		allowed := 0
		for range 100 {
			if r := <-results; r.Allowed {
				allowed++
			}
		}
		require.Equal(t, 50, allowed)
	})
}

func TestAdvanceNeedsABubble(t *testing.T) {
	t.Parallel()
	const remedy = "call New and Advance within synctest.Test(t, func(t *testing.T) { … })"
	require.Equal(t, "ratelimittest: Advance(1s): the test is in no bubble of testing/synctest, in which all clocks are one; "+remedy,
		failureOf(t, func(t testing.TB) { ratelimittest.New(t).Advance(time.Second) }))

	outside := &fakeT{TB: t}
	env := ratelimittest.New(outside)
	synctest.Test(t, func(t *testing.T) {
		failureOf(t, func(testing.TB) { env.Advance(time.Second) })
	})
	require.Equal(t, "ratelimittest: Advance(1s): New was called outside of the bubble, so that its Redis has the real clock; "+remedy, outside.failure)

	synctest.Test(t, func(t *testing.T) {
		require.Equal(t, "ratelimittest: Advance(-1ns): time does not go back",
			failureOf(t, func(t testing.TB) { ratelimittest.New(t).Advance(-1) }))
	})
}

// Outside of a bubble everything but Advance works, with the real clock.
func TestOutsideOfABubble(t *testing.T) {
	t.Parallel()
	env := ratelimittest.New(t)
	bucket := ratelimit.Must(ratelimit.NewTokenBucket(env.Client(), ratelimit.PerHour(1), 1))
	allow(t, bucket, "k")
	require.False(t, take(t, bucket, "k").Allowed)
	env.Down()
	_, err := bucket.TryAcquire(ctx, "k")
	require.ErrorContains(t, err, "connection reset")
	env.Up()
	require.False(t, take(t, bucket, "k").Allowed)
}

package ratelimittest_test

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/ratelimittest"
)

// onABucket runs test with a bucket of ten permits an hour, of which one is taken.
func onABucket(t *testing.T, test func(t *testing.T, env *ratelimittest.Env, bucket *ratelimit.TokenBucket)) {
	inBubble(t, func(t *testing.T, env *ratelimittest.Env) {
		bucket := ratelimit.Must(ratelimit.NewTokenBucket(env.Client(), ratelimit.PerHour(1), 10, ratelimit.WithName("api")))
		require.Equal(t, 9, allow(t, bucket, "k").Remaining)
		start := time.Now()
		test(t, env, bucket)
		require.Equal(t, start, time.Now(), "an outage takes no time")
	})
}

// Callers wait for the slow server at the same time, in one bubble after the other.
func TestManyCallers(t *testing.T) {
	for range 3 {
		synctest.Test(t, func(t *testing.T) {
			env := ratelimittest.New(t)
			env.Slow(time.Millisecond)
			bucket := ratelimit.Must(ratelimit.NewTokenBucket(env.Client(), ratelimit.PerHour(1), 1000, ratelimit.WithoutMerging()))
			var all sync.WaitGroup
			for range 200 {
				all.Go(func() { allow(t, bucket, "k") })
			}
			all.Wait()
			require.Equal(t, 799, allow(t, bucket, "k").Remaining)
		})
	}
}

func TestDown(t *testing.T) {
	onABucket(t, func(t *testing.T, env *ratelimittest.Env, bucket *ratelimit.TokenBucket) {
		env.Down()
		_, err := bucket.TryAcquire(ctx, "k")
		require.ErrorIs(t, err, syscall.ECONNRESET, "a connection that there was")
		require.EqualError(t, err, `ratelimit: token bucket "api", key "k": write tcp: connection reset by peer`)
		for range 1100 { // more than the pool has connections
			_, err = bucket.TryAcquire(ctx, "k")
			require.ErrorIs(t, err, syscall.ECONNREFUSED, "a new connection")
		}
		env.Up()
		require.Equal(t, 8, allow(t, bucket, "k").Remaining, "what the server held is kept, and nothing was executed")
	})
}

// A connection that no call has used during the outage serves the first call after it.
func TestDownUnnoticed(t *testing.T) {
	onABucket(t, func(t *testing.T, env *ratelimittest.Env, bucket *ratelimit.TokenBucket) {
		env.Down()
		env.Up()
		require.Equal(t, 8, allow(t, bucket, "k").Remaining)
	})
}

// A call that is waiting for its reply when the server goes down gets an error, and is executed
// if the server had read it.
func TestDownDuringACall(t *testing.T) {
	onABucket(t, func(t *testing.T, env *ratelimittest.Env, bucket *ratelimit.TokenBucket) {
		env.Slow(time.Hour)
		done := make(chan error, 1)
		go func() {
			_, err := bucket.TryAcquire(ctx, "k")
			done <- err
		}()
		env.Advance(0)
		env.Down()
		require.ErrorIs(t, <-done, io.EOF)
		env.Up()
		env.Advance(0)
		require.Equal(t, 7, allow(t, bucket, "k").Remaining)
	})
}

func TestFailWith(t *testing.T) {
	onABucket(t, func(t *testing.T, env *ratelimittest.Env, bucket *ratelimit.TokenBucket) {
		env.FailWith("OOM command not allowed when used memory > 'maxmemory'.")
		_, err := bucket.TryAcquire(ctx, "k")
		require.True(t, redis.HasErrorPrefix(err, "OOM"), "%v", err)
		env.Up()
		require.Equal(t, 8, allow(t, bucket, "k").Remaining, "nothing was executed")

		env.FailWith("LOADING Redis is loading the dataset in memory")
		fresh := redis.NewClient(env.Options()) // has to connect first
		defer fresh.Close()
		other := ratelimit.Must(ratelimit.NewTokenBucket(fresh, ratelimit.PerHour(1), 10, ratelimit.WithName("api")))
		_, err = other.TryAcquire(ctx, "k")
		require.True(t, redis.HasErrorPrefix(err, "LOADING"), "%v", err)
		env.Up()
		require.Equal(t, 7, allow(t, other, "k").Remaining)
	})
}

func TestLoseReplies(t *testing.T) {
	onABucket(t, func(t *testing.T, env *ratelimittest.Env, bucket *ratelimit.TokenBucket) {
		env.LoseReplies(2)
		for range 2 { // the second on a new connection, whose greeting is answered
			_, err := bucket.TryAcquire(ctx, "k")
			require.ErrorIs(t, err, io.EOF)
		}
		require.Equal(t, 6, allow(t, bucket, "k").Remaining, "both were executed, once")

		env.LoseReplies(5)
		env.Up()
		require.Equal(t, 5, allow(t, bucket, "k").Remaining)
	})
}

// The reply that the script is not known is not the one that is lost.
func TestLoseReplyOfAFirstCall(t *testing.T) {
	inBubble(t, func(t *testing.T, env *ratelimittest.Env) {
		window := ratelimit.Must(ratelimit.NewFixedWindow(env.Client(), 10, time.Minute))
		env.LoseReplies(1)
		_, err := window.TryAcquire(ctx, "k")
		require.ErrorIs(t, err, io.EOF)
		require.Equal(t, 8, allow(t, window, "k").Remaining)
	})
}

func TestSlow(t *testing.T) {
	inBubble(t, func(t *testing.T, env *ratelimittest.Env) {
		bucket := ratelimit.Must(ratelimit.NewTokenBucket(env.Client(), ratelimit.PerHour(1), 10))
		allow(t, bucket, "k")
		took := func(call func() error) (time.Duration, error) {
			start := time.Now()
			err := call()
			return time.Since(start), err
		}
		take := func() error { _, err := bucket.TryAcquire(ctx, "k"); return err }

		env.Slow(3 * time.Second)
		d, err := took(take)
		require.NoError(t, err)
		require.Equal(t, 3*time.Second, d)

		env.Slow(time.Hour) // hangs
		d, err = took(take)
		var timeout net.Error
		require.ErrorAs(t, err, &timeout)
		require.True(t, timeout.Timeout())
		require.Equal(t, 5*time.Second, d)

		env.Up()
		env.Advance(0) // the call that hung is executed
		require.Equal(t, 6, allow(t, bucket, "k").Remaining)
	})
}

func TestSlowWhileConnectionsAreMade(t *testing.T) {
	inBubble(t, func(t *testing.T, env *ratelimittest.Env) {
		env.Slow(time.Millisecond)
		bucket := ratelimit.Must(ratelimit.NewTokenBucket(env.Client(), ratelimit.PerHour(1), 10, ratelimit.WithoutMerging()))
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() { allow(t, bucket, "k") }) // for ever, if go-redis held a mutex while it waits for the server
			time.Sleep(time.Millisecond / 3)
		}
		all.Wait()
		require.Equal(t, 4, allow(t, bucket, "k").Remaining)
	})
}

// A command that takes many reads is delayed once.
func TestSlowWithALargeCommand(t *testing.T) {
	inBubble(t, func(t *testing.T, env *ratelimittest.Env) {
		require.NoError(t, env.Client().Ping(ctx).Err())
		env.Slow(time.Second)
		start := time.Now()
		require.NoError(t, env.Client().Set(ctx, "large", make([]byte, 100_000), 0).Err())
		require.Equal(t, time.Second, time.Since(start))
	})
}

// Outside of a bubble as well, a test that ends while the server hangs does not wait for it.
func TestSlowAtTheEndOutsideOfABubble(t *testing.T) {
	t.Parallel()
	env := ratelimittest.New(t)
	require.NoError(t, env.Client().Ping(ctx).Err())
	env.Slow(time.Hour)
	bucket := ratelimit.Must(ratelimit.NewTokenBucket(env.Client(), ratelimit.PerHour(1), 10))
	soon, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	_, err := bucket.TryAcquire(soon, "k")
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// A state that no script could have written is set on the server itself.
func TestMiniredis(t *testing.T) {
	inBubble(t, func(t *testing.T, env *ratelimittest.Env) {
		bucket := ratelimit.Must(ratelimit.NewTokenBucket(env.Client(), ratelimit.PerHour(1), 10, ratelimit.WithName("api")))
		require.NoError(t, env.Miniredis().Set("ratelimit:api:tokenbucket{k}", "garbage"))
		_, err := bucket.TryAcquire(ctx, "k")
		require.ErrorIs(t, err, ratelimit.ErrCorruptState)
	})
}

func TestOutagesThatCannotBe(t *testing.T) {
	t.Parallel()
	for want, do := range map[string]func(env *ratelimittest.Env){
		"ratelimittest: FailWith: the message is empty; Up ends the outage": func(env *ratelimittest.Env) { env.FailWith("") },
		"ratelimittest: Slow(0s): the delay must be above 0; Up ends it":    func(env *ratelimittest.Env) { env.Slow(0) },
		"ratelimittest: LoseReplies(0): lose at least 1":                    func(env *ratelimittest.Env) { env.LoseReplies(0) },
	} {
		require.Equal(t, want, failureOf(t, func(t testing.TB) { do(ratelimittest.New(t)) }))
	}
}

// An outage that the test has not ended does not keep it from ending.
func TestOutageAtTheEnd(t *testing.T) {
	for _, begin := range []func(*ratelimittest.Env){
		(*ratelimittest.Env).Down,
		func(env *ratelimittest.Env) { env.Slow(time.Hour) },
		func(env *ratelimittest.Env) { env.FailWith("ERR no") },
		func(env *ratelimittest.Env) { env.LoseReplies(1) },
	} {
		t.Run("", func(t *testing.T) {
			inBubble(t, func(t *testing.T, env *ratelimittest.Env) {
				bucket := ratelimit.Must(ratelimit.NewTokenBucket(env.Client(), ratelimit.PerHour(1), 10))
				allow(t, bucket, "k")
				begin(env)
				_, err := bucket.TryAcquire(ctx, "k")
				require.Error(t, err)
			})
		})
	}
}

// Outages begin and end while many callers call: each gets an answer or an error, and what was
// allowed was taken.
func TestOutagesAreSafeForConcurrentUse(t *testing.T) {
	inBubble(t, func(t *testing.T, env *ratelimittest.Env) {
		bucket := ratelimit.Must(ratelimit.NewTokenBucket(env.Client(), ratelimit.PerHour(1), 1000))
		var calls sync.WaitGroup
		var allowed atomic.Int64
		for range 10 {
			calls.Go(func() {
				for range 20 {
					if r, err := bucket.TryAcquire(ctx, "k"); err == nil && r.Allowed {
						allowed.Add(1)
					}
					time.Sleep(time.Millisecond)
				}
			})
		}
		for _, begin := range []func(){
			env.Down,
			func() { env.Slow(3 * time.Millisecond) },
			func() { env.LoseReplies(5) },
			func() { env.FailWith("LOADING Redis is loading the dataset in memory") },
		} {
			begin()
			time.Sleep(2 * time.Millisecond)
			env.Up()
			time.Sleep(2 * time.Millisecond)
		}
		calls.Wait()
		taken := 1000 - int64(allow(t, bucket, "k").Remaining) - 1
		require.GreaterOrEqual(t, taken, allowed.Load())
		require.LessOrEqual(t, taken, int64(200))
		require.NotZero(t, allowed.Load())
		require.NotEqual(t, int64(200), allowed.Load())
	})
}

var errDown = errors.New("no connection")

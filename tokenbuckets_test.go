package ratelimit_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

func TestWithMakesEachLimitOnce(t *testing.T) {
	buckets := ratelimit.Must(ratelimit.NewTokenBucket(limitertest.Offline(t), ratelimit.PerSecond(10), 20, ratelimit.WithName("tenant")))
	first := ratelimit.Must(buckets.With(ratelimit.PerSecond(10), 20))
	require.Equal(t, "tenant", first.Name())
	require.Same(t, first, ratelimit.Must(buckets.With(ratelimit.PerSecond(10), 20)))
	require.NotSame(t, first, ratelimit.Must(buckets.With(ratelimit.PerSecond(10), 21)))
	require.NotSame(t, first, ratelimit.Must(buckets.With(ratelimit.PerMinute(10), 20)))
}

// TestALimitThatChangesBetweenCalls: a key goes on from what it has used.
func TestALimitThatChangesBetweenCalls(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	buckets := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(10), 20, ratelimit.WithName("tenant")))
	try := func(rate ratelimit.Rate, burst, n int) ratelimit.Result {
		t.Helper()
		return must(t)(ratelimit.Must(buckets.With(rate, burst)).TryAcquireN(ctx, "k", n))
	}
	require.Equal(t, ratelimit.Result{
		Allowed: true, Limit: 10, Window: 10 * time.Minute, Remaining: 4, ResetAfter: 6 * time.Minute,
	}, try(ratelimit.PerMinute(1), 10, 6))
	require.Equal(t, ratelimit.Result{
		Allowed: true, Limit: 100, Window: 100 * time.Second, Remaining: 93, ResetAfter: 7 * time.Second,
	}, try(ratelimit.PerSecond(1), 100, 1))
	require.Equal(t, ratelimit.Result{
		Allowed: false, Limit: 5, Window: 5 * time.Minute, Remaining: 0, RetryAfter: 3 * time.Second, ResetAfter: 7 * time.Second,
	}, try(ratelimit.PerMinute(1), 5, 1))
	require.Equal(t, []string{"ratelimit:tenant:tokenbucket{k}"}, s.Admin.Keys(ctx, "*").Val())
}

func TestWithRefusesWhatCannotWork(t *testing.T) {
	client := limitertest.Offline(t)
	for says, err := range map[string]error{
		"the client is nil":        second(ratelimit.NewTokenBucket(nil, ratelimit.PerSecond(10), 20)),
		"the client is a pipeline": second(ratelimit.NewTokenBucket(redis.NewClient(&redis.Options{}).Pipeline(), ratelimit.PerSecond(10), 20)),
		"option 1 is nil":          second(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(10), 20, nil)),
		"WithName: ":               second(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(10), 20, ratelimit.WithName("a:b"))),
		"the limiter was not made": second((&ratelimit.TokenBucket{}).With(ratelimit.PerSecond(1), 1)),
	} {
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig, says)
		require.ErrorContains(t, err, says)
	}
	buckets := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(10), 20, ratelimit.WithHeadroom(5), ratelimit.WithRefillEvery(time.Minute)))
	_, err := buckets.With(ratelimit.PerSecond(1), 5)
	require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
	require.ErrorContains(t, err, "WithHeadroom")
	_, err = buckets.With(ratelimit.PerSecond(0), 5)
	require.ErrorContains(t, err, "the rate's Count is 0; it must be at least 1")
	_, err = buckets.With(ratelimit.PerSecond(1), 6)
	require.NoError(t, err)
}

func second[T any](_ T, err error) error { return err }

// TestOptionsOfABucketAreItsOwn: a caller that changes its slice changes no limit.
func TestOptionsOfABucketAreItsOwn(t *testing.T) {
	opts := []ratelimit.Option{ratelimit.WithName("a")}
	buckets := ratelimit.Must(ratelimit.NewTokenBucket(limitertest.Offline(t), ratelimit.PerSecond(10), 20, opts...))
	opts[0] = ratelimit.WithName("b")
	require.Equal(t, "a", ratelimit.Must(buckets.With(ratelimit.PerSecond(1), 1)).Name())
}

// BenchmarkTokenBucketWith is what a limit that comes with the call costs beside the limiter.
func BenchmarkTokenBucketWith(b *testing.B) {
	buckets := ratelimit.Must(ratelimit.NewTokenBucket(limitertest.Offline(b), ratelimit.PerSecond(10), 20))
	for _, limits := range []int{1, 10_000} {
		b.Run(fmt.Sprintf("limits=%d", limits), func(b *testing.B) {
			b.ReportAllocs()
			b.SetParallelism(128)
			b.RunParallel(func(pb *testing.PB) {
				for i := 0; pb.Next(); i++ {
					if _, err := buckets.With(ratelimit.PerSecond(1+i%limits), 100); err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
	b.Run("making", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if _, err := buckets.With(ratelimit.PerMinute(1+i%100_000), 100); err != nil {
				b.Fatal(err)
			}
		}
	})
}

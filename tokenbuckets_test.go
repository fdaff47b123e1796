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

func TestTokenBucketsMakeEachLimitOnce(t *testing.T) {
	buckets := ratelimit.Must(ratelimit.NewTokenBuckets(limitertest.Offline(t), ratelimit.WithName("tenant")))
	first := ratelimit.Must(buckets.Of(ratelimit.PerSecond(10), 20))
	require.Equal(t, "tenant", first.Name())
	require.Same(t, first, ratelimit.Must(buckets.Of(ratelimit.PerSecond(10), 20)))
	require.NotSame(t, first, ratelimit.Must(buckets.Of(ratelimit.PerSecond(10), 21)))
	require.NotSame(t, first, ratelimit.Must(buckets.Of(ratelimit.PerMinute(10), 20)))
}

// TestALimitThatChangesBetweenCalls: a key goes on from what it has used.
func TestALimitThatChangesBetweenCalls(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	buckets := ratelimit.Must(ratelimit.NewTokenBuckets(s.Client, ratelimit.WithName("tenant")))
	try := func(rate ratelimit.Rate, burst, n int) ratelimit.Result {
		t.Helper()
		return must(t)(ratelimit.Must(buckets.Of(rate, burst)).TryAcquireN(ctx, "k", n))
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

func TestTokenBucketsRefuseWhatCannotWork(t *testing.T) {
	client := limitertest.Offline(t)
	for says, err := range map[string]error{
		"the client is nil":        second(ratelimit.NewTokenBuckets(nil)),
		"the client is a pipeline": second(ratelimit.NewTokenBuckets(redis.NewClient(&redis.Options{}).Pipeline())),
		"option 1 is nil":          second(ratelimit.NewTokenBuckets(client, nil)),
		"WithName: ":               second(ratelimit.NewTokenBuckets(client, ratelimit.WithName("a:b"))),
		"the limiter was not made": second((&ratelimit.TokenBuckets{}).Of(ratelimit.PerSecond(1), 1)),
	} {
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig, says)
		require.ErrorContains(t, err, says)
	}
	buckets := ratelimit.Must(ratelimit.NewTokenBuckets(client, ratelimit.WithHeadroom(5), ratelimit.WithRefillEvery(time.Minute)))
	_, err := buckets.Of(ratelimit.PerSecond(1), 5)
	require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
	require.ErrorContains(t, err, "WithHeadroom")
	_, err = buckets.Of(ratelimit.PerSecond(0), 5)
	require.ErrorContains(t, err, "the rate's Count is 0; it must be at least 1")
	_, err = buckets.Of(ratelimit.PerSecond(1), 6)
	require.NoError(t, err)
}

func second[T any](_ T, err error) error { return err }

// TestOptionsOfTokenBucketsAreTheirOwn: a caller that changes its slice changes no limit.
func TestOptionsOfTokenBucketsAreTheirOwn(t *testing.T) {
	opts := []ratelimit.Option{ratelimit.WithName("a")}
	buckets := ratelimit.Must(ratelimit.NewTokenBuckets(limitertest.Offline(t), opts...))
	opts[0] = ratelimit.WithName("b")
	require.Equal(t, "a", ratelimit.Must(buckets.Of(ratelimit.PerSecond(1), 1)).Name())
}

// BenchmarkTokenBucketsOf is what a limit that comes with the call costs beside the limiter.
func BenchmarkTokenBucketsOf(b *testing.B) {
	buckets := ratelimit.Must(ratelimit.NewTokenBuckets(limitertest.Offline(b)))
	for _, limits := range []int{1, 10_000} {
		b.Run(fmt.Sprintf("limits=%d", limits), func(b *testing.B) {
			b.ReportAllocs()
			b.SetParallelism(128)
			b.RunParallel(func(pb *testing.PB) {
				for i := 0; pb.Next(); i++ {
					if _, err := buckets.Of(ratelimit.PerSecond(1+i%limits), 100); err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
	b.Run("making", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if _, err := buckets.Of(ratelimit.PerMinute(1+i%100_000), 100); err != nil {
				b.Fatal(err)
			}
		}
	})
}

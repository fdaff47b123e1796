package ratelimit_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/await"
	"github.com/tryacquire/ratelimit/internal/testing/fakes"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

func BenchmarkMerged(b *testing.B) {
	for _, keys := range []int{1, 10_000} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			client := redistest.Shared(b).Client(b)
			l := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(1000), 100))
			names := make([]string, keys)
			for i := range names {
				names[i] = fmt.Sprint("user:", i)
			}
			b.ReportAllocs()
			b.SetParallelism(256 / runtime.GOMAXPROCS(0))
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					_, err := l.TryAcquire(ctx, names[rand.IntN(keys)])
					require.NoError(b, err)
				}
			})
		})
	}
}

func TestAPanicOfTheClockIsAnError(t *testing.T) {
	cancellable, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, merging := range [][]ratelimit.Option{nil, {ratelimit.WithoutMerging()}} {
		s := limitertest.OnMiniredis(t)
		l := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(1), 1, append(merging, ratelimit.WithClock(func() time.Time { panic("boom") }))...))
		for range 2 {
			_, err := l.TryAcquire(cancellable, "k")
			require.ErrorContains(t, err, `token bucket "default", key "k": the client or the clock panicked: boom`)
		}
	}
}

// exiting ends the goroutine, as FailNow of a test would.
var exiting = fakes.Hook{Command: func(context.Context, redis.Cmder, redis.ProcessHook) error {
	runtime.Goexit()
	return nil
}}

func TestAHookThatEndsTheGoroutineIsAnError(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	client.AddHook(exiting)
	l := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(1), 1))
	cancellable, cancel := context.WithCancel(ctx)
	defer cancel()
	for range 40 { // more than may be in flight
		_, err := l.TryAcquire(cancellable, "k")
		require.ErrorIs(t, err, await.ErrGoexit)
		_, err = l.Peek(cancellable, "k")
		require.ErrorIs(t, err, await.ErrGoexit)
		require.ErrorIs(t, l.Reset(cancellable, "k"), await.ErrGoexit)
		require.ErrorIs(t, ratelimit.Preload(cancellable, ratelimit.ClaimOf(l, "k", 1)), await.ErrGoexit)
	}
}

// TestACommandThatAHookKeptIsAnError, even if the hook says that all is well.
func TestACommandThatAHookKeptIsAnError(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	silent := fakes.Hook{
		Command:  func(context.Context, redis.Cmder, redis.ProcessHook) error { return nil },
		Pipeline: func(context.Context, []redis.Cmder, redis.ProcessPipelineHook) error { return nil },
	}
	client := s.Client.(*redis.Client)
	ring := redis.NewRing(&redis.RingOptions{
		Addrs: map[string]string{"a": client.Options().Addr},
		NewClient: func(o *redis.Options) *redis.Client {
			shard := redis.NewClient(o)
			shard.AddHook(silent)
			return shard
		},
	})
	t.Cleanup(func() { _ = ring.Close() })
	client.AddHook(silent)
	for _, c := range []ratelimit.Client{client, ring} {
		for _, l := range []ratelimit.Limiter{
			ratelimit.Must(ratelimit.NewTokenBucket(c, ratelimit.PerHour(1), 3)), ratelimit.Must(ratelimit.NewFixedWindow(c, 3, time.Hour)), ratelimit.Must(ratelimit.NewSlidingWindow(c, 3, time.Hour)),
		} {
			_, err := l.TryAcquire(ctx, "k")
			require.ErrorContains(t, err, "reply")
			_, err = l.Peek(ctx, "k")
			require.ErrorContains(t, err, "reply")
		}
	}
	require.Zero(t, s.Admin.DBSize(ctx).Val())
}

func TestAPlainClientOnAClusterMerges(t *testing.T) {
	redistest.Require(t, "redis-server")
	server := redistest.Start(t, redistest.Args("--cluster-enabled", "yes"))
	client := server.Client(t)
	require.NoError(t, client.ClusterAddSlotsRange(ctx, 0, 16383).Err())
	require.Eventually(t, func() bool { return client.Set(ctx, "x", 1, 0).Err() == nil }, 30*time.Second, 10*time.Millisecond)
	l := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(1000), 1000))
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			for j := range 50 {
				if _, err := l.TryAcquire(ctx, fmt.Sprint("k", i, j)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// TestAHungMasterHarmsOnlyItsKeys: calls for other masters do not wait for it.
func TestAHungMasterHarmsOnlyItsKeys(t *testing.T) {
	cluster := redistest.StartCluster(t)
	sick := cluster.Masters()[0]
	proxy := redistest.NewProxy(t, sick.Addr())
	client := cluster.Client(t, func(o *redis.ClusterOptions) {
		o.Dialer = redistest.Through(proxy)
		o.ReadTimeout = 2 * time.Second
	})
	l := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(1000), 1000))
	var well, ill []string
	for i := 0; len(well) < 20 || len(ill) < 20; i++ {
		key := fmt.Sprint("k", i)
		must(t)(l.TryAcquire(ctx, key))
		if cluster.NodeFor("ratelimit:default:tokenbucket{"+key+"}") == sick {
			ill = append(ill, key)
		} else {
			well = append(well, key)
		}
	}
	proxy.Hang()
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			for j := range 10 {
				short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
				_, err := l.TryAcquire(short, ill[(i+j)%len(ill)])
				cancel()
				if err == nil {
					t.Error("a hung server answered")
				}
			}
		})
		wg.Go(func() {
			for j := range 50 {
				short, cancel := context.WithTimeout(ctx, time.Second)
				if _, err := l.TryAcquire(short, well[(i+j)%len(well)]); err != nil {
					t.Error(err)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	proxy.Unhang()
}

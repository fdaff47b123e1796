package ratelimit_test

import (
	"context"
	"fmt"
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
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// TestManyRequestsAreDecidedAsOneByOne: the answers are those of a second limiter that is
// asked one by one, at the same instant.
func TestManyRequestsAreDecidedAsOneByOne(t *testing.T) {
	for name, stage := range map[string]func(testing.TB) *limitertest.Stage{"miniredis": limitertest.OnMiniredis, "Redis": limitertest.OnHeldRedis} {
		t.Run(name, func(t *testing.T) {
			s := stage(t)
			rng := model.Seeded(limitertest.Seed(t))
			for _, v := range limitertest.Variants() {
				for _, merging := range [][]ratelimit.Option{nil, {ratelimit.WithoutMerging()}} {
					s.Wipe(t)
					l, err := v.Build(s.Client, merging...)
					require.NoError(t, err)
					many, ok := l.(ratelimit.Batcher)
					if !ok {
						require.Contains(t, v.Name, "in an All")
						continue
					}
					single, err := v.Build(s.Client, ratelimit.WithPrefix("single"))
					require.NoError(t, err)
					for range 5 {
						var requests []ratelimit.Request
						var want []ratelimit.Answer
						for range rng.IntN(20) {
							r := ratelimit.Request{Key: fmt.Sprint("k", rng.IntN(4)), N: 1 + rng.IntN(3)}
							switch rng.IntN(12) {
							case 0:
								r.Key = ""
							case 1:
								r.N = 0
							case 2:
								r.N = 4
							}
							requests = append(requests, r)
							result, err := single.TryAcquireN(ctx, r.Key, r.N)
							want = append(want, ratelimit.Answer{Result: result, Err: err})
						}
						got := many.TryAcquireMany(ctx, requests)
						require.Len(t, got, len(want))
						for i := range want {
							require.Equal(t, want[i], got[i], "%s: request %d of %v", v.Name, i, requests)
						}
						s.Advance(v.Retry / 2)
					}
				}
			}
		})
	}
}

func TestManyRequestsAreOneRoundTrip(t *testing.T) {
	shared := redistest.Shared(t)
	admin := shared.Client(t)
	requests := make([]ratelimit.Request, 1000)
	for i := range requests {
		requests[i] = ratelimit.Request{Key: fmt.Sprint("k", i%900), N: 1}
	}
	for scripts, merging := range [][]ratelimit.Option{nil, {ratelimit.WithoutMerging()}} { // unmerged, there is also the script for one request
		require.NoError(t, admin.FlushAll(ctx).Err())
		require.NoError(t, admin.ScriptFlush(ctx).Err())
		client := shared.Client(t)
		require.NoError(t, client.Ping(ctx).Err()) // to connect
		trips := &counter{}
		client.AddHook(trips)
		l := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerHour(1), 2, ratelimit.WithOptions(merging...)))
		check := func(left, again int) {
			for i, a := range l.TryAcquireMany(ctx, requests) {
				require.NoError(t, a.Err)
				want := left
				if i >= 900 {
					want = again
				}
				require.Equal(t, want, a.Result.Remaining)
			}
		}
		check(1, 0)
		require.EqualValues(t, 2+scripts, trips.trips.Load(), "a script that Redis does not know is sent again")
		trips.trips.Store(0)
		check(0, 0)
		require.EqualValues(t, 1, trips.trips.Load())
	}
}

// counter counts the round trips with scripts.
type counter struct{ trips atomic.Int64 }

func (c *counter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.count(cmd)
		return next(ctx, cmd)
	}
}

func (c *counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.count(cmds...)
		return next(ctx, cmds)
	}
}

func (c *counter) count(cmds ...redis.Cmder) {
	if slices.ContainsFunc(cmds, func(cmd redis.Cmder) bool { return strings.HasPrefix(cmd.Name(), "eval") }) {
		c.trips.Add(1)
	}
}

func TestManyRequestsWhereSomeFail(t *testing.T) {
	cluster := redistest.StartCluster(t)
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": redistest.Shared(t).Addr()}})
	defer ring.Close()
	single := redistest.Shared(t).Client(t)
	for name, client := range map[string]redis.UniversalClient{"Redis": single, "Cluster": cluster.Client(t), "Ring": ring, "a node of a cluster": cluster.Masters()[0].Client(t)} {
		t.Run(name, func(t *testing.T) {
			prefix := strings.ReplaceAll(name, " ", "-")
			var requests []ratelimit.Request
			for i := range 600 {
				requests = append(requests, ratelimit.Request{Key: fmt.Sprint("many", i), N: 1 + i%2})
			}
			l := ratelimit.Must(ratelimit.NewSlidingWindow(client.(ratelimit.Client), 5, 24*time.Hour, ratelimit.WithPrefix(prefix)))
			for _, i := range []int{7, 300} {
				_ = l.Reset(ctx, requests[i].Key)
				_ = client.SAdd(ctx, prefix+":default:slidingwindow-hash{"+requests[i].Key+"}", "x").Err() // on another node it is an error
			}
			for i, a := range l.TryAcquireMany(ctx, requests) {
				switch {
				case name == "a node of a cluster":
				case i == 7 || i == 300:
					require.ErrorIs(t, a.Err, ratelimit.ErrCorruptState)
				default:
					require.NoError(t, a.Err)
					require.Equal(t, 4-i%2, a.Result.Remaining)
				}
			}
		})
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	l := ratelimit.Must(ratelimit.NewTokenBucket(limitertest.Offline(t), ratelimit.PerHour(1), 2))
	require.Empty(t, l.TryAcquireMany(ctx, nil))
	answers := l.TryAcquireMany(ended, []ratelimit.Request{{Key: "k", N: 1}, {Key: "", N: 1}})
	require.ErrorIs(t, answers[0].Err, context.Canceled)
	require.ErrorIs(t, answers[1].Err, ratelimit.ErrInvalidKey)
	answers = new(ratelimit.TokenBucket).TryAcquireMany(ctx, []ratelimit.Request{{Key: "k", N: 1}})
	require.ErrorIs(t, answers[0].Err, ratelimit.ErrInvalidConfig)
}

package ratelimit

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/redisexec"
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// allocationStage is an empty server, and a context that can be cancelled.
func allocationStage(t *testing.T) (*redis.Client, context.Context) {
	if raceflag.Enabled {
		t.Skip("the race detector makes sync.Pool forget")
	}
	client := redistest.Shared(t).Client(t)
	require.NoError(t, client.FlushAll(ctx).Err()) // other tests leave other states there
	within, cancel := context.WithCancel(ctx)
	t.Cleanup(cancel)
	return client, within
}

// TestAllocationsOfALoneCall, on a real server: miniredis would allocate in this process.
func TestAllocationsOfALoneCall(t *testing.T) {
	client, within := allocationStage(t)
	for _, merging := range [][]Option{nil, {WithoutMerging()}} {
		l := Must(NewTokenBucket(client, PerMinute(1), 1_000_000, merging...))
		for _, test := range []struct {
			ctx  context.Context
			want float64
			what string
		}{
			{ctx, 5, "the context never ends"},
			{within, 7, "the context can be cancelled"},
		} {
			allocs := testing.AllocsPerRun(1000, func() {
				_, err := l.TryAcquire(test.ctx, "user:1")
				require.NoError(t, err)
			})
			require.LessOrEqual(t, allocs, test.want, "%s; unmerged: %v", test.what, merging != nil)
		}
	}
}

// TestWhatALoneOperationAllocates counts also what go-redis allocates, for contexts that can be
// cancelled.
func TestWhatALoneOperationAllocates(t *testing.T) {
	client, ctx := allocationStage(t)
	l := Must(NewTokenBucket(client, PerSecond(1_000_000), 1_000_000))
	f := Must(NewInFlight(client, 1000, time.Minute))
	for _, test := range []struct {
		name string
		want float64
		call func() error
	}{
		{"TryAcquireUpTo", 12, func() error {
			_, _, err := l.TryAcquireUpTo(ctx, "user:1", 2)
			return err
		}},
		{"Charge", 12, func() error {
			_, err := l.Charge(ctx, "user:1", 2)
			return err
		}},
		{"Credit", 12, func() error {
			_, err := l.Credit(ctx, "user:1", 2)
			return err
		}},
		{"Estimate and Settle", 24, func() error {
			ticket, _, err := l.Estimate(ctx, "user:1", 10)
			if err != nil {
				return err
			}
			return ticket.Settle(ctx, 7)
		}},
		{"Reserve", 24, func() error {
			_, err := l.Reserve(ctx, "user:1", 1, time.Minute)
			return err
		}},
		{"a hold and its release", 24, func() error {
			hold, _, err := f.TryAcquire(ctx, "user:1")
			if err != nil {
				return err
			}
			return hold.Release(ctx)
		}},
	} {
		allocs := testing.AllocsPerRun(1000, func() { require.NoError(t, test.call()) })
		require.LessOrEqual(t, allocs, test.want, test.name)
	}
}

// TestEveryLimiterSaysWhatMergedCallsCost, or a batch of its calls would have no bound.
func TestEveryLimiterSaysWhatMergedCallsCost(t *testing.T) {
	client := redis.NewClient(&redis.Options{})
	t.Cleanup(func() { _ = client.Close() })
	log := func(limit int, rules int, opts ...Option) *core {
		var all []Rule
		for r := range rules {
			all = append(all, Rule{limit - rules + 1 + r, time.Duration(1+r) * time.Hour})
		}
		return &Must(NewSlidingLog(client, all, opts...)).core
	}
	window := func(opts ...Option) *core {
		return &Must(NewSlidingWindow(client, 10_000, time.Hour, opts...)).core
	}
	for _, test := range []struct {
		name string
		core *core
		want redisexec.Cost
	}{
		{"fixed window", &Must(NewFixedWindow(client, 10, time.Hour)).core, redisexec.Cost{Key: 6, Run: 1}},
		{"fixed window, aligned", &Must(NewFixedWindow(client, 10, time.Hour, WithAlignment(0))).core, redisexec.Cost{Key: 8, Run: 1}},
		{"token bucket", &Must(NewTokenBucket(client, PerSecond(1), 10)).core, redisexec.Cost{Key: 8, Run: 1}},
		{"token bucket in steps", &Must(NewTokenBucket(client, PerSecond(1), 10, WithRefillEvery(time.Second))).core, redisexec.Cost{Key: 8, Run: 1}},
		{"leaky bucket", &Must(NewLeakyBucket(client, PerSecond(1), 10)).core, redisexec.Cost{Key: 8, Run: 1}},
		{"Hash", window(WithStorage(StorageHash)), redisexec.Cost{Key: 15, Run: 40, Back: 120}},
		{"List", window(), redisexec.Cost{Key: 15, Run: 40, Back: 120}},
		{"ZSet", window(WithStorage(StorageZSet)), redisexec.Cost{Key: 12, Run: 10, Permit: 3, Back: 45}},
		{"a log", log(249_999, 1), redisexec.Cost{Key: 15, Run: 40, Back: 120}},
		{"ten rules", log(249_999, 10), redisexec.Cost{Key: 240, Run: 400, Back: 120}},
		{"a long log", log(250_000, 1), redisexec.Cost{Key: 15, Run: 80, Back: 240}},
		{"as long as any", log(100_000_000, 1), redisexec.Cost{Key: 15, Run: 200, Back: 600}},
		{"merged to a minute", log(100_000_000, 1, WithResolution(time.Minute)), redisexec.Cost{Key: 15, Run: 40, Back: 120}},
	} {
		require.Equal(t, test.want, test.core.exec.Cost, test.name)
	}
}

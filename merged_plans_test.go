package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/fakes"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// TestPlansAreMerged: limiters of one name and of different limits, and their reservations, estimates
// and charges, are decided together, each by its own limit.
func TestPlansAreMerged(t *testing.T) {
	client := redistest.Shared(t).Client(t)
	require.NoError(t, client.FlushAll(ctx).Err())
	var scripts atomic.Int64 // executions
	client.AddHook(fakes.Hook{Command: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		if fakes.IsScript(cmd) {
			scripts.Add(1)
		}
		return next(ctx, cmd)
	}})
	const plans, callers, calls = 40, 64, 60
	var limiters []*ratelimit.TokenBucket
	for i := range plans {
		l := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerHour(1), 5+i, ratelimit.WithPrefix(t.Name())))
		require.NoError(t, ratelimit.Preload(ctx, ratelimit.ClaimOf(l, "k", 1)))
		limiters = append(limiters, l)
	}
	scripts.Store(0)
	var allowed [plans]atomic.Int64
	var group sync.WaitGroup
	for caller := range callers {
		group.Go(func() {
			for call := range calls {
				plan := (caller*7 + call) % plans
				l, key := limiters[plan], fmt.Sprint("user", plan)
				var r ratelimit.Result
				var err error
				switch call % 3 {
				case 0:
					r, err = l.TryAcquire(ctx, key)
				case 1:
					_, r, err = l.Estimate(ctx, key, 1)
				case 2:
					var reservation *ratelimit.Reservation
					if reservation, err = l.Reserve(ctx, key, 1, 0); err == nil {
						r = reservation.Result()
					} else if errors.Is(err, ratelimit.ErrWaitTooLong) {
						err = nil
					}
				}
				if err != nil {
					t.Error(err)
					return
				}
				if r.Allowed {
					allowed[plan].Add(1)
				}
			}
		})
	}
	group.Wait()
	for plan := range plans {
		require.EqualValues(t, 5+plan, allowed[plan].Load(), "plan %d", plan)
	}
	require.Less(t, scripts.Load(), int64(callers*calls/2), "calls of different plans were sent together")
}

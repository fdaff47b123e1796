package ratelimit_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// TestManyCallersForLong lets 64 goroutines call what keeps memory of its own, with every operation, callers who leave and
// keys that nobody calls again: for the race detector, and two minutes each with RATELIMIT_LONG. What they were allowed of
// one key is at most what its rule allows.
func TestManyCallersForLong(t *testing.T) {
	const rate, burst, callers = 1000, 400, 64
	length := 150 * time.Millisecond
	if limitertest.Rounds(2, 1) > 1 {
		length = 2 * time.Minute
	}
	client := redistest.Shared(t).Client(t)
	name := ratelimit.WithName(fmt.Sprint("long", rand.Uint64()))
	bucket := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(rate), burst, name))
	fair := ratelimit.Must(ratelimit.NewFairTokenBucket(client, ratelimit.PerSecond(rate), burst, name))
	heavier := ratelimit.Must(fair.Weight(3))
	leased := func() *ratelimit.Leased {
		return ratelimit.Must(ratelimit.NewLeased(bucket, ratelimit.WithMaxKeys(64)))
	}
	for what, limiters := range map[string][]ratelimit.Limiter{
		"Leased":    {leased(), leased(), ratelimit.Must(ratelimit.NewDenyCache(leased()))},
		"DenyCache": {ratelimit.Must(ratelimit.NewDenyCache(bucket, ratelimit.WithMaxKeys(64))), bucket},
		"fair":      {fair, heavier, ratelimit.Must(ratelimit.NewDenyCache(fair))},
	} {
		t.Run(what, func(t *testing.T) {
			hot := "{" + what + "}:hot"
			begin := time.Now()
			var allowed, calls atomic.Int64
			var running sync.WaitGroup
			for range callers {
				running.Go(func() {
					for time.Since(begin) < length {
						n := callAny(limiters[rand.IntN(len(limiters))], hot, "{other "+what+"}:", rand.IntN(100))
						allowed.Add(int64(n))
						calls.Add(1)
					}
				})
			}
			running.Wait()
			took := time.Since(begin)
			for _, l := range limiters {
				if l, ok := l.(*ratelimit.Leased); ok {
					require.NoError(t, l.Close(ctx))
				}
			}
			t.Logf("%d calls, %d permits in %v", calls.Load(), allowed.Load(), took)
			require.LessOrEqual(t, float64(allowed.Load()), burst+rate*took.Seconds()+1)
			require.Positive(t, allowed.Load())
		})
	}
}

// callAny makes a call, and returns how many permits of the key hot it was allowed.
func callAny(l ratelimit.Limiter, hot, others string, what int) int {
	ctx := ctx
	if what%10 == 0 {
		soon, cancel := context.WithTimeout(ctx, time.Duration(rand.IntN(300))*time.Microsecond)
		defer cancel()
		ctx = soon
	}
	other, settler := fmt.Sprint(others, rand.IntN(200)), l.(ratelimit.Settler)
	switch {
	case what < 60:
		n := 1 + what%3
		if r, err := l.TryAcquireN(ctx, hot, n); err == nil && r.Allowed {
			return n
		}
	case what < 65:
		if ticket, _, err := settler.Estimate(ctx, hot, 5); err == nil && ticket != nil {
			_ = ticket.Settle(ctx, 5)
			return 5
		}
	case what < 70:
		if ticket, _, err := settler.Estimate(ctx, other, 5); err == nil && ticket != nil {
			_ = ticket.Settle(ctx, 1)
		}
	case what < 75:
		if all, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(l, hot, 2)); err == nil && all.Allowed {
			return 2
		}
	case what < 80:
		_, _ = l.Peek(ctx, hot)
	case what < 83:
		_, _ = settler.Charge(ctx, other, 1)
	case what < 85:
		_ = l.Reset(ctx, other)
	default:
		_, _ = l.TryAcquire(ctx, other)
	}
	return 0
}

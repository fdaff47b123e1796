package ratelimit_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// TestPermitsTakenByManyCallersAddUp: many callers ask at the same time for random numbers
// of permits, and some give up. Each allowed call takes permits of its own, none are lost,
// and Redis has counted what was taken and at most what was given up in addition. The
// clock stands still, so that nothing comes back.
func TestPermitsTakenByManyCallersAddUp(t *testing.T) {
	const limit, callers, each = 1000, 200, 20
	client := redistest.Shared(t).Client(t)
	h := limitertest.NewClock()
	rng := model.Seeded(limitertest.Seed(t))
	for _, build := range []func(...ratelimit.Option) (ratelimit.Limiter, error){
		func(o ...ratelimit.Option) (ratelimit.Limiter, error) {
			return ratelimit.NewFixedWindow(client, limit, time.Hour, o...)
		},
		func(o ...ratelimit.Option) (ratelimit.Limiter, error) {
			return ratelimit.NewSlidingWindow(client, limit, time.Hour, o...)
		},
		func(o ...ratelimit.Option) (ratelimit.Limiter, error) {
			return ratelimit.NewSlidingLog(client, []ratelimit.Rule{{limit, time.Hour}}, o...)
		},
		func(o ...ratelimit.Option) (ratelimit.Limiter, error) {
			return ratelimit.NewTokenBucket(client, ratelimit.PerHour(1), limit, o...)
		},
	} {
		for _, keys := range []int{1, 7, 300} {
			for _, neverGivesUp := range []bool{true, false} {
				l, err := build(ratelimit.WithClock(h.Now), ratelimit.WithPrefix(fmt.Sprint("many", rng.Uint64())))
				require.NoError(t, err)
				c := &manyCalls{l: l, neverGivesUp: neverGivesUp}
				var wg sync.WaitGroup
				for range callers {
					random := model.Seeded(rng.Uint64())
					wg.Go(func() {
						for range each {
							c.call(t, fmt.Sprint(random.IntN(keys)), 1+random.IntN(3), time.Duration(random.IntN(3000))*time.Microsecond)
						}
					})
				}
				wg.Wait()
				for key := range keys {
					c.addUp(t, fmt.Sprint(key), limit)
				}
			}
		}
	}
}

// manyCalls is what many callers were answered.
type manyCalls struct {
	l            ratelimit.Limiter
	neverGivesUp bool

	mu     sync.Mutex
	taken  map[string][]taken // by key
	gaveUp map[string]int     // permits
}

// A taken is the permits left before an allowed call and after it.
type taken struct{ before, after int }

func (c *manyCalls) call(t *testing.T, key string, n int, timeout time.Duration) {
	within, cancel := ctx, context.CancelFunc(func() {})
	if !c.neverGivesUp && timeout%2 == 0 {
		within, cancel = context.WithTimeout(ctx, timeout)
	}
	defer cancel()
	r, err := c.l.TryAcquireN(within, key, n)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.taken == nil {
		c.taken, c.gaveUp = map[string][]taken{}, map[string]int{}
	}
	switch {
	case err != nil && within == ctx:
		t.Errorf("%s: %v", key, err)
	case err != nil:
		c.gaveUp[key] += n
	case r.Allowed:
		c.taken[key] = append(c.taken[key], taken{r.Remaining + n, r.Remaining})
	case r.Remaining >= n:
		t.Errorf("%s: %d permits denied: %+v", key, n, r)
	}
}

func (c *manyCalls) addUp(t *testing.T, key string, limit int) {
	t.Helper()
	r, err := c.l.Peek(ctx, key) // calls that were given up may still be on their way
	require.NoError(t, err)
	left := r.Remaining
	inAll, at := 0, limit
	spans := c.taken[key]
	slices.SortFunc(spans, func(a, b taken) int { return b.before - a.before })
	for _, s := range spans {
		require.LessOrEqual(t, s.before, at, "%s: permits were taken twice", key)
		if c.gaveUp[key] == 0 {
			require.Equal(t, at, s.before, "%s: permits are lost", key)
		}
		inAll += s.before - s.after
		at = s.after
	}
	require.GreaterOrEqual(t, limit-left, inAll, key)
	require.LessOrEqual(t, limit-left, inAll+c.gaveUp[key], key)
}

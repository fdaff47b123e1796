package ratelimit_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
	"github.com/tryacquire/ratelimit/simulate"
)

// drawLimitsOfCalls draws hosts, each with a bucket of its own whose limits come with each call. With own, some of the
// hosts have a clock of their own.
func drawLimitsOfCalls(t *testing.T, s *limitertest.Stage, rng *rand.Rand, own bool) *contest {
	t.Helper()
	families := limitertest.Families()
	families = slices.DeleteFunc(families, func(f limitertest.Family) bool { return !strings.HasPrefix(f.Name, "TokenBucket") })
	skew := []time.Duration{10 * time.Microsecond, time.Millisecond, time.Second, 10 * time.Second}[rng.IntN(4)]
	var all []*configuration
	servers := 0
	for range 1 + rng.IntN(3) {
		host := &configuration{}
		var opts []ratelimit.Option
		if own && rng.IntN(3) > 0 {
			host.ahead = time.Duration(rng.Int64N(int64(skew))).Truncate(time.Microsecond)
			host.late = time.Duration(rng.Int64N(1 + int64(skew)*int64(rng.IntN(2)))).Truncate(time.Microsecond)
			opts = host.ownClock(2 * skew)
		} else {
			servers++
		}
		if rng.IntN(2) == 0 {
			opts = append(opts, ratelimit.WithExactReturns())
		}
		family := families[rng.IntN(len(families))]
		var buckets *ratelimit.TokenBucket
		var first simulate.TokenBucket
		for range 1 + rng.IntN(3) {
			p, err := family.Draw(rng, s.Client)
			require.NoError(t, err)
			of := p.Simulated.(simulate.TokenBucket)
			if buckets == nil {
				if first = of; of.RefillEvery > 0 {
					opts = append(opts, ratelimit.WithRefillEvery(of.RefillEvery))
				}
				if of.Aligned {
					opts = append(opts, ratelimit.WithAlignment(of.Offset))
				}
				buckets = ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(1), 1, opts...))
			} else if of.RefillEvery != first.RefillEvery || of.Aligned != first.Aligned || of.Offset != first.Offset {
				continue
			}
			if len(all) > 0 && (p.Bound.Window > 1000*all[0].bound.Window || all[0].bound.Window > 1000*p.Bound.Window) {
				continue // one would never meet what the other does
			}
			r := *host
			r.about, r.most, r.bound = family.Name+" "+p.About, p.Model().Max(), p.Bound
			r.limiter = ratelimit.Must(buckets.With(of.Rate, of.Burst))
			all = append(all, &r)
		}
	}
	c := contestOf(t, s, rng, all...)
	c.beyond = c.skew() > 0 && servers > 0 // a limiter without WithClock allows for no skew
	return c
}

// together makes calls of several configurations by the server's clock at the same time, so that executions have
// calls of several.
func (c *contest) together(t *testing.T) {
	t.Helper()
	by, n := make([]int, 24), make([]int, 24)
	results, errs := make([]ratelimit.Result, len(by)), make([]error, len(by))
	before := c.raw(t)
	var wg sync.WaitGroup
	for i := range by {
		by[i] = c.rng.IntN(len(c.all))
		n[i] = c.cost(c.all[by[i]], ratelimit.Result{})
		wg.Go(func() { results[i], errs[i] = c.all[by[i]].limiter.TryAcquireN(ctx, "k", n[i]) })
	}
	wg.Wait()
	c.steps = append(c.steps, fmt.Sprintf("%v at %d, together, for %v: %+v", by, c.Now.UnixMicro(), n, results))
	allowed := false
	for i, r := range results {
		require.NoError(t, errs[i])
		if r.Allowed {
			allowed = true
			c.latest = max(c.latest, c.Now.UnixMicro())
			c.allowedCalls = append(c.allowedCalls, limitertest.AllowedCall{At: c.Now.UnixMicro(), Instant: c.latest, By: by[i], N: n[i]})
		}
		if r.RetryAfter > c.longest() || r.RetryAfter < 0 || r.Allowed != (r.RetryAfter == 0) {
			c.fail(t, "a wait of %v", r.RetryAfter)
		}
		if r.Remaining < 0 || r.Remaining > r.Limit || r.ResetAfter < r.RetryAfter || r.Limit != c.all[by[i]].most {
			c.fail(t, "fields beyond their range")
		}
	}
	if !allowed && c.raw(t) != before {
		c.fail(t, "denials write nothing; before them:\n%s", before)
	}
}

// TestLimitsOfEachCallOnOneKey: guarantees 2, 4, 7 and 8 for limits that come with each call, random ones, of hosts with
// clocks of their own, alone and in one execution.
func TestLimitsOfEachCallOnOneKey(t *testing.T) {
	for server, stage := range map[string]struct {
		open         func(t testing.TB) *limitertest.Stage
		rounds, full int
	}{
		"miniredis": {limitertest.OnMiniredis, 20, 400},
		"Redis":     {limitertest.OnHeldRedis, 8, 200},
	} {
		t.Run(server, func(t *testing.T) {
			s := stage.open(t)
			rng := model.Seeded(limitertest.Seed(t))
			for range limitertest.Rounds(stage.full, stage.rounds) {
				drawLimitsOfCalls(t, s, rng, true).play(t, 40)
				c := drawLimitsOfCalls(t, s, rng, false)
				for c.play(t, 5); len(c.steps) < 40 && c.Now.Before(lastDay); c.play(t, 5) {
					c.together(t)
				}
				c.settle(t)
			}
		})
	}
}

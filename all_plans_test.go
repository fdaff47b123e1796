package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/fakes"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// A digestCounter counts the executions of each script.
type digestCounter struct {
	mu sync.Mutex // guards of
	of map[string]int
}

func (c *digestCounter) hook() redis.Hook {
	return fakes.Hook{Command: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		if cmd.Name() == "evalsha" {
			c.mu.Lock()
			c.of[fmt.Sprint(cmd.Args()[1])]++
			c.mu.Unlock()
		}
		return next(ctx, cmd)
	}}
}

// all is the number of executions since the last call of it, and ran how many were of these scripts.
func (c *digestCounter) all(digests ...string) (all, ran int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.of {
		all += n
	}
	for _, digest := range digests {
		ran += c.of[digest]
	}
	clear(c.of)
	return all, ran
}

// A crowdOfPlans is callers of many plans, each with a user of its own, beside limits for all users.
type crowdOfPlans struct {
	client  *redis.Client
	scripts *digestCounter
	plans   []*ratelimit.TokenBucket // plan i allows 5 + i
	all     *ratelimit.FixedWindow
	running *ratelimit.InFlight
}

const (
	crowdPlans   = 40
	crowdCallers = 64
	crowdCalls   = 60
)

func newCrowdOfPlans(t *testing.T, opts ...ratelimit.Option) *crowdOfPlans {
	c := &crowdOfPlans{client: redistest.Start(t).Client(t), scripts: &digestCounter{of: map[string]int{}}}
	c.client.AddHook(c.scripts.hook())
	for i := range crowdPlans {
		c.plans = append(c.plans, ratelimit.Must(ratelimit.NewTokenBucket(c.client, ratelimit.PerHour(1), 5+i, opts...)))
	}
	c.all = ratelimit.Must(ratelimit.NewFixedWindow(c.client, 1_000_000, time.Hour, opts...))
	c.running = ratelimit.Must(ratelimit.NewInFlight(c.client, 10_000, time.Hour, opts...))
	return c
}

// run makes calls of all plans at once, and returns how many of each plan were allowed. call returns
// whether the call of a plan was.
func (c *crowdOfPlans) run(t *testing.T, call func(plan int, user string) (bool, error)) []int {
	t.Helper()
	var allowed [crowdPlans]atomic.Int64
	var callers sync.WaitGroup
	for caller := range crowdCallers {
		callers.Go(func() {
			for i := range crowdCalls {
				plan := (caller*7 + i) % crowdPlans
				ok, err := call(plan, "{t}"+strconv.Itoa(plan))
				if err != nil {
					t.Error(err)
					return
				}
				if ok {
					allowed[plan].Add(1)
				}
			}
		})
	}
	callers.Wait()
	var all []int
	for i := range allowed {
		all = append(all, int(allowed[i].Load()))
	}
	return all
}

// limits is what each plan allows.
func (c *crowdOfPlans) limits() (all []int, sum int) {
	for i := range crowdPlans {
		all, sum = append(all, 5+i), sum+5+i
	}
	return all, sum
}

// TestPlansBesideALimitForAllAreMerged: calls of several plans go in one execution, which reads and writes
// the key of all users once, and each is decided by its own plan. So it is with the server's clock and
// with one clock of the callers.
func TestPlansBesideALimitForAllAreMerged(t *testing.T) {
	for name, opts := range map[string][]ratelimit.Option{"server's clock": nil, "caller's clock": {ratelimit.WithClock(time.Now)}} {
		t.Run(name, func(t *testing.T) {
			c := newCrowdOfPlans(t, opts...)
			claims := func(plan int, user string) []ratelimit.Claim {
				return []ratelimit.Claim{ratelimit.ClaimOf(c.plans[plan], user, 1), ratelimit.ClaimOf(c.all, "{t}", 1)}
			}
			require.NoError(t, ratelimit.Preload(ctx, claims(0, "k")...))
			require.NoError(t, c.client.ConfigResetStat(ctx).Err())
			c.scripts.all()
			allowed := c.run(t, func(plan int, user string) (bool, error) {
				r, err := ratelimit.TryAcquireAll(ctx, claims(plan, user)...)
				return r.Allowed, err
			})
			limits, sum := c.limits()
			require.Equal(t, limits, allowed)
			require.Equal(t, 1_000_000-sum, must(t)(c.all.Peek(ctx, "{t}")).Remaining)
			executions, common := c.scripts.all(ratelimit.DigestsOfGroup(t, claims(0, "k")...)[2])
			require.Less(t, executions, crowdCallers*crowdCalls) // how many less, the bench says: a busy machine sends some calls alone
			require.Positive(t, common, "of %d", executions)
			require.Zero(t, redistest.WholeScripts(t, c.client), "all scripts were loaded before")
		})
	}
}

// TestEstimatesAndHoldsOfPlansAreMerged, and what they have taken can be given back. Scripts that the
// server has forgotten are sent again.
func TestEstimatesAndHoldsOfPlansAreMerged(t *testing.T) {
	c := newCrowdOfPlans(t)
	var calls, settled atomic.Int64
	allowed := c.run(t, func(plan int, user string) (bool, error) {
		if calls.Add(1)%500 == 0 {
			if err := c.client.ScriptFlush(ctx).Err(); err != nil {
				return false, err
			}
		}
		r, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(c.plans[plan], user, 1).Estimate(), ratelimit.ClaimHold(c.running, "{t}", 1), ratelimit.ClaimOf(c.all, "{t}", 1))
		if err != nil || !r.Allowed {
			return false, err
		}
		if plan == 0 && settled.Add(1) == 1 { // this permit can be taken once more
			err = r.Finish(ctx, func(ratelimit.PartResult) int { return 0 })
		} else {
			err = r.Finish(ctx, nil)
		}
		return true, err
	})
	limits, sum := c.limits()
	limits[0]++
	require.Equal(t, limits, allowed)
	require.Equal(t, 1_000_000-sum-1, must(t)(c.all.Peek(ctx, "{t}")).Remaining)
	require.Equal(t, 10_000, must(t)(c.running.Peek(ctx, "{t}")).Remaining)
	executions, _ := c.scripts.all()
	require.Less(t, executions, crowdCallers*crowdCalls)
}

// TestADamagedKeyOfOnePlanFailsItsCallsOnly: the calls of other plans in the same executions are decided.
func TestADamagedKeyOfOnePlanFailsItsCallsOnly(t *testing.T) {
	c := newCrowdOfPlans(t)
	require.NoError(t, c.client.Set(ctx, ratelimit.NameOf(c.plans[7], "{t}7"), "damaged", 0).Err())
	var asked, corrupt atomic.Int64
	allowed := c.run(t, func(plan int, user string) (bool, error) {
		if plan == 7 {
			asked.Add(1)
		}
		r, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(c.plans[plan], user, 1), ratelimit.ClaimOf(c.all, "{t}", 1))
		if plan == 7 && errors.Is(err, ratelimit.ErrCorruptState) {
			corrupt.Add(1)
			return false, nil
		}
		return r.Allowed, err
	})
	limits, sum := c.limits()
	limits[7] = 0
	require.Equal(t, limits, allowed)
	require.Equal(t, asked.Load(), corrupt.Load())
	require.Equal(t, 1_000_000-(sum-12), must(t)(c.all.Peek(ctx, "{t}")).Remaining)
}

// TestLimitsThatComeWithEachCallAreMergedWithOthers, when each call has another limit and user.
func TestLimitsThatComeWithEachCallAreMergedWithOthers(t *testing.T) {
	c := newCrowdOfPlans(t)
	tenants := ratelimit.Must(ratelimit.NewTokenBucket(c.client, ratelimit.PerSecond(10), 20, ratelimit.WithName("tenant")))
	require.NoError(t, ratelimit.Preload(ctx, ratelimit.ClaimOf(c.all, "{t}", 1), ratelimit.ClaimOf(ratelimit.Must(tenants.With(ratelimit.PerHour(1), 1)), "{t}", 1)))
	c.scripts.all()
	var next atomic.Int64
	c.run(t, func(int, string) (bool, error) {
		n := int(next.Add(1))
		tenant, err := tenants.With(ratelimit.PerHour(1), n)
		if err != nil {
			return false, err
		}
		want := 1 + rand.IntN(n)
		r, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(c.all, "{t}", 1), ratelimit.ClaimOf(tenant, "{t}"+strconv.Itoa(n), want))
		if err == nil && (!r.Allowed || r.Parts[1].Result.Remaining != n-want) {
			err = fmt.Errorf("%d of %d: %+v", want, n, r)
		}
		return true, err
	})
	executions, _ := c.scripts.all()
	require.Less(t, executions, crowdCallers*crowdCalls)
	require.Equal(t, 1_000_000-crowdCallers*crowdCalls, must(t)(c.all.Peek(ctx, "{t}")).Remaining)
}

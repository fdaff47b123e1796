package ratelimit_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

func TestInFlightWithMakesEachLimitOnce(t *testing.T) {
	client := limitertest.Offline(t)
	opts := []ratelimit.Option{ratelimit.WithName("jobs")}
	jobs := ratelimit.Must(ratelimit.NewInFlight(client, 10, time.Minute, opts...))
	opts[0] = ratelimit.WithName("b")
	first := ratelimit.Must(jobs.With(3, time.Minute))
	require.Equal(t, "jobs", first.Name())
	require.Same(t, first, ratelimit.Must(jobs.With(3, time.Minute)))
	require.NotSame(t, first, ratelimit.Must(jobs.With(3, time.Second)))
	local := ratelimit.Must(ratelimit.NewLocalInFlight(10, ratelimit.WithName("jobs")))
	require.Equal(t, "jobs", ratelimit.Must(local.With(3)).Name())

	for says, err := range map[string]error{
		"the client is nil":           second(ratelimit.NewInFlight(nil, 10, time.Minute)),
		"option 1 is nil":             second(ratelimit.NewInFlight(client, 10, time.Minute, nil)),
		"WithHeadroom":                second(ratelimit.NewInFlight(client, 10, time.Minute, ratelimit.WithHeadroom(1))),
		"WithName: ":                  second(ratelimit.NewLocalInFlight(10, ratelimit.WithName("a:b"))),
		"the limiter was not made":    second((&ratelimit.InFlight{}).With(1, time.Second)),
		"was not made":                second((&ratelimit.LocalInFlight{}).With(1)),
		"the limit is 0; it must be":  second(jobs.With(0, time.Second)),
		"the limit is -1; it must be": second(local.With(-1)),
		"the lease is 0s":             second(jobs.With(1, 0)),
	} {
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig, says)
		require.ErrorContains(t, err, says)
	}
}

// TestALimitOfHoldsThatChanges: each limit counts what is held under any of them, on Redis, in memory, and in an outage; on its own
// and in a claim.
func TestALimitOfHoldsThatChanges(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	for _, where := range []string{"on Redis", "in memory", "in an outage"} {
		for _, claimed := range []bool{false, true} {
			s.Wipe(t)
			limit, held := 0, 0
			seen := ratelimit.WithObserver(func(_ context.Context, o ratelimit.Observation) {
				if o.HeldChange != 0 {
					held = o.Held
				}
			})
			shared := ratelimit.Must(ratelimit.NewInFlight(s.Client, 10, time.Minute, seen, ratelimit.WithName("jobs")))
			local := ratelimit.Must(ratelimit.NewLocalInFlight(10, seen))
			onRedis := ratelimit.Must(ratelimit.NewHoldChoice(func(context.Context, string) (ratelimit.Holder, error) { return shared.With(limit, time.Minute) }))
			inMemory := ratelimit.Must(ratelimit.NewHoldChoice(func(context.Context, string) (ratelimit.Holder, error) { return local.With(limit) }))
			dead := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1})
			defer dead.Close()
			down := ratelimit.Must(ratelimit.NewInFlight(dead, 100, time.Minute))
			h := map[string]ratelimit.Holder{
				"on Redis":     ratelimit.Must(ratelimit.NewHoldFallback(onRedis, inMemory)),
				"in memory":    inMemory,
				"in an outage": ratelimit.Must(ratelimit.NewHoldFallback(down, inMemory)),
			}[where]
			take := func(l, n int) (*ratelimit.Hold, ratelimit.Result) {
				t.Helper()
				limit = l
				if claimed {
					all, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimHold(h, "k", n), ratelimit.ClaimHold(h, "other", 1))
					require.NoError(t, err)
					if all.Allowed {
						require.NoError(t, all.Parts[1].Hold.Release(ctx))
					}
					return all.Parts[0].Hold, all.Parts[0].Result
				}
				hold, r, err := h.TryAcquireN(ctx, "k", n)
				require.NoError(t, err)
				return hold, r
			}
			first, r := take(5, 4)
			require.True(t, r.Allowed)
			require.Equal(t, []int{5, 1}, []int{r.Limit, r.Remaining}, where)
			none, r := take(3, 1)
			require.Nil(t, none)
			require.Equal(t, []int{3, 0}, []int{r.Limit, r.Remaining}, where)
			second, r := take(10, 2)
			require.Equal(t, []int{10, 4}, []int{r.Limit, r.Remaining}, where)
			require.Equal(t, 6, held, "of all limits together")
			require.NoError(t, first.Release(ctx))
			third, r := take(3, 1)
			require.Equal(t, []int{3, 0}, []int{r.Limit, r.Remaining}, where)
			require.NoError(t, second.Release(ctx))
			require.NoError(t, third.Release(ctx))
			require.Zero(t, held)
		}
	}
}

package ratelimit_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// A tenantLimit comes with each call.
type tenantLimit struct {
	rate  ratelimit.Rate
	burst int
}

// withEachCall is the limiters of limits that come with each call, on Redis and in memory, and what they pick now.
type withEachCall struct {
	now    tenantLimit
	shared *ratelimit.TokenBucket
	local  *ratelimit.LocalTokenBucket
}

func limitsWithEachCall(s *limitertest.Stage, opts ...ratelimit.Option) *withEachCall {
	opts = append(opts, ratelimit.WithName("tenant"), ratelimit.WithClock(func() time.Time { return s.Now }))
	return &withEachCall{
		shared: ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(10), 20, ratelimit.WithName("tenant"))),
		local:  ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(10), 20, opts...)),
	}
}

func (w *withEachCall) onRedis() ratelimit.Limiter {
	return ratelimit.Must(ratelimit.NewChoice(func(context.Context, string) (ratelimit.Limiter, error) {
		return w.shared.With(w.now.rate, w.now.burst)
	}))
}

func (w *withEachCall) inMemory() ratelimit.Limiter {
	return ratelimit.Must(ratelimit.NewChoice(func(context.Context, string) (ratelimit.Limiter, error) { return w.local.With(w.now.rate, w.now.burst) }))
}

func TestLocalTokenBucketsMakeEachLimitOnce(t *testing.T) {
	opts := []ratelimit.Option{ratelimit.WithName("tenant")}
	buckets := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(10), 20, opts...))
	opts[0] = ratelimit.WithEmptyStart()
	first := ratelimit.Must(buckets.With(ratelimit.PerSecond(10), 20))
	require.Equal(t, "tenant", first.Name())
	require.Same(t, first, ratelimit.Must(buckets.With(ratelimit.PerSecond(10), 20)))
	require.NotSame(t, first, ratelimit.Must(buckets.With(ratelimit.PerSecond(10), 21)))
	require.Equal(t, 19, must(t)(first.TryAcquire(ctx, "k")).Remaining)

	for says, err := range map[string]error{
		"option 1 is nil":            second(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(10), 20, nil)),
		"WithName: ":                 second(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(10), 20, ratelimit.WithName("a:b"))),
		"WithHeadroom":               second(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(10), 20, ratelimit.WithHeadroom(1))),
		"the limiter was not made":   second((&ratelimit.LocalTokenBucket{}).With(ratelimit.PerSecond(1), 1)),
		"the rate's Count is 0":      second(buckets.With(ratelimit.PerSecond(0), 1)),
		"the burst is 0; it must be": second(buckets.With(ratelimit.PerSecond(1), 0)),
	} {
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig, says)
		require.ErrorContains(t, err, says)
	}
}

// TestALimitThatChangesThroughEveryPolicy: a key goes on from what it has used, on Redis and in memory, on its own and in a claim.
func TestALimitThatChangesThroughEveryPolicy(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	none := limitertest.Composition{Name: "nothing", Around: func(_ testing.TB, _ *limitertest.Stage, l ratelimit.Limiter) ratelimit.Limiter { return l }}
	steps := []struct {
		limit tenantLimit
		n     int
		want  ratelimit.Result
	}{
		{tenantLimit{ratelimit.PerMinute(1), 10}, 6, ratelimit.Result{Allowed: true, Limit: 10, Window: 10 * time.Minute, Remaining: 4, ResetAfter: 6 * time.Minute}},
		{tenantLimit{ratelimit.PerSecond(1), 100}, 1, ratelimit.Result{Allowed: true, Limit: 100, Window: 100 * time.Second, Remaining: 93, ResetAfter: 7 * time.Second}},
		{tenantLimit{ratelimit.PerMinute(1), 5}, 1, ratelimit.Result{Limit: 5, Window: 5 * time.Minute, RetryAfter: 3 * time.Second, ResetAfter: 7 * time.Second}},
		{tenantLimit{ratelimit.PerMinute(1), 8}, 1, ratelimit.Result{Allowed: true, Limit: 8, Window: 8 * time.Minute, ResetAfter: 8 * time.Minute}},
	}
	for _, p := range append(policies, none) {
		for _, where := range []string{"on Redis", "in memory", "in memory, in an outage"} {
			for _, claimed := range []bool{false, true} {
				s.Wipe(t)
				w := limitsWithEachCall(s)
				var l ratelimit.Limiter
				switch where {
				case "on Redis":
					l = p.Around(t, s, w.onRedis())
				case "in memory":
					l = p.Around(t, s, w.inMemory())
				default:
					l = ratelimit.Must(ratelimit.NewFallback(failing, p.Around(t, s, w.inMemory())))
				}
				for i, step := range steps {
					w.now = step.limit
					r, err := ratelimit.Result{}, error(nil)
					if claimed {
						var all ratelimit.AllResult
						all, err = ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(l.(operator), "k", step.n), ratelimit.ClaimOf(l.(operator), "other", 1))
						if r = all.Result; err == nil {
							r = all.Parts[0].Result
						}
					} else {
						r, err = l.TryAcquireN(ctx, "k", step.n)
					}
					if where == "in memory, in an outage" && claimed && err != nil { // a user's limiter decides on its own
						require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
						break
					}
					require.NoError(t, err)
					r.Fallback = false
					require.Equal(t, step.want, r, "%s, %s, claimed %v, step %d", p.Name, where, claimed, i)
				}
			}
		}
	}
}

// TestTwoLimitsOfOneKeyInOneCall are a mistake, wherever they are decided: which of them would hold?
func TestTwoLimitsOfOneKeyInOneCall(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	w := limitsWithEachCall(s)
	holds := ratelimit.Must(ratelimit.NewLocalInFlight(10))
	for name, claims := range map[string][2]ratelimit.Claim{
		"on Redis":        {ratelimit.ClaimOf(ratelimit.Must(w.shared.With(ratelimit.PerSecond(1), 3)), "k", 1), ratelimit.ClaimOf(ratelimit.Must(w.shared.With(ratelimit.PerSecond(1), 4)), "k", 1)},
		"in memory":       {ratelimit.ClaimOf(ratelimit.Must(w.local.With(ratelimit.PerSecond(1), 3)), "k", 1), ratelimit.ClaimOf(ratelimit.Must(w.local.With(ratelimit.PerSecond(1), 4)), "k", 1)},
		"holds in memory": {ratelimit.ClaimHold(ratelimit.Must(holds.With(3)), "k", 1), ratelimit.ClaimHold(ratelimit.Must(holds.With(4)), "k", 1)},
	} {
		_, err := ratelimit.TryAcquireAll(ctx, claims[0], claims[1])
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig, name)
		require.ErrorContains(t, err, "claim the same key", name)
	}
	all, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(ratelimit.Must(w.local.With(ratelimit.PerSecond(1), 3)), "k", 1), ratelimit.ClaimOf(ratelimit.Must(w.local.With(ratelimit.PerSecond(1), 3)), "k", 1))
	require.NoError(t, err)
	require.Equal(t, 1, all.Remaining, "two claims by one limit are their sum")
}

// TestWhatThePrimaryPromisedIsOwedByLimitsWithEachCall: an outage begins without the permits of a reservation that is not due.
func TestWhatThePrimaryPromisedIsOwedByLimitsWithEachCall(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	w := limitsWithEachCall(s)
	w.now = tenantLimit{ratelimit.PerHour(1), 10}
	f := ratelimit.Must(ratelimit.NewFallback(w.onRedis(), w.inMemory()))
	require.True(t, must(t)(f.TryAcquireN(ctx, "k", 8)).Allowed)
	_, err := f.Reserve(ctx, "k", 3, 2*time.Hour)
	require.NoError(t, err)
	require.Equal(t, 7, must(t)(w.inMemory().Peek(ctx, "k")).Remaining)
}

// TestAnOutageOfLimitsWithEachCallBeginsWithTheLastAnswer, whichever limit it had.
func TestAnOutageOfLimitsWithEachCallBeginsWithTheLastAnswer(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	w := limitsWithEachCall(s, ratelimit.WithLastAnswers())
	f := ratelimit.Must(ratelimit.NewFallback(w.onRedis(), w.inMemory()))
	w.now = tenantLimit{ratelimit.PerHour(1), 10}
	must(t)(f.TryAcquireN(ctx, "k", 6))
	require.Equal(t, 4, must(t)(w.inMemory().Peek(ctx, "k")).Remaining)
	w.now = tenantLimit{ratelimit.PerMinute(1), 20}
	require.Equal(t, 14, must(t)(w.inMemory().Peek(ctx, "k")).Remaining)
	must(t)(f.TryAcquireN(ctx, "k", 4))
	require.Equal(t, 10, must(t)(w.inMemory().Peek(ctx, "k")).Remaining)
}

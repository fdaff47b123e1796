package ratelimit_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/fakes"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

func TestSettlingThroughADenyCache(t *testing.T) {
	for _, v := range limitertest.Variants() {
		t.Run(v.Name, func(t *testing.T) {
			s := limitertest.OnMiniredis(t)
			sent := 0
			client := fakes.Before(s.Client, func(context.Context, redis.Cmder) error { sent++; return nil })
			l, err := v.Build(client, s.Opts...)
			require.NoError(t, err)
			cache := ratelimit.Must(ratelimit.NewDenyCache(l))
			outer := ratelimit.Must(ratelimit.NewDenyCache(cache))
			if _, ok := l.(ratelimit.Settler); !ok { // an All
				_, _, err := outer.Estimate(ctx, v.Of("k"), 1)
				require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
				require.ErrorContains(t, err, "a *ratelimit.All cannot settle; give the claims of its limiters (Claims) to TryAcquireAll, with Claim.Estimate")
				return
			}

			ticket, r, err := outer.Estimate(ctx, v.Of("k"), 3)
			require.NoError(t, err)
			require.Equal(t, ratelimit.Result{Allowed: true, Limit: v.Limit, Window: v.Window, ResetAfter: v.Resets[2]}, r)
			taken, r, err := outer.TryAcquireUpTo(ctx, v.Of("k"), 2)
			require.NoError(t, err)
			require.Zero(t, taken)
			require.Equal(t, ratelimit.Result{Limit: v.Limit, Window: v.Window, RetryAfter: v.Retry, ResetAfter: v.Resets[2], ByShare: v.ByShare(1, 0)}, r)

			sent = 0 // from memory
			taken, r, err = outer.TryAcquireUpTo(ctx, v.Of("k"), 2)
			require.NoError(t, err)
			require.Zero(t, taken)
			require.False(t, r.Allowed)
			none, r, err := outer.Estimate(ctx, v.Of("k"), 2)
			require.NoError(t, err)
			require.Nil(t, none)
			require.False(t, r.Allowed)
			require.False(t, must(t)(outer.TryAcquire(ctx, v.Of("k"))).Allowed)
			require.Equal(t, v.Spare > 0, sent > 0, "a denial that others can end is not from memory")

			require.NoError(t, ticket.Settle(ctx, 1))
			taken, r, err = outer.TryAcquireUpTo(ctx, v.Of("k"), 3)
			require.NoError(t, err)
			require.Equal(t, 2, taken, "both caches have forgotten the denial")
			require.True(t, r.Allowed)
			none, _, err = outer.Estimate(ctx, v.Of("k"), 1)
			require.NoError(t, err)
			require.Nil(t, none)
			_, _, err = outer.Estimate(ctx, v.Of("k"), 4)
			require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
			require.NoError(t, v.Forget(cache, "k"))

			require.True(t, must(t)(outer.Charge(ctx, v.Of("k"), 7)).Allowed)
			for _, n := range []int{0, -1} {
				_, _, err = outer.Estimate(ctx, v.Of("k"), n)
				require.ErrorIs(t, err, ratelimit.ErrInvalidPermits)
				_, _, err = outer.TryAcquireUpTo(ctx, v.Of("k"), n)
				require.ErrorIs(t, err, ratelimit.ErrInvalidPermits)
				_, err = outer.Charge(ctx, v.Of("k"), n)
				require.ErrorIs(t, err, ratelimit.ErrInvalidPermits)
			}
			_, _, err = outer.Estimate(ctx, "", 1)
			require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
		})
	}
}

// plain is a user's limiter that can do nothing else.
type plain struct{ ratelimit.Limiter }

func TestOnlyWhatSettlesSettlesThroughADecorator(t *testing.T) {
	bucket := ratelimit.Must(ratelimit.NewTokenBucket(limitertest.Offline(t), ratelimit.PerSecond(1), 1))
	local := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1), 1))
	for want, l := range map[string]ratelimit.Limiter{
		"a ratelimit_test.plain cannot": plain{bucket},
		"a *ratelimit.All cannot":       ratelimit.Must(ratelimit.NewAll(bucket)),
		"not made by its constructor":   &ratelimit.TokenBucket{},
	} {
		cache := ratelimit.Must(ratelimit.NewDenyCache(ratelimit.Must(ratelimit.NewFallback(l, local))))
		_, _, err := cache.Estimate(ctx, "k", 1)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
		require.ErrorContains(t, err, want)
		_, err = cache.Charge(ctx, "k", 1)
		require.ErrorContains(t, err, want)
		_, _, err = cache.TryAcquireUpTo(ctx, "k", 1)
		require.ErrorContains(t, err, want)
	}
	for _, made := range []ratelimit.Settler{&ratelimit.DenyCache{}, new(ratelimit.Fallback), &ratelimit.Choice{}, new(ratelimit.Shadow)} {
		_, _, err := made.Estimate(ctx, "k", 1)
		require.ErrorContains(t, err, "not made by its constructor", "%T", made)
	}
}

// TestAnAllSettlesByItsClaims, as its error says.
func TestAnAllSettlesByItsClaims(t *testing.T) {
	client := limitertest.OnMiniredis(t).Client
	requests := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerHour(1), 10, ratelimit.WithName("requests")))
	tokens := ratelimit.Must(ratelimit.NewFixedWindow(client, 10, time.Hour, ratelimit.WithName("tokens")))
	all := ratelimit.Must(ratelimit.NewAll(requests, tokens))

	cache := ratelimit.Must(ratelimit.NewDenyCache(all))
	_, _, err := cache.Estimate(t.Context(), "k", 1)
	require.EqualError(t, err, "ratelimit: invalid configuration: a *ratelimit.All cannot settle; "+
		"give the claims of its limiters (Claims) to TryAcquireAll, with Claim.Estimate where the cost is settled; a policy then goes around each limiter, and its claims are those of the policy")
	require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)

	claims := all.Claims("k", 6)
	for i := range claims {
		claims[i] = claims[i].Estimate()
	}
	answer, err := ratelimit.TryAcquireAll(t.Context(), claims...)
	require.NoError(t, err)
	for _, part := range answer.Parts {
		require.NoError(t, part.Ticket.Settle(t.Context(), 2))
	}
	left := must(t)(all.Peek(t.Context(), "k"))
	require.Equal(t, 8, left.Remaining)
	require.True(t, must(t)(all.TryAcquireN(t.Context(), "k", left.Remaining)).Allowed)
	require.False(t, must(t)(all.TryAcquire(t.Context(), "k")).Allowed)
}

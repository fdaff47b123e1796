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

// counted is a client that counts its commands.
type counted struct {
	*redis.Client
	sent int
}

func (c *counted) Process(ctx context.Context, cmd redis.Cmder) error {
	c.sent++
	return c.Client.Process(ctx, cmd)
}

func TestSettlingThroughADenyCache(t *testing.T) {
	for _, v := range limitertest.Variants() {
		t.Run(v.Name, func(t *testing.T) {
			s := limitertest.OnMiniredis(t)
			client := &counted{Client: s.Client.(*redis.Client)}
			l, err := v.Build(client, s.Opts...)
			require.NoError(t, err)
			cache := ratelimit.Must(ratelimit.NewDenyCache(l))
			outer := ratelimit.Must(ratelimit.NewDenyCache(cache))
			settler, err := ratelimit.SettlerOf(outer)
			if _, ok := l.(ratelimit.Settler); !ok {
				require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
				return
			}
			require.NoError(t, err)
			taker, err := ratelimit.PartialTakerOf(outer)
			require.NoError(t, err)

			ticket, r, err := settler.Estimate(ctx, "k", 3)
			require.NoError(t, err)
			require.Equal(t, ratelimit.Result{Allowed: true, Limit: v.Limit, Window: v.Window, ResetAfter: v.Resets[2]}, r)
			taken, r, err := taker.TryAcquireUpTo(ctx, "k", 2)
			require.NoError(t, err)
			require.Zero(t, taken)
			require.Equal(t, ratelimit.Result{Limit: v.Limit, Window: v.Window, RetryAfter: v.Retry, ResetAfter: v.Resets[2]}, r)

			client.sent = 0 // from memory
			taken, r, err = taker.TryAcquireUpTo(ctx, "k", 2)
			require.NoError(t, err)
			require.Zero(t, taken)
			require.False(t, r.Allowed)
			none, r, err := settler.Estimate(ctx, "k", 2)
			require.NoError(t, err)
			require.Nil(t, none)
			require.False(t, r.Allowed)
			require.False(t, must(t)(outer.TryAcquire(ctx, "k")).Allowed)
			require.Zero(t, client.sent, "Redis was asked")

			require.NoError(t, ticket.Settle(ctx, 1))
			taken, r, err = taker.TryAcquireUpTo(ctx, "k", 3)
			require.NoError(t, err)
			require.Equal(t, 2, taken, "both caches have forgotten the denial")
			require.True(t, r.Allowed)
			none, _, err = settler.Estimate(ctx, "k", 1)
			require.NoError(t, err)
			require.Nil(t, none)
			_, _, err = settler.Estimate(ctx, "k", 4)
			require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
			require.NoError(t, cache.Reset(ctx, "k"))

			require.True(t, must(t)(settler.Charge(ctx, "k", 7)).Allowed)
			for _, n := range []int{0, -1} {
				_, _, err = settler.Estimate(ctx, "k", n)
				require.ErrorIs(t, err, ratelimit.ErrInvalidPermits)
				_, _, err = taker.TryAcquireUpTo(ctx, "k", n)
				require.ErrorIs(t, err, ratelimit.ErrInvalidPermits)
				_, err = settler.Charge(ctx, "k", n)
				require.ErrorIs(t, err, ratelimit.ErrInvalidPermits)
			}
			_, _, err = settler.Estimate(ctx, "", 1)
			require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
		})
	}
}

// own is a user's limiter around one of this package.
type own struct{ *ratelimit.TokenBucket }

func TestOnlyWhatSettlesIsASettler(t *testing.T) {
	bucket := ratelimit.Must(ratelimit.NewTokenBucket(limitertest.Offline(t), ratelimit.PerSecond(1), 1))
	log := ratelimit.Must(ratelimit.NewSlidingLog(limitertest.Offline(t), []ratelimit.Rule{{Limit: 1, Window: time.Second}}))
	local := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1), 1))
	fallback := ratelimit.Must(ratelimit.NewFallback(bucket, local))
	for _, l := range []ratelimit.Limiter{bucket, log, own{bucket}, &own{bucket}} {
		s, err := ratelimit.SettlerOf(l)
		require.NoError(t, err)
		require.Equal(t, l, s)
		p, err := ratelimit.PartialTakerOf(l)
		require.NoError(t, err)
		require.Equal(t, l, p)
	}
	for want, l := range map[string]ratelimit.Limiter{
		"*ratelimit.Fallback":                        fallback,
		"a *ratelimit.Fallback":                      ratelimit.Must(ratelimit.NewDenyCache(fallback)),
		"*ratelimit.LocalTokenBucket":                local,
		"the limiter is nil":                         nil,
		"the limiter was not made by its construct":  &ratelimit.DenyCache{},
		"limiter is nil":                             (*ratelimit.TokenBucket)(nil),
		"a limiter on Redis, or a DenyCache around ": fallback,
	} {
		_, err := ratelimit.SettlerOf(l)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
		require.ErrorContains(t, err, want)
		_, err = ratelimit.PartialTakerOf(l)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
		require.ErrorContains(t, err, want)
	}
}

// TestAnAllSettlesByItsClaims: the errors name what works in place of what does not.
func TestAnAllSettlesByItsClaims(t *testing.T) {
	client := limitertest.OnMiniredis(t).Client
	requests := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerHour(1), 10, ratelimit.WithName("requests")))
	tokens := ratelimit.Must(ratelimit.NewFixedWindow(client, 10, time.Hour, ratelimit.WithName("tokens")))
	all := ratelimit.Must(ratelimit.NewAll(requests, tokens))

	for _, l := range []ratelimit.Limiter{all, ratelimit.Must(ratelimit.NewDenyCache(all))} {
		_, err := ratelimit.SettlerOf(l)
		require.EqualError(t, err, "ratelimit: invalid configuration: SettlerOf: a *ratelimit.All cannot settle; "+
			"each of its limiters has a ticket of its own: give AcquireAll what All.Claims returns, each as Claim.Estimate")
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
		_, err = ratelimit.PartialTakerOf(l)
		require.EqualError(t, err, "ratelimit: invalid configuration: PartialTakerOf: a *ratelimit.All does not take a part of what is asked for; "+
			"its Peek says how many permits are left: ask TryAcquireN for as many")
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
	}

	claims := all.Claims("k", 6)
	for i := range claims {
		claims[i] = claims[i].Estimate()
	}
	answer, err := ratelimit.AcquireAll(t.Context(), claims...)
	require.NoError(t, err)
	for _, part := range answer.Parts {
		require.NoError(t, part.Ticket.Settle(t.Context(), 2))
	}
	left := must(t)(all.Peek(t.Context(), "k"))
	require.Equal(t, 8, left.Remaining)
	require.True(t, must(t)(all.TryAcquireN(t.Context(), "k", left.Remaining)).Allowed)
	require.False(t, must(t)(all.TryAcquire(t.Context(), "k")).Allowed)
}

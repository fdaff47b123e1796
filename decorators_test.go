package ratelimit_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/fakes"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// The conformance suite runs over these too: see limitertest.Each.
func init() {
	limitertest.Compositions = []limitertest.Composition{
		{Name: "Choice", Around: func(_ testing.TB, _ *limitertest.Stage, l ratelimit.Limiter) ratelimit.Limiter { return chosen(l) }},
		{Name: "Shadow", Around: func(_ testing.TB, _ *limitertest.Stage, l ratelimit.Limiter) ratelimit.Limiter { return shadowed(l) }},
		{Name: "DenyCache", Around: cached},
		{Name: "Shadow, Fallback, DenyCache, Choice", Around: func(t testing.TB, s *limitertest.Stage, l ratelimit.Limiter) ratelimit.Limiter {
			return shadowed(ratelimit.Must(ratelimit.NewFallback(cached(t, s, chosen(l)), failing)))
		}},
	}
}

func chosen(l ratelimit.Limiter) ratelimit.Limiter {
	return ratelimit.Must(ratelimit.NewChoice(func(context.Context, string) (ratelimit.Limiter, error) { return l, nil }))
}

func shadowed(l ratelimit.Limiter) ratelimit.Limiter {
	trial := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1), 1))
	return ratelimit.Must(ratelimit.NewShadow(l, trial, func(ratelimit.Trial) {}))
}

func cached(_ testing.TB, s *limitertest.Stage, l ratelimit.Limiter) ratelimit.Limiter {
	c := ratelimit.Must(ratelimit.NewDenyCache(l, ratelimit.WithMaxKeys(64)))
	c.SetClock(func() time.Duration { return time.Duration(s.Now.UnixNano()) })
	return c
}

// failing is a secondary that decides nothing, so that the primary's errors come through.
var failing = &limitertest.Stub{Answer: func(_ context.Context, _ string, n int) (r ratelimit.Result, _ error) {
	if n == fakes.Reset {
		return r, nil
	}
	return r, errFailing
}}

var errFailing = errors.New("no secondary")

// What makes no sense is refused, with the order that does.
func TestCompositionsThatAreRefused(t *testing.T) {
	bucket := ratelimit.Must(ratelimit.NewTokenBucket(limitertest.Offline(t), ratelimit.PerSecond(1), 1))
	fallback := func(l ratelimit.Limiter) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.NewFallback(l, ratelimit.DenyAll()))
	}
	for _, test := range []struct {
		inside ratelimit.Limiter
		says   string
	}{
		{shadowed(bucket), "put the DenyCache inside: NewShadow(cached, trial, report)"},
		{fallback(shadowed(bucket)), "there is a Shadow inside"},
		{fallback(chosen(bucket)), "there is a Choice inside a *ratelimit.Fallback"},
		{shadowed(chosen(bucket)), "there is a Shadow inside"},
	} {
		_, err := ratelimit.NewDenyCache(test.inside)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
		require.ErrorContains(t, err, test.says)
	}
	for _, inside := range []ratelimit.Limiter{
		chosen(bucket), chosen(shadowed(bucket)), fallback(bucket),
		fallback(ratelimit.Must(ratelimit.NewDenyCache(chosen(bucket)))), ratelimit.AllowAll(), &ratelimit.Fallback{}, &ratelimit.Choice{},
	} {
		_, err := ratelimit.NewDenyCache(inside)
		require.NoError(t, err)
	}
	breaker := &ratelimit.Breaker{}
	guarded := ratelimit.Must(ratelimit.NewFallback(bucket, ratelimit.DenyAll(), ratelimit.WithBreaker(breaker)))
	_, err := ratelimit.NewFallback(shadowed(guarded), ratelimit.DenyAll(), ratelimit.WithBreaker(breaker))
	require.ErrorContains(t, err, "the primary already has the breaker")
}

// TestBlockedCustomersInAnOutage: while a breaker is open, the secondary of a Fallback around a
// Choice allows customers whom the Choice would deny. A Choice around Fallbacks goes on
// denying.
func TestBlockedCustomersInAnOutage(t *testing.T) {
	breaker := &ratelimit.Breaker{Failures: 1, ProbeEvery: time.Hour}
	guarded := func(l ratelimit.Limiter) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.NewFallback(l, ratelimit.AllowAll(), ratelimit.WithBreaker(breaker)))
	}
	choice := func(plan ratelimit.Limiter) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.NewChoice(func(_ context.Context, customer string) (ratelimit.Limiter, error) {
			if customer == "blocked" {
				return ratelimit.DenyAll(), nil
			}
			return plan, nil
		}))
	}
	outside := guarded(choice(failing))
	inside := ratelimit.Must(ratelimit.NewDenyCache(choice(guarded(failing))))

	require.False(t, must(t)(outside.TryAcquire(ctx, "blocked")).Allowed, "the breaker is closed")
	require.Equal(t, ratelimit.Result{Allowed: true, Fallback: true}, must(t)(outside.TryAcquire(ctx, "customer")))
	require.Equal(t, ratelimit.BreakerOpen, breaker.State())
	require.Equal(t, ratelimit.Result{Allowed: true, Fallback: true}, must(t)(outside.TryAcquire(ctx, "blocked")))
	require.False(t, must(t)(inside.TryAcquire(ctx, "blocked")).Allowed)
	require.Equal(t, ratelimit.Result{Allowed: true, Fallback: true}, must(t)(inside.TryAcquire(ctx, "customer")))
}

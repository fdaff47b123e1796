package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
)

func TestAChoiceWithoutALimiterIsAnError(t *testing.T) {
	_, err := ratelimit.NewChoice(nil)
	require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
	require.ErrorContains(t, err, "NewChoice: pick is nil")

	for _, none := range []ratelimit.Limiter{nil, (*ratelimit.TokenBucket)(nil), (*ratelimit.Choice)(nil)} {
		picks := 0
		choice := ratelimit.Must(ratelimit.NewChoice(func(context.Context, string) (ratelimit.Limiter, error) { picks++; return none, nil }))
		for _, l := range []ratelimit.Limiter{choice, ratelimit.Must(ratelimit.NewDenyCache(choice)), ratelimit.Must(ratelimit.NewFallback(choice, ratelimit.AllowAll()))} {
			r, err := l.TryAcquire(ctx, "customer")
			require.ErrorIs(t, err, ratelimit.ErrInvalidConfig, "it is no outage")
			require.ErrorContains(t, err, `pick returned nil for "customer"; return a limiter for every key, such as AllowAll() or DenyAll()`)
			require.Zero(t, r)
			_, err = l.Peek(ctx, "customer")
			require.ErrorContains(t, err, "pick returned nil")
			require.ErrorContains(t, l.Reset(ctx, "customer"), "pick returned nil")
		}
		picks = 0
		_, err := choice.TryAcquire(ctx, "")
		require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
		require.Zero(t, picks, "a key that is a mistake is not looked up")
	}
	for _, l := range []*ratelimit.Choice{{}} {
		_, err := l.TryAcquire(ctx, "k")
		require.ErrorContains(t, err, "was not made by its constructor")
		_, err = l.Peek(ctx, "k")
		require.ErrorContains(t, err, "was not made by its constructor")
		require.ErrorContains(t, l.Reset(ctx, "k"), "was not made by its constructor")
	}
}

// TestAPickThatFails, for whatever reason, is neither a denial nor an outage of Redis: nobody else decides, and no breaker counts it.
func TestAPickThatFails(t *testing.T) {
	for _, cause := range []error{errors.New("database is down"), context.DeadlineExceeded, ratelimit.ErrBreakerOpen, second(ratelimit.NewLocalTokenBucket(ratelimit.Rate{}, 1))} {
		cause := fmt.Errorf("plan of the customer: %w", cause)
		choice := ratelimit.Must(ratelimit.NewChoice(func(context.Context, string) (ratelimit.Limiter, error) { return ratelimit.AllowAll(), cause }))
		holds := ratelimit.Must(ratelimit.NewHoldChoice(func(context.Context, string) (ratelimit.Holder, error) { return ratelimit.AllowHolds(), cause }))
		breaker := &ratelimit.Breaker{Failures: 1}
		opts := []ratelimit.PolicyOption{ratelimit.WithBudget(time.Hour), ratelimit.WithBreaker(breaker)}
		guarded := ratelimit.Must(ratelimit.NewFallback(ratelimit.Must(ratelimit.NewDenyCache(choice)), ratelimit.AllowAll(), opts...))
		for _, l := range []operator{choice, guarded} {
			for name, call := range map[string]func() error{
				"acquire":  func() error { return second(l.TryAcquire(ctx, "customer")) },
				"peek":     func() error { return second(l.Peek(ctx, "customer")) },
				"up to":    func() error { _, _, err := l.TryAcquireUpTo(ctx, "customer", 2); return err },
				"estimate": func() error { _, _, err := l.Estimate(ctx, "customer", 2); return err },
				"charge":   func() error { return second(l.Charge(ctx, "customer", 2)) },
				"reset":    func() error { return l.Reset(ctx, "customer") },
				"together": func() error {
					return second(ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(guarded, "customer", 1), ratelimit.ClaimOf(choice, "customer", 1)))
				},
			} {
				err := call()
				require.ErrorIs(t, err, cause, name)
				require.ErrorContains(t, err, `the limiter of "customer" could not be picked: plan of the customer: `, name)
				require.NotErrorIs(t, err, ratelimit.ErrDenied, name)
			}
		}
		_, _, err := ratelimit.Must(ratelimit.NewHoldFallback(holds, ratelimit.AllowHolds(), opts...)).TryAcquire(ctx, "customer")
		require.ErrorIs(t, err, cause)
		require.Equal(t, ratelimit.BreakerClosed, breaker.State())
	}

	// In an outage, the reason is still the outage.
	down := errors.New("redis is down")
	choice := ratelimit.Must(ratelimit.NewChoice(func(context.Context, string) (ratelimit.Limiter, error) { return nil, errors.New("no plan") }))
	_, err := ratelimit.Must(ratelimit.NewFallback(&limitertest.Stub{Err: down}, choice)).TryAcquire(ctx, "customer")
	require.ErrorIs(t, err, down)
	require.ErrorContains(t, err, "secondary: ")
	require.ErrorContains(t, err, "no plan")
}

// Each method asks the limiter that is picked by the caller's context and key, once.
func TestAChoiceByContextAndKey(t *testing.T) {
	type plan struct{}
	s := limitertest.OnMiniredis(t)
	build := func(limit int) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.NewFixedWindow(s.Client, limit, time.Minute, ratelimit.WithName(fmt.Sprint("plan", limit))))
	}
	small, large := build(2), build(20)
	var picks []string
	choice := ratelimit.Must(ratelimit.NewChoice(func(ctx context.Context, key string) (ratelimit.Limiter, error) {
		picks = append(picks, key)
		if ctx.Value(plan{}) == "large" || key == "vip" {
			return large, nil
		}
		return small, nil
	}))
	byLarge := context.WithValue(ctx, plan{}, "large")
	must := must(t)
	require.Equal(t, 1, must(choice.TryAcquire(ctx, "k")).Remaining)
	require.Equal(t, 17, must(choice.TryAcquireN(byLarge, "k", 3)).Remaining)
	require.Equal(t, 1, must(choice.Peek(ctx, "k")).Remaining)
	require.Equal(t, 17, must(choice.Peek(byLarge, "k")).Remaining)
	require.Equal(t, 20, must(choice.Peek(ctx, "vip")).Remaining)
	require.NoError(t, choice.Reset(byLarge, "k"))
	require.Equal(t, 20, must(choice.Peek(byLarge, "k")).Remaining)
	require.Equal(t, 1, must(choice.Peek(ctx, "k")).Remaining)
	_, err := choice.TryAcquireN(ctx, "k", 3)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	require.Equal(t, []string{"k", "k", "k", "k", "vip", "k", "k", "k", "k"}, picks)
}

// TestLimitersHaveANameToAskFor: the name that was given, or the default one.
func TestLimitersHaveANameToAskFor(t *testing.T) {
	type named interface{ Name() string }
	s := limitertest.OnMiniredis(t)
	for _, v := range limitertest.Variants() {
		if v.Name == "TokenBucket in an All" {
			continue
		}
		require.Equal(t, "default", ratelimit.Must(v.Build(s.Client)).(named).Name(), v.Name)
		require.Equal(t, "api", ratelimit.Must(v.Build(s.Client, ratelimit.WithName("api"))).(named).Name(), v.Name)
	}
	require.Equal(t, "reports", ratelimit.Must(ratelimit.NewInFlight(s.Client, 1, time.Second, ratelimit.WithName("reports"))).Name())
	for _, l := range []any{
		ratelimit.Must(ratelimit.NewChoice(func(context.Context, string) (ratelimit.Limiter, error) { return nil, nil })),
		ratelimit.Must(ratelimit.NewHoldChoice(func(context.Context, string) (ratelimit.Holder, error) { return nil, nil })),
		ratelimit.AllowAll(), ratelimit.DenyAll(), ratelimit.AllowHolds(), ratelimit.DenyHolds(),
		ratelimit.Must(ratelimit.NewLocalInFlight(1)), ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1), 1)),
		ratelimit.Must(ratelimit.NewHoldFallback(ratelimit.DenyHolds(), ratelimit.DenyHolds())),
	} {
		require.Equal(t, "default", l.(named).Name(), "%T", l)
	}
	for _, l := range []named{new(ratelimit.InFlight), new(ratelimit.Choice)} {
		require.Empty(t, l.Name(), "%T", l)
	}
	require.Empty(t, (&ratelimit.TokenBucket{}).Name())
}

// A plan is changed in the middle, up and down, for every algorithm and through a DenyCache
// and a Fallback: what was used carries over, and a raised limit holds with the next call.
func TestAPlanIsChangedInTheMiddle(t *testing.T) {
	const window = 10 * time.Second
	kinds := append(limitertest.Kinds(), limitertest.Kind{Name: "CalendarWindow", Build: func(c ratelimit.Client, limit int, _ time.Duration, o ...ratelimit.Option) (ratelimit.Limiter, error) {
		return ratelimit.NewCalendarWindow(c, limit, ratelimit.Daily(time.UTC), o...)
	}})
	s := limitertest.OnMiniredis(t)
	for _, k := range kinds {
		t.Run(k.Name, func(t *testing.T) {
			s.Wipe(t)
			build := func(limit int) ratelimit.Limiter {
				l, err := k.Build(s.Client, limit, window, append(s.Opts, ratelimit.WithName("api"))...)
				require.NoError(t, err)
				return l
			}
			free, pro := build(10), build(100)
			var plan atomic.Pointer[ratelimit.Limiter]
			plan.Store(&free)
			choice := ratelimit.Must(ratelimit.NewChoice(func(context.Context, string) (ratelimit.Limiter, error) { return *plan.Load(), nil }))
			limiter := ratelimit.Must(ratelimit.NewFallback(cached(t, s, choice), ratelimit.DenyAll()))
			must := must(t)

			require.True(t, must(limiter.TryAcquireN(ctx, k.Of("k"), 10)).Allowed)
			for range 3 { // the second from memory
				require.False(t, must(limiter.TryAcquire(ctx, k.Of("k"))).Allowed)
			}
			plan.Store(&pro)
			require.Equal(t, 90, must(limiter.Peek(ctx, k.Of("k"))).Remaining, "what was used carries over, and no denial is left")
			r := must(limiter.TryAcquireN(ctx, k.Of("k"), 40))
			require.True(t, r.Allowed)
			require.Equal(t, 50, r.Remaining)

			plan.Store(&free)
			denied := must(limiter.TryAcquire(ctx, k.Of("k")))
			require.False(t, denied.Allowed, "50 are used of 10")
			require.Zero(t, denied.Remaining)
			require.Positive(t, denied.RetryAfter)
			require.Equal(t, denied, must(limiter.TryAcquire(ctx, k.Of("k"))))
			plan.Store(&pro)
			require.Equal(t, 49, must(limiter.TryAcquire(ctx, k.Of("k"))).Remaining, "a denial by the smaller plan took nothing from the larger")
			require.NoError(t, k.Forget(limiter, "k"))
			require.Equal(t, 100, must(limiter.Peek(ctx, k.Of("k"))).Remaining)
		})
	}
}

// Instances with the old and the new plan run side by side, each with a Choice and a
// DenyCache of its own, and plans change back and forth: never more than the largest limit
// and the fastest rate allow, and after a change no denial but the picked limiter's own.
func TestPlansSideBySide(t *testing.T) {
	const window, instances = 10 * time.Second, 3
	limits := []int{5, 20, 60}
	rng := model.Seeded(limitertest.Seed(t))
	s := limitertest.OnMiniredis(t)
	for _, k := range limitertest.Kinds() {
		t.Run(k.Name, func(t *testing.T) {
			s.Wipe(t)
			var plans []ratelimit.Limiter
			var bounds []limitertest.Bound
			for _, limit := range limits {
				l, err := k.Build(s.Client, limit, window, append(s.Opts, ratelimit.WithName("api"))...)
				require.NoError(t, err)
				plans, bounds = append(plans, l), append(bounds, k.Bound(limit, window))
			}
			picked, last := make([]int, instances), []int{-1, -1, -1}
			var callers []ratelimit.Limiter
			for i := range instances {
				callers = append(callers, cached(t, s, ratelimit.Must(ratelimit.NewChoice(func(context.Context, string) (ratelimit.Limiter, error) { return plans[picked[i]], nil }))))
			}
			var allowed []limitertest.AllowedCall
			for range limitertest.Rounds(400, 100) {
				i := rng.IntN(instances)
				if rng.IntN(10) == 0 { // this instance hears of a change
					picked[i] = rng.IntN(len(plans))
				}
				n := 1 + rng.IntN(3)
				truth := must(t)(plans[picked[i]].Peek(ctx, k.Of("k")))
				r := must(t)(callers[i].TryAcquireN(ctx, k.Of("k"), n))
				changed := picked[i] != last[i]
				last[i] = picked[i]
				if r.Allowed {
					allowed = append(allowed, limitertest.AllowedCall{At: s.Now.UnixMicro(), Instant: s.Now.UnixMicro(), By: picked[i], N: n})
				} else if changed {
					require.Less(t, truth.Remaining, n, "denied, although the picked limiter has %d", truth.Remaining)
				}
				s.Advance(time.Duration(rng.IntN(400)) * time.Millisecond)
			}
			require.Empty(t, limitertest.Exceeded(bounds, allowed, 0))
		})
	}
}

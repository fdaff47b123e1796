package ratelimit_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// The example of the README: a burst of 200, of which each of four instances has 50.
func TestFallbackDeniesWhatTheSecondaryCanNeverAllow(t *testing.T) {
	for _, mode := range fallbackModes {
		t.Run(mode.name, func(t *testing.T) {
			local, dial := newTestLocal(t, ratelimit.PerSecond(25), 50)
			var events []ratelimit.Observation
			f := newTestFallback(t, always(ratelimit.Result{}, errDown), local,
				append(mode.opts(), ratelimit.WithObserver(func(_ context.Context, e ratelimit.Observation) { events = append(events, e) }))...)
			wait := time.Second
			if ratelimit.GuardOf(f).Breakers != nil {
				wait = 200 * milli // nothing is open yet
			}
			// An unused bucket and one of which 20 permits are taken; the rest is as the
			// bucket itself says.
			for range 2 {
				want := must(t)(local.Peek(t.Context(), "k"))
				require.True(t, want.Allowed)
				want.Allowed, want.RetryAfter, want.Fallback = false, wait, true
				events = nil
				require.Equal(t, want, must(t)(f.TryAcquireN(t.Context(), "k", 51)))
				require.Equal(t, []ratelimit.Observation{{
					Limiter: "default", Call: "acquire", Outcome: ratelimit.OutcomeDenied, Source: ratelimit.SourceFallback, Key: "k", N: 51,
					Result: want, Reason: errDown,
				}}, ratelimit.Untimed(events))
				require.Equal(t, 50, want.Limit)
				require.Equal(t, 2*time.Second, want.Window)
				_ = must(t)(local.TryAcquireN(t.Context(), "k", 20))
			}
			dial.micros.Add(2_000_000)
			require.True(t, must(t)(f.TryAcquireN(t.Context(), "k", 50)).Allowed, "nothing was taken, and 50 are not too many")
			require.Equal(t, ratelimit.Result{Limit: 50, Window: 2 * time.Second, RetryAfter: wait, ResetAfter: 2 * time.Second, Fallback: true},
				must(t)(f.TryAcquireN(t.Context(), "k", 60)))
			require.Equal(t, ratelimit.Result{Limit: 50, Window: 2 * time.Second, RetryAfter: 2 * time.Second, ResetAfter: 2 * time.Second, Fallback: true},
				must(t)(f.TryAcquireN(t.Context(), "k", 50)), "what the bucket can allow has the bucket's own RetryAfter")
		})
	}
}

// A denial says when the breaker lets the next call try, and means it.
func TestFallbackDenialUntilTheNextProbe(t *testing.T) {
	for _, mode := range breakerModes {
		t.Run(mode.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p := newSettablePrimary()
				f := newTestFallback(t, p, ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1), 1)),
					append(mode.opts, ratelimit.WithBreaker(&ratelimit.Breaker{Failures: 2, ProbeEvery: 100 * milli}))...)
				ask := func() ratelimit.Result { return must(t)(f.TryAcquireN(t.Context(), "k", 2)) }
				p.err = errDown
				require.Equal(t, 100*milli, ask().RetryAfter, "closed: the time between two probes")
				require.Equal(t, 100*milli, ask().RetryAfter, "the failure that opened it")
				time.Sleep(30 * milli)
				require.Equal(t, 70*milli, ask().RetryAfter)
				time.Sleep(70*milli - 1)
				require.Equal(t, time.Microsecond, ask().RetryAfter, "never 0")
				require.EqualValues(t, 2, p.Count())
				time.Sleep(time.Nanosecond)
				require.Equal(t, 100*milli, ask().RetryAfter, "the probe failed")
				require.EqualValues(t, 3, p.Count())
				time.Sleep(40 * milli)
				require.Equal(t, 60*milli, ask().RetryAfter, "counted from that failure")
				time.Sleep(60 * milli)

				p.err, p.took = nil, 5*time.Second // a probe
				var wg sync.WaitGroup
				wg.Go(func() {
					r, err := f.TryAcquireN(t.Context(), "k", 2)
					if err != nil || r != byPrimary {
						t.Errorf("got %+v, %v", r, err)
					}
				})
				synctest.Wait()
				require.Equal(t, 100*milli, ask().RetryAfter, "half-open: the time between two probes")
				wg.Wait()
				require.EqualValues(t, 4, p.Count())
				p.took = 0
				require.Equal(t, byPrimary, ask())
			})
		})
	}
}

func TestFallbackDeniesForEveryReason(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var events []ratelimit.Observation
		f := newTestFallback(t, hanging(), ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1), 1)), ratelimit.WithBudget(20*milli),
			ratelimit.WithBreaker(&ratelimit.Breaker{Failures: 1, ProbeEvery: 100 * milli}),
			ratelimit.WithObserver(func(_ context.Context, e ratelimit.Observation) {
				if e.Call != "breaker" {
					events = append(events, e)
				}
			}))
		for range 2 {
			r := must(t)(f.TryAcquireN(t.Context(), "k", 2))
			require.Equal(t, []any{false, 100 * milli, true}, []any{r.Allowed, r.RetryAfter, r.Fallback})
		}
		require.Len(t, events, 2)
		require.Equal(t, []any{ratelimit.ErrOverBudget, nil, ratelimit.BreakerOpen}, []any{events[0].Reason, events[0].Err, events[0].Breaker})
		require.Equal(t, []any{ratelimit.ErrBreakerOpen, nil, ratelimit.BreakerOpen}, []any{events[1].Reason, events[1].Err, events[1].Breaker})
	})
}

func TestFallbackDeniesWhereTheSecondaryIsNotKnown(t *testing.T) {
	exceeds := fmt.Errorf("%w: 3 of 2", ratelimit.ErrExceedsLimit)
	unknown := ratelimit.Result{RetryAfter: time.Second, Fallback: true}
	half := &limitertest.Stub{Answer: func(_ context.Context, _ string, n int) (ratelimit.Result, error) {
		if n == 0 { // Peek
			return ratelimit.Result{Allowed: true, Limit: 2, Window: time.Minute, Remaining: 1, ResetAfter: time.Second}, nil
		}
		return ratelimit.Result{}, exceeds
	}}
	bucketDown := ratelimit.Must(ratelimit.NewTokenBucket(noClient, ratelimit.PerSecond(1), 2))
	for name, c := range map[string]struct {
		secondary ratelimit.Limiter
		want      ratelimit.Result
	}{
		"a user's limiter":               {half, ratelimit.Result{Limit: 2, Window: time.Minute, Remaining: 1, RetryAfter: time.Second, ResetAfter: time.Second, Fallback: true}},
		"a user's limiter without Peek":  {always(ratelimit.Result{}, exceeds), unknown},
		"ours, which is down":            {bucketDown, ratelimit.Result{Limit: 2, RetryAfter: time.Second, Fallback: true}},
		"ours, down, in a DenyCache":     {ratelimit.Must(ratelimit.NewDenyCache(bucketDown)), ratelimit.Result{Limit: 2, RetryAfter: time.Second, Fallback: true}},
		"a chain whose last one answers": {newTestFallback(t, bucketDown, ratelimit.DenyAll()), ratelimit.Result{RetryAfter: time.Second, ResetAfter: time.Second, Fallback: true}},
		"a chain that allows everything": {newTestFallback(t, bucketDown, ratelimit.AllowAll()), unknown},
	} {
		r := must(t)(newTestFallback(t, always(ratelimit.Result{}, errDown), c.secondary).TryAcquireN(t.Context(), "k", 3))
		require.Equal(t, c.want, r, name)
		require.False(t, r.Unlimited(), name)
	}
	r := must(t)(newTestFallback(t, always(ratelimit.Result{}, errDown), always(ratelimit.Result{}, exceeds)).Peek(t.Context(), "k"))
	require.Equal(t, unknown, r, "a Peek that exceeds")
}

// A reservation in an outage: a secondary that promises nothing takes the permits at once, or denies them.
func TestFallbackReservesOfAnySecondary(t *testing.T) {
	down := ratelimit.Must(ratelimit.NewTokenBucket(noClient, ratelimit.PerHour(1), 3))
	denied := ratelimit.Result{RetryAfter: time.Minute}
	for name, c := range map[string]struct {
		secondary ratelimit.Limiter
		allowed   int
		wait      time.Duration // of one permit more
	}{
		"AllowAll":             {ratelimit.AllowAll(), 3, 0},
		"DenyAll":              {ratelimit.DenyAll(), 0, time.Second},
		"too small":            {localBucket(2), 2, time.Second}, // until the primary is asked again
		"a user's":             {always(ratelimit.Result{Allowed: true}, nil), 3, 0},
		"a user's that denies": {always(denied, nil), 0, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			var events []ratelimit.Observation
			f := newTestFallback(t, down, c.secondary, ratelimit.WithObserver(func(_ context.Context, o ratelimit.Observation) { events = append(events, o) }))
			if c.allowed > 0 {
				r, err := f.Reserve(t.Context(), "k", c.allowed, 0)
				require.NoError(t, err)
				require.True(t, r.Result().Allowed && r.Result().Fallback)
				require.NoError(t, r.Wait(t.Context()))
			}
			if c.wait == 0 {
				return
			}
			events = nil
			r, err := f.Reserve(t.Context(), "k", c.allowed+1, 0)
			require.Nil(t, r)
			require.Equal(t, &ratelimit.WaitError{Key: "k", Wait: c.wait}, err)
			require.Len(t, events, 1)
			require.ErrorContains(t, events[0].Reason, "token bucket")
			events[0].Reason = nil
			require.Equal(t, []ratelimit.Observation{{
				Limiter: "default", Call: "reserve", Outcome: ratelimit.OutcomeDenied, Source: ratelimit.SourceFallback, Key: "k", N: c.allowed + 1, Err: err,
			}}, ratelimit.Untimed(events))
		})
	}
}

// Who waits through an outage in which everything is denied asks again after each second. One denial is reported.
func TestAWaitThatTheSecondaryDenies(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var events []ratelimit.Observation
		observed := ratelimit.WithObserver(func(_ context.Context, o ratelimit.Observation) { events = append(events, o) })
		f := newTestFallback(t, ratelimit.Must(ratelimit.NewTokenBucket(noClient, ratelimit.PerHour(1), 3)), ratelimit.DenyAll(), observed)
		ctx, cancel := context.WithTimeout(t.Context(), 2500*milli)
		defer cancel()
		began := time.Now()
		r, err := ratelimit.WaitN(ctx, f, "k", 2)
		require.Zero(t, r)
		require.Equal(t, &ratelimit.WaitError{Key: "k", Wait: time.Second}, err)
		waited := time.Since(began)
		require.True(t, waited >= 2*time.Second && waited <= 2200*milli, waited)
		require.Len(t, events, 1)
		events[0].Reason, events[0].Latency = nil, 0
		require.Equal(t, ratelimit.Observation{
			Limiter: "default", Call: "wait", Outcome: ratelimit.OutcomeDenied, Source: ratelimit.SourceFallback, Key: "k", N: 2, Waited: waited, Err: err,
		}, events[0])
	})
}

// In a chain, the Fallback denies whose own secondary can never allow the permits.
func TestFallbackDeniesInAChain(t *testing.T) {
	open := func(probeEvery time.Duration) []ratelimit.PolicyOption {
		return []ratelimit.PolicyOption{ratelimit.WithBreaker(&ratelimit.Breaker{Failures: 1, ProbeEvery: probeEvery})}
	}
	standby := ratelimit.Must(ratelimit.NewTokenBucket(noClient, ratelimit.PerSecond(1), 100))
	down := ratelimit.Must(ratelimit.NewTokenBucket(noClient, ratelimit.PerSecond(1), 200))
	bubble(t, func(t *testing.T) {
		local := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1), 50))
		var chain *ratelimit.Fallback
		for _, c := range []struct {
			n    int
			wait time.Duration
		}{
			{60, 30 * milli},   // until the standby, which could allow them, is asked again
			{100, 30 * milli},  // it could allow these, too
			{101, 100 * milli}, // until the main one is asked again: the standby never allows these
			{200, 100 * milli},
		} {
			chain = newTestFallback(t, down, newTestFallback(t, standby, local, open(30*milli)...), open(100*milli)...)
			r := must(t)(chain.TryAcquireN(t.Context(), "k", c.n))
			require.Equal(t, ratelimit.Result{Allowed: false, Limit: 50, Window: 50 * time.Second, Remaining: r.Remaining, RetryAfter: c.wait, ResetAfter: r.ResetAfter, Fallback: true}, r, "%d", c.n)
			require.Equal(t, c.wait, must(t)(chain.TryAcquireN(t.Context(), "k", c.n)).RetryAfter, "%d, with open breakers", c.n)
		}
		require.True(t, must(t)(chain.TryAcquireN(t.Context(), "k", 50)).Allowed)
		_, err := chain.TryAcquireN(t.Context(), "k", 201)
		require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	})
}

func TestFallbackDeniesNothingThatThePrimaryNeverAllows(t *testing.T) {
	primary := ratelimit.Must(ratelimit.NewTokenBucket(noClient, ratelimit.PerSecond(1), 200))
	f := newTestFallback(t, primary, ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1), 50)))
	require.False(t, must(t)(f.TryAcquireN(t.Context(), "k", 200)).Allowed)
	_, err := f.TryAcquireN(t.Context(), "k", 201)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	for _, l := range []ratelimit.Limiter{ratelimit.Must(ratelimit.NewDenyCache(f)), newTestFallback(t, f, ratelimit.AllowAll())} {
		_, err = l.TryAcquireN(t.Context(), "k", 201)
		require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	}
}

// A DenyCache around a Fallback does not keep such a denial: the primary may be back at
// any moment. One inside a Fallback, around the secondary, does not keep it either, for
// all that it sees is an error.
func TestDenyCacheKeepsNoDenialUntilThePrimary(t *testing.T) {
	p := newSettablePrimary()
	p.err = errDown
	secondary := &limitertest.Stub{Err: ratelimit.ErrExceedsLimit}
	inside, _ := newTestDenyCache(t, secondary)
	outside, _ := newTestDenyCache(t, newTestFallback(t, p, inside))
	for range 2 {
		require.Equal(t, ratelimit.Result{RetryAfter: time.Second, Fallback: true}, must(t)(outside.TryAcquireN(t.Context(), "k", 3)))
	}
	require.EqualValues(t, 2, p.Count())
	require.Equal(t, []string{"k 3", "peek k", "k 3", "peek k"}, secondary.Asked())

	p.err = nil
	require.Equal(t, byPrimary, must(t)(outside.TryAcquireN(t.Context(), "k", 3)))
}

package ratelimit

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// The example of the README: a burst of 200, of which each of four instances has 50.
func TestFallbackDeniesWhatTheSecondaryCanNeverAllow(t *testing.T) {
	for _, mode := range fallbackModes {
		t.Run(mode.name, func(t *testing.T) {
			local, dial := newTestLocal(t, PerSecond(25), 50)
			var events []Observation
			f := newTestFallback(t, always(Result{}, errDown), local,
				append(mode.opts(), WithObserver(func(_ context.Context, e Observation) { events = append(events, e) }))...)
			wait := time.Second
			if f.guard.Breakers != nil {
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
				require.Equal(t, []Observation{{
					Limiter: "default", Call: callAcquire, Outcome: OutcomeDenied, Source: SourceFallback, Key: "k", N: 51,
					Result: want, Reason: errDown,
				}}, untimed(events))
				require.Equal(t, 50, want.Limit)
				require.Equal(t, 2*time.Second, want.Window)
				_ = must(t)(local.TryAcquireN(t.Context(), "k", 20))
			}
			dial.micros.Add(2_000_000)
			require.True(t, must(t)(f.TryAcquireN(t.Context(), "k", 50)).Allowed, "nothing was taken, and 50 are not too many")
			require.Equal(t, Result{Limit: 50, Window: 2 * time.Second, RetryAfter: wait, ResetAfter: 2 * time.Second, Fallback: true},
				must(t)(f.TryAcquireN(t.Context(), "k", 60)))
			require.Equal(t, Result{Limit: 50, Window: 2 * time.Second, RetryAfter: 2 * time.Second, ResetAfter: 2 * time.Second, Fallback: true},
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
				f := newTestFallback(t, p, Must(NewLocalTokenBucket(PerSecond(1), 1)),
					append(mode.opts, WithBreaker(&Breaker{Failures: 2, ProbeEvery: 100 * milli}))...)
				ask := func() Result { return must(t)(f.TryAcquireN(t.Context(), "k", 2)) }
				p.err = errDown
				require.Equal(t, 100*milli, ask().RetryAfter, "closed: the time between two probes")
				require.Equal(t, 100*milli, ask().RetryAfter, "the failure that opened it")
				time.Sleep(30 * milli)
				require.Equal(t, 70*milli, ask().RetryAfter)
				time.Sleep(70*milli - 1)
				require.Equal(t, time.Microsecond, ask().RetryAfter, "never 0")
				require.EqualValues(t, 2, p.calls.Load())
				time.Sleep(time.Nanosecond)
				require.Equal(t, 100*milli, ask().RetryAfter, "the probe failed")
				require.EqualValues(t, 3, p.calls.Load())
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
				require.EqualValues(t, 4, p.calls.Load())
				p.took = 0
				require.Equal(t, byPrimary, ask())
			})
		})
	}
}

func TestFallbackDeniesForEveryReason(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var events []Observation
		f := newTestFallback(t, hanging(), Must(NewLocalTokenBucket(PerSecond(1), 1)), WithBudget(20*milli),
			WithBreaker(&Breaker{Failures: 1, ProbeEvery: 100 * milli}),
			WithObserver(func(_ context.Context, e Observation) {
				if e.Call != callBreaker {
					events = append(events, e)
				}
			}))
		for range 2 {
			r := must(t)(f.TryAcquireN(t.Context(), "k", 2))
			require.Equal(t, []any{false, 100 * milli, true}, []any{r.Allowed, r.RetryAfter, r.Fallback})
		}
		require.Len(t, events, 2)
		require.Equal(t, []any{ErrOverBudget, nil, BreakerOpen}, []any{events[0].Reason, events[0].Err, events[0].Breaker})
		require.Equal(t, []any{ErrBreakerOpen, nil, BreakerOpen}, []any{events[1].Reason, events[1].Err, events[1].Breaker})
	})
}

func TestFallbackDeniesWhereTheSecondaryIsNotKnown(t *testing.T) {
	exceeds := fmt.Errorf("%w: 3 of 2", ErrExceedsLimit)
	unknown := Result{RetryAfter: time.Second, Fallback: true}
	half := &stub{do: func(_ context.Context, _ string, n int) (Result, error) {
		if n == 0 { // Peek
			return Result{Allowed: true, Limit: 2, Window: time.Minute, Remaining: 1, ResetAfter: time.Second}, nil
		}
		return Result{}, exceeds
	}}
	bucketDown := Must(NewTokenBucket(noClient{}, PerSecond(1), 2))
	for name, c := range map[string]struct {
		secondary Limiter
		want      Result
	}{
		"a user's limiter":               {half, Result{Limit: 2, Window: time.Minute, Remaining: 1, RetryAfter: time.Second, ResetAfter: time.Second, Fallback: true}},
		"a user's limiter without Peek":  {always(Result{}, exceeds), unknown},
		"ours, which is down":            {bucketDown, Result{Limit: 2, RetryAfter: time.Second, Fallback: true}},
		"ours, down, in a DenyCache":     {Must(NewDenyCache(bucketDown)), Result{Limit: 2, RetryAfter: time.Second, Fallback: true}},
		"a chain whose last one answers": {newTestFallback(t, bucketDown, DenyAll()), Result{RetryAfter: time.Second, ResetAfter: time.Second, Fallback: true}},
		"a chain that allows everything": {newTestFallback(t, bucketDown, AllowAll()), unknown},
	} {
		r := must(t)(newTestFallback(t, always(Result{}, errDown), c.secondary).TryAcquireN(t.Context(), "k", 3))
		require.Equal(t, c.want, r, name)
		require.False(t, r.Unlimited(), name)
	}
	r := must(t)(newTestFallback(t, always(Result{}, errDown), always(Result{}, exceeds)).Peek(t.Context(), "k"))
	require.Equal(t, unknown, r, "a Peek that exceeds")
}

// In a chain, the Fallback denies whose own secondary can never allow the permits.
func TestFallbackDeniesInAChain(t *testing.T) {
	open := func(probeEvery time.Duration) []PolicyOption {
		return []PolicyOption{WithBreaker(&Breaker{Failures: 1, ProbeEvery: probeEvery})}
	}
	standby := Must(NewTokenBucket(noClient{}, PerSecond(1), 100))
	down := Must(NewTokenBucket(noClient{}, PerSecond(1), 200))
	bubble(t, func(t *testing.T) {
		local := Must(NewLocalTokenBucket(PerSecond(1), 50))
		var chain *Fallback
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
			require.Equal(t, Result{Allowed: false, Limit: 50, Window: 50 * time.Second, Remaining: r.Remaining, RetryAfter: c.wait, ResetAfter: r.ResetAfter, Fallback: true}, r, "%d", c.n)
			require.Equal(t, c.wait, must(t)(chain.TryAcquireN(t.Context(), "k", c.n)).RetryAfter, "%d, with open breakers", c.n)
		}
		require.True(t, must(t)(chain.TryAcquireN(t.Context(), "k", 50)).Allowed)
		_, err := chain.TryAcquireN(t.Context(), "k", 201)
		require.ErrorIs(t, err, ErrExceedsLimit)
	})
}

func TestFallbackDeniesNothingThatThePrimaryNeverAllows(t *testing.T) {
	primary := Must(NewTokenBucket(noClient{}, PerSecond(1), 200))
	f := newTestFallback(t, primary, Must(NewLocalTokenBucket(PerSecond(1), 50)))
	require.False(t, must(t)(f.TryAcquireN(t.Context(), "k", 200)).Allowed)
	_, err := f.TryAcquireN(t.Context(), "k", 201)
	require.ErrorIs(t, err, ErrExceedsLimit)
	for _, l := range []Limiter{Must(NewDenyCache(f)), newTestFallback(t, f, AllowAll())} {
		_, err = l.TryAcquireN(t.Context(), "k", 201)
		require.ErrorIs(t, err, ErrExceedsLimit)
	}
}

// A DenyCache around a Fallback does not keep such a denial: the primary may be back at
// any moment. One inside a Fallback, around the secondary, does not keep it either, for
// all that it sees is an error.
func TestDenyCacheKeepsNoDenialUntilThePrimary(t *testing.T) {
	p := newSettablePrimary()
	p.err = errDown
	secondary := &scriptedLimiter{answer: func() (Result, error) { return Result{}, ErrExceedsLimit }}
	inside, _ := newTestDenyCache(t, secondary)
	outside, _ := newTestDenyCache(t, newTestFallback(t, p, inside))
	for range 2 {
		require.Equal(t, Result{RetryAfter: time.Second, Fallback: true}, must(t)(outside.TryAcquireN(t.Context(), "k", 3)))
	}
	require.EqualValues(t, 2, p.calls.Load())
	require.Equal(t, []string{"3 of k", "peek k", "3 of k", "peek k"}, secondary.asked)

	p.err = nil
	require.Equal(t, byPrimary, must(t)(outside.TryAcquireN(t.Context(), "k", 3)))
}

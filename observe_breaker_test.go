package ratelimit_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

func TestBreakerObserverMayCallTheFallback(t *testing.T) {
	for _, mode := range breakerModes {
		t.Run(mode.name, func(t *testing.T) {
			var f *ratelimit.Fallback
			var seen []string
			primary := always(ratelimit.Result{}, errDown)
			f = newTestFallback(t, primary, always(bySecondary, nil), append(mode.opts,
				ratelimit.WithBreaker(&ratelimit.Breaker{Failures: 2, ProbeEvery: time.Hour}), ratelimit.WithObserver(func(_ context.Context, e ratelimit.Observation) {
					seen = append(seen, whyAsked(e))
					if e.Call == "breaker" {
						r, err := f.TryAcquire(context.Background(), "from the observer")
						require.NoError(t, err)
						require.Equal(t, substituted, r)
					}
				}))...)
			for range 2 {
				r, err := f.TryAcquire(t.Context(), "k")
				require.NoError(t, err)
				require.Equal(t, substituted, r)
			}
			require.Equal(t, []string{"primary failed", "breaker state", "breaker open", "primary failed"}, seen)
		})
	}
}

func TestBreakerTellsChangesInOrder(t *testing.T) {
	var list []string
	var mu sync.Mutex
	fail := atomic.Bool{}
	primary := &limitertest.Stub{Answer: func(context.Context, string, int) (ratelimit.Result, error) {
		if fail.Load() {
			return ratelimit.Result{}, errDown
		}
		return byPrimary, nil
	}}
	f := newTestFallback(t, primary, ratelimit.AllowAll(), ratelimit.WithBreaker(&ratelimit.Breaker{Failures: 1, ProbeEvery: milli}),
		ratelimit.WithObserver(func(_ context.Context, e ratelimit.Observation) {
			if e.Call == "breaker" {
				// No two at a time: the lock is free.
				require.True(t, mu.TryLock())
				list = append(list, e.From.String(), e.Breaker.String())
				time.Sleep(100 * time.Microsecond) // a slow one
				mu.Unlock()
			}
		}))
	var wg sync.WaitGroup
	end := time.Now().Add(200 * milli)
	for i := range 8 {
		wg.Go(func() {
			for n := 0; time.Now().Before(end); n++ {
				fail.Store((n+i)%2 == 0)
				if _, err := f.TryAcquire(context.Background(), "k"); err != nil {
					t.Error(err)
				}
				time.Sleep(50 * time.Microsecond)
			}
		})
	}
	wg.Wait()
	mu.Lock()
	defer mu.Unlock()
	require.NotEmpty(t, list)
	require.Equal(t, "closed", list[0])
	for i := 2; i < len(list); i += 2 {
		require.Equal(t, list[i-1], list[i], "change %d starts where the last one ended", i/2)
	}
	t.Logf("%d changes", len(list)/2)
}

func TestBreakerObserverThatPanicsIsCalledAgain(t *testing.T) {
	before := slog.Default()
	slog.SetDefault(slog.New(slog.DiscardHandler))
	defer slog.SetDefault(before)
	var kinds []string
	f := newTestFallback(t, always(ratelimit.Result{}, errDown), ratelimit.AllowAll(), ratelimit.WithBreaker(&ratelimit.Breaker{Failures: 1, ProbeEvery: milli}),
		ratelimit.WithObserver(func(_ context.Context, e ratelimit.Observation) {
			if e.Call == "breaker" {
				kinds = append(kinds, e.From.String()+" to "+e.Breaker.String())
				if len(kinds) == 1 {
					panic("once")
				}
			}
		}))
	require.True(t, must(t)(f.TryAcquire(t.Context(), "k")).Allowed, "and the caller gets the answer")
	time.Sleep(2 * milli)
	require.True(t, must(t)(f.TryAcquire(t.Context(), "k")).Allowed)
	require.Equal(t, []string{"closed to open", "open to half-open", "half-open to open"}, kinds)
}

// whyAsked is why a Fallback asked its secondary, or that a breaker's state changed.
func whyAsked(o ratelimit.Observation) string {
	switch {
	case o.Call == "breaker":
		return "breaker state"
	case errors.Is(o.Reason, ratelimit.ErrBreakerOpen):
		return "breaker open"
	case errors.Is(o.Reason, ratelimit.ErrOverBudget):
		return "over budget"
	}
	return "primary failed"
}

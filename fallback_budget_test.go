package ratelimit_test

import (
	"bytes"
	"context"
	"errors"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/guard"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// TestFallbackBudgetOfAnyLength: the longest is no outage.
func TestFallbackBudgetOfAnyLength(t *testing.T) {
	primary := &limitertest.Stub{Answer: func(ctx context.Context, _ string, _ int) (ratelimit.Result, error) {
		return byPrimary, ctx.Err()
	}}
	f := newTestFallback(t, primary, always(bySecondary, nil), ratelimit.WithBudget(math.MaxInt64))
	require.Equal(t, byPrimary, must(t)(f.TryAcquire(ctx, "k")))
	primary.Answer = func(ctx context.Context, _ string, _ int) (ratelimit.Result, error) {
		deadline, ok := ctx.Deadline()
		require.True(t, ok)
		require.Greater(t, time.Until(deadline), 24*time.Hour)
		return byPrimary, nil
	}
	require.Equal(t, byPrimary, must(t)(f.TryAcquire(ctx, "k")))
}

func TestFallbackBudget(t *testing.T) {
	const budget = 20 * milli
	late := func(t *testing.T, primary *limitertest.Stub, took time.Duration, want ratelimit.Result) (events []ratelimit.Observation) {
		t.Helper()
		f := newTestFallback(t, primary, always(bySecondary, nil), ratelimit.WithBudget(budget),
			ratelimit.WithObserver(func(_ context.Context, e ratelimit.Observation) { events = append(events, e) }))
		start := time.Now()
		r, err := f.TryAcquire(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, want, r)
		require.Equal(t, took, time.Since(start))
		synctest.Wait()
		return events
	}
	asked := func(why error, took time.Duration) []ratelimit.Observation {
		return []ratelimit.Observation{{
			Limiter: "default", Call: "acquire", Outcome: ratelimit.OutcomeDenied, Source: ratelimit.SourceFallback, Key: "k", N: 1,
			Result: substituted, Reason: why, Latency: took,
		}}
	}
	overBudget := asked(ratelimit.ErrOverBudget, budget)

	t.Run("an answer a moment before its end counts", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			require.Empty(t, late(t, after(budget-1), budget-1, byPrimary))
		})
	})
	t.Run("an answer a moment after its end does not", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			require.Equal(t, overBudget, late(t, after(budget+1), budget, substituted))
		})
	})
	t.Run("a late error is not reported", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			primary := &limitertest.Stub{Answer: func(context.Context, string, int) (ratelimit.Result, error) {
				time.Sleep(time.Second)
				return ratelimit.Result{}, errDown
			}}
			events := late(t, primary, budget, substituted)
			time.Sleep(time.Minute)
			require.Equal(t, overBudget, events)
		})
	})
	t.Run("an error in time is answered at once", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			primary := &limitertest.Stub{Answer: func(context.Context, string, int) (ratelimit.Result, error) {
				time.Sleep(milli)
				return ratelimit.Result{}, errDown
			}}
			require.Equal(t, asked(errDown, milli),
				late(t, primary, milli, substituted))
		})
	})
	t.Run("both fail", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			r, err := newTestFallback(t, hanging(), always(ratelimit.Result{}, errDown), ratelimit.WithBudget(budget)).TryAcquire(t.Context(), "k")
			require.Zero(t, r)
			require.EqualError(t, err, `ratelimit: fallback for "k": primary: ratelimit: over budget; secondary: connection refused`)
			require.ErrorIs(t, err, ratelimit.ErrOverBudget)
			require.ErrorIs(t, err, errDown)
		})
	})
	t.Run("a caller whose time is up with the budget gets the context's error", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), budget)
			defer cancel()
			secondary := always(bySecondary, nil)
			r, err := newTestFallback(t, hanging(), secondary, ratelimit.WithBudget(budget)).TryAcquire(ctx, "k")
			require.Zero(t, r)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Zero(t, secondary.Count())
		})
	})
}

func TestFallbackBudgetContextOfThePrimary(t *testing.T) {
	type ctxKey struct{}
	for _, c := range []struct {
		name  string
		leave time.Duration // when the caller is cancelled; 0: never
	}{
		{"the budget lapses", 0},
		{"the caller leaves first", 5 * milli},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				const budget = 20 * milli
				ctx, cancel := context.WithCancel(context.WithValue(t.Context(), ctxKey{}, "value"))
				defer cancel()
				if c.leave > 0 {
					time.AfterFunc(c.leave, cancel)
				}
				start := time.Now()
				var ended atomic.Int64
				var child atomic.Value
				primary := &limitertest.Stub{Answer: func(ctx context.Context, _ string, _ int) (ratelimit.Result, error) {
					require.Equal(t, "value", ctx.Value(ctxKey{}))
					d, ok := ctx.Deadline()
					require.True(t, ok)
					require.Equal(t, budget+guard.AbandonedFor, d.Sub(start))
					// A context derived from it, with a later deadline, ends with it.
					sub, stop := context.WithTimeout(ctx, time.Hour)
					defer stop()
					<-sub.Done()
					ended.Store(int64(time.Since(start)))
					child.Store(sub.Err())
					return ratelimit.Result{}, ctx.Err()
				}}
				f := newTestFallback(t, primary, always(bySecondary, nil), ratelimit.WithBudget(budget))
				r, err := f.TryAcquire(ctx, "k")
				if c.leave > 0 {
					require.Zero(t, r)
					require.EqualError(t, err, `ratelimit: fallback for "k": context canceled`)
					require.ErrorIs(t, err, context.Canceled)
					require.Equal(t, c.leave, time.Since(start))
				} else {
					require.NoError(t, err)
					require.Equal(t, substituted, r)
					require.Equal(t, budget, time.Since(start))
				}
				synctest.Wait()
				require.EqualValues(t, 1, ratelimit.GuardOf(f).Bound.Abandoned.Load(), "the call goes on")
				require.Zero(t, ended.Load())

				time.Sleep(time.Minute)
				synctest.Wait()
				require.EqualValues(t, budget+guard.AbandonedFor, ended.Load(), "the call is given up for good")
				require.Equal(t, context.Canceled, child.Load())
				require.Zero(t, ratelimit.GuardOf(f).Bound.Abandoned.Load())
				require.Empty(t, ratelimit.GuardOf(f).Bound.Running)
			})
		})
	}
}

func TestFallbackHungPrimaryHoldsBoundedGoroutines(t *testing.T) {
	for _, c := range []struct {
		name string
		opts []ratelimit.PolicyOption
	}{
		{"budget", nil},
		{"budget and breaker", []ratelimit.PolicyOption{ratelimit.WithBreaker(&ratelimit.Breaker{})}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				const callers, each, budget = 1000, 20, 5 * milli
				release := make(chan struct{}) // the server, which no context impresses
				var inside, peak atomic.Int64
				primary := &limitertest.Stub{Answer: func(context.Context, string, int) (ratelimit.Result, error) {
					n := inside.Add(1)
					for p := peak.Load(); n > p && !peak.CompareAndSwap(p, n); p = peak.Load() {
					}
					<-release
					inside.Add(-1)
					return byPrimary, nil
				}}
				var saturated atomic.Int64
				opts := append(c.opts, ratelimit.WithBudget(budget), ratelimit.WithObserver(func(_ context.Context, e ratelimit.Observation) {
					if errors.Is(e.Reason, ratelimit.ErrOverBudget) && e.Reason != ratelimit.ErrOverBudget {
						require.ErrorIs(t, e.Reason, ratelimit.ErrOverBudget)
						require.EqualError(t, e.Reason, "ratelimit: over budget: 256 abandoned calls are still running")
						saturated.Add(1)
					}
				}))
				f := newTestFallback(t, primary, always(bySecondary, nil), opts...)

				var wg sync.WaitGroup
				for i := range callers {
					wg.Go(func() {
						for j := range each {
							// Some callers leave before the budget is over.
							ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+(i+j)%8)*milli)
							start := time.Now()
							r, err := f.TryAcquire(ctx, "k")
							ended := errors.Is(err, context.DeadlineExceeded) && r == ratelimit.Result{}
							if !ended && (err != nil || r != substituted) {
								t.Errorf("got %+v, %v; want the secondary's answer, or the ended context", r, err)
							}
							if took := time.Since(start); took > budget {
								t.Errorf("the call took %v, more than the budget of %v", took, budget)
							}
							cancel()
						}
					})
				}
				wg.Wait()
				synctest.Wait()
				require.LessOrEqual(t, peak.Load(), int64(guard.MaxRunning))
				require.LessOrEqual(t, asking(), guard.MaxRunning)
				require.Equal(t, inside.Load(), ratelimit.GuardOf(f).Bound.Abandoned.Load())
				if c.opts == nil {
					require.EqualValues(t, guard.MaxRunning, ratelimit.GuardOf(f).Bound.Abandoned.Load())
					start := time.Now()
					r, err := f.TryAcquire(t.Context(), "k")
					require.NoError(t, err)
					require.Equal(t, substituted, r)
					require.Zero(t, time.Since(start), "the secondary answers at once")
				}

				close(release)
				time.Sleep(time.Second)
				require.Zero(t, ratelimit.GuardOf(f).Bound.Abandoned.Load())
				require.Empty(t, ratelimit.GuardOf(f).Bound.Running)
				r, err := f.TryAcquire(t.Context(), "k")
				require.NoError(t, err)
				require.Equal(t, byPrimary, r, "the primary is back")
				t.Logf("peak %d of %d, answered at once %d, primary asked %d times for %d calls",
					peak.Load(), guard.MaxRunning, saturated.Load(), primary.Count(), callers*each)
			})
		})
	}
}

func TestFallbackCallersBeyondTheMostThatRunWait(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const callers, rtt, budget = 1000, 10 * milli, 50 * milli
		f := newTestFallback(t, after(rtt), always(bySecondary, nil), ratelimit.WithBudget(budget), ratelimit.WithBreaker(&ratelimit.Breaker{}))
		start := time.Now()
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				r, err := f.TryAcquire(t.Context(), "k")
				if r != byPrimary || err != nil {
					t.Errorf("got %+v, %v; want the primary's answer", r, err)
				}
			})
		}
		wg.Wait()
		require.Equal(t, 4*rtt, time.Since(start), "in four goes of 256 at most")
		synctest.Wait()
		require.Zero(t, asking())
	})
}

// asking counts the goroutines that ask a primary. Those of clients come and go.
func asking() int {
	stacks := make([]byte, 8<<20)
	return bytes.Count(stacks[:runtime.Stack(stacks, true)], []byte("(*attempt).run("))
}

func TestFallbackCallersThatNeverReachThePrimary(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const budget = 50 * milli
		primary := after(budget - milli)
		f := newTestFallback(t, primary, always(bySecondary, nil), ratelimit.WithBudget(budget))
		var wg sync.WaitGroup
		for range guard.MaxRunning {
			wg.Go(func() {
				r, err := f.TryAcquire(t.Context(), "k")
				if r != byPrimary || err != nil {
					t.Errorf("got %+v, %v; want the primary's answer", r, err)
				}
			})
		}
		synctest.Wait()

		// One leaves while it waits, one starts just before its budget is over.
		ctx, cancel := context.WithTimeout(t.Context(), 10*milli)
		defer cancel()
		r, err := f.TryAcquire(ctx, "k")
		require.Zero(t, r)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		start := time.Now()
		r, err = f.TryAcquire(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, substituted, r)
		require.Equal(t, budget, time.Since(start))
		wg.Wait()
		require.EqualValues(t, guard.MaxRunning+1, primary.Count(), "the primary is not called for a caller that left")
		time.Sleep(time.Second)
		require.Zero(t, ratelimit.GuardOf(f).Bound.Abandoned.Load())
		require.Empty(t, ratelimit.GuardOf(f).Bound.Running)
	})
}

func TestFallbackPanicOfThePrimary(t *testing.T) {
	for _, mode := range fallbackModes {
		t.Run(mode.name, func(t *testing.T) {
			before := runtime.NumGoroutine()
			primary := &limitertest.Stub{Answer: func(context.Context, string, int) (ratelimit.Result, error) { panic("at the caller's") }}
			f := newTestFallback(t, primary, ratelimit.AllowAll(), mode.opts()...)
			for range 10 {
				require.PanicsWithValue(t, "at the caller's", func() { _, _ = f.TryAcquire(t.Context(), "k") })
				if primary.Count() == ratelimit.DefaultFailures && ratelimit.GuardOf(f).Breakers != nil {
					break // now it is open
				}
			}
			if ratelimit.GuardOf(f).Breakers != nil {
				r, err := f.TryAcquire(t.Context(), "k")
				require.NoError(t, err)
				require.True(t, r.Fallback, "a panic is a failure")
			}
			settled(t, before)
			if ratelimit.GuardOf(f).Bound != nil {
				require.Zero(t, ratelimit.GuardOf(f).Bound.Abandoned.Load())
				require.Empty(t, ratelimit.GuardOf(f).Bound.Running)
			}
		})
	}
	t.Run("of an abandoned call", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			primary := &limitertest.Stub{Answer: func(context.Context, string, int) (ratelimit.Result, error) {
				time.Sleep(time.Second)
				panic("no caller listens")
			}}
			f := newTestFallback(t, primary, always(bySecondary, nil), ratelimit.WithBudget(milli))
			r, err := f.TryAcquire(t.Context(), "k")
			require.NoError(t, err)
			require.Equal(t, substituted, r)
			time.Sleep(2 * time.Second)
			synctest.Wait()
			require.Zero(t, ratelimit.GuardOf(f).Bound.Abandoned.Load())
			require.Empty(t, ratelimit.GuardOf(f).Bound.Running)
		})
	})
	t.Run("or the end of its goroutine", func(t *testing.T) {
		primary := &limitertest.Stub{Answer: func(context.Context, string, int) (ratelimit.Result, error) { runtime.Goexit(); return byPrimary, nil }}
		r, err := newTestFallback(t, primary, always(bySecondary, nil), ratelimit.WithBudget(time.Minute)).TryAcquire(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, substituted, r)
	})
}

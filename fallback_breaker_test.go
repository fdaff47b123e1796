package ratelimit_test

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/guard"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// A settablePrimary is a primary whose state a test sets.
type settablePrimary struct {
	limitertest.Stub
	err  error         // what it fails with
	took time.Duration // for each call
}

func newSettablePrimary() *settablePrimary {
	p := new(settablePrimary)
	p.Answer = func(ctx context.Context, _ string, _ int) (ratelimit.Result, error) {
		err := p.err
		select {
		case <-time.After(p.took):
		case <-ctx.Done():
			return ratelimit.Result{}, ctx.Err()
		}
		if err != nil {
			return ratelimit.Result{}, err
		}
		return byPrimary, nil
	}
	return p
}

// states collects the changes of a breaker's state.
func states(list *[]string) ratelimit.PolicyOption {
	start := time.Now()
	return ratelimit.WithObserver(func(_ context.Context, e ratelimit.Observation) {
		if e.Call == "breaker" {
			*list = append(*list, fmt.Sprintf("%v: %v to %v", time.Since(start), e.From, e.Breaker))
		}
	})
}

// The breaker decides alike with a budget and without one.
var breakerModes = []struct {
	name string
	opts []ratelimit.PolicyOption
}{
	{"no budget", nil},
	{"budget", []ratelimit.PolicyOption{ratelimit.WithBudget(10 * time.Second)}},
}

func TestBreakerOpensProbesAndCloses(t *testing.T) {
	for _, mode := range breakerModes {
		t.Run(mode.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				primary := newSettablePrimary()
				var changes []string
				f := newTestFallback(t, primary, always(bySecondary, nil),
					append(mode.opts, states(&changes), ratelimit.WithBreaker(&ratelimit.Breaker{Failures: 3, ProbeEvery: 100 * milli}))...)
				start := time.Now()
				for i, step := range []struct {
					at    time.Duration
					err   error // of the primary
					want  ratelimit.Result
					asked bool // the primary was
				}{
					{at: 0, want: byPrimary, asked: true},
					{at: 0, err: errDown, want: substituted, asked: true},
					{at: 0, err: errDown, want: substituted, asked: true},
					{at: 0, want: byPrimary, asked: true}, // a success in between restarts the count
					{at: 0, err: errDown, want: substituted, asked: true},
					{at: 0, err: errDown, want: substituted, asked: true},
					{at: 5 * milli, err: errDown, want: substituted, asked: true}, // the third in a row
					{at: 5 * milli, want: substituted},
					{at: 105*milli - 1, want: substituted},
					{at: 105 * milli, err: errDown, want: substituted, asked: true}, // a probe
					{at: 105 * milli, want: substituted},
					{at: 205*milli - 1, want: substituted},
					{at: 205 * milli, want: byPrimary, asked: true}, // it is back
					{at: 205 * milli, want: byPrimary, asked: true},
					{at: time.Minute, err: errDown, want: substituted, asked: true},
					{at: time.Minute, err: errDown, want: substituted, asked: true},
					{at: time.Minute, want: byPrimary, asked: true},
				} {
					time.Sleep(time.Until(start.Add(step.at)))
					primary.err = step.err
					before := primary.Count()
					r, err := f.TryAcquire(t.Context(), "k")
					require.NoError(t, err, "step %d", i)
					require.Equal(t, step.want, r, "step %d", i)
					require.Equal(t, step.asked, primary.Count() > before, "step %d", i)
				}
				require.Equal(t, []string{
					"5ms: closed to open",
					"105ms: open to half-open",
					"105ms: half-open to open",
					"205ms: open to half-open",
					"205ms: half-open to closed",
				}, changes)
			})
		})
	}
}

func TestBreakerDefaults(t *testing.T) {
	bubble(t, func(t *testing.T) {
		primary := newSettablePrimary()
		primary.err = errDown
		f := newTestFallback(t, primary, ratelimit.AllowAll(), ratelimit.WithBreaker(&ratelimit.Breaker{}))
		for range 100 {
			_, err := f.TryAcquire(t.Context(), "k")
			require.NoError(t, err)
		}
		require.EqualValues(t, 5, primary.Count())
		time.Sleep(200*milli - time.Nanosecond)
		_, _ = f.TryAcquire(t.Context(), "k")
		require.EqualValues(t, 5, primary.Count())
		time.Sleep(time.Nanosecond)
		_, _ = f.TryAcquire(t.Context(), "k")
		require.EqualValues(t, 6, primary.Count())
	})
}

func TestBreakerOpenIsToldWhenTheSecondaryFailsToo(t *testing.T) {
	for _, mode := range breakerModes {
		var events []ratelimit.Observation
		f := newTestFallback(t, always(ratelimit.Result{}, errDown), always(ratelimit.Result{}, io.ErrClosedPipe), append(mode.opts,
			ratelimit.WithBreaker(&ratelimit.Breaker{Failures: 1, ProbeEvery: time.Hour}),
			ratelimit.WithObserver(func(_ context.Context, e ratelimit.Observation) { events = append(events, e) }))...)
		_, failed := f.TryAcquire(t.Context(), "a")
		err := failed
		require.ErrorIs(t, err, errDown)
		require.ErrorIs(t, err, io.ErrClosedPipe)
		r, err := f.TryAcquire(t.Context(), "b")
		require.Zero(t, r)
		require.ErrorIs(t, err, ratelimit.ErrBreakerOpen)
		require.ErrorIs(t, err, io.ErrClosedPipe)
		require.EqualError(t, err, `ratelimit: fallback for "b": primary: ratelimit: the breaker is open; secondary: io: read/write on closed pipe`)
		asked := ratelimit.Observation{Limiter: "default", Call: "acquire", Outcome: ratelimit.OutcomeFailed, Source: ratelimit.SourceFallback, N: 1, Breaker: ratelimit.BreakerOpen}
		first, second := asked, asked
		first.Key, first.Err, first.Reason = "a", failed, errDown
		second.Key, second.Err, second.Reason = "b", err, ratelimit.ErrBreakerOpen
		require.Equal(t, []ratelimit.Observation{
			{Limiter: "default", Call: "breaker", Outcome: ratelimit.OutcomeDone, From: ratelimit.BreakerClosed, Breaker: ratelimit.BreakerOpen}, first, second,
		}, ratelimit.Untimed(events))
	}
}

func TestBreakerCountsOutagesOnly(t *testing.T) {
	for _, mode := range breakerModes {
		for _, c := range []struct {
			name    string
			err     error
			between bool // failures before and after it are still in a row
			opens   bool // enough of it open the breaker
		}{
			{name: "an outage", err: errDown, between: true, opens: true},
			{name: "a success", between: false},
			{name: "a denial returned as an error", err: ratelimit.ErrDenied, between: false},
			{name: "an empty key", err: ratelimit.ErrInvalidKey, between: true},
			{name: "a wrong number", err: ratelimit.ErrInvalidPermits, between: true},
			{name: "too many permits", err: ratelimit.ErrExceedsLimit, between: true},
			{name: "a corrupt key", err: fmt.Errorf("x: %w", ratelimit.ErrCorruptState), between: true},
		} {
			t.Run(mode.name+"/"+c.name, func(t *testing.T) {
				build := func() (*settablePrimary, *ratelimit.Fallback) {
					p := newSettablePrimary()
					return p, newTestFallback(t, p, always(bySecondary, nil),
						append(mode.opts, ratelimit.WithBreaker(&ratelimit.Breaker{Failures: 2, ProbeEvery: time.Hour}))...)
				}
				ask := func(p *settablePrimary, f *ratelimit.Fallback, err error) (asked bool) {
					p.err = err
					before := p.Count()
					_, _ = f.TryAcquire(t.Context(), "k")
					return p.Count() > before
				}
				p, f := build()
				for range 10 {
					ask(p, f, c.err)
				}
				require.Equal(t, c.opens, !ask(p, f, nil))

				p, f = build()
				ask(p, f, errDown)
				ask(p, f, c.err)
				if !c.opens {
					ask(p, f, errDown)
				}
				require.Equal(t, c.between, !ask(p, f, nil))
			})
		}
	}
}

// A probe that says nothing about the primary neither closes the breaker nor
// keeps others from probing.
func TestBreakerProbeWithAMistake(t *testing.T) {
	for _, mode := range breakerModes {
		t.Run(mode.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				var changes []string
				p := newSettablePrimary()
				f := newTestFallback(t, p, always(bySecondary, nil),
					append(mode.opts, states(&changes), ratelimit.WithBreaker(&ratelimit.Breaker{Failures: 1, ProbeEvery: milli}))...)
				p.err = errDown
				_, _ = f.TryAcquire(t.Context(), "k")
				time.Sleep(2 * milli)
				p.err = ratelimit.ErrExceedsLimit
				for range 3 {
					_, err := f.TryAcquireN(t.Context(), "k", 11)
					require.Equal(t, ratelimit.ErrExceedsLimit, err)
				}
				p.err = nil
				r, err := f.TryAcquire(t.Context(), "k")
				require.NoError(t, err)
				require.Equal(t, byPrimary, r)
				require.Equal(t, []string{"0s: closed to open", "2ms: open to half-open", "2ms: half-open to closed"}, changes)
			})
		})
	}
}

func TestBreakerProbesOneAtATime(t *testing.T) {
	for _, mode := range breakerModes {
		t.Run(mode.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p := newSettablePrimary()
				f := newTestFallback(t, p, always(bySecondary, nil),
					append(mode.opts, ratelimit.WithBreaker(&ratelimit.Breaker{Failures: 1, ProbeEvery: milli}))...)
				p.err = errDown
				_, _ = f.TryAcquire(t.Context(), "k")
				time.Sleep(2 * milli)
				p.err, p.took = nil, time.Second
				var primaries, secondaries atomic.Int64
				var wg sync.WaitGroup
				for range 1000 {
					wg.Go(func() {
						start := time.Now()
						r, err := f.TryAcquire(t.Context(), "k")
						if err != nil {
							t.Error(err)
						}
						if r.Fallback {
							secondaries.Add(1)
							if took := time.Since(start); took != 0 {
								t.Errorf("the secondary's answer took %v, want no time", took)
							}
						} else {
							primaries.Add(1)
						}
					})
				}
				wg.Wait()
				require.EqualValues(t, 1, primaries.Load())
				require.EqualValues(t, 999, secondaries.Load())
			})
		})
	}
}

func TestBreakerCountsCallsOverBudget(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var changes []string
		p := newSettablePrimary()
		p.took = 30 * milli // healthy, but slow
		f := newTestFallback(t, p, always(bySecondary, nil), states(&changes), ratelimit.WithBudget(10*milli),
			ratelimit.WithBreaker(&ratelimit.Breaker{Failures: 3, ProbeEvery: 100 * milli}))
		for range 10 {
			r, err := f.TryAcquire(t.Context(), "k")
			require.NoError(t, err)
			require.Equal(t, substituted, r)
		}
		require.EqualValues(t, 3, p.Count())
		time.Sleep(101 * milli)
		r, err := f.TryAcquire(t.Context(), "k") // its late success does not close the breaker
		require.NoError(t, err)
		require.Equal(t, substituted, r)
		time.Sleep(90 * milli)
		synctest.Wait()
		p.took = milli
		r, err = f.TryAcquire(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, substituted, r)
		time.Sleep(11 * milli)
		r, err = f.TryAcquire(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, byPrimary, r)
		require.Equal(t, []string{
			"30ms: closed to open",
			"131ms: open to half-open",
			"141ms: half-open to open",
			"242ms: open to half-open",
			"243ms: half-open to closed",
		}, changes)
	})
}

// A service whose requests end before the primary does must still find out that
// it hangs; and a client that sends tiny deadlines must not open the breaker.
func TestBreakerWithCallersWhoLeave(t *testing.T) {
	leave := func(t *testing.T, f *ratelimit.Fallback, after time.Duration) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), after)
		defer cancel()
		r, err := f.TryAcquire(ctx, "k")
		require.Zero(t, r)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
	t.Run("without a budget", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			p := newSettablePrimary()
			p.took = time.Hour
			f := newTestFallback(t, p, always(bySecondary, nil), ratelimit.WithBreaker(&ratelimit.Breaker{Failures: 3}))
			for range 100 {
				leave(t, f, guard.FailureAfter-1)
			}
			leave(t, f, guard.FailureAfter)
			leave(t, f, guard.FailureAfter-1) // no success either
			leave(t, f, guard.FailureAfter)
			leave(t, f, guard.FailureAfter)
			r, err := f.TryAcquire(t.Context(), "k")
			require.NoError(t, err)
			require.Equal(t, substituted, r)
			require.EqualValues(t, 104, p.Count())
		})
	})
	t.Run("before a budget that the primary exceeds", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			p := newSettablePrimary()
			p.took = time.Hour
			var changes []string
			f := newTestFallback(t, p, always(bySecondary, nil), states(&changes), ratelimit.WithBudget(50*milli), ratelimit.WithBreaker(&ratelimit.Breaker{Failures: 3}))
			for range 3 {
				leave(t, f, 5*milli)
			}
			time.Sleep(50 * milli) // no call waits any more, and yet the outage is noticed
			synctest.Wait()
			require.Equal(t, []string{"60ms: closed to open"}, changes)
			r, err := f.TryAcquire(t.Context(), "k")
			require.NoError(t, err)
			require.Equal(t, substituted, r)
		})
	})
	t.Run("before a budget that the primary keeps", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			p := newSettablePrimary()
			p.took = 20 * milli
			f := newTestFallback(t, p, always(bySecondary, nil), ratelimit.WithBudget(50*milli), ratelimit.WithBreaker(&ratelimit.Breaker{Failures: 3}))
			for range 100 {
				leave(t, f, 5*milli)
			}
			time.Sleep(time.Second)
			r, err := f.TryAcquire(t.Context(), "k")
			require.NoError(t, err)
			require.Equal(t, byPrimary, r)
		})
	})
	t.Run("in a probe", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			p := newSettablePrimary()
			p.took = time.Hour
			f := newTestFallback(t, p, always(bySecondary, nil), ratelimit.WithBudget(50*milli),
				ratelimit.WithBreaker(&ratelimit.Breaker{Failures: 1, ProbeEvery: 100 * milli}))
			r, err := f.TryAcquire(t.Context(), "k")
			require.NoError(t, err)
			require.Equal(t, substituted, r)
			time.Sleep(101 * milli)
			leave(t, f, milli) // the probe, which fails when its budget is over
			time.Sleep(150 * milli)
			synctest.Wait()
			p.took = 0
			r, err = f.TryAcquire(t.Context(), "k")
			require.NoError(t, err)
			require.Equal(t, byPrimary, r)
		})
	})
}

func TestBreakerOpenForACallerWhoHasLeft(t *testing.T) {
	for _, mode := range breakerModes {
		secondary := always(bySecondary, nil)
		f := newTestFallback(t, always(ratelimit.Result{}, errDown), secondary,
			append(mode.opts, ratelimit.WithBreaker(&ratelimit.Breaker{Failures: 1, ProbeEvery: time.Hour}))...)
		_, err := f.TryAcquire(t.Context(), "k")
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		r, err := f.TryAcquire(ctx, "k")
		require.Zero(t, r)
		require.EqualError(t, err, `ratelimit: fallback for "k": context canceled`)
		require.ErrorIs(t, err, context.Canceled)
		require.EqualValues(t, 1, secondary.Count())
	}
}

// A probe that ended before it reached the primary proves nothing, and another call may probe.
func TestBreakerProbeWhoseTurnDoesNotCome(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newSettablePrimary()
		p.err = errDown
		f := newTestFallback(t, p, always(bySecondary, nil), ratelimit.WithBudget(50*milli),
			ratelimit.WithBreaker(&ratelimit.Breaker{Failures: 1, ProbeEvery: 100 * milli}))
		r, err := f.TryAcquire(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, substituted, r)
		time.Sleep(101 * milli)
		for range guard.MaxRunning {
			ratelimit.GuardOf(f).Bound.Running <- struct{}{}
		}
		ctx, cancel := context.WithTimeout(t.Context(), milli)
		defer cancel()
		r, err = f.TryAcquire(ctx, "k")
		require.Zero(t, r)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		for range guard.MaxRunning {
			<-ratelimit.GuardOf(f).Bound.Running
		}
		p.err = nil
		r, err = f.TryAcquire(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, byPrimary, r)
		require.EqualValues(t, 2, p.Count())
	})
}

func TestBreakerNames(t *testing.T) {
	require.Equal(t, "closed half-open open unknown state",
		fmt.Sprint(ratelimit.BreakerClosed, " ", ratelimit.BreakerHalfOpen, " ", ratelimit.BreakerOpen, " ", ratelimit.BreakerState(7)))
}

// smallest is a limiter that asks Redis, as small as can be.
type smallest struct{ client *redis.Client }

func (c smallest) TryAcquire(ctx context.Context, key string) (ratelimit.Result, error) {
	return c.TryAcquireN(ctx, key, 1)
}

func (c smallest) TryAcquireN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	if err := c.client.IncrBy(ctx, key, int64(n)).Err(); err != nil {
		return ratelimit.Result{}, err
	}
	return byPrimary, nil
}

func (c smallest) Peek(ctx context.Context, key string) (ratelimit.Result, error) {
	return c.TryAcquireN(ctx, key, 0)
}

func (c smallest) Reset(ctx context.Context, key string) error { return c.client.Del(ctx, key).Err() }

// A server that is killed under 1,000 decisions a second, with a client as it
// comes: every call is allowed, by the secondary during the outage, and the primary decides
// again after its return. The budget is so long that a busy machine is no outage.
func TestBreakerServerKilledUnderLoad(t *testing.T) {
	if testing.Short() {
		t.Skip("takes four seconds of real time")
	}
	server := miniredis.RunT(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = client.Close() })

	const (
		budget = 250 * milli
		pause  = time.Millisecond
	)
	begin := time.Now()
	var mu sync.Mutex // guards changes
	var changes []string
	f := newTestFallback(t, smallest{client}, ratelimit.AllowAll(), ratelimit.WithBudget(budget), ratelimit.WithBreaker(&ratelimit.Breaker{}), ratelimit.WithObserver(func(_ context.Context, e ratelimit.Observation) {
		if e.Call == "breaker" {
			mu.Lock()
			defer mu.Unlock()
			changes = append(changes, fmt.Sprintf("%v %v", time.Since(begin).Round(milli), e.Breaker))
		}
	}))
	// The first connections are made before the clock starts.
	require.NoError(t, client.Ping(t.Context()).Err())

	type decision struct {
		at, took time.Duration
		fallback bool
	}
	var wg sync.WaitGroup
	lock := sync.Mutex{} // guards decisions
	var decisions []decision
	run := func(for_ time.Duration) {
		tick := time.NewTicker(pause)
		defer tick.Stop()
		for end := time.Now().Add(for_); time.Now().Before(end); {
			<-tick.C
			wg.Go(func() {
				start := time.Now()
				r, err := f.TryAcquire(t.Context(), "k")
				took := time.Since(start)
				if err != nil || !r.Allowed {
					t.Errorf("got %+v, %v; want an allowed call", r, err)
				}
				lock.Lock()
				defer lock.Unlock()
				decisions = append(decisions, decision{start.Sub(begin), took, r.Fallback})
			})
		}
	}
	run(500 * milli)
	killed := time.Since(begin)
	server.Close()
	run(2 * time.Second)
	returned := time.Since(begin)
	require.NoError(t, server.Restart())
	isBack := func() bool {
		lock.Lock()
		defer lock.Unlock()
		return slices.ContainsFunc(decisions, func(d decision) bool { return d.at > returned && !d.fallback })
	}
	for range 300 { // half a minute, for a machine that is very busy
		if run(100 * milli); isBack() {
			break
		}
	}
	wg.Wait()

	slices.SortFunc(decisions, func(a, b decision) int { return int(a.took - b.took) })
	p99, longest := decisions[len(decisions)*99/100].took, decisions[len(decisions)-1].took
	slices.SortFunc(decisions, func(a, b decision) int { return int(a.at - b.at) })
	var before, during, back time.Duration
	for _, d := range decisions {
		switch {
		case d.at > returned:
			if !d.fallback && back == 0 {
				back = d.at - returned
			}
		case d.at > killed && d.fallback:
			during++
		case d.at < killed && !d.fallback:
			before++
		}
	}
	mu.Lock()
	defer mu.Unlock()
	t.Logf("%d decisions; by the primary before: %d, by the secondary during the outage: %d; p99 %v, longest %v; back after %v; breaker %v",
		len(decisions), before, during, p99.Round(time.Microsecond), longest.Round(time.Microsecond), back.Round(milli), changes)
	require.NotZero(t, before)
	require.NotZero(t, during)
	require.NotZero(t, back, "the primary is asked again")
}

package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
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
)

// sharers returns n Fallbacks that share b, every other one with a budget, and their
// primary.
func sharers(t testing.TB, b *ratelimit.Breaker, n int, opts ...ratelimit.PolicyOption) ([]*ratelimit.Fallback, *settablePrimary) {
	t.Helper()
	p := newSettablePrimary()
	var fallbacks []*ratelimit.Fallback
	for i := range n {
		o := append([]ratelimit.PolicyOption{ratelimit.WithBreaker(b)}, opts...)
		if i%2 == 1 {
			o = append(o, ratelimit.WithBudget(time.Minute))
		}
		fallbacks = append(fallbacks, newTestFallback(t, p, always(bySecondary, nil), o...))
	}
	return fallbacks, p
}

// One request asks several limiters of one Redis, which is down.
func TestSharedBreakerNoticesAnOutageOnce(t *testing.T) {
	const limiters, requests, budget = 8, 10, 20 * milli
	for _, c := range []struct {
		name   string
		shared int             // failures that open the one breaker; 0: each Fallback has its own
		waits  []time.Duration // of the first requests; none of the others waits
	}{
		{"a breaker each", 0, []time.Duration{8 * budget, 8 * budget, 8 * budget, 8 * budget, 8 * budget}},
		{"one breaker", 5, []time.Duration{5 * budget}},
		{"one breaker that opens at 10", 10, []time.Duration{8 * budget, 2 * budget}},
		{"one breaker that opens at once", 1, []time.Duration{budget}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				breaker := func() *ratelimit.Breaker { return &ratelimit.Breaker{ProbeEvery: time.Hour} }
				if c.shared != 0 {
					one := &ratelimit.Breaker{Failures: c.shared, ProbeEvery: time.Hour}
					breaker = func() *ratelimit.Breaker { return one }
				}
				p := hanging()
				var fallbacks []*ratelimit.Fallback
				for range limiters {
					fallbacks = append(fallbacks, newTestFallback(t, p, always(bySecondary, nil), ratelimit.WithBudget(budget), ratelimit.WithBreaker(breaker())))
				}
				for i := range requests {
					start := time.Now()
					for _, f := range fallbacks {
						require.Equal(t, substituted, must(t)(f.TryAcquire(t.Context(), "k")))
					}
					var want time.Duration
					if i < len(c.waits) {
						want = c.waits[i]
					}
					require.Equal(t, want, time.Since(start), "request %d", i+1)
				}
			})
		})
	}
}

func TestSharedBreakerCountsTheCallsOfAll(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := &ratelimit.Breaker{Failures: 3, ProbeEvery: 100 * milli}
		all, p := sharers(t, b, 4)
		start := time.Now()
		for i, step := range []struct {
			at    time.Duration
			by    int // which Fallback
			err   error
			asked bool
			state ratelimit.BreakerState // after the call
		}{
			{0, 0, errDown, true, ratelimit.BreakerClosed},
			{0, 1, errDown, true, ratelimit.BreakerClosed},
			{0, 2, nil, true, ratelimit.BreakerClosed}, // a success of any sets the count to 0
			{0, 3, errDown, true, ratelimit.BreakerClosed},
			{0, 0, fmt.Errorf("x: %w", ratelimit.ErrCorruptState), true, ratelimit.BreakerClosed}, // counts for none of them
			{0, 1, errDown, true, ratelimit.BreakerClosed},
			{0, 2, fmt.Errorf("x: %w", ratelimit.ErrCorruptState), true, ratelimit.BreakerClosed},
			{0, 2, ratelimit.ErrInvalidConfig, true, ratelimit.BreakerClosed}, // a caller's mistake neither
			{0, 3, errDown, true, ratelimit.BreakerOpen},
			{0, 0, nil, false, ratelimit.BreakerOpen},
			{99 * milli, 1, nil, false, ratelimit.BreakerOpen},
			{100 * milli, 2, errDown, true, ratelimit.BreakerOpen},
			{199 * milli, 3, nil, false, ratelimit.BreakerOpen},
			{200 * milli, 3, fmt.Errorf("x: %w", ratelimit.ErrCorruptState), true, ratelimit.BreakerHalfOpen},
			{200 * milli, 1, nil, true, ratelimit.BreakerClosed},
			{200 * milli, 0, nil, true, ratelimit.BreakerClosed},
			{200 * milli, 0, errDown, true, ratelimit.BreakerClosed}, // the count starts from 0
			{200 * milli, 1, errDown, true, ratelimit.BreakerClosed},
			{200 * milli, 2, errDown, true, ratelimit.BreakerOpen},
		} {
			time.Sleep(time.Until(start.Add(step.at)))
			p.err = step.err
			before := p.Count()
			_, _ = all[step.by].TryAcquire(t.Context(), "k")
			require.Equal(t, step.asked, p.Count() > before, "step %d", i)
			require.Equal(t, step.state, b.State(), "step %d", i)
		}
	})
}

// Each call is judged by the budget of its own Fallback.
func TestSharedBreakerWithDifferentBudgets(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := &ratelimit.Breaker{Failures: 2, ProbeEvery: time.Hour}
		p := newSettablePrimary()
		p.took = 30 * milli
		secondary := always(bySecondary, nil)
		tight := newTestFallback(t, p, secondary, ratelimit.WithBreaker(b), ratelimit.WithBudget(20*milli))
		wide := newTestFallback(t, p, secondary, ratelimit.WithBreaker(b), ratelimit.WithBudget(40*milli))
		none := newTestFallback(t, p, secondary, ratelimit.WithBreaker(b))
		for range 5 { // a success in between
			require.Equal(t, substituted, must(t)(tight.TryAcquire(t.Context(), "k")))
			require.Equal(t, byPrimary, must(t)(wide.TryAcquire(t.Context(), "k")))
			require.Equal(t, substituted, must(t)(tight.TryAcquire(t.Context(), "k")))
			require.Equal(t, byPrimary, must(t)(none.TryAcquire(t.Context(), "k")))
		}
		require.Equal(t, ratelimit.BreakerClosed, b.State())
		for range 2 {
			require.Equal(t, substituted, must(t)(tight.TryAcquire(t.Context(), "k")))
		}
		require.Equal(t, ratelimit.BreakerOpen, b.State())
		for _, f := range []*ratelimit.Fallback{wide, none} {
			require.Equal(t, substituted, must(t)(f.TryAcquire(t.Context(), "k")), "it is open for all")
		}
	})
}

func TestSharedBreakerProbesOneAtATime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := &ratelimit.Breaker{Failures: 1, ProbeEvery: milli}
		all, p := sharers(t, b, 10)
		p.err = errDown
		_, _ = all[0].TryAcquire(t.Context(), "k")
		time.Sleep(milli)
		p.err, p.took = nil, time.Second
		var primaries, secondaries atomic.Int64
		var wg sync.WaitGroup
		for i := range 1000 {
			wg.Go(func() {
				start := time.Now()
				r, err := all[i%len(all)].TryAcquire(t.Context(), "k")
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
		synctest.Wait()
		require.Equal(t, ratelimit.BreakerHalfOpen, b.State())
		wg.Wait()
		require.Equal(t, ratelimit.BreakerClosed, b.State())
		require.EqualValues(t, 1, primaries.Load())
		require.EqualValues(t, 999, secondaries.Load())
	})
}

// In real time, for the race detector: once the breaker has opened, no two calls ask a
// primary that stays down at the same time.
func TestSharedBreakerRaces(t *testing.T) {
	before := runtime.NumGoroutine()
	b := &ratelimit.Breaker{Failures: 1, ProbeEvery: milli, Observers: []ratelimit.Observer{func(context.Context, ratelimit.Observation) {}}}
	all, p := sharers(t, b, 6)
	p.err = errDown
	_, _ = all[0].TryAcquire(t.Context(), "k")
	var asking, most, probes atomic.Int64
	p.Answer = func(context.Context, string, int) (ratelimit.Result, error) {
		if n := asking.Add(1); n > most.Load() {
			most.Store(n)
		}
		time.Sleep(100 * time.Microsecond)
		asking.Add(-1)
		if probes.Add(1)%3 == 0 {
			return ratelimit.Result{}, ratelimit.ErrCorruptState // of one key: another call may probe, and no secondary answers
		}
		return ratelimit.Result{}, errDown
	}
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			for probes.Load() < 30 {
				r, err := all[i%len(all)].TryAcquire(context.Background(), "k")
				if err == nil && r != substituted || err != nil && !errors.Is(err, ratelimit.ErrCorruptState) {
					t.Error(r, err)
				}
				_ = b.State()
				time.Sleep(20 * time.Microsecond) // leaves a core to the probe
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 1, most.Load())
	settled(t, before)
}

// A verdict counts only if the state has not changed since its call began.
func TestBreakerIgnoresLateVerdicts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := (&ratelimit.Breaker{Failures: 2, ProbeEvery: milli}).Begun()
		begin := func() func(error) {
			t.Helper()
			done := b.Allow()
			require.NotNil(t, done)
			return done
		}
		late := make([]func(error), 9)
		for i := range late {
			late[i] = begin()
		}
		b.End(late[0], errDown)
		b.End(late[1], errDown)
		require.Equal(t, ratelimit.BreakerOpen, ratelimit.BreakerState(b.State()))
		b.End(late[2], nil)
		b.End(late[3], errDown)
		require.Equal(t, ratelimit.BreakerOpen, ratelimit.BreakerState(b.State()), "calls from before it opened say nothing")

		time.Sleep(milli)
		probe := begin()
		b.End(late[4], nil)
		b.End(late[5], errDown)
		b.End(late[6], ratelimit.ErrInvalidKey)
		require.Equal(t, ratelimit.BreakerHalfOpen, ratelimit.BreakerState(b.State()))
		require.Nil(t, b.Allow(), "the probe is still on its way")
		b.End(probe, nil)
		require.Equal(t, ratelimit.BreakerClosed, ratelimit.BreakerState(b.State()))

		b.End(begin(), errDown)
		b.End(late[7], errDown)
		require.Equal(t, ratelimit.BreakerClosed, ratelimit.BreakerState(b.State()), "a failure of an earlier time is not the second in a row")
		b.End(late[8], nil)
		b.End(begin(), errDown)
		require.Equal(t, ratelimit.BreakerOpen, ratelimit.BreakerState(b.State()), "nor does a success of an earlier time set the count to 0")
	})
}

// An open breaker whose time has passed becomes half-open with the first call that begins
// or ends, and with nothing else.
func TestBreakerBecomesHalfOpenWithACall(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for name, verdict := range map[string]error{"success": nil, "failure": errDown, "neutral": ratelimit.ErrInvalidKey} {
			var events []ratelimit.Observation
			b := (&ratelimit.Breaker{Failures: 1, ProbeEvery: milli, Observers: []ratelimit.Observer{func(_ context.Context, e ratelimit.Observation) { events = append(events, e) }}}).Begun()
			early, late, last := b.Allow(), b.Allow(), b.Allow()
			b.End(last, errDown)
			opened := ratelimit.Observation{Limiter: "default", Call: "breaker", Outcome: ratelimit.OutcomeDone, From: ratelimit.BreakerClosed, Breaker: ratelimit.BreakerOpen}
			halfOpened := ratelimit.Observation{Limiter: "default", Call: "breaker", Outcome: ratelimit.OutcomeDone, From: ratelimit.BreakerOpen, Breaker: ratelimit.BreakerHalfOpen}

			time.Sleep(milli - 1)
			b.End(early, verdict)
			require.Nil(t, b.Allow(), name)
			time.Sleep(time.Nanosecond)
			require.Equal(t, ratelimit.BreakerOpen, ratelimit.BreakerState(b.State()), name)
			require.Equal(t, time.Microsecond, guard.Breakers{b}.UntilProbe(), name)
			require.Equal(t, []ratelimit.Observation{opened}, events, name)

			b.End(late, verdict)
			require.Equal(t, ratelimit.BreakerHalfOpen, ratelimit.BreakerState(b.State()), name)
			require.Equal(t, milli, guard.Breakers{b}.UntilProbe(), name)
			require.Equal(t, []ratelimit.Observation{opened, halfOpened}, events, name)
			require.NotNil(t, b.Allow(), "%s: it was no probe", name)
			require.Nil(t, b.Allow(), name)
		}
	})
}

func TestBreakerAProbeThatPanicsOrExitsIsAFailure(t *testing.T) {
	for _, mode := range breakerModes {
		for name, leave := range map[string]func(){"panic": func() { panic("primary") }, "exit": runtime.Goexit} {
			t.Run(mode.name+"/"+name, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					b := &ratelimit.Breaker{Failures: 1, ProbeEvery: milli}
					p := always(ratelimit.Result{}, errDown)
					f := newTestFallback(t, p, always(bySecondary, nil), append(mode.opts, ratelimit.WithBreaker(b))...)
					_, _ = f.TryAcquire(t.Context(), "k")
					time.Sleep(milli)
					p.Answer = func(context.Context, string, int) (ratelimit.Result, error) {
						leave()
						return byPrimary, nil
					}
					done := make(chan struct{})
					go func() {
						defer close(done)
						defer func() { _ = recover() }()
						_, _ = f.TryAcquire(context.Background(), "k")
					}()
					<-done
					require.Equal(t, ratelimit.BreakerOpen, b.State())
					time.Sleep(milli)
					p.Answer = func(context.Context, string, int) (ratelimit.Result, error) { return byPrimary, nil }
					require.Equal(t, byPrimary, must(t)(f.TryAcquire(t.Context(), "k")))
				})
			})
		}
	}
}

// The same observer for the breaker and its Fallbacks gets every event once.
func TestSharedBreakerObserver(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var got []string
		observer := func(of string) ratelimit.Observer {
			return func(_ context.Context, e ratelimit.Observation) {
				if e.Call == "breaker" {
					require.Equal(t, ratelimit.Observation{Limiter: "redis", Call: "breaker", Outcome: ratelimit.OutcomeDone, From: e.From, Breaker: e.Breaker}, e)
					got = append(got, fmt.Sprint(of, ": ", e.From, " to ", e.Breaker))
				} else {
					got = append(got, fmt.Sprint(of, ": ", whyAsked(e)))
				}
			}
		}
		observe := func(of string) ratelimit.Option { return ratelimit.WithObserver(observer(of)) }
		b := &ratelimit.Breaker{Failures: 2, ProbeEvery: milli, Name: "redis", Observers: []ratelimit.Observer{observer("breaker")}}
		p := newSettablePrimary()
		p.err = errDown
		secondary := always(bySecondary, nil)
		first := newTestFallback(t, p, secondary, ratelimit.WithBreaker(b), observe("first"))
		second := newTestFallback(t, p, secondary, observe("second"), ratelimit.WithBreaker(b), ratelimit.WithBudget(time.Minute))
		silent := newTestFallback(t, p, secondary, ratelimit.WithBreaker(b))
		for _, f := range []*ratelimit.Fallback{first, second, silent, first} {
			_, err := f.TryAcquire(t.Context(), "k")
			require.NoError(t, err)
		}
		time.Sleep(milli)
		p.err = nil
		_, err := silent.TryAcquire(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, []string{
			"first: primary failed",
			"breaker: closed to open",
			"second: primary failed",
			"first: breaker open",
			"breaker: open to half-open",
			"breaker: half-open to closed",
		}, got)
	})
}

func TestSharedBreakerReportsToTheFirstObservers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var changes []string
		b := &ratelimit.Breaker{Failures: 1}
		_ = newTestFallback(t, ratelimit.AllowAll(), ratelimit.AllowAll(), ratelimit.WithBreaker(b)) // has no observers
		f := newTestFallback(t, always(ratelimit.Result{}, errDown), always(bySecondary, nil), ratelimit.WithBreaker(b), states(&changes), ratelimit.WithName("first"))
		_ = newTestFallback(t, ratelimit.AllowAll(), ratelimit.AllowAll(), ratelimit.WithBreaker(b),
			ratelimit.WithObserver(func(context.Context, ratelimit.Observation) { t.Error("nobody else gets them") }))
		require.Equal(t, substituted, must(t)(f.TryAcquire(t.Context(), "k")))
		require.Equal(t, []string{"0s: closed to open"}, changes)
	})
}

func TestSharedBreakerWithoutObserver(t *testing.T) {
	b := &ratelimit.Breaker{Failures: 1}
	f := newTestFallback(t, always(ratelimit.Result{}, errDown), always(bySecondary, nil), ratelimit.WithBreaker(b))
	require.Equal(t, ratelimit.BreakerClosed, b.State())
	require.Equal(t, substituted, must(t)(f.TryAcquire(t.Context(), "k")))
	require.Equal(t, ratelimit.BreakerOpen, b.State())
	require.Empty(t, b.Queued(), "what no observer gets is not kept")
}

func TestBreakerConfigErrors(t *testing.T) {
	b := &ratelimit.Breaker{}
	inner := newTestFallback(t, ratelimit.AllowAll(), ratelimit.DenyAll(), ratelimit.WithBreaker(b))
	fallback := func(primary ratelimit.Limiter, opts ...ratelimit.PolicyOption) func() (any, error) {
		return func() (any, error) { return ratelimit.NewFallback(primary, ratelimit.AllowAll(), opts...) }
	}
	breaker := func(b *ratelimit.Breaker) func() (any, error) {
		return fallback(ratelimit.AllowAll(), ratelimit.WithBreaker(b))
	}
	const twice = "NewFallback: the primary already has the breaker of WithBreaker; give it to one of the two only"
	for _, c := range []struct {
		name  string
		build func() (any, error)
		want  string
	}{
		{"no failures", breaker(&ratelimit.Breaker{Failures: -1}), "WithBreaker: -1 Failures are not between 1 and 2147483647; leave the field out for 5"},
		{"no pause", breaker(&ratelimit.Breaker{ProbeEvery: -milli}), "WithBreaker: a ProbeEvery of -1ms is below 1ms; leave the field out for 200ms"},
		{"no observer", breaker(&ratelimit.Breaker{Observers: []ratelimit.Observer{nil}}), "WithBreaker: observer 1 is nil; leave it out"},
		{"nil breaker", breaker(nil), "WithBreaker: the breaker is nil; &Breaker{} has the defaults"},
		{"two shared", fallback(ratelimit.DenyAll(), ratelimit.WithBreaker(b), ratelimit.WithBreaker(b)), "WithBreaker is given twice"},
		{"two breakers", fallback(ratelimit.DenyAll(), ratelimit.WithBreaker(&ratelimit.Breaker{}), ratelimit.WithBreaker(b)), "WithBreaker is given twice"},
		{"the primary's", fallback(inner, ratelimit.WithBreaker(b)), twice},
		{"the primary's, in a DenyCache", fallback(ratelimit.Must(ratelimit.NewDenyCache(inner)), ratelimit.WithBreaker(b)), twice},
		{"the primary's primary's", fallback(newTestFallback(t, inner, ratelimit.DenyAll()), ratelimit.WithBreaker(b)), twice},
		{"a primary that was not built", fallback((*ratelimit.Fallback)(nil), ratelimit.WithBreaker(b)), "NewFallback: the primary is nil"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := c.build()
			require.Nil(t, got)
			require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
			require.EqualError(t, err, "ratelimit: invalid configuration: "+c.want)
		})
	}
	for _, primary := range []ratelimit.Limiter{
		ratelimit.Must(ratelimit.NewDenyCache(newTestFallback(t, ratelimit.AllowAll(), ratelimit.DenyAll(), ratelimit.WithBreaker(&ratelimit.Breaker{})))),
		newTestFallback(t, ratelimit.AllowAll(), inner), // as the secondary it is asked after the outer one has judged
		&ratelimit.Fallback{},
	} {
		_, err := ratelimit.NewFallback(primary, ratelimit.AllowAll(), ratelimit.WithBreaker(b))
		require.NoError(t, err)
	}
}

// The longest time between two probes is no time in the past.
func TestBreakerProbesAfterAnyTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := (&ratelimit.Breaker{Failures: 1, ProbeEvery: math.MaxInt64}).Begun()
		b.End(b.Allow(), errDown)
		time.Sleep(time.Second)
		require.Nil(t, b.Allow())
		require.Equal(t, time.Duration(math.MaxInt64)-time.Second, guard.Breakers{b}.UntilProbe())
	})
}

// The docs say what a call costs.
func TestBreakerAllocatesOnceForEachCall(t *testing.T) {
	b := (&ratelimit.Breaker{Failures: 1, ProbeEvery: time.Hour, Observers: []ratelimit.Observer{func(context.Context, ratelimit.Observation) {}}}).Begun()
	require.EqualValues(t, 1, testing.AllocsPerRun(100, func() { b.End(b.Allow(), nil) }))
	b.End(b.Allow(), errDown)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if b.Allow() != nil {
			t.Error("the breaker is closed")
		}
	}))
}

package ratelimit_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
)

// A slicedKind is a limiter whose keys have slices, by processes with a Leased, and tickets with a lease, by others.
type slicedKind struct {
	build    func(c ratelimit.Client, opts ...ratelimit.Option) (settling, error)
	longest  time.Duration // of a slice
	rules    []ratelimit.Rule
	windowed func(now time.Time) time.Time // the start of the window; nil: at most the limit in any window
	rate     bool                          // at most burst + rate × t in any interval
	inexact  bool                          // what comes back may exceed the rule
	rounded  bool                          // windows end some milliseconds later by one limiter than by the other
}

func slicedKinds(rng *rand.Rand) map[string]slicedKind {
	limit, window := 20+rng.IntN(40), time.Duration(4+rng.IntN(20))*time.Second
	rule := []ratelimit.Rule{{Limit: limit, Window: window}}
	rules := append(rule, ratelimit.Rule{Limit: limit + limit/2, Window: 2 * window})
	parts := 1 << rng.IntN(4)
	window -= window % (time.Duration(parts) * time.Microsecond)
	bucket := func(o ...ratelimit.Option) func(c ratelimit.Client, opts ...ratelimit.Option) (settling, error) {
		return func(c ratelimit.Client, opts ...ratelimit.Option) (settling, error) {
			return ratelimit.NewTokenBucket(c, ratelimit.Per(limit, window), limit, append(o, opts...)...)
		}
	}
	return map[string]slicedKind{
		"bucket": {build: bucket(), longest: window / 4, rules: rule, rate: true, inexact: true},
		"bucket that gives back exactly": {
			build: bucket(ratelimit.WithExactReturns()), longest: window / 4, rules: rule, rate: true,
		},
		"fixed window": {build: func(c ratelimit.Client, opts ...ratelimit.Option) (settling, error) {
			return ratelimit.NewFixedWindow(c, limit, time.Minute, opts...)
		}, longest: 10 * time.Second, rules: []ratelimit.Rule{{Limit: limit, Window: time.Minute}}, inexact: true, rounded: true},
		"aligned window": {build: func(c ratelimit.Client, opts ...ratelimit.Option) (settling, error) {
			return ratelimit.NewFixedWindow(c, limit, window, append(opts, ratelimit.WithAlignment(0))...)
		}, longest: window / 4, rules: rule, windowed: func(now time.Time) time.Time {
			return now.Add(-time.Duration(now.UnixMicro()%window.Microseconds()) * time.Microsecond)
		}},
		"calendar window": {build: func(c ratelimit.Client, opts ...ratelimit.Option) (settling, error) {
			return ratelimit.NewCalendarWindow(c, limit, ratelimit.Daily(time.UTC), opts...)
		}, longest: 10 * time.Second, rules: rule, windowed: func(now time.Time) time.Time { return now.Truncate(24 * time.Hour) }},
		"sliding window": {build: func(c ratelimit.Client, opts ...ratelimit.Option) (settling, error) {
			return ratelimit.NewSlidingWindow(c, limit, window, append(opts, ratelimit.WithSubWindows(parts))...)
		}, longest: window, rules: []ratelimit.Rule{{Limit: limit, Window: window}}},
		"log": {build: func(c ratelimit.Client, opts ...ratelimit.Option) (settling, error) {
			return ratelimit.NewSlidingLog(c, rule, append(opts, ratelimit.WithResolution(time.Second/4))...)
		}, longest: time.Second, rules: rule},
		"log of two windows": {build: func(c ratelimit.Client, opts ...ratelimit.Option) (settling, error) {
			return ratelimit.NewSlidingLog(c, rules, append(opts, ratelimit.WithResolution(time.Second))...)
		}, longest: time.Second, rules: rules},
	}
}

// A slicedTicket is one that has a lease, and the same estimate of the twin.
type slicedTicket struct {
	*ratelimit.Ticket
	twin *ratelimit.Ticket
	n    int
	at   time.Time
	ends time.Time
}

// A slicedUse is permits that count at an instant.
type slicedUse struct {
	at time.Time
	n  int
}

// A slicedWorld is a key with tickets that have a lease, and its twin, whose estimates are settled by 0 when these leases end.
// Both have the same slices.
type slicedWorld struct {
	slicedKind
	*limitertest.Stage
	rng              *rand.Rand
	leased           settling // its tickets have a lease
	plain            settling
	lease            time.Duration
	tickets, late    []*slicedTicket
	held             []heldSlice
	other            []heldSlice // the same of the twin
	spent            []slicedUse
	charged          bool
	did              []string
	slices, returned int
	tightest         float64
}

func (w *slicedWorld) note(format string, args ...any) {
	w.did = append(w.did, fmt.Sprintf("%v: ", w.Now.Sub(limitertest.Start))+fmt.Sprintf(format, args...))
}

// pass lets time pass. Leases end on the way, and what their tickets took comes back.
func (w *slicedWorld) pass(t *testing.T, d time.Duration) {
	for until := w.Now.Add(d); ; {
		var next *slicedTicket
		for _, ticket := range w.tickets {
			if !ticket.ends.After(until) && (next == nil || ticket.ends.Before(next.ends)) {
				next = ticket
			}
		}
		if next == nil {
			w.Move(until)
			return
		}
		w.Move(next.ends)
		for _, ended := range slices.Clone(w.tickets) {
			if ended.ends.Equal(next.ends) {
				w.note("the lease of %d ends", ended.n)
				w.drop(ended)
				w.late = append(w.late, ended)
				require.NoError(t, ended.twin.Settle(ctx, 0))
				w.returned += ended.n
			}
		}
		must(t)(w.leased.Peek(ctx, "k"))
		w.same(t)
	}
}

// grain is the unit of all times: miniredis cuts off what TTLs have below a millisecond.
func (w *slicedWorld) grain() time.Duration {
	if w.rounded {
		return time.Millisecond
	}
	return time.Microsecond
}

func (w *slicedWorld) drop(of *slicedTicket) {
	w.tickets = slices.DeleteFunc(w.tickets, func(t *slicedTicket) bool { return t == of })
}

// same compares what is left of the two keys, and judges what was used.
func (w *slicedWorld) same(t *testing.T) {
	t.Helper()
	got, want := must(t)(w.leased.Peek(ctx, "k")), must(t)(w.plain.Peek(ctx, "twin"))
	if w.rounded {
		got.ResetAfter, want.ResetAfter = 0, 0
	}
	require.Equal(t, want.Remaining, got.Remaining, "%v\n%v\n%v", w.did, w.Look(t, ratelimit.NameOf(w.leased, "k")), w.Look(t, ratelimit.NameOf(w.plain, "twin")))
	require.Equal(t, want.ResetAfter, got.ResetAfter, "%v", w.did)
	if w.inexact || w.charged {
		return
	}
	all := slices.Clone(w.spent)
	for _, ticket := range w.tickets { // they may be used up
		all = append(all, slicedUse{ticket.at, ticket.n})
	}
	for _, s := range w.held {
		if w.Now.Sub(limitertest.Start) < s.until { // as may what is left of slices
			all = append(all, slicedUse{w.Now, s.n})
		}
	}
	for _, r := range w.rules {
		most := 0.0
		for _, from := range all {
			sum := 0.0
			for _, u := range all {
				switch {
				case u.at.Before(from.at), w.windowed == nil && !w.rate && !u.at.Before(from.at.Add(r.Window)),
					w.windowed != nil && !w.windowed(u.at).Equal(w.windowed(from.at)):
				default:
					sum += float64(u.n)
				}
			}
			if w.rate {
				sum -= float64(r.Limit) * w.Now.Sub(from.at).Seconds() / r.Window.Seconds()
			}
			most = max(most, sum-float64(r.Limit))
			w.tightest = max(w.tightest, sum-float64(r.Limit))
		}
		require.LessOrEqual(t, most, 1e-6, "%v of %v\n%v", most, r, w.did)
	}
}

func (w *slicedWorld) step(t *testing.T) {
	rng := w.rng
	var of *slicedTicket
	if len(w.tickets) > 0 {
		of = w.tickets[rng.IntN(len(w.tickets))]
	}
	switch op := rng.IntN(16); {
	case op < 3:
		list := fmt.Appendf(nil, "%dd%d/0/%d/%d", 4+rng.IntN(30), rng.IntN(2), (w.longest / time.Duration(1+rng.IntN(3))).Microseconds(), 2+rng.Int64N(1<<50))
		got, err := ratelimit.DecideList(w.plain, "k", list)
		require.NoError(t, err)
		want, err := ratelimit.DecideList(w.plain, "twin", list)
		require.NoError(t, err)
		w.note("slice %s: %d for %d", list, got[1], got[0])
		require.Equal(t, want[1], got[1], w.did)
		if !w.rounded {
			require.Equal(t, want[0], got[0], w.did)
		}
		last, n := len(got)-2, int(got[1])
		if until := w.Now.Sub(limitertest.Start) + time.Duration(min(got[0], want[0]))*time.Microsecond; got[0] > 0 {
			w.slices++
			w.held = append(w.held, heldSlice{n, 0, until, got[last], got[last+1]})
			w.other = append(w.other, heldSlice{n, 0, until, want[last], want[last+1]})
		} else if n > 0 {
			w.spent = append(w.spent, slicedUse{w.Now, n})
		}
	case op < 5 && len(w.held) > 0: // one is spent, often at its last moment
		i := rng.IntN(len(w.held))
		if left := w.held[i].until - w.Now.Sub(limitertest.Start) - time.Microsecond; left > 0 && rng.IntN(2) == 0 {
			w.pass(t, left.Truncate(w.grain()))
		}
		if w.Now.Sub(limitertest.Start) < w.held[i].until && w.held[i].n > 0 {
			n := 1 + rng.IntN(w.held[i].n)
			w.note("spend %d", n)
			w.spent = append(w.spent, slicedUse{w.Now, n})
			w.held[i].n -= n
		}
	case op < 7 && len(w.held) > 0: // what is left of one comes back, at any time
		i := rng.IntN(len(w.held))
		s, o := w.held[i], w.other[i]
		w.held, w.other = slices.Delete(w.held, i, i+1), slices.Delete(w.other, i, i+1)
		if s.n == 0 {
			break
		}
		got, err := ratelimit.DecideList(w.plain, "k", fmt.Appendf(nil, "%dg%d/%d", s.n, s.where, s.which))
		require.NoError(t, err)
		want, err := ratelimit.DecideList(w.plain, "twin", fmt.Appendf(nil, "%dg%d/%d", s.n, o.where, o.which))
		require.NoError(t, err)
		w.note("give back %d of a slice: %d", s.n, got[0])
		require.Equal(t, want, got, w.did)
	case op < 10:
		n := 1 + rng.IntN(w.rules[0].Limit/3)
		ticket, got, err := w.leased.Estimate(ctx, "k", n)
		require.NoError(t, err)
		twin, want, err := w.plain.Estimate(ctx, "twin", n)
		require.NoError(t, err)
		w.note("estimate %d: %t", n, got.Allowed)
		require.Equal(t, want.Allowed, got.Allowed, w.did)
		if got.Allowed {
			w.tickets = append(w.tickets, &slicedTicket{ticket, twin, n, w.Now, w.Now.Add(w.lease)})
		}
	case op < 12 && of != nil:
		actual := rng.IntN(of.n + 1)
		if w.charged = w.charged || rng.IntN(20) == 0; w.charged && rng.IntN(4) == 0 {
			actual = of.n + rng.IntN(3)
		}
		w.note("settle %d of %d", actual, of.n)
		require.NoError(t, of.Settle(ctx, actual), w.did)
		require.NoError(t, of.twin.Settle(ctx, actual), w.did)
		w.drop(of)
		w.spent = append(w.spent, slicedUse{of.at, actual})
	case op == 12 && of != nil:
		w.pass(t, w.grain()) // leases of tickets of two instants do not end together
		if !slices.Contains(w.tickets, of) {
			break
		}
		w.note("extend %d", of.n)
		require.NoError(t, of.Extend(ctx), w.did)
		of.ends = w.Now.Add(w.lease)
	case op == 13 && w.charged && len(w.late) > 0:
		of, actual := w.late[0], 1+rng.IntN(3)
		w.late = w.late[1:]
		w.note("settle %d of %d, late", actual, of.n)
		require.ErrorIs(t, of.Settle(ctx, actual), ratelimit.ErrLeaseLost, w.did)
		must(t)(w.plain.Charge(ctx, "twin", actual))
	case op < 15:
		n := 1 + rng.IntN(5)
		by := []settling{w.leased, w.plain}[rng.IntN(2)]
		got, want := must(t)(by.TryAcquireN(ctx, "k", n)), must(t)(w.plain.TryAcquireN(ctx, "twin", n))
		w.note("take %d: %t", n, got.Allowed)
		require.Equal(t, want.Allowed, got.Allowed, w.did)
		if got.Allowed {
			w.spent = append(w.spent, slicedUse{w.Now, n})
		}
	default:
		d := time.Duration(rng.Int64N(int64(w.rules[0].Window / 8)))
		if w.rounded { // not close to the end of a window, where the two differ
			d = d.Truncate(time.Millisecond)
			if left := must(t)(w.plain.Peek(ctx, "twin")).ResetAfter.Truncate(time.Millisecond); left > 0 && left-d < time.Second {
				d = left + time.Second
			}
		}
		w.pass(t, d)
	}
	w.same(t)
}

// TestTicketsBesideSlices: some processes have slices of a key, another one estimates with a lease. Nothing exceeds the rule, and
// what tickets took comes back as it does without a lease.
func TestTicketsBesideSlices(t *testing.T) {
	raceflag.SkipSequential(t)
	for server, open := range onceStages {
		t.Run(server, func(t *testing.T) {
			s := open(t)
			rng := model.Seeded(limitertest.Seed(t))
			tightest, cut, returned := map[string]float64{}, 0, 0
			rounds := limitertest.Rounds(200, 1)
			for i := range rounds {
				for name, kind := range slicedKinds(rng) {
					s.Wipe(t)
					w := &slicedWorld{slicedKind: kind, Stage: s, rng: rng, tightest: -100}
					w.lease = time.Duration(1+rng.Int64N(kind.rules[0].Window.Milliseconds())) * time.Millisecond
					var err error
					w.plain, err = kind.build(s.Client, s.Opts...)
					require.NoError(t, err)
					w.leased, err = kind.build(s.Client, append(s.Opts, ratelimit.WithTicketLease(w.lease))...)
					require.NoError(t, err)
					w.note("history %d, %s: %v, lease %v", i, name, kind.rules, w.lease)
					for range 60 {
						w.step(t)
					}
					if !kind.inexact {
						tightest[name] = max(tightest[name], w.tightest+1e9)
					}
					cut, returned = cut+w.slices, returned+w.returned
				}
			}
			t.Logf("%d slices, %d permits came back when leases ended", cut, returned)
			for name, most := range tightest {
				if rounds > 100 {
					require.InDelta(t, 1e9, most, 0.5, "%s: a test that gets nowhere near the rule proves nothing", name)
				}
			}
		})
	}
}

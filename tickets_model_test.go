package ratelimit_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
)

// A modelTicket is a ticket, and what the model knows of it.
type modelTicket struct {
	*ratelimit.Ticket
	n, gone int // permits, and those of a window that is over
	place   int64
	ends    int64
	freed   bool
	known   bool // the ticket has learned that: Extend and More do not ask Redis
	parts   []*modelPart
}

// ticketWorld is a limiter whose tickets have a lease, and the model of its key: permits of a ticket come back at the end of its
// lease.
type ticketWorld struct {
	model.Settler
	leased       settling
	lease        int64
	tickets      []*modelTicket
	now, written int64 // written: when permits were taken last
	joins        bool  // More of any instant joins the ticket
	parts        bool  // More of another entry is a part of its own
}

// free gives back what has ended.
func (w *ticketWorld) free() {
	if w.parts {
		w.freeParts()
		return
	}
	slices.SortStableFunc(w.tickets, func(a, b *modelTicket) int { return int(a.ends - b.ends) })
	for _, t := range w.tickets {
		if !t.freed && t.ends <= w.now {
			t.freed = true
			w.GiveBack(max(t.ends, w.written), t.n-t.gone, t.place)
		}
	}
}

// gone notes that Redis has forgotten the tickets whose lease has ended, as it may once their permits count no longer.
func (w *ticketWorld) gone(of *modelTicket, err error) {
	if !errors.Is(err, ratelimit.ErrLeaseLost) || of.ends > w.now || of.freed || !w.Unused(w.now) {
		return
	}
	for _, t := range append(w.tickets, of) {
		t.freed = t.freed || t.ends <= w.now
	}
}

func (w *ticketWorld) took(a model.Answer) model.Answer {
	if a.Allowed {
		w.written = w.now
	}
	return a
}

// TestTicketsDecideAsTheModels drives limiters with leased tickets through random histories.
func TestTicketsDecideAsTheModels(t *testing.T) {
	for server, open := range onceStages {
		t.Run(server, func(t *testing.T) {
			s := open(t)
			rng := model.Seeded(limitertest.Seed(t))
			histories := limitertest.Rounds(60, 4)
			if server == "Redis" {
				histories = limitertest.Rounds(30, 2)
			}
			for i := range histories {
				s.Wipe(t)
				runTickets(t, s, rng, fmt.Sprintf("history %d", i))
			}
		})
	}
}

func drawTickets(t *testing.T, s *limitertest.Stage, rng *rand.Rand) (w *ticketWorld, about string) {
	kind := rng.IntN(9)
	limit, window := 1+rng.IntN(40), time.Duration(1+rng.IntN(60))*time.Second
	if kind == 5 {
		window = 24 * time.Hour
	}
	lease := time.Duration(1+rng.IntN(int(2*window.Milliseconds()))) * time.Millisecond
	w = &ticketWorld{lease: lease.Microseconds()}
	build := func(opts ...ratelimit.Option) (l settling, err error) { return nil, nil }
	switch kind {
	case 0, 1:
		m := model.NewTokenBucket(limit, window, limit)
		exactly := rng.IntN(2) == 0
		m.ExactReturns, w.Settler, w.joins = exactly, m, true
		about = fmt.Sprintf("token bucket, exactly %t", exactly)
		build = func(opts ...ratelimit.Option) (settling, error) {
			if exactly {
				opts = append(opts, ratelimit.WithExactReturns())
			}
			return ratelimit.NewTokenBucket(s.Client, ratelimit.Per(limit, window), limit, opts...)
		}
	case 2:
		w.Settler, about, w.joins = model.NewLeakyBucket(limit, window, limit), "leaky bucket", true
		build = func(opts ...ratelimit.Option) (settling, error) {
			return ratelimit.NewLeakyBucket(s.Client, ratelimit.Per(limit, window), limit, opts...)
		}
	case 3:
		w.Settler, about = model.NewClockWindow(limit, window), "fixed window"
		build = func(opts ...ratelimit.Option) (settling, error) {
			return ratelimit.NewFixedWindow(s.Client, limit, window, append(opts, ratelimit.WithName("dated"))...)
		}
	case 4:
		w.Settler, about = model.NewAlignedWindow(limit, window, 0), "aligned window"
		build = func(opts ...ratelimit.Option) (settling, error) {
			return ratelimit.NewFixedWindow(s.Client, limit, window, append(opts, ratelimit.WithAlignment(0))...)
		}
	case 5:
		w.Settler, about = model.NewCalendarWindow(limit, model.Days(time.UTC)), "calendar window"
		build = func(opts ...ratelimit.Option) (settling, error) {
			return ratelimit.NewCalendarWindow(s.Client, limit, ratelimit.Daily(time.UTC), opts...)
		}
	}
	switch kind {
	case 6:
		window = time.Duration(1+rng.IntN(60)) * time.Second
		parts := 1 + rng.IntN(10)
		window -= window % (time.Duration(parts) * time.Microsecond)
		w.Settler, about, w.parts = model.NewSlidingWindow(limit, window, parts), fmt.Sprintf("sliding window in %d", parts), true
		build = func(opts ...ratelimit.Option) (settling, error) {
			return ratelimit.NewSlidingWindow(s.Client, limit, window, append(opts, ratelimit.WithSubWindows(parts))...)
		}
	case 7, 8:
		rules := []ratelimit.Rule{{Limit: limit, Window: window}}
		if kind == 8 {
			rules = append(rules, ratelimit.Rule{Limit: limit + 1 + rng.IntN(limit), Window: 2 * window})
		}
		var same []model.Rule
		for _, r := range rules {
			same = append(same, model.Rule(r))
		}
		resolution := []time.Duration{time.Microsecond, time.Second / 3, time.Second}[rng.IntN(3)].Truncate(time.Microsecond)
		w.Settler, about, w.parts = model.NewSlidingLog(same, resolution), fmt.Sprintf("log by %v of %v", resolution, rules), true
		build = func(opts ...ratelimit.Option) (settling, error) {
			return ratelimit.NewSlidingLog(s.Client, rules, append(opts, ratelimit.WithResolution(resolution))...)
		}
	}
	var err error
	w.leased, err = build(append(s.Opts, ratelimit.WithTicketLease(lease))...)
	require.NoError(t, err)
	return w, fmt.Sprintf("%s of %d in %v, lease %v", about, limit, window, lease)
}

func runTickets(t *testing.T, s *limitertest.Stage, rng *rand.Rand, at string) {
	w, about := drawTickets(t, s, rng)
	var denied struct {
		n     int
		until time.Time
	}
	var want model.Answer
	log := ""
	check := func(got ratelimit.Result, err error) {
		t.Helper()
		require.NoError(t, err, log)
		require.Equal(t, want.Allowed, got.Allowed, log)
		require.Equal(t, want.Remaining, got.Remaining, log)
		require.Equal(t, want.ResetAfter, got.ResetAfter, log)
		require.LessOrEqual(t, got.RetryAfter, want.RetryAfter, log)
		require.Equal(t, want.Allowed, got.RetryAfter == 0, log)
	}
	log = at + ": " + about
	for range 60 {
		switch exact := denied.n > 0 && rng.IntN(3) > 0; {
		case exact: // guarantee 7: one microsecond earlier no, then yes
			before := denied.until.Add(-time.Microsecond)
			if before.After(s.Now) {
				s.Move(before)
				log += fmt.Sprintf("\n%v: not yet %d", s.Now.Sub(limitertest.Start), denied.n)
				w.now = s.Now.UnixMicro()
				w.free()
				require.False(t, must(t)(look(w.leased, denied.n)).Allowed, log)
			}
			s.Move(denied.until)
			w.now = s.Now.UnixMicro()
			w.free()
			log += fmt.Sprintf("\n%v: now %d", s.Now.Sub(limitertest.Start), denied.n)
			require.True(t, must(t)(look(w.leased, denied.n)).Allowed, log)
		case rng.IntN(3) == 0:
			s.Advance(time.Duration(rng.Int64N(w.lease)) * time.Microsecond)
		case rng.IntN(4) == 0:
			s.Advance(time.Duration(rng.Int64N(w.lease/10+1)) * time.Microsecond)
		}
		denied.n = 0
		w.now = s.Now.UnixMicro()
		n := 1 + rng.IntN(w.Max())
		if rng.IntN(2) == 0 {
			n = 1 + rng.IntN(min(w.Max(), 3))
		}
		log += fmt.Sprintf("\n%v: ", s.Now.Sub(limitertest.Start))
		var of *modelTicket
		if len(w.tickets) > 0 {
			of = w.tickets[rng.IntN(len(w.tickets))]
		}
		switch op := rng.IntN(11); {
		case w.parts && op >= 4 && op < 8 && of != nil:
			if op < 6 {
				actual := []int{0, of.n - 1, rng.IntN(of.n + 1), of.n, of.n + 1, of.n + rng.IntN(of.n)}[rng.IntN(6)]
				log += fmt.Sprintf("settle %d of %s", actual, of.about(w.now))
				w.settleParts(t, of, actual, log)
				break
			}
			if op == 6 {
				n = 0
			}
			log += fmt.Sprintf("%d more, %s", n, of.about(w.now))
			got, err, lost := w.moreOfParts(of, n)
			if lost {
				require.ErrorIs(t, err, ratelimit.ErrLeaseLost, log)
				break
			}
			require.NoError(t, err, log)
			if n == 0 {
				break
			}
			want = w.took(w.Take(w.now, n, false))
			check(got, err)
			if want.Allowed {
				of.took(n, w.Place(w.now), w.now+w.lease)
			} else {
				denied.n, denied.until = n, s.Now.Add(got.RetryAfter)
			}
		case op < 4:
			log += fmt.Sprintf("estimate %d", n)
			w.free()
			ticket, got, err := w.leased.Estimate(ctx, "k", n)
			want = w.took(w.Take(w.now, n, false))
			check(got, err)
			if want.Allowed {
				w.tickets = append(w.tickets, &modelTicket{
					Ticket: ticket, n: n, place: w.Place(w.now), ends: w.now + w.lease,
					parts: []*modelPart{{n: n, place: w.Place(w.now), ends: w.now + w.lease}},
				})
			} else {
				denied.n, denied.until = n, s.Now.Add(got.RetryAfter)
			}
		case op < 6 && of != nil:
			actual := []int{0, of.n - 1, rng.IntN(of.n + 1), of.n, of.n + 1, of.n + rng.IntN(of.n)}[rng.IntN(6)]
			log += fmt.Sprintf("settle %d of %d, freed %t, ends in %dus", actual, of.n, of.freed, of.ends-w.now)
			w.tickets = slices.DeleteFunc(w.tickets, func(t *modelTicket) bool { return t == of })
			if of.freed && actual > of.gone || !of.freed && actual > of.n { // what gives back leaves the others to later calls
				w.free()
			}
			err := of.ByTheServersClock().Settle(ctx, actual)
			w.gone(of, err)
			if of.freed {
				require.ErrorIs(t, err, ratelimit.ErrLeaseLost, log)
				if used := max(actual-of.gone, 0); used > 0 {
					w.took(w.Charge(w.now, used))
				}
			} else {
				require.NoError(t, err, log)
				if actual < of.n {
					w.GiveBack(w.now, min(of.n-actual, of.n-of.gone), of.place)
				} else if actual > of.n {
					w.took(w.Charge(w.now, actual-of.n))
				}
			}
			require.ErrorIs(t, of.Settle(ctx, 0), ratelimit.ErrSettled)
		case op == 6 && of != nil:
			log += fmt.Sprintf("extend, freed %t", of.freed)
			err := of.Extend(ctx)
			w.gone(of, err)
			require.Equal(t, of.freed, errors.Is(err, ratelimit.ErrLeaseLost), log)
			if !of.freed {
				require.NoError(t, err, log)
				of.ends = w.now + w.lease
			}
			if !of.known {
				w.free()
			}
			of.known = of.freed
		case op == 7 && of != nil:
			log += fmt.Sprintf("more %d of %d, freed %t", n, of.n, of.freed)
			got, err := of.More(ctx, n)
			w.gone(of, err)
			if !of.freed {
				of.ends = w.now + w.lease
			}
			if !of.known {
				w.free()
			}
			of.known = of.freed
			if of.freed {
				require.ErrorIs(t, err, ratelimit.ErrLeaseLost, log)
				continue
			}
			want = w.took(w.Take(w.now, n, false))
			check(got, err)
			if want.Allowed {
				if place := w.Place(w.now); !w.joins && place != of.place {
					of.gone, of.place = of.n, place
				}
				of.n += n
			} else {
				denied.n, denied.until = n, s.Now.Add(got.RetryAfter)
			}
		case op == 8:
			log += fmt.Sprintf("charge %d", n)
			w.free()
			got, err := w.leased.Charge(ctx, "k", n)
			want = w.took(w.Charge(w.now, n))
			check(got, err)
		case op == 9:
			log += "peek"
			w.free()
			want = w.Take(w.now, 1, true)
			check(w.leased.Peek(ctx, "k"))
		default:
			log += fmt.Sprintf("take %d", n)
			w.free()
			got, err := w.leased.TryAcquireN(ctx, "k", n)
			want = w.took(w.Take(w.now, n, false))
			check(got, err)
			if !want.Allowed {
				denied.n, denied.until = n, s.Now.Add(got.RetryAfter)
			}
		}
	}
}

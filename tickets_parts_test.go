package ratelimit_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// A modelPart is what a ticket took of one entry of a log.
type modelPart struct {
	n     int
	place int64
	ends  int64
	gone  bool // settled, or given back
	freed bool // given back
}

func (t *modelTicket) about(now int64) (text string) {
	for _, p := range t.parts {
		text += fmt.Sprintf("[%d, freed %t, ends in %dus]", p.n, p.freed, p.ends-now)
	}
	return text
}

// took adds permits to the last part, if they are of its entry.
func (t *modelTicket) took(n int, place, ends int64) {
	t.n += n
	if last := t.parts[len(t.parts)-1]; last.place == place {
		last.n += n
	} else {
		t.parts = append(t.parts, &modelPart{n: n, place: place, ends: ends})
	}
}

// freeParts is free for tickets of logs.
func (w *ticketWorld) freeParts() {
	var all []*modelPart
	for _, t := range w.tickets {
		all = append(all, t.parts...)
	}
	slices.SortStableFunc(all, func(a, b *modelPart) int { return int(a.ends - b.ends) })
	for _, p := range all {
		if !p.gone && p.ends <= w.now {
			p.gone, p.freed = true, true
			w.GiveBack(w.now, p.n, p.place)
		}
	}
}

// forgot notes that Redis has forgotten a ticket, see gone.
func (w *ticketWorld) forgot(of *modelTicket, err error) {
	if !errors.Is(err, ratelimit.ErrLeaseLost) || !w.Unused(w.now) {
		return
	}
	for _, t := range append(w.tickets, of) {
		for _, p := range t.parts {
			if p.ends <= w.now && !p.gone {
				p.gone, p.freed = true, true
			}
		}
	}
}

// settleParts settles the parts from the last one on, each on its own.
func (w *ticketWorld) settleParts(t *testing.T, of *modelTicket, actual int, log string) {
	err := of.Settle(ctx, actual)
	w.forgot(of, err)
	back, late := of.n-actual, false
	for _, p := range slices.Backward(of.parts) {
		less := min(back, p.n)
		back -= less
		used := p.n - less
		switch {
		case p.freed:
			late = true
			if used > 0 {
				w.free()
				w.took(w.Charge(w.now, used))
			}
		case used < p.n:
			w.GiveBack(w.now, less, p.place)
		case used > p.n:
			p.gone = true
			w.free()
			w.took(w.Charge(w.now, used-p.n))
		}
		p.gone = true
	}
	w.tickets = slices.DeleteFunc(w.tickets, func(t *modelTicket) bool { return t == of })
	require.Equal(t, late, errors.Is(err, ratelimit.ErrLeaseLost), "%s: %v", log, err)
	if !late {
		require.NoError(t, err, log)
	}
	require.ErrorIs(t, of.Settle(ctx, 0), ratelimit.ErrSettled)
}

// moreOfParts extends the ticket, and asks for n more, unless n is 0. lost says that the lease has ended.
func (w *ticketWorld) moreOfParts(of *modelTicket, n int) (got ratelimit.Result, err error, lost bool) {
	if n == 0 {
		err = of.Extend(ctx)
	} else {
		got, err = of.More(ctx, n)
	}
	if of.known {
		return got, err, true
	}
	w.forgot(of, err)
	for _, p := range of.parts {
		if of.known = p.freed; of.known {
			w.free()
			return got, err, true
		}
		p.ends = w.now + w.lease
		w.free()
	}
	return got, err, false
}

// TestTicketsOfALongLog: a call gives back a hundred tickets of a hundred entries, in one pass; of an entry behind which 512
// others came, nothing comes back, and no denial says that it will.
func TestTicketsOfALongLog(t *testing.T) {
	for server, open := range onceStages {
		t.Run(server, func(t *testing.T) {
			s := open(t)
			l := ratelimit.Must(ratelimit.NewSlidingLog(s.Client, []ratelimit.Rule{{Limit: 520, Window: time.Hour}}, append(s.Opts, ratelimit.WithTicketLease(ticketLease))...))
			estimated(t, l, 5)
			for range 300 {
				s.Advance(time.Microsecond)
				estimated(t, l, 1)
			}
			s.Advance(ticketLease - 201*time.Microsecond)
			require.Equal(t, 520-305, left(t, l)-104, "the first and 99 others")
			s.Advance(201 * time.Microsecond)
			for _, want := range []int{419, 519, 520} {
				require.Equal(t, want, left(t, l))
			}
			require.Empty(t, s.Admin.Keys(ctx, "*").Val())

			estimated(t, l, 8)
			for range 512 {
				s.Advance(time.Microsecond)
				must(t)(l.TryAcquire(ctx, "k"))
			}
			require.Equal(t, time.Hour-512*time.Microsecond, must(t)(l.TryAcquire(ctx, "k")).RetryAfter)
			s.Advance(ticketLease)
			require.Zero(t, left(t, l))
			require.Len(t, s.Admin.Keys(ctx, "*").Val(), 1, "the ticket is gone")
		})
	}
}

// TestPartsOfATicket: what it takes more stays where it was taken, and is settled last first.
func TestPartsOfATicket(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	l := ratelimit.Must(ratelimit.NewSlidingWindow(s.Client, 10, 40*time.Second, append(s.Opts, ratelimit.WithTicketLease(ticketLease))...))
	bucket := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerHour(1), 10, append(s.Opts, ratelimit.WithTicketLease(ticketLease))...))
	for used, want := range map[int][2]int{0: {10, 10}, 3: {7, 10}, 5: {5, 9}, 8: {2, 6}} { // at once, and when the estimate has left
		require.NoError(t, l.Reset(ctx, "k"))
		all, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(bucket, "k", 1).Estimate(), ratelimit.ClaimOf(l, "k", 4).Estimate())
		require.NoError(t, err)
		ticket := all.Parts[1].Ticket
		for range 2 {
			s.Advance(9 * time.Second)
			r, err := ticket.More(ctx, 1)
			require.NoError(t, err)
			require.True(t, r.Allowed)
			require.NoError(t, all.Parts[0].Ticket.Extend(ctx))
		}
		s.Advance(9 * time.Second)
		require.NoError(t, ticket.Extend(ctx))
		require.Equal(t, 4, left(t, l))
		require.NoError(t, all.Finish(ctx, func(p ratelimit.PartResult) int {
			if p.Ticket == ticket {
				return used
			}
			return 0
		}))
		require.Equal(t, want[0], left(t, l), "%d used", used)
		s.Advance(14 * time.Second)
		require.Equal(t, want[1], left(t, l), "%d used", used)
		require.Equal(t, 10, must(t)(bucket.Peek(ctx, "k")).Remaining)
	}
}

// TestFinishOfTicketsOfALog: one script settles them, in time and late.
func TestFinishOfTicketsOfALog(t *testing.T) {
	for server, open := range onceStages {
		t.Run(server, func(t *testing.T) {
			s := open(t)
			lease := append(s.Opts, ratelimit.WithTicketLease(ticketLease))
			l := ratelimit.Must(ratelimit.NewSlidingLog(s.Client, []ratelimit.Rule{{Limit: 10, Window: time.Hour}, {Limit: 20, Window: 2 * time.Hour}}, lease...))
			w := ratelimit.Must(ratelimit.NewSlidingWindow(s.Client, 10, time.Hour, lease...))
			for used, want := range []int{10, 9, 8, 7, 6} {
				for _, late := range []bool{false, true} {
					require.NoError(t, l.Reset(ctx, "k"))
					require.NoError(t, w.Reset(ctx, "k"))
					all, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(l, "k", 3).Estimate(), ratelimit.ClaimOf(w, "k", 3).Estimate())
					require.NoError(t, err)
					if late {
						s.Advance(ticketLease)
						require.Equal(t, []int{10, 10}, []int{left(t, l), left(t, w)})
					}
					err = all.Finish(ctx, func(ratelimit.PartResult) int { return used })
					require.Equal(t, late, errors.Is(err, ratelimit.ErrLeaseLost), "%v", err)
					require.Equal(t, []int{want, want}, []int{left(t, l), left(t, w)}, "%d used, late %t", used, late)
					s.Advance(ticketLease)
					require.Equal(t, []int{want, want}, []int{left(t, l), left(t, w)})
				}
			}
		})
	}
}

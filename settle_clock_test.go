package ratelimit_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// eraSlot is how long a slot of these logs is; their windows have ten.
const eraSlot = 6 * time.Second

// logsOfEras are the logs in which a ticket is found by its instant, each with a limit of 10 permits a minute.
var logsOfEras = map[string]func(c ratelimit.Client, opts ...ratelimit.Option) (settling, error){
	"List": func(c ratelimit.Client, opts ...ratelimit.Option) (settling, error) {
		return ratelimit.NewSlidingWindow(c, 10, 10*eraSlot, append(opts, ratelimit.WithSubWindows(10))...)
	},
	"Hash": func(c ratelimit.Client, opts ...ratelimit.Option) (settling, error) {
		return ratelimit.NewSlidingWindow(c, 10, 10*eraSlot, append(opts, ratelimit.WithSubWindows(10), ratelimit.WithStorage(ratelimit.StorageHash))...)
	},
	"log": func(c ratelimit.Client, opts ...ratelimit.Option) (settling, error) {
		rules := []ratelimit.Rule{{Limit: 10, Window: 10 * eraSlot}, {Limit: 20, Window: 20 * eraSlot}}
		return ratelimit.NewSlidingLog(c, rules, append(opts, ratelimit.WithResolution(eraSlot))...)
	},
}

// eachEra runs test with each log, with tickets that have a lease and without.
func eachEra(t *testing.T, test func(t *testing.T, s *limitertest.Stage, l settling)) {
	for server, open := range onceStages {
		t.Run(server, func(t *testing.T) {
			s := open(t)
			for name, build := range logsOfEras {
				for _, lease := range []time.Duration{0, 10 * time.Minute} {
					if name == "Hash" && lease > 0 {
						continue
					}
					t.Run(fmt.Sprint(name, " ", lease), func(t *testing.T) {
						s.Wipe(t)
						s.Move(limitertest.Start.Truncate(eraSlot).Add(eraSlot))
						opts := s.Opts
						if lease > 0 {
							opts = append(opts[:len(opts):len(opts)], ratelimit.WithTicketLease(lease))
						}
						l, err := build(s.Client, opts...)
						require.NoError(t, err)
						test(t, s, l)
					})
				}
			}
		})
	}
}

// TestATicketFromBeforeTheClockSteppedBack: its permits have moved, and others are at its instant now. It gives nothing back; a
// ticket that was taken at that instant since then does.
func TestATicketFromBeforeTheClockSteppedBack(t *testing.T) {
	eachEra(t, func(t *testing.T, s *limitertest.Stage, l settling) {
		before := estimated(t, l, 4)
		s.Advance(-eraSlot)
		must(t)(l.TryAcquire(ctx, "k"))
		s.Advance(eraSlot)
		since := estimated(t, l, 3)
		must(t)(l.TryAcquireN(ctx, "k", 2))
		require.Zero(t, left(t, l))
		require.NoError(t, before.Settle(ctx, 0))
		require.Zero(t, left(t, l), "it is not known whose permits these are")
		require.NoError(t, since.Settle(ctx, 1))
		require.Equal(t, 2, left(t, l))
		s.Advance(9*eraSlot - time.Microsecond)
		require.Equal(t, 2, left(t, l))
		s.Advance(eraSlot) // the 4 and 1 that are dated in the slot before
		require.Equal(t, 7, left(t, l))
	})
}

// TestALeaseFromBeforeTheClockSteppedBack: when it ends nothing comes back, and no denial says so.
func TestALeaseFromBeforeTheClockSteppedBack(t *testing.T) {
	for _, name := range []string{"List", "log"} {
		s := limitertest.OnMiniredis(t)
		s.Move(limitertest.Start.Truncate(eraSlot))
		l, err := logsOfEras[name](s.Client, append(s.Opts, ratelimit.WithTicketLease(2*eraSlot))...)
		require.NoError(t, err)
		before := estimated(t, l, 4)
		s.Advance(-eraSlot)
		must(t)(l.TryAcquire(ctx, "k"))
		s.Advance(eraSlot + time.Second)
		estimated(t, l, 3)
		must(t)(l.TryAcquireN(ctx, "k", 2))
		require.Equal(t, 2*eraSlot, must(t)(l.TryAcquire(ctx, "k")).RetryAfter, "the second lease ends")
		s.Advance(2*eraSlot - time.Microsecond)
		require.Zero(t, left(t, l))
		s.Advance(time.Microsecond)
		require.Equal(t, 3, left(t, l))
		require.ErrorIs(t, before.Settle(ctx, 0), ratelimit.ErrLeaseLost)

		require.NoError(t, l.Reset(ctx, "k"))
		before = estimated(t, l, 1)
		s.Advance(-eraSlot)
		must(t)(l.TryAcquire(ctx, "k"))
		s.Advance(eraSlot)
		fillTickets(t, s, 9_999)
		_, err = before.More(ctx, 1)
		require.ErrorIs(t, err, ratelimit.ErrTooManyTickets, "it would be another ticket, of the new era")
	}
}

// TestATicketIsSettledBeforeOthersSeeTheStep: nothing has moved yet, so its permits come back.
func TestATicketIsSettledBeforeOthersSeeTheStep(t *testing.T) {
	eachEra(t, func(t *testing.T, s *limitertest.Stage, l settling) {
		first, second := estimated(t, l, 4), estimated(t, l, 2)
		s.Advance(-time.Microsecond)
		require.NoError(t, first.Settle(ctx, 0))
		require.Equal(t, 8, left(t, l))
		must(t)(l.TryAcquire(ctx, "k"))
		require.NoError(t, second.Settle(ctx, 0))
		require.Equal(t, 7, left(t, l))
	})
}

// TestEveryStepBackBeginsAnEra: tickets of the one before give nothing back; those of later instants, and those taken when the era
// is over, do as ever.
func TestEveryStepBackBeginsAnEra(t *testing.T) {
	eachEra(t, func(t *testing.T, s *limitertest.Stage, l settling) {
		s.Advance(time.Second)
		oldest := estimated(t, l, 1)
		s.Advance(-eraSlot)
		older := estimated(t, l, 1)
		s.Advance(-eraSlot)
		moved := must(t)(l.TryAcquire(ctx, "k"))
		require.Equal(t, eraSlot-time.Second-time.Microsecond, moved.ResetAfter%eraSlot, "to the end of its sub-window, as no slices are out")
		s.Advance(eraSlot)
		old := estimated(t, l, 1)
		s.Advance(eraSlot)
		young := estimated(t, l, 1)
		s.Advance(eraSlot)
		last := estimated(t, l, 1)
		for i, test := range []struct {
			*ratelimit.Ticket
			left int
		}{{oldest, 4}, {older, 4}, {old, 5}, {young, 6}, {last, 7}} {
			require.NoError(t, test.Settle(ctx, 0))
			require.Equal(t, test.left, left(t, l), "ticket %d", i)
		}
		s.Advance(20 * eraSlot)
		require.Equal(t, 10, left(t, l))
		ticket := estimated(t, l, 5)
		s.Advance(eraSlot)
		must(t)(l.TryAcquire(ctx, "k"))
		require.NoError(t, ticket.Settle(ctx, 2))
		require.Equal(t, 7, left(t, l))
	})
}

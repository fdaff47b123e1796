package ratelimit_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
	"github.com/tryacquire/ratelimit/ratelimittest"
)

// A steppedWindow is a window of four ticks on a server whose clock steps back, and two processes' tickets. It has no pointers,
// so that worlds can be compared.
type steppedWindow struct {
	calendar bool // see scripts/calendarwindow.lua; otherwise the window is aligned, see scripts/datedwindow.lua
	forgets  bool // the wrong rule: what a process knows of the window's end is not used

	now     int8 // by the server's clock
	exists  bool
	start   int8 // of an aligned window; of a calendar's, when the last permit was taken
	end     int8
	used    int8
	count   int8 // the number of this count, as the window can begin again
	counts  int8
	tickets [2]steppedTicket
	taken   int8 // permits of this count that are not settled by 0
}

type steppedTicket struct {
	n     int8 // 0: there is none
	where int8
	left  int8 // ticks until its window is over, by a clock that does not step back
	count int8
}

const (
	steppedSpan  = 4
	steppedLimit = 3
)

// loaded is the count as the script finds it, where its tickets say that they are, and whether it has to be written.
func (w *steppedWindow) loaded() (l steppedWindow, where int8, repair bool) {
	l = *w
	opens := w.now - w.now%steppedSpan
	next := opens + steppedSpan
	switch {
	case w.exists && !w.calendar && w.start != next && w.start > w.now:
		l.start, l.end, repair = opens, next, true
	case w.exists && w.calendar && w.start >= next+steppedSpan:
		l.end, l.start, repair = max(next, w.end-(w.start-w.now)), w.now, true
	case w.exists && w.calendar && w.start >= opens, w.exists && !w.calendar && w.now < w.start+steppedSpan:
	default:
		l.exists, l.start, l.end, l.used, l.count, l.taken = true, opens, next, 0, w.counts+1, 0
		if w.calendar {
			l.start = w.now
		}
	}
	switch {
	case !w.calendar:
		where = l.start
	case l.start >= next:
		where = next + steppedSpan
	default:
		where = next
	}
	return l, where, repair
}

// take takes n permits, for a ticket or not.
func (w *steppedWindow) take(n int8, ticket bool) bool {
	free := slices.IndexFunc(w.tickets[:], func(t steppedTicket) bool { return t.n == 0 })
	l, where, repair := w.loaded()
	if l.used+n > steppedLimit {
		if repair {
			*w = l
		}
		return false
	}
	*w = l
	w.counts = max(w.counts, w.count)
	w.used += n
	w.taken += n
	end := w.start + steppedSpan
	if w.calendar {
		w.start = max(w.start, w.now)
		w.end = max(w.end, where)
		end = where
	}
	if ticket {
		w.tickets[free] = steppedTicket{n: n, where: where, left: end - w.now, count: w.count}
	}
	return true
}

// settle settles a ticket by 0.
func (w *steppedWindow) settle(i int) {
	t := w.tickets[i]
	w.tickets[i] = steppedTicket{}
	if t.count == w.count {
		w.taken -= t.n
	}
	l, where, _ := w.loaded()
	if t.left <= 0 && !w.forgets || !w.exists || l.count != w.count || t.where != where {
		return
	}
	if *w = l; w.used <= t.n {
		w.exists, w.used = false, 0
	} else {
		w.used -= t.n
	}
}

// pass lets a tick pass.
func (w *steppedWindow) pass() {
	w.now++
	for i := range w.tickets {
		w.tickets[i].left = max(w.tickets[i].left-1, 0)
	}
	if w.exists && w.now >= w.end {
		w.exists = false
	}
}

func (w *steppedWindow) remaining() int {
	l, _, _ := w.loaded()
	return int(steppedLimit - l.used)
}

// A steppedMove is a pause, and then a take of n, an estimate of n, a settlement of ticket n, or a step back by n.
type steppedMove struct {
	pause int8
	do    byte
	n     int8
}

func (m steppedMove) String() string { return fmt.Sprintf("%d ticks, %c%d", m.pause, m.do, m.n) }

// searchSteps goes through all histories of so many moves, and returns them by the worlds that they lead to, and the first one in
// which a count allowed more than the limit.
func searchSteps(calls int, from steppedWindow) (all [][]steppedMove, excess []steppedMove) {
	type node struct {
		world   steppedWindow
		history []steppedMove
	}
	from.now = 15 * steppedSpan
	seen, last := map[steppedWindow]bool{}, []node{{world: from}}
	for range calls {
		var next []node
		for _, at := range last {
			waited := at.world
			for pause := range int8(steppedSpan + 2) {
				if pause > 0 {
					waited.pass()
				}
				for _, m := range []steppedMove{{do: 't', n: 3}, {do: 'e', n: 2}, {do: 's'}, {do: 's', n: 1}, {do: 'b', n: 1}, {do: 'b', n: 5}, {do: 'b', n: 9}} {
					w, allowed := waited, false
					switch m.do {
					case 't':
						allowed = w.take(m.n, false)
					case 'e':
						if w.tickets[1].n > 0 && w.tickets[0].n > 0 {
							continue
						}
						allowed = w.take(m.n, true)
					case 's':
						if w.tickets[m.n].n == 0 {
							continue
						}
						w.settle(int(m.n))
					case 'b':
						w.now -= m.n
					}
					m.pause = pause
					history := append(slices.Clone(at.history), m)
					if allowed && w.taken > steppedLimit && excess == nil {
						excess = history
					}
					if !seen[w] {
						seen[w] = true
						next = append(next, node{w, history})
					}
				}
			}
		}
		last = next
	}
	for _, n := range last {
		all = append(all, n.history)
	}
	return all, excess
}

// TestOldTicketsAfterAStepBack: a window that is over begins again when the server's clock steps back. What was taken from it
// before does not come back to its new count. Histories of the search are replayed on the scripts.
func TestOldTicketsAfterAStepBack(t *testing.T) {
	raceflag.SkipSequential(t)
	const day = 24 * time.Hour
	for name, calendar := range map[string]bool{"aligned": false, "calendar": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, wrong := searchSteps(5, steppedWindow{calendar: calendar, forgets: true})
			require.NotNil(t, wrong)
			all, excess := searchSteps(5, steppedWindow{calendar: calendar})
			require.Nil(t, excess)
			rng := model.Seeded(limitertest.Seed(t))
			histories := [][]steppedMove{wrong}
			for range limitertest.Rounds(2000, 100) {
				histories = append(histories, all[rng.IntN(len(all))])
			}
			inBubble(t, func(t *testing.T, e *ratelimittest.Env) {
				l := ratelimit.Settler(ratelimit.Must(ratelimit.NewFixedWindow(e.Client(), steppedLimit, day, ratelimit.WithAlignment(0))))
				if calendar {
					l = ratelimit.Must(ratelimit.NewCalendarWindow(e.Client(), steppedLimit, ratelimit.Daily(time.UTC)))
				}
				for _, h := range histories {
					replaySteps(t, e, l, calendar, h)
				}
			})
		})
	}
}

// replaySteps plays a history. A tick is a quarter of a day; a key that has expired is gone some milliseconds later.
func replaySteps(t *testing.T, e *ratelimittest.Env, settler ratelimit.Settler, calendar bool, h []steppedMove) {
	const tick, late = 6 * time.Hour, 10 * time.Millisecond
	l := settler.(ratelimit.Limiter)
	world := steppedWindow{calendar: calendar, now: 15 * steppedSpan}
	clock := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	server := e.Miniredis()
	server.FlushAll()
	pass := func(d time.Duration) {
		keys := map[string]time.Duration{}
		for _, key := range server.Keys() {
			keys[key] = server.TTL(key) - d
		}
		if d > 0 {
			e.Advance(d)
		}
		clock = clock.Add(d)
		server.SetTime(clock)
		for key, left := range keys { // Redis keeps the instant at which a key expires
			if server.SetTTL(key, max(left, 1)); left <= 0 {
				server.Del(key)
			}
		}
	}
	pass(0)
	var held [2]*ratelimit.Ticket
	for i, m := range h {
		for range m.pause {
			world.pass()
			pass(tick)
		}
		pass(late)
		switch m.do {
		case 't':
			require.Equal(t, world.take(m.n, false), must(t)(l.TryAcquireN(ctx, "k", int(m.n))).Allowed, "%v: move %d", h, i)
		case 'e':
			free := slices.Index(held[:], nil)
			ticket, r := estimateOfKey(t, settler, "k", int(m.n))
			require.Equal(t, world.take(m.n, true), r.Allowed, "%v: move %d", h, i)
			held[free] = ticket
		case 's':
			world.settle(int(m.n))
			require.NoError(t, held[m.n].Settle(ctx, 0))
			held[m.n] = nil
		case 'b':
			world.now -= m.n
			pass(-time.Duration(m.n) * tick)
		}
		require.Equal(t, world.remaining(), must(t)(l.Peek(ctx, "k")).Remaining, "%v: after move %d", h, i)
	}
}

// overAndAgain passes the end of an aligned window of 4 s, and steps the server's clock back into it.
func overAndAgain(e *ratelimittest.Env, l ratelimit.Limiter) {
	server := e.Miniredis()
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	e.Advance(4 * time.Second)
	server.SetTime(start.Add(4*time.Second + 10*time.Millisecond))
	_, _ = l.Peek(ctx, "k") // the key has expired
	server.SetTime(start.Add(time.Second))
}

// TestWhatEndsAfterItsWindow: of one ticket with a lease, of one in a call of several limiters, and of a slice.
func TestWhatEndsAfterItsWindow(t *testing.T) {
	window := func(e *ratelimittest.Env, limit int, opts ...ratelimit.Option) *ratelimit.FixedWindow {
		e.Miniredis().SetTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
		return ratelimit.Must(ratelimit.NewFixedWindow(e.Client(), limit, 4*time.Second, append(opts, ratelimit.WithAlignment(0))...))
	}
	left := func(t *testing.T, l ratelimit.Limiter) int { return must(t)(l.Peek(ctx, "k")).Remaining }
	for name, lease := range map[string]time.Duration{"the lease goes on": time.Minute, "the lease is over": time.Second} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *ratelimittest.Env) {
				l := window(e, 10, ratelimit.WithTicketLease(lease))
				ticket, _ := estimateOfKey(t, l, "k", 6)
				overAndAgain(e, l)
				require.True(t, must(t)(l.TryAcquireN(ctx, "k", 7)).Allowed)
				if lease == time.Second { // Peek has given it back
					require.ErrorIs(t, ticket.Settle(ctx, 2), ratelimit.ErrLeaseLost)
					require.Equal(t, 1, left(t, l), "it is charged what was used")
					return
				}
				require.NoError(t, ticket.Settle(ctx, 2))
				require.Equal(t, 3, left(t, l))
				require.Len(t, e.Miniredis().Keys(), 1, "the ticket is gone")
			})
		})
	}
	t.Run("More begins with the window that is open", func(t *testing.T) {
		inBubble(t, func(t *testing.T, e *ratelimittest.Env) {
			l := window(e, 10, ratelimit.WithTicketLease(time.Minute))
			ticket, _ := estimateOfKey(t, l, "k", 6)
			e.Advance(5 * time.Second)
			e.Miniredis().SetTime(time.Date(2026, 1, 1, 0, 0, 5, 0, time.UTC))
			require.True(t, must(t)(ticket.More(ctx, 3)).Allowed)
			require.NoError(t, ticket.Settle(ctx, 7))
			require.Equal(t, 9, left(t, l))
		})
	})
	t.Run("of several limiters", func(t *testing.T) {
		inBubble(t, func(t *testing.T, e *ratelimittest.Env) {
			l := window(e, 10)
			bucket := ratelimit.Must(ratelimit.NewTokenBucket(e.Client(), ratelimit.Per(1, time.Hour), 10))
			r, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(l, "k", 6).Estimate(), ratelimit.ClaimOf(bucket, "k", 6).Estimate())
			require.NoError(t, err)
			overAndAgain(e, l)
			require.True(t, must(t)(l.TryAcquireN(ctx, "k", 7)).Allowed)
			require.NoError(t, r.Finish(ctx, func(ratelimit.PartResult) int { return 2 }))
			require.Equal(t, 3, left(t, l))
			require.Equal(t, 8, left(t, bucket))
		})
	})
	t.Run("of a slice", func(t *testing.T) {
		inBubble(t, func(t *testing.T, e *ratelimittest.Env) {
			l := window(e, 1000)
			leased := ratelimit.Must(ratelimit.NewLeased(l))
			var r ratelimit.Result
			for i := 0; !r.Leased || r.Remaining < 20; i++ {
				e.Advance(time.Millisecond)
				r = must(t)(leased.TryAcquire(ctx, "k"))
			}
			overAndAgain(e, l)
			require.True(t, must(t)(l.TryAcquireN(ctx, "k", 900)).Allowed)
			require.NoError(t, leased.Close(ctx))
			require.Equal(t, 100, left(t, l))
		})
	})
}

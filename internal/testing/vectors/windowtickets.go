package vectors

import (
	"fmt"
	"strings"
	"time"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/model"
)

// A ticketedWindow is a fixed window whose tickets have a lease. A ticket says which window its permits are of.
type ticketedWindow struct {
	m            *model.ClockWindow
	limit        int
	key, tickets kept
}

func (w *ticketedWindow) keys(*Case) []*kept { return []*kept{&w.key, &w.tickets} }

func (w *ticketedWindow) begun(now int64) (used int, begun int64) {
	if used, begun, _ := w.m.State(); !w.m.Unused(now) {
		return used, begun
	}
	return 0, now
}

// store writes the window, and keeps the tickets for as long as that or the lease of a new one.
func (w *ticketedWindow) store(now int64, out map[string]int64, fresh int64) {
	window := w.m.Span().Microseconds()
	used, begun := w.begun(now)
	left := begun + window - now
	if used == 0 {
		w.key.delete()
	} else {
		w.key.write(now, fmt.Sprintf("%d/%d/%d", used, begun, window), evenly(left/1000)+3)
	}
	if len(out) == 0 {
		w.tickets.delete()
		return
	}
	_, ttl := w.tickets.at(now)
	if needed := max(left, fresh)/1000 + 4; ttl < needed {
		ttl = needed + 950
	}
	w.tickets.write(now, out, ttl)
}

func (w *ticketedWindow) operate(now int64, c *Case) {
	n, kind, _, _ := parse(c.Operation)
	name, lease, id := ticketOf(c.Operation)
	out := ticketsIn(w.tickets)
	used, begun := w.begun(now)
	words := []int64{int64(w.limit - used), begun + w.m.Span().Microseconds() - now, 0}
	switch kind {
	case 'x':
		a := w.m.Take(now, n, false)
		for _, of := range byEnd(out) { // one ticket makes room
			words[2] = out[of] - now
			a.RetryAfter = min(a.RetryAfter, time.Duration(words[2])*time.Microsecond)
		}
		c.Reply, c.Result = append([]int64{0}, words...), resultOf(a)
	case 'u':
		delete(out, name)
		back := int(permitsOf(name)) - n
		w.m.GiveBack(now, back, begun)
		c.Reply = []int64{1, int64(back)}
		w.store(now, out, 0)
	case 'a', 'm':
		a := w.m.Take(now, n, false)
		total := int64(n)
		if kind == 'm' {
			if delete(out, name); len(out) == 0 {
				w.tickets.delete() // another name, and so another key, with a TTL of its own
			}
			if strings.Contains(name, fmt.Sprintf("/%d/", begun)) {
				total += permitsOf(name)
			}
			c.Reply = []int64{1}
		} else {
			c.Result = resultOf(a)
		}
		out[fmt.Sprintf("%d/%d/0/%d/%s", total, begun, lease, id)] = now + lease
		c.Reply = append(append(append(c.Reply, 1), words...), begun, 0)
		w.store(now, out, lease)
	}
}

// ticketsOfWindows is a fixed window that opens with its first permit, with tickets that have a lease.
func ticketsOfWindows() Group {
	const limit, window = 5, 10 * time.Second
	g := Group{
		Algorithm: "fixedwindow", About: "whose tickets have a lease: WithTicketLease",
		Script: "datedwindow,tickets", Key: "ratelimit:default:fixedwindow{k}", Beside: "ratelimit:default:fixedwindow/tickets{k}",
		Rule: map[string]int64{"limit": limit, "window": window.Microseconds()}, Args: append(texts(limit, window.Microseconds()), "first"),
		Build: func(c ratelimit.Client) (ratelimit.Limiter, error) {
			return ratelimit.NewFixedWindow(c, limit, window, ratelimit.WithTicketLease(4*time.Second))
		},
	}
	place := func(at int64) string { return fmt.Sprintf("%d/0", int64(start)+at*1_000_000) }
	g.Cases = narrate(&ticketedWindow{m: model.NewClockWindow(limit, window), limit: limit}, []step{
		{0, "3a0/4000000/JOB1", "The ticket says which window its permits are of, by its start"},
		{time.Second, "3x1", "Denied until the ticket ends, which is sooner than the window"},
		{time.Second, "1m0/3/" + place(0) + "/4000000/JOB1", "One permit more, of the same window: one ticket of four"},
		{2 * time.Second, "2u0/4/" + place(0) + "/4000000/JOB1", "Two were used, and two come back"},
		{0, "1a0/20000000/JOB2", "A ticket that lasts longer than the window. The second key is kept for as long"},
		{7 * time.Second, "1m0/1/" + place(0) + "/20000000/JOB2", "The window is over. What the ticket takes now is of the next one, and what it took before is forgotten"},
		{0, "0u0/1/" + place(11) + "/20000000/JOB2", "Nothing was used: the window is unused again, and both keys go"},
	})
	return g
}

package vectors

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tryacquire/ratelimit/internal/testing/model"
)

// A ticketed is a limiter whose tickets have a lease, and come back when that ends.
type ticketed struct {
	book
	how          byte                  // of the operations: 0 windows, 2 buckets, 3 logs
	counts       func(now int64) int64 // for how many microseconds what is taken counts
	key, tickets kept
}

func (t *ticketed) keys(*Case) []*kept { return []*kept{&t.key, &t.tickets} }

// ticketsIn are the tickets of a key, and when their leases end.
func ticketsIn(k kept) map[string]int64 {
	out := map[string]int64{}
	if there, ok := k.state.(map[string]int64); ok {
		maps.Copy(out, there)
	}
	return out
}

// A ticket's name is "<permits>/<where>/<which>/<lease>/<id>".
func ticketOf(name string) (permits, where, lease int64, id string) {
	parts := strings.Split(name, "/")
	for i, to := range []*int64{&permits, &where, new(int64), &lease} {
		*to, _ = strconv.ParseInt(parts[i], 10, 64)
	}
	return permits, where, lease, parts[4]
}

// byEnd are the tickets, those first that end first.
func byEnd(out map[string]int64) []string {
	return slices.SortedFunc(maps.Keys(out), func(a, b string) int { return cmp.Or(cmp.Compare(out[a], out[b]), strings.Compare(a, b)) })
}

// placed is where permits are that are taken now.
func placed(m model.Settler, now int64) int64 {
	m = copyOf(m)
	m.Charge(now, 1)
	return m.Place(now)
}

// copyOf is a model that goes on from the same state on its own.
func copyOf(m model.Settler) model.Settler {
	switch m := m.(type) {
	case *model.TokenBucket:
		c := *m
		return &c
	case *model.ClockWindow:
		c := *m
		return &c
	case *model.CalendarWindow:
		c := *m
		return &c
	}
	return m.(*model.SlidingLog).Copy()
}

// soon is when tickets that end make room for n permits, 0 if none do. A log says when there is room, by whatever comes first.
func (t *ticketed) soon(now int64, n int, out map[string]int64) (soon int64) {
	m := copyOf(t.model())
	try := func(ends int64) {
		wait := m.Take(now, n, true).RetryAfter.Microseconds()
		if at := max(ends-now, wait); (t.how != '0' || wait == 0) && (soon == 0 || at < soon) {
			soon = at
		}
	}
	if t.how == '3' && len(out) > 0 {
		try(now)
	}
	for _, name := range byEnd(out) {
		permits, where, _, _ := ticketOf(name)
		m.GiveBack(now, int(permits), where)
		try(out[name])
	}
	return soon
}

// store writes the state.
func (t *ticketed) store(now int64, back bool) {
	_, old := t.key.at(now)
	if state, ttl := t.write(now, old, back); state == nil {
		t.key.delete()
	} else {
		t.key.write(now, state, ttl)
	}
}

// give gives permits back, by their places, if the state still counts.
func (t *ticketed) give(now int64, permits map[int64]int64) (given int64) {
	if t.model().Unused(now) {
		return 0
	}
	before := t.used(now)
	for where, n := range permits {
		t.giveBack(now, int(n), where, 0)
	}
	if given = before - t.used(now); given > 0 {
		t.store(now, true)
	}
	return given
}

// hold stores the tickets, which are kept for so many milliseconds more than before, if that is not 0.
func (t *ticketed) hold(now int64, out map[string]int64, ttl int64) {
	if _, old := t.tickets.at(now); ttl == 0 {
		ttl = old
	}
	if len(out) == 0 {
		t.tickets.delete() // a ticket that comes next is in a new key
		return
	}
	t.tickets.write(now, out, ttl)
}

// take stores what was taken, and keeps the tickets for as long as that counts, or the lease of a new one.
func (t *ticketed) take(now int64, out map[string]int64, lease int64) {
	t.store(now, false)
	_, ttl := t.tickets.at(now)
	if needed := max(t.counts(now), lease) + 4000; ttl*1000 < needed {
		ttl = needed/1000 + 950
	}
	t.hold(now, out, ttl)
}

func (t *ticketed) operate(now int64, c *Case) {
	if t.key.state == nil { // it may have expired
		t.model().Reset()
	}
	n, kind, _, _ := parse(c.Operation)
	_, name, of := strings.Cut(c.Operation, "/")
	var held, where, lease int64
	var id string
	switch {
	case kind == 'a':
		first, own, _ := strings.Cut(name, "/")
		lease, _ = strconv.ParseInt(first, 10, 64)
		id = own
	case of:
		held, where, lease, id = ticketOf(name)
	}
	out := ticketsIn(t.tickets)
	if _, there := out[name]; !there {
		held = 0
	}
	there := map[bool]int64{true: 1}[held > 0]
	more := int64(n) - held // of a settlement: what was used and not taken before
	switch kind {
	case 'u':
		delete(out, name)
		t.hold(now, out, 0)
		switch {
		case more < 0:
			c.Reply = []int64{1, t.give(now, map[int64]int64{where: -more})}
			return
		case more == 0:
			c.Reply = []int64{3 + there}
			return
		}
	case 'w', 'm':
		if held > 0 {
			out[name] = now + lease
			_, ttl := t.tickets.at(now)
			if ttl < lease/1000+1 {
				ttl = evenly(lease/1000) + 951
			}
			t.hold(now, out, ttl)
		}
	}
	ended := map[int64]int64{} // permits by their place; those of a bucket are one sum
	for _, ticket := range byEnd(out) {
		if permits, at, _, _ := ticketOf(ticket); out[ticket] <= now {
			delete(out, ticket)
			if t.how == '2' {
				at = 0
			}
			ended[at] += permits
		}
	}
	t.hold(now, out, 0)
	t.give(now, ended)
	words, place := t.words(now), placed(t.model(), now)
	reply := func(a model.Answer, taken int) []int64 {
		requests, soon := int64(1), int64(0)
		if !a.Allowed {
			requests, soon = 0, t.soon(now, n, out)
			t.allowed(words, now, 0, &a)
		} else {
			t.allowed(words, now, taken, nil)
		}
		if soon > 0 {
			a.RetryAfter = min(a.RetryAfter, time.Duration(soon)*time.Microsecond)
		}
		if kind != 'm' && kind != 'u' {
			c.Result = resultOf(a)
		}
		return append(append([]int64{requests}, words...), soon)
	}
	m := t.model()
	switch kind {
	case 'l':
		c.Reply = reply(m.Take(now, n, true), 0)
	case 'x':
		a := m.Take(now, n, false)
		if c.Reply = reply(a, n); a.Allowed {
			t.take(now, out, 0)
		}
	case 'u':
		c.Reply = append([]int64{2 * there}, reply(m.Charge(now, int(more)), int(more))...)
		t.take(now, out, 0)
	case 'w':
		c.Reply = []int64{there}
	case 'a', 'm':
		if kind == 'm' {
			if c.Reply = []int64{there}; held == 0 {
				return
			}
		}
		a := m.Take(now, n, false)
		c.Reply = append(c.Reply, reply(a, n)...)
		total := int64(n)
		if a.Allowed && kind == 'm' {
			if t.how == '2' {
				place = where
			}
			if place == where {
				total += held
			}
			if place == where || t.how != '3' { // of a log, both stay
				delete(out, name)
				t.hold(now, out, 0)
			}
		}
		if c.Reply = append(c.Reply, place, 0); a.Allowed {
			out[fmt.Sprintf("%d/%d/0/%d/%s", total, place, lease, id)] = now + lease
			t.take(now, out, lease)
		}
	}
}

package vectors

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/model"
)

// A ticketed is a token bucket whose tickets have a lease, and come back when that ends.
type ticketed struct {
	b            *bucket
	burst        int64
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

// ticketOf is the ticket of an operation, and the lease and the id that it, or a new one, has.
func ticketOf(operation string) (name string, lease int64, id string) {
	_, name, ok := strings.Cut(operation, "/")
	if !ok {
		return "", 0, ""
	}
	parts := strings.Split(name, "/")
	lease, _ = strconv.ParseInt(parts[len(parts)-2], 10, 64)
	return name, lease, parts[len(parts)-1]
}

// byEnd are the tickets, those first that end first.
func byEnd(out map[string]int64) []string {
	return slices.SortedFunc(maps.Keys(out), func(a, b string) int { return cmp.Or(cmp.Compare(out[a], out[b]), strings.Compare(a, b)) })
}

// permitsOf are those of a ticket, whose name begins with them.
func permitsOf(name string) int64 {
	n, _ := strconv.ParseInt(name[:strings.IndexByte(name, '/')], 10, 64)
	return n
}

// wait is how long it takes until n permits fit, if so many come back before.
func (t *ticketed) wait(now, n, back int64) int64 {
	units, _ := t.b.present(now)
	over := units.Int64() + (n-back-t.burst)*t.b.permit
	return (max(over, 0) + t.b.flow - 1) / t.b.flow
}

// soon is when tickets that end make room for n permits, 0 if none do.
func (t *ticketed) soon(now, n int64, out map[string]int64) (soon int64) {
	back := int64(0)
	for _, name := range byEnd(out) {
		back += permitsOf(name)
		if at := max(out[name]-now, t.wait(now, n, back)); soon == 0 || at < soon {
			soon = at
		}
	}
	return soon
}

// write stores the bucket, and keeps the tickets for as long as that or the lease of a new one.
func (t *ticketed) write(now int64, out map[string]int64, fresh int64, back bool) {
	first := t.tickets.state == nil
	if units, _ := t.b.present(now); units.Sign() > 0 || !back {
		state, ttl := t.b.write(now, 0, back)
		t.key.write(now, state, ttl)
	}
	switch _, ttl := t.tickets.at(now); {
	case len(out) == 0:
		t.tickets.delete()
	default:
		units, _ := t.b.present(now)
		needed := max(units.Int64()/t.b.flow, fresh)/1000 + 4
		if first || !back && ttl < needed {
			ttl = needed + 950
		}
		t.tickets.write(now, out, ttl)
	}
}

func (t *ticketed) operate(now int64, c *Case) {
	n, kind, _, _ := parse(c.Operation)
	name, lease, id := ticketOf(c.Operation)
	out := ticketsIn(t.tickets)
	_, there := out[name]
	give := func(permits int64) int64 {
		before, _ := t.b.present(now)
		t.b.m.GiveBack(now, int(permits), 0)
		return min(permits, (before.Int64()+t.b.permit-1)/t.b.permit)
	}
	if kind == 'u' && there && int64(n) < permitsOf(name) { // it leaves those that have ended to others
		delete(out, name)
		c.Reply = []int64{1, give(permitsOf(name) - int64(n))}
		t.write(now, out, 0, true)
		return
	}
	if kind == 'u' {
		delete(out, name)
	}
	if kind == 'w' && there {
		out[name] = now + lease
	}
	ended := false
	for _, of := range byEnd(out) {
		if out[of] <= now && !(there && of == name) {
			delete(out, of)
			give(permitsOf(of))
			ended = true
		}
	}
	if ended {
		t.write(now, out, 0, true)
	}
	words := t.b.words(now)
	reply := func(a model.Answer) []int64 {
		if a.Allowed {
			return append([]int64{1}, append(words, 0)...)
		}
		soon := t.soon(now, int64(n), out)
		if soon > 0 {
			a.RetryAfter = min(a.RetryAfter, time.Duration(soon)*time.Microsecond)
		}
		c.Result = resultOf(a)
		return append([]int64{0}, append(words, soon)...)
	}
	switch kind {
	case 'l', 'x':
		a := t.b.m.Take(now, n, kind == 'l')
		c.Result = resultOf(a)
		if c.Reply = reply(a); a.Allowed && kind == 'x' {
			t.write(now, out, 0, false)
		}
	case 'w':
		c.Reply = []int64{map[bool]int64{true: 1}[there]}
		if there {
			t.tickets.write(now, out, max(t.tickets.expires-now/1000, evenly(lease/1000)+951))
		}
	case 'a', 'm':
		if kind == 'm' {
			if c.Reply = []int64{map[bool]int64{true: 1}[there]}; !there {
				return
			}
			out[name] = now + lease
		}
		total, where := int64(n), now
		if kind == 'm' {
			total += permitsOf(name)
			where, _ = strconv.ParseInt(strings.Split(name, "/")[1], 10, 64)
		}
		a := t.b.m.Take(now, n, false)
		if !a.Allowed {
			where = now
		}
		if c.Reply = append(c.Reply, append(reply(a), where, 0)...); a.Allowed {
			if kind == 'm' {
				if delete(out, name); len(out) == 0 {
					t.tickets.delete() // another name, and so another key, with a TTL of its own
				}
			} else {
				c.Result = resultOf(a)
			}
			out[fmt.Sprintf("%d/%d/0/%d/%s", total, where, lease, id)] = now + lease
			t.write(now, out, lease, false)
		}
	case 'u': // what was used and not taken before is a charge
		more, word := int64(n), int64(0)
		if there {
			more, word = more-permitsOf(name), 2
		}
		if more == 0 {
			c.Reply = []int64{map[bool]int64{true: 4, false: 3}[there]}
			if t.tickets.state = out; len(out) == 0 {
				t.tickets.delete()
			}
			return
		}
		c.Reply = append([]int64{word}, reply(t.b.m.Charge(now, int(more)))...)
		t.write(now, out, 0, false)
	}
}

// tickets is a token bucket with tickets that have a lease.
func tickets() []Group {
	const burst = 3
	g := Group{
		Algorithm: "tokenbucket", About: "whose tickets have a lease: WithTicketLease",
		Script: "bucket,tickets", Key: "ratelimit:default:tokenbucket{k}", Beside: "ratelimit:default:tokenbucket/tickets{k}",
		Rule: map[string]int64{"count": 1, "period": 10_000_000, "burst": burst}, Args: append(texts(30_000_000, 10_000_000, 1), "/10000000/1"),
		Build: func(c ratelimit.Client) (ratelimit.Limiter, error) {
			return ratelimit.NewTokenBucket(c, ratelimit.Rate{Count: 1, Period: 10 * time.Second}, burst, ratelimit.WithTicketLease(4*time.Second))
		},
	}
	of := &ticketed{b: &bucket{m: model.NewTokenBucket(1, 10*time.Second, burst), permit: 10_000_000, flow: 1}, burst: burst}
	g.Cases = narrate(of, []step{
		{0, "2a2/4000000/JOB1", "An estimate of two permits: the second key has the ticket, scored by the end of its lease"},
		{time.Second, "2x1", "Denied for nine seconds; but the ticket ends in three, and then two permits come back. That is the last word"},
		{time.Second, "1w2/2/1763670000000000/0/4000000/JOB1", "The lease begins again"},
		{0, "1m2/2/1763670000000000/0/4000000/JOB1", "The ticket takes one permit more: the member has another name"},
		{time.Second, "1u2/3/1763670000000000/0/4000000/JOB1", "It is settled: one permit was used, so two come back, and the ticket goes"},
		{0, "1a2/4000000/JOB2", "Another ticket"},
		{0, "3x1", "The ticket ends in four seconds, but three permits fit in seven, when enough is restored besides"},
		{4 * time.Second, "look", "Its lease has ended: any call gives it back first, and a look too writes that"},
		{0, "2u2/1/1763670003000000/0/4000000/JOB2", "It is settled too late: all that was used is charged"},
	})
	return []Group{g, ticketsOfWindows()}
}

package vectors

import (
	"fmt"
	"strconv"

	"github.com/tryacquire/ratelimit/internal/testing/model"
)

// held are permits in flight. Now and then a case has another lease, in arguments of its own.
func held() []Group {
	const limit, lease, longer = 3, 2_000_000, 10_000_000
	g := Group{
		Algorithm: "inflight", Script: "inflight", Key: "ratelimit:default:inflight{k}",
		Rule: map[string]int64{"limit": limit, "lease": lease}, Args: argsOfHolds(limit, lease),
	}
	rng := model.Seeded(seed + 302)
	key, now := &model.InFlight{}, int64(start)
	ids := []string{"A", "B", "job"}
	for len(g.Cases) < 36 {
		now += rng.Int64N(1200) * 1000
		if rng.IntN(12) == 0 {
			now -= 5_000_000 // the server's clock steps back
		}
		call := model.Call{Limit: limit, Lease: lease, Server: now, Now: now}
		if rng.IntN(3) == 0 {
			call.Lease = longer
		}
		c := Case{Clock: now}
		c.Before, c.TTLBefore = membersOf(key, now)
		op, id, n := rng.IntN(8), ids[rng.IntN(len(ids))], 1+rng.IntN(2)
		for i, l := range key.Leases {
			if c.Before != nil && (l.ID == id || op < 4 && i == len(key.Leases)-1) { // mostly a hold that is there
				id, n, call.Lease = l.ID, l.Permits, l.Length
			}
		}
		if op > 3 && id != "job" { // only an id of the caller's own is taken twice
			id = fmt.Sprint(id, len(g.Cases))
		}
		if call.Lease == longer {
			c.Args = argsOfHolds(limit, longer)
		}
		switch op {
		case 0:
			c.Operation = "look"
		case 1, 2:
			c.Operation = fmt.Sprintf("%dr%s", n, id)
		case 3:
			c.Operation = fmt.Sprintf("%dk%s", n, id)
		default:
			c.Operation = fmt.Sprintf("%dh%s", n, id)
		}
		c.hold(key, call, id, n)
		c.After, c.TTL = membersOf(key, now)
		g.Cases = append(g.Cases, c)
	}
	return []Group{g}
}

// hold does the operation of a case.
func (c *Case) hold(key *model.InFlight, call model.Call, id string, n int) {
	c.Reply = []int64{1}
	switch _, kind, _, _ := parse(c.Operation); kind {
	case 'l':
		h := key.Peek(call)
		c.Reply, c.Result = wordsOfHeld(h), resultOfHeld(h, call)
	case 'r':
		key.Release(call.Server, id)
	case 'k':
		if !key.Extend(call, id, n) {
			c.Reply[0] = 0
		}
	default:
		h := key.Acquire(call, id, n)
		c.Reply = wordsOfHeld(h)
		if h.Wait != 1 {
			c.Result = resultOfHeld(h, call)
		}
	}
}

// A heldStep is a step with the hold that it is about.
type heldStep struct {
	step
	id string
	n  int
}

// narrateHolds has a case for each step, by calls of this rule. args are those of the cases; nil: the group's.
func narrateHolds(call model.Call, args []string, steps []heldStep) (cases []Case) {
	key, now := &model.InFlight{}, int64(start)
	for _, s := range steps {
		now += s.after.Microseconds()
		call.Server, call.Now = now, now
		c := Case{About: s.about, Clock: now, Spare: call.Spare / 1000, Args: args, Operation: s.operation}
		c.Before, c.TTLBefore = membersOf(key, now)
		c.hold(key, call, s.id, s.n)
		c.After, c.TTL = membersOf(key, now)
		if s.id == "job" || call.ByCaller {
			c.Result = nil // a limiter's id is another one
		}
		cases = append(cases, c)
	}
	return cases
}

func argsOfHolds(limit, lease int64) []string {
	return append(texts(limit, lease), "/"+strconv.FormatInt(lease, 10))
}

// membersOf is what the key holds, and its TTL.
func membersOf(f *model.InFlight, now int64) (any, int64) {
	if len(f.Leases) == 0 || f.Expires <= now {
		return nil, 0
	}
	members := map[string]int64{}
	for _, l := range f.Leases {
		for i := range l.Permits {
			name := fmt.Sprintf("%d/%s/%d", i+1, l.ID, l.Length)
			if l.ByCaller {
				name += fmt.Sprintf("@%d", skew)
			}
			members[name] = l.Ends
		}
	}
	return members, (f.Expires - now) / 1000
}

func wordsOfHeld(h model.Held) []int64 {
	words := []int64{0, int64(h.Used), h.Wait, h.Reset}
	if h.Allowed {
		words[0] = 1
	}
	return words
}

func resultOfHeld(h model.Held, c model.Call) *Result {
	r := &Result{Allowed: h.Allowed, Limit: c.Limit, Window: c.Lease, Remaining: max(c.Limit-h.Used, 0), ResetAfter: h.Reset}
	if !h.Allowed {
		r.RetryAfter = h.Wait
	}
	return r
}

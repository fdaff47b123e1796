package vectors

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/model"
)

// A reserved is a token bucket whose permits are reserved. Until when they are promised stands behind the state.
type reserved struct {
	b       *bucket
	key     kept
	wrote   map[string]promise // by the text that a reservation wrote
	promise                    // of the state
	waiting string             // cancels that wait
}

// A promise is the instant until which permits are promised, 0 for none, and what cancels the reservation that made it.
type promise struct {
	until  int64
	cancel func()
}

func (r *reserved) keys(*Case) []*kept { return []*kept{&r.key} }

// text is the state, without the cancels that wait.
func (r *reserved) text(now int64) (string, int64) {
	state, ttl := r.b.write(now, 0, false)
	text := state.(string)
	if _, at, _ := r.b.m.State(); r.until > now {
		text += fmt.Sprintf("!%d", r.until-at)
	}
	return text, ttl
}

// numbers are those of a state's text, as a receipt has them: instant, units, -1, and of the state before also the rule.
func numbers(text string) (instant, units, promised int64, rule []int64) {
	text, until, _ := strings.Cut(text, "!")
	parts := strings.Split(text, "/")
	instant, _ = strconv.ParseInt(parts[0], 10, 64)
	units, _ = strconv.ParseInt(parts[1], 10, 64)
	promised, _ = strconv.ParseInt(until, 10, 64)
	for _, part := range parts[2:] {
		n, _ := strconv.ParseInt(part, 10, 64)
		rule = append(rule, n)
	}
	return instant, units, promised, rule
}

// receiptOf are the numbers of what a key holds, and held before.
func receiptOf(text, before string) []int64 {
	instant, units, promised, _ := numbers(text)
	receipt := []int64{instant, units, -1, promised}
	if before != "" {
		was, level, until, rule := numbers(before)
		receipt = append(receipt, was, level, -1, rule[0], rule[1], 0, -2, until)
	}
	return receipt
}

func (r *reserved) operate(now int64, c *Case) {
	n, kind, longest, _ := parse(c.Operation)
	words := r.b.words(now)
	before, _ := r.key.state.(string)
	before, _, _ = strings.Cut(before, ";")
	switch kind {
	case 'x':
		a := r.b.m.Take(now, n, false)
		c.Reply, c.Result = append([]int64{0}, words...), resultOf(a)
		if a.Allowed {
			c.Reply[0] = 1
			text, ttl := r.text(now)
			r.key.write(now, text, ttl)
		}
	case 'g': // nothing while permits are promised
		c.Reply = []int64{0}
	case 's':
		a, due, cancel := r.b.m.(model.Reserver).Reserve(now, n, longest)
		c.Reply = append([]int64{due, 0}, words...)
		if !a.Allowed {
			c.Reply = append(c.Reply, 0)
			return
		}
		c.Reply[1] = 1
		last := r.until
		if due > 0 {
			r.until = now + due
		}
		text, ttl := r.text(now)
		receipt := receiptOf(text, before)
		c.Reply = append(append(c.Reply, int64(len(receipt))), receipt...)
		r.key.write(now, text+r.waiting, ttl)
		r.wrote[text] = promise{last, cancel}
	case 'z':
		wrote, restores, _ := strings.Cut(c.Operation[2:], "|")
		undone := r.wrote[wrote]
		undone.cancel()
		c.Reply = []int64{0}
		if before != wrote { // others have reserved behind it: the cancel waits for theirs
			r.waiting = ";" + wrote + "|" + restores + ";"
			r.key.write(now, before+r.waiting, r.key.expires-now/1000)
			return
		}
		c.Reply[0] = 1
		if r.until = undone.until; r.waiting == ";"+restores+"|"+r.restores()+";" {
			r.until, r.waiting = r.wrote[restores].until, ""
		}
		text, ttl := r.text(now)
		r.key.write(now, text, ttl)
	}
}

// restores is what a cancel that waits restores.
func (r *reserved) restores() string {
	_, text, _ := strings.Cut(strings.TrimSuffix(r.waiting, ";"), "|")
	return text
}

// reserving is a token bucket of two permits, one a second.
func reserving() Group {
	return Group{
		Algorithm: "tokenbucket", Script: "bucket", Key: "ratelimit:default:tokenbucket{k}",
		Rule: map[string]int64{"count": 1, "period": 1_000_000, "burst": 2}, Args: append(texts(2_000_000, 1_000_000, 1), "/1000000/1"),
		Build: func(c ratelimit.Client) (ratelimit.Limiter, error) {
			return ratelimit.NewTokenBucket(c, ratelimit.PerSecond(1), 2)
		},
	}
}

// reservations are permits of a token bucket that may be used later.
func reservations() []Group {
	g := reserving()
	g.About = "with reservations: permits that may be used later. Behind the words comes how many numbers follow: " +
		"4 of what the key holds (instant, units, -1, promised), and 8 of what it held (the same three, units a permit, units a µs, 0, -2, promised)"
	of := &reserved{b: &bucket{m: model.NewTokenBucket(1, time.Second, 2), permit: 1_000_000, flow: 1}, wrote: map[string]promise{}}
	const (
		first  = "1763670000000000/2000000/1000000/1"
		second = "1763670000500000/2500000/1000000/1!500000"
		third  = "1763670000500000/3500000/1000000/1!1500000"
	)
	g.Cases = narrate(of, []step{
		{0, "2s0", "The permits are there: they are due at once, and nothing is promised"},
		{500 * time.Millisecond, "1s100000", "Half a second is too long a wait: nothing is taken, and no numbers follow"},
		{0, "1s5000000", "Due in half a second: more is missing than the burst, and the state says until when permits are promised"},
		{0, "1s5000000", "Another one behind it"},
		{0, "1x1", "A plain call waits behind both"},
		{0, "1g/0", "While permits are promised, nothing is given back"},
		{100 * time.Millisecond, "1z" + second + "|" + first, "The first promise is cancelled. The other one knows its instant, so the cancel waits in the state"},
		{100 * time.Millisecond, "1z" + third + "|" + second, "The other one is cancelled too: the key holds what it held before both"},
	})
	return []Group{g}
}

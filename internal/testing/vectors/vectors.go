// Package vectors makes, from the models, examples of what each operation does to the state of a key: what the key
// held, the clock, the operation, the reply, and what the key holds then. They are in clients/vectors.json, for whoever
// writes another implementation. docs/state.md explains them.
package vectors

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/model"
)

// A Group is examples of one rule on one key.
type Group struct {
	Algorithm string           `json:"algorithm"`
	Script    string           `json:"script"` // as "ratelimit scripts" names it
	Rule      map[string]int64 `json:"rule"`   // times in microseconds
	Key       string           `json:"key"`
	Args      []string         `json:"args"` // ARGV behind the first one, and in front of the operation
	Cases     []Case           `json:"-"`

	// Build makes the limiter; nil: permits are held, and one is made of the rule.
	Build func(ratelimit.Client) (ratelimit.Limiter, error) `json:"-"`
}

// A Case is one operation. Before and After are what the key holds, nil if there is none: a string, the elements of a list, the
// fields of a hash, or the members of a sorted set with their scores. TTLs are milliseconds.
type Case struct {
	Clock     int64    `json:"clock"`
	Args      []string `json:"args,omitempty"` // in place of those of the group
	Before    any      `json:"before"`
	TTLBefore int64    `json:"ttl_before"`
	Operation string   `json:"operation"`
	Reply     []int64  `json:"reply"`
	After     any      `json:"after"`
	TTL       int64    `json:"ttl"`
	Result    *Result  `json:"result,omitempty"` // of operations whose reply becomes one
}

// A Result is a ratelimit.Result, its times in microseconds.
type Result struct {
	Allowed    bool  `json:"allowed"`
	Limit      int   `json:"limit"`
	Window     int64 `json:"window"`
	Remaining  int   `json:"remaining"`
	RetryAfter int64 `json:"retry_after"`
	ResetAfter int64 `json:"reset_after"`
}

func resultOf(a model.Answer) *Result {
	return &Result{a.Allowed, a.Limit, a.Window.Microseconds(), a.Remaining, a.RetryAfter.Microseconds(), a.ResetAfter.Microseconds()}
}

// seed makes the examples the same each time.
const seed = 36

// JSON are all groups as they stand in the file: a line for each case.
func JSON(groups []Group) ([]byte, error) {
	var b strings.Builder
	line := func(before string, of any, after string) error {
		text, err := json.Marshal(of)
		b.WriteString(before + string(text) + after)
		return err
	}
	b.WriteString("[\n")
	for i, g := range groups {
		head, err := json.Marshal(g)
		if err != nil {
			return nil, err
		}
		b.WriteString(strings.TrimSuffix(string(head), "}") + `,"cases":[` + "\n")
		for j, c := range g.Cases {
			if err := line("", c, map[bool]string{true: ",\n", false: "\n"}[j < len(g.Cases)-1]); err != nil {
				return nil, err
			}
		}
		b.WriteString("]}" + map[bool]string{true: ",\n", false: "\n"}[i < len(groups)-1])
	}
	b.WriteString("]\n")
	return []byte(b.String()), nil
}

// A book writes down what Redis holds of a model, and what a script replies.
type book interface {
	model() model.Settler

	// words are those of a reply, behind the number of requests allowed: of the state before a call at now.
	words(now int64) []int64

	// allowed completes the words when so many permits have been taken, and denied is the answer to the request that was not
	// allowed, if there was one.
	allowed(words []int64, now int64, taken int, denied *model.Answer)

	// used is how many permits are missing or used now, rounded up.
	used(now int64) int64

	// repairs reports whether the server's clock stepped back, so that a denial writes too.
	repairs(now int64) bool

	// last is what the reply to an estimate says besides the place, and which what the ticket of n permits says.
	last() int64
	which(n int) int64

	// write is what the key holds after a call that has written, nil for no key, and its TTL. old is that before, 0 if there
	// was no key. Of a giveback, back is true.
	write(now, old int64, back bool) (state any, ttl int64)
}

// A history makes cases one after the other.
type history struct {
	book
	rng     *rand.Rand
	state   any
	expires int64 // milliseconds
	cases   []Case
	tickets []ticket
}

type ticket struct {
	n            int
	place, which int64
}

// start is the first instant of every history.
const start = 1_763_670_000_000_000

func newHistory(b book, number int) *history {
	return &history{book: b, rng: model.Seeded(seed + uint64(number))}
}

// texts are numbers as arguments.
func texts(numbers ...int64) (all []string) {
	for _, n := range numbers {
		all = append(all, strconv.FormatInt(n, 10))
	}
	return all
}

// All are the groups of the file.
func All() []Group { return slices.Concat(buckets(), logs(), windows(), held(), hashes()) }

// steps makes so many cases. back: the clock steps back now and then.
func (h *history) steps(count int, start int64, back bool) []Case {
	shape := model.ShapeOf(h.model(), back)
	shape.Start = start
	scenario := model.NewScenario(h.rng, shape)
	var last model.Answer
	for len(h.cases) < count {
		step := scenario.Next(last)
		if step.Op == model.Reset {
			continue
		}
		last = h.step(step)
	}
	return h.cases
}

// step does what a step says, or another operation in its place.
func (h *history) step(s model.Step) (answer model.Answer) {
	m, now := h.model(), s.Now
	c := Case{Clock: now}
	if h.state != nil && h.expires <= now/1000 {
		m.Reset()
		h.state = nil
	}
	if h.state != nil {
		c.Before, c.TTLBefore = h.state, h.expires-now/1000
	}
	words, repairs, used := h.words(now), h.repairs(now), h.used(now)
	creditor, credits := m.(model.Creditor)
	// taken ends a case in which so many permits were taken by so many requests. denied: the next request was.
	taken := func(permits int, requests int64, denied bool) {
		c.Reply = append([]int64{requests}, words...)
		var no *model.Answer
		if denied {
			no = &answer
		}
		h.allowed(c.Reply[1:], now, permits, no)
	}
	back := false
	switch op := h.rng.IntN(20); {
	case s.Op == model.Peek:
		c.Operation = "look"
		answer = m.Take(now, 1, true)
		taken(0, map[bool]int64{true: 1}[answer.Allowed], !answer.Allowed)
		c.Result, repairs = resultOf(answer), false
	case op < 2 && len(h.tickets) > 0 && !m.Unused(now):
		t := h.tickets[0]
		h.tickets = h.tickets[1:]
		n := 1 + h.rng.IntN(t.n)
		c.Operation = fmt.Sprintf("%dg%d/%d", n, t.place, t.which)
		m.GiveBack(now, n, t.place)
		c.Reply = []int64{used - h.used(now)}
		back = true
	case op == 2 && credits:
		n := 1 + h.rng.IntN(m.Max()+1)
		c.Operation = fmt.Sprintf("%dg/0", n)
		c.Reply = []int64{int64(creditor.Credit(now, n))}
		back = true
	case op == 3:
		n := 1 + h.rng.IntN(2*m.Max())
		c.Operation = fmt.Sprintf("%dc1", n)
		answer = m.Charge(now, n)
		taken(n, 1, false)
		c.Result = resultOf(answer)
	case op < 6 && m.Take(now, s.N, true).Allowed:
		c.Operation = fmt.Sprintf("%de1", s.N)
		answer = m.Take(now, s.N, false)
		taken(s.N, 1, false)
		c.Result = resultOf(answer)
		t := ticket{s.N, m.Place(now), h.which(s.N)}
		c.Reply = append(c.Reply, t.place, h.last())
		h.tickets = append(h.tickets, t)
	case op < 9 && s.N == 1:
		const times = 3
		c.Operation = fmt.Sprintf("1x%d", times)
		requests := int64(0)
		for answer.Allowed = true; answer.Allowed && requests < times; {
			if answer = m.Take(now, 1, false); answer.Allowed {
				requests++
			}
		}
		taken(int(requests), requests, !answer.Allowed)
	default:
		c.Operation = fmt.Sprintf("%dx1", s.N)
		answer = m.Take(now, s.N, false)
		if answer.Allowed {
			taken(s.N, 1, false)
		} else {
			taken(0, 0, true)
		}
		c.Result = resultOf(answer)
	}
	if c.Operation != "look" && c.Reply[0] > 0 || !back && repairs {
		var ttl int64
		h.state, ttl = h.write(now, c.TTLBefore, back)
		h.expires = now/1000 + ttl
	}
	if h.state != nil {
		c.After, c.TTL = h.state, h.expires-now/1000
	}
	h.cases = append(h.cases, c)
	return answer
}

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
	"time"
	"unicode"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/model"
)

// A Group is examples of one rule on one key.
type Group struct {
	Algorithm string           `json:"algorithm"`
	About     string           `json:"about,omitempty"`
	Script    string           `json:"script"` // as "ratelimit scripts" names it
	Rule      map[string]int64 `json:"rule"`   // times in microseconds
	Key       string           `json:"key,omitempty"`
	Beside    string           `json:"beside,omitempty"` // the second key
	Args      []string         `json:"args"`             // ARGV behind the first one, and in front of the operation
	Cases     []Case           `json:"-"`

	// Build makes the limiter; nil: permits are held, and one is made of the rule. ByClock makes one by a caller's clock.
	Build   func(ratelimit.Client) (ratelimit.Limiter, error)                   `json:"-"`
	ByClock func(ratelimit.Client, func() time.Time) (ratelimit.Limiter, error) `json:"-"`
}

// A Case is one operation. Before and After are what the key holds, nil if there is none: a string, the elements of a list, the
// fields of a hash, or the members of a sorted set with their scores. TTLs are milliseconds.
type Case struct {
	About     string   `json:"about,omitempty"` // what it shows
	Key       string   `json:"key,omitempty"`   // in place of that of the group
	Clock     int64    `json:"clock"`
	Spare     int64    `json:"spare,omitempty"` // the clock is a caller's, and this and the clock are the last arguments
	Args      []string `json:"args,omitempty"`  // in place of those of the group
	Before    any      `json:"before"`
	TTLBefore int64    `json:"ttl_before"`
	Operation string   `json:"operation"`
	ID        string   `json:"id,omitempty"`    // of the call, as the last argument
	Error     string   `json:"error,omitempty"` // how it begins, in place of the reply
	Reply     []int64  `json:"reply"`
	After     any      `json:"after"`
	TTL       int64    `json:"ttl"`
	Beside    *Change  `json:"beside,omitempty"` // of the second key
	Result    *Result  `json:"result,omitempty"` // of operations whose reply becomes one
}

// A Change is what a key holds before and after an operation.
type Change struct {
	Before    any   `json:"before"`
	TTLBefore int64 `json:"ttl_before"`
	After     any   `json:"after"`
	TTL       int64 `json:"ttl"`
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

	// giveBack gives n permits of a ticket back.
	giveBack(now int64, n int, place, which int64)

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
	now     int64
	spare   int64 // above 0: the clock is a caller's
}

type ticket struct {
	n            int
	place, which int64
}

// start is the first instant of every history.
const start = 1_763_670_000_000_000

func newHistory(b book, number int) *history {
	return &history{book: b, rng: model.Seeded(seed + uint64(number)), now: start}
}

// texts are numbers as arguments.
func texts(numbers ...int64) (all []string) {
	for _, n := range numbers {
		all = append(all, strconv.FormatInt(n, 10))
	}
	return all
}

// All are the groups of the file: first the chosen cases, each of which says what it shows, and then random histories.
func All() []Group {
	all := slices.Concat(basics(), zsets(), pauses(), callersClocks(), ofSeveralRules(), ids(), tickets(), reservations(), leasedSlices(), fairBuckets())
	for _, g := range slices.Concat(buckets(), logs(), windows(), held(), hashes()) {
		g.About = "a random history"
		all = append(all, g)
	}
	return all
}

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
func (h *history) step(s model.Step) model.Answer {
	m, now := h.model(), s.Now
	h.expire(now)
	_, credits := m.(model.Creditor)
	switch op := h.rng.IntN(20); {
	case s.Op == model.Peek:
		return h.do(now, "look", "")
	case op < 2 && len(h.tickets) > 0 && !m.Unused(now):
		t := h.tickets[0]
		h.tickets = h.tickets[1:]
		return h.do(now, fmt.Sprintf("%dg%d/%d", 1+h.rng.IntN(t.n), t.place, t.which), "")
	case op == 2 && credits:
		return h.do(now, fmt.Sprintf("%dg/0", 1+h.rng.IntN(m.Max()+1)), "")
	case op == 3:
		return h.do(now, fmt.Sprintf("%dc1", 1+h.rng.IntN(2*m.Max())), "")
	case op < 6 && m.Take(now, s.N, true).Allowed:
		return h.do(now, fmt.Sprintf("%de1", s.N), "")
	case op < 9 && s.N == 1:
		return h.do(now, "1x3", "")
	}
	return h.do(now, fmt.Sprintf("%dx1", s.N), "")
}

// expire forgets a state whose key has expired.
func (h *history) expire(now int64) {
	if h.state != nil && h.expires <= now/1000 {
		h.model().Reset()
		h.state = nil
	}
}

// do makes the case of an operation, with what is said about it.
func (h *history) do(now int64, operation, about string) (answer model.Answer) {
	m := h.model()
	h.expire(now)
	c := Case{About: about, Clock: now, Spare: h.spare, Operation: operation}
	if h.state != nil {
		c.Before, c.TTLBefore = h.state, h.expires-now/1000
	}
	words, repairs, used := h.words(now), h.repairs(now), h.used(now)
	n, kind, amount, which := parse(operation)
	// taken ends a case in which so many permits were taken by so many requests. denied: the next request was.
	taken := func(permits int, requests int64, denied bool) {
		c.Reply = append([]int64{requests}, words...)
		var no *model.Answer
		if denied {
			no = &answer
		}
		h.allowed(c.Reply[1:], now, permits, no)
	}
	back := kind == 'g'
	switch {
	case kind == 'l':
		answer = m.Take(now, 1, true)
		taken(0, map[bool]int64{true: 1}[answer.Allowed], !answer.Allowed)
		c.Result, repairs = resultOf(answer), false
	case back && strings.HasSuffix(operation, "g/0"):
		c.Reply = []int64{int64(m.(model.Creditor).Credit(now, n))}
	case back:
		h.giveBack(now, n, amount, which)
		c.Reply = []int64{used - h.used(now)}
	case kind == 'c':
		answer = m.Charge(now, n)
		taken(n, 1, false)
		c.Result = resultOf(answer)
	default:
		requests := int64(0)
		for answer.Allowed = true; answer.Allowed && requests < amount; {
			if answer = m.Take(now, n, false); answer.Allowed {
				requests++
			}
		}
		taken(n*int(requests), requests, !answer.Allowed)
		if amount == 1 {
			c.Result = resultOf(answer)
		}
	}
	if kind != 'l' && c.Reply[0] > 0 || !back && repairs {
		var ttl int64
		h.state, ttl = h.write(now, c.TTLBefore, back)
		h.expires = now/1000 + ttl
	}
	if kind == 'e' {
		t := ticket{n, m.Place(now), h.which(n)}
		c.Reply = append(c.Reply, t.place, h.last())
		h.tickets = append(h.tickets, t)
	}
	if h.state != nil {
		c.After, c.TTL = h.state, h.expires-now/1000
	}
	h.cases = append(h.cases, c)
	return answer
}

// parse takes the text of an operation apart. The kind of a look is l.
func parse(operation string) (n int, kind byte, amount, which int64) {
	if operation == "look" {
		return 1, 'l', 0, 0
	}
	at := strings.IndexFunc(operation, unicode.IsLetter)
	first, second, _ := strings.Cut(operation[at+1:], "/")
	n, _ = strconv.Atoi(operation[:at])
	amount, _ = strconv.ParseInt(first, 10, 64)
	which, _ = strconv.ParseInt(second, 10, 64)
	return n, operation[at], amount, which
}

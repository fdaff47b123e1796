package vectors

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/model"
)

// A paused is a key with a pause. Of callers' clocks, spare is how far they may be apart, in milliseconds. An operation that names
// the server is by its clock.
type paused struct {
	m     *model.Pause
	spare int64
	key   kept
}

func (p *paused) keys(*Case) []*kept { return []*kept{&p.key} }

// text is the state, and what is left of its use, in milliseconds: 0 if it has none.
func (p *paused) text(now int64) (string, int64) {
	until, length, first, strikes, episode, forget := p.m.State()
	if forget <= now {
		strikes = 0
	}
	last := now
	if until > 0 {
		last = max(last, until+p.m.Lease)
	}
	if first > 0 {
		last = max(last, first+2*p.m.Lease)
	}
	if strikes > 0 {
		last = max(last, forget)
	}
	text := fmt.Sprintf("%d/%d/%d/%d/%d/%d", until, length, first, strikes, episode, forget)
	if p.m.CallersClock {
		text += "@"
	}
	return text, (last - now) / 1000
}

func (p *paused) operate(now int64, c *Case) {
	if c.ID == "" {
		c.Spare = p.spare
	}
	c.ID = ""
	if p.key.state == nil {
		*p.m = *model.NewPause(p.m.Lease)
		p.m.CallersClock = c.Spare > 0
	}
	before, _ := p.text(now)
	var reply []int64
	_, kind, amount, _ := parse(c.Operation)
	if kind != 'l' {
		p.m.See(now)
	}
	look := func() []int64 {
		holds, free, left := p.m.Held(now)
		return []int64{map[bool]int64{true: 1}[free], holds, left}
	}
	switch kind {
	case 'l':
		reply = look()
	case 'x':
		allowed, holds, left := p.m.Take(now, amount)
		reply = []int64{allowed, holds, left}
	case 'g':
		reply = []int64{p.m.GiveBack(now, amount)}
	case 'p':
		p.m.Pause(now, amount)
		reply = look()
	case 'f':
		p.m.Resume(now)
		reply = look()
	case 't': // <wait>/<quiet>:<step>:…
		_, lengths, _ := strings.Cut(c.Operation, ":")
		quiet, _, _ := strings.Cut(c.Operation[strings.Index(c.Operation, "/")+1:], ":")
		forgets, _ := strconv.ParseInt(quiet, 10, 64)
		var steps []int64
		for _, length := range strings.Split(lengths, ":") {
			long, _ := strconv.ParseInt(length, 10, 64)
			steps = append(steps, long)
		}
		p.m.Strike(now, amount, forgets, steps)
		reply = look()
	}
	if text, left := p.text(now); kind != 'l' && text != before {
		if p.key.delete(); left > 0 {
			p.key.write(now, text, left+2+c.Spare)
		}
	}
	if kind == 'l' || kind == 'p' || kind == 'x' && amount == 1 {
		c.Result = p.explain(reply, kind == 'x')
	}
	c.Reply = reply
}

// explain makes the words a result: while one call goes first, that is the rule, with one permit.
func (p *paused) explain(words []int64, takes bool) *Result {
	r := &Result{Allowed: words[0] > 0}
	if !r.Allowed {
		r.RetryAfter, r.ResetAfter = words[2], words[2]
	}
	if words[1] == 2 {
		r.Limit, r.Window = 1, p.m.Lease
		switch {
		case r.Allowed && takes:
			r.ResetAfter = words[2]
		case r.Allowed:
			r.Remaining = 1
		}
	}
	return r
}

const probe = 2 * time.Second

// probing is a pause after which one call goes first.
func probing() Group {
	g := Group{
		Algorithm: "pause", Script: "pause", Key: "ratelimit:default:pause{k}",
		Rule: map[string]int64{"probe": probe.Microseconds()}, Args: texts(probe.Microseconds()),
	}
	g.byClocks(func(c ratelimit.Client, options ...ratelimit.Option) (ratelimit.Limiter, error) {
		return ratelimit.NewPause(c, append(options, ratelimit.WithProbe(probe))...)
	})
	return g
}

func pauses() []Group {
	g := probing()
	over := int64(start) + 10_000_000 // of the first pause
	g.Cases = narrate(&paused{m: model.NewPause(probe.Microseconds())}, []step{
		{0, "1x1", "A key that is not paused allows every call, and nothing is written"},
		{0, "1p10000000", "A pause of ten seconds"},
		{time.Second, "1x1", "While the key is paused, calls are denied until its instant"},
		{0, "1p5000000", "A pause only moves the instant later: this one changes nothing"},
		{9 * time.Second, "1x3", "The pause is over: of three calls one goes first, and the others wait for the length of a probe"},
		{time.Second, "look", "Others wait for the one that went first"},
		{0, fmt.Sprintf("1g%d/0", over), "It did not go after all: its turn comes back, as if it had gone a probe's length ago"},
		{0, "1x1", "So the next one goes"},
		{time.Second, "1f", "It has succeeded: nobody is held back any more, and the key is of no use"},
		{0, "1t500000/60000000:1000000:5000000", "A strike pauses for the first length. Its episode lasts as long; strikes are forgotten a minute later"},
		{500 * time.Millisecond, "1t500000/60000000:1000000:5000000", "A strike in the same episode counts no further"},
		{time.Second, "1t8000000/60000000:1000000:5000000", "The second episode: a pause of the second length. The denied call is to wait for longer, so the episode is longer"},
		{-3 * time.Second, "1x1", "The server's clock stepped back: no pause lasts longer than from now on, and the episode and what is forgotten move with it"},
		{30 * time.Second, "1x1", "The pause has been over for longer than a probe's length, and nobody asked: all may go, and nothing is written"},
	})
	return []Group{g}
}

func pauseByCallers() Group {
	g := probing()
	g.About = byCallers
	g.Cases = narrate(&paused{m: model.NewPause(probe.Microseconds()), spare: skew}, []step{
		{0, "1p10000000", "The state says that a caller's clock wrote it, and the TTL is longer by the skew"},
		{-400 * time.Millisecond, "1x1", "Another caller's clock is 400 ms behind: its calls wait for longer by that"},
		{0, "1p10000000", "A pause by that clock ends sooner than the one that there is, and changes nothing"},
		{10400 * time.Millisecond, "1x1", "The pause is over by this clock: the call goes first"},
		{-300 * time.Millisecond, "1x1", "It is not over by a clock that is behind"},
		{400 * time.Millisecond, "1x1", "By this one it is, but another call has gone first"},
		{0, "1t0/60000000:1000000", "A strike"},
		{-5 * time.Second, "1x1", "This clock is further behind than the pause is long. An instant of a caller's clock is never moved back"},
		{0, "1x1 server", "Nor is it by the server's clock"},
		{7 * time.Second, "1x1 server", "The state that a limiter by the server's clock writes stays one of callers' clocks, but its TTL is not longer"},
	})
	return g
}

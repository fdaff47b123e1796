package serve

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	exact "github.com/tryacquire/ratelimit/internal/testing/model"
)

var (
	seed  = flag.Uint64("seed", 0, "of TestAgainstAModel; 0: a new one")
	steps = flag.Int("steps", 300, "of TestAgainstAModel")
)

// A modelPart is a descriptor of a request, and its answer.
type modelPart struct {
	*modelRule
	hits   int
	back   bool
	state  exact.Model
	known  bool
	over   bool
	answer exact.Answer
	used   int // of a rule that counts what it denies
}

func (p *modelPart) peek(now int64) exact.Answer { return p.state.Take(now, 1, true) }

// look answers without taking anything: what is left, and when as many hits are allowed.
func (p *modelPart) look(now int64) {
	p.known = true
	if p.over = p.hits > p.most(); p.over {
		p.answer = p.peek(now)
		return
	}
	p.answer = p.state.Take(now, max(p.hits, 1), true)
	p.over = !p.answer.Allowed
}

// decide is what docs/serve.md says of a request.
func decide(all []*modelPart, now int64) (denied bool) {
	var counting, enforced, quotas, shadows, credits []*modelPart
	for _, p := range all {
		switch {
		case p.modelRule == nil:
		case p.limit == 0:
			p.known, p.over = true, p.hits > 0 && !p.back
			denied = denied || p.over && p.enforced()
		case p.back:
			credits = append(credits, p)
		case p.always:
			counting = append(counting, p)
		case p.quota:
			quotas = append(quotas, p)
		case p.shadow:
			shadows = append(shadows, p)
		default:
			enforced = append(enforced, p)
		}
	}
	for _, p := range counting {
		if p.hits > 0 {
			p.state.Take(now, p.hits, false)
		}
		p.count(now)
		p.over = p.used > p.limit
		denied = denied || p.over && p.enforced()
	}
	for _, p := range enforced {
		p.look(now)
		denied = denied || p.over
	}
	for _, p := range quotas {
		p.look(now)
	}
	for _, p := range shadows {
		p.look(now)
	}
	if denied = denied || usedUp(all); denied { // it counts nowhere
		for _, p := range credits {
			p.credited(now)
		}
		return true
	}
	for _, p := range slices.Concat(enforced, quotas, shadows) {
		if !p.over && p.hits > 0 {
			p.answer = p.state.Take(now, p.hits, false)
		}
	}
	for _, p := range credits {
		p.state.(exact.Creditor).Credit(now, p.hits)
		p.credited(now)
	}
	return false
}

// credited is the answer to hits that are given back.
func (p *modelPart) credited(now int64) {
	if p.always {
		p.count(now)
	} else {
		p.answer, p.known = p.peek(now), true
	}
}

// usedUp reports whether there are quotas, and nothing is left of them.
func usedUp(all []*modelPart) bool {
	draws, used := 0, 0
	for _, p := range all {
		if p.modelRule != nil && p.quota && !p.back {
			if draws++; p.over {
				used++
			}
		}
	}
	return draws > 0 && draws == used
}

// count is the answer of a rule that counts what it denies.
func (p *modelPart) count(now int64) {
	p.answer, p.known = p.peek(now), true
	p.used = mostLimit - p.answer.Remaining
	p.answer.Remaining = max(0, p.limit-p.used)
}

// text is the answer as short has it.
func (p *modelPart) text(now time.Time) string {
	if p.modelRule == nil {
		return " | OK"
	}
	word, left := "OK", p.answer.Remaining
	if p.over && !p.shadow {
		word = "OVER"
	}
	after := p.answer.ResetAfter
	if p.over {
		left = 0
		if p.algorithm != fixedWindow && p.answer.RetryAfter > 0 {
			after = p.answer.RetryAfter
		}
	}
	if p.algorithm == fixedWindow {
		after = p.window() - time.Duration(now.UnixNano())%p.window()
	}
	if p.over {
		after = max(after, time.Second)
	}
	return fmt.Sprintf(" | %s %d of %d/%s, %v", word, left, p.limit, p.unit, (after + time.Second - 1).Truncate(time.Second))
}

// TestAgainstAModel compares random requests to random configurations, whose clocks run through days, with a model: exact
// models of the algorithms, and what docs/serve.md says of requests. -steps 300000 takes minutes.
func TestAgainstAModel(t *testing.T) {
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	t.Logf("-seed %d", *seed)
	const each = 150 // requests to a configuration
	allowed, denied := 0, 0
	for n := range *steps / each {
		w := newWorld(rand.New(rand.NewPCG(*seed, uint64(n))))
		onStage(t, w.o, func(t *testing.T, s stage) {
			for step := range each {
				if w.random.IntN(3) == 0 {
					s.Advance(pick(w.random, time.Millisecond, 300*time.Millisecond, 7*time.Second, 20*time.Minute, 3*time.Hour))
				}
				all, texts := w.parts()
				r := request(1, texts...)
				for i, p := range all {
					r.Descriptors[i].IsNegativeHits = p.back
				}
				now := time.Now()
				want := "OK"
				if decide(all, now.UnixMicro()) {
					want = "OVER"
					denied++
				} else {
					allowed++
				}
				for _, p := range all {
					want += p.text(now)
				}
				files, _ := w.o.Files()
				require.Equal(t, want, s.ask(r), "-seed %d, configuration %d, step %d: %v at %v\n%+v\n%s", *seed, n, step, r, now.UTC(), w.o, files[0].Text)
			}
		})
	}
	require.Greater(t, denied, *steps/10)
	require.Greater(t, allowed, *steps/10)
}

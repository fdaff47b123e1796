package model

import (
	"math/rand/v2"
	"time"
)

// An Op is what a [Step] does.
type Op int

// The operations of a limiter.
const (
	Take Op = iota
	Peek
	Reset
)

func (o Op) String() string { return [...]string{"Take", "Peek", "Reset"}[o] }

// A Step is one call of a random sequence: at Now, for N permits (1 for Peek).
type Step struct {
	Now int64
	N   int
	Op  Op
}

// A Shape describes the steps that a [Scenario] makes.
type Shape struct {
	Start int64         // the first instant; 0: some instant in 2023
	Max   int           // the most permits that a step asks for, at least 1
	Span  time.Duration // the time scale: about one window
	Back  bool          // the clock is set back now and then
}

// ShapeOf is the shape that fits a model.
func ShapeOf(m Model, back bool) Shape { return Shape{Max: m.Max(), Span: m.Span(), Back: back} }

// A Scenario is an endless random sequence of calls that tries what breaks limiters:
// bursts within one instant; pauses of many windows; the last microsecond before the
// RetryAfter, ResetAfter or Window of the last answer ends, and the first one after
// that; as many permits as are left, and one more; a clock that is set back. The same
// seed and the same answers make the same sequence.
//
//	m := model.NewTokenBucket(7, time.Minute, 5)
//	scenario := model.NewScenario(model.Seeded(1), model.ShapeOf(m, true))
//	var want model.Answer
//	for range 10_000 {
//		step := scenario.Next(want)
//		if step.Op == model.Reset {
//			m.Reset() // and the real one's Reset
//			continue
//		}
//		want = m.Take(step.Now, step.N, step.Op == model.Peek)
//		// the real one's TryAcquireN or Peek must answer the same
//	}
type Scenario struct {
	rng   *rand.Rand
	shape Shape
	now   int64
	burst int // steps left of the present burst
}

// Seeded is a generator that yields the same for the same seed.
func Seeded(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0x5eed)) }

// NewScenario starts a sequence.
func NewScenario(rng *rand.Rand, shape Shape) *Scenario {
	checkPositive("max", shape.Max)
	checkPositive("span", shape.Span)
	if shape.Start == 0 {
		shape.Start = 1_700_000_000_000_000 + rng.Int64N(1_000_000_000)
	}
	return &Scenario{rng: rng, shape: shape, now: shape.Start}
}

// Next is the step that follows last, the answer to the step before it (the
// zero Answer at first).
func (s *Scenario) Next(last Answer) Step {
	s.now = max(0, s.now+s.advance(last))
	step := Step{Now: s.now, N: s.cost(last)}
	switch p := s.rng.IntN(300); {
	case p == 0:
		step.Op = Reset
	case p < 45:
		step.Op, step.N = Peek, 1
	}
	return step
}

// advance is by how many microseconds the clock moves.
func (s *Scenario) advance(last Answer) int64 {
	span := max(1, s.shape.Span.Microseconds())
	if s.burst > 0 {
		s.burst--
		return s.rng.Int64N(2) * s.rng.Int64N(1+min(50, span/20))
	}
	switch p := s.rng.IntN(100); {
	case p < 10:
		s.burst = 1 + s.rng.IntN(2*min(s.shape.Max, 20))
		return 0
	case p < 35 && last.RetryAfter > 0:
		return s.near(last.RetryAfter)
	case p < 42:
		return s.near(last.ResetAfter)
	case p < 47:
		return s.near(last.Window)
	case p < 50:
		return span * (1 + s.rng.Int64N(20)) // a pause
	case p < 55 && s.shape.Back:
		return -s.back(span)
	case p < 70: // about the time of one permit
		return s.rng.Int64N(1 + 2*span/int64(s.shape.Max))
	case p < 80:
		return s.rng.Int64N(1 + span)
	}
	return s.rng.Int64N(1 + span/10)
}

// near is d, or a little less or more than d, but not below 0.
func (s *Scenario) near(d time.Duration) int64 {
	offsets := [...]int64{0, 0, -1, -1, 1, -1000, 1000, -999, 999}
	return max(0, d.Microseconds()+offsets[s.rng.IntN(len(offsets))])
}

// back is by how much the clock is set back: a hair, less than a span, about a
// span, or far more.
func (s *Scenario) back(span int64) int64 {
	switch s.rng.IntN(4) {
	case 0:
		return 1 + s.rng.Int64N(1000)
	case 1:
		return 1 + s.rng.Int64N(span)
	case 2:
		return max(1, span-1+s.rng.Int64N(3))
	}
	return span * (1 + s.rng.Int64N(10))
}

// cost is how many permits are asked for.
func (s *Scenario) cost(last Answer) int {
	n := 1
	switch p := s.rng.IntN(100); {
	case p < 10:
		n = last.Remaining
	case p < 20:
		n = last.Remaining + 1
	case p < 25:
		n = s.shape.Max
	case p < 32:
		n = 1 + s.rng.IntN(s.shape.Max)
	case p < 50:
		n = 1 + s.rng.IntN(min(3, s.shape.Max))
	}
	return min(max(1, n), s.shape.Max)
}

// Play runs a number of steps against m alone, shows each to visit (which may be
// nil) and returns the permits taken since the last Reset.
func Play(m Model, scenario *Scenario, steps int, visit func(Step, Answer)) []Taken {
	var taken []Taken
	var answer Answer
	for range steps {
		step := scenario.Next(answer)
		if step.Op == Reset {
			m.Reset()
			taken, answer = nil, Answer{}
			continue
		}
		answer = m.Take(step.Now, step.N, step.Op == Peek)
		if answer.Allowed && step.Op == Take {
			taken = append(taken, Taken{At: step.Now, N: step.N})
		}
		if visit != nil {
			visit(step, answer)
		}
	}
	return taken
}

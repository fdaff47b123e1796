package model

import (
	"math/big"
	"reflect"
	"testing"
	"time"
)

func TestSameSeedSameScenario(t *testing.T) {
	record := func(seed uint64) (steps []Step) {
		m := NewTokenBucket(7, time.Minute, 5)
		Play(m, NewScenario(Seeded(seed), ShapeOf(m, true)), 500, func(s Step, _ Answer) { steps = append(steps, s) })
		return steps
	}
	if !reflect.DeepEqual(record(1), record(1)) {
		t.Error("the same seed made two scenarios")
	}
	if reflect.DeepEqual(record(1), record(2)) {
		t.Error("two seeds made the same scenario")
	}
}

func TestScenarioGoesWhereLimitersBreak(t *testing.T) {
	for _, back := range []bool{false, true} {
		m := NewSlidingZSet(10, time.Second)
		scenario := NewScenario(Seeded(1), ShapeOf(m, back))
		seen := map[string]int{}
		var last Answer
		var before Step
		for i := range 20_000 {
			step := scenario.Next(last)
			if step.N < 1 || step.N > m.Max() || step.Now < 0 || step.Op == Peek && step.N != 1 {
				t.Fatalf("impossible step %+v", step)
			}
			passed := micros(step.Now - before.Now)
			switch {
			case i == 0:
			case passed < 0:
				seen["back"]++
			case passed == 0:
				seen["same instant"]++
			case passed > 2*time.Second:
				seen["silence"]++
			case last.RetryAfter > 0 && passed == last.RetryAfter:
				seen["at RetryAfter"]++
			case last.RetryAfter > 0 && passed == last.RetryAfter-us:
				seen["just before RetryAfter"]++
			case passed == last.ResetAfter:
				seen["at ResetAfter"]++
			case passed == last.ResetAfter-us:
				seen["just before ResetAfter"]++
			}
			seen[step.Op.String()]++
			if before = step; step.Op == Reset {
				m.Reset()
				last = Answer{}
				continue
			}
			last = m.Take(step.Now, step.N, step.Op == Peek)
		}
		if (seen["back"] > 0) != back {
			t.Errorf("set back %d times, want so: %v", seen["back"], back)
		}
		for _, what := range []string{"same instant", "silence", "at RetryAfter", "just before RetryAfter",
			"at ResetAfter", "just before ResetAfter", "Take", "Peek", "Reset"} {
			if seen[what] < 20 {
				t.Errorf("%s: only %d times", what, seen[what])
			}
		}
	}
}

func TestScenarioOfTheSmallestShape(t *testing.T) {
	for _, shape := range []Shape{{Max: 1, Span: 1}, {Max: 1, Span: us, Start: 5, Back: true}, {Max: 1 << 40, Span: 1000 * time.Hour, Back: true}} {
		scenario := NewScenario(Seeded(1), shape)
		for range 5000 {
			if s := scenario.Next(Answer{}); s.Now < 0 || s.N < 1 || s.N > shape.Max {
				t.Fatalf("%+v: %+v", shape, s)
			}
		}
	}
}

func TestMaxInAnyWindow(t *testing.T) {
	grants := []Taken{{100, 3}, {0, 2}, {99, 1}, {100, 4}, {300, 5}} // in no order
	for _, c := range []struct {
		window time.Duration
		want   int
	}{{us, 7}, {2 * us, 8}, {100 * us, 8}, {101 * us, 10}, {200 * us, 10}, {201 * us, 12}, {202 * us, 13}, {301 * us, 15}} {
		if got := MaxInAnyWindow(grants, c.window); got != c.want {
			t.Errorf("%v: %d, want %d", c.window, got, c.want)
		}
	}
	if got := MaxInAnyWindow(nil, us); got != 0 {
		t.Errorf("no grants: %d", got)
	}
	if grants[0].At != 100 {
		t.Error("the caller's grants were sorted")
	}
}

func TestExceedsBucket(t *testing.T) {
	// 3 per second with a burst of 5: the sixth permit is due after 333333 1/3.
	for _, c := range []struct {
		grants []Taken
		over   *big.Rat
		want   bool
	}{
		{nil, big.NewRat(-5, 1), false},
		{[]Taken{{0, 4}}, big.NewRat(-1, 1), false},
		{[]Taken{{0, 5}}, big.NewRat(0, 1), false},
		{[]Taken{{0, 5}, {0, 1}}, big.NewRat(1, 1), true},
		{[]Taken{{0, 5}, {333_333, 1}}, big.NewRat(1, 1_000_000), true},
		{[]Taken{{333_334, 1}, {0, 5}}, big.NewRat(0, 1), false},
		{[]Taken{{0, 5}, {1_000_000, 3}, {2_000_000, 4}}, big.NewRat(1, 1), true},
	} {
		got, worst := ExceedsBucket(c.grants, 3, time.Second, 5)
		if got != c.want || worst.Over.Cmp(c.over) != 0 {
			t.Errorf("%v: %v by %v, want %v by %v", c.grants, got, worst.Over, c.want, c.over)
		}
	}

	got, worst := ExceedsBucket([]Taken{{0, 1}, {10_000_000, 5}, {11_000_000, 4}, {99_000_000, 5}}, 3, time.Second, 5)
	if !got || worst.From != 10_000_000 || worst.To != 11_000_000 || worst.Permits != 9 {
		t.Errorf("%v %+v", got, worst)
	}

	// A step comes at the end of the second in which it was earned.
	stepped := []Taken{{0, 1}, {999_999, 4}, {1_000_000, 3}}
	if over, worst := ExceedsBucket(stepped, 3, time.Second, 5); !over {
		t.Errorf("as a continuous bucket: %+v", worst)
	}
	if over, worst := ExceedsSteppedBucket(stepped, 3, time.Second, 5, time.Second); over {
		t.Errorf("as a stepped one: %+v", worst)
	}
	if over, worst := ExceedsSteppedBucket([]Taken{{0, 9}}, 3, time.Second, 5, time.Second); !over {
		t.Errorf("as a stepped one: %+v", worst)
	}
}

// The checkers look at each grant once; here every interval is looked at.
func TestCheckersAgainstEveryInterval(t *testing.T) {
	rng := Seeded(3)
	for range 150 {
		grants := make([]Taken, 1+rng.IntN(12))
		for i := range grants {
			grants[i] = Taken{At: rng.Int64N(60), N: 1 + rng.IntN(4)}
		}
		most, over := 0, big.NewRat(-1<<40, 1)
		for from := range int64(60) {
			for to := from; to < 60; to++ {
				sum := 0
				for _, g := range grants {
					if g.At >= from && g.At <= to {
						sum += g.N
					}
				}
				if to-from < 20 { // (to-20, to]
					most = max(most, sum)
				}
				excess := sub(rat(int64(sum-5)), mul(big.NewRat(3, 7), rat(to-from))) // 3 per 7us, burst 5
				if less(over, excess) {
					over = excess
				}
			}
		}
		if got := MaxInAnyWindow(grants, 20*us); got != most {
			t.Fatalf("%v: %d in a window, want %d", grants, got, most)
		}
		if got, worst := ExceedsBucket(grants, 3, 7*us, 5); worst.Over.Cmp(over) != 0 || got != (over.Sign() > 0) {
			t.Fatalf("%v: over by %v, want %v", grants, worst.Over, over)
		}
	}
}

func TestImpossibleCallsPanic(t *testing.T) {
	for name, call := range map[string]func(){
		"no permits":               func() { NewTokenBucket(1, time.Second, 1).Take(0, 0, false) },
		"more than the burst":      func() { NewTokenBucket(1, time.Second, 1).Take(0, 2, true) },
		"more than the least rule": func() { NewSlidingLog([]Rule{{9, us}, {2, ms}}, us).Take(0, 3, false) },
		"no rules":                 func() { NewSlidingLog(nil, us) },
		"no rate":                  func() { NewLeakyBucket(0, time.Second, 1) },
		"part of a millisecond":    func() { NewFixedWindow(1, ms+us) },
		"part of a microsecond":    func() { NewClockWindow(1, ms+1) },
		"indivisible":              func() { NewSlidingWindow(1, ms, 7) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			call()
		}()
	}
}

package model

import (
	"math"
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
)

func TestSameSeedSameScenario(t *testing.T) {
	record := func(seed uint64) (steps []Step) {
		m := NewTokenBucket(7, time.Minute, 5)
		Play(m, NewScenario(Seeded(seed), ShapeOf(m, true)), 500, func(s Step, _ Answer) { steps = append(steps, s) })
		return steps
	}
	require.Equal(t, record(1), record(1), "two scenarios of one seed")
	require.NotEqual(t, record(1), record(2), "scenarios of two seeds")
}

func TestScenarioReachesTheBoundaries(t *testing.T) {
	for _, back := range []bool{false, true} {
		m := NewSlidingZSet(10, time.Second)
		scenario := NewScenario(Seeded(1), ShapeOf(m, back))
		seen := map[string]int{}
		var last Answer
		var before Step
		for i := range 20_000 {
			step := scenario.Next(last)
			require.False(t, step.N < 1 || step.N > m.Max() || step.Now < 0 || step.Op == Peek && step.N != 1, "impossible step %+v", step)
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
		require.Equal(t, back, seen["back"] > 0, "the clock was set back %d times", seen["back"])
		for _, what := range []string{"same instant", "silence", "at RetryAfter", "just before RetryAfter",
			"at ResetAfter", "just before ResetAfter", "Take", "Peek", "Reset"} {
			require.GreaterOrEqual(t, seen[what], 20, "%s: only %d times", what, seen[what])
		}
	}
}

func TestScenarioOfTheSmallestShape(t *testing.T) {
	for _, shape := range []Shape{{Max: 1, Span: 1}, {Max: 1, Span: us, Start: 5, Back: true}, {Max: math.MaxInt >> 23, Span: 1000 * time.Hour, Back: true}} {
		scenario := NewScenario(Seeded(1), shape)
		for range 5000 {
			s := scenario.Next(Answer{})
			require.False(t, s.Now < 0 || s.N < 1 || s.N > shape.Max, "%+v: %+v", shape, s)
		}
	}
}

func TestMaxInAnyWindow(t *testing.T) {
	taken := []Taken{{100, 3}, {0, 2}, {99, 1}, {100, 4}, {300, 5}} // in no order
	for _, c := range []struct {
		window time.Duration
		want   int
	}{{us, 7}, {2 * us, 8}, {100 * us, 8}, {101 * us, 10}, {200 * us, 10}, {201 * us, 12}, {202 * us, 13}, {301 * us, 15}} {
		require.Equal(t, c.want, MaxInAnyWindow(taken, c.window), "%v", c.window)
	}
	require.Zero(t, MaxInAnyWindow(nil, us), "no permits")
	require.Equal(t, int64(100), taken[0].At, "the caller's slice was sorted")
}

func TestExceedsBucket(t *testing.T) {
	// 3 per second with a burst of 5: the sixth permit is due after 333333 1/3.
	for _, c := range []struct {
		taken []Taken
		over  *big.Rat
		want  bool
	}{
		{nil, big.NewRat(-5, 1), false},
		{[]Taken{{0, 4}}, big.NewRat(-1, 1), false},
		{[]Taken{{0, 5}}, big.NewRat(0, 1), false},
		{[]Taken{{0, 5}, {0, 1}}, big.NewRat(1, 1), true},
		{[]Taken{{0, 5}, {333_333, 1}}, big.NewRat(1, 1_000_000), true},
		{[]Taken{{333_334, 1}, {0, 5}}, big.NewRat(0, 1), false},
		{[]Taken{{0, 5}, {1_000_000, 3}, {2_000_000, 4}}, big.NewRat(1, 1), true},
	} {
		got, worst := ExceedsBucket(c.taken, 3, time.Second, 5)
		require.Equal(t, c.want, got, "%v", c.taken)
		require.Zero(t, worst.Over.Cmp(c.over), "%v: over by %v, want %v", c.taken, worst.Over, c.over)
	}

	got, worst := ExceedsBucket([]Taken{{0, 1}, {10_000_000, 5}, {11_000_000, 4}, {99_000_000, 5}}, 3, time.Second, 5)
	require.True(t, got)
	require.EqualValues(t, 10_000_000, worst.From)
	require.EqualValues(t, 11_000_000, worst.To)
	require.EqualValues(t, 9, worst.Permits)

	// A step comes at the end of the second in which it was earned.
	stepped := []Taken{{0, 1}, {999_999, 4}, {1_000_000, 3}}
	over, worst := ExceedsBucket(stepped, 3, time.Second, 5)
	require.True(t, over, "as a continuous bucket: %+v", worst)
	over, worst = ExceedsSteppedBucket(stepped, 3, time.Second, 5, time.Second)
	require.False(t, over, "as a stepped one: %+v", worst)
	over, worst = ExceedsSteppedBucket([]Taken{{0, 9}}, 3, time.Second, 5, time.Second)
	require.True(t, over, "as a stepped one: %+v", worst)
}

// The checkers look at each allowed call once; here every interval is looked at.
func TestCheckersAgreeWithEveryInterval(t *testing.T) {
	raceflag.SkipSequential(t)
	rng := Seeded(3)
	for range 150 {
		taken := make([]Taken, 1+rng.IntN(12))
		for i := range taken {
			taken[i] = Taken{At: rng.Int64N(60), N: 1 + rng.IntN(4)}
		}
		most, over := 0, big.NewRat(-1<<40, 1)
		for from := range int64(60) {
			for to := from; to < 60; to++ {
				sum := 0
				for _, g := range taken {
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
		require.Equal(t, most, MaxInAnyWindow(taken, 20*us), "%v", taken)
		got, worst := ExceedsBucket(taken, 3, 7*us, 5)
		require.Zero(t, worst.Over.Cmp(over), "%v: over by %v, want %v", taken, worst.Over, over)
		require.Equal(t, over.Sign() > 0, got, "%v", taken)
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
		require.Panics(t, call, name)
	}
}

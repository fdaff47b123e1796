package model

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
)

// sameAnswers plays one random sequence to both models.
func sameAnswers(t *testing.T, a, b Model, back bool, seed uint64, grain int64) {
	t.Helper()
	scenario := NewScenario(Seeded(seed), ShapeOf(a, back))
	var last Answer
	for i := range 3000 {
		step := scenario.Next(last)
		if step.Op == Reset {
			a.Reset()
			b.Reset()
			continue
		}
		now := floorDiv(step.Now, grain) * grain
		last = a.Take(now, step.N, step.Op == Peek)
		other := b.Take(now, step.N, step.Op == Peek)
		require.Equal(t, last, other, "step %d, %+v at %d", i, step, now)
		require.Equal(t, a.Unused(now), b.Unused(now), "step %d, %+v", i, step)
		require.Equal(t, a.Unused(now+1000), b.Unused(now+1000), "step %d, %+v", i, step)
	}
}

func TestTokenAndLeakyBucketsDecideAlike(t *testing.T) {
	raceflag.SkipSequential(t)
	for seed := range uint64(3) {
		for _, back := range []bool{false, true} {
			sameAnswers(t, NewTokenBucket(3, time.Second, 5), NewLeakyBucket(3, time.Second, 5), back, seed, 1)
			sameAnswers(t, NewTokenBucket(7, time.Minute, 100), NewLeakyBucket(7, time.Minute, 100), back, seed, 1)
			sameAnswers(t, NewTokenBucket(999_983, 1_000_003_001, 17), NewLeakyBucket(999_983, 1_000_003_001, 17), back, seed, 1)
		}
	}
}

func TestSlidingWindowIsALogOfItsSubWindows(t *testing.T) {
	raceflag.SkipSequential(t)
	for seed := range uint64(3) {
		for _, back := range []bool{false, true} {
			for _, keep := range []bool{false, true} {
				for _, buckets := range []int{1, 2, 10, 1000} {
					log := NewSlidingLog([]Rule{{20, time.Second}}, time.Second/time.Duration(buckets))
					window := NewSlidingWindow(20, time.Second, buckets)
					log.Keep, window.Keep = keep, keep
					if keep && seed > 0 {
						continue // slow: nothing is forgotten
					}
					sameAnswers(t, window, log, back, seed, 1)
				}
			}
		}
	}
}

func TestFixedWindowIsAClockWindowOfWholeMilliseconds(t *testing.T) {
	raceflag.SkipSequential(t)
	for seed := range uint64(3) {
		for _, back := range []bool{false, true} {
			sameAnswers(t, NewFixedWindow(5, time.Second), NewClockWindow(5, time.Second), back, seed, 1000)
			sameAnswers(t, NewFixedWindow(2, 3*ms), NewClockWindow(2, 3*ms), back, seed, 1000)
		}
	}
}

func TestSeveralRulesAllowWhatEachWould(t *testing.T) {
	raceflag.SkipSequential(t)
	rules := []Rule{{3, time.Second}, {10, 10 * time.Second}, {12, 15 * time.Second}}
	for seed := range uint64(3) {
		m := NewSlidingLog(rules, us)
		scenario := NewScenario(Seeded(seed), ShapeOf(m, false))
		var taken []Taken // all there ever were
		var last Answer
		denied := map[int]int{}
		for range 3000 {
			step := scenario.Next(last)
			if step.Op == Reset {
				continue
			}
			want := oracle(rules, taken, step.Now, step.N, step.Op == Peek)
			last = m.Take(step.Now, step.N, step.Op == Peek)
			require.Equal(t, want, last, "%+v", step)
			if last.Allowed && step.Op == Take {
				taken = append(taken, Taken{step.Now, step.N})
			}
			if !last.Allowed {
				denied[last.Limit]++
			}
		}
		require.Len(t, denied, len(rules), "denials by rule %v: not every rule was met", denied)
	}
}

// oracle answers from the whole history, rule by rule, as defined; it needs the
// rules in increasing order of their windows.
func oracle(rules []Rule, history []Taken, now int64, n int, peek bool) Answer {
	used := func(r Rule, at int64) (sum int) {
		for _, g := range history {
			if g.At > at-r.Window.Microseconds() {
				sum += g.N
			}
		}
		return sum
	}
	var a Answer
	for _, r := range rules {
		if used(r, now)+n <= r.Limit {
			continue
		}
		for i := range history { // the first permits whose leaving makes room
			t := history[i].At + r.Window.Microseconds() - now
			if t > 0 && used(r, now+t)+n <= r.Limit {
				if micros(t) > a.RetryAfter {
					a = Answer{Limit: r.Limit, Window: r.Window, Remaining: r.Limit - used(r, now), RetryAfter: micros(t)}
				}
				break
			}
		}
	}
	longest := rules[len(rules)-1].Window
	if a.RetryAfter > 0 {
		a.ResetAfter = micros(history[len(history)-1].At-now) + longest
		return a
	}
	a = Answer{Allowed: true, Remaining: 1 << 30, ResetAfter: longest}
	if peek {
		n, a.ResetAfter = 0, 0
		if len(history) > 0 {
			a.ResetAfter = max(0, micros(history[len(history)-1].At-now)+longest)
		}
	}
	for _, r := range rules {
		if left := r.Limit - used(r, now) - n; left < a.Remaining {
			a.Limit, a.Window, a.Remaining = r.Limit, r.Window, left
		}
	}
	return a
}

// ticker is a bucket that lives through every microsecond, in units so small
// that all is whole: 1/units of a token.
type ticker struct {
	units, burst, level int64
	perTick             int64 // tokens that a continuous refill brings, in units
	step, every, since  int64 // or what a step brings, and the ticks since the last
	now                 int64
}

func (k *ticker) tick() {
	k.now++
	if k.every == 0 {
		k.level = min(k.burst*k.units, k.level+k.perTick)
		return
	}
	if k.level == k.burst*k.units {
		return
	}
	if k.since++; k.since == k.every {
		k.since = 0
		k.level = min(k.burst*k.units, k.level+k.step)
	}
}

func (k *ticker) take(n int, peek bool, window time.Duration) Answer {
	a := Answer{Limit: int(k.burst), Window: window}
	next := *k
	if a.Allowed = k.level >= int64(n)*k.units; a.Allowed && !peek {
		if next.level == next.burst*next.units {
			next.since = 0 // a cycle begins
		}
		next.level -= int64(n) * k.units
	}
	a.Remaining = int(next.level / k.units)
	future := next
	for future.level < future.burst*future.units {
		future.tick()
		if !a.Allowed && a.RetryAfter == 0 && future.level >= int64(n)*k.units {
			a.RetryAfter = micros(future.now - k.now)
		}
	}
	a.ResetAfter = micros(future.now - k.now)
	if !peek {
		*k = next
	}
	return a
}

func TestBucketsAgreeWithOnesThatLiveThroughEveryMicrosecond(t *testing.T) {
	raceflag.SkipSequential(t)
	const units = 35 * 12 // divisible by every period and step below
	for _, c := range []struct {
		name string
		m    Model
		k    ticker
	}{
		{"3 per 35us, burst 4", NewTokenBucket(3, 35*us, 4), ticker{units: units, burst: 4, perTick: 3 * units / 35}},
		{"5 per 7us, burst 20", NewTokenBucket(5, 7*us, 20), ticker{units: units, burst: 20, perTick: 5 * units / 7}},
		{"leaky 1 per 12us, capacity 3", NewLeakyBucket(1, 12*us, 3), ticker{units: units, burst: 3, perTick: units / 12}},
		{"3 per 35us every 10us", NewSteppedBucket(3, 35*us, 4, 10*us), ticker{units: units, burst: 4, step: 3 * 10 * units / 35, every: 10}},
		{"1 per 12us every 24us", NewSteppedBucket(1, 12*us, 5, 24*us), ticker{units: units, burst: 5, step: 2 * units, every: 24}},
		{"9 per 7us every 11us", NewSteppedBucket(9, 7*us, 6, 11*us), ticker{units: units, burst: 6, step: 9 * 11 * units / 7, every: 11}},
	} {
		t.Run(c.name, func(t *testing.T) {
			rng := Seeded(7)
			c.k.level = c.k.burst * c.k.units
			scenario := NewScenario(rng, Shape{Start: 1, Max: c.m.Max(), Span: c.m.Span()})
			var last Answer
			for range 5000 {
				step := scenario.Next(last)
				for c.k.now < step.Now {
					c.k.tick()
				}
				want := c.k.take(step.N, step.Op != Take, c.m.Span())
				last = c.m.Take(step.Now, step.N, step.Op != Take)
				require.Equal(t, want, last, "%+v", step)
			}
		})
	}
}

package model

import (
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
)

const (
	us = time.Microsecond
	ms = time.Millisecond
)

// config is a model and what the properties need to know about it.
type config struct {
	name  string
	new   func() Model
	grain int64         // microseconds that waits are exact to
	slack time.Duration // by how much a wait can be longer than the window
}

var configs = []config{
	{"token 3/s burst 5", func() Model { return NewTokenBucket(3, time.Second, 5) }, 1, 0},
	{"token 7/min burst 1", func() Model { return NewTokenBucket(7, time.Minute, 1) }, 1, 0},
	{"token 1000/s burst 50", func() Model { return NewTokenBucket(1000, time.Second, 50) }, 1, 0},
	{"token 3000000/s burst 9", func() Model { return NewTokenBucket(3_000_000, time.Second, 9) }, 1, 0},
	{"token odd nanoseconds", func() Model { return NewTokenBucket(11, 1_234_567_891, 13) }, 1, 0},
	{"leaky 3/s capacity 5", func() Model { return NewLeakyBucket(3, time.Second, 5) }, 1, 0},
	{"leaky 7/min capacity 20", func() Model { return NewLeakyBucket(7, time.Minute, 20) }, 1, 0},
	{"stepped 10/s burst 20 every 100ms", func() Model { return NewSteppedBucket(10, time.Second, 20, 100*ms) }, 1, 0},
	{"stepped 7/min burst 5 every 1s", func() Model { return NewSteppedBucket(7, time.Minute, 5, time.Second) }, 1, 0},
	{"stepped 100/s burst 3 every 1s", func() Model { return NewSteppedBucket(100, time.Second, 3, time.Second) }, 1, 0},
	{"fixed 5/s", func() Model { return NewFixedWindow(5, time.Second) }, 1000, 0},
	{"fixed 3/ms", func() Model { return NewFixedWindow(3, time.Millisecond) }, 1000, 0},
	{"clock window 5/s", func() Model { return NewClockWindow(5, time.Second) }, 1, 0},
	{"aligned window 5/s", func() Model { return NewAlignedWindow(5, time.Second, 0) }, 1, 0},
	{"aligned window 50/h offset", func() Model { return NewAlignedWindow(50, time.Hour, 17*time.Minute+us) }, 1, 0},
	{"log 10/s", func() Model { return NewSlidingLog([]Rule{{10, time.Second}}, us) }, 1, 0},
	{"log of three rules", func() Model {
		return NewSlidingLog([]Rule{{60, time.Minute}, {3, time.Second}, {20, 10 * time.Second}}, us)
	}, 1, 0},
	{"log of two rules, 7ms", func() Model {
		return NewSlidingLog([]Rule{{5, time.Second}, {8, 2 * time.Second}}, 7*ms)
	}, 1, 7 * ms},
	{"zset 4/100ms", func() Model { return NewSlidingZSet(4, 100*ms) }, 1, 0},
	{"sliding 10/s in 10", func() Model { return NewSlidingWindow(10, time.Second, 10) }, 1, 100 * ms},
	{"sliding 100/s in 1", func() Model { return NewSlidingWindow(100, time.Second, 1) }, 1, time.Second},
	{"sliding 5/10ms in 1000", func() Model { return NewSlidingWindow(5, 10*ms, 1000) }, 1, 10 * us},
}

// each plays every model, with and without a clock that is set back: twice, and with
// -short once.
func each(t *testing.T, play func(t *testing.T, c config, back bool, seed uint64)) {
	raceflag.SkipSequential(t)
	seeds := uint64(2)
	if testing.Short() {
		seeds = 1
	}
	for _, c := range configs {
		for seed := range seeds {
			for _, back := range []bool{false, true} {
				name := c.name
				if back {
					name += ", clock set back"
				}
				t.Run(name, func(t *testing.T) { play(t, c, back, seed) })
			}
		}
	}
}

// state is a copy of a model's fields. The models replace what these point to
// and never change it, so that a shallow copy is enough.
func state(m Model) any {
	if log, ok := m.(*SlidingLog); ok {
		return *log.key
	}
	return reflect.ValueOf(m).Elem().Interface()
}

func TestPeekSaysWhatThereIsAndChangesNothing(t *testing.T) {
	each(t, func(t *testing.T, c config, back bool, seed uint64) {
		m := c.new()
		scenario := NewScenario(Seeded(seed), ShapeOf(m, back))
		var last Answer
		for range 1200 {
			step := scenario.Next(last)
			if step.Op == Reset {
				m.Reset()
				continue
			}
			before := state(m)
			peeked := m.Take(step.Now, step.N, true)
			require.Equal(t, before, state(m), "peek of %+v", step)
			if step.Op == Take {
				last = m.Take(step.Now, step.N, false)
				switch m.(type) {
				case *SlidingLog, *SlidingWindow:
					require.Equal(t, peeked.Allowed, last.Allowed, "%+v", step)
					if last.Allowed {
						require.Zero(t, peeked.RetryAfter, "%+v", step)
						require.LessOrEqual(t, last.Remaining+step.N, max(peeked.Remaining, last.Limit), "%+v", step)
					} else if !back {
						require.Equal(t, peeked, last, "%+v", step)
					}
				default:
					require.Equal(t, peeked.Allowed, last.Allowed, "%+v", step)
					require.Equal(t, peeked.RetryAfter, last.RetryAfter, "%+v", step)
					if last.Allowed {
						require.Equal(t, peeked.Remaining-step.N, last.Remaining, "%+v", step)
					} else {
						require.Equal(t, peeked, last, "%+v", step)
					}
				}
				again := m.Take(step.Now, step.N, true)
				if !last.Allowed {
					require.Equal(t, last, again, "%+v: two denials differ", step)
				}
				if !back && !last.Allowed {
					require.Equal(t, before, state(m), "denial of %+v", step)
				}
			}
		}
	})
}

func TestAnswersAreExact(t *testing.T) {
	each(t, func(t *testing.T, c config, back bool, seed uint64) {
		m := c.new()
		allowed, denials := 0, 0
		Play(m, NewScenario(Seeded(seed), ShapeOf(m, back)), 2000, func(step Step, a Answer) {
			if step.Op != Take {
				return
			}
			ask := func(at int64, n int) bool { return m.Take(at, n, true).Allowed }
			now := floorDiv(step.Now, c.grain) * c.grain
			if a.Allowed {
				allowed++
				require.Zero(t, a.RetryAfter, "%+v: an allowed call has a wait", step)
			} else {
				denials++
				retry := now + a.RetryAfter.Microseconds()
				require.Positive(t, a.RetryAfter, "%+v", step)
				require.False(t, ask(retry-1, step.N), "%+v: %+v: RetryAfter is too long", step, a)
				require.True(t, ask(retry, step.N), "%+v: %+v: RetryAfter is too short", step, a)
				require.Less(t, a.Remaining, step.N, "%+v: a denial of permits that remain", step)
			}
			// What remains can be had at once when allowed, and no more; a
			// denial may name a rule that has more left than another.
			require.False(t, a.Allowed && a.Remaining > 0 && !ask(step.Now, min(a.Remaining, m.Max())) ||
				a.Remaining < m.Max() && ask(step.Now, a.Remaining+1), "%+v: %+v: wrong Remaining", step, a)
			reset := now + a.ResetAfter.Microseconds()
			require.False(t, m.Unused(reset-1), "%+v: %+v: ResetAfter is too long", step, a)
			require.True(t, m.Unused(reset), "%+v: %+v: ResetAfter is too short", step, a)
			most := m.Span() + c.slack
			if w, ok := m.(*ClockWindow); ok && w.aligned && back {
				most += m.Span() // the clock may be just before the latest window
			}
			require.LessOrEqual(t, a.RetryAfter, a.ResetAfter, "%+v", step)
			require.LessOrEqual(t, a.ResetAfter, most, "%+v: blocked for longer than the rule", step)
			require.GreaterOrEqual(t, a.Remaining, 0, "%+v", step)
			require.LessOrEqual(t, a.Remaining, a.Limit, "%+v", step)
		})
		require.GreaterOrEqual(t, allowed, 200, "too few calls were allowed to prove much")
		require.GreaterOrEqual(t, denials, 200, "too few calls were denied to prove much")
	})
}

func TestNoMoreThanTheRule(t *testing.T) {
	raceflag.SkipSequential(t)
	for seed := range uint64(2) {
		play := func(m Model) []Taken {
			var taken []Taken
			Play(m, NewScenario(Seeded(seed), ShapeOf(m, false)), 3000, func(step Step, a Answer) {
				if a.Allowed && step.Op == Take {
					taken = append(taken, Taken{step.Now, step.N})
				}
			})
			return taken
		}
		// A Reset gives a key its full limit again, so these leave it out.
		noReset := func(m Model) []Taken { return play(unresettable{m}) }

		for _, rule := range []Rule{{1, ms}, {5, 10 * ms}, {100, time.Second}} {
			for name, m := range map[string]Model{
				"zset":    NewSlidingZSet(rule.Limit, rule.Window),
				"log":     NewSlidingLog([]Rule{rule, {2 * rule.Limit, 3 * rule.Window}}, 13*us),
				"sliding": NewSlidingWindow(rule.Limit, rule.Window, 10),
			} {
				taken := noReset(m)
				got := MaxInAnyWindow(taken, rule.Window)
				require.Equal(t, rule.Limit, got, "%s: the most in any window", name)
				if name == "log" {
					require.LessOrEqual(t, MaxInAnyWindow(taken, 3*rule.Window), 2*rule.Limit, "log: the second rule")
				}
			}
			taken := noReset(NewClockWindow(rule.Limit, rule.Window))
			require.LessOrEqual(t, MaxInAnyWindow(taken, rule.Window), 2*rule.Limit, "fixed window")
		}

		for _, r := range []struct {
			count, burst int
			period       time.Duration
		}{{3, 5, time.Second}, {7, 1, time.Minute}, {1000, 50, time.Second}, {11, 13, 1_234_567_891}} {
			over, worst := ExceedsBucket(noReset(NewTokenBucket(r.count, r.period, r.burst)), r.count, r.period, r.burst)
			require.False(t, over, "token bucket %+v: %+v", r, worst)
			over, worst = ExceedsBucket(noReset(NewLeakyBucket(r.count, r.period, r.burst)), r.count, r.period, r.burst)
			require.False(t, over, "leaky bucket %+v: %+v", r, worst)
			for _, every := range []time.Duration{10 * ms, 900 * ms} {
				taken := noReset(NewSteppedBucket(r.count, r.period, r.burst, every))
				over, worst := ExceedsSteppedBucket(taken, r.count, r.period, r.burst, every)
				require.False(t, over, "stepped bucket %+v every %v: %+v", r, every, worst)
			}
		}
	}
}

// unresettable ignores Reset.
type unresettable struct{ Model }

func (unresettable) Reset() {}

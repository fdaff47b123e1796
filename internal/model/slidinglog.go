package model

import (
	"cmp"
	"slices"
	"time"
)

// A SlidingLog records all permits taken and applies all of its rules at once. Time is
// divided into slots of the resolution, and permits are recorded at the last microsecond
// of their slot. Permits recorded at r count against a rule while r > now - window, so
// they stop counting at exactly r + window.
//
// When the clock is set back to a time earlier than a record, the record counts as made
// now.
//
// Every write (an allowed call, or the repair after the clock was set back) deletes the
// records that have left the longest window, unless Keep is set. That makes a difference
// only if the clock is set back later: a deleted record does not count again.
type SlidingLog struct {
	Keep bool

	rules      []Rule // by increasing window
	resolution int64
	taken      []Taken // by increasing time; At is the instant of the record
}

// NewSlidingLog returns the model of an unused key. Rules may come in any order;
// a resolution of a microsecond is exact.
func NewSlidingLog(rules []Rule, resolution time.Duration) *SlidingLog {
	checkPositive("number of rules", len(rules))
	checkPositive("resolution", resolution)
	for _, rule := range rules {
		checkPositive("limit", rule.Limit)
		checkPositive("window", rule.Window)
		wholeMicros("window", rule.Window)
	}
	sorted := slices.Clone(rules)
	slices.SortStableFunc(sorted, func(a, b Rule) int { return cmp.Compare(a.Window, b.Window) })
	return &SlidingLog{rules: sorted, resolution: wholeMicros("resolution", resolution)}
}

// NewSlidingZSet returns the model of an unused key of an exact sliding window:
// a log with one rule.
func NewSlidingZSet(limit int, window time.Duration) *SlidingLog {
	return NewSlidingLog([]Rule{{limit, window}}, time.Microsecond)
}

// Take implements [Model].
func (l *SlidingLog) Take(now int64, n int, peek bool) Answer {
	checkPermits(n, l.Max())
	taken, repaired := l.load(now)

	answer := Answer{}
	for _, rule := range l.rules {
		if wait := rule.wait(taken, now, n); wait > answer.RetryAfter {
			answer.RetryAfter = wait
			answer.Limit, answer.Window = rule.Limit, rule.Window
			answer.Remaining = max(0, rule.Limit-rule.used(taken, now))
		}
	}
	if answer.RetryAfter == 0 {
		answer.Allowed = true
		taken = append(taken, Taken{At: l.record(now), N: n})
		for i, rule := range l.rules {
			left := rule.Limit - rule.used(taken, now)
			if i == 0 || left < answer.Remaining {
				answer.Limit, answer.Window, answer.Remaining = rule.Limit, rule.Window, left
			}
		}
	}
	answer.ResetAfter = micros(taken[len(taken)-1].At-now) + l.Span()
	if !peek && (answer.Allowed || repaired) {
		l.taken = l.dropLeft(taken, now)
	}
	return answer
}

// record is the instant at which permits taken at now are recorded.
func (l *SlidingLog) record(now int64) int64 {
	return floorDiv(now, l.resolution)*l.resolution + l.resolution - 1
}

// load returns a copy of the log as it counts at now, and whether that differs from what
// is stored.
func (l *SlidingLog) load(now int64) (taken []Taken, repaired bool) {
	taken = slices.Clone(l.taken)
	latest := l.record(now)
	for i := range taken {
		if taken[i].At > latest {
			taken[i].At, repaired = latest, true
		}
	}
	return taken, repaired
}

// dropLeft returns the records that still count under the longest rule.
func (l *SlidingLog) dropLeft(taken []Taken, now int64) []Taken {
	if l.Keep {
		return taken
	}
	longest := l.rules[len(l.rules)-1]
	return slices.DeleteFunc(taken, func(t Taken) bool { return !longest.counts(t, now) })
}

// counts reports whether recorded permits count against the rule at now.
func (r Rule) counts(t Taken, now int64) bool { return t.At > now-r.Window.Microseconds() }

// used is the number of permits that count against the rule at now.
func (r Rule) used(taken []Taken, now int64) (sum int) {
	for _, t := range taken {
		if r.counts(t, now) {
			sum += t.N
		}
	}
	return sum
}

// wait is the time from now until the rule allows n permits, 0 if it allows them now.
func (r Rule) wait(taken []Taken, now int64, n int) time.Duration {
	excess := r.used(taken, now) + n - r.Limit
	if excess <= 0 {
		return 0
	}
	for _, t := range taken { // the oldest leave first
		if r.counts(t, now) {
			if excess -= t.N; excess <= 0 {
				return micros(t.At-now) + r.Window
			}
		}
	}
	panic("model: more than the rule's limit was asked for")
}

// Reset implements [Model].
func (l *SlidingLog) Reset() { l.taken = nil }

// Unused implements [Model].
func (l *SlidingLog) Unused(now int64) bool {
	return l.rules[len(l.rules)-1].used(l.taken, now) == 0
}

// Max implements [Model].
func (l *SlidingLog) Max() int {
	least := l.rules[0].Limit
	for _, rule := range l.rules {
		least = min(least, rule.Limit)
	}
	return least
}

// Span implements [Model].
func (l *SlidingLog) Span() time.Duration { return l.rules[len(l.rules)-1].Window }

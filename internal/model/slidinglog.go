package model

import (
	"cmp"
	"slices"
	"time"
)

// A SlidingLog remembers every grant and holds all of its rules at once. Time
// is cut into slots of the resolution, and a grant is recorded at the last
// microsecond of its slot; recorded at r, it counts against a rule while
// r > now - window, so that it leaves at exactly r + window.
//
// A clock that is set back before a record treats it as recorded now.
//
// Every write (a grant, or the repair of a clock that was set back) forgets the
// grants that have left the longest window, unless Keep is set. That shows only
// when the clock is set back later: what is forgotten does not count again.
type SlidingLog struct {
	Keep bool

	rules      []Rule // by increasing window
	resolution int64
	grants     []Grant // by increasing time, At being the record's
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
	grants, repaired := l.load(now)

	answer := Answer{}
	for _, rule := range l.rules {
		if wait := rule.wait(grants, now, n); wait > answer.RetryAfter {
			answer.RetryAfter = wait
			answer.Limit, answer.Window = rule.Limit, rule.Window
			answer.Remaining = max(0, rule.Limit-rule.used(grants, now))
		}
	}
	if answer.RetryAfter == 0 {
		answer.Allowed = true
		grants = append(grants, Grant{At: l.record(now), N: n})
		for i, rule := range l.rules {
			left := rule.Limit - rule.used(grants, now)
			if i == 0 || left < answer.Remaining {
				answer.Limit, answer.Window, answer.Remaining = rule.Limit, rule.Window, left
			}
		}
	}
	answer.ResetAfter = micros(grants[len(grants)-1].At-now) + l.Span()
	if !peek && (answer.Allowed || repaired) {
		l.grants = l.forget(grants, now)
	}
	return answer
}

// record is the instant at which a grant at now is recorded.
func (l *SlidingLog) record(now int64) int64 {
	return floorDiv(now, l.resolution)*l.resolution + l.resolution - 1
}

// load is a copy of the log as it is read at now, and whether that differs from
// what is stored.
func (l *SlidingLog) load(now int64) (grants []Grant, repaired bool) {
	grants = slices.Clone(l.grants)
	latest := l.record(now)
	for i := range grants {
		if grants[i].At > latest {
			grants[i].At, repaired = latest, true
		}
	}
	return grants, repaired
}

func (l *SlidingLog) forget(grants []Grant, now int64) []Grant {
	if l.Keep {
		return grants
	}
	longest := l.rules[len(l.rules)-1]
	return slices.DeleteFunc(grants, func(g Grant) bool { return !longest.counts(g, now) })
}

// counts reports whether a recorded grant counts against the rule at now.
func (r Rule) counts(g Grant, now int64) bool { return g.At > now-r.Window.Microseconds() }

// used is the number of permits that count against the rule at now.
func (r Rule) used(grants []Grant, now int64) (sum int) {
	for _, g := range grants {
		if r.counts(g, now) {
			sum += g.N
		}
	}
	return sum
}

// wait is the time from now until the rule admits n permits, 0 if it does now.
func (r Rule) wait(grants []Grant, now int64, n int) time.Duration {
	excess := r.used(grants, now) + n - r.Limit
	if excess <= 0 {
		return 0
	}
	for _, g := range grants { // the oldest leave first
		if r.counts(g, now) {
			if excess -= g.N; excess <= 0 {
				return micros(g.At-now) + r.Window
			}
		}
	}
	panic("model: more than the rule's limit was asked for")
}

// Reset implements [Model].
func (l *SlidingLog) Reset() { l.grants = nil }

// AsNew implements [Model].
func (l *SlidingLog) AsNew(now int64) bool {
	return l.rules[len(l.rules)-1].used(l.grants, now) == 0
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

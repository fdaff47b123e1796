package model

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// A SlidingLog records all permits taken and applies all of its rules at once. Time is
// divided into slots of the resolution, and permits are recorded at the last microsecond
// of their slot. Permits recorded at r count against a rule while r > now - window, so
// they stop counting at exactly r + window.
//
// When the server's clock is set back to a time earlier than the slot of the last record,
// records after the slot that it is in now count as made in that slot, even for a Peek, which
// writes nothing.
//
// With CallersClock the clock is the caller's, and no record ever moves: a call whose clock is
// earlier than the slot of the last record is decided as at the beginning of that slot,
// and its permits are recorded with the last record. The same holds for a server's clock
// that is behind a record of a caller's clock.
//
// Several limiters may share a key, see [SlidingLog.Beside]. An allowed call deletes what
// neither its own rules need nor those of another limiter, unless Keep is set. A limiter
// needs the records of its longest window, until its own last permits have left that
// window. When nobody needs anything any more, the key is as if never used.
type SlidingLog struct {
	Keep         bool
	CallersClock bool

	rules      []Rule // by increasing window
	resolution int64
	key        *logKey
}

// A logKey is the state of a key, which several limiters may share.
type logKey struct {
	taken  []Taken // by increasing time; At is the instant of the record
	window int64   // the longest of the limiter that wrote last
	needs  []need  // of other limiters with a longer window

	// Of the limiter that dated the last record.
	resolution int64
	caller     bool
}

// A need is that a window's records are kept until an instant.
type need struct{ window, until int64 }

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
	return &SlidingLog{rules: sorted, resolution: wholeMicros("resolution", resolution), key: &logKey{}}
}

// NewSlidingZSet returns the model of an unused key of an exact sliding window:
// a log with one rule.
func NewSlidingZSet(limit int, window time.Duration) *SlidingLog {
	return NewSlidingLog([]Rule{{limit, window}}, time.Microsecond)
}

// Beside returns the model of another limiter that uses the same key.
func (l *SlidingLog) Beside(rules []Rule, resolution time.Duration) *SlidingLog {
	other := NewSlidingLog(rules, resolution)
	other.key = l.key
	return other
}

// Copy returns the model of another key in the same state.
func (l *SlidingLog) Copy() *SlidingLog {
	other, key := *l, *l.key
	other.key = &key
	return &other
}

// Take implements [Model].
func (l *SlidingLog) Take(now int64, n int, peek bool) Answer {
	checkPermits(n, l.Max())
	return l.decide(now, n, peek, false)
}

// decide is Take. If charge is true, the permits are taken whether they are there or not.
func (l *SlidingLog) decide(now int64, n int, peek, charge bool) Answer {
	key, repaired := l.load(now)
	present := l.present(now, key)
	if key.gone() <= present && !l.Keep {
		key = logKey{}
	}

	answer := Answer{}
	for _, rule := range l.rules {
		if until, denied := rule.blocks(key.taken, present, n); denied && !charge {
			if wait := micros(min(until, key.gone()) - now); wait > answer.RetryAfter {
				answer.RetryAfter = wait
				answer.Limit, answer.Window = rule.Limit, rule.Window
				answer.Remaining = max(0, rule.Limit-rule.used(key.taken, present))
			}
		}
	}
	answer.Allowed = answer.RetryAfter == 0
	if answer.Allowed && !peek {
		key = l.write(key, now, present, n)
	}
	if answer.Allowed {
		for i, rule := range l.rules {
			left := max(rule.Limit-rule.used(key.taken, present), 0)
			if i == 0 || left < answer.Remaining {
				answer.Limit, answer.Window, answer.Remaining = rule.Limit, rule.Window, left
			}
		}
	}
	if l.rules[len(l.rules)-1].used(key.taken, present) > 0 {
		answer.ResetAfter = micros(min(key.last()+l.Span().Microseconds(), key.gone()) - now)
	}
	if !peek && (answer.Allowed || repaired) {
		*l.key = key
	}
	return answer
}

// load returns a copy of the key as it counts at now, and whether that differs from what
// is stored.
func (l *SlidingLog) load(now int64) (key logKey, repaired bool) {
	key = *l.key
	key.taken, key.needs = slices.Clone(key.taken), slices.Clone(key.needs)
	if l.CallersClock || key.caller || key.begun() <= now {
		return key, false
	}
	latest := endOfSlot(now, key.resolution)
	for i := range key.taken {
		key.taken[i].At = min(key.taken[i].At, latest)
	}
	for i := range key.needs {
		key.needs[i].until = min(key.needs[i].until, latest+key.needs[i].window)
	}
	return key, true
}

// present is the instant at which a call is decided.
func (l *SlidingLog) present(now int64, key logKey) int64 {
	if l.CallersClock || key.caller {
		return max(now, key.begun())
	}
	return now
}

// write takes n permits.
func (l *SlidingLog) write(key logKey, now, present int64, n int) logKey {
	longest := l.Span().Microseconds()
	needs := append(key.needs, need{key.window, key.last() + key.window})
	needs = slices.DeleteFunc(needs, func(other need) bool {
		return other.window <= longest || other.until <= present
	})
	at := endOfSlot(present, l.resolution)
	if key.last() > at {
		at = key.last()
	} else {
		key.resolution, key.caller = l.resolution, l.CallersClock
		if present > now { // it is not known that the slot has begun earlier
			key.resolution, key.caller = at-present+1, true
		}
	}
	key.taken = slices.DeleteFunc(key.taken, func(t Taken) bool { return t.N == 0 })
	key.taken, key.window, key.needs = append(key.taken, Taken{At: at, N: n}), longest, needs
	for _, other := range needs {
		longest = max(longest, other.window)
	}
	if !l.Keep {
		key.taken = slices.DeleteFunc(key.taken, func(t Taken) bool { return t.At <= present-longest })
	}
	return key
}

// endOfSlot is the instant at which permits taken at now are recorded.
func endOfSlot(now, resolution int64) int64 {
	return floorDiv(now, resolution)*resolution + resolution - 1
}

// last is the instant of the last record.
func (k logKey) last() int64 {
	if len(k.taken) == 0 {
		return math.MinInt64 / 2
	}
	return k.taken[len(k.taken)-1].At
}

// begun is the beginning of the slot of the last record.
func (k logKey) begun() int64 { return k.last() - k.resolution + 1 }

// gone is the instant at which nobody needs any record any more.
func (k logKey) gone() int64 {
	gone := k.last() + k.window
	for _, n := range k.needs {
		gone = max(gone, n.until)
	}
	return gone
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

// blocks reports whether the rule denies n permits now, and the instant from which on it
// allows them.
func (r Rule) blocks(taken []Taken, now int64, n int) (until int64, denied bool) {
	excess := r.used(taken, now) + n - r.Limit
	if excess <= 0 || n > r.Limit { // so many are only charged
		return 0, false
	}
	for _, t := range taken { // the oldest leave first
		if r.counts(t, now) {
			if excess -= t.N; excess <= 0 {
				return t.At + r.Window.Microseconds(), true
			}
		}
	}
	panic("model: more than the rule's limit was asked for")
}

// Reset implements [Model].
func (l *SlidingLog) Reset() { *l.key = logKey{} }

// Unused implements [Model].
func (l *SlidingLog) Unused(now int64) bool { return l.key.gone() <= now }

// Needed is how long the state is needed after now, or after the instant at which a call
// is decided now, if that is later.
func (l *SlidingLog) Needed(now int64) time.Duration {
	return micros(l.key.gone() - l.present(now, *l.key))
}

// DatedByCaller reports whether a caller's clock dated the last record.
func (l *SlidingLog) DatedByCaller() bool { return l.key.caller }

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

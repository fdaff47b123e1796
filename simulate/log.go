package simulate

import (
	"cmp"
	"slices"
	"sort"

	"github.com/tryacquire/ratelimit"
)

// A slidingLog applies rules to the permits that a key has taken. Permits are recorded at the
// last microsecond of their slot of the resolution; a sliding window is a log whose slots are
// its sub-windows. Permits recorded at r count while r > now - window.
type slidingLog struct {
	rules      []logRule // from the smallest window up
	resolution int64
}

type logRule struct {
	limit  int
	window int64
}

func newLog(rules []ratelimit.Rule, resolution int64) slidingLog {
	l := slidingLog{resolution: resolution}
	for _, r := range rules {
		l.rules = append(l.rules, logRule{r.Limit, r.Window.Microseconds()})
	}
	slices.SortFunc(l.rules, func(a, b logRule) int { return cmp.Compare(a.window, b.window) })
	return l
}

// A logState is the log of a key.
type logState struct {
	entries []entry // in the order of time
	gone    int64   // the total of the last entry that was dropped
}

// An entry says how many permits were taken up to an instant, since the log began.
type entry struct{ at, total int64 }

func (l slidingLog) decide(s *logState, now, n int64, peek bool) ratelimit.Result {
	if last := len(s.entries) - 1; last >= 0 && s.entries[last].at-l.resolution+1 > now { // the clock was set back
		if peek {
			s = &logState{slices.Clone(s.entries), s.gone}
		}
		l.rewind(s, now)
	}

	var r ratelimit.Result
	for _, rule := range l.rules {
		first, used := rule.used(s, now)
		if excess := used + n - int64(rule.limit); excess > 0 {
			wait := micros(s.leaves(first, excess) + rule.window - now)
			if wait > r.RetryAfter {
				r.RetryAfter = wait
				r.Limit, r.Window, r.Remaining = rule.limit, micros(rule.window), max(rule.limit-int(used), 0)
			}
		}
	}
	if r.Allowed = r.RetryAfter == 0; r.Allowed {
		if !peek {
			l.take(s, now, n)
		}
		for i, rule := range l.rules {
			_, used := rule.used(s, now)
			if left := max(rule.limit-int(used), 0); i == 0 || left < r.Remaining {
				r.Limit, r.Window, r.Remaining = rule.limit, micros(rule.window), left
			}
		}
	}
	if !l.unused(s, now) {
		r.ResetAfter = micros(s.entries[len(s.entries)-1].at + l.longest() - now)
	}
	return r
}

// rewind moves what was recorded after the slot of now into that slot.
func (l slidingLog) rewind(s *logState, now int64) {
	latest := l.endOfSlot(now)
	first := sort.Search(len(s.entries), func(i int) bool { return s.entries[i].at >= latest })
	s.entries = append(s.entries[:first], entry{latest, s.entries[len(s.entries)-1].total})
}

// take records n permits, and drops what no rule needs any more.
func (l slidingLog) take(s *logState, now, n int64) {
	at, total := l.endOfSlot(now), s.gone+n
	if last := len(s.entries) - 1; last >= 0 {
		total = s.entries[last].total + n
		if s.entries[last].at == at {
			s.entries = s.entries[:last]
		}
	}
	gone := sort.Search(len(s.entries), func(i int) bool { return s.entries[i].at > now-l.longest() })
	if gone > 0 {
		s.gone = s.entries[gone-1].total
		s.entries = s.entries[gone:]
	}
	s.entries = append(s.entries, entry{at, total}) // which moves the entries, if those dropped are in the way
}

func (l slidingLog) endOfSlot(now int64) int64 {
	return now/l.resolution*l.resolution + l.resolution - 1
}

func (l slidingLog) longest() int64 { return l.rules[len(l.rules)-1].window }

func (l slidingLog) unused(s *logState, now int64) bool {
	return len(s.entries) == 0 || s.entries[len(s.entries)-1].at <= now-l.longest()
}

// used is the number of permits that count against the rule, and the first of their entries.
func (r logRule) used(s *logState, now int64) (first int, used int64) {
	if len(s.entries) == 0 {
		return 0, 0
	}
	first = sort.Search(len(s.entries), func(i int) bool { return s.entries[i].at > now-r.window })
	return first, s.entries[len(s.entries)-1].total - s.before(first)
}

// before is how many permits were taken before an entry, since the log began.
func (s *logState) before(i int) int64 {
	if i == 0 {
		return s.gone
	}
	return s.entries[i-1].total
}

// leaves is the instant of the entry with which that number of permits has left, counted from
// the entry first on.
func (s *logState) leaves(first int, permits int64) int64 {
	until := s.before(first) + permits
	i := sort.Search(len(s.entries), func(i int) bool { return s.entries[i].total >= until })
	return s.entries[i].at
}

package ratelimit

import (
	"cmp"
	"slices"

	"github.com/tryacquire/ratelimit/internal/algorithms"
	"github.com/tryacquire/ratelimit/internal/scripts"
	"github.com/tryacquire/ratelimit/internal/windows"
)

// A SlidingLog keeps a log of the permits taken and applies several rules to it at once, exactly: no interval of a
// rule's window ever holds more permits than the rule's limit. The Result is that of one rule: the one that blocks
// longest when the call is denied, the one with the fewest permits left when it is allowed.
//
// An entry takes 14 to 20 bytes. There are at most as many as the largest limit; [WithResolution] merges them. A
// decision reads O(rules × log limit) entries. Logs with other rules may use the same key, as for a
// [SlidingWindow].
type SlidingLog struct{ limiterCore }

func (l *SlidingLog) kind() kind { return kindOnRedis(l, &l.core) }

// NewSlidingLog returns a sliding log with 1 to 100 rules, in any order. It returns an
// error for a rule that a rule with a longer window implies: 20 a second never applies
// beside 10 a minute. The error wraps ErrInvalidConfig. Redis is not asked.
func NewSlidingLog(c Client, rules []Rule, opts ...Option) (*SlidingLog, error) {
	s, err := collect(newSlidingLog, opts)
	if err != nil {
		return nil, err
	}
	sorted, err := checkRules(rules)
	if err != nil {
		return nil, err
	}
	if shortest := sorted[0].Window; s.resolution > shortest {
		return nil, invalidConfig("WithResolution: %v is more than the window %v", s.resolution, shortest)
	}
	for _, rule := range sorted {
		if err := s.checkHeadroom("limit", rule.Limit); err != nil {
			return nil, err
		}
	}
	log := windows.Log{Headroom: s.headroom, Resolution: max(s.resolution.Microseconds(), 1)}
	for _, rule := range sorted {
		log.Rules = append(log.Rules, windows.Rule(rule))
	}
	of := scripts.Of("slidinglog")
	if len(sorted) == 1 { // it decides as a sliding window in a list does, on the same state
		of = scripts.Of("slidingwindow_list")
	}
	a, err := logAlgorithm(algorithms.SlidingLog, of, log, s.clock != nil).withTickets(&s)
	if err != nil {
		return nil, err
	}
	l := &SlidingLog{}
	if err := l.build(c, s, a); err != nil {
		return nil, err
	}
	return l, nil
}

// maxRules is far beyond use, and well below what a script's stack takes.
const maxRules = 100

// checkRules returns the rules, sorted from the smallest window up.
func checkRules(rules []Rule) ([]Rule, error) {
	if len(rules) == 0 || len(rules) > maxRules {
		return nil, invalidConfig("there are %d rules; give 1 to %d", len(rules), maxRules)
	}
	for _, rule := range rules {
		if err := checkRule(rule); err != nil {
			return nil, err
		}
	}
	sorted := slices.Clone(rules)
	slices.SortFunc(sorted, func(a, b Rule) int {
		return cmp.Or(cmp.Compare(a.Window, b.Window), cmp.Compare(b.Limit, a.Limit))
	})
	for i, small := range sorted[1:] {
		if large := sorted[i]; large.Limit >= small.Limit {
			return nil, invalidConfig("the rule of %d per %v never applies beside %d per %v; leave it out",
				large.Limit, large.Window, small.Limit, small.Window)
		}
	}
	return sorted, nil
}

// logAlgorithm is a sliding log, or a sliding window by sub-windows, which is a log of
// one rule at the resolution of a sub-window. byCaller says that the caller's clock
// decides.
func logAlgorithm(id string, of *scripts.Scripts, log windows.Log, byCaller bool) algorithm {
	a := algorithm{id: id, scripts: of, most: log.Own(0), args: log.Args(byCaller), cost: log.Cost(), explainer: log}
	if len(log.Rules) > 1 {
		a.rules = len(log.Rules)
	}
	return a
}

package ratelimit

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/tryacquire/ratelimit/internal/algorithms"
	"github.com/tryacquire/ratelimit/internal/decision"
	"github.com/tryacquire/ratelimit/internal/exact"
	"github.com/tryacquire/ratelimit/internal/redisexec"
	"github.com/tryacquire/ratelimit/internal/scripts"
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
	resolution := max(s.resolution.Microseconds(), 1)
	of := scripts.Of("slidinglog")
	if len(sorted) == 1 { // it decides as a sliding window in a list does, on the same state
		of = scripts.Of("slidingwindow_list")
	}
	l := &SlidingLog{}
	if err := l.build(c, s, logAlgorithm(algorithms.SlidingLog, of, resolution, logExplainer{sorted, s.headroom}, s.clock != nil)); err != nil {
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
func logAlgorithm(id string, of *scripts.Scripts, resolution int64, log logExplainer, byCaller bool) algorithm {
	rules := log.rules
	grain := strconv.FormatInt(resolution, 10)
	// What the state has of the limiter that wrote it, see the scripts.
	rule := strconv.FormatInt(rules[len(rules)-1].Window.Microseconds(), 10) + "/" + grain
	if byCaller {
		rule += "@"
	}
	a := algorithm{
		id: id, scripts: of, most: log.own(0),
		args: []string{rule, grain},
		cost: logCost(resolution, rules), explainer: log,
	}
	if len(rules) > 1 {
		a.rules = len(rules)
		a.args = append(a.args, strconv.Itoa(len(rules)))
	}
	for i, rule := range rules {
		a.args = append(a.args, strconv.Itoa(log.own(i)), strconv.FormatInt(rule.Window.Microseconds(), 10))
	}
	return a
}

// logCost: to decide a run beyond the key's first, each rule searches the log, which
// takes longer the further an entry is from both ends of the list.
func logCost(resolution int64, rules []Rule) redisexec.Cost {
	longest := rules[len(rules)-1]
	entries := min(int64(longest.Limit), longest.Window.Microseconds()/resolution) // at most
	far := 1 + min(entries/250_000, 4)
	return redisexec.Cost{Key: 15 + 25*(len(rules)-1), Run: 40 * len(rules) * int(far), Back: 120 * int(far)}
}

// logExplainer explains the replies of a log.
type logExplainer struct {
	rules    []Rule // from the smallest window up
	headroom int    // what of each limit is left to other limiters
}

// The words of a log's reply, after decision.WordAllowed.
const (
	wordNewest  = 1 // microseconds from now to the last instant at which a permit was taken, the run's included
	wordBlocked = 2 // microseconds until the denied requests of the run fit
	wordUsed    = 3 // for each rule, the permits that count before the run
	// Behind the last rule's, if there are several rules: the number of the rule that
	// blocks longest, from 1, or 0 if none does.
)

func (l logExplainer) Explain(words []int64, n, taken int64, allowed bool) decision.Result {
	rules := l.rules
	newest, blocked, used := words[wordNewest], words[wordBlocked], words[wordUsed:]
	longest := rules[len(rules)-1].Window
	r := decision.Result{
		Allowed:    allowed,
		ResetAfter: max(longest+exact.Duration(newest), 0),
	}
	governing := 0 // the rule that the Result is about
	if allowed {
		if used[len(rules)-1]+taken == 0 { // under the longest rule
			r.ResetAfter = 0
		}
		for rule := range rules {
			if left := l.left(rule, used[rule]+taken); rule == 0 || left < r.Remaining {
				governing, r.Remaining = rule, left
			}
		}
	} else {
		if len(rules) > 1 {
			blocking := used[len(rules)]
			// In bounds, whatever Redis replied.
			governing = int(min(max(blocking-1, 0), int64(len(rules)-1)))
		}
		r.Remaining = l.left(governing, used[governing]+taken)
		r.RetryAfter = exact.Duration(blocked)
	}
	r.Limit, r.Window = rules[governing].Limit, rules[governing].Window
	return r
}

// own is what of a rule's limit this limiter may use.
func (l logExplainer) own(rule int) int { return l.rules[rule].Limit - l.headroom }

func (l logExplainer) left(rule int, used int64) int { return int(max(int64(l.own(rule))-used, 0)) }

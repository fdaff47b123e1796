package windows

import (
	"strconv"
	"time"

	"github.com/tryacquire/ratelimit/internal/decision"
	"github.com/tryacquire/ratelimit/internal/exact"
	"github.com/tryacquire/ratelimit/internal/redisexec"
)

// A Rule has the fields of ratelimit.Rule.
type Rule struct {
	Limit  int
	Window time.Duration
}

// Log is a sliding log, or a sliding window, which is a log of one rule.
type Log struct {
	Rules      []Rule // from the smallest window up
	Headroom   int    // what of each limit is left to other limiters
	Resolution int64  // of the entries, in microseconds
}

// Args are the arguments of the scripts. byCaller says that the caller's clock decides.
func (l Log) Args(byCaller bool) []string {
	grain := strconv.FormatInt(l.Resolution, 10)
	// What the state has of the limiter that wrote it, see the scripts.
	rule := strconv.FormatInt(l.longest().Window.Microseconds(), 10) + "/" + grain
	if byCaller {
		rule += "@"
	}
	args := []string{rule, grain}
	if len(l.Rules) > 1 {
		args = append(args, strconv.Itoa(len(l.Rules)))
	}
	for i, rule := range l.Rules {
		args = append(args, exact.Texts(int64(l.Own(i)), rule.Window.Microseconds())...)
	}
	return args
}

func (l Log) longest() Rule { return l.Rules[len(l.Rules)-1] }

// Cost: to decide a run beyond the key's first, each rule searches the log, which
// takes longer the further an entry is from both ends of the list.
func (l Log) Cost() redisexec.Cost {
	longest := l.longest()
	entries := min(int64(longest.Limit), longest.Window.Microseconds()/l.Resolution) // at most
	far := 1 + min(entries/250_000, 4)
	return redisexec.Cost{Key: 15 + 25*(len(l.Rules)-1), Run: 40 * len(l.Rules) * int(far), Back: 120 * int(far)}
}

// The words of a log's reply, after decision.WordAllowed.
const (
	wordNewest  = 1 // microseconds from now to the last instant at which a permit was taken, the run's included
	wordBlocked = 2 // microseconds until the denied requests of the run fit
	wordUsed    = 3 // for each rule, the permits that count before the run
	// Behind the last rule's, if there are several rules: the number of the rule that
	// blocks longest, from 1, or 0 if none does.
)

// Explain is that of a decision.Explainer.
func (l Log) Explain(words []int64, n, taken int64, allowed bool) decision.Result {
	rules := l.Rules
	newest, blocked, used := words[wordNewest], words[wordBlocked], words[wordUsed:]
	longest := l.longest().Window
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

// Own is what of a rule's limit can be used.
func (l Log) Own(rule int) int { return l.Rules[rule].Limit - l.Headroom }

func (l Log) left(rule int, used int64) int { return int(max(int64(l.Own(rule))-used, 0)) }

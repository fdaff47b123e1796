package vectors

import (
	"fmt"
	"strconv"
	"time"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/model"
)

// A log is a list: the rule, the total of entry 0, and then instant and total of each entry. Entry 0 is the last one that has left
// the longest window; the totals count from when the log began.
type log struct {
	m       *model.SlidingLog
	rules   []model.Rule // from the smallest window up
	slot    int64        // microseconds
	base    int          // the total of entry 0
	entries []model.Taken
	spare   int64 // milliseconds
	era     int64 // the number behind the last 0 of the rule, if the server's clock stepped back
	coarse  int64 // the slot of the last entry, by the rule that dated it
}

func (l *log) model() model.Settler { return l.m }

func (l *log) longest() int64 { return l.rules[len(l.rules)-1].Window.Microseconds() }

// gone is the instant at which nobody needs the state any more, 0 if there is none.
func (l *log) gone(now int64) int64 {
	if entries := l.m.State(); len(entries) > 0 {
		return l.at(now) + l.m.Needed(now).Microseconds()
	}
	return 0
}

// present are the entries as they count now: after the server's clock stepped back, none is later than the end of this slot.
func (l *log) present(now int64) []model.Taken {
	entries := l.m.State()
	if l.gone(now) <= l.at(now) {
		return nil
	}
	if l.repairs(now) {
		for i := range entries {
			entries[i].At = min(entries[i].At, l.endOfSlot(now))
		}
	}
	return entries
}

// at is the instant at which a call is decided: not before the slot of the last entry, if a caller's clock dated it, or decides.
func (l *log) at(now int64) int64 {
	if entries := l.m.State(); len(entries) > 0 && (l.m.CallersClock || l.m.DatedByCaller()) {
		return max(now, entries[len(entries)-1].At-l.slot+1)
	}
	return now
}

func (l *log) endOfSlot(now int64) int64 { return now - now%l.slot + l.slot - 1 }

func (l *log) repairs(now int64) bool {
	entries := l.m.State()
	return len(entries) > 0 && entries[len(entries)-1].At-l.slot >= l.at(now)
}

func counted(entries []model.Taken, edge int64) (sum int) {
	for _, e := range entries {
		if e.At > edge {
			sum += e.N
		}
	}
	return sum
}

func (l *log) words(now int64) []int64 {
	entries := l.present(now)
	newest := -now // there is no entry
	if len(entries) > 0 {
		newest = entries[len(entries)-1].At - now
	}
	words := []int64{newest, 0}
	for _, r := range l.rules {
		words = append(words, int64(counted(entries, l.at(now)-r.Window.Microseconds())))
	}
	if len(l.rules) > 1 {
		words = append(words, 0)
	}
	return words
}

func (l *log) allowed(words []int64, now int64, taken int, denied *model.Answer) {
	if taken > 0 {
		entries := l.m.State()
		words[0] = entries[len(entries)-1].At - now
	}
	if denied == nil {
		return
	}
	words[1] = denied.RetryAfter.Microseconds()
	for i, r := range l.rules {
		if r.Window == denied.Window && len(l.rules) > 1 {
			words[len(words)-1] = int64(i + 1)
		}
	}
}

// used is of all entries, of which a giveback takes some.
func (l *log) used(int64) int64 { return int64(counted(l.m.State(), -1<<62)) }

func (l *log) last() int64     { return l.which(0) }
func (l *log) which(int) int64 { return l.eraOf(l.m.Place(0), l.era) }

// eraOf is what a ticket at place has in an era: instants up to that are used again in it.
func (l *log) eraOf(place, era int64) int64 {
	if place > era {
		return 0
	}
	return era
}

func (l *log) giveBack(now int64, n int, place, which int64) {
	era := l.era
	if era+l.longest() <= l.at(now) {
		era = 0
	}
	if which == l.eraOf(place, era) {
		l.m.GiveBack(now, n, place)
	}
}

func (l *log) write(now, old int64, back bool) (any, int64) {
	entries := l.m.State()
	if len(entries) == 0 {
		l.entries = nil
		return nil, 0
	}
	last := entries[len(entries)-1].At
	before := l.entries
	switch n := len(before); {
	case n > 0 && old > 0 && !back && l.coarse > 0 && before[n-1].At-l.coarse >= now:
		l.era = max(before[n-1].At, l.era) + 1
	case n == 0 || old == 0 || !back && l.era+l.longest() <= l.at(now):
		l.era = 0
	}
	if n := len(before); n == 0 || old == 0 || !back && before[n-1].At < entries[0].At {
		before, l.base, old = nil, 0, -1 // a new log
	}
	for _, e := range before { // what has left, and is not kept any more
		if e.At < entries[0].At && !back {
			l.base += e.N
		}
	}
	l.entries = entries
	total := l.base
	longest, slot, others := l.m.Rule()
	rule := fmt.Sprintf("%d/%d", longest, slot)
	l.coarse = slot
	if l.m.DatedByCaller() {
		l.coarse = 0 // its entries do not move
		rule += "@"
	}
	for _, other := range others {
		rule += fmt.Sprintf(" %d/%d", other[0], other[1])
	}
	if l.era > 0 {
		rule += fmt.Sprintf("~%d/0%d", l.era, l.era)
	}
	if entries[len(entries)-1].N == 0 {
		rule += "!"
	}
	list := []string{rule, strconv.Itoa(total)}
	for _, e := range entries {
		total += e.N
		list = append(list, strconv.FormatInt(e.At, 10), strconv.Itoa(total))
	}
	ttl := evenly(l.m.Needed(now).Microseconds()/1000) + l.spare
	switch {
	case total == 0: // only the instant is needed, by callers whose clocks are behind
		return list, 901 + l.spare
	case back:
		if before[len(before)-1].At == last || l.era > 0 { // the last permit is still there, or the rule says more
			return list, old
		}
		return list, max(ttl, 0) + 901
	case old < ttl+50 || old > ttl+950:
		return list, ttl + 901
	}
	return list, old
}

// logs are sliding windows in a list, and sliding logs.
func logs() (groups []Group) {
	for _, r := range []struct {
		rules []model.Rule
		parts int           // sub-windows
		slot  time.Duration // resolution
		back  bool
		cases int
	}{
		{rules: []model.Rule{{Limit: 5, Window: time.Minute}}, parts: 10, cases: 16},
		{rules: []model.Rule{{Limit: 20, Window: time.Second}}, parts: 40, back: true, cases: 16},
		{rules: []model.Rule{{Limit: 3, Window: time.Minute}}, slot: time.Microsecond, cases: 15},
		{rules: []model.Rule{{Limit: 4, Window: time.Second}, {Limit: 10, Window: 10 * time.Second}}, slot: 100 * time.Millisecond, cases: 20},
	} {
		g := Group{Algorithm: "slidinglog", Script: "slidingwindow_list", Key: "ratelimit:default:slidinglog{k}", Rule: map[string]int64{}}
		longest := r.rules[len(r.rules)-1]
		if r.parts > 0 {
			r.slot = longest.Window / time.Duration(r.parts)
			g.Algorithm, g.Key = "slidingwindow-list", "ratelimit:default:slidingwindow-list{k}"
			g.Rule["sub_windows"] = int64(r.parts)
			g.Build = func(c ratelimit.Client) (ratelimit.Limiter, error) {
				return ratelimit.NewSlidingWindow(c, longest.Limit, longest.Window, ratelimit.WithSubWindows(r.parts))
			}
		} else {
			g.Rule["resolution"] = r.slot.Microseconds()
			var rules []ratelimit.Rule
			for _, rule := range r.rules {
				rules = append(rules, ratelimit.Rule(rule))
			}
			g.Build = func(c ratelimit.Client) (ratelimit.Limiter, error) {
				if r.slot == time.Microsecond {
					return ratelimit.NewSlidingLog(c, rules)
				}
				return ratelimit.NewSlidingLog(c, rules, ratelimit.WithResolution(r.slot))
			}
		}
		slot := r.slot.Microseconds()
		g.Args = append([]string{fmt.Sprintf("%d/%d", longest.Window.Microseconds(), slot)}, texts(slot)...)
		for i, rule := range r.rules {
			limit, window := "limit", "window"
			if len(r.rules) > 1 {
				limit, window = fmt.Sprintf("limit_%d", i+1), fmt.Sprintf("window_%d", i+1)
				if i == 0 {
					g.Script, g.Args = "slidinglog", append(g.Args, strconv.Itoa(len(r.rules)))
				}
			}
			g.Rule[limit], g.Rule[window] = int64(rule.Limit), rule.Window.Microseconds()
			g.Args = append(g.Args, texts(int64(rule.Limit), rule.Window.Microseconds())...)
		}
		h := newHistory(&log{m: model.NewSlidingLog(r.rules, r.slot), rules: r.rules, slot: slot}, 100+len(groups))
		g.Cases = h.steps(r.cases, start, r.back)
		groups = append(groups, g)
	}
	return groups
}

package vectors

import (
	"fmt"
	"strings"
	"time"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/model"
)

const otherRules = "while other rules use the key: their cases have arguments of their own"

// A ratedBucket is a token bucket that limiters of two rates use. A permit is permit units, of which a microsecond restores one.
type ratedBucket struct {
	key   kept
	rules map[string]rate
	level
	held map[string]level // by the text
}

// A level is what is missing at an instant, in units of the rule that wrote it, and until when permits are promised.
type level struct {
	at, missing int64
	rate
	due int64 // the same instant: none are
}

type rate struct{ burst, permit int64 }

func (b *ratedBucket) keys(*Case) []*kept { return []*kept{&b.key} }

// by is how many units of the rule r are missing, by the faster of the two rates; and when so many permits fit. Until the last promised
// instant a faster rule counts back from then: it restores nothing of what is promised.
func (l level) by(now int64, r rate) (missing int64, until func(permits int64) int64) {
	units := func(theirs int64) int64 { return (theirs*r.permit + l.rate.permit - 1) / l.rate.permit } // rounded up
	base, from := l.missing, l.at
	if r.permit < l.rate.permit {
		base, from = max(base-(l.due-l.at), 0), l.due
	}
	age := now - from
	if missing = units(base) - age; age >= 0 {
		missing = min(missing, units(base-age))
	}
	return max(missing, 0), func(permits int64) int64 {
		own, theirs := units(base)+(permits-r.burst)*r.permit, base+(permits-r.burst)*l.rate.permit
		if theirs < 0 { // before that instant, by this rate alone
			theirs = own
		}
		return min(own, theirs) - age
	}
}

// store writes a level. Its TTL is the time until the bucket is full by the rule that wrote it.
func (b *ratedBucket) store(now int64, l level) {
	text := fmt.Sprintf("%016d/%d/%d/1", l.at, l.missing, l.rate.permit)
	if l.due = max(l.due, l.at); l.due > l.at {
		text += fmt.Sprintf("!%d", l.due-l.at)
	}
	b.level, b.held[text] = l, l
	b.key.write(now, text, evenly((l.missing-(now-l.at))/1000)+3)
}

// operate is by the rule that stands behind the operation.
func (b *ratedBucket) operate(now int64, c *Case) {
	r, other := b.rules[c.ID], c.ID != ""
	if c.ID = ""; other {
		c.Args = append(texts(r.burst*r.permit, r.permit, 1), fmt.Sprintf("/%d/1", r.permit))
	}
	before, _ := b.key.state.(string)
	if before == "" {
		b.level = level{at: now, rate: r, due: now}
	}
	missing, until := b.by(now, r)
	n, kind, longest, _ := parse(c.Operation)
	cost := int64(n) * r.permit
	words := []int64{0, missing, 0, 0}
	due := max(missing+cost-r.burst*r.permit, 0)
	c.Reply = words
	taken := level{at: now, missing: missing + cost, rate: r, due: b.due}
	switch {
	case kind == 'g': // nothing while permits are promised
		c.Reply = []int64{0}
	case kind == 'z':
		wrote, restores, _ := strings.Cut(c.Operation[2:], "|")
		if c.Reply = []int64{0}; before == wrote {
			c.Reply[0] = 1
			b.store(now, b.held[restores])
		}
	case kind == 's' && due <= longest:
		words[0], taken.due = 1, max(b.due, now+due)
		b.store(now, taken)
		receipt := receiptOf(b.key.state.(string), before)
		c.Reply = append(append(append([]int64{due}, words...), int64(len(receipt))), receipt...)
	case due == 0:
		words[0] = 1
		b.store(now, taken)
		c.Result = &Result{Allowed: true, ResetAfter: missing + cost}
		missing += cost
	default:
		wait, full := until(int64(n)), until(r.burst)
		if b.rate != r {
			words[2], words[3] = wait, full
		}
		if kind == 's' {
			c.Reply = append(append([]int64{due}, words...), 0)
			return
		}
		c.Result = &Result{RetryAfter: wait, ResetAfter: max(full, wait)}
	}
	if c.Result != nil {
		c.Result.Limit, c.Result.Window = int(r.burst), r.burst*r.permit
		c.Result.Remaining = int(max(r.burst-(missing+r.permit-1)/r.permit, 0))
	}
}

func bucketOfTwoRates() Group {
	g := Group{
		Algorithm: "tokenbucket", About: otherRules, Script: "bucket", Key: "ratelimit:default:tokenbucket{k}",
		Rule: map[string]int64{"count": 1, "period": 1_000_000, "burst": 10}, Args: append(texts(10_000_000, 1_000_000, 1), "/1000000/1"),
		Build: func(c ratelimit.Client) (ratelimit.Limiter, error) {
			return ratelimit.NewTokenBucket(c, ratelimit.PerSecond(1), 10)
		},
	}
	of := &ratedBucket{rules: map[string]rate{"": {10, 1_000_000}, "faster": {5, 300_000}}, held: map[string]level{}}
	g.Cases = narrate(of, []step{
		{0, "8x1", "A bucket of ten permits, at one a second"},
		{600 * time.Millisecond, "1x1 faster", "A rule of five permits, ten in three seconds: it goes on by its own rate, which is the faster one, and finds six missing. The denial leaves the state, and has both times as words"},
		{0, "1x1", "For the rule that wrote the state nothing has changed: 7.4 permits are missing before"},
		{time.Second, "1x1 faster", "The state is of a second ago. Too many permits are still missing"},
		{600 * time.Millisecond, "1x1 faster", "Now it takes a permit, and the state is of this rule"},
		{600 * time.Millisecond, "5x1", "The first rule again: what the faster one found missing has gone on by that one's rate. It is rounded up to units of this rule, of which the state is now"},
	})
	return g
}

func promisesOfTwoRates() Group {
	g := reserving()
	g.About = "with reservations, while other rules use the key: their cases have arguments of their own"
	of := &ratedBucket{rules: map[string]rate{"": {2, 1_000_000}, "faster": {5, 300_000}}, held: map[string]level{}}
	const (
		ours   = "1763670001300000/7000000/1000000/1!5000000"
		behind = "1763670001300000/5900000/300000/1!5000000"
	)
	g.Cases = narrate(of, []step{
		{0, "2x1", "A bucket of two permits, at one a second"},
		{500 * time.Millisecond, "1s5000000", "A permit is promised, due in half a second. Two are missing then"},
		{0, "2x1 faster", "A rule of five permits, ten in three seconds, counts back from then: two permits are missing, and what it restores in half a second besides. Two more fit in 0.2 seconds, sooner than the promise is due"},
		{700 * time.Millisecond, "4x1 faster", "The promise was due 0.2 seconds ago. The faster rule restores something since then, and nothing for the time before"},
		{100 * time.Millisecond, "4x1 faster", "Now they fit. The state is of this rule, and promises nothing more"},
		{0, "1s5000000 faster", "A reservation by the faster rule"},
		{0, "1x1", "For the first rule, which is slower, the state goes on by the rate of the rule that has promised"},
		{0, "1s9000000", "It reserves behind the other one, by its own rate: five permits too many are missing, and the permit is due in five seconds"},
		{0, "1x1 faster", "The faster rule counts back from then. Its permit fits before, in 4.4 seconds"},
		{0, "1s5000000 faster", "Reserved, it is due in 4.4 seconds. The state is of the faster rule, and what the other one has promised stays promised for five"},
		{0, "1g/0", "Nothing is given back by any rule"},
		{100 * time.Millisecond, "1z" + behind + "|" + ours + " faster", "The last reservation is cancelled: the state is of the first rule again, with its TTL"},
	})
	return g
}

// A ruledLog is a log that limiters of two windows use.
type ruledLog struct {
	key   kept
	rules map[string]*log
}

func (l *ruledLog) keys(*Case) []*kept { return []*kept{&l.key} }

// operate is by the rule that stands behind the operation.
func (l *ruledLog) operate(now int64, c *Case) {
	of, other := l.rules[c.ID], c.ID != ""
	rule := of.rules[0]
	if c.ID = ""; other {
		c.Args = append([]string{fmt.Sprintf("%d/%d", of.longest(), of.slot)}, texts(of.slot, int64(rule.Limit), of.longest())...)
	}
	for _, one := range l.rules { // they have one state
		if one.entries != nil {
			of.base, of.entries = one.base, one.entries
		}
		if one != of {
			defer func() { one.base, one.entries = of.base, of.entries }()
		}
	}
	_, old := l.key.at(now)
	n, _, _, _ := parse(c.Operation)
	words := of.words(now)
	a := of.m.Take(now, n, false)
	c.Result = resultOf(a)
	if !a.Allowed {
		of.allowed(words, now, 0, &a)
		c.Reply = append([]int64{0}, words...)
		return
	}
	of.allowed(words, now, n, nil)
	c.Reply = append([]int64{1}, words...)
	state, ttl := of.write(now, old, false)
	l.key.write(now, state, ttl)
}

func logOfTwoWindows() Group {
	g := Group{
		Algorithm: "slidingwindow-list", About: otherRules, Script: "slidingwindow_list", Key: "ratelimit:default:slidingwindow-list{k}",
		Rule: map[string]int64{"limit": 6, "window": 60_000_000, "sub_windows": 10}, Args: append([]string{"60000000/6000000"}, texts(6_000_000, 6, 60_000_000)...),
		Build: func(c ratelimit.Client) (ratelimit.Limiter, error) {
			return ratelimit.NewSlidingWindow(c, 6, time.Minute, ratelimit.WithSubWindows(10))
		},
	}
	long, short := []model.Rule{{Limit: 6, Window: time.Minute}}, []model.Rule{{Limit: 3, Window: 10 * time.Second}}
	m := model.NewSlidingLog(long, 6*time.Second)
	of := &ruledLog{rules: map[string]*log{
		"":      {m: m, rules: long, slot: 6_000_000},
		"short": {m: m.Beside(short, time.Second), rules: short, slot: 1_000_000},
	}}
	g.Cases = narrate(of, []step{
		{0, "2x1", "A window of a minute, in sub-windows of six seconds"},
		{time.Second, "1x1 short", "A rule of three in ten seconds. The last entry is later than the end of its sub-window, so the permit is in that entry. The rule is this one's longest window, and the slot of the last entry; behind it, until when the minute is needed"},
		{15 * time.Second, "2x1 short", "A new entry, at the end of a sub-window of one second. What has left the ten seconds stays, as the other rule needs it"},
		{time.Second, "1x1", "The first rule counts all of it. Its window is the longest, so the state names no other"},
		{9 * time.Second, "1x1 short", "Denied: three permits of the last ten seconds count, of both rules"},
	})
	return g
}

// ofSeveralRules are keys that limiters of several rules use.
func ofSeveralRules() []Group {
	return []Group{bucketOfTwoRates(), promisesOfTwoRates(), logOfTwoWindows()}
}

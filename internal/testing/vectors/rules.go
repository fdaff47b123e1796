package vectors

import (
	"fmt"
	"time"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/model"
)

const otherRules = "while other rules use the key: their cases have arguments of their own"

// A ratedBucket is a token bucket that limiters of two rates use. A permit is permit units, of which a microsecond restores one.
type ratedBucket struct {
	key     kept
	rules   map[string]rate
	at      int64
	missing int64 // units of the rule that wrote the state
	by      rate
}

type rate struct{ burst, permit int64 }

func (b *ratedBucket) keys(*Case) []*kept { return []*kept{&b.key} }

// operate is by the rule that stands behind the operation.
func (b *ratedBucket) operate(now int64, c *Case) {
	r, other := b.rules[c.ID], c.ID != ""
	if c.ID = ""; other {
		c.Args = append(texts(r.burst*r.permit, r.permit, 1), fmt.Sprintf("/%d/1", r.permit))
	}
	if b.by.permit == 0 {
		b.at, b.by = now, r
	}
	units := func(theirs int64) int64 { return (theirs*r.permit + b.by.permit - 1) / b.by.permit } // rounded up, to those of this rule
	age := now - b.at
	missing := max(min(units(b.missing)-age, units(b.missing-age)), 0) // by the faster of the two rates
	n, _, _, _ := parse(c.Operation)
	cost, before := int64(n)*r.permit, missing
	until := func(permits int64) int64 { // by the faster one, that of so many fit
		return min(units(b.missing)+(permits-r.burst)*r.permit, b.missing+(permits-r.burst)*b.by.permit) - age
	}
	full := until(r.burst)
	c.Result = &Result{Limit: int(r.burst), Window: r.burst * r.permit}
	if missing+cost <= r.burst*r.permit {
		missing += cost
		b.at, b.missing, b.by = now, missing, r
		b.key.write(now, fmt.Sprintf("%016d/%d/%d/1", now, missing, r.permit), evenly(missing/1000)+3)
		c.Reply = []int64{1, before, 0, 0}
		c.Result.Allowed, c.Result.ResetAfter = true, missing
	} else {
		c.Reply = []int64{0, before, 0, 0}
		c.Result.RetryAfter, c.Result.ResetAfter = until(int64(n)), full
		if b.by != r {
			c.Reply[2], c.Reply[3] = c.Result.RetryAfter, full
		}
		c.Result.ResetAfter = max(full, c.Result.RetryAfter)
	}
	c.Result.Remaining = int(max(r.burst-(missing+r.permit-1)/r.permit, 0))
}

func bucketOfTwoRates() Group {
	g := Group{
		Algorithm: "tokenbucket", About: otherRules, Script: "bucket", Key: "ratelimit:default:tokenbucket{k}",
		Rule: map[string]int64{"count": 1, "period": 1_000_000, "burst": 10}, Args: append(texts(10_000_000, 1_000_000, 1), "/1000000/1"),
		Build: func(c ratelimit.Client) (ratelimit.Limiter, error) {
			return ratelimit.NewTokenBucket(c, ratelimit.PerSecond(1), 10)
		},
	}
	of := &ratedBucket{rules: map[string]rate{"": {10, 1_000_000}, "faster": {5, 300_000}}}
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
func ofSeveralRules() []Group { return []Group{bucketOfTwoRates(), logOfTwoWindows()} }

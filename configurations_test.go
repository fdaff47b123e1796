package ratelimit_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
)

// A configuration is one of several that use the same key, with the server's
// clock or one of its own.
type configuration struct {
	about    string
	limiter  ratelimit.Limiter
	most     int // permits that one call can get
	bound    limitertest.Bound
	byCaller bool
	ahead    time.Duration // of the true time
	late     time.Duration // a call arrives at most so long after it has read its clock
	reads    *time.Time    // what its clock says
}

// ownClock makes the options of a configuration with a clock of its own.
func (r *configuration) ownClock(maxSkew time.Duration) []ratelimit.Option {
	r.byCaller, r.reads = true, new(time.Time)
	return []ratelimit.Option{ratelimit.WithClock(func() time.Time { return *r.reads }), ratelimit.WithMaxSkew(maxSkew)}
}

// A contest is the calls of several configurations for one key, and what is checked of each.
type contest struct {
	*limitertest.Stage
	rng    *rand.Rand
	all    []*configuration
	beyond bool // the clocks differ by more than every write lets the key live longer
	grain  time.Duration
	slack  time.Duration // by how much one rule knows another's window too long
	looks  int           // of so many calls, one is checked to have written nothing if it was denied

	latest       int64 // the state's instant
	allowedCalls []limitertest.AllowedCall
	steps        []string
}

// contestOf starts with an empty key.
func contestOf(t *testing.T, s *limitertest.Stage, rng *rand.Rand, all ...*configuration) *contest {
	s.Wipe(t)
	c := &contest{Stage: s, rng: rng, all: all, grain: time.Microsecond, looks: 1}
	for _, r := range all {
		if r.reads == nil {
			r.reads = new(time.Time)
		}
		*r.reads = s.Now
		l := must(t)(r.limiter.Peek(ctx, "k"))
		require.Equal(t, ratelimit.Result{Allowed: true, Limit: l.Limit, Window: l.Window, Remaining: l.Limit}, l, "%s: an unused key", r.about)
	}
	require.Empty(t, s.Admin.Keys(ctx, "*").Val())
	return c
}

// skew is how far apart the configurations' clocks are.
func (c *contest) skew() time.Duration {
	least, most := c.all[0].ahead, c.all[0].ahead
	for _, r := range c.all {
		least, most = min(least, r.ahead-r.late), max(most, r.ahead)
	}
	return most - least
}

func (c *contest) bounds() []limitertest.Bound {
	var all []limitertest.Bound
	for _, r := range c.all {
		all = append(all, r.bound)
	}
	return all
}

// longest is the longest wait if nobody else calls, without the lag of a clock.
func (c *contest) longest() time.Duration {
	window, slot := time.Duration(0), time.Duration(0)
	for _, b := range c.bounds() {
		window, slot = max(window, b.Window), max(slot, b.Slot, b.Step)
	}
	return window + slot + c.grain
}

// raw is all that Redis holds, to the millisecond of its life, without a key that has less
// than one left: from 7.2 on Redis may delete it at any time.
func (c *contest) raw(t *testing.T) string {
	all := ""
	for _, key := range c.Admin.Keys(ctx, "*").Val() {
		if left := c.Admin.PTTL(ctx, key).Val(); left != 0 && left != -2 { // -2: it has expired since it was listed
			all += fmt.Sprint(key, " ", c.Look(t, key), " ", left, "\n")
		}
	}
	return all
}

func (c *contest) fail(t *testing.T, format string, args ...any) {
	t.Helper()
	about := ""
	for i, r := range c.all {
		about += fmt.Sprintf("%d: %s, own clock %v, %v ahead, %v late\n", i, r.about, r.byCaller, r.ahead, r.late)
	}
	require.Fail(t, fmt.Sprintf(format, args...), "%s%s\n%s", about, strings.Join(c.steps[max(0, len(c.steps)-25):], "\n"), c.raw(t))
}

// call makes the calls of one configuration, together if there are several; none is a Peek.
func (c *contest) call(t *testing.T, by int, late time.Duration, n ...int) []ratelimit.Result {
	t.Helper()
	r := c.all[by]
	*r.reads = c.Now.Add(r.ahead - late)
	looks, before := c.rng.IntN(c.looks) == 0, ""
	if looks {
		before = c.raw(t)
	}
	if c.beyond && before == "" { // the key has expired: the rest of the skew can be spent again
		// Of a key with less than a millisecond left, Redis may still know the state.
		for _, key := range c.Admin.Keys(ctx, "*").Val() {
			require.NoError(t, c.Admin.Del(ctx, key).Err())
		}
		c.settle(t)
		c.allowedCalls, c.latest = nil, 0
	}
	var results []ratelimit.Result
	allowed := false
	switch len(n) {
	case 0:
		results = []ratelimit.Result{must(t)(r.limiter.Peek(ctx, "k"))}
	case 1:
		results = []ratelimit.Result{must(t)(r.limiter.TryAcquireN(ctx, "k", n[0]))}
	default:
		var steps []model.Step
		var keys []string
		for _, n := range n {
			steps, keys = append(steps, model.Step{N: n}), append(keys, "k")
		}
		results = ratelimit.Merged(t, r.limiter, steps, keys)
	}
	c.steps = append(c.steps, fmt.Sprintf("%d at %d, reads %d, for %v: %+v", by, c.Now.UnixMicro(), r.reads.UnixMicro(), n, results))
	lag := max(0, time.Duration(c.latest-r.reads.UnixMicro())*time.Microsecond)
	for i, result := range results {
		if result.Allowed && len(n) > 0 {
			allowed = true
			c.latest = max(c.latest, r.reads.UnixMicro())
			c.allowedCalls = append(c.allowedCalls, limitertest.AllowedCall{At: c.Now.UnixMicro(), Instant: c.latest, By: by, N: n[i]})
		}
		if result.RetryAfter > c.longest()+lag || result.RetryAfter < 0 || result.Allowed != (result.RetryAfter == 0) {
			c.fail(t, "a wait of %v", result.RetryAfter)
		}
		if result.Remaining < 0 || result.Remaining > result.Limit || result.ResetAfter < result.RetryAfter {
			c.fail(t, "fields beyond their range")
		}
	}
	if looks && !allowed && c.raw(t) != before {
		c.fail(t, "neither a denial nor a Peek writes; before it:\n%s", before)
	}
	return results
}

// retry checks that a denial holds until RetryAfter has passed, and no longer.
func (c *contest) retry(t *testing.T, by int, late time.Duration, n int, denied ratelimit.Result) {
	t.Helper()
	from := c.Now
	if from.Add(denied.RetryAfter).After(lastDay) {
		return
	}
	if !c.beyond && !limitertest.Unlike(c.bounds()) { // then the key can expire earlier
		c.Move(from.Add(max(0, denied.RetryAfter-c.grain)))
		if c.call(t, by, late, n)[0].Allowed {
			c.fail(t, "allowed before RetryAfter")
		}
	}
	c.Move(from.Add(denied.RetryAfter))
	c.Advance(c.slack)
	if !c.call(t, by, late, n)[0].Allowed {
		c.fail(t, "denied at RetryAfter")
	}
}

// reset checks that the full limit is available when the ResetAfter of a Peek has passed.
func (c *contest) reset(t *testing.T, by int, late time.Duration, looked ratelimit.Result) {
	t.Helper()
	at := c.Now.Add(looked.ResetAfter)
	if at.After(lastDay) {
		return
	}
	c.Move(at)
	c.Advance(c.slack)
	if full := c.call(t, by, late)[0]; full.Remaining != full.Limit || full.ResetAfter != 0 {
		c.fail(t, "something is used at ResetAfter")
	}
}

// settle checks the permits taken so far.
func (c *contest) settle(t *testing.T) {
	t.Helper()
	if len(c.allowedCalls) == 0 {
		return
	}
	if exceeded := limitertest.Exceeded(c.bounds(), c.allowedCalls, c.skew()); exceeded != "" {
		c.fail(t, "%s, with clocks %v apart", exceeded, c.skew())
	}
}

// lastDay is when a contest ends, because clocks are accepted up to 2112 only.
var lastDay = time.Date(2096, 1, 1, 0, 0, 0, 0, time.UTC)

// play makes random calls.
func (c *contest) play(t *testing.T, steps int) {
	t.Helper()
	var last ratelimit.Result
	for range steps {
		by := c.rng.IntN(len(c.all))
		r := c.all[by]
		c.Advance(c.pause(last))
		if c.Now.After(lastDay) {
			break
		}
		if c.grain > time.Microsecond { // a TTL is whole milliseconds
			c.Move(c.Now.Add(time.Millisecond - 1).Truncate(time.Millisecond))
		}
		late := time.Duration(0)
		if r.late > 0 {
			late = time.Duration(c.rng.Int64N(int64(r.late))).Truncate(time.Microsecond)
		}
		var n []int
		switch p := c.rng.IntN(10); {
		case p < 2: // a Peek
		case p < 7:
			n = []int{c.cost(r, last)}
		default:
			for range 2 + c.rng.IntN(10) {
				n = append(n, c.cost(r, last))
			}
		}
		results := c.call(t, by, late, n...)
		last = results[len(results)-1]
		if !last.Allowed && c.rng.IntN(3) == 0 {
			permits := 1
			if len(n) > 0 {
				permits = n[len(n)-1]
			}
			c.retry(t, by, late, permits, last)
		} else if n == nil && c.rng.IntN(6) == 0 {
			c.reset(t, by, late, last)
		}
	}
	c.settle(t)
}

// pause is the time until the next call.
func (c *contest) pause(last ratelimit.Result) time.Duration {
	window := c.all[c.rng.IntN(len(c.all))].bound.Window
	near := time.Duration(c.rng.IntN(3)-1) * time.Microsecond
	switch p := c.rng.IntN(100); {
	case p < 50:
		return 0
	case p < 60 && last.RetryAfter > 0:
		return max(0, last.RetryAfter+near)
	case p < 68:
		return max(0, window+near)
	case p < 72:
		return 2*c.longest() + c.skew()
	case p < 85:
		return (window / time.Duration(1+c.rng.IntN(100))).Truncate(time.Microsecond)
	}
	return time.Duration(c.rng.Int64N(int64(window))).Truncate(time.Microsecond)
}

// cost is how many permits a call asks for.
func (c *contest) cost(r *configuration, last ratelimit.Result) int {
	n := 1
	switch p := c.rng.IntN(100); {
	case p < 10:
		n = last.Remaining
	case p < 20:
		n = last.Remaining + 1
	case p < 25:
		n = r.most
	case p < 35:
		n = 1 + c.rng.IntN(r.most)
	case p < 50:
		n = 1 + c.rng.IntN(3)
	}
	return min(max(1, n), r.most)
}

// drawConfigurations draws two or three configurations of the families, which use the same key,
// and their clocks.
func drawConfigurations(t *testing.T, s *limitertest.Stage, rng *rand.Rand, families []limitertest.Family) *contest {
	t.Helper()
	skew := []time.Duration{10 * time.Microsecond, time.Millisecond, 30 * time.Millisecond, time.Second, 10 * time.Second, time.Hour}[rng.IntN(6)]
	share := []float64{0, 0.5, 1, 1}[rng.IntN(4)] // of configurations with a clock of their own
	beyond := rng.IntN(4) == 0
	maxSkew := 2 * skew // ahead, and late
	if beyond {
		maxSkew = skew / 4
	}
	var all []*configuration
	timeless, dated, servers := false, false, 0
	few := rng.IntN(2) == 0 // entries that have left the windows stay for longer
	for range 2 + rng.IntN(2) {
		r := &configuration{}
		var opts []ratelimit.Option
		if rng.Float64() < share {
			r.ahead = time.Duration(rng.Int64N(int64(skew))).Truncate(time.Microsecond)
			r.late = time.Duration(rng.Int64N(1 + int64(skew)*int64(rng.IntN(2)))).Truncate(time.Microsecond)
			opts = r.ownClock(maxSkew)
		}
		f := families[rng.IntN(len(families))]
		for range 20 {
			p, err := f.Draw(rng, s.Client, opts...)
			require.NoError(t, err)
			r.about, r.limiter, r.most, r.bound = f.Name+" "+p.About, p.Limiter, p.Model().Max(), p.Bound
			if len(all) == 0 {
				break
			}
			first := all[0].bound.Window
			if r.bound.Window <= 1000*first && first <= 1000*r.bound.Window { // else one never meets what the other does
				break
			}
		}
		if few && ratelimit.RemoveFew(t, r.limiter) {
			r.about += ", few are removed"
		}
		timeless = timeless || f.Timeless && !r.byCaller
		dated = dated || !f.Timeless || r.byCaller
		if !r.byCaller {
			servers++
		}
		all = append(all, r)
	}
	c := contestOf(t, s, rng, all...)
	c.beyond = c.skew() > maxSkew || c.skew() > 0 && servers > 0 // a limiter without WithClock allows for no skew
	if timeless {
		c.grain = time.Millisecond
		if dated { // a TTL is up to 3 ms longer than the window
			c.slack += 3 * time.Millisecond
		}
		for _, r := range all {
			if ms := r.bound.Window.Milliseconds(); ms > 99_999 && ms%10 != 0 { // a counter has five digits of it
				c.slack += 10 * time.Millisecond
			}
		}
		c.grain = max(c.grain, c.slack)
	}
	return c
}

// TestSeveralConfigurationsOnOneKey: guarantees 2, 4 and 8, for random configurations,
// clocks and calls.
func TestSeveralConfigurationsOnOneKey(t *testing.T) {
	together := map[string][]limitertest.Family{}
	for _, f := range limitertest.Families() {
		together[f.Name] = append(together[f.Name], f)
		switch f.Name {
		case "FixedWindow", "FixedWindow large", "FixedWindow aligned":
			together["FixedWindow of all"] = append(together["FixedWindow of all"], f)
		case "TokenBucket", "TokenBucket stepped":
			together["TokenBucket of both"] = append(together["TokenBucket of both"], f)
		}
	}
	for server, stage := range map[string]struct {
		open         func(t testing.TB) *limitertest.Stage
		rounds, full int
	}{
		"miniredis": {limitertest.OnMiniredis, 8, 30},
		"Redis":     {limitertest.OnHeldRedis, 4, 15},
	} {
		t.Run(server, func(t *testing.T) {
			s := stage.open(t)
			for name, families := range together {
				t.Run(name, func(t *testing.T) {
					rng := model.Seeded(limitertest.Seed(t))
					for range limitertest.Rounds(stage.full, stage.rounds) {
						drawConfigurations(t, s, rng, families).play(t, 60)
					}
				})
			}
		})
	}
}

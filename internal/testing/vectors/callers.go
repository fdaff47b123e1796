package vectors

import (
	"fmt"
	"time"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/model"
)

// skew is how far callers' clocks may be apart, in milliseconds. Every TTL is longer by it.
const skew = 1000

const byCallers = "by the clocks of callers, which may be apart"

// callersClocks are limiters by their callers' clocks.
func callersClocks() []Group {
	return []Group{bucketByCallers(), logByCallers(), windowByCallers(), heldByCallers(), sortedByCallers(), pauseByCallers()}
}

// byClocks makes limiters by the server's clock and by their callers'.
func (g *Group) byClocks(build func(ratelimit.Client, ...ratelimit.Option) (ratelimit.Limiter, error)) {
	g.Build = func(c ratelimit.Client) (ratelimit.Limiter, error) { return build(c) }
	g.ByClock = func(c ratelimit.Client, now func() time.Time) (ratelimit.Limiter, error) {
		return build(c, ratelimit.WithClock(now))
	}
}

func bucketByCallers() Group {
	const burst = 3
	g := Group{
		Algorithm: "tokenbucket", About: byCallers, Script: "bucket", Key: "ratelimit:default:tokenbucket{k}",
		Rule: map[string]int64{"count": 1, "period": 1_000_000, "burst": burst}, Args: append(texts(3_000_000, 1_000_000, 1), "/1000000/1"),
	}
	g.byClocks(func(c ratelimit.Client, options ...ratelimit.Option) (ratelimit.Limiter, error) {
		return ratelimit.NewTokenBucket(c, ratelimit.PerSecond(1), burst, options...)
	})
	m := model.NewTokenBucket(1, time.Second, burst)
	m.CallersClock = true
	b := &bucket{m: m, permit: 1_000_000, flow: 1, caller: true}
	h := newHistory(b, 0)
	h.spare = skew
	byRule := "/1000000/1@"
	h.tell([]step{
		{0, "2x1", "The state says that a caller's clock wrote it, and the TTL is longer by the skew"},
		{-400 * time.Millisecond, "1x1", "Another caller's clock is 400 ms behind: the call is decided at the state's instant, and its times are longer by the lag"},
		{-200 * time.Millisecond, "1x1", "Denied: the wait is a second from the state's instant, and the lag of 600 ms"},
	})
	// The server's clock reads a state of a caller's as that of another rule, of the same rate.
	h.spare, b.server = 0, true
	h.tell([]step{
		{time.Second, "1x1", "A limiter by the server's clock reads the state as another rule's: the words of a denial are the two times"},
		{time.Second, "1x1", "It takes a permit, and the state stays one of callers' clocks, for those that are behind"},
	})
	g.Cases = argsOfCallers(h.cases, append(texts(3_000_000, 1_000_000, 1), byRule))
	return g
}

// argsOfCallers gives cases by a caller's clock arguments of their own, whose rule is marked.
func argsOfCallers(cases []Case, args []string) []Case {
	for i := range cases {
		if cases[i].Spare > 0 {
			cases[i].Args = args
		}
	}
	return cases
}

func logByCallers() Group {
	const limit, window, parts, slot = 3, time.Minute, 10, 6_000_000
	g := Group{
		Algorithm: "slidingwindow-list", About: byCallers, Script: "slidingwindow_list", Key: "ratelimit:default:slidingwindow-list{k}",
		Rule: map[string]int64{"limit": limit, "window": window.Microseconds(), "sub_windows": parts},
		Args: append([]string{"60000000/6000000"}, texts(slot, limit, window.Microseconds())...),
	}
	g.byClocks(func(c ratelimit.Client, options ...ratelimit.Option) (ratelimit.Limiter, error) {
		return ratelimit.NewSlidingWindow(c, limit, window, append(options, ratelimit.WithSubWindows(parts))...)
	})
	rules := []model.Rule{{Limit: limit, Window: window}}
	m := model.NewSlidingLog(rules, slot*time.Microsecond)
	m.CallersClock = true
	l := &log{m: m, rules: rules, slot: slot, spare: skew}
	h := newHistory(l, 0)
	h.spare = skew
	h.tell([]step{
		{7 * time.Second, "1x1", "The rule says that a caller's clock dated the last entry, and the TTL is longer by the skew"},
		{-2 * time.Second, "1x1", "Another caller's clock is in the sub-window before: the call is decided at the beginning of the last entry's"},
		{0, fmt.Sprintf("2g%d/0", int64(start)+11_999_999), "All comes back. The entry stays, marked with !, so that no clock that is behind finds its sub-window unused"},
		{time.Second, "1x1", "A take in the same sub-window: the entry has a permit, and no mark"},
	})
	l.m.CallersClock, l.spare, h.spare = false, 0, 0
	h.tell([]step{{time.Minute, "1x1", "A limiter by the server's clock dates a new entry, so the mark of callers' clocks goes"}})
	g.Cases = argsOfCallers(h.cases, append([]string{"60000000/6000000@"}, texts(slot, limit, window.Microseconds())...))
	return g
}

func windowByCallers() Group {
	const limit, length = 3, 10 * time.Second
	g := Group{
		Algorithm: "fixedwindow", About: byCallers, Script: "datedwindow", Key: "ratelimit:default:fixedwindow{k}",
		Rule: map[string]int64{"limit": limit, "window": length.Microseconds()}, Args: append(texts(limit, length.Microseconds()), "first"),
	}
	g.byClocks(func(c ratelimit.Client, options ...ratelimit.Option) (ratelimit.Limiter, error) {
		return ratelimit.NewFixedWindow(c, limit, length, options...)
	})
	m := model.NewClockWindow(limit, length)
	m.CallersClock = true
	h := newHistory(dated(m, limit), 0)
	h.spare = skew
	g.Cases = h.tell([]step{
		{0, "2x1", "The state has the start of the window, and says by how much the TTL is longer"},
		{-500 * time.Millisecond, "2x1", "Another caller's clock is half a second behind: its calls are in the same window, which ends later for it"},
		{time.Second, fmt.Sprintf("2g%d/0", int64(start)), "All comes back. The window stays for as long as the clocks may be apart"},
	})
	return g
}

func heldByCallers() Group {
	const limit, lease = 2, 2_000_000
	g := Group{
		Algorithm: "inflight", About: byCallers, Script: "inflight", Key: "ratelimit:default:inflight{k}",
		Rule: map[string]int64{"limit": limit, "lease": lease}, Args: argsOfHolds(limit, lease),
	}
	call := model.Call{Limit: limit, Lease: lease, Spare: skew * 1000, ByCaller: true}
	g.Cases = narrateHolds(call, append(texts(limit, lease), fmt.Sprintf("/%d@%d", lease, skew)), []heldStep{
		{step{0, "1hA", "The score is the end of the lease and the skew, which the member's name says"}, "A", 1},
		{step{-500 * time.Millisecond, "2hB", "Denied: by this clock, which is behind, the lease may last longer by the skew and the lag"}, "B", 2},
		{step{700 * time.Millisecond, "1kA", "The lease begins again. Its end is never moved back"}, "A", 1},
		{step{500 * time.Millisecond, "1rA", "A release deletes the member, and the key with its last one"}, "A", 1},
	})
	return g
}

func sortedByCallers() Group {
	const limit = 3
	g := inSortedSet(limit)
	g.About = byCallers
	of := newSorted(limit)
	of.spare, of.m.CallersClock = skew, true
	h := newHistory(of, 0)
	h.spare = skew
	at := int64(start)
	h.tell([]step{
		{0, "2e1", "The members' names say that a caller's clock dated them, and the TTL is longer by the skew"},
		{-400 * time.Millisecond, "1e1", "Another caller's clock is 400 ms behind: its permit is dated as the last one"},
		{-100 * time.Millisecond, "1x1", "Denied: the wait is until the first members have left the window, and the lag of half a second"},
		{time.Second, fmt.Sprintf("1g%d/1000000003", at), "The last permit comes back. Its member stays, marked with !, so that no clock that is behind finds its instant unused"},
		{0, "1x1", "A take: the marked member goes, and the numbers go on"},
		{time.Second, "2c1", "A charge"},
		{time.Second, fmt.Sprintf("2g%d/1000000005", at+1_500_000), "All of it comes back. Of its members the last one stays, and the TTL too"},
		{0, fmt.Sprintf("1g%d/1000000004", at+500_000), "The permit before it comes back: what is left in front of the marked member still counts"},
		{0, fmt.Sprintf("2g%d/1000000001", at), "Nothing is used any more: the marked member stays for as long as the clocks may be apart"},
	})
	of.spare, of.m.CallersClock, h.spare = 0, false, 0
	h.tell([]step{
		{-1500 * time.Millisecond, "1x1", "A limiter by the server's clock, which is behind: the permit is dated as the last one, and by a caller's clock"},
		{600 * time.Millisecond, "1x1", "It is ahead now: the permit is dated by it. The TTL is long enough, as callers' clocks made it longer"},
	})
	g.Cases = h.cases
	return g
}

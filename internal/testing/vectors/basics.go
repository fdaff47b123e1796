package vectors

import (
	"fmt"
	"time"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/model"
)

// basics are the usual operations on a token bucket, a sliding window in a list, and permits in flight.
func basics() []Group { return []Group{bucketBasics(), alignedBasics(), logBasics(), heldBasics()} }

func alignedBasics() Group {
	const burst, every = 5, time.Second
	g := Group{
		Algorithm: "tokenbucket", About: "aligned steps", Script: "steppedbucket", Key: "ratelimit:default:tokenbucket{k}",
		Rule: map[string]int64{"count": 2, "period": 1_000_000, "burst": burst, "every": every.Microseconds(), "offset": 0},
		Args: append(texts(burst, 500_000, 1, every.Microseconds(), 0), "/500000/1/1000000"),
		Build: func(c ratelimit.Client) (ratelimit.Limiter, error) {
			return ratelimit.NewTokenBucket(c, ratelimit.PerSecond(2), burst, ratelimit.WithRefillEvery(every), ratelimit.WithAlignment(0))
		},
	}
	b := &bucket{m: model.NewSteppedBucket(2, time.Second, burst, every).Align(0), permit: 500_000, flow: 1, every: every.Microseconds(), aligned: true}
	const at = 400 * time.Millisecond // after a step, as start is one
	g.Cases = newHistory(b, 0).tell([]step{
		{at, "5x1", "The instant is now, and not that of the last step"},
		{every - at - time.Microsecond, "1x1", "Denied until the next full second"},
		{time.Microsecond, "1e1", "Two permits came at the step. The ticket is the instant of the step, and 0"},
		{100 * time.Millisecond, fmt.Sprintf("1g%d/0", int64(start)+every.Microseconds()), "It comes back: the state keeps its instant"},
		{-time.Second, "3x1", "The server's clock stepped back over a step: its two permits are missing until it comes again"},
		{-5 * time.Second, "3x1", "And over more: the state is dated at the next step"},
	})
	return g
}

func bucketBasics() Group {
	const burst = 3
	g := Group{
		Algorithm: "tokenbucket", About: "the usual operations", Script: "bucket", Key: "ratelimit:default:tokenbucket{k}",
		Rule: map[string]int64{"count": 1, "period": 1_000_000, "burst": burst}, Args: append(texts(3_000_000, 1_000_000, 1), "/1000000/1"),
		Build: func(c ratelimit.Client) (ratelimit.Limiter, error) {
			return ratelimit.NewTokenBucket(c, ratelimit.PerSecond(1), burst)
		},
	}
	g.Cases = newHistory(&bucket{m: model.NewTokenBucket(1, time.Second, burst), permit: 1_000_000, flow: 1}, 0).tell([]step{
		{0, "look", "An absent key is a full bucket. A look writes nothing"},
		{0, "2x1", "Two permits of a million units each are missing now. A microsecond restores one unit, so the bucket is full in two seconds"},
		{500 * time.Millisecond, "2x1", "Half a permit is restored, and 1.5 are missing: two do not fit for half a second. A denial writes nothing"},
		{0, "1e1", "An estimate of one permit: its ticket is the instant, and 0"},
		{250 * time.Millisecond, "1g" + fmt.Sprint(int64(start)+500_000) + "/0", "It comes back: the state keeps its instant, and has one permit less missing"},
		{0, "4c1", "A charge is a debt: more is missing than the burst"},
		{0, "1x1", "So nobody gets a permit until it is repaid"},
		{0, "9g/0", "A credit gives back what is missing at most"},
		{0, "1x2", "Two requests for one permit each"},
		{-time.Second, "2x1", "The server's clock stepped back: the instant is now, though the call is denied"},
	})
	return g
}

func logBasics() Group {
	const limit, window, parts, slot = 3, time.Minute, 10, 6_000_000
	g := Group{
		Algorithm: "slidingwindow-list", About: "the usual operations", Script: "slidingwindow_list", Key: "ratelimit:default:slidingwindow-list{k}",
		Rule: map[string]int64{"limit": limit, "window": window.Microseconds(), "sub_windows": parts},
		Args: append([]string{"60000000/6000000"}, texts(slot, limit, window.Microseconds())...),
		Build: func(c ratelimit.Client) (ratelimit.Limiter, error) {
			return ratelimit.NewSlidingWindow(c, limit, window, ratelimit.WithSubWindows(parts))
		},
	}
	rules := []model.Rule{{Limit: limit, Window: window}}
	g.Cases = newHistory(&log{m: model.NewSlidingLog(rules, slot*time.Microsecond), rules: rules, slot: slot}, 0).tell([]step{
		{time.Second, "1x1", "The permit is dated at the last microsecond of its sub-window. Entry 0 has the rule, and the total before it"},
		{6 * time.Second, "2e1", "The next sub-window: another entry. The ticket is its instant, and 0"},
		{time.Second, "1x1", "Denied until the first entry has left the window"},
		{time.Second, fmt.Sprintf("1g%d/0", int64(start)+11_999_999), "One permit of the ticket comes back: the total of its entry is less"},
		{-7 * time.Second, "2x1", "The server's clock stepped back into the sub-window before: the later entry moves into it, though the call is denied. An era begins, and the rule says so: instants before its number, that of the last entry and 1, are used again"},
		{6 * time.Second, "1e1", "So the ticket of such an instant has the era"},
		{0, fmt.Sprintf("1g%d/0", int64(start)+11_999_999), "A ticket from before the step gives nothing back: what is at its instant is somebody else's"},
		{0, fmt.Sprintf("1g%d/%d", int64(start)+11_999_999, int64(start)+12_000_000), "One of this era does. The TTL stays"},
		{68 * time.Second, "1x1", "All have left the window, and the key is gone"},
	})
	return g
}

func heldBasics() Group {
	const limit, lease = 3, 2_000_000
	g := Group{
		Algorithm: "inflight", About: "the usual operations", Script: "inflight", Key: "ratelimit:default:inflight{k}",
		Rule: map[string]int64{"limit": limit, "lease": lease}, Args: argsOfHolds(limit, lease),
	}
	g.Cases = narrateHolds(model.Call{Limit: limit, Lease: lease}, nil, []heldStep{
		{step{0, "2hA", "Two permits are held: two members, scored by the end of the lease"}, "A", 2},
		{step{500 * time.Millisecond, "2hB", "Denied until the lease ends, at the latest"}, "B", 2},
		{step{0, "1hjob", "An id of the caller's own begins with a small letter"}, "job", 1},
		{step{500 * time.Millisecond, "1hjob", "It is there: the lease begins again, nothing more is held, and the word behind says 1"}, "job", 1},
		{step{0, "2hjob", "It is there with another number of permits: nothing is taken, and the word says -1"}, "job", 2},
		{step{500 * time.Millisecond, "2kA", "The lease of the first hold begins again"}, "A", 2},
		{step{0, "2rA", "It is released: its members go"}, "A", 2},
		{step{0, "look", "One permit is held, until its lease ends"}, "", 1},
	})
	return g
}

package vectors

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tryacquire/ratelimit/internal/testing/model"
)

// Histories are random ones of groups whose cases in the file are all chosen.
func Histories(rng *rand.Rand, count int) []Group {
	all := []Group{ofTwoRates(rng, count), ofCallers(rng, count), ofPauses(rng, count), ofTwoZones(rng, count)}
	for _, ofLimiter := range ticketGroups {
		all = append(all, ofTickets(rng, count, ofLimiter))
	}
	for i := range all {
		all[i].About = "a random history"
	}
	return all
}

// wander makes so many cases, of which each is chosen when the one before it is known.
func wander(of keeper, count int, next func(before Case) step) (cases []Case) {
	var now time.Duration
	var last Case
	for range count {
		s := next(last)
		now += s.after
		s.after = now
		last = narrate(of, []step{s})[0]
		cases = append(cases, last)
	}
	return cases
}

func one[T any](rng *rand.Rand, of ...T) T { return of[rng.IntN(len(of))] }

// upTo is a time up to one of these, often none.
func upTo(rng *rand.Rand, most ...time.Duration) time.Duration {
	return time.Duration(rng.Int64N(one(rng, append(most, time.Microsecond)...).Microseconds())) * time.Microsecond
}

func ofTwoRates(rng *rand.Rand, count int) Group {
	g := reserving()
	of := &ratedBucket{rules: map[string]rate{"": {2, 1_000_000}, "faster": {5, 300_000}, "odd": {4, 700_001}}, held: map[string]level{}}
	g.Cases = wander(of, count, func(Case) step {
		by := one(rng, "", "faster", "odd")
		n := 1 + rng.Int64N(of.rules[by].burst)
		kind := one(rng, "x1", "s0", "s500000", "s5000000")
		if by != "" {
			by = " " + by
		}
		return step{upTo(rng, 300*time.Millisecond, 3*time.Second), fmt.Sprint(n, kind, by), ""}
	})
	return g
}

// ofCallers are permits in a sorted set by clocks that are up to 0.9 s behind.
func ofCallers(rng *rand.Rand, count int) Group {
	const limit = 5
	g := inSortedSet(limit)
	of := newSorted(limit)
	of.spare, of.m.CallersClock = skew, true
	h := newHistory(of, 0)
	h.spare = skew
	for latest := int64(start); len(h.cases) < count; {
		latest += upTo(rng, 3*time.Second, 20*time.Second).Microseconds()
		now, n := latest-upTo(rng, 900*time.Millisecond).Microseconds(), 1+rng.IntN(3)
		h.expire(now)
		switch kind := one(rng, "look", "x1", "c1", "e1", "g"); {
		case kind == "look":
			h.do(now, kind, "")
		case kind == "g" && len(h.tickets) > 0:
			t := h.tickets[0]
			h.tickets = h.tickets[1:]
			h.do(now, fmt.Sprintf("%dg%d/%d", 1+rng.IntN(t.n), t.place, t.which), "")
		case kind != "g" && (kind != "e1" || of.m.Take(now, n, true).Allowed):
			h.do(now, fmt.Sprint(n, kind), "")
		}
	}
	g.Cases = h.cases
	return g
}

func ofPauses(rng *rand.Rand, count int) Group {
	g := probing()
	var latest, before time.Duration
	g.Cases = wander(&paused{m: model.NewPause(probe.Microseconds()), spare: skew}, count, func(Case) step {
		latest += upTo(rng, time.Second, 3*time.Second)
		now := latest - upTo(rng, 900*time.Millisecond)
		after := now - before
		before = now
		return step{after, one(rng, "look", "1x1", "1x3", "1p1000000", "1p4000000", "1f", "1t500000/600000000:1000000:5000000"), ""} // no strike is forgotten
	})
	return g
}

// ofTwoZones is a calendar of days with slices, in two time zones.
func ofTwoZones(rng *rand.Rand, count int) Group {
	const limit = 40
	g := ofDays(limit)
	of := &slicedDays{limit: limit}
	// Not beyond the arguments, which are those of the first day.
	g.Cases = wander(of, min(count, 40), func(Case) step {
		after := upTo(rng, 3*time.Second, 25*time.Minute)
		switch kind := one(rng, "x", "east", "d", "g"); {
		case kind == "d":
			return step{after, fmt.Sprintf("%dd%d/1000000/%d/77", 1+rng.IntN(20), rng.IntN(3), one(rng, int64(1_000_000), 4_000_000_000, day)), ""}
		case kind == "g" && of.used > 3:
			return step{after, fmt.Sprintf("2g%d/0", int64(midnight)), ""}
		case kind == "east":
			return step{after, fmt.Sprintf("%dx1 east", 1+rng.IntN(10)), ""}
		}
		return step{after, fmt.Sprintf("%dx1", 1+rng.IntN(5)), ""}
	})
	return g
}

func ofTickets(rng *rand.Rand, count int, ofLimiter func() (Group, *ticketed, []step)) Group {
	g, of, _ := ofLimiter()
	name, most := "ratelimit:default:"+g.Algorithm, of.model().Max()
	g.Key, g.Beside = name+"{k}", name+"/tickets{k}"
	made := 0
	g.Cases = wander(of, count, func(before Case) step {
		var out map[string]int64
		if before.Beside != nil {
			out, _ = before.Beside.After.(map[string]int64)
		}
		after, n := upTo(rng, 3*time.Second, 20*time.Second), 1+rng.IntN(most)
		kind := one(rng, "look", "x", "a", "a", "w", "m", "u")
		switch {
		case kind == "look":
			return step{after, kind, ""}
		case kind == "x":
			return step{after, fmt.Sprintf("%dx1", n), ""}
		case kind == "a" || len(out) == 0:
			made++
			return step{after, fmt.Sprintf("%da%c/%d/J%d", n, of.how, upTo(rng, 20*time.Second).Microseconds()+500_000, made), ""}
		case kind == "w":
			n = 1
		case kind == "u":
			n-- // perhaps nothing
		}
		return step{after, fmt.Sprintf("%d%s%c/%s", n, kind, of.how, one(rng, slices.Sorted(maps.Keys(out))...)), ""}
	})
	return g
}

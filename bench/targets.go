package main

import (
	"fmt"
	"math"
	"runtime"
)

// findings are all that a run has measured.
type findings struct {
	results
	singleCalls
	costs
	*distance
}

// targetTable has what was to be reached and what was measured.
func targetTable(f findings) table {
	t := table{
		title: "Targets",
		note: "Ratios of medians of this run. Allocations are rounded to a tenth: allocations that the runtime itself makes during " +
			"the measurement are counted too, a few in a thousand calls.",
		header: []string{"", "target", "measured", ""},
	}
	atMost := func(what string, got, bound float64, unit string) {
		t.add(what, "≤ "+bare(bound)+unit, bare(got)+unit, outcome(got, got <= bound))
	}
	atLeast := func(what string, got, bound float64, unit string) {
		t.add(what, "≥ "+bare(bound)+unit, bare(got)+unit, outcome(got, got >= bound))
	}

	lone := cell{1, manyKeys, allowed}
	atMost("1. allocations of a plain call", tenth(f.results.median(plain, lone)[allocs]), 5, "")
	atMost("1. bytes of a plain call", f.results.median(plain, lone)[allocBytes], 250, "")

	ratio := func(a string, v verdict, b string) float64 { return f.micros(a, v) / f.micros(b, v) }
	const (
		bucketRow, windowRow = "token bucket", "fixed window"
		ofRedisRate          = " × " + reference
	)
	atMost("2. server: token bucket allowed", ratio(bucketRow, allowed, reference), 0.9, ofRedisRate)
	atMost("2. server: token bucket denied", ratio(bucketRow, denied, reference), 0.8, ofRedisRate)
	atMost("2. server: 64 calls for a key merged, allowed", ratio(mergedHot, allowed, reference), 0.1, ofRedisRate)
	atMost("2. server: 64 calls for a key merged, denied", ratio(mergedHot, denied, reference), 0.1, ofRedisRate)
	atMost("2. server: fixed window allowed", ratio(windowRow, allowed, "ulule/limiter"), 0.8, " × ulule")
	atMost("2. server: fixed window denied", ratio(windowRow, denied, "ulule/limiter"), 0.8, " × ulule")
	for _, v := range []verdict{allowed, denied} {
		atMost(fmt.Sprintf("2. server: %s, %s", mergedWindows, v), ratio(mergedWindows, v, "ulule/limiter"), 0.8, " × ulule")
	}
	for _, g := range growthTargets {
		for _, v := range []verdict{allowed, denied} {
			atMost(fmt.Sprintf("2. server: %s, %s", g.large, v), ratio(g.large, v, g.small), g.bound, " × "+g.than)
		}
	}
	// Those of filled keys are asked with a clock that stands still, and so have
	// their TTL lengthened now and then: some in ten thousand.
	atMost("2. writes of any denial of this library", math.Round(100*f.deniedWrites())/100, 0, "")

	atMost("3. one caller, context never ends", f.singleCalls.ratio(merged, reference), 1, ofRedisRate)
	atMost("3. one caller, context never ends", f.singleCalls.ratio(merged, returnOne), 1.15, " × "+returnOne)

	hot, spread := cell{manyCalls, hotKey, allowed}, cell{manyCalls, manyKeys, allowed}
	atLeast("4. 256 callers, one hot key", f.results.ratio(perSecond, hot, merged, reference), 20, ofRedisRate)
	atLeast("4. 256 callers, 10,000 keys", f.results.ratio(perSecond, spread, merged, reference), 2.5, ofRedisRate)
	atMost("4. allocations of a merged call, one hot key", tenth(f.results.median(merged, hot)[allocs]), 2, "")
	atMost("4. allocations of a merged call, 10,000 keys", tenth(f.results.median(merged, spread)[allocs]), 2, "")
	atMost("4. one caller, merged, context never ends", f.singleCalls.ratio(merged, plain), 1.05, " × plain")
	for _, c := range distantCells {
		which := "one hot key"
		if c.keys > 1 {
			which = thousands(c.keys) + " keys"
		}
		atMost(fmt.Sprintf("4. p99, %v each way at half load, %s", eachWay, which), f.p99Ratio(c), 1.3, " × plain")
	}

	const cached = "token bucket, deny cache"
	hit := cell{manyCalls, hotKey, denied}
	atMost("5. a denial from memory, on each of all cores",
		1e9/f.results.median(cached, hit)[perSecond]*float64(runtime.GOMAXPROCS(0)), 150, " ns")
	atMost("5. allocations of a denial from memory", tenth(f.results.median(cached, hit)[allocs]), 0, "")
	for _, keys := range []int{hotKey, manyKeys} {
		c := cell{1, keys, denied}
		atLeast("5. denials from memory, "+c.String(), f.results.ratio(perSecond, c, cached, reference), 300, ofRedisRate)
	}
	return t
}

func tenth(v float64) float64 { return math.Round(10*v) / 10 }

// growthTargets compare filled keys, by the names that steadyReplays has.
var growthTargets = []struct {
	large, small string
	bound        float64
	than         string
}{
	{"sliding window, Hash, 1,000 sub-windows", "sliding window, Hash, 10 sub-windows", 2, "10"},
	{"sliding window, List, 1,000 sub-windows", "sliding window, List, 10 sub-windows", 2, "10"},
	{"sliding log, 100,000 entries", "sliding log, 100 entries", 3, "100"},
}

// deniedWrites is the most that a denial of any limiter of ours has changed.
func (f findings) deniedWrites() float64 {
	most := math.NaN()
	for id := range f.costs {
		if id.verdict == denied && !isPeer(id.name) {
			if w := f.writes(id.name, denied); math.IsNaN(most) || w > most {
				most = w
			}
		}
	}
	return most
}

func isPeer(name string) bool {
	for _, c := range peers() {
		if c.name == name {
			return true
		}
	}
	return false
}

// bare is the number without trailing zeros.
func bare(v float64) string {
	if v == math.Trunc(v) && math.Abs(v) < 1000 {
		return fmt.Sprintf("%.0f", v)
	}
	return number(v)
}

func outcome(got float64, reached bool) string {
	switch {
	case math.IsNaN(got) || math.IsInf(got, 0):
		return unknown
	case reached:
		return "reached"
	}
	return "missed"
}

package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/tryacquire/ratelimit/internal/chart"
)

// growCallers lets more and more callers call at once.
func growCallers(ctx context.Context, b *testbed, o options) ([]chart.Plot, error) {
	var chosen []contestant
	for _, c := range contestants() {
		if slices.Contains([]string{merged, plain, reference, "rueidis by hand"}, c.name) {
			chosen = append(chosen, c)
		}
	}
	keys := users(manyKeys)
	entrants, err := enter(ctx, b, chosen, o, keys)
	if err != nil {
		return nil, err
	}
	r := results{}
	counts := []int{1, 4, 16, 64, 256, 1024}
	for round := range o.rounds {
		for _, callers := range counts {
			for _, kinds := range []int{hotKey, manyKeys} {
				c := cell{callers, kinds, allowed}
				progress("growth with callers, round %d of %d: %s", round+1, o.rounds, c)
				for _, e := range entrants {
					if e.verdict != allowed {
						continue
					}
					l := load{contestant: e.contestant, decide: e.decide, verdict: allowed, callers: callers, keys: keys[:kinds]}
					s, err := l.measure(ctx, b, o.duration)
					if err != nil {
						return nil, err
					}
					r.add(e.name, c, s)
				}
			}
		}
	}
	var plots []chart.Plot
	for _, kinds := range []int{hotKey, manyKeys} {
		var rate, tail, cost seriesSet
		for _, callers := range counts {
			for _, entry := range chosen {
				c := cell{callers, kinds, allowed}
				if !r.has(entry.name, c) {
					continue
				}
				s := r.median(entry.name, c)
				rate.point(entry.name, float64(callers), s[perSecond])
				tail.point(entry.name, float64(callers), s[p99]/1e3)
				cost.point(entry.name, float64(callers), s[serverTime])
			}
		}
		which := "one hot key"
		if kinds > 1 {
			which = fmt.Sprintf("%s keys", thousands(kinds))
		}
		plots = append(plots,
			chart.Plot{Title: "Throughput by callers, " + which, X: "callers", Y: "decisions per second", Series: rate.series},
			chart.Plot{Title: "Latency by callers, " + which, X: "callers", Y: "99th percentile, µs", Series: tail.series},
			chart.Plot{Title: "Server time by callers, " + which, X: "callers", Y: decisionMicros, Series: cost.series})
	}
	return plots, nil
}

package main

import (
	"context"
	"fmt"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/bench/internal/stats"
	"github.com/tryacquire/ratelimit/internal/chart"
)

const (
	decisionMicros = "µs per decision"
	bytesOfKey     = "bytes per key"
)

// growSubWindows fills sliding windows of more and more sub-windows.
func growSubWindows(ctx context.Context, b *testbed, o options) ([]chart.Plot, error) {
	var all []grown
	for _, buckets := range []int{10, 40, 100, 400, 1000, 4000, 10_000} {
		for _, storage := range []ratelimit.Storage{ratelimit.StorageHash, ratelimit.StorageList} {
			all = append(all, grown{fmt.Sprint(storage), buckets, slidingWindowOf(storage, buckets)})
		}
	}
	return growSteady(ctx, b, o, "sub-windows", all)
}

// growEntries fills logs of more and more entries.
func growEntries(ctx context.Context, b *testbed, o options) ([]chart.Plot, error) {
	var all []grown
	for _, entries := range []int{100, 300, 1000, 3000, 10_000, 30_000, 100_000} {
		all = append(all, grown{"sliding log", entries, slidingLogOf(entries, 1)})
		if entries <= mostZSet {
			all = append(all, grown{"sliding window, ZSet", entries, zsetWindowOf(entries)})
		}
	}
	return growSteady(ctx, b, o, "entries", all)
}

// growRules puts more and more rules over a log.
func growRules(ctx context.Context, b *testbed, o options) ([]chart.Plot, error) {
	var all []grown
	for rules := 1; rules <= 8; rules++ {
		for _, entries := range []int{1 << 10, 1 << 14} {
			all = append(all, grown{fmt.Sprintf("sliding log, %s entries", thousands(entries)), rules, slidingLogOf(entries, rules)})
		}
	}
	return growSteady(ctx, b, o, "rules", all)
}

// A grown is one point of a curve: a steady limiter of some size.
type grown struct {
	series string
	size   int
	steady steady
}

// growSteady measures filled keys, allowed and denied, in interleaved rounds.
func growSteady(ctx context.Context, b *testbed, o options, axis string, all []grown) ([]chart.Plot, error) {
	var cost, memory seriesSet
	loads := make([]*steadyLoad, len(all))
	for i, g := range all {
		var err error
		if loads[i], err = g.steady.filled(ctx, b, steadyKeys, fmt.Sprintf("g%s%02d", axis[:1], i)); err != nil {
			return nil, err
		}
		bytes, err := loads[i].bytesPerKey(ctx, b.admin)
		if err != nil {
			return nil, err
		}
		memory.point(g.series, float64(g.size), bytes)
	}
	for _, v := range []verdict{allowed, denied} {
		bills := make([][]float64, len(all))
		for round := range o.rounds {
			progress("growth with %s, %s, round %d of %d", axis, v, round+1, o.rounds)
			for i, t := range loads {
				paid, err := t.replay(v).measure(ctx, b.admin, o.duration)
				if err != nil {
					return nil, err
				}
				bills[i] = append(bills[i], paid.micros)
			}
		}
		for i, g := range all {
			cost.point(fmt.Sprintf("%s, %s", g.series, v), float64(g.size), stats.Median(bills[i]))
		}
	}
	plots := []chart.Plot{{Title: "Server time by " + axis, X: axis, Y: decisionMicros, Series: cost.series}}
	if axis != "rules" {
		plots = append(plots, chart.Plot{Title: "Memory by " + axis, X: axis, Y: bytesOfKey, Series: memory.series})
	}
	return plots, nil
}

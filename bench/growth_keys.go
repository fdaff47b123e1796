package main

import (
	"context"
	"fmt"

	"github.com/tryacquire/ratelimit/bench/internal/stats"
	"github.com/tryacquire/ratelimit/internal/chart"
)

// growKeys asks for more and more keys.
func growKeys(ctx context.Context, b *testbed, o options) ([]chart.Plot, error) {
	var cost, memory seriesSet
	for _, c := range contestants() {
		switch c.script {
		case "fixed window", "token bucket", "sliding window, Hash", reference:
		default:
			continue
		}
		progress("growth with keys: %s", c.script)
		if err := costOfKeys(ctx, b, c, o, &cost, &memory); err != nil {
			return nil, err
		}
	}
	return []chart.Plot{
		{Title: "Server time by keys", X: "keys", Y: decisionMicros, Series: cost.series},
		{Title: "Memory by keys", X: "keys", Y: "bytes of the whole server per key", Series: memory.series},
	}, nil
}

// costOfKeys fills an empty server. The memory is that of the whole server, with
// its tables.
func costOfKeys(ctx context.Context, b *testbed, c contestant, o options, cost, memory *seriesSet) error {
	if err := b.admin.FlushAll(ctx).Err(); err != nil {
		return err
	}
	empty, err := takeTally(ctx, b.admin)
	if err != nil {
		return err
	}
	decide, err := c.open(b, allowed, "k:")
	if err != nil {
		return err
	}
	rec, err := record(ctx, b, decide)
	if err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	filled := 0
	for _, keys := range []int{10_000, 30_000, 100_000, 300_000, 1_000_000} {
		r := replay{c.name, allowed, func() []any {
			filled++
			return rec.command(filled-1, keys)
		}, 1}
		if err := r.send(ctx, b.admin, keys-filled); err != nil {
			return err
		}
		full, err := takeTally(ctx, b.admin)
		if err != nil {
			return err
		}
		memory.point(c.script, float64(keys), float64(full.since(empty).memory)/float64(keys))
		r.next = rec.random(keys)
		var bills []float64
		for range o.rounds {
			paid, err := r.measure(ctx, b.admin, o.duration)
			if err != nil {
				return err
			}
			bills = append(bills, paid.micros)
		}
		cost.point(c.script, float64(keys), stats.Median(bills))
	}
	return nil
}

package main

import (
	"context"
	"fmt"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/bench/internal/stats"
	"github.com/tryacquire/ratelimit/internal/chart"
)

const mostZSet = 10_000 // the highest limit that the storage ZSet accepts

// growLimit raises the limit. Half of it is used up in one call, and what is
// measured is the call that takes one more permit.
func growLimit(ctx context.Context, b *testbed, o options) ([]chart.Plot, error) {
	var cost, memory seriesSet
	for _, limit := range []int{10, 100, 1000, 10_000, 100_000} {
		for _, c := range []struct {
			name string
			make func(limit int, prefix ratelimit.Option) (ratelimit.Limiter, error)
		}{
			{"fixed window", func(limit int, prefix ratelimit.Option) (ratelimit.Limiter, error) {
				return ratelimit.NewFixedWindow(b.client, limit, plentyWindow, prefix)
			}},
			{"token bucket", func(limit int, prefix ratelimit.Option) (ratelimit.Limiter, error) {
				return ratelimit.NewTokenBucket(b.client, ratelimit.PerHour(1), limit, prefix)
			}},
			{"leaky bucket", func(limit int, prefix ratelimit.Option) (ratelimit.Limiter, error) {
				return ratelimit.NewLeakyBucket(b.client, ratelimit.PerHour(1), limit, prefix)
			}},
			{"sliding window, Hash", func(limit int, prefix ratelimit.Option) (ratelimit.Limiter, error) {
				return ratelimit.NewSlidingWindow(b.client, limit, plentyWindow, prefix, ratelimit.WithStorage(ratelimit.StorageHash))
			}},
			{"sliding window, ZSet", func(limit int, prefix ratelimit.Option) (ratelimit.Limiter, error) {
				return ratelimit.NewSlidingWindow(b.client, limit, plentyWindow, prefix, ratelimit.WithStorage(ratelimit.StorageZSet))
			}},
		} {
			if limit > mostZSet && c.name == "sliding window, ZSet" {
				continue
			}
			progress("growth with the limit: %s, %s", c.name, thousands(limit))
			var bills []float64
			for round := range o.rounds {
				l, err := c.make(limit, ratelimit.WithPrefix(fmt.Sprintf("l%d", round)))
				if err != nil {
					return nil, err
				}
				paid, bytes, err := costOfLimit(ctx, b, c.name, l, limit)
				if err != nil {
					return nil, err
				}
				bills = append(bills, paid)
				if round == 0 {
					memory.point(c.name, float64(limit), bytes)
				}
			}
			cost.point(c.name, float64(limit), stats.Median(bills))
		}
	}
	return []chart.Plot{
		{Title: "Server time by limit", X: "limit", Y: decisionMicros, Series: cost.series},
		{Title: "Memory by limit", X: "limit", Y: bytesOfKey + ", half used", Series: memory.series},
	}, nil
}

// costOfLimit replays allowed calls for one permit over keys of which half is used.
func costOfLimit(ctx context.Context, b *testbed, name string, l ratelimit.Limiter, limit int) (micros, bytes float64, err error) {
	const permits, most = 1_000_000, 5000 // of all keys; calls
	keys := max(min(permits/limit, 1000), 1)
	if err := b.admin.FlushAll(ctx).Err(); err != nil {
		return 0, 0, err
	}
	half := func(ctx context.Context, key string) (bool, error) {
		r, err := l.TryAcquireN(ctx, key, limit/2)
		return r.Allowed, err
	}
	if err := visit(ctx, half, users(keys)); err != nil {
		return 0, 0, err
	}
	if bytes, err = memoryOf(ctx, b.admin, "*:*"); err != nil {
		return 0, 0, err
	}
	decide, err := decider(l, nil)
	if err != nil {
		return 0, 0, err
	}
	rec, err := record(ctx, b, decide) // which takes two of the first key's
	if err != nil {
		return 0, 0, fmt.Errorf("%s: %w", name, err)
	}
	before, err := takeTally(ctx, b.admin)
	if err != nil {
		return 0, 0, err
	}
	calls := min(keys*(limit/2-2), most)
	r := replay{name, allowed, rec.inTurn(keys), 1}
	if err := r.send(ctx, b.admin, calls); err != nil {
		return 0, 0, err
	}
	after, err := takeTally(ctx, b.admin)
	if err != nil {
		return 0, 0, err
	}
	return after.since(before).scripts() / float64(calls), bytes / float64(keys), nil
}

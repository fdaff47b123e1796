package main

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	redis_rate "github.com/go-redis/redis_rate/v10"

	"github.com/tryacquire/ratelimit"
)

// waitingCallers wait for a bucket that allows waitedRate permits a second. Each calls again
// as soon as it is allowed, until waitFor has passed.
const (
	waitingCallers = 50
	waitedRate     = 50
	waitFor        = 4 * time.Second
)

// waiters counts the calls to Redis for each permit when many callers wait, and measures the
// longest time between two permits of one caller: with fair turns, every caller waits for all
// others.
func waiters(ctx context.Context, b *testbed, r *report, o options) error {
	t := table{
		title: "Waiting",
		note: "50 callers wait for a bucket of 50 a second, and each waits again as soon as it is allowed. By hand means that a caller sleeps until the " +
			"RetryAfter of the denial and asks again. With fair turns, each caller is allowed once a second. Aimed at: 1.05 calls per permit.",
		header: []string{"", "calls to Redis per permit", "longest wait"},
	}
	limit := redis_rate.Limit{Rate: waitedRate, Period: time.Second, Burst: 1}
	other := redis_rate.NewLimiter(b.client)
	ours, err := ratelimit.NewTokenBucket(b.client, ratelimit.PerSecond(waitedRate), 1)
	if err != nil {
		return err
	}
	for _, way := range []struct {
		name string
		wait func(ctx context.Context) error
	}{
		{"Wait", func(ctx context.Context) error {
			_, err := ratelimit.Wait(ctx, ours, "waiters")
			return err
		}},
		{"by hand on " + reference, func(ctx context.Context) error {
			for {
				r, err := other.Allow(ctx, "waiters", limit)
				if err != nil || r.Allowed > 0 {
					return err
				}
				time.Sleep(r.RetryAfter)
			}
		}},
	} {
		if !o.only.MatchString(way.name) {
			continue
		}
		progress("waiting: %s", way.name)
		before, err := takeTally(ctx, b.admin)
		if err != nil {
			return err
		}
		var permits atomic.Int64
		longest := make([]float64, waitingCallers)
		errs := make([]error, waitingCallers)
		var callers sync.WaitGroup
		end := time.Now().Add(waitFor)
		for i := range waitingCallers {
			callers.Go(func() {
				for last := time.Now(); last.Before(end) && errs[i] == nil; {
					if errs[i] = way.wait(ctx); errs[i] != nil {
						return
					}
					permits.Add(1)
					longest[i] = max(longest[i], float64(time.Since(last)))
					last = time.Now()
				}
			})
		}
		callers.Wait()
		for _, err := range errs {
			if err != nil {
				return err
			}
		}
		after, err := takeTally(ctx, b.admin)
		if err != nil {
			return err
		}
		calls := after.commands["evalsha"].calls - before.commands["evalsha"].calls
		t.add(way.name, number(float64(calls)/float64(permits.Load())), latency(slices.Max(longest)))
	}
	r.table(t)
	return nil
}

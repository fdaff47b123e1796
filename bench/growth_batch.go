package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/bench/internal/stats"
	"github.com/tryacquire/ratelimit/internal/chart"
)

// A burst is many callers that call at the same moment, so that their calls are merged.
// Redis serves nothing else during an execution.
type burst struct {
	axis, series string
	size         int // on the axis
	permits      int // call i asks for 1 + i mod permits, so that each is a run of its own
	keys         int
	open         openBurst
}

const burstCallers = 1024

// Curves of bursts.
const (
	byRules, byEntries, byPermits, byKeys = "rules", "entries", "permits", "keys"
)

func bursts(ctx context.Context) []burst {
	var all []burst
	add := func(axis string, size int, series string, permits, keys int, open openBurst) {
		all = append(all, burst{axis, series, size, permits, keys, open})
	}
	for _, rules := range []int{1, 3, 10, 30, 100} {
		for _, entries := range []int{1000, 100_000} {
			add(byRules, rules, fmt.Sprintf("sliding log, %s entries", thousands(entries)), min(5*(entries/rules), 1000), 1, fullLog(ctx, entries, rules, 1))
		}
	}
	for _, entries := range []int{100, 1000, 10_000, 100_000} {
		for _, rules := range []int{1, 10} {
			add(byEntries, entries, fmt.Sprintf("sliding log, %d rules", rules), min(5*(entries/rules), 1000), 1, fullLog(ctx, entries, rules, 1))
		}
		for _, storage := range []ratelimit.Storage{ratelimit.StorageHash, ratelimit.StorageList} {
			add(byEntries, entries, fmt.Sprintf("sliding window, %v", storage), min(entries, 1000), 1, full(ctx, slidingWindowOf(storage, entries), 1))
		}
		if entries <= mostZSet {
			add(byEntries, entries, "sliding window, ZSet", min(entries, 1000), 1, full(ctx, zsetWindowOf(entries), 1))
		}
	}
	for name, build := range burstLimiters {
		for _, permits := range []int{1, 10, 100, 1000} {
			add(byPermits, permits, name, permits, 1, fresh(build))
		}
		for _, keys := range []int{1, 8, 64, 128} {
			add(byKeys, keys, name, 10, keys, fresh(build))
		}
	}
	for _, keys := range []int{1, 8, 64, 128} {
		add(byKeys, keys, "sliding log, 10 rules", 10, keys, fullLog(ctx, 1000, 10, keys))
	}
	slices.SortStableFunc(all, func(a, b burst) int { return strings.Compare(a.series, b.series) })
	return all
}

var burstLimiters = map[string]build{
	"fixed window":         fixedWindow,
	"token bucket":         tokenBucket,
	"sliding window, Hash": slidingWindow(ratelimit.StorageHash),
	"sliding window, List": slidingWindow(ratelimit.StorageList),
	"sliding window, ZSet": slidingWindow(ratelimit.StorageZSet),
}

type openBurst = func(b *testbed, tag string) (ratelimit.Limiter, error)

// fresh opens a limiter that allows every call.
func fresh(build build) openBurst {
	return func(b *testbed, tag string) (ratelimit.Limiter, error) {
		return build(b.client, allowed, ratelimit.WithPrefix(tag))
	}
}

// full opens a limiter that denies every call: its keys are filled.
func full(ctx context.Context, s steady, keys int) openBurst {
	return func(b *testbed, tag string) (ratelimit.Limiter, error) {
		t, err := s.filled(ctx, b, keys, tag)
		if err != nil {
			return nil, err
		}
		return s.make(b.client, ratelimit.WithPrefix(tag), clockAt(t.clock-t.step()))
	}
}

// fullLog opens a log that denies every call under every rule. Its entries have 1 to 10
// permits, so that a search does not find an entry at the first reading. It is filled
// under the longest rule alone, which takes less time.
func fullLog(ctx context.Context, entries, rules, keys int) openBurst {
	return func(b *testbed, tag string) (ratelimit.Limiter, error) {
		s := slidingLogOf(entries, 1)
		s.make = func(c ratelimit.Client, opts ...ratelimit.Option) (ratelimit.Limiter, error) {
			return ratelimit.NewSlidingLog(c, []ratelimit.Rule{{Limit: 10 * entries, Window: steadyWindow}}, opts...)
		}
		s.permits = func(call int) int { return 1 + call*7919%10 }
		t, err := s.filled(ctx, b, keys, tag)
		if err != nil {
			return nil, err
		}
		var all []ratelimit.Rule
		for r := 1; r <= rules; r++ {
			window := (steadyWindow * time.Duration(r) / time.Duration(rules)).Truncate(time.Millisecond)
			all = append(all, ratelimit.Rule{Limit: 5 * (entries * r / rules), Window: window}) // less than was taken
		}
		return ratelimit.NewSlidingLog(b.client, all, ratelimit.WithPrefix(tag), clockAt(t.clock-t.step()))
	}
}

// growBatch shows how long Redis serves nothing else while it decides calls that were
// merged, and how long for a single one.
func growBatch(ctx context.Context, b *testbed, o options) ([]chart.Plot, error) {
	plots := []chart.Plot{
		{Title: "Execution by rules", X: byRules}, {Title: "Execution by entries", X: byEntries},
		{Title: "Execution by permits", X: byPermits}, {Title: "Execution by keys", X: byKeys},
	}
	for i, u := range bursts(ctx) {
		if !o.only.MatchString(u.series) {
			continue
		}
		progress("execution by %s: %s, %d", u.axis, u.series, u.size)
		merged, alone, err := u.measure(ctx, b, fmt.Sprintf("e%03d", i), o)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", u.series, err)
		}
		at := slices.IndexFunc(plots, func(p chart.Plot) bool { return p.X == u.axis })
		p := seriesSet{plots[at].Series}
		p.point(u.series, float64(u.size), merged)
		p.point(u.series+", one call", float64(u.size), alone)
		plots[at].Series, plots[at].Y = p.series, "µs per execution"
		if err := b.admin.FlushAll(ctx).Err(); err != nil {
			return nil, err
		}
	}
	return plots, nil
}

// measure returns the times of a burst's largest execution and of its dearest call on its
// own, in microseconds: medians of repetitions.
func (u burst) measure(ctx context.Context, b *testbed, tag string, o options) (merged, alone float64, err error) {
	l, err := u.open(b, tag)
	if err != nil {
		return 0, 0, err
	}
	one := func() error { _, err := l.TryAcquireN(ctx, user(0), u.permits); return err }
	if err := errors.Join(one(), u.call(ctx, l)); err != nil { // so that scripts are known, and keys exist
		return 0, 0, err
	}
	var medians [2]float64
	for i, f := range []func() error{func() error { return u.call(ctx, l) }, one} {
		largest, err := largestExecution(ctx, b, f)
		if err != nil {
			return 0, 0, err
		}
		times, err := executions(ctx, b, func() error {
			for range 4 * o.rounds {
				if err := b.admin.Do(ctx, largest...).Err(); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return 0, 0, err
		}
		medians[i] = stats.Median(times)
	}
	return medians[0], medians[1], nil
}

// call makes the calls, all at the same moment, with contexts that can be cancelled.
func (u burst) call(ctx context.Context, l ratelimit.Limiter) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make(chan error, burstCallers)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range burstCallers {
		wg.Go(func() {
			<-start
			_, err := l.TryAcquireN(ctx, user(i/u.permits%u.keys), 1+i%u.permits)
			errs <- err
		})
	}
	close(start)
	wg.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// largestExecution returns the longest command that executes a script during f.
func largestExecution(ctx context.Context, b *testbed, f func() error) ([]any, error) {
	commands, err := monitored(ctx, b, f)
	if err != nil {
		return nil, err
	}
	var largest []any
	longest := 0
	for _, args := range commands {
		if length := len(strings.Join(args, " ")); isExecution(args) && length > longest {
			longest, largest = length, nil
			for _, arg := range args {
				largest = append(largest, arg)
			}
		}
	}
	if longest == 0 {
		return nil, errors.New("no script was executed")
	}
	return largest, nil
}

// executions returns the times of the scripts that Redis executes during f, in
// microseconds.
func executions(ctx context.Context, b *testbed, f func() error) ([]float64, error) {
	if err := b.admin.ConfigSet(ctx, "slowlog-log-slower-than", "0").Err(); err != nil {
		return nil, err
	}
	if err := b.admin.Do(ctx, "slowlog", "reset").Err(); err != nil {
		return nil, err
	}
	if err := f(); err != nil {
		return nil, err
	}
	if err := b.admin.ConfigSet(ctx, "slowlog-log-slower-than", "-1").Err(); err != nil {
		return nil, err
	}
	entries, err := b.admin.SlowLogGet(ctx, -1).Result()
	if err != nil {
		return nil, err
	}
	var times []float64
	for _, e := range entries {
		if isExecution(e.Args) {
			times = append(times, float64(e.Duration.Nanoseconds())/1e3)
		}
	}
	if len(times) == 0 {
		return nil, errors.New("SLOWLOG has no script")
	}
	return times, nil
}

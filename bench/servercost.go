package main

import (
	"context"
	"fmt"
	"regexp"

	"github.com/tryacquire/ratelimit/bench/internal/stats"
)

// Names of rows that no contestant has.
const (
	mergedHot     = "token bucket, 64 calls for a key merged"
	mergedMany    = "token bucket, 128 keys merged"
	mergedWindows = "fixed window, 128 keys merged"
)

// costs holds the bills of all rounds.
type costs map[costID][]bill

type costID struct {
	name    string
	verdict verdict
}

// micros is the median, NaN where nothing was measured.
func (c costs) micros(name string, v verdict) float64 {
	return c.median(name, v, func(b bill) float64 { return b.micros })
}

func (c costs) writes(name string, v verdict) float64 {
	return c.median(name, v, func(b bill) float64 { return b.writes })
}

func (c costs) median(name string, v verdict, of func(bill) float64) float64 {
	var values []float64
	for _, b := range c[costID{name, v}] {
		values = append(values, of(b))
	}
	return stats.Median(values)
}

// serverCost replays what the limiters send, over all users, in interleaved
// rounds.
func serverCost(ctx context.Context, b *testbed, from []contestant, o options) (costs, []replay, error) {
	replays, err := replaysOf(ctx, b, from, o)
	if err != nil {
		return nil, nil, err
	}
	merged, err := mergedReplays(ctx, b, o)
	if err != nil {
		return nil, nil, err
	}
	filled, err := steadyReplays(ctx, b, o)
	if err != nil {
		return nil, nil, err
	}
	replays = append(append(replays, merged...), filled...)
	c := costs{}
	for round := range o.rounds {
		for i := range replays {
			r := replays[(i+round*len(replays)/o.rounds)%len(replays)]
			progress("server cost, round %d of %d: %s, %s", round+1, o.rounds, r.name, r.verdict)
			paid, err := r.measure(ctx, b.admin, o.duration)
			if err != nil {
				return nil, nil, err
			}
			id := costID{r.name, r.verdict}
			c[id] = append(c[id], paid)
		}
	}
	return c, replays, nil
}

// replaysOf records each contestant's script and prepares its keys. It leaves
// out that decide in the client, from what was read before: that cannot be sent
// again.
func replaysOf(ctx context.Context, b *testbed, from []contestant, o options) ([]replay, error) {
	var replays []replay
	for i, c := range from {
		for _, v := range []verdict{allowed, denied} {
			if c.script == "" || c.only != "" && c.only != v || !o.only.MatchString(c.name) {
				continue
			}
			progress("recording %s, %s", c.name, v)
			decide, err := c.open(b, v, fmt.Sprintf("s%02d%c:", i, v[0]))
			if err != nil {
				return nil, err
			}
			rec, err := record(ctx, b, decide)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c.name, err)
			}
			r := replay{c.script, v, rec.inTurn(manyKeys), 1}
			if err := r.send(ctx, b.admin, manyKeys); err != nil { // so that no key is new
				return nil, err
			}
			r.next = rec.random(manyKeys)
			replays = append(replays, r)
		}
	}
	return replays, nil
}

// mergedReplays records merged executions: of a token bucket many calls for one
// key, and of it and a fixed window many keys with a call each.
func mergedReplays(ctx context.Context, b *testbed, o options) ([]replay, error) {
	var replays []replay
	for _, v := range []verdict{allowed, denied} {
		for _, l := range []struct {
			hot, many string
			open      func(b *testbed, v verdict, tag string) (decide, error)
		}{
			{mergedHot, mergedMany, limiter(tokenBucket)},
			{"", mergedWindows, limiter(fixedWindow)},
		} {
			if !o.only.MatchString(l.many) {
				continue
			}
			decide, err := l.open(b, v, fmt.Sprintf("g%c%c:", l.many[0], v[0]))
			if err != nil {
				return nil, err
			}
			if err := visit(ctx, decide, users(manyKeys)); err != nil {
				return nil, err
			}
			if l.hot != "" {
				hot, err := recordMerged(ctx, b, decide, make([]int, 256))
				if err != nil {
					return nil, err
				}
				if err := hot.setCalls(64); err != nil {
					return nil, err
				}
				replays = append(replays, replay{l.hot, v, hot.random(manyKeys), 64})
			}
			distinct := make([]int, 256)
			for i := range distinct {
				distinct[i] = i
			}
			many, err := recordMerged(ctx, b, decide, distinct)
			if err != nil {
				return nil, err
			}
			if len(many.places) < 2 {
				return nil, fmt.Errorf("calls for many keys were not merged: %.200q", many.args)
			}
			replays = append(replays, replay{l.many, v, many.random(manyKeys), len(many.places)})
		}
	}
	return replays, nil
}

// setCalls changes a recorded execution of some calls for one permit each.
func (r recording) setCalls(n int) error {
	for i, arg := range r.args {
		if runOfOne.MatchString(arg) {
			r.args[i] = fmt.Sprintf("1x%d", n)
			return nil
		}
	}
	return fmt.Errorf("calls for one key were not merged: %.200q", r.args)
}

var runOfOne = regexp.MustCompile(`^1x\d+$`)

// serverCostTable compares each row with redis_rate of the same verdict.
func serverCostTable(c costs, replays []replay) table {
	t := table{
		title: "Server cost of one decision",
		note: "Microseconds of script time (`INFO commandstats`), each limiter's own command sent through a pipeline over " +
			thousands(manyKeys) + " keys; rows with sub-windows or entries in their name over " + thousands(steadyKeys) +
			" keys, all of them filled. *Writes* are changes of data for each decision.",
		header: []string{"", "allowed µs", "× " + reference, "writes", "denied µs", "× " + reference, "writes"},
	}
	seen := map[string]bool{}
	for _, r := range replays {
		if seen[r.name] {
			continue
		}
		seen[r.name] = true
		row := []string{r.name}
		for _, v := range []verdict{allowed, denied} {
			own := c.micros(r.name, v)
			row = append(row, number(own), times(own/c.micros(reference, v)), number(c.writes(r.name, v)))
		}
		t.add(row...)
	}
	return t
}

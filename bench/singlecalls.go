package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tryacquire/ratelimit/bench/internal/stats"
)

// singleCalls holds how long each call of one caller took, in nanoseconds.
type singleCalls map[string][]float64

// inARow is how many calls of one contestant follow each other: enough that
// not all of them find the processor's caches as the others left them.
const inARow = 8

// timeSingleCalls has one caller call all that allow, a few times each, in a new random
// order each time. What one caller waits for is mostly the machine waking up,
// and how long that takes changes within seconds: here all run under the same
// conditions.
func timeSingleCalls(ctx context.Context, entrants []entrant, keys []string, o options) (singleCalls, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	order := slices.DeleteFunc(slices.Clone(entrants), func(e entrant) bool { return e.verdict != allowed })
	t := singleCalls{}
	progress("one caller, in turn")
	for start := time.Now(); time.Since(start) < time.Duration(len(order)*o.rounds)*o.duration; {
		rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		for _, e := range order {
			callCtx := context.Background()
			if e.cancellable {
				callCtx = ctx
			}
			for range inARow {
				key := keys[rand.IntN(len(keys))]
				before := time.Now()
				_, err := e.decide(callCtx, key)
				took := time.Since(before)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", e.name, err)
				}
				t[e.name] = append(t[e.name], float64(took))
			}
		}
	}
	return t, nil
}

// ratio is that of the medians.
func (t singleCalls) ratio(a, b string) float64 { return stats.Median(t[a]) / stats.Median(t[b]) }

func (t singleCalls) table(order []contestant) table {
	tab := table{
		title: "One caller, 10,000 keys, allowed: the time of single calls",
		note: fmt.Sprintf("How long a call takes when nothing else is in flight. Medians of single calls: each limiter makes %d calls in a row, and the order of the limiters is random each time, ", inARow) +
			"so that all run under the same conditions. When limiters are measured one after the other, as in the tables above, their ranking changes from run to run.",
		header: []string{"", "median", "× " + reference, "× " + returnOne, "mean", "its context"},
	}
	for _, c := range order {
		if calls := t[c.name]; len(calls) > 0 {
			tab.add(c.name, latency(stats.Median(calls)), times(t.ratio(c.name, reference)),
				times(t.ratio(c.name, returnOne)), latency(stats.Mean(calls)), contextOf(c))
		}
	}
	return tab
}

func contextOf(c contestant) string {
	if c.cancellable {
		return "can be cancelled"
	}
	return "never ends"
}

package main

import (
	"fmt"

	"github.com/tryacquire/ratelimit/bench/internal/stats"
)

// A cell is what is the same for all contestants that are compared.
type cell struct {
	callers int
	keys    int // 1: a hot one
	verdict verdict
}

func (c cell) String() string {
	callers, which := fmt.Sprintf("%d callers", c.callers), fmt.Sprintf("%s keys", thousands(c.keys))
	if c.callers == 1 {
		callers = "one caller"
	}
	if c.keys == 1 {
		which = "one hot key"
	}
	return fmt.Sprintf("%s, %s, %s", callers, which, c.verdict)
}

// results holds the samples of all rounds, by contestant and cell.
type results map[measurement][]sample

type measurement struct {
	name string
	cell
}

func (r results) add(name string, c cell, s sample) {
	m := measurement{name, c}
	r[m] = append(r[m], s)
}

// median is the median of each metric on its own, NaN where nothing was measured.
func (r results) median(name string, c cell) sample {
	var s sample
	samples := r[measurement{name, c}]
	values := make([]float64, len(samples))
	for metric := range s {
		for i := range samples {
			values[i] = samples[i][metric]
		}
		s[metric] = stats.Median(values)
	}
	return s
}

func (r results) has(name string, c cell) bool { return len(r[measurement{name, c}]) > 0 }

// ratio is that of two medians, as a reader of the tables would compute it.
func (r results) ratio(metric int, c cell, a, b string) float64 {
	return r.median(a, c)[metric] / r.median(b, c)[metric]
}

package main

import (
	"context"
	"fmt"
	"os"
	"strings"
)

const (
	manyKeys  = 10_000
	hotKey    = 1
	manyCalls = 256
)

// commonCells are measured for all contestants, selectedCells for the selected ones only.
var (
	commonCells = []cell{
		{manyCalls, hotKey, allowed}, {manyCalls, manyKeys, allowed},
		{1, hotKey, allowed}, {1, manyKeys, allowed},
		{manyCalls, hotKey, denied}, {manyCalls, manyKeys, denied},
		{1, hotKey, denied}, {1, manyKeys, denied},
	}
	selectedCells = []cell{{64, hotKey, allowed}, {64, manyKeys, allowed}}
)

// An entrant is a contestant that is ready to give one verdict.
type entrant struct {
	contestant
	verdict verdict
	decide  decide
}

// enter opens the contestants and has each key asked for, so that none is new
// and those that are to be denied are.
func enter(ctx context.Context, b *testbed, from []contestant, o options, keys []string) ([]entrant, error) {
	var entrants []entrant
	for i, c := range from {
		for _, v := range []verdict{allowed, denied} {
			if !o.only.MatchString(c.name) || c.only != "" && c.only != v {
				continue
			}
			progress("preparing %s, %s", c.name, v)
			decide, err := c.open(b, v, fmt.Sprintf("%c%02d:", v[0], i))
			for visits := 0; visits < 2 && err == nil; visits++ {
				err = visit(ctx, decide, keys)
			}
			if err != nil && c.kind == peer {
				reason, _, _ := strings.Cut(err.Error(), "\n")
				fmt.Fprintf(os.Stderr, "left out: %s, %s: %s\n", c.name, v, reason) // as go-zero, whose breaker opens on a slow machine
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c.name, err)
			}
			entrants = append(entrants, entrant{c, v, decide})
		}
	}
	return entrants, nil
}

// throughput measures the entrants in every cell, in rounds. In each round
// another goes first.
func throughput(ctx context.Context, b *testbed, entrants []entrant, keys []string, o options) (results, error) {
	r := results{}
	for round := range o.rounds {
		for _, c := range append(commonCells, selectedCells...) {
			progress("round %d of %d: %s", round+1, o.rounds, c)
			for i := range entrants {
				e := entrants[(i+round*len(entrants)/o.rounds)%len(entrants)]
				if e.verdict != c.verdict || c.callers == 64 && !e.selected {
					continue
				}
				l := load{contestant: e.contestant, decide: e.decide, verdict: c.verdict, callers: c.callers, keys: keys[:c.keys]}
				s, err := l.measure(ctx, b, o.duration)
				if err != nil {
					return nil, err
				}
				r.add(e.name, c, s)
			}
		}
	}
	return r, nil
}

// throughputTables has one table a cell.
func throughputTables(r results, order []contestant, memory map[string]float64) []table {
	var tables []table
	for _, c := range append(commonCells, selectedCells...) {
		t := table{title: title(c.String()), header: []string{
			"", "decisions/s", "× " + reference, "p50", "p99", "allocs", "bytes", "server µs", "server CPU µs", "bytes/key", "failed", "other verdict",
		}}
		for _, entry := range order {
			if !r.has(entry.name, c) {
				continue
			}
			s := r.median(entry.name, c)
			bytes := unknown
			if m, ok := memory[entry.name]; ok {
				bytes = number(m)
			}
			t.add(entry.name, number(s[perSecond]), times(r.ratio(perSecond, c, entry.name, reference)),
				latency(s[p50]), latency(s[p99]), number(s[allocs]), number(s[allocBytes]),
				number(s[serverTime]), number(s[serverCPU]), bytes, share(s[failures]), share(s[surprises]))
		}
		if len(t.rows) > 0 {
			tables = append(tables, t)
		}
	}
	return tables
}

// share is empty where there is nothing to report.
func share(s float64) string {
	if s < 0.0005 {
		return ""
	}
	return percent(s)
}

func title(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

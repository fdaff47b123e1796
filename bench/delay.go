package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/tryacquire/ratelimit/bench/internal/stats"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

const (
	eachWay    = time.Millisecond
	merged     = "token bucket"
	plain      = "token bucket, plain"
	halfRounds = 3 // times the duration of other measurements, for a 99th percentile
)

// A distance is what was found with a slow network.
type distance struct {
	saturated results                             // many callers
	half      map[cell]map[string][]latencySample // at half of what plain calls reach
	rate      map[cell]float64                    // that half
}

var distantCells = []cell{{manyCalls, hotKey, allowed}, {manyCalls, manyKeys, allowed}}

// far measures a few contestants through a proxy that delays each way.
func far(ctx context.Context, h *host, server *redistest.Server, all []contestant, o options) (*distance, error) {
	proxy := redistest.NewProxy(h, server.Addr())
	b, err := newTestbed(h, server, proxy.Addr())
	if err != nil {
		return nil, err
	}
	var few []contestant
	for _, c := range all {
		if slices.Contains([]string{merged, plain, reference}, c.name) {
			few = append(few, c)
		}
	}
	keys := users(manyKeys)
	entrants, err := enter(ctx, b, few, o, keys)
	if err != nil {
		return nil, err
	}
	entrants = slices.DeleteFunc(entrants, func(e entrant) bool { return e.verdict != allowed })
	proxy.Delay(eachWay)
	o.duration = max(o.duration, 100*eachWay) // or, on a busy machine, hardly a call is answered

	d := &distance{saturated: results{}, half: map[cell]map[string][]latencySample{}, rate: map[cell]float64{}}
	for round := range o.rounds {
		for _, c := range distantCells {
			progress("%v each way, round %d of %d: %s", eachWay, round+1, o.rounds, c)
			for _, e := range entrants {
				l := load{contestant: e.contestant, decide: e.decide, verdict: allowed, callers: c.callers, keys: keys[:c.keys]}
				s, err := l.measure(ctx, b, o.duration)
				if err != nil {
					return nil, err
				}
				d.saturated.add(e.name, c, s)
			}
		}
	}
	for _, c := range distantCells {
		if !d.saturated.has(plain, c) {
			continue
		}
		d.rate[c], d.half[c] = d.saturated.median(plain, c)[perSecond]/2, map[string][]latencySample{}
		if d.rate[c] == 0 {
			return nil, fmt.Errorf("%s: no call was answered in %v", plain, o.duration)
		}
		for round := range o.rounds {
			progress("%v each way at half load, round %d of %d: %s", eachWay, round+1, o.rounds, c)
			for i := range entrants {
				e := entrants[(i+round)%len(entrants)]
				a := arrivals{decide: e.decide, keys: keys[:c.keys], rate: d.rate[c]}
				s, err := a.run(ctx, halfRounds*o.duration)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", e.name, err)
				}
				d.half[c][e.name] = append(d.half[c][e.name], s)
			}
		}
	}
	return d, nil
}

func (d *distance) latency(name string, c cell, of func(latencySample) float64) float64 {
	var values []float64
	for _, s := range d.half[c][name] {
		values = append(values, of(s))
	}
	return stats.Median(values)
}

func (d *distance) p99Ratio(c cell) float64 {
	of := func(s latencySample) float64 { return s.p99 }
	return d.latency(merged, c, of) / d.latency(plain, c, of)
}

func (d *distance) tables() []table {
	var tables []table
	for _, c := range distantCells {
		t := table{
			title: fmt.Sprintf("%v each way: %s", eachWay, c),
			note: fmt.Sprintf("Saturated: %d callers. Half load: %s calls a second, half of what plain calls reach, "+
				"made at random instants, even if earlier calls have no answer yet.", c.callers, number(d.rate[c])),
			header: []string{"", "decisions/s", "× " + reference, "p50", "p99", "p50 at half load", "p99 at half load", "× plain", "calls late by (p99)"},
		}
		for _, name := range []string{merged, plain, reference} {
			if !d.saturated.has(name, c) {
				continue
			}
			s := d.saturated.median(name, c)
			high := func(s latencySample) float64 { return s.p99 }
			t.add(name, number(s[perSecond]), times(d.saturated.ratio(perSecond, c, name, reference)), latency(s[p50]), latency(s[p99]),
				latency(d.latency(name, c, func(s latencySample) float64 { return s.p50 })), latency(d.latency(name, c, high)),
				times(d.latency(name, c, high)/d.latency(plain, c, high)),
				latency(d.latency(name, c, func(s latencySample) float64 { return s.late })))
		}
		if len(t.rows) > 0 {
			tables = append(tables, t)
		}
	}
	return tables
}

package main

import "github.com/tryacquire/ratelimit/internal/chart"

// throughputChart has a bar for each contestant that asks Redis, in the two
// cells with the most callers.
func throughputChart(r results, all []contestant) string {
	var panels []chart.Panel
	for _, c := range []cell{{manyCalls, hotKey, allowed}, {manyCalls, manyKeys, allowed}} {
		p := chart.Panel{Title: title(c.String())}
		for _, entry := range all {
			if !r.has(entry.name, c) {
				continue
			}
			b := chart.Bar{
				Label: entry.name, Value: r.median(entry.name, c)[perSecond],
				Group: int(entry.kind), Bold: entry.kind == ours,
			}
			if entry.name != reference {
				b.Note = times(r.ratio(perSecond, c, entry.name, reference))
			}
			if b.Note == unknown {
				b.Note = ""
			}
			p.Bars = append(p.Bars, b)
		}
		panels = append(panels, p)
	}
	return chart.Bars("Decisions per second, and as a multiple of "+reference,
		[]string{ours: "this library", peer: "others", floor: "no limiter at all"}, panels...)
}

package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/tryacquire/ratelimit/bench/internal/stats"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// The grid compares merged calls with plain ones and with the reference, from a single
// caller to many: merging must not cost the few callers what it brings the many. All
// contexts can be cancelled, as those of requests can.
var (
	gridDelays  = []time.Duration{0, 500 * time.Microsecond, 2 * time.Millisecond} // each way
	gridKeys    = []int{hotKey, manyKeys}
	gridCallers = []int{1, 2, 3, 4, 6, 8, 12, 16, 64, 256}
)

// What the ratios are to reach. A cell misses one if the ratio's interval lies beyond it.
const (
	gridRate = 0.97 // × plain and × reference, at least
	gridP50  = 1.05 // × plain, at most
	gridP99  = 1.15 // × plain, at most
)

// A gridCell has a ratio of each round for each measure.
type gridCell struct {
	delay          time.Duration
	keys, callers  int
	rate           []float64 // decisions a second
	ofPlain, ofRef []float64 // decisions a second, × plain and × reference
	p50, p99       []float64 // × plain
}

// gridOptions has twice as many rounds as other measurements, so that there is an
// interval, each of half the duration.
func gridOptions(o options) options {
	o.rounds *= 2
	o.duration /= 2
	return o
}

// measureGrid measures the cells. It measures nothing if -only leaves out any of the
// contestants.
func measureGrid(ctx context.Context, h *host, server *redistest.Server, o options) ([]*gridCell, error) {
	for _, c := range gridContestants() {
		if !o.only.MatchString(c.name) {
			return nil, nil
		}
	}
	o = gridOptions(o)
	keys := users(manyKeys)
	var cells []*gridCell
	beds := map[time.Duration]*testbed{}
	entrants := map[time.Duration][]entrant{}
	for _, delay := range gridDelays {
		addr := server.Addr()
		var proxy *redistest.Proxy
		if delay > 0 {
			proxy = redistest.NewProxy(h, addr)
			addr = proxy.Addr()
		}
		var err error
		if beds[delay], err = newTestbed(h, server, addr); err != nil {
			return nil, err
		}
		if entrants[delay], err = enter(ctx, beds[delay], gridContestants(), o, keys); err != nil {
			return nil, err
		}
		if proxy != nil {
			proxy.Delay(delay)
		}
		for _, which := range gridKeys {
			for _, callers := range gridCallers {
				cells = append(cells, &gridCell{delay: delay, keys: which, callers: callers})
			}
		}
	}
	for round := range o.rounds {
		for _, c := range cells {
			progress("grid, round %d of %d: %s", round+1, o.rounds, c)
			if err := c.measure(ctx, beds[c.delay], entrants[c.delay], keys, round, o); err != nil {
				return nil, err
			}
		}
	}
	return cells, nil
}

// gridContestants are the merged, the plain and the reference, with contexts that can be
// cancelled.
func gridContestants() []contestant {
	var all []contestant
	for _, name := range []string{merged, plain, reference} {
		i := slices.IndexFunc(contestants(), func(c contestant) bool { return c.name == name })
		c := contestants()[i]
		c.cancellable, c.only = true, allowed
		all = append(all, c)
	}
	return all
}

// measure measures all entrants once. In each round another goes first.
func (c *gridCell) measure(ctx context.Context, b *testbed, entrants []entrant, keys []string, round int, o options) error {
	got := map[string]sample{}
	for i := range entrants {
		e := entrants[(i+round)%len(entrants)]
		l := load{contestant: e.contestant, decide: e.decide, verdict: allowed, callers: c.callers, keys: keys[:c.keys], slow: c.delay > 0}
		s, err := l.measure(ctx, b, o.duration)
		if err != nil {
			return err
		}
		got[e.name] = s
	}
	ratio := func(metric int, of string) float64 { return got[merged][metric] / got[of][metric] }
	c.rate = append(c.rate, got[merged][perSecond])
	c.ofPlain = append(c.ofPlain, ratio(perSecond, plain))
	c.ofRef = append(c.ofRef, ratio(perSecond, reference))
	c.p50 = append(c.p50, ratio(p50, plain))
	c.p99 = append(c.p99, ratio(p99, plain))
	return nil
}

func (c *gridCell) String() string {
	way := "loopback"
	if c.delay > 0 {
		way = fmt.Sprint(c.delay, " each way")
	}
	return fmt.Sprintf("%s, %s", way, strings.TrimSuffix(cell{c.callers, c.keys, allowed}.String(), ", allowed"))
}

// missed names the measures whose interval lies beyond what is to be reached.
func (c *gridCell) missed() string {
	var names []string
	note := func(name string, beyond bool) {
		if beyond {
			names = append(names, name)
		}
	}
	high := func(values []float64) float64 { _, high := stats.MedianInterval(values); return high }
	low := func(values []float64) float64 { low, _ := stats.MedianInterval(values); return low }
	note("× plain", high(c.ofPlain) < gridRate)
	note("× "+reference, high(c.ofRef) < gridRate)
	note("p50", low(c.p50) > gridP50)
	note("p99", low(c.p99) > gridP99)
	return strings.Join(names, ", ")
}

// worst is how far the cell is from what is to be reached, in the measure where it is
// furthest: below 1 where that is not reached.
func (c *gridCell) worst() float64 {
	return min(stats.Median(c.ofPlain)/gridRate, stats.Median(c.ofRef)/gridRate,
		gridP50/stats.Median(c.p50), gridP99/stats.Median(c.p99))
}

// gridTable has the worst cell first.
func gridTable(cells []*gridCell) table {
	t := table{
		title: "Few and many callers",
		note: fmt.Sprintf("Merged calls and plain ones (`WithoutMerging`) of a token bucket, and %s; every context can be cancelled. "+
			"Medians of %d interleaved rounds; ratios are taken in each round, and the brackets have the interval of their median "+
			"with a confidence of at least 95 %%. "+
			"The targets: at least %v × plain and %v × %s in decisions/s, at most %v × plain in p50 and %v × in p99. "+
			"*Missed* lists the measures whose whole interval misses the target. The worst row is first.",
			reference, len(cells[0].rate), gridRate, gridRate, reference, gridP50, gridP99),
		header: []string{"", "decisions/s", "× plain", "× " + reference, "p50, × plain", "p99, × plain", "missed"},
	}
	cells = slices.Clone(cells)
	slices.SortStableFunc(cells, func(a, b *gridCell) int { return cmp.Compare(a.worst(), b.worst()) })
	for _, c := range cells {
		t.add(c.String(), number(stats.Median(c.rate)), interval(c.ofPlain), interval(c.ofRef), interval(c.p50), interval(c.p99), c.missed())
	}
	return t
}

// interval is the median and the interval that it lies in.
func interval(values []float64) string {
	low, high := stats.MedianInterval(values)
	if median := number(stats.Median(values)); math.IsNaN(low) || median == unknown {
		return median
	}
	return fmt.Sprintf("%s (%s–%s)", number(stats.Median(values)), number(low), number(high))
}

const gridHeading = "## From one caller to many"

// gridSection is the grid as results.md has it.
func gridSection(cells []*gridCell, about string) string {
	var r report
	r.paragraph(gridHeading)
	if about != "" {
		r.paragraph("%s", about)
	}
	r.table(gridTable(cells))
	return r.String()
}

// grid measures the grid only, and puts it into results.md in place of the former one.
func grid(ctx context.Context, h *host, o options) error {
	server := redistest.Start(h)
	cells, err := measureGrid(ctx, h, server, o)
	if err != nil {
		return err
	}
	where, err := setting(ctx, server.Client(h), gridOptions(o))
	if err != nil {
		return err
	}
	if len(cells) == 0 {
		return fmt.Errorf("-grid compares %s, %s and %s, of which -only leaves out some", merged, plain, reference)
	}
	section := gridSection(cells, fmt.Sprintf("Made by `go run . -grid` on %s, apart from the rest of this page. %s", time.Now().UTC().Format(time.DateOnly), where))
	return saveSection(o, gridHeading, section)
}

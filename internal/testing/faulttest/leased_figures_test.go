package faulttest

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// A leaseRun is processes that share a limit of 1,000 a second, and what they got.
type leaseRun struct {
	limit     string
	processes int
	load      float64 // times the rate
	zipf      bool    // process k has a demand like 1/k
	plain     int     // of the processes: without slices
	allPlain  bool
	onOff     bool // the demand of each comes for one second in two
	maxSlice  int

	used      float64 // of the rule
	allowed   float64 // of the calls
	decisions float64 // an execution
	fairness  float64 // Jain's index of those with slices
	plainUsed float64 // of the rule
}

func (r *leaseRun) run(t testing.TB, warm, measured time.Duration) {
	server := redistest.Start(t)
	admin := server.Client(t)
	begin, start, err := os.Pipe()
	require.NoError(t, err)
	defer begin.Close()
	weights, sum := make([]float64, r.processes), 0.0
	for i := range weights {
		weights[i] = 1
		if r.zipf {
			weights[i] = 1 / float64(i+1)
		}
		sum += weights[i]
	}
	var running sync.WaitGroup
	all := make([]*leaseProcess, r.processes)
	for i := range all {
		w := leaseWork{
			Addr: server.Addr(), Limits: []string{r.limit}, Refill: time.Second, Demand: r.load * leaseRate * weights[i] / sum,
			For: warm + measured, Warm: warm, Callers: 4, MaxSlice: r.maxSlice, Plain: r.allPlain || i < r.plain,
		}
		if r.onOff { // at another time each
			w.Demand *= 2
			w.Phases, w.Offset = []phase{{time.Second, 1}, {time.Second, 0}}, 2*time.Second*time.Duration(i)*618/1000
		}
		all[i] = startLease(t, w, begin)
	}
	for _, p := range all {
		running.Go(func() { p.collect(t, false) })
	}
	from := time.Now().Add(warm)
	require.NoError(t, start.Close())
	time.Sleep(time.Until(from))
	executions := redistest.Executions(t, admin)
	time.Sleep(time.Until(from.Add(measured)))
	executions = redistest.Executions(t, admin) - executions
	running.Wait()
	var takes []take
	asked, allowed, leased, squares, plain := 0.0, 0.0, 0.0, 0.0, 0.0
	for _, p := range all {
		got := 0.0
		for _, c := range p.calls {
			if c.Denied {
				continue
			}
			takes = append(takes, take{span{c.Call, c.Return}, 1, c.ResetsIn})
			if c.Call >= from.UnixNano() && c.Call < from.Add(measured).UnixNano() {
				got++
			}
		}
		if p.failed > 0 {
			t.Logf("%d of %d calls of a process failed", p.failed, p.asked)
		}
		asked, allowed = asked+float64(p.asked), allowed+float64(p.allowed)
		if p.work.Plain && !r.allPlain {
			plain += got
			continue
		}
		leased, squares = leased+got, squares+got*got
	}
	if r.limit == "bucket" {
		most, _, _ := mostAboveTheRate(takes)
		require.LessOrEqual(t, most, leaseRate+0.002)
	}
	rule := leaseRate * measured.Seconds()
	r.used, r.plainUsed, r.allowed = (leased+plain)/rule, plain/rule, allowed/asked
	r.decisions = asked / float64(max(executions, 1))
	r.fairness = leased * leased / squares / float64(r.processes-r.plain)
}

func (r *leaseRun) String() string {
	name := fmt.Sprintf("%s of 1,000 a second, %d processes, %v times the rate", r.limit, r.processes, r.load)
	for what, is := range map[string]bool{", demand like 1 over k": r.zipf, ", on and off": r.onOff, ", 8 of them plain": r.plain > 0} {
		if is {
			name += what
		}
	}
	if r.maxSlice > 0 {
		name += fmt.Sprintf(", slices of at most %d", r.maxSlice)
	}
	return name
}

var wasteFile = flag.String("waste", "", "the file to which TestFiguresOfLeases writes what slices waste, for docs/pictures/leases.csv")

// TestFiguresOfLeases measures what docs/leases.md has, with real processes. It takes minutes, and wants a machine that does
// nothing else.
func TestFiguresOfLeases(t *testing.T) {
	if limitertest.Rounds(2, 1) < 2 {
		t.Skip("minutes: with RATELIMIT_LONG=1")
	}
	runs := []leaseRun{
		{load: 10}, {load: 10, zipf: true}, {load: 4}, {load: 2}, {load: 1}, {load: 0.1}, {load: 10, plain: 8}, {load: 2, plain: 8},
		{limit: "window", load: 10}, {limit: "window", load: 2}, {limit: "window", load: 1},
	}
	waste := "processes,slice,not used %,decisions an execution\n"
	for _, processes := range []int{4, 8, 16, 32} { // the curve
		for _, most := range []int{8, 20, 50, 0} {
			runs = append(runs, leaseRun{processes: processes, load: 2, onOff: true, maxSlice: most})
		}
	}
	for _, r := range runs {
		r.processes, r.limit = cmp.Or(r.processes, 64), cmp.Or(r.limit, "bucket")
		t.Run(r.String(), func(t *testing.T) {
			r.run(t, 4*time.Second, 12*time.Second)
			t.Logf("with slices: %.1f %% of the rule used, %.2f %% of the calls allowed, %.1f decisions an execution, Jain %.3f; "+
				"plain callers used %.1f %%", 100*r.used, 100*r.allowed, r.decisions, r.fairness, 100*r.plainUsed)
			if r.onOff {
				slice := "no bound"
				if r.maxSlice > 0 {
					slice = strconv.Itoa(r.maxSlice)
				}
				waste += fmt.Sprintf("%d,%s,%.1f,%.0f\n", r.processes, slice, 100*max(1-r.used, 0), r.decisions)
			} else {
				r.allPlain, r.plain = true, 0
				r.run(t, 4*time.Second, 12*time.Second)
				t.Logf("without: %.1f %% of the rule used, %.1f %% of the calls allowed, Jain %.3f", 100*r.used, 100*r.allowed, r.fairness)
			}
		})
	}
	if *wasteFile != "" {
		require.NoError(t, os.WriteFile(*wasteFile, []byte(waste), 0o644))
	}
}

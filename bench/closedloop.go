package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tryacquire/ratelimit/bench/internal/stats"
)

// A load is callers that call again as soon as they are answered.
type load struct {
	contestant
	decide  decide
	verdict verdict
	callers int
	keys    []string
	slow    bool // the network is: each call can be timed
}

// A sample is what one measurement of a load found.
type sample [metrics]float64

const (
	perSecond = iota // decisions
	p50              // latency, nanoseconds
	p99
	allocs     // per call
	allocBytes // per call
	serverTime // microseconds per decision, of the commands
	serverCPU  // microseconds per decision, of the whole process
	processors // microseconds per decision, of the callers' process and of all servers
	failures   // share of the calls
	surprises  // share of the decisions: not the verdict
	metrics
)

// phases of a run.
const (
	warming int32 = iota
	measuring
	stopping
)

// A caller counts what one goroutine did. It fills cache lines of its own.
type caller struct {
	calls, failed, surprising int // in all phases
	measured                  int // decisions while measuring
	latency                   stats.Histogram
	err                       error
}

// measure runs the load for d, after a fifth of that to warm up. Rates and
// latencies are only of d; costs are of the whole run, from quiet to quiet.
func (l load) measure(ctx context.Context, b *testbed, d time.Duration) (sample, error) {
	callers := make([]*caller, l.callers)
	for i := range callers {
		callers[i] = &caller{}
	}
	var phase atomic.Int32
	var ready, done sync.WaitGroup
	begin := make(chan struct{})
	ready.Add(l.callers)
	for _, c := range callers {
		done.Go(func() {
			l.call(ctx, c, &phase, func() {
				ready.Done()
				<-begin
			})
		})
	}
	ready.Wait() // what it took to start them is not the contestant's

	before, err := takeTally(ctx, b.admin)
	var othersBefore float64
	if err == nil {
		othersBefore, err = b.othersCPU(ctx)
	}
	if err != nil {
		phase.Store(stopping)
		close(begin)
		return sample{}, err
	}
	runtime.GC() // not for what others left
	var memoryBefore, memoryAfter runtime.MemStats
	runtime.ReadMemStats(&memoryBefore)
	ownBefore := ownProcessor()
	close(begin)
	time.Sleep(d / 5)
	phase.Store(measuring)
	start := time.Now()
	time.Sleep(d)
	phase.Store(stopping)
	elapsed := time.Since(start)
	done.Wait()
	own := ownProcessor() - ownBefore

	runtime.ReadMemStats(&memoryAfter)
	after, err := takeTally(ctx, b.admin)
	if err != nil {
		return sample{}, err
	}
	others, err := b.othersCPU(ctx)
	if err != nil {
		return sample{}, err
	}
	cost := after.since(before)
	total := sum(callers)
	decisions := float64(total.calls - total.failed)
	if decisions == 0 {
		return sample{}, fmt.Errorf("%s: no decision was made: %w", l.name, total.err)
	}
	return sample{
		perSecond:  float64(total.measured) / elapsed.Seconds(),
		p50:        float64(total.latency.Quantile(0.50)),
		p99:        float64(total.latency.Quantile(0.99)),
		allocs:     float64(memoryAfter.Mallocs-memoryBefore.Mallocs) / float64(total.calls),
		allocBytes: float64(memoryAfter.TotalAlloc-memoryBefore.TotalAlloc) / float64(total.calls),
		serverTime: l.serverTime(cost) / decisions,
		serverCPU:  cost.cpu / decisions,
		processors: (own + cost.cpu + others - othersBefore) / decisions,
		failures:   float64(total.failed) / float64(total.calls),
		surprises:  float64(total.surprising) / decisions,
	}, nil
}

// serverTime is the contestant's own measure of what it cost.
func (c contestant) serverTime(t tally) float64 {
	if c.cost != nil {
		return c.cost(t)
	}
	return t.scripts()
}

// stride is how many calls there are to one that is timed: where many callers
// keep all cores busy, reading the clock would take its share of what is measured.
func (l load) stride() int {
	switch {
	case l.fast:
		return 64
	case l.callers > 1 && !l.slow:
		return 8
	}
	return 1
}

// call calls until the phase is stopping, when wait has returned.
func (l load) call(ctx context.Context, c *caller, phase *atomic.Int32, wait func()) {
	if l.cancellable {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
	}
	random := rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	stride, expected := l.stride(), l.verdict == allowed
	wait()
	for untimed := random.IntN(stride); ; untimed-- {
		key := l.keys[0]
		if len(l.keys) > 1 {
			key = l.keys[random.IntN(len(l.keys))]
		}
		timed := untimed == 0
		var start time.Time
		if timed {
			untimed = stride
			start = time.Now()
		}
		allowed, err := l.decide(ctx, key)
		now := phase.Load()
		c.calls++
		switch {
		case err != nil:
			c.failed++
			c.err = err
		case now == measuring:
			c.measured++
			if timed {
				c.latency.Record(time.Since(start))
			}
		}
		if err == nil && allowed != expected {
			c.surprising++
		}
		if now == stopping {
			return
		}
	}
}

func sum(callers []*caller) *caller {
	total := &caller{}
	for _, c := range callers {
		total.calls += c.calls
		total.failed += c.failed
		total.surprising += c.surprising
		total.measured += c.measured
		total.latency.Merge(&c.latency)
		if c.err != nil {
			total.err = c.err
		}
	}
	return total
}

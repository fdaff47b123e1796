package faulttest

import (
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// TestProcessesWithSlicesAreKilled: processes that spend slices of a bucket and of a window. Of four, one asks for each
// call, one is killed and another one takes its place, one is stopped for a while, and the network of one is broken. What
// all were allowed is judged by calls and returns.
//
// The demand comes so that permits that are wrong are spent: a slice is taken when little is missing, nobody calls until
// nothing is missing, before the slice ends and after it, and then all is asked for at once. The same at a window's end.
func TestProcessesWithSlicesAreKilled(t *testing.T) {
	t.Parallel()
	both := []string{"bucket", "window"}
	faultyProcesses(t, both, 4, 250*time.Millisecond, limitertest.Rounds(20, 1))
	if limitertest.Rounds(2, 1) > 1 {
		faultyProcesses(t, []string{"sliding"}, 4, 250*time.Millisecond, 20)
		faultyProcesses(t, both, 64, time.Second, 8) // each with fewer slices, of 1,000 a second
	}
}

func faultyProcesses(t *testing.T, limits []string, processes int, refill time.Duration, cycles int) {
	var phases []phase
	length := time.Duration(0)
	for _, p := range []phase{
		{800, 10}, {1080, 0}, {40, 3}, {180, 0},
		{800, 10}, {1080, 0}, {40, 3}, {600, 0},
		{800, 10}, {1080, 0}, {40, 3}, {800, 0}, {40, 3}, {200, 0},
	} {
		p.For *= refill / 1000
		phases = append(phases, p)
		length += p.For * time.Duration(cycles)
	}
	server := redistest.Start(t)
	begin, start, err := os.Pipe()
	require.NoError(t, err)
	defer begin.Close()
	work := leaseWork{
		Addr: server.Addr(), Limits: limits, Refill: refill, Demand: leaseRate / float64(processes), Phases: phases,
		For: length, Callers: 2, Timeout: 300 * time.Millisecond,
	}
	var running sync.WaitGroup
	var mu sync.Mutex
	var all []*leaseProcess
	run := func(w leaseWork, killed bool) *leaseProcess {
		p := startLease(t, w, begin)
		mu.Lock()
		defer mu.Unlock()
		all = append(all, p)
		running.Go(func() { p.collect(t, killed) })
		return p
	}
	var faults []func()
	for i := range processes {
		w, rng := work, rand.New(rand.NewPCG(uint64(i), 1))
		sometime := func() time.Duration { return time.Duration(rng.Int64N(int64(length * 3 / 4))) }
		switch i % 4 {
		case 0:
			w.Plain = i%16 == 0
			run(w, false)
		case 1:
			p, lives := run(w, true), length/4+sometime()
			faults = append(faults, func() {
				time.Sleep(lives)
				_ = p.Process.Kill()
				w.For -= lives
				run(w, false)
			})
		case 2: // shorter than a slice, and longer
			p, stops := run(w, false), []time.Duration{refill / 10, refill / 5, refill / 2}
			faults = append(faults, func() {
				for from := time.Now(); time.Since(from) < length*3/4; time.Sleep(time.Duration(rng.Int64N(int64(length / 8)))) {
					redistest.PauseProcess(p.Process)
					time.Sleep(stops[rng.IntN(len(stops))])
					redistest.ResumeProcess(p.Process)
				}
			})
		case 3:
			proxy := redistest.NewProxy(t, server.Addr())
			w.Addr = proxy.Addr()
			run(w, false)
			faults = append(faults, func() { breakNetwork(proxy, rng, length*3/4) })
		}
	}
	require.NoError(t, start.Close())
	for _, f := range faults {
		running.Go(f)
	}
	running.Wait()
	burst := leaseRate * refill.Seconds()
	for i, limit := range work.Limits {
		var takes []take
		var told []take // what plain calls were told of windows
		for _, p := range all {
			for _, c := range p.calls {
				switch tk := (take{span{c.Call, c.Return}, 1, c.ResetsIn}); {
				case int(c.Limit) != i:
				case !c.Denied:
					takes = append(takes, tk)
					fallthrough
				default:
					if c.Plain {
						told = append(told, tk)
					}
				}
			}
		}
		most := 0.0
		switch limit {
		case "sliding":
			_, permits, over := mostBetween(takes, 0, int64(refill-time.Microsecond))
			t.Logf("sliding: %d processes used %d permits; certainly %d of %.0f in %v", len(all), len(takes), permits, burst, time.Duration(over))
			most = float64(permits)
		case "bucket":
			var permits int
			var over time.Duration
			most, permits, over = mostAboveTheRate(takes)
			t.Logf("bucket: %d processes used %d permits; certainly %.1f of %.0f above the rate, %d in %v",
				len(all), len(takes), most, burst, permits, over)
		case "window":
			inAWindow, judged := mostInAWindow(refill, takes, told)
			t.Logf("window: %d processes used %d permits; %d certainly in a known window, at most %d of %.0f in one",
				len(all), len(takes), judged, inAWindow, burst)
			require.Positive(t, judged)
			most = float64(inAWindow)
		}
		require.LessOrEqual(t, most, burst+0.002)
		require.Greater(t, float64(len(takes)), burst, "it was asked for until it was denied")
	}
}

// mostAboveTheRate is the most permits of an interval less what the rate restores in it, and what these were.
func mostAboveTheRate(takes []take) (most float64, permits int, over time.Duration) {
	most, permits, length := mostBetween(takes, leaseRate/float64(time.Second), 0)
	return most, permits, time.Duration(length)
}

// breakNetwork loses and delays what a process sends and is sent.
func breakNetwork(proxy *redistest.Proxy, rng *rand.Rand, length time.Duration) {
	for from := time.Now(); time.Since(from) < length; time.Sleep(time.Duration(rng.Int64N(int64(100 * time.Millisecond)))) {
		switch rng.IntN(5) {
		case 0:
			proxy.DropReply(1+rng.IntN(3), redistest.OnScript())
		case 1:
			proxy.DropRequest(1+rng.IntN(3), redistest.OnScript())
		case 2:
			proxy.CutAll()
		case 3:
			proxy.Hang()
			time.Sleep(time.Duration(rng.Int64N(int64(200 * time.Millisecond))))
			proxy.Unhang()
		case 4:
			proxy.Delay(time.Duration(rng.Int64N(int64(50 * time.Millisecond))))
			time.Sleep(100 * time.Millisecond)
			proxy.Delay(0)
		}
	}
}

// mostInAWindow is the most permits that were certainly taken in one window, and how many were judged. The windows are
// those that plain calls were told: each ends between call + left and return + left, less the millisecond to which left was
// rounded up. A store of the state can move the end later by a millisecond, which allows less: so what counts is from the
// first of the ends less a window, to the last.
func mostInAWindow(window time.Duration, takes, told []take) (most, judged int) {
	const tick = int64(time.Millisecond)
	slices.SortFunc(told, func(a, b take) int { return int(a.Call + a.Left - b.Call - b.Left) })
	type ending struct{ earliest, latest int64 } // at most, at least
	var ends []ending
	for _, tk := range told {
		e := ending{tk.Return + tk.Left, tk.Call + tk.Left - tick}
		if n := len(ends); n > 0 && e.latest < ends[n-1].latest+int64(window)/2 {
			e.earliest, e.latest = min(e.earliest, ends[n-1].earliest), max(e.latest, ends[n-1].latest)
			ends = ends[:n-1]
		}
		ends = append(ends, e)
	}
	for _, e := range ends {
		n := 0
		for _, tk := range takes {
			if tk.Call >= e.earliest-int64(window)+tick && tk.Return <= e.latest {
				n++
			}
		}
		most, judged = max(most, n), judged+n
	}
	return most, judged
}

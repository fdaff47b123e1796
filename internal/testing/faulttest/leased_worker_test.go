package faulttest

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
)

const leaseWorkerEnv = "RATELIMIT_TEST_LEASE_WORKER"

// leaseWork is what a process with slices gets to do.
type leaseWork struct {
	Addr     string
	Limits   []string // keys of leaseLimits
	Refill   time.Duration
	Demand   float64       // calls a second, of each limit
	Phases   []phase       // of the demand, by everybody's clock, again and again
	Offset   time.Duration // of the phases
	For      time.Duration
	Warm     time.Duration // calls before are not counted
	Callers  int           // of each limit
	MaxSlice int
	Timeout  time.Duration // of a command; 0: go-redis's
	Plain    bool          // without slices
}

// A phase is a time in which the demand is so many times what it is.
type phase struct {
	For   time.Duration
	Times float64
}

// times is the demand at an instant, and how long it lasts. Without phases it is always 1.
func (w *leaseWork) times(at time.Time) (float64, time.Duration) {
	if len(w.Phases) == 0 {
		return 1, w.For
	}
	cycle := time.Duration(0)
	for _, p := range w.Phases {
		cycle += p.For
	}
	in := time.Duration(at.Add(w.Offset).UnixNano()) % cycle
	for _, p := range w.Phases {
		if in < p.For {
			return p.Times, p.For - in
		}
		in -= p.For
	}
	panic("the phases are the cycle")
}

// next is the instant of the call after one, of a caller with a part of the demand.
func (w *leaseWork) next(at time.Time) time.Time {
	for rest := rand.ExpFloat64() * float64(time.Second) * float64(w.Callers) / w.Demand; ; {
		times, lasts := w.times(at)
		if gap := time.Duration(rest / times); times > 0 && gap < lasts {
			return at.Add(gap)
		}
		rest -= times * float64(lasts)
		at = at.Add(lasts)
	}
}

const leaseRate = 1000 // a second

// leaseLimits are limits of leaseRate, that are there again after refill.
var leaseLimits = map[string]func(c ratelimit.Client, refill time.Duration) (ratelimit.Limiter, error){
	"bucket": func(c ratelimit.Client, refill time.Duration) (ratelimit.Limiter, error) {
		return ratelimit.NewTokenBucket(c, ratelimit.PerSecond(leaseRate), int(leaseRate*refill/time.Second))
	},
	"window": func(c ratelimit.Client, refill time.Duration) (ratelimit.Limiter, error) {
		return ratelimit.NewFixedWindow(c, int(leaseRate*refill/time.Second), refill)
	},
	"sliding": func(c ratelimit.Client, refill time.Duration) (ratelimit.Limiter, error) {
		return ratelimit.NewSlidingWindow(c, int(leaseRate*refill/time.Second), refill, ratelimit.WithSubWindows(4))
	},
}

// A leaseCall is a call that was allowed, or what a plain process was told of a window.
type leaseCall struct {
	Limit    int8 // of leaseWork.Limits; below 0: how many calls there were (Call), how many failed (Return) and were allowed (ResetsIn)
	Denied   bool
	Plain    bool
	_        [5]byte
	Call     int64
	Return   int64
	ResetsIn int64
}

// TestLeaseWorker is one of the processes that runLeases starts.
func TestLeaseWorker(t *testing.T) {
	given := os.Getenv(leaseWorkerEnv)
	if given == "" {
		t.Skip("started by other tests")
	}
	var w leaseWork
	require.NoError(t, json.Unmarshal([]byte(given), &w))
	client := redis.NewClient(&redis.Options{Addr: w.Addr, ReadTimeout: w.Timeout, DialTimeout: w.Timeout})
	defer client.Close()
	limiters := make([]ratelimit.Limiter, len(w.Limits))
	for i, name := range w.Limits {
		l, err := leaseLimits[name](client, w.Refill)
		require.NoError(t, err)
		if !w.Plain {
			var opts []ratelimit.PolicyOption
			if w.MaxSlice > 0 {
				opts = append(opts, ratelimit.WithMaxSlice(w.MaxSlice))
			}
			l, err = ratelimit.NewLeased(l, opts...)
			require.NoError(t, err)
		}
		limiters[i] = l
	}
	out := os.NewFile(3, "results")
	require.NoError(t, binary.Write(out, binary.LittleEndian, leaseCall{Limit: -2}))
	_, err := os.Stdin.Read(make([]byte, 1)) // its end: all are ready
	require.ErrorIs(t, err, io.EOF)
	begin := time.Now()
	var mu sync.Mutex // guards the below
	var calls, failed, allowed int64
	var callers sync.WaitGroup
	for i, l := range limiters {
		for range w.Callers {
			callers.Go(func() {
				for next := w.next(begin); next.Sub(begin) < w.For; next = w.next(next) {
					time.Sleep(time.Until(next))
					call := leaseCall{Limit: int8(i), Plain: w.Plain, Call: clock()}
					r, err := l.TryAcquire(ctx, "shared")
					call.Return, call.Denied, call.ResetsIn = clock(), !r.Allowed, int64(r.ResetAfter)
					mu.Lock()
					if time.Duration(call.Call-begin.UnixNano()) >= w.Warm {
						calls++
						if err != nil {
							failed++
						}
						if r.Allowed {
							allowed++
						}
					}
					if err == nil && (r.Allowed || w.Plain) {
						_ = binary.Write(out, binary.LittleEndian, call)
					}
					mu.Unlock()
				}
			})
		}
	}
	callers.Wait()
	require.NoError(t, binary.Write(out, binary.LittleEndian, leaseCall{Limit: -1, Call: calls, Return: failed, ResetsIn: allowed}))
}

// A leaseProcess is one of the processes with slices, and what it has reported.
type leaseProcess struct {
	*exec.Cmd
	work    leaseWork
	calls   []leaseCall
	asked   int64 // calls
	failed  int64
	allowed int64
	read    *bufio.Reader
	printed bytes.Buffer
}

// startLease starts a process. It begins when begin ends.
func startLease(t testing.TB, w leaseWork, begin *os.File) *leaseProcess {
	job, err := json.Marshal(w)
	require.NoError(t, err)
	read, write, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() { _ = read.Close() })
	p := &leaseProcess{Cmd: exec.Command(os.Args[0], "-test.run=^TestLeaseWorker$", "-test.timeout=2m"), work: w, read: bufio.NewReader(read)}
	p.Env, p.ExtraFiles = append(os.Environ(), leaseWorkerEnv+"="+string(job)), []*os.File{write}
	p.Stdin, p.Stdout, p.Stderr = begin, &p.printed, &p.printed
	require.NoError(t, p.Start())
	require.NoError(t, write.Close())
	var ready leaseCall
	require.NoError(t, binary.Read(p.read, binary.LittleEndian, &ready))
	return p
}

// collect reads what a process reports until it ends, or is killed.
func (p *leaseProcess) collect(t testing.TB, killed bool) {
	for {
		var c leaseCall
		err := binary.Read(p.read, binary.LittleEndian, &c)
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			if err := p.Wait(); err != nil && !killed {
				t.Errorf("%v\n%s", err, p.printed.Bytes())
			}
			return
		case err != nil:
			t.Error(err)
			return
		case c.Limit < 0:
			p.asked, p.failed, p.allowed = c.Call, c.Return, c.ResetsIn
		default:
			p.calls = append(p.calls, c)
		}
	}
}

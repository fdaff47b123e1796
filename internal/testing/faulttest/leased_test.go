package faulttest

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

const leaseWorkerEnv = "RATELIMIT_TEST_LEASE_WORKER"

// leaseWork is what a process with slices gets to do.
type leaseWork struct {
	Addr        string
	Rate, Burst int
	Demand      float64 // calls a second
	For         time.Duration
	Plain       bool // without slices
}

// An allowedCall is one permit, used between two instants of the machine's clock, in nanoseconds.
type allowedCall struct{ From, To int64 }

// TestLeaseWorker is one of the processes of TestProcessesWithSlicesAreKilled.
func TestLeaseWorker(t *testing.T) {
	given := os.Getenv(leaseWorkerEnv)
	if given == "" {
		t.Skip("started by TestProcessesWithSlicesAreKilled")
	}
	var w leaseWork
	require.NoError(t, json.Unmarshal([]byte(given), &w))
	client := redis.NewClient(&redis.Options{Addr: w.Addr})
	defer client.Close()
	var l ratelimit.Limiter = ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(w.Rate), w.Burst))
	if !w.Plain {
		l = ratelimit.Must(ratelimit.NewLeased(l))
	}
	out, end := os.NewFile(3, "results"), time.Now().Add(w.For)
	calls := int64(0)
	for next := time.Now(); next.Before(end); next = next.Add(time.Duration(rand.ExpFloat64() / w.Demand * float64(time.Second))) {
		if off := next.UnixNano() % int64(time.Second); off > int64(600*time.Millisecond) { // slices end unspent
			next = next.Add(time.Second - time.Duration(off))
		}
		time.Sleep(time.Until(next))
		from := time.Now().UnixNano()
		r, err := l.TryAcquire(ctx, "shared")
		require.NoError(t, err)
		if calls++; r.Allowed {
			require.NoError(t, binary.Write(out, binary.LittleEndian, allowedCall{from, time.Now().UnixNano()}))
		}
	}
	require.NoError(t, binary.Write(out, binary.LittleEndian, allowedCall{0, calls}))
}

// TestProcessesWithSlicesAreKilled: processes that spend slices of one bucket, at ten times its rate in the first 600 ms of
// each second, beside some that ask for each call. Some are killed, others are stopped for a while. What all were allowed is judged by the instants of calls
// and returns.
func TestProcessesWithSlicesAreKilled(t *testing.T) {
	const perSecond, burst, length = 1000, 1000, 4 * time.Second
	processes := limitertest.Rounds(64, 12)
	server := redistest.Start(t)
	work := leaseWork{Addr: server.Addr(), Rate: perSecond, Burst: burst, Demand: 10 * perSecond / float64(processes), For: length}
	before := redistest.Executions(t, server.Client(t))
	var mu sync.Mutex
	var used []allowedCall
	var calls int64
	var running sync.WaitGroup
	for p := range processes {
		w := work
		w.Plain = p%12 == 11
		job, err := json.Marshal(w)
		require.NoError(t, err)
		read, write, err := os.Pipe()
		require.NoError(t, err)
		cmd := exec.Command(os.Args[0], "-test.run=^TestLeaseWorker$", "-test.timeout=1m")
		cmd.Env, cmd.ExtraFiles = append(os.Environ(), leaseWorkerEnv+"="+string(job)), []*os.File{write}
		require.NoError(t, cmd.Start())
		require.NoError(t, write.Close())
		rng := rand.New(rand.NewPCG(uint64(p), 1))
		switch p % 4 {
		case 1:
			kill := time.AfterFunc(time.Second+time.Duration(rng.Int64N(int64(length))), func() { _ = cmd.Process.Kill() })
			defer kill.Stop()
		case 2:
			for range 4 {
				at := time.Duration(rng.Int64N(int64(length)))
				stop := time.AfterFunc(at, func() { redistest.PauseProcess(cmd.Process) })
				defer stop.Stop()
				on := time.AfterFunc(at+time.Duration(rng.Int64N(int64(length/8))), func() { redistest.ResumeProcess(cmd.Process) })
				defer on.Stop()
			}
		}
		running.Go(func() {
			defer read.Close()
			from := bufio.NewReader(read)
			for {
				var c allowedCall
				if err := binary.Read(from, binary.LittleEndian, &c); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
					break
				} else if err != nil {
					t.Error(err)
					break
				}
				mu.Lock()
				if c.From > 0 {
					used = append(used, c)
				} else {
					calls += c.To
				}
				mu.Unlock()
			}
			if err := cmd.Wait(); err != nil && p%4 != 1 {
				t.Errorf("process %d: %v", p, err)
			}
		})
	}
	running.Wait()
	slices.SortFunc(used, func(a, b allowedCall) int { return int(a.To - b.To) })
	worst, first := -float64(burst), used[0].From
	for _, a := range used {
		n := 0
		for _, u := range used {
			if u.From >= a.From {
				n++
				worst = max(worst, float64(n-burst)-perSecond*float64(u.To-a.From)/1e9)
			}
		}
		first = min(first, a.From)
	}
	time := float64(used[len(used)-1].To-first) / 1e9
	executions := redistest.Executions(t, server.Client(t)) - before
	t.Logf("%d processes were allowed %d calls in %.2f s, %.1f %% of the rule; the rule was met but for %.1f permits; %d executions for over %d calls",
		processes, len(used), time, 100*float64(len(used))/(burst+perSecond*time), -worst, executions, calls)
	require.LessOrEqual(t, worst, 1e-3)
	require.Greater(t, float64(len(used)), 0.5*perSecond*time)
}

package faulttest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/state"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// TestACallOfATenantWhoseReplyIsLostIsExecutedOnce: the limit has what each call took or gave back, once.
func TestACallOfATenantWhoseReplyIsLostIsExecutedOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	admin := server.Client(t)
	proxy := redistest.NewProxy(t, server.Addr())
	client := server.Client(t, func(o *redis.Options) { o.Addr = proxy.Addr() })
	for _, opts := range [][]ratelimit.Option{nil, {ratelimit.WithoutMerging()}} {
		require.NoError(t, admin.FlushAll(ctx).Err())
		l, err := ratelimit.NewFairTokenBucket(client, ratelimit.PerHour(1), 4000, opts...)
		require.NoError(t, err)
		require.NoError(t, ratelimit.Preload(ctx, ratelimit.ClaimOf(l, "{limit}:0", 1)))
		var tickets []*ratelimit.Ticket
		for tenant := range 2 {
			ticket, r, err := l.Estimate(ctx, fmt.Sprintf("{limit}:%d", tenant), 50)
			require.NoError(t, err)
			require.True(t, r.Allowed)
			tickets = append(tickets, ticket)
		}
		used := int64(100)
		for name, call := range map[string]struct {
			takes int64
			do    func() error
		}{
			"take":                     {3, func() error { _, err := l.TryAcquireN(ctx, "{limit}:0", 3); return err }},
			"take as many as are left": {7, func() error { _, _, err := l.TryAcquireUpTo(ctx, "{limit}:0", 7); return err }},
			"charge":                   {5, func() error { _, err := l.Charge(ctx, "{limit}:1", 5); return err }},
			"estimate":                 {11, func() error { _, _, err := l.Estimate(ctx, "{limit}:1", 11); return err }},
			"settle":                   {-20, func() error { return tickets[0].Settle(ctx, 30) }},
			"settle with a charge":     {13, func() error { return tickets[1].Settle(ctx, 63) }},
			"several limits": {2, func() error {
				_, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(l, "{limit}:0", 2))
				return err
			}},
		} {
			lost := proxy.DropNextReply(redistest.OnScript())
			require.Error(t, call.do(), name)
			require.Equal(t, 1, lost.Hits(), name)
			used += call.takes
			require.Eventually(t, func() bool {
				states, err := state.Read(ctx, admin, []string{"ratelimit:default:fairtokenbucket:{limit}"}, 0)
				require.NoError(t, err)
				require.NoError(t, states[0].Err)
				return states[0].Used == used
			}, generous, 10*time.Millisecond, "%s: %d", name, used)
		}
	}
}

const fairWorkerEnv = "RATELIMIT_TEST_FAIR_WORKER"

// fairWork is what a process does, and what it reports.
type fairWork struct {
	Addr    string
	Process int
	For     time.Duration
	Taken   int
	Ended   int64
}

// fairLimit is a limit of 1,000 a second, and 400 at once.
func fairLimit(t testing.TB, c ratelimit.Client) *ratelimit.FairTokenBucket {
	l, err := ratelimit.NewFairTokenBucket(c, ratelimit.PerSecond(1000), 400)
	require.NoError(t, err)
	return l
}

// TestFairWorkerProcess is one of the processes of TestProcessesShareOneLimit.
func TestFairWorkerProcess(t *testing.T) {
	given := os.Getenv(fairWorkerEnv)
	if given == "" {
		t.Skip("started by TestProcessesShareOneLimit")
	}
	var w fairWork
	require.NoError(t, json.Unmarshal([]byte(given), &w))
	client := redis.NewClient(&redis.Options{Addr: w.Addr})
	defer client.Close()
	l, err := fairLimit(t, client).Weight(1 + w.Process%2)
	require.NoError(t, err)
	require.NoError(t, client.Ping(ctx).Err())
	results := json.NewEncoder(os.NewFile(3, "results"))
	require.NoError(t, results.Encode("ready"))
	_, err = os.Stdin.Read(make([]byte, 1)) // its end: all are ready
	require.ErrorIs(t, err, io.EOF)
	for begin := time.Now(); time.Since(begin) < w.For; {
		r, err := l.TryAcquire(ctx, fmt.Sprintf("{limit}:%d", w.Process))
		require.NoError(t, err)
		if r.Allowed {
			w.Taken++
			continue
		}
		time.Sleep(min(r.RetryAfter, 5*time.Millisecond))
	}
	w.Ended = time.Now().UnixNano()
	require.NoError(t, results.Encode(w))
}

// TestProcessesShareOneLimit: each is a tenant, of weight 1 or 2, and always asks. With RATELIMIT_LONG there are 64.
func TestProcessesShareOneLimit(t *testing.T) {
	t.Parallel()
	processes, length := limitertest.Rounds(64, 6), 1500*time.Millisecond
	if processes > 6 {
		length = 20 * time.Second
	}
	server := redistest.Start(t)
	all := make([]fairWork, processes)
	begin, start, err := os.Pipe()
	require.NoError(t, err)
	defer begin.Close()
	var running, preparing sync.WaitGroup
	preparing.Add(processes)
	for p := range all {
		running.Go(func() {
			job, err := json.Marshal(fairWork{Addr: server.Addr(), Process: p, For: length})
			if err != nil {
				t.Error(err)
			}
			read, write, err := os.Pipe()
			if err != nil {
				t.Error(err)
			}
			defer read.Close()
			var printed bytes.Buffer
			cmd := exec.Command(os.Args[0], "-test.run=^TestFairWorkerProcess$", "-test.timeout=2m")
			cmd.Env = append(os.Environ(), fairWorkerEnv+"="+string(job))
			cmd.ExtraFiles = []*os.File{write}
			cmd.Stdin, cmd.Stdout, cmd.Stderr = begin, &printed, &printed
			err = cmd.Start()
			_ = write.Close()
			results, ready := json.NewDecoder(read), ""
			if err == nil {
				err = results.Decode(&ready)
			}
			preparing.Done()
			if err == nil {
				err = results.Decode(&all[p])
				_ = cmd.Wait()
			}
			if err != nil {
				t.Errorf("process %d: %v\n%s", p, err, printed.Bytes())
			}
		})
	}
	preparing.Wait()
	began := time.Now()
	require.NoError(t, start.Close())
	running.Wait()
	taken, ended, share, squares := 0, int64(0), 0.0, 0.0
	for p, w := range all {
		taken, ended = taken+w.Taken, max(ended, w.Ended)
		each := float64(w.Taken) / float64(1+p%2)
		share, squares = share+each, squares+each*each
		require.Positive(t, w.Taken, "process %d", p)
	}
	took := time.Duration(ended - began.UnixNano()).Seconds()
	require.LessOrEqual(t, taken, 400+int(took*1000)+1, "of all, in %.3f s", took)
	left, err := state.Read(ctx, server.Client(t), []string{"ratelimit:default:fairtokenbucket:{limit}"}, 0)
	require.NoError(t, err)
	came := time.Since(began).Seconds() * 1000
	t.Logf("%d processes took %d in %.1f s: %.1f %% of what came; Jain by weight %.3f", processes, taken, took,
		100*(float64(taken)-float64(left[0].Used))/came, share*share/(float64(processes)*squares))
}

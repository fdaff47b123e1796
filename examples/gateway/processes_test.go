package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// processEnv is set in the processes that TestAGatewayIsKilled starts: the arguments of the program.
const processEnv = "RATELIMIT_GATEWAY_PROCESS"

// TestProcess is no test of its own: it is a gateway, until its input ends.
func TestProcess(t *testing.T) {
	args := os.Getenv(processEnv)
	if args == "" {
		t.Skip("TestAGatewayIsKilled starts it")
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() { _, _ = io.Copy(io.Discard, os.Stdin); stop() }()
	require.NoError(t, run(ctx, strings.Fields(args), os.Stdout, miniredis.Run))
}

// A process is a gateway in a process of its own.
type process struct {
	cmd    *exec.Cmd
	in     io.Closer
	url    string
	usages string // its journal
}

func startProcess(t *testing.T, args string) *process {
	t.Helper()
	p := &process{usages: filepath.Join(t.TempDir(), "usages")}
	p.cmd = exec.Command(os.Args[0], "-test.run=^TestProcess$", "-test.timeout=5m")
	redistest.EndWithTest(p.cmd)
	p.cmd.Env = append(os.Environ(), processEnv+"=-listen 127.0.0.1:0 -usages "+p.usages+" "+args)
	in, err := p.cmd.StdinPipe()
	require.NoError(t, err)
	p.in = in
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	go func() { _, _ = io.Copy(io.Discard, out) }()
	_, err = fmt.Sscanf(line, "who has spent what: %s", &p.url)
	require.NoError(t, err, line)
	return p
}

// A token of an answer costs a micro-dollar. The budget of poor is used up during the test.
const processConfig = `{
	"models": {"parrot": {"input": 0.5, "cached": 0.1, "output": 1, "most_output": 200}},
	"teams": {
		"red": {"month": 1, "keys": {
			"ann": {"secret": "sk-ann", "month": 1, "tokens_per_minute": 1000000000, "running": 1000},
			"bob": {"secret": "sk-bob", "month": 1, "tokens_per_minute": 1000000000, "running": 1000}}},
		"blue": {"month": 1, "keys": {
			"poor": {"secret": "sk-poor", "month": 0.001, "tokens_per_minute": 1000000000, "running": 1000}}}}}`

// TestAGatewayIsKilled: three processes serve calls that are answered, cut, denied and given up, and one process is killed. When
// the leases of tickets are over, each account in Redis is what the journals say, to the micro-dollar.
func TestAGatewayIsKilled(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	fake := httptest.NewServer(&parrot{time.Millisecond})
	defer fake.Close()
	path := filepath.Join(t.TempDir(), "config.json")
	require.NoError(t, os.WriteFile(path, []byte(processConfig), 0o600))
	const lease, callers = time.Second, 24
	var processes []*process
	for range 3 {
		processes = append(processes, startProcess(t, fmt.Sprintf(
			"-redis %s -upstream %s -config %s -lease %v -slice 10", server.Addr(), fake.URL, path, lease)))
	}
	killAfter := int64(max(limitertest.Rounds(2_000, 100), 100)) // calls; fewer end in fewer ways

	seed := limitertest.Seed(t)
	var begun, broken atomic.Int64
	kill := make(chan struct{})
	var dead atomic.Bool
	var load sync.WaitGroup
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: callers}}
	for caller := range callers {
		random := rand.New(rand.NewPCG(seed, uint64(caller)))
		load.Go(func() {
			for n := begun.Add(1); n <= 2*killAfter; n = begun.Add(1) {
				if n == killAfter {
					close(kill)
				}
				to := random.IntN(3)
				if to == 0 && dead.Load() {
					to = 1
				}
				ctx, cancel := context.WithCancel(context.Background())
				if random.IntN(4) == 0 {
					time.AfterFunc(time.Duration(random.IntN(40))*time.Millisecond, cancel)
				}
				body := fmt.Sprintf(`{"model":"parrot","stream":%t,"messages":[{"content":"a b"},{"content":"say %d words"}]}`, random.IntN(4) > 0, random.IntN(200))
				r, err := http.NewRequestWithContext(ctx, "POST", processes[to].url+"v1/chat/completions", strings.NewReader(body))
				if err != nil {
					panic(err)
				}
				r.Header.Set("Authorization", "Bearer sk-"+[]string{"ann", "bob", "poor"}[random.IntN(3)])
				resp, err := client.Do(r)
				if err == nil {
					_, err = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
				if err != nil && to == 0 && ctx.Err() == nil {
					broken.Add(1)
				}
				cancel()
			}
		})
	}
	<-kill
	require.NoError(t, processes[0].cmd.Process.Kill())
	dead.Store(true)
	load.Wait()
	client.CloseIdleConnections() // a server waits for five seconds for a request on those that had none
	for _, p := range processes {
		_ = p.in.Close()
		_ = p.cmd.Wait()
	}
	require.Positive(t, broken.Load(), "calls ran when their process was killed")

	// A client that leaves while its estimates are taken leaves them behind too, until their lease ends by the server's clock.
	time.Sleep(lease + 50*time.Millisecond)
	var c config
	require.NoError(t, json.Unmarshal([]byte(processConfig), &c))
	store := server.Client(t)
	book, err := newLedger(store, lease)
	require.NoError(t, err)
	settled, doubtful, ends := read(t, processes)
	t.Logf("%d calls, %d of them broken; by their ends %v; in doubt %v", 2*killAfter, broken.Load(), ends, doubtful)
	require.Len(t, ends, 3)
	for _, end := range []string{"complete", "cut", "cancelled"} {
		require.Positive(t, ends[end], "calls that were %s", end)
	}
	for teamName, team := range c.Teams {
		spent, err := book.team(t.Context(), teamName)
		require.NoError(t, err)
		require.Contains(t, sums(settled[teamName], doubtful[teamName]), spent, teamName)
		for name, k := range team.Keys {
			spent, err := book.key(t.Context(), teamName, name)
			require.NoError(t, err)
			account := teamName + " " + name
			require.Contains(t, sums(settled[account], doubtful[account]), spent, account)
			require.LessOrEqual(t, spent, int(k.Month)+callers, "each call that is cut has at most one token too many")
			running := ratelimit.Must(ratelimit.NewInFlight(store, 1000, lease, ratelimit.WithName("running")))
			places, err := running.Peek(t.Context(), keyID(teamName, name))
			require.NoError(t, err)
			require.Equal(t, 1000, places.Remaining)
		}
	}
}

// read reads the journals: what was settled for each team and key, and what is in doubt, because its process died or had no
// reply while it was settled.
func read(t *testing.T, processes []*process) (settled map[string]int, doubtful map[string][]int, ends map[string]int) {
	settled, doubtful, ends = map[string]int{}, map[string][]int{}, map[string]int{}
	for _, p := range processes {
		text, err := os.ReadFile(p.usages)
		require.NoError(t, err)
		open := map[string]entry{}
		for line := range bytes.Lines(text) {
			var e entry
			require.NoError(t, json.Unmarshal(line, &e))
			of, ok := open[e.Call]
			switch {
			case !ok:
				open[e.Call] = e
				ends[e.End]++
			case e.Settled:
				require.Equal(t, of.Micros, e.Micros)
				settled[of.Team] += e.Micros
				settled[of.Team+" "+of.Key] += e.Micros
				delete(open, e.Call)
			}
		}
		for _, e := range open {
			doubtful[e.Team] = append(doubtful[e.Team], e.Micros)
			doubtful[e.Team+" "+e.Key] = append(doubtful[e.Team+" "+e.Key], e.Micros)
		}
	}
	return settled, doubtful, ends
}

// sums are what an account can hold: that which was settled, and any of those in doubt.
func sums(settled int, doubtful []int) map[int]bool {
	all := map[int]bool{settled: true}
	for _, n := range doubtful {
		for _, sum := range slices.Collect(maps.Keys(all)) {
			all[sum+n] = true
		}
	}
	return all
}

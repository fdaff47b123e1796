package main

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// processEnv is set in the processes that TestTheRequestThatGoesFirstDies starts: the address of Redis, and the upstream.
const processEnv = "RATELIMIT_CLIENT_PROCESS"

// TestProcess is no test of its own: it makes three requests when it is told to.
func TestProcess(t *testing.T) {
	addr, url, ok := strings.Cut(os.Getenv(processEnv), " ")
	if !ok {
		t.Skip("TestTheRequestThatGoesFirstDies starts it")
	}
	store := redis.NewClient(&redis.Options{Addr: addr})
	defer store.Close()
	client := &http.Client{Transport: ratelimit.Must(newTransport(http.DefaultTransport, ratelimit.AllowAll(), store))}
	for line := bufio.NewScanner(os.Stdin); line.Scan(); {
		n, err := strconv.Atoi(line.Text())
		require.NoError(t, err)
		for range n {
			go func() {
				r, err := http.NewRequest("GET", url, nil)
				if err != nil {
					panic(err)
				}
				r.Header.Set("User-Agent", strconv.Itoa(os.Getpid()))
				if resp, err := client.Do(r); err == nil {
					resp.Body.Close()
				}
			}()
		}
	}
}

// TestTheRequestThatGoesFirstDies: three processes wait for the end of a pause. The one whose request goes first is killed;
// then another one's goes, and the others follow its success. None comes before the instant.
func TestTheRequestThatGoesFirstDies(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	type arrival struct {
		at     time.Time
		pid    string
		answer chan int // the status
	}
	arrivals, ended := make(chan arrival, 100), make(chan struct{})
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := arrival{time.Now(), r.UserAgent(), make(chan int, 1)}
		arrivals <- a
		select {
		case status := <-a.answer:
			if status == http.StatusTooManyRequests {
				w.Header().Set("Retry-After", "2")
			}
			w.WriteHeader(status)
		case <-ended:
		}
	}))
	defer upstream.Close()
	defer close(ended)

	processes := map[string]*exec.Cmd{}
	var tell []io.Writer
	var pids []string
	var waits sync.WaitGroup
	defer waits.Wait()
	for range 3 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestProcess$", "-test.timeout=2m")
		redistest.EndWithTest(cmd)
		cmd.Env = append(os.Environ(), processEnv+"="+server.Addr()+" "+upstream.URL)
		in, err := cmd.StdinPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		pid := strconv.Itoa(cmd.Process.Pid)
		processes[pid], tell, pids = cmd, append(tell, in), append(pids, pid)
		defer waits.Go(func() { _ = cmd.Wait() })
		defer func() { _ = cmd.Process.Kill() }()
	}
	_, _ = fmt.Fprintln(tell[0], 1)
	first := <-arrivals
	require.Equal(t, pids[0], first.pid)
	first.answer <- http.StatusTooManyRequests

	pause := ratelimit.Must(ratelimit.NewPause(server.Client(t), ratelimit.WithName("upstream"), ratelimit.WithProbe(probeTime)))
	host := strings.TrimPrefix(upstream.URL, "http://")
	var instant time.Time // no later than that of Redis
	for instant.IsZero() {
		now := time.Now()
		r, err := pause.Peek(t.Context(), host)
		require.NoError(t, err)
		if r.RetryAfter > 0 {
			instant = now.Add(r.RetryAfter)
		}
	}
	for _, in := range tell {
		_, _ = fmt.Fprintln(in, 3)
	}
	probe := <-arrivals
	require.False(t, probe.at.Before(instant))
	require.NoError(t, processes[probe.pid].Process.Kill())
	next := <-arrivals
	require.NotEqual(t, probe.pid, next.pid)
	require.False(t, next.at.Before(instant.Add(probeTime)), "one goes first")
	succeeded := time.Now()
	next.answer <- http.StatusOK

	want := 3*2 - 1
	if probe.pid != pids[0] {
		want++ // the request that was denied
	}
	for range want {
		a := <-arrivals
		require.NotEqual(t, probe.pid, a.pid)
		require.False(t, a.at.Before(succeeded) && a.at.Before(instant.Add(2*probeTime)), "the others follow its success")
		a.answer <- http.StatusOK
	}
}

package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

const processes = 3

// A process is one that runs the service.
type process struct {
	customers, admins string // addresses
	cmd               *exec.Cmd
	client            *http.Client
	ended             chan struct{} // closed when it has ended, and has been waited for

	mu      sync.Mutex
	printed bytes.Buffer
}

// Write gets what the process prints.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.printed.Write(b)
}

func (p *process) log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.printed.String()
}

// build makes the program, once for all tests.
var build = sync.OnceValues(func() (string, error) {
	program := filepath.Join(programs, "service")
	args := []string{"build", "-o", program}
	if raceflag.Enabled {
		args = append(args, "-race")
	}
	out, err := exec.Command("go", append(args, ".")...).CombinedOutput()
	if err != nil {
		return string(out), err
	}
	return program, nil
})

var serving = regexp.MustCompile(`serving customers=(\S+) admins=(\S+)`)

// start starts a process, whose Redis is at redis.
func start(t *testing.T, redis string, environment ...string) *process {
	t.Helper()
	program, err := build()
	require.NoError(t, err, program)
	// The server closes a connection on which no request has come for five seconds. A client that has just chosen it gets EOF, and
	// sends no POST again: so a client keeps connections for less time than its server.
	transport := &http.Transport{MaxIdleConnsPerHost: 256, IdleConnTimeout: 2 * time.Second}
	p := &process{ended: make(chan struct{}), client: &http.Client{Timeout: time.Minute, Transport: transport}}
	p.cmd = exec.Command(program)
	p.cmd.Env = append(p.cmd.Environ(), "ADDR=127.0.0.1:0", "ADMIN_ADDR=127.0.0.1:0", "REDIS_ADDR="+redis, "TRUSTED_PROXIES=127.0.0.0/8")
	p.cmd.Env = append(p.cmd.Env, environment...)
	p.cmd.Stdout, p.cmd.Stderr = p, p
	redistest.EndWithTest(p.cmd)
	require.NoError(t, p.cmd.Start())
	go func() { defer close(p.ended); _ = p.cmd.Wait() }()
	t.Cleanup(func() {
		p.client.CloseIdleConnections()
		_ = p.cmd.Process.Kill()
		<-p.ended
		if t.Failed() {
			t.Logf("the process %s printed: %s", p.customers, p.log())
		}
		if strings.Contains(p.log(), "DATA RACE") {
			t.Error("a data race in the service")
		}
	})
	p.await(t, "serving")
	found := serving.FindStringSubmatch(p.log())
	require.NotNil(t, found)
	p.customers, p.admins = found[1], found[2]
	return p
}

// await waits until the process has printed text.
func (p *process) await(t *testing.T, text string) {
	t.Helper()
	eventually(t, text, func() bool {
		select {
		case <-p.ended:
			require.Fail(t, "the process has ended", p.log())
		default:
		}
		return strings.Contains(p.log(), text)
	})
}

// stop asks the process to end, as an orchestrator does.
func (p *process) stop(t *testing.T) { require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM)) }

// A call is a request to a process.
type call struct {
	method, path, apiKey, from, form string
	admin                            bool
}

// An answer is what a client sees of the limits.
type answer struct {
	status               int
	policies, rateLimits []string
	retryAfter           string
	body                 string
}

func (p *process) ask(c call) (answer, error) {
	method, host := c.method, p.customers
	if method == "" {
		method = "POST"
	}
	if c.admin {
		host = p.admins
	}
	r, err := http.NewRequestWithContext(context.Background(), method, "http://"+host+c.path, strings.NewReader(c.form))
	if err != nil {
		return answer{}, err
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if c.apiKey != "" {
		r.Header.Set("X-API-Key", c.apiKey)
	}
	if c.from != "" {
		r.Header.Set("X-Forwarded-For", c.from)
	}
	got, err := p.client.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer got.Body.Close()
	body, err := io.ReadAll(got.Body)
	return answer{got.StatusCode, got.Header.Values("RateLimit-Policy"), got.Header.Values("RateLimit"), got.Header.Get("Retry-After"), string(body)}, err
}

// must is ask, whose answer it expects.
func (p *process) must(t *testing.T, c call) answer {
	t.Helper()
	a, err := p.ask(c)
	require.NoError(t, err)
	return a
}

// eventually waits for something that comes when it comes: other processes have no clock that a test could set.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(2 * time.Millisecond) {
		require.True(t, time.Now().Before(deadline), "waited for a minute: %s", what)
	}
}

// startRedis starts a server that forgets nothing when it is killed.
func startRedis(t *testing.T) *redistest.Server {
	return redistest.Start(t, redistest.Args("--appendonly", "yes", "--appendfsync", "no"))
}

// outages are ways in which Redis is down.
var outages = []struct {
	name       string
	begin, end func(*redistest.Server)
}{
	{"hangs", (*redistest.Server).Pause, (*redistest.Server).Resume},
	{"killed", (*redistest.Server).Kill, (*redistest.Server).Restart},
}

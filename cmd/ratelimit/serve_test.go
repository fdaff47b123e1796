package main

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
)

// A log is written and read at the same time.
type log struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (l *log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func TestServe(t *testing.T) {
	redis := miniredis.RunT(t)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "shop.yaml"), []byte("domain: shop\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 2}}]"), 0o600))
	var stderr log
	p := program{stdout: &stderr, stderr: &stderr, pause: pause, environ: func(name string) string {
		return map[string]string{"REDIS_URL": "redis://" + redis.Addr()}[name]
	}}
	ctx, stop := context.WithCancel(t.Context())
	code := make(chan int, 1)
	go func() {
		code <- p.command(ctx, []string{"serve", "--config", dir, "--headers", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--metrics", ""})
	}()
	address := func(what string) (found string) {
		pattern := regexp.MustCompile(`msg=listening for=` + what + ` at=(\S+)`)
		require.Eventually(t, func() bool {
			if m := pattern.FindStringSubmatch(stderr.String()); m != nil {
				found = m[1]
			}
			return found != ""
		}, 10*time.Second, time.Millisecond)
		return found
	}
	conn, err := grpc.NewClient(address("gRPC"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	const body = `{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "42"}]}]}`
	var request pb.RateLimitRequest
	require.NoError(t, protojson.Unmarshal([]byte(body), &request))
	for _, left := range []uint32{1, 0} {
		answer, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), &request, grpc.WaitForReady(true))
		require.NoError(t, err)
		require.Equal(t, left, answer.GetStatuses()[0].GetLimitRemaining())
	}
	post, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+address("HTTP")+"/json", strings.NewReader(body))
	require.NoError(t, err)
	answer, err := http.DefaultClient.Do(post)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Equal(t, http.StatusTooManyRequests, answer.StatusCode)
	stop()
	require.Equal(t, exitDone, <-code)
	require.Contains(t, stderr.String(), "every request that had begun is answered")
	require.NotContains(t, stderr.String(), "metrics")
}

func TestServeChecks(t *testing.T) {
	dir := t.TempDir()
	code, _, problems := command("serve", "--config", dir, "--check")
	require.Equal(t, exitFailed, code)
	require.Contains(t, problems, "has no file that ends with .yaml or .yml")
	file := filepath.Join(dir, "a.yaml")
	require.NoError(t, os.WriteFile(file, []byte("domain: shop\ndescriptors: [{key: a, valu: b}]"), 0o600))
	code, out, problems := command("serve", "--config", dir, "--check")
	require.Equal(t, []any{exitNo, file + ":2: descriptor shop.a: valu is no field here; did you mean value?\n", ""}, []any{code, out, problems})
	require.NoError(t, os.WriteFile(file, []byte("domain: shop\ndescriptors: [{key: a, value: b}]"), 0o600))
	code, out, problems = command("serve", "--config", dir, "--check")
	require.Equal(t, []any{exitDone, "", ""}, []any{code, out, problems})

	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"serve"}, "--config is missing"},
		{[]string{"serve", "--config", dir, "--xds", "localhost:1"}, "--xds takes the config from a management server; leave --config and --check out"},
		{[]string{"serve", "--check", "--xds", "localhost:1"}, "--xds takes the config from a management server; leave --config and --check out"},
		{[]string{"serve", "--xds", "\x7f"}, "--xds"},
		{[]string{"serve", "--config", dir, "--cluster", "--sentinel", "m"}, "--cluster and --sentinel exclude each other"},
		{[]string{"serve", "--config", dir, "--cluster", "--db", "3"}, "a Cluster has database 0 only"},
		{[]string{"serve", "--config", dir, "--addr", "a,b"}, "--addr: several servers are for serve, with --cluster or --sentinel"},
		{[]string{"serve", "--config", dir, "--timeout", "0s"}, "--timeout is 0s; write a time above 0"},
		{[]string{"top", "--timeout", "-5s"}, "--timeout is -5s; write a time above 0"},
		{[]string{"serve", "--config", dir, "--grpc", "", "--http", "", "--metrics", "", "--outage", "local", "--instances", "-3"}, "-3 instances"},
		{[]string{"serve", "--config", dir, "--grpc", "", "--http", "", "--metrics", "", "--outage", "open"}, `the fallback "open" is not known; write allow, deny or local`},
		{[]string{"serve", "--config", dir, "--budget", "-1s"}, "-1s"},
		{[]string{"serve", "--config", dir, "--grpc", "127.0.0.1:0", "--http", "", "--metrics", "", "--client-ca", file}, "TLS needs a certificate and its key"},
	} {
		code, _, problems := command(test.args...)
		require.Equal(t, exitUsage, code, test.args)
		require.Contains(t, problems, test.want)
	}
}

// TestServeNamesSeveralServers: a process that starts while one of them is down finds another.
func TestServeNamesSeveralServers(t *testing.T) {
	f := serveFlags{cluster: true}
	f.redis.addr, f.redis.timeout, f.options.Outage.Budget = "a:1,b,[::1]:2", time.Second, time.Second
	c, err := f.client(func(string) string { return "" })
	require.NoError(t, err)
	defer c.Close()
	require.Equal(t, []string{"a:1", "b:6379", "[::1]:2"}, c.(*goredis.ClusterClient).Options().Addrs)
}

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// A served is a process of the program that serves, for Redis at url.
type served struct {
	pb.RateLimitServiceClient
	health grpc_health_v1.HealthClient
	args   []string
	cmd    *exec.Cmd
	log    *log
}

func startServe(t *testing.T, limit, url string, args ...string) *served {
	t.Helper()
	dir := t.TempDir()
	file := "domain: shop\ndescriptors: [{key: all, rate_limit: {unit: year, requests_per_unit: " + limit + "}}, {key: user, rate_limit: {unit: year, requests_per_unit: " + limit + "}}]"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "shop.yaml"), []byte(file), 0o600))
	s := &served{args: args, log: &log{}}
	s.cmd = exec.Command(os.Args[0], append([]string{"serve", "--config", dir, "--grpc", "127.0.0.1:0", "--http", "", "--metrics", "", "--timeout", "2s"}, args...)...)
	s.cmd.Env = append(os.Environ(), asProgram+"=1", "REDIS_URL="+url)
	s.cmd.Stderr = s.log
	redistest.EndWithTest(s.cmd)
	require.NoError(t, s.cmd.Start())
	t.Cleanup(s.kill)
	listening := regexp.MustCompile(`msg=listening for=gRPC at=(\S+)`)
	require.Eventually(t, func() bool { return listening.MatchString(s.log.String()) }, 20*time.Second, time.Millisecond)
	conn, err := grpc.NewClient(listening.FindStringSubmatch(s.log.String())[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	s.RateLimitServiceClient, s.health = pb.NewRateLimitServiceClient(conn), grpc_health_v1.NewHealthClient(conn)
	return s
}

func (s *served) kill() {
	_ = s.cmd.Process.Kill()
	_, _ = s.cmd.Process.Wait()
}

// asking is a request with a hit of each descriptor.
func asking(hits uint32, keys ...string) *pb.RateLimitRequest {
	r := &pb.RateLimitRequest{Domain: "shop", HitsAddend: hits}
	for _, key := range keys {
		r.Descriptors = append(r.Descriptors, &common.RateLimitDescriptor{Entries: []*common.RateLimitDescriptor_Entry{{Key: key, Value: "42"}}})
	}
	return r
}

// expect asks until there is an answer, and asserts what is left of each limit.
func (s *served) expect(t *testing.T, code pb.RateLimitResponse_Code, left ...uint32) {
	t.Helper()
	var answer *pb.RateLimitResponse
	require.Eventually(t, func() (ok bool) {
		var err error
		answer, err = s.ShouldRateLimit(t.Context(), asking(1, "all", "user"), grpc.WaitForReady(true))
		return err == nil
	}, 30*time.Second, 10*time.Millisecond, "%v", s.log)
	require.Equal(t, code, answer.GetOverallCode())
	for i, d := range answer.GetStatuses() {
		require.Equal(t, left[i], d.GetLimitRemaining())
	}
}

// healthy waits until the service says that it serves.
func (s *served) healthy(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		state, err := s.health.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
		return err == nil && state.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING
	}, 30*time.Second, 10*time.Millisecond, "%v", s.log)
}

// TestServeByTLSAsALimitedUser: a certificate that SSL_CERT_FILE names, and a user that may do what fixed windows need, and
// PING.
func TestServeByTLSAsALimitedUser(t *testing.T) {
	server := redistest.Start(t, redistest.TLS(), redistest.ACL("limiter", "on", ">secret", "resetchannels", "~ratelimit:*", "-@all",
		"+evalsha", "+eval", "+time", "+get", "+set", "+pttl", "+ping"))
	conn, err := tls.Dial("tcp", server.Addr(), server.TLSConfig())
	require.NoError(t, err)
	defer conn.Close()
	authorities := filepath.Join(t.TempDir(), "ca")
	var text []byte
	for _, cert := range conn.ConnectionState().PeerCertificates {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})...)
	}
	require.NoError(t, os.WriteFile(authorities, text, 0o600))
	t.Setenv("SSL_CERT_FILE", authorities)
	s := startServe(t, "2", "rediss://limiter:secret@"+server.Addr())
	s.healthy(t)
	s.expect(t, pb.RateLimitResponse_OK, 1, 1)
	s.expect(t, pb.RateLimitResponse_OK, 0, 0)
	s.expect(t, pb.RateLimitResponse_OVER_LIMIT, 0, 0)
	require.NotContains(t, s.log.String(), "level=ERROR")
}

// TestServeWithACertificateForRedis: Redis asks for one. A new one is in force without a restart, and while its files are broken,
// the former one is.
func TestServeWithACertificateForRedis(t *testing.T) {
	server := redistest.Start(t, redistest.TLS(), redistest.Args("--tls-auth-clients", "yes"))
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
		return path
	}
	install := func(from *redistest.Server) (cert, key string) {
		own := from.TLSConfig().Certificates[0]
		der, err := x509.MarshalPKCS8PrivateKey(own.PrivateKey)
		require.NoError(t, err)
		return write("cert", "CERTIFICATE", own.Certificate[0]), write("key", "PRIVATE KEY", der)
	}
	conn, err := tls.Dial("tcp", server.Addr(), server.TLSConfig())
	require.NoError(t, err)
	defer conn.Close()
	chain := conn.ConnectionState().VerifiedChains[0]
	ca := write("ca", "CERTIFICATE", chain[len(chain)-1].Raw)

	cert, key := install(redistest.Start(t, redistest.TLS())) // of another authority
	s := startServe(t, "3", "rediss://"+server.Addr(), "--redis-cert", cert, "--redis-key", key, "--redis-ca", ca)
	logged := func(text string) {
		t.Helper()
		require.Eventually(t, func() bool { return strings.Contains(s.log.String(), text) }, 20*time.Second, time.Millisecond, "%v", s.log)
	}
	logged("Redis does not answer")
	install(server)
	s.healthy(t)
	s.expect(t, pb.RateLimitResponse_OK, 2, 2)

	write("cert", "CERTIFICATE", []byte("broken"))
	require.NoError(t, server.Client(t).ClientKillByFilter(t.Context(), "SKIPME", "yes").Err())
	s.expect(t, pb.RateLimitResponse_OK, 1, 1) // by a new connection
	logged("the files of TLS to Redis are not in force, the former ones are")
	install(server)
	require.NoError(t, server.Client(t).ClientKillByFilter(t.Context(), "SKIPME", "yes").Err())
	s.expect(t, pb.RateLimitResponse_OK, 0, 0)
	logged("the files of TLS to Redis are in force again")

	url := map[string]string{"REDIS_URL": "rediss://" + server.Addr()}
	for _, test := range []struct {
		want int
		url  string
		args []string
		text string
	}{
		{exitDone, "rediss://", []string{"--redis-cert", cert, "--redis-key", key, "--redis-ca", ca}, ""},
		{exitFailed, "rediss://", []string{"--redis-ca", ca}, "(does it ask for a certificate (--redis-cert)?)"},
		{exitUsage, "redis://", []string{"--redis-ca", ca}, "--redis-cert, --redis-key and --redis-ca are for TLS; add --tls, or write rediss:// into REDIS_URL"},
		{exitUsage, "rediss://", []string{"--redis-key", key}, "--redis-cert and --redis-key belong together; give both"},
		{exitUsage, "rediss://", []string{"--redis-ca", key}, key + " has no certificate"},
		{exitUsage, "rediss://", []string{"--redis-ca", dir + "/nothing"}, dir + "/nothing: no such file"},
		{exitUsage, "rediss://", []string{"--redis-cert", ca, "--redis-key", key}, ca + ", " + key + ": "},
	} {
		var out, problems bytes.Buffer
		url["REDIS_URL"] = test.url + server.Addr()
		p := program{stdout: &out, stderr: &problems, pause: pause, environ: func(name string) string { return url[name] }}
		require.Equal(t, test.want, p.command(t.Context(), append([]string{"top"}, test.args...)), "%v: %v", test.args, &problems)
		require.Contains(t, problems.String(), test.text)
	}
}

// TestServeOnACluster: descriptors in two slots are decided all or nothing. With RATELIMIT_LONG.
func TestServeOnACluster(t *testing.T) {
	long(t)
	cluster := redistest.StartCluster(t)
	s := startServe(t, "2", "redis://"+cluster.Addrs()[0], "--cluster")
	s.healthy(t)
	s.expect(t, pb.RateLimitResponse_OK, 1, 1)
	s.expect(t, pb.RateLimitResponse_OK, 0, 0)
	s.expect(t, pb.RateLimitResponse_OVER_LIMIT, 0, 0)
	cluster.NodeFor("ratelimit:x").Kill()
	cluster.AwaitOK()
	s.healthy(t)
	s.expect(t, pb.RateLimitResponse_OVER_LIMIT, 0, 0)
}

// TestServeUnderSentinel: the service follows a failover. With RATELIMIT_LONG.
func TestServeUnderSentinel(t *testing.T) {
	long(t)
	sentinel := redistest.StartSentinel(t)
	s := startServe(t, "2", "redis://"+sentinel.Addrs()[0], "--sentinel", redistest.MasterName)
	s.healthy(t)
	s.expect(t, pb.RateLimitResponse_OK, 1, 1)
	old := sentinel.Master()
	require.NoError(t, old.Client(t).Wait(t.Context(), 1, 5*time.Second).Err())
	old.Kill()
	sentinel.AwaitFailover(old)
	s.expect(t, pb.RateLimitResponse_OK, 0, 0)
	s.expect(t, pb.RateLimitResponse_OVER_LIMIT, 0, 0)
	s.healthy(t)
}

func long(t *testing.T) {
	if os.Getenv("RATELIMIT_LONG") == "" {
		t.Skip("left out without RATELIMIT_LONG=1")
	}
}

// TestServeKilled: under load a service and then Redis, which syncs what it writes, are killed with SIGKILL. Not one answer
// is above the limit, also with slices and denials from memory in one of the services.
func TestServeKilled(t *testing.T) {
	limit, text := int64(600), "600"
	if limitertest.Rounds(2, 1) == 2 {
		limit, text = 20_000, "20000"
	}
	server := redistest.Start(t, redistest.Args("--appendonly", "yes", "--appendfsync", "always"))
	url := "redis://" + server.Addr()
	var services [2]atomic.Pointer[served]
	services[0].Store(startServe(t, text, url))
	services[1].Store(startServe(t, text, url, "--leases", "--denials", "200ms"))
	ctx, stop := context.WithCancel(t.Context())
	var ok, over, failed atomic.Int64
	var callers sync.WaitGroup
	for i := range 8 {
		callers.Go(func() {
			keys := []string{"all", "user"}[:1+i/2%2]
			for ctx.Err() == nil {
				answer, err := services[i%2].Load().ShouldRateLimit(ctx, asking(1, keys...))
				switch {
				case err != nil:
					failed.Add(1)
				case answer.GetOverallCode() == pb.RateLimitResponse_OK:
					ok.Add(1)
				default:
					over.Add(1)
				}
			}
		})
	}
	reach := func(n *atomic.Int64, want int64) {
		t.Helper()
		require.Eventually(t, func() bool { return n.Load() >= want }, time.Minute, time.Millisecond)
	}
	for i := range int64(2) {
		reach(&ok, (i*2+1)*limit/6)
		s := services[i].Load()
		s.kill()
		services[i].Store(startServe(t, text, url, s.args...))
		reach(&ok, (i*2+2)*limit/6)
		server.Kill()
		server.Restart()
	}
	reach(&over, 100)
	stop()
	callers.Wait()
	require.LessOrEqual(t, ok.Load(), limit)
	require.Positive(t, failed.Load())
	for i := range services { // slices that are left come back
		s := services[i].Load()
		require.NoError(t, s.cmd.Process.Signal(syscall.SIGTERM))
		state, err := s.cmd.Process.Wait()
		require.NoError(t, err)
		require.True(t, state.Success(), s.log)
	}
	s := startServe(t, text, url)
	answer, err := s.ShouldRateLimit(t.Context(), asking(1, "all"), grpc.WaitForReady(true))
	require.NoError(t, err)
	t.Logf("%d OK, %d over, %d failed; %v", ok.Load(), over.Load(), failed.Load(), answer.GetStatuses()[0])
}

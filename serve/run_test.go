package serve

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/ratelimittest"
)

func listen(t *testing.T) net.Listener {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return l
}

// TestRun asks the whole program by sockets: gRPC, JSON, health, metrics, a change of the files, an outage, and the end.
func TestRun(t *testing.T) {
	env := ratelimittest.New(t)
	dir := t.TempDir()
	write := func(n int) {
		text := fmt.Sprintf("domain: shop\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: %d}}]", n)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "shop.yaml"), []byte(text), 0o600))
	}
	write(10)
	on := Listeners{GRPC: listen(t), HTTP: listen(t), Metrics: listen(t)}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- Run(ctx, env.Client(), Options{Files: Dir(dir), Headers: true}, on, slog.New(slog.DiscardHandler))
	}()

	conn, err := grpc.NewClient(on.GRPC.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	client, health := pb.NewRateLimitServiceClient(conn), healthpb.NewHealthClient(conn)
	ask := func(r *pb.RateLimitRequest) *pb.RateLimitResponse {
		t.Helper()
		answer, err := client.ShouldRateLimit(t.Context(), r, grpc.WaitForReady(true))
		require.NoError(t, err)
		return answer
	}
	answer := ask(request(1, "user=42"))
	require.Equal(t, pb.RateLimitResponse_OK, answer.GetOverallCode())
	require.EqualValues(t, 9, answer.GetStatuses()[0].GetLimitRemaining())

	web := "http://" + on.HTTP.Addr().String()
	post := func(method, body string) (int, http.Header, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, web+"/json", strings.NewReader(body))
		require.NoError(t, err)
		return do(t, r)
	}
	const body = `{"domain": "shop", "hitsAddend": 9, "descriptors": [{"entries": [{"key": "user", "value": "42"}]}]}`
	status, header, text := post("POST", body)
	require.Equal(t, 200, status)
	require.Equal(t, "application/json", header.Get("Content-Type"))
	require.Equal(t, "0", header.Get("RateLimit-Remaining"))
	require.Contains(t, strings.ReplaceAll(text, " ", ""), `"overallCode":"OK"`)
	status, header, text = post("POST", body)
	require.Equal(t, 429, status)
	require.NotEmpty(t, header.Get("Retry-After"))
	require.Contains(t, strings.ReplaceAll(text, " ", ""), `"overallCode":"OVER_LIMIT"`)
	status, _, _ = post("POST", "{")
	require.Equal(t, 400, status)
	status, _, text = post("POST", "{}")
	require.Equal(t, 400, status)
	require.Equal(t, "rate limit domain must not be empty\n", text)
	status, header, _ = post("GET", "")
	require.Equal(t, 405, status)
	require.Equal(t, "POST", header.Get("Allow"))

	get := func(url string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), "GET", url, nil)
		require.NoError(t, err)
		status, _, text := do(t, r)
		return status, text
	}
	healthy := func(want bool) {
		t.Helper()
		require.Eventually(t, func() bool {
			code, _ := get(web + "/healthcheck")
			state, err := health.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "ratelimit"})
			return err == nil && (code == 200) == want && (state.GetStatus() == healthpb.HealthCheckResponse_SERVING) == want
		}, 20*time.Second, 10*time.Millisecond)
	}
	healthy(true)
	_, text = get("http://" + on.Metrics.Addr().String() + "/metrics")
	require.Contains(t, text, "ratelimit_service_rate_limit_total_hits{domain=\"shop\",descriptor=\"user\"} 19\n")
	require.Contains(t, text, "ratelimit_service_rate_limit_over_limit{domain=\"shop\",descriptor=\"user\"} 9\n")
	require.Contains(t, text, "ratelimit_service_rate_limit_near_limit{domain=\"shop\",descriptor=\"user\"} 2\n")
	require.Contains(t, text, "ratelimit_service_config_load_success 1\n")

	write(20)
	require.Eventually(t, func() bool {
		return ask(request(0, "user=42:0")).GetStatuses()[0].GetLimitRemaining() == 10
	}, 20*time.Second, 10*time.Millisecond)

	env.Down()
	healthy(false)
	_, err = client.ShouldRateLimit(t.Context(), request(1, "user=42"))
	require.Error(t, err)
	status, _, _ = post("POST", body)
	require.Equal(t, 503, status)
	env.Up()
	healthy(true)

	watching, err := health.Watch(t.Context(), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	state, err := watching.Recv()
	require.NoError(t, err)
	require.Equal(t, healthpb.HealthCheckResponse_SERVING, state.GetStatus())
	stop()
	for err == nil {
		require.NotNil(t, state)
		last := state
		if state, err = watching.Recv(); err != nil {
			require.Equal(t, healthpb.HealthCheckResponse_NOT_SERVING, last.GetStatus())
		}
	}
	require.Equal(t, io.EOF, err, "nobody has to wait for who watches")
	require.NoError(t, <-ended)
	_, err = net.Dial("tcp", on.HTTP.Addr().String())
	require.Error(t, err)
}

func do(t *testing.T, r *http.Request) (int, http.Header, string) {
	t.Helper()
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return answer.StatusCode, answer.Header, string(body)
}

// TestRunStops: mistakes in the files are an error at the start; a listener that fails ends the program.
func TestRunStops(t *testing.T) {
	env := ratelimittest.New(t)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a.yaml"), []byte("domain: d\nx: 1"), 0o600))
	var log bytes.Buffer
	err := Run(t.Context(), env.Client(), Options{Files: Dir(dir)}, Listeners{}, slog.New(slog.NewTextHandler(&log, nil)))
	require.ErrorContains(t, err, "a.yaml:2: x is no field here")
	l := listen(t)
	require.NoError(t, l.Close())
	require.ErrorContains(t, Run(t.Context(), env.Client(), Options{}, Listeners{HTTP: l}, slog.New(slog.DiscardHandler)), "use of closed")
}

// TestReloadUnderLoad: while the files change all the time, no request fails, each answer is by a rule of a file, and what
// was allowed has been counted, exactly; with slices, also what these hold.
func TestReloadUnderLoad(t *testing.T) {
	t.Run("by Redis", func(t *testing.T) { reloadUnderLoad(t, Options{}, 100) })
	t.Run("in memory", func(t *testing.T) { reloadUnderLoad(t, Options{Leases: true, Denials: time.Second}, 20) })
}

func reloadUnderLoad(t *testing.T, o Options, times int) {
	limits := []uint32{100_000, 150_000, 200_000}
	var turn atomic.Int64
	files := func() ([]Source, error) {
		n := limits[turn.Add(1)%3]
		return []Source{{"f", fmt.Appendf(nil, "domain: shop\ndescriptors: [{key: all, rate_limit: {unit: year, requests_per_unit: %d}}, {key: user, rate_limit: {unit: year, requests_per_unit: %d}}]", n, n)}}, nil
	}
	o.Files = files
	s, err := New(ratelimittest.New(t).Client(), o)
	require.NoError(t, err)
	var calls, hits atomic.Int64
	var wrong sync.Map
	var callers sync.WaitGroup
	stop := make(chan struct{})
	for i := range 6 {
		callers.Go(func() {
			for n := uint32(1); ; n = n%3 + 1 {
				select {
				case <-stop:
					return
				default:
				}
				descriptors := []string{"all=1", fmt.Sprintf("user=%d", i)}
				if o.Leases { // several descriptors ask Redis
					descriptors = descriptors[:1]
				}
				answer, err := s.ShouldRateLimit(t.Context(), request(n, descriptors...))
				if err != nil {
					wrong.Store(err.Error(), true)
					continue
				}
				limit := answer.GetStatuses()[0].GetCurrentLimit().GetRequestsPerUnit()
				if answer.GetOverallCode() != pb.RateLimitResponse_OK || limit != answer.GetStatuses()[len(descriptors)-1].GetCurrentLimit().GetRequestsPerUnit() || limit < 100_000 {
					wrong.Store(short(answer), true)
				}
				calls.Add(1)
				hits.Add(int64(n))
			}
		})
	}
	for range times {
		require.NoError(t, s.Reload())
		for before := calls.Load(); calls.Load() < before+2; {
			time.Sleep(100 * time.Microsecond)
		}
	}
	close(stop)
	callers.Wait()
	wrong.Range(func(what, _ any) bool {
		t.Errorf("%v", what)
		return true
	})
	answer, err := s.ShouldRateLimit(t.Context(), request(0, "all=1:0"))
	require.NoError(t, err)
	d := answer.GetStatuses()[0]
	used := int64(d.GetCurrentLimit().GetRequestsPerUnit() - d.GetLimitRemaining())
	if o.Leases {
		require.GreaterOrEqual(t, used, hits.Load())
		return
	}
	require.Equal(t, hits.Load(), used)
}

func TestWatch(t *testing.T) {
	onStage(t, Options{}, func(t *testing.T, s stage) {
		dir := t.TempDir()
		s.options.Files = Dir(dir)
		write := func(name, text string) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
		}
		var reports []string
		w := s.watcher(func(err error) { reports = append(reports, strings.ReplaceAll(fmt.Sprint(err), dir, "")) })
		expect := func(want ...string) {
			t.Helper()
			w.Look()
			require.Equal(t, want, reports)
			reports = nil
		}
		write("a.yaml", "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 3}}]")
		write("notes.txt", "no config")
		write(".b.yaml", "hidden: true")
		expect()
		s.expect("OK | OK 9 of 10/minute, 1m0s", request(1, "user=42"))
		expect("<nil>")
		s.expect("OK | OK 2 of 3/day, 24h0m0s", request(1, "user=42"))
		expect()
		write("b.yml", "domain: b\ndescriptors: [{ke: user}]")
		expect()
		const mistakes = "ratelimit: invalid configuration:\n/b.yml:2: element 1 of descriptors: ke is no field here; did you mean key?\n/b.yml:2: element 1 of descriptors: key is missing; name the key of the entries"
		expect(mistakes)
		expect() // it is reported once
		s.expect("OK | OK 1 of 3/day, 24h0m0s", request(1, "user=42"))
		require.NoError(t, os.Remove(filepath.Join(dir, "b.yml")))
		expect()
		expect()
		write("b.yml", "domain: b\ndescriptors: [{ke: user}]")
		expect()
		expect(mistakes)
		require.NoError(t, os.RemoveAll(dir))
		expect("open : no such file or directory")
		expect()
		require.EqualValues(t, []int64{2, 2}, []int64{s.stats.loaded.Load(), s.stats.broken.Load()})
	})
}

// TestRunSaysWhatIsInForce: a folder without files is no mistake, but allows everything.
func TestRunSaysWhatIsInForce(t *testing.T) {
	const one = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 2}}]"
	for text, want := range map[string]string{
		one: `level=INFO msg="the config files are in force" files=1 limits=1`,
		"":  `level=WARN msg="the config files are in force, without a single limit: every request is allowed" files=0 limits=0`,
	} {
		files := func() ([]Source, error) { return nil, nil }
		if text != "" {
			files = func() ([]Source, error) { return []Source{{"f", []byte(text)}}, nil }
		}
		var log bytes.Buffer
		ctx, stop := context.WithCancel(t.Context())
		stop()
		c := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
		defer c.Close()
		require.NoError(t, Run(ctx, c, Options{Files: files}, Listeners{}, slog.New(slog.NewTextHandler(&log, nil))))
		require.Contains(t, log.String(), want)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	var log bytes.Buffer
	broken := func() ([]Source, error) { return []Source{{"f", []byte("domain: [")}}, nil }
	require.ErrorIs(t, Run(t.Context(), nil, Options{Files: broken}, Listeners{HTTP: l}, slog.New(slog.NewTextHandler(&log, nil))), ratelimit.ErrInvalidConfig)
	require.Empty(t, log.String()) // it never listened
}

// TestRunSaysWhatIsNotDecided: Redis answers, but the state of a key is damaged. The log says so every ten seconds at most.
func TestRunSaysWhatIsNotDecided(t *testing.T) {
	onStage(t, Options{}, func(t *testing.T, s stage) {
		const user = `user=4"2\`
		s.expect("OK | OK 9 of 10/minute, 1m0s", request(1, user))
		keys, err := s.Client().Keys(t.Context(), "*").Result()
		require.NoError(t, err)
		require.Len(t, keys, 1)
		require.NoError(t, s.Client().Set(t.Context(), keys[0], "junk", 0).Err())
		var log bytes.Buffer
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			newHealth().follow(ctx, s.Client(), func(bool) bool { return true }, &s.stats, slog.New(slog.NewTextHandler(&log, nil)))
			close(ended)
		}()
		for range 25 {
			s.Advance(time.Second)
			for range 2 {
				_, err := s.ShouldRateLimit(t.Context(), request(1, user))
				require.ErrorContains(t, err, "corrupt state")
			}
		}
		stop()
		<-ended
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		require.Len(t, lines, 4)
		require.Contains(t, lines[0], `level=INFO msg="Redis answers"`)
		for i, requests := range []int{2, 20, 20} {
			require.Contains(t, lines[i+1], fmt.Sprintf(`level=ERROR msg="requests could not be decided" requests=%d error="rpc error: code = Internal desc = ratelimit: `, requests))
			require.Contains(t, lines[i+1], `minute\": ratelimit: corrupt state`)
			require.NotContains(t, lines[i+1], "user")
		}
	})
}

// TestWhatAPingSays: what an operator has to mend.
func TestWhatAPingSays(t *testing.T) {
	server := miniredis.RunT(t)
	c := redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1})
	defer c.Close()
	expect := func(want string) {
		t.Helper()
		require.Equal(t, want, pinged(c.Ping(t.Context()).Err()))
	}
	expect("Redis answers")
	server.SetError("LOADING Redis is loading the dataset in memory")
	expect("Redis answers with an error")
	server.SetError("NOPERM this user has no permissions to run the 'ping' command")
	expect("Redis refuses this service: its user may not do PING")
	server.SetError("")
	server.RequireAuth("secret")
	other := redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1})
	defer other.Close()
	wrong := redis.NewClient(&redis.Options{Addr: server.Addr(), Password: "wrong", MaxRetries: -1})
	defer wrong.Close()
	for _, c = range []*redis.Client{other, wrong} {
		expect("Redis refuses this service: check its user and its password")
	}
	server.Close()
	expect("Redis does not answer")
}

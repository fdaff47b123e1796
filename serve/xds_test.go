package serve

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	xds "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/ratelimittest"
)

// A management is go-control-plane's own server, and what it was sent.
type management struct {
	t       testing.TB
	configs cache.SnapshotCache
	got     chan *discovery.DiscoveryRequest
	address string
	stop    func()
}

func newManagement(t testing.TB) *management {
	m := &management{t: t, got: make(chan *discovery.DiscoveryRequest, 100), address: "127.0.0.1:0"}
	m.start()
	t.Cleanup(func() { m.stop() })
	return m
}

// start is the start of a server without a config.
func (m *management) start() {
	l, err := net.Listen("tcp", m.address)
	require.NoError(m.t, err)
	m.address = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	m.configs = cache.NewSnapshotCache(true, cache.IDHash{}, nil)
	rpc := grpc.NewServer()
	discovery.RegisterAggregatedDiscoveryServiceServer(rpc, server.NewServer(ctx, m.configs, server.CallbackFuncs{
		StreamRequestFunc: func(_ int64, r *discovery.DiscoveryRequest) error {
			m.got <- r
			return nil
		},
	}))
	go func() { _ = rpc.Serve(l) }()
	m.stop = func() {
		cancel()
		rpc.Stop()
	}
}

// set gives the service "one" its configs.
func (m *management) set(version string, configs ...string) {
	var all []types.Resource
	for _, text := range configs {
		all = append(all, fromJSON(m.t, text))
	}
	snapshot, err := cache.NewSnapshot(version, map[resource.Type][]types.Resource{resource.RateLimitConfigType: all})
	require.NoError(m.t, err)
	require.NoError(m.t, m.configs.SetSnapshot(context.Background(), "one", snapshot))
}

func fromJSON(t testing.TB, text string) *xds.RateLimitConfig {
	c := &xds.RateLimitConfig{}
	require.NoError(t, protojson.Unmarshal([]byte(text), c))
	return c
}

// connect is an XDS of this server.
func (m *management) connect() *XDS {
	conn, err := grpc.NewClient(m.address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: time.Millisecond, Multiplier: 1, MaxDelay: time.Millisecond}, MinConnectTimeout: time.Minute}))
	require.NoError(m.t, err)
	m.t.Cleanup(func() { _ = conn.Close() })
	return &XDS{Conn: conn, Node: "one"}
}

const users = `{"name": "users", "domain": "shop", "descriptors": [{"key": "user", "rate_limit": {"unit": "YEAR", "requests_per_unit": 10}}]}`

// TestFollow: a config that comes is in force and acknowledged, a broken one refused with the reason, and a stream that
// breaks begins again, also with a server that has the same version of something else.
func TestFollow(t *testing.T) {
	m := newManagement(t)
	s, err := New(ratelimittest.New(t).Client(), Options{XDS: m.connect()})
	require.NoError(t, err)
	s.retry = 2
	reports, ended := make(chan error, 1000), make(chan bool)
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		s.Follow(ctx, func(err error) { reports <- err })
		close(ended)
	}()
	gone, leave := context.WithCancel(t.Context())
	leave()
	_, err = s.ShouldRateLimit(gone, request(1, "user=42"))
	require.Equal(t, status.Error(codes.Unavailable, "no config has come from the management server yet"), err)
	early := make(chan error, 1)
	go func() {
		_, err := s.ShouldRateLimit(t.Context(), request(0, "user=42:0")) // which waits
		early <- err
	}()
	left := func(want string, descriptor string) {
		t.Helper()
		require.Equal(t, want, stage{nil, s, t}.codes(request(1, descriptor)))
	}
	hello := <-m.got
	require.Equal(t, "one", hello.GetNode().GetId())
	require.Equal(t, resource.RateLimitConfigType, hello.GetTypeUrl())
	require.Empty(t, hello.GetVersionInfo())

	m.set("1", users)
	require.NoError(t, <-reports)
	require.NoError(t, <-early)
	left("OK | OK 9", "user=42")
	ack := <-m.got
	require.Equal(t, "1", ack.GetVersionInfo())
	require.NotEmpty(t, ack.GetResponseNonce())
	require.Nil(t, ack.GetErrorDetail())

	m.set("2", users, `{"name": "b", "domain": "b", "descriptors": [{"key": "a", "rate_limit": {"requests_per_unit": 5}}]}`)
	const mistake = "ratelimit: invalid configuration:\nb:1: descriptor b.a: rate_limit: unit is missing; write second, minute, hour, day, week, month or year"
	require.EqualError(t, <-reports, mistake)
	nack := <-m.got
	require.Equal(t, "1", nack.GetVersionInfo())
	require.NotEqual(t, ack.GetResponseNonce(), nack.GetResponseNonce())
	require.Equal(t, []any{int32(codes.InvalidArgument), mistake}, []any{nack.GetErrorDetail().GetCode(), nack.GetErrorDetail().GetMessage()})
	left("OK | OK 8", "user=42")

	m.set("3", `{"name": "users", "domain": "shop", "descriptors": [{"key": "user", "rate_limit": {"unit": "YEAR", "requests_per_unit": 20}}]}`)
	require.NoError(t, <-reports)
	for again := <-m.got; again.GetVersionInfo() != "3"; again = <-m.got { // it has sent the broken one again and again
		require.Equal(t, []string{"1", mistake}, []string{again.GetVersionInfo(), again.GetErrorDetail().GetMessage()})
	}
	left("OK | OK 17", "user=42") // what was counted stays counted
	require.EqualValues(t, 2, s.stats.loaded.Load())
	require.Positive(t, s.stats.broken.Load())

	m.stop()
	require.Regexp(t, "^ratelimit/serve: the management server: (it has ended the stream|rpc error: code = Unavailable .*)$", <-reports)
	left("OK | OK 16", "user=42")
	m.start()
	m.set("3", users)
	for err := range reports {
		if err == nil {
			break
		}
	}
	left("OK | OK 5", "user=42")
	require.Equal(t, "one", (<-m.got).GetNode().GetId(), "the first request of the new stream")
	require.Equal(t, "3", (<-m.got).GetVersionInfo())

	m.set("4", users) // which is in force
	require.Equal(t, "4", (<-m.got).GetVersionInfo())
	require.Empty(t, reports)
	m.set("5")
	require.NoError(t, <-reports)
	left("OK | OK 0", "user=42") // it has no limit
	stop()
	<-ended
}

// A stubborn server sends one broken config again and again, or nothing at all.
type stubborn struct {
	grpc.ClientConnInterface
	grpc.ClientStream
	ctx  context.Context
	down bool
	at   []time.Time // of attempts or requests
}

func (s *stubborn) NewStream(ctx context.Context, _ *grpc.StreamDesc, _ string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	if s.down {
		s.at = append(s.at, time.Now())
		return nil, io.ErrUnexpectedEOF
	}
	s.ctx = ctx
	return s, nil
}

func (s *stubborn) SendMsg(any) error {
	if s.ctx.Err() != nil {
		return io.EOF
	}
	s.at = append(s.at, time.Now())
	return nil
}

func (s *stubborn) RecvMsg(m any) error {
	m.(*discovery.DiscoveryResponse).Resources = []*anypb.Any{{TypeUrl: "broken"}}
	return s.ctx.Err()
}

// TestFollowIsPatient: what fails is tried again after 0.5 to 1 s, later 15 to 30 s, and reported.
func TestFollowIsPatient(t *testing.T) {
	for _, down := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			server := &stubborn{down: down}
			s, err := New(ratelimittest.New(t).Client(), Options{XDS: &XDS{Conn: server}})
			require.NoError(t, err)
			ctx, stop := context.WithTimeout(t.Context(), 10*time.Minute)
			defer stop()
			reports := 0
			s.Follow(ctx, func(error) { reports++ })
			if down {
				require.Len(t, server.at, reports)
			} else { // a request, and the first refusal at once
				require.Equal(t, 1, reports, "the reason is the same")
				require.Equal(t, server.at[0], server.at[1])
				server.at = server.at[1:]
			}
			require.Greater(t, len(server.at), 20)
			for i, at := range server.at[1:] {
				longest := min(time.Second<<i, 30*time.Second)
				require.LessOrEqual(t, at.Sub(server.at[i]), longest, i)
				require.GreaterOrEqual(t, at.Sub(server.at[i]), longest/2, i)
			}
		})
	}
}

// TestConfigsAreFiles: a config has the rules of a file with the same fields.
func TestConfigsAreFiles(t *testing.T) {
	const text = `{"name": "f", "domain": "shop", "descriptors": [
		{"key": "a", "value": "x*", "shadow_mode": true, "detailed_metric": true, "rate_limit": {"unit": "WEEK", "requests_per_unit": 3, "name": "n", "replaces": [{"name": "m"}]},
			"descriptors": [{"key": "b", "quota_mode": true, "metadata": {"any": ["thing", 1]}, "rate_limit": {"unit": "SECOND"}}]},
		{"key": "a", "rate_limit": {"unlimited": true}}]}`
	resource, err := anypb.New(fromJSON(t, text))
	require.NoError(t, err)
	source, err := sourceOf(resource)
	require.NoError(t, err)
	require.Equal(t, "f", source.Name)
	got, err := parse(false, []Source{source})
	require.NoError(t, err)
	want, err := parse(false, []Source{{"f", []byte(text[:1] + text[len(`{"name": "f", `):])}})
	require.NoError(t, err)
	for _, c := range []*config{got, want} {
		require.Len(t, c.rules, 3)
		for _, r := range c.rules {
			r.limit = nil // of which each has its own memory
		}
	}
	require.Equal(t, want, got)

	for _, wrong := range []*xds.RateLimitConfig{{Domain: "shop"}, {Name: "x", Domain: "\xff"}} {
		resource, err := anypb.New(wrong)
		if err == nil {
			_, err = sourceOf(resource)
		}
		require.Error(t, err)
	}
	s := &Service{}
	_, err = s.receive([]*anypb.Any{resource, {TypeUrl: "type.googleapis.com/google.protobuf.Empty"}})
	require.Error(t, err)
	require.EqualValues(t, 1, s.stats.broken.Load())
}

func TestXDSAndFiles(t *testing.T) {
	for _, o := range []Options{{XDS: &XDS{}}, {XDS: newManagement(t).connect(), Files: Dir("testdata")}} {
		_, err := New(nil, o)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
	}
}

// TestRunWithXDS: the program is healthy when a config has come.
func TestRunWithXDS(t *testing.T) {
	m := newManagement(t)
	on := Listeners{HTTP: listen(t)}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- Run(ctx, ratelimittest.New(t).Client(), Options{XDS: m.connect()}, on, slog.New(slog.DiscardHandler))
	}()
	healthy := func() bool {
		r, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+on.HTTP.Addr().String()+"/healthcheck", nil)
		require.NoError(t, err)
		status, _, _ := do(t, r)
		return status == 200
	}
	<-m.got
	require.False(t, healthy())
	m.set("1", users)
	require.Eventually(t, healthy, 20*time.Second, 10*time.Millisecond)
	stop()
	require.NoError(t, <-ended)
}

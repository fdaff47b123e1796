package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"sync"
	"sync/atomic"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// Listeners are where Run listens. A nil one is left out.
type Listeners struct {
	GRPC    net.Listener // envoy.service.ratelimit.v3.RateLimitService, and grpc.health.v1.Health
	HTTP    net.Listener // POST /json, GET /auth and GET /healthcheck
	Metrics net.Listener // GET /metrics and GET /healthcheck
}

// stopTime is how long requests under way may take when the program stops.
const stopTime = 10 * time.Second

// streamWorkers is how many goroutines answer requests. A new goroutine for each request would have to grow its stack each
// time.
const streamWorkers = 256

// connWindow is fixed, because requests are small: gRPC then sends no pings to find out how large it should be.
const connWindow = 1 << 20

// Run serves until ctx ends. Then health answers NOT_SERVING, and Run returns when the requests under way are answered, or
// after 10 s. It watches the files each second, or follows the management server, and logs what becomes of a change. Health
// is that of Redis, which is asked each second, unless there is an outage policy: then the service answers without Redis.
// Without a config it is NOT_SERVING.
func Run(ctx context.Context, c redis.UniversalClient, o Options, on Listeners, log *slog.Logger) error {
	s, err := New(c, o)
	if err != nil {
		return err
	}
	for _, l := range []struct {
		what string
		net.Listener
	}{{"gRPC", on.GRPC}, {"HTTP", on.HTTP}, {"metrics", on.Metrics}} {
		if l.Listener != nil {
			log.Info("listening", "for", l.what, "at", l.Addr().String())
		}
	}
	if o.Files != nil {
		s.logConfig(log, "the config files are in force")
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer func() {
		if err := s.Close(context.Background()); err != nil {
			log.Error("not all leased hits were given back; they stay taken", "error", err)
		}
	}()
	defer cancel(nil)
	var working sync.WaitGroup
	defer working.Wait()
	h := newHealth()
	ready := func(redis bool) bool { return (redis || o.Outage.Fallback != "") && s.current.Load().config != nil }
	working.Go(func() { h.follow(ctx, c, ready, &s.stats, log) })
	working.Go(func() { s.followConfig(ctx, o, log) })

	web := http.NewServeMux()
	web.Handle("/json", s.JSON())
	web.Handle("/auth", s.Auth())
	web.Handle("/healthcheck", h)
	metrics := http.NewServeMux()
	metrics.Handle("/metrics", s.Metrics())
	metrics.Handle("/healthcheck", h) // here too, for probes that have no certificate
	var servers []*http.Server
	for _, l := range []struct {
		net.Listener
		handler http.Handler
	}{{on.HTTP, web}, {on.Metrics, metrics}} {
		if l.Listener == nil {
			continue
		}
		server := &http.Server{Handler: l.handler, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn)}
		servers = append(servers, server)
		working.Go(func() {
			if err := server.Serve(l.Listener); !errors.Is(err, http.ErrServerClosed) {
				cancel(fmt.Errorf("ratelimit/serve: %w", err))
			}
		})
	}
	rpc := grpc.NewServer(grpc.NumStreamWorkers(streamWorkers), grpc.InitialConnWindowSize(connWindow), grpc.ForceServerCodecV2(newCodec()))
	pb.RegisterRateLimitServiceServer(rpc, s)
	healthpb.RegisterHealthServer(rpc, watchable{h.server, ctx})
	if on.GRPC != nil {
		working.Go(func() {
			if err := rpc.Serve(on.GRPC); err != nil {
				cancel(fmt.Errorf("ratelimit/serve: %w", err))
			}
		})
	}

	<-ctx.Done()
	h.stop()
	bounded, release := context.WithTimeout(context.Background(), stopTime)
	defer release()
	defer context.AfterFunc(bounded, rpc.Stop)()
	for _, server := range servers {
		working.Go(func() { _ = server.Shutdown(bounded) })
	}
	rpc.GracefulStop()
	if cause := context.Cause(ctx); !errors.Is(cause, ctx.Err()) {
		return cause
	}
	return nil
}

// followConfig watches the files, or follows the management server, until ctx ends, and logs what becomes of a change.
func (s *Service) followConfig(ctx context.Context, o Options, log *slog.Logger) {
	logged := func(failed, done string) func(error) {
		return func(err error) {
			if err != nil {
				log.Error(failed, "error", err)
				return
			}
			s.logConfig(log, done)
		}
	}
	switch {
	case o.Files != nil:
		s.Watch(ctx, time.Second, logged("the config files are not in force, the former ones are", "the config files have changed, and are in force"))
	case o.XDS != nil:
		s.Follow(ctx, logged("there is no new config, the former one is in force", "a config has come, and is in force"))
	}
}

// logConfig logs that a config is in force, and warns of one without limits, such as that of an empty folder.
func (s *Service) logConfig(log *slog.Logger, what string) {
	now := s.current.Load()
	level := slog.LevelInfo
	if len(now.config.rules) == 0 {
		level, what = slog.LevelWarn, what+", without a single limit: every request is allowed"
	}
	log.Log(context.Background(), level, what, "files", len(now.files), "limits", len(now.config.rules))
}

// A healthState is the health of the service, by gRPC and HTTP.
type healthState struct {
	server      *health.Server
	ok, stopped atomic.Bool
}

func newHealth() *healthState {
	h := &healthState{server: health.NewServer()}
	h.set(false)
	return h
}

// services are the names under which the health is known: that of the server, and those that clients of
// envoyproxy/ratelimit and of the service's own name ask for.
var services = []string{"", "ratelimit", pb.RateLimitService_ServiceDesc.ServiceName}

func (h *healthState) set(ok bool) {
	h.ok.Store(ok)
	state := healthpb.HealthCheckResponse_NOT_SERVING
	if ok {
		state = healthpb.HealthCheckResponse_SERVING
	}
	for _, name := range services {
		h.server.SetServingStatus(name, state)
	}
}

// stop is the end of the service.
func (h *healthState) stop() {
	h.stopped.Store(true)
	h.server.Shutdown() // ignores later states
}

// silence is for how long the log says nothing of requests that could not be decided after it has said so.
const silence = 10 * time.Second

// A watchable is a health whose watchers are let go when the service stops: gRPC would wait for them as for requests.
type watchable struct {
	*health.Server
	serving context.Context
}

func (w watchable) Watch(r *healthpb.HealthCheckRequest, stream healthpb.Health_WatchServer) error {
	ctx, end := context.WithCancel(stream.Context())
	defer end()
	defer context.AfterFunc(w.serving, end)()
	err := w.Server.Watch(r, watcher{stream, ctx})
	if w.serving.Err() == nil {
		return err
	}
	return stream.Send(&healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_NOT_SERVING}) // perhaps once more
}

// A watcher is a stream with another context.
type watcher struct {
	healthpb.Health_WatchServer
	ctx context.Context
}

func (w watcher) Context() context.Context { return w.ctx }

// keyInError is where an error names a key, which has values of requests, such as names of users: no log has them.
var keyInError = regexp.MustCompile(`,? key "(?:[^"\\]|\\.)*"`)

// follow asks Redis each second until ctx ends. That it answers does not say that all requests are decided: a server of a
// Cluster may be down, a user may do nothing but ask, or a key is damaged.
func (h *healthState) follow(ctx context.Context, c redis.UniversalClient, ready func(redis bool) bool, requests *stats, log *slog.Logger) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	var said int64
	var saidAt time.Time
	for last := ""; ; {
		bounded, cancel := context.WithTimeout(ctx, time.Second)
		err := c.Ping(bounded).Err()
		cancel()
		if ctx.Err() != nil {
			return
		}
		if text := pinged(err); text != last {
			if last = text; err == nil {
				log.Info(text)
			} else {
				log.Error(text, "error", err)
			}
		}
		h.set(ready(err == nil))
		if failures := requests.failures.Load(); failures > said && time.Since(saidAt) >= silence {
			log.Error("requests could not be decided", "requests", failures-said, "error", keyInError.ReplaceAllString((*requests.failure.Load()).Error(), ""))
			said, saidAt = failures, time.Now()
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// pinged says in words what has become of a ping.
func pinged(err error) string {
	var reply redis.Error
	switch {
	case err == nil:
		return "Redis answers"
	case redis.HasErrorPrefix(err, "NOAUTH"), redis.HasErrorPrefix(err, "WRONGPASS"):
		return "Redis refuses this service: check its user and its password"
	case redis.HasErrorPrefix(err, "NOPERM"):
		return "Redis refuses this service: its user may not do PING"
	case errors.As(err, &reply):
		return "Redis answers with an error"
	}
	return "Redis does not answer"
}

// ServeHTTP answers 200 or, if the service cannot decide, 503.
func (h *healthState) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	if !h.ok.Load() || h.stopped.Load() {
		http.Error(w, "not serving", http.StatusServiceUnavailable)
		return
	}
	_, _ = w.Write([]byte("OK"))
}

package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"

	"github.com/alicebob/miniredis/v2"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// A traceCollector gets spans by OTLP.
type traceCollector struct {
	collector.UnimplementedTraceServiceServer
	got chan *collector.ExportTraceServiceRequest
}

func (c *traceCollector) Export(_ context.Context, r *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	c.got <- r
	return &collector.ExportTraceServiceResponse{}, nil
}

func (c *traceCollector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var request collector.ExportTraceServiceRequest
	body, err := io.ReadAll(r.Body)
	if err != nil || r.URL.Path != "/v1/traces" || proto.Unmarshal(body, &request) != nil {
		http.Error(w, "no spans", http.StatusBadRequest)
		return
	}
	c.got <- &request
}

// TestServeSendsTraces: the last ones when it ends, by each protocol. Without a collector requests are answered all the same.
func TestServeSendsTraces(t *testing.T) {
	redis := miniredis.RunT(t)
	c := &traceCollector{got: make(chan *collector.ExportTraceServiceRequest, 10)}
	web := httptest.NewServer(c)
	defer web.Close()
	gone := httptest.NewServer(nil)
	gone.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	rpc := grpc.NewServer()
	collector.RegisterTraceServiceServer(rpc, c)
	go func() { _ = rpc.Serve(l) }()
	defer rpc.Stop()
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000")
	for _, test := range []struct{ protocol, endpoint, name string }{
		{"", web.URL, "ratelimit"},
		{"grpc", "http://" + l.Addr().String(), "edge"},
		{"http/protobuf", gone.URL, ""},
	} {
		t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", test.protocol)
		t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", test.endpoint)
		if t.Setenv("OTEL_SERVICE_NAME", test.name); test.name == "ratelimit" {
			t.Setenv("OTEL_SERVICE_NAME", "")
		}
		if test.name == "" {
			t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "200")
		}
		redis.FlushAll()
		s := startServe(t, "2", "redis://"+redis.Addr(), "--traces")
		s.expect(t, pb.RateLimitResponse_OK, 1, 1)
		require.NoError(t, s.cmd.Process.Signal(syscall.SIGTERM))
		state, err := s.cmd.Process.Wait()
		require.NoError(t, err)
		require.True(t, state.Success(), s.log)
		if test.name == "" {
			require.Contains(t, s.log.String(), "traces are not sent")
			continue
		}
		require.Len(t, c.got, 1, "%v", s.log)
		got := (<-c.got).GetResourceSpans()[0]
		name := ""
		for _, a := range got.GetResource().GetAttributes() {
			if a.GetKey() == "service.name" {
				name = a.GetValue().GetStringValue()
			}
		}
		require.Equal(t, test.name, name)
		require.Equal(t, "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", got.GetScopeSpans()[0].GetSpans()[0].GetName())
	}
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "zipkin")
	p := program{stdout: io.Discard, stderr: &log{}, pause: pause, environ: func(string) string { return "zipkin" }}
	require.Equal(t, exitUsage, p.command(t.Context(), []string{"serve", "--config", t.TempDir(), "--traces", "--addr", redis.Addr()}))
	require.Contains(t, p.stderr.(*log).String(), `OTEL_EXPORTER_OTLP_PROTOCOL is "zipkin"; write http/protobuf or grpc`)
}

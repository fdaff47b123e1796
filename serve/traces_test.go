package serve

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
)

const parent = "4bf92f3577b34da6a3ce929d0e0e4736"

// onTracedStage has a service whose spans the function returns, one after each request.
func onTracedStage(t *testing.T, o Options, test func(t *testing.T, s stage, span func() tracetest.SpanStub)) {
	spans := tracetest.NewInMemoryExporter()
	o.Traces = sdk.NewTracerProvider(sdk.WithSyncer(spans))
	onStage(t, o, func(t *testing.T, s stage) {
		test(t, s, func() tracetest.SpanStub {
			t.Helper()
			all := spans.GetSpans()
			require.Len(t, all, 1)
			spans.Reset()
			require.Equal(t, trace.SpanKindServer, all[0].SpanKind)
			require.Equal(t, scope, all[0].InstrumentationScope.Name)
			return all[0]
		})
	})
}

// about are the attributes of ratelimit.
func about(span tracetest.SpanStub) map[string]string {
	all := map[string]string{}
	for _, a := range span.Attributes {
		if name, ok := strings.CutPrefix(string(a.Key), "ratelimit."); ok {
			all[name] = a.Value.Emit()
		}
	}
	return all
}

func TestTraces(t *testing.T) {
	onTracedStage(t, Options{Denials: time.Second, Outage: Outage{Fallback: "local"}}, func(t *testing.T, s stage, span func() tracetest.SpanStub) {
		expect := func(want map[string]string, r *pb.RateLimitRequest) {
			t.Helper()
			s.ask(r)
			one := span()
			want["domain"] = "shop"
			require.Equal(t, want, about(one))
			require.Equal(t, codes.Unset, one.Status.Code)
		}
		expect(map[string]string{"code": "OK", "source": `["redis"]`}, request(10, "user=42"))
		expect(map[string]string{"code": "OK", "source": `["redis"]`}, request(1, "all=1", "files=files/a"))
		expect(map[string]string{"code": "OVER_LIMIT", "source": `["redis"]`, "over_limit": `["user"]`, "over_limit.source": `["redis"]`}, request(1, "user=42"))
		expect(map[string]string{"code": "OVER_LIMIT", "source": `["memory","redis"]`, "over_limit": `["user"]`, "over_limit.source": `["memory"]`}, request(1, "user=42", "all=1"))
		expect(map[string]string{"code": "OVER_LIMIT", "source": `["none"]`, "over_limit": `["banned"]`, "over_limit.source": `["none"]`}, request(1, "banned=1"))
		expect(map[string]string{"code": "OK"}, request(1, "user=staff", "unknown=1"))
		s.Down()
		expect(map[string]string{"code": "OK", "source": `["fallback"]`}, request(1, "user=43"))
	})
	onTracedStage(t, Options{Leases: true}, func(t *testing.T, s stage, span func() tracetest.SpanStub) {
		for range 200 {
			s.ask(request(1, "all=1"))
			one := about(span())
			if one["source"] == `["lease"]` {
				return
			}
		}
		t.Fatal("no request was decided by a lease")
	})
	onTracedStage(t, Options{}, func(t *testing.T, s stage, span func() tracetest.SpanStub) {
		_, err := s.ShouldRateLimit(t.Context(), request(1))
		require.Error(t, err)
		require.Equal(t, codes.Unset, span().Status.Code) // the caller's mistake
		s.Down()
		_, err = s.ShouldRateLimit(t.Context(), request(1, "user=42"))
		require.Error(t, err)
		one := span()
		require.Equal(t, codes.Error, one.Status.Code)
		require.Contains(t, one.Status.Description, "no decision: ")
		require.Contains(t, one.Attributes, attribute.Int("rpc.grpc.status_code", 14))
		require.Equal(t, map[string]string{"domain": "shop"}, about(one))
	})
}

// TestTracesHaveTheirParents: the callers' spans, as Envoy sends them, by gRPC and by HTTP.
func TestTracesHaveTheirParents(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	files := func() ([]Source, error) { return []Source{{"f", []byte("domain: shop\n")}}, nil }
	s, err := New(nil, Options{Files: files, Traces: sdk.NewTracerProvider(sdk.WithSyncer(spans))})
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer()
	pb.RegisterRateLimitServiceServer(server, s)
	go func() { _ = server.Serve(l) }()
	defer server.Stop()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	for _, header := range [][2]string{
		{"traceparent", "00-" + parent + "-00f067aa0ba902b7-01"},
		{"b3", parent + "-00f067aa0ba902b7-1"},
	} {
		check := func(name string, more ...attribute.KeyValue) {
			t.Helper()
			all := spans.GetSpans()
			require.Len(t, all, 1)
			spans.Reset()
			require.Equal(t, name, all[0].Name)
			require.Equal(t, []string{parent, "00f067aa0ba902b7"}, []string{all[0].Parent.TraceID().String(), all[0].Parent.SpanID().String()})
			require.Subset(t, all[0].Attributes, more)
		}
		ctx := metadata.AppendToOutgoingContext(t.Context(), header[0], header[1])
		_, err = pb.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, request(1, "user=42"))
		require.NoError(t, err)
		check("envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", attribute.String("rpc.system", "grpc"), attribute.Int("rpc.grpc.status_code", 0))

		for target, handler := range map[string]http.Handler{"/json": s.JSON(), "/auth?domain=shop&descriptor=user=42": s.Auth()} {
			r := httptest.NewRequestWithContext(context.Background(), "POST", target, strings.NewReader(`{"domain": "shop", "descriptors": [{"entries": [{"key": "user"}]}]}`))
			r.Header.Set(header[0], header[1])
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			require.Equal(t, http.StatusOK, w.Code)
			path, _, _ := strings.Cut(target, "?")
			check("POST "+path, attribute.String("url.path", path), attribute.String("http.request.method", "POST"))
		}
	}
	// What the caller does not record is not recorded.
	ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", "00-"+parent+"-00f067aa0ba902b7-00")
	_, err = pb.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, request(1, "user=42"))
	require.NoError(t, err)
	require.Empty(t, spans.GetSpans())
}

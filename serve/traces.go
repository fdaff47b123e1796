package serve

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"go.opentelemetry.io/contrib/propagators/b3"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	grpccodes "google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/tryacquire/ratelimit"
)

const scope = "github.com/tryacquire/ratelimit/serve" // of the spans

// propagator reads the caller's span, as Envoy sends it: traceparent, or the headers of Zipkin.
var propagator = propagation.NewCompositeTextMapPropagator(b3.New(), propagation.TraceContext{})

// A door is the HTTP request that a decision is for.
type door struct{ method, path string }

type doorKey struct{}

// traced has the caller's span of an HTTP request in the context of what it asks.
func (s *Service) traced(h http.HandlerFunc) http.Handler {
	if s.tracer == nil {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := propagator.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		h(w, r.WithContext(context.WithValue(ctx, doorKey{}, door{r.Method, r.URL.Path})))
	})
}

// inSpan decides a request, and records it as a span.
func (s *Service) inSpan(ctx context.Context, r *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	name := "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
	about := []attribute.KeyValue{attribute.String("ratelimit.domain", r.GetDomain())}
	d, isHTTP := ctx.Value(doorKey{}).(door)
	if isHTTP {
		name = d.method + " " + d.path
		about = append(about, attribute.String("http.request.method", d.method), attribute.String("url.path", d.path))
	} else {
		headers, _ := metadata.FromIncomingContext(ctx)
		ctx = propagator.Extract(ctx, propagation.HeaderCarrier(canonical(headers)))
		about = append(about, attribute.String("rpc.system", "grpc"), attribute.String("rpc.service", pb.RateLimitService_ServiceDesc.ServiceName), attribute.String("rpc.method", "ShouldRateLimit"))
	}
	ctx, span := s.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(about...))
	defer span.End()
	if !span.IsRecording() {
		answer, _, err := s.answer(ctx, r)
		return answer, err
	}
	from := &sources{of: map[string]string{}}
	answer, all, err := s.answer(context.WithValue(ctx, sourcesKey{}, from), r)
	if !isHTTP {
		span.SetAttributes(attribute.Int("rpc.grpc.status_code", int(status.Code(err))))
	}
	if err != nil {
		span.RecordError(err)
		if c := status.Code(err); c != grpccodes.InvalidArgument && c != grpccodes.Canceled { // these are the caller's
			span.SetStatus(codes.Error, status.Convert(err).Message())
		}
		return nil, err
	}
	span.SetAttributes(attribute.String("ratelimit.code", answer.GetOverallCode().String()))
	from.describe(span, all)
	return answer, nil
}

// canonical are the headers of gRPC, which are in lower case, as those of HTTP.
func canonical(headers metadata.MD) http.Header {
	all := http.Header{}
	for name, values := range headers {
		all[http.CanonicalHeaderKey(name)] = values
	}
	return all
}

// sources are what has answered a request, by the keys of descriptors: redis, memory, lease or fallback.
type sources struct {
	mu sync.Mutex // guards of
	of map[string]string
}

type sourcesKey struct{}

// noteSource is an observer of limiters.
func noteSource(ctx context.Context, o ratelimit.Observation) {
	if from, ok := ctx.Value(sourcesKey{}).(*sources); ok && o.Source != 0 {
		from.mu.Lock()
		defer from.mu.Unlock()
		from.of[o.Key] = o.Source.String()
	}
}

// describe records what has answered, and which rules are over their limits.
func (s *sources) describe(span trace.Span, all []descriptor) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var any, over, from []string
	for i := range all {
		d := &all[i]
		if d.match == nil || d.unlimited {
			continue
		}
		source := s.of[d.key]
		if source == "" {
			source = "none" // a limit of 0, or more hits than the limit
		}
		any = append(any, source)
		if d.over {
			_, rule, _ := strings.Cut(d.rule.stat, ".")
			over, from = append(over, rule), append(from, source)
		}
	}
	slices.Sort(any)
	if any = slices.Compact(any); any != nil {
		span.SetAttributes(attribute.StringSlice("ratelimit.source", any))
	}
	if over != nil {
		span.SetAttributes(attribute.StringSlice("ratelimit.over_limit", over), attribute.StringSlice("ratelimit.over_limit.source", from))
	}
}

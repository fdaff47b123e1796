package main

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.37.0"
)

// flushTime is how long the last spans may take.
const flushTime = 5 * time.Second

// tracing sends spans by OTLP as the variables of OpenTelemetry say: OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_SAMPLER and all
// others. The function sends what is left.
func tracing(ctx context.Context, environ func(string) string, log *slog.Logger) (*trace.TracerProvider, func(), error) {
	const protocol = "OTEL_EXPORTER_OTLP_PROTOCOL"
	var client otlptrace.Client
	switch p := cmp.Or(environ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), environ(protocol), "http/protobuf"); p {
	case "http/protobuf":
		client = otlptracehttp.NewClient()
	case "grpc":
		client = otlptracegrpc.NewClient()
	default:
		return nil, nil, usagef("%s is %q; write http/protobuf or grpc", protocol, p)
	}
	otel.SetErrorHandler(&onceEach{log: log})
	exporter, err := otlptrace.New(ctx, client)
	if err != nil {
		return nil, nil, usageError{err}
	}
	about, err := resource.New(ctx, resource.WithAttributes(semconv.ServiceName("ratelimit")), resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		return nil, nil, usageError{err}
	}
	provider := trace.NewTracerProvider(trace.WithBatcher(exporter), trace.WithResource(about))
	return provider, func() {
		bounded, cancel := context.WithTimeout(context.Background(), flushTime)
		defer cancel()
		if err := provider.Shutdown(bounded); err != nil {
			log.Error("not all traces were sent", "error", err)
		}
	}, nil
}

// A onceEach logs each error of OpenTelemetry once in a row.
type onceEach struct {
	log  *slog.Logger
	mu   sync.Mutex // guards last
	last string
}

func (h *onceEach) Handle(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if text := err.Error(); text != h.last {
		h.last = text
		h.log.Error("traces are not sent", "error", err)
	}
}

package otellimit_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/otellimit"
)

var ctx = context.Background()

// newMetrics returns Metrics, and a function that collects what they have recorded.
func newMetrics(t *testing.T, opts ...otellimit.Option) (*otellimit.Metrics, func() map[string]metricdata.Metrics) {
	t.Helper()
	reader := sdk.NewManualReader()
	provider := sdk.NewMeterProvider(sdk.WithReader(reader))
	m, err := otellimit.New(append(opts, otellimit.WithMeterProvider(provider))...)
	require.NoError(t, err)
	return m, func() map[string]metricdata.Metrics {
		t.Helper()
		var all metricdata.ResourceMetrics
		require.NoError(t, reader.Collect(ctx, &all))
		got := map[string]metricdata.Metrics{}
		for _, scope := range all.ScopeMetrics {
			require.Equal(t, "github.com/tryacquire/ratelimit/otellimit", scope.Scope.Name)
			for _, m := range scope.Metrics {
				got[m.Name] = m
			}
		}
		return got
	}
}

// attrs is a set of "name", "value" pairs.
func attrs(pairs ...string) attribute.Set {
	var all []attribute.KeyValue
	for i := 0; i < len(pairs); i += 2 {
		all = append(all, attribute.String(pairs[i], pairs[i+1]))
	}
	return attribute.NewSet(all...)
}

func sum(unit, description, name string, monotonic bool, points ...metricdata.DataPoint[int64]) metricdata.Metrics {
	return metricdata.Metrics{Name: name, Unit: unit, Description: description,
		Data: metricdata.Sum[int64]{Temporality: metricdata.CumulativeTemporality, IsMonotonic: monotonic, DataPoints: points}}
}

func point(n int64, pairs ...string) metricdata.DataPoint[int64] {
	return metricdata.DataPoint[int64]{Attributes: attrs(pairs...), Value: n}
}

func histogram[N int64 | float64](bounds []float64, values []N, pairs ...string) metricdata.HistogramDataPoint[N] {
	p := metricdata.HistogramDataPoint[N]{Attributes: attrs(pairs...), Bounds: bounds, BucketCounts: make([]uint64, len(bounds)+1)}
	for i, v := range values {
		at := 0
		for at < len(bounds) && float64(v) > bounds[at] {
			at++
		}
		p.BucketCounts[at]++
		p.Count++
		p.Sum += v
		if i == 0 {
			p.Min, p.Max = metricdata.NewExtrema(v), metricdata.NewExtrema(v)
		}
		if least, _ := p.Min.Value(); v < least {
			p.Min = metricdata.NewExtrema(v)
		}
		if most, _ := p.Max.Value(); v > most {
			p.Max = metricdata.NewExtrema(v)
		}
	}
	return p
}

var (
	seconds = []float64{1e-6, 1e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1, 2.5, 5}
	waits   = []float64{1e-3, 1e-2, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300}
	calls   = []float64{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024}
)

// TestThePermitsOfASliceAreCountedOnce: when they are spent, and not when the slice is taken.
func TestThePermitsOfASliceAreCountedOnce(t *testing.T) {
	m, collect := newMetrics(t)
	m.Observe(ctx, ratelimit.Observation{Limiter: "api", Call: "lease", Outcome: ratelimit.OutcomeDone, Source: ratelimit.SourceRedis, N: 100, Taken: 80, Batch: 1})
	m.Observe(ctx, ratelimit.Observation{Limiter: "api", Call: "acquire", Outcome: ratelimit.OutcomeAllowed, Source: ratelimit.SourceLease, N: 1, Taken: 1})
	for _, got := range collect() {
		if permits, ok := got.Data.(metricdata.Sum[int64]); ok && got.Name == "ratelimit.permits" {
			require.Len(t, permits.DataPoints, 1)
			require.EqualValues(t, 1, permits.DataPoints[0].Value)
			return
		}
	}
	t.Error("no permits were counted")
}

// What each observation becomes, with every attribute and every bucket.
func TestDataPoints(t *testing.T) {
	m, collect := newMetrics(t)
	observe := func(o ratelimit.Observation) {
		o.Limiter, o.Key = "api", "user:42"
		m.Observe(ctx, o)
	}
	for range 2 {
		observe(ratelimit.Observation{
			Call: "acquire", Outcome: ratelimit.OutcomeAllowed, Source: ratelimit.SourceRedis, N: 3, Taken: 3,
			Latency: time.Millisecond, Waited: 250 * time.Microsecond, Batch: 12,
		})
	}
	observe(ratelimit.Observation{Call: "up to", Outcome: ratelimit.OutcomeAllowed, Source: ratelimit.SourceRedis, N: 3, Taken: 2, Latency: 2 * time.Millisecond, Batch: 1})
	observe(ratelimit.Observation{Call: "acquire", Outcome: ratelimit.OutcomeDenied, Source: ratelimit.SourceMemory, N: 1, Latency: 100 * time.Nanosecond})
	observe(ratelimit.Observation{Call: "estimate", Outcome: ratelimit.OutcomeUntaken, Source: ratelimit.SourceRedis, N: 1, Latency: time.Millisecond, Batch: 1})
	observe(ratelimit.Observation{
		Call: "acquire", Outcome: ratelimit.OutcomeFailed, Source: ratelimit.SourceRedis, N: 1, Latency: time.Second, Batch: 1,
		Err: fmt.Errorf("key user:42: %w", context.DeadlineExceeded),
	})
	observe(ratelimit.Observation{
		Call: "acquire", Outcome: ratelimit.OutcomeAllowed, Source: ratelimit.SourceFallback, N: 1, Taken: 1, Latency: time.Millisecond,
		Reason: ratelimit.ErrBreakerOpen, Breaker: ratelimit.BreakerOpen,
	})
	observe(ratelimit.Observation{
		Call: "wait", Outcome: ratelimit.OutcomeAllowed, Source: ratelimit.SourceRedis, N: 1, Taken: 1, Batch: 1,
		Latency: time.Minute + time.Millisecond, Waited: time.Minute,
	})
	observe(ratelimit.Observation{Call: "hold", Outcome: ratelimit.OutcomeAllowed, Source: ratelimit.SourceRedis, N: 2, Taken: 2, Batch: 1, Latency: time.Millisecond, Held: 2, HeldChange: 2})
	observe(ratelimit.Observation{Call: "release", Outcome: ratelimit.OutcomeDone, Source: ratelimit.SourceRedis, N: 1, Batch: 1, Held: 1, HeldChange: -1})
	observe(ratelimit.Observation{Call: "charge", Outcome: ratelimit.OutcomeDone, Source: ratelimit.SourceRedis, N: 5, Taken: 5, Batch: 1})
	observe(ratelimit.Observation{Call: "lease", Outcome: ratelimit.OutcomeDone, Source: ratelimit.SourceRedis, N: 100, Taken: 80, Batch: 1})
	observe(ratelimit.Observation{Call: "return", Outcome: ratelimit.OutcomeDone, Source: ratelimit.SourceRedis, N: 30, Batch: 1})
	observe(ratelimit.Observation{Call: "return", Outcome: ratelimit.OutcomeFailed, Source: ratelimit.SourceRedis, N: 20, Batch: 1, Err: errors.New("user:42")})
	observe(ratelimit.Observation{Call: "reset", Outcome: ratelimit.OutcomeFailed, Source: ratelimit.SourceRedis, Batch: 1, Err: errors.New("user:42")})
	observe(ratelimit.Observation{Call: "breaker", Outcome: ratelimit.OutcomeDone, From: ratelimit.BreakerClosed, Breaker: ratelimit.BreakerOpen})
	observe(ratelimit.Observation{Call: "breaker", Outcome: ratelimit.OutcomeDone, From: ratelimit.BreakerOpen, Breaker: ratelimit.BreakerHalfOpen})

	const policy, result, source = "ratelimit.policy", "ratelimit.result", "ratelimit.source"
	want := []metricdata.Metrics{
		sum("{decision}", "Calls that ask a limiter for permits.", "ratelimit.decisions", true,
			point(5, policy, "api", result, "allowed", source, "redis"),
			point(1, policy, "api", result, "denied", source, "memory"),
			point(1, policy, "api", result, "untaken", source, "redis"),
			point(1, policy, "api", result, "failed", source, "redis", "error.type", "context_deadline_exceeded"),
			point(1, policy, "api", result, "allowed", source, "fallback", "ratelimit.fallback.reason", "breaker_open"),
		),
		{Name: "ratelimit.duration", Unit: "s", Description: "How long decisions took, without the time of a Wait.",
			Data: metricdata.Histogram[float64]{Temporality: metricdata.CumulativeTemporality, DataPoints: []metricdata.HistogramDataPoint[float64]{
				histogram(seconds, []float64{0.001, 0.001, 0.002, 0.001, 0.001}, policy, "api", result, "allowed", source, "redis"),
				histogram(seconds, []float64{1e-7}, policy, "api", result, "denied", source, "memory"),
				histogram(seconds, []float64{0.001}, policy, "api", result, "untaken", source, "redis"),
				histogram(seconds, []float64{1}, policy, "api", result, "failed", source, "redis"),
				histogram(seconds, []float64{0.001}, policy, "api", result, "allowed", source, "fallback"),
			}}},
		sum("{permit}", "Permits that were taken.", "ratelimit.permits", true,
			point(16, policy, "api", source, "redis"), point(1, policy, "api", source, "fallback")),
		{Name: "ratelimit.batch.size", Unit: "{decision}", Description: "For each decision of Redis, how many were sent together with it, itself included.",
			Data: metricdata.Histogram[int64]{Temporality: metricdata.CumulativeTemporality, DataPoints: []metricdata.HistogramDataPoint[int64]{
				histogram(calls, []int64{12, 12, 1, 1, 1, 1, 1}, policy, "api"),
			}}},
		{Name: "ratelimit.wait.duration", Unit: "s", Description: "How long callers of Wait waited for their turn.",
			Data: metricdata.Histogram[float64]{Temporality: metricdata.CumulativeTemporality, DataPoints: []metricdata.HistogramDataPoint[float64]{
				histogram(waits, []float64{60}, policy, "api"),
			}}},
		sum("{operation}", "Calls that ask a limiter for no decision, such as Reset and Release.", "ratelimit.operations", true,
			point(1, policy, "api", "ratelimit.operation", "release", result, "done", source, "redis"),
			point(1, policy, "api", "ratelimit.operation", "charge", result, "done", source, "redis"),
			point(1, policy, "api", "ratelimit.operation", "lease", result, "done", source, "redis"),
			point(1, policy, "api", "ratelimit.operation", "return", result, "done", source, "redis"),
			point(1, policy, "api", "ratelimit.operation", "return", result, "failed", source, "redis", "error.type", "_OTHER"),
			point(1, policy, "api", "ratelimit.operation", "reset", result, "failed", source, "redis", "error.type", "_OTHER"),
		),
		sum("{permit}", "Permits that were taken ahead in slices, or given back.", "ratelimit.slices", true,
			point(80, policy, "api", "ratelimit.operation", "lease"), point(30, policy, "api", "ratelimit.operation", "return")),
		sum("{permit}", "Permits in flight that this process holds.", "ratelimit.in_flight", false, point(1, policy, "api")),
		{Name: "ratelimit.breaker.state", Description: "State of a circuit breaker: 0 closed, 1 half-open, 2 open.",
			Data: metricdata.Gauge[int64]{DataPoints: []metricdata.DataPoint[int64]{point(1, policy, "api")}}},
		sum("{change}", "Changes of a circuit breaker's state.", "ratelimit.breaker.changes", true,
			point(1, policy, "api", "ratelimit.breaker.state", "open"), point(1, policy, "api", "ratelimit.breaker.state", "half-open")),
	}
	got := collect()
	require.Len(t, got, len(want))
	for _, w := range want {
		metricdatatest.AssertEqual(t, w, got[w.Name], metricdatatest.IgnoreTimestamp(), metricdatatest.IgnoreExemplars())
	}
}

func TestSpanEvents(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("test")
	m, _ := newMetrics(t)
	silent, _ := newMetrics(t, otellimit.WithoutSpanEvents())
	within, span := tracer.Start(ctx, "request")
	denied := ratelimit.Observation{
		Limiter: "api", Call: "acquire", Outcome: ratelimit.OutcomeDenied, Source: ratelimit.SourceRedis, Key: "user:42", N: 3,
		Result:  ratelimit.Result{Limit: 20, Window: 2 * time.Second, Remaining: 2, RetryAfter: 100 * time.Millisecond},
		Latency: time.Millisecond, Waited: 250 * time.Microsecond, Batch: 12,
	}
	m.Observe(within, denied)
	m.Observe(ctx, denied) // has no span
	silent.Observe(within, denied)
	failed := ratelimit.Observation{
		Limiter: "api", Call: "acquire", Outcome: ratelimit.OutcomeFailed, Source: ratelimit.SourceFallback, Key: "user:42", N: 1,
		Err: errors.New("user:42"), Reason: ratelimit.ErrOverBudget,
	}
	m.Observe(within, failed)
	m.Observe(within, ratelimit.Observation{Limiter: "api", Call: "reset", Outcome: ratelimit.OutcomeDone, Key: "user:42"})
	span.End()
	m.Observe(within, denied) // too late

	spans := recorder.Ended()
	require.Len(t, spans, 1)
	var events [][]attribute.KeyValue
	for _, e := range spans[0].Events() {
		require.Equal(t, "ratelimit.decision", e.Name)
		events = append(events, e.Attributes)
	}
	require.Equal(t, [][]attribute.KeyValue{
		{
			attribute.String("ratelimit.policy", "api"), attribute.String("ratelimit.result", "denied"), attribute.String("ratelimit.source", "redis"),
			attribute.Int("ratelimit.permits", 3), attribute.Int("ratelimit.limit", 20), attribute.Int("ratelimit.remaining", 2),
			attribute.Float64("ratelimit.retry_after", 0.1), attribute.Float64("ratelimit.waited", 0.00025), attribute.Int("ratelimit.batch.size", 12),
		}, {
			attribute.String("ratelimit.policy", "api"), attribute.String("ratelimit.result", "failed"), attribute.String("ratelimit.source", "fallback"),
			attribute.String("error.type", "_OTHER"), attribute.String("ratelimit.fallback.reason", "over_budget"), attribute.Int("ratelimit.permits", 1),
		},
	}, events)
}

func TestTheGlobalProviderIsTheDefault(t *testing.T) {
	before := otel.GetMeterProvider()
	defer otel.SetMeterProvider(before)
	reader := sdk.NewManualReader()
	otel.SetMeterProvider(sdk.NewMeterProvider(sdk.WithReader(reader)))
	m, err := otellimit.New()
	require.NoError(t, err)
	m.Observe(ctx, ratelimit.Observation{Limiter: "api", Call: "acquire", Outcome: ratelimit.OutcomeAllowed})
	var all metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(ctx, &all))
	require.Len(t, all.ScopeMetrics, 1)
}

func TestConfigErrors(t *testing.T) {
	_, err := otellimit.New(otellimit.WithMeterProvider(nil))
	require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
	require.ErrorContains(t, err, "WithMeterProvider: the provider is nil; leave the option out for the global one")
	_, err = otellimit.New(nil)
	require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
	require.ErrorContains(t, err, "New: option 1 is nil")
	got, err := otellimit.New(otellimit.WithMeterProvider(failingProvider{}))
	require.ErrorContains(t, err, "no counters here")
	require.Nil(t, got)
}

type failingProvider struct{ noop.MeterProvider }

func (failingProvider) Meter(string, ...metric.MeterOption) metric.Meter { return failingMeter{} }

type failingMeter struct{ noop.Meter }

func (failingMeter) Int64Counter(string, ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	return nil, errors.New("no counters here")
}

// Names that a program makes up cost memory in the SDK, and none here beyond a bound.
func TestManyNames(t *testing.T) {
	m, collect := newMetrics(t)
	for i := range 1500 {
		for range 2 {
			m.Observe(ctx, ratelimit.Observation{Limiter: fmt.Sprint("limiter-", i), Call: "acquire", Outcome: ratelimit.OutcomeAllowed})
		}
	}
	points := collect()["ratelimit.decisions"].Data.(metricdata.Sum[int64]).DataPoints
	require.Len(t, points, 1500)
	for _, p := range points {
		require.EqualValues(t, 2, p.Value)
	}
}

func TestAllocations(t *testing.T) {
	m, _ := newMetrics(t)
	o := ratelimit.Observation{
		Limiter: "api", Call: "acquire", Outcome: ratelimit.OutcomeAllowed, Source: ratelimit.SourceRedis, Key: "k", N: 1, Taken: 1, Batch: 1,
	}
	m.Observe(ctx, o)
	require.Zero(t, testing.AllocsPerRun(100, func() { m.Observe(ctx, o) }))
}

func BenchmarkObserve(b *testing.B) {
	m, err := otellimit.New(otellimit.WithMeterProvider(sdk.NewMeterProvider(sdk.WithReader(sdk.NewManualReader()))))
	require.NoError(b, err)
	o := ratelimit.Observation{
		Limiter: "api", Call: "acquire", Outcome: ratelimit.OutcomeAllowed, Source: ratelimit.SourceRedis, Key: "k", N: 1, Taken: 1, Batch: 1,
		Latency: time.Millisecond,
	}
	b.ReportAllocs()
	for b.Loop() {
		m.Observe(ctx, o)
	}
}

// TestNilAndZeroMetrics record nothing.
func TestNilAndZeroMetrics(t *testing.T) {
	for _, m := range []*otellimit.Metrics{nil, {}} {
		require.NotPanics(t, func() { m.Observe(t.Context(), ratelimit.Observation{Call: "acquire"}) })
	}
}

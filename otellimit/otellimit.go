package otellimit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/observe"
)

// ScopeName is the name of the instrumentation scope.
const ScopeName = "github.com/tryacquire/ratelimit/otellimit"

const (
	policyKey       = attribute.Key("ratelimit.policy")
	resultKey       = attribute.Key("ratelimit.result")
	sourceKey       = attribute.Key("ratelimit.source")
	operationKey    = attribute.Key("ratelimit.operation")
	breakerStateKey = attribute.Key("ratelimit.breaker.state")
	reasonKey       = attribute.Key("ratelimit.fallback.reason")
	errorTypeKey    = attribute.Key("error.type")
)

// Metrics is an observer that records metrics and span events. It is safe for concurrent use.
type Metrics struct {
	provider metric.MeterProvider
	events   bool

	decisions      metric.Int64Counter
	duration       metric.Float64Histogram
	permits        metric.Int64Counter
	batch          metric.Int64Histogram
	wait           metric.Float64Histogram
	operations     metric.Int64Counter
	slices         metric.Int64Counter
	inFlight       metric.Int64UpDownCounter
	breakerState   metric.Int64Gauge
	breakerChanges metric.Int64Counter

	sets   atomic.Pointer[map[labels]*set] // replaced as a whole, so that reading it takes no lock
	adding sync.Mutex                      // held while sets is replaced
}

// An Option is [WithMeterProvider] or [WithoutSpanEvents].
type Option func(*Metrics) error

// WithMeterProvider records with the meters of p; without it, with those of the global provider.
func WithMeterProvider(p metric.MeterProvider) Option {
	return func(m *Metrics) error {
		if p == nil {
			return fmt.Errorf("%w: WithMeterProvider: the provider is nil; leave the option out for the global one", ratelimit.ErrInvalidConfig)
		}
		m.provider = p
		return nil
	}
}

// WithoutSpanEvents records no span events. Without this option, each decision is an event
// "ratelimit.decision" of the span in the call's context, if that span is recorded. The event
// has the attributes of ratelimit.decisions, and in addition ratelimit.permits (the number asked
// for), ratelimit.limit, ratelimit.remaining, ratelimit.retry_after and ratelimit.waited in
// seconds, and ratelimit.batch.size.
func WithoutSpanEvents() Option {
	return func(m *Metrics) error {
		m.events = false
		return nil
	}
}

// The bounds of the histograms' buckets: a denial from memory takes less than a microsecond,
// a call over its budget tens of milliseconds. OpenTelemetry's own begin at 5 ms.
var (
	seconds = []float64{1e-6, 1e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1, 2.5, 5}
	waits   = []float64{1e-3, 1e-2, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300}
	calls   = []float64{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024}
)

// New returns Metrics. The error wraps [ratelimit.ErrInvalidConfig] if an option is nil or its
// value cannot work; any other error is the meter's.
func New(opts ...Option) (*Metrics, error) {
	m := &Metrics{events: true}
	m.sets.Store(&map[labels]*set{})
	for i, o := range opts {
		if o == nil {
			return nil, fmt.Errorf("%w: New: option %d is nil", ratelimit.ErrInvalidConfig, i+1)
		}
		if err := o(m); err != nil {
			return nil, err
		}
	}
	if m.provider == nil {
		m.provider = otel.GetMeterProvider()
	}
	if err := m.build(m.provider.Meter(ScopeName)); err != nil {
		return nil, err
	}
	return m, nil
}

// build makes the instruments.
func (m *Metrics) build(meter metric.Meter) error {
	var errs [10]error
	m.decisions, errs[0] = meter.Int64Counter("ratelimit.decisions",
		metric.WithUnit("{decision}"), metric.WithDescription("Calls that ask a limiter for permits."))
	m.duration, errs[1] = meter.Float64Histogram("ratelimit.duration", metric.WithExplicitBucketBoundaries(seconds...),
		metric.WithUnit("s"), metric.WithDescription("How long decisions took, without the time of a Wait."))
	m.permits, errs[2] = meter.Int64Counter("ratelimit.permits",
		metric.WithUnit("{permit}"), metric.WithDescription("Permits that were taken."))
	m.batch, errs[3] = meter.Int64Histogram("ratelimit.batch.size", metric.WithExplicitBucketBoundaries(calls...),
		metric.WithUnit("{decision}"), metric.WithDescription("For each decision of Redis, how many were sent together with it, itself included."))
	m.wait, errs[4] = meter.Float64Histogram("ratelimit.wait.duration", metric.WithExplicitBucketBoundaries(waits...),
		metric.WithUnit("s"), metric.WithDescription("How long callers of Wait waited for their turn."))
	m.operations, errs[5] = meter.Int64Counter("ratelimit.operations",
		metric.WithUnit("{operation}"), metric.WithDescription("Calls that ask a limiter for no decision, such as Reset and Release."))
	m.inFlight, errs[6] = meter.Int64UpDownCounter("ratelimit.in_flight",
		metric.WithUnit("{permit}"), metric.WithDescription("Permits in flight that this process holds."))
	m.breakerState, errs[7] = meter.Int64Gauge("ratelimit.breaker.state",
		metric.WithDescription("State of a circuit breaker: 0 closed, 1 half-open, 2 open."))
	m.breakerChanges, errs[8] = meter.Int64Counter("ratelimit.breaker.changes",
		metric.WithUnit("{change}"), metric.WithDescription("Changes of a circuit breaker's state."))
	m.slices, errs[9] = meter.Int64Counter("ratelimit.slices",
		metric.WithUnit("{permit}"), metric.WithDescription("Permits that were taken ahead in slices, or given back."))
	return errors.Join(errs[:]...)
}

// labels is all that the attributes of an observation are made of.
type labels struct {
	policy          string
	call            ratelimit.Call
	outcome         ratelimit.Outcome
	source          ratelimit.Source
	failure, reason string // types of errors
	state           ratelimit.BreakerState
}

// A set is attributes in the forms in which instruments want them. It is kept, because to make
// it takes longer than to record it.
type set struct {
	all       []attribute.KeyValue
	count     []metric.AddOption    // with all
	duration  []metric.RecordOption // without the types of errors
	permits   []metric.AddOption    // the policy and the source
	operation []metric.AddOption    // the policy and the operation
	policy    []metric.AddOption
	policyOf  []metric.RecordOption
}

// maxSets is how many sets are kept. A program has some ten for each limiter, unless it makes up
// names for limiters.
const maxSets = 1000

func (m *Metrics) set(l labels) *set {
	if s := (*m.sets.Load())[l]; s != nil {
		return s
	}
	s := newSet(l)
	m.adding.Lock()
	defer m.adding.Unlock()
	if known := *m.sets.Load(); len(known) < maxSets {
		more := maps.Clone(known)
		more[l] = s
		m.sets.Store(&more)
	}
	return s
}

func newSet(l labels) *set {
	policy := policyKey.String(l.policy)
	result, source := resultKey.String(l.outcome.String()), sourceKey.String(l.source.String())
	s := &set{}
	switch {
	case l.call == "breaker":
		s.all = []attribute.KeyValue{policy, breakerStateKey.String(l.state.String())}
	case l.call != "":
		s.all = []attribute.KeyValue{policy, operationKey.String(string(l.call)), result, source}
	default:
		s.all = []attribute.KeyValue{policy, result, source}
	}
	if l.failure != "" {
		s.all = append(s.all, errorTypeKey.String(l.failure))
	}
	if l.reason != "" {
		s.all = append(s.all, reasonKey.String(l.reason))
	}
	with := func(attrs ...attribute.KeyValue) metric.MeasurementOption {
		return metric.WithAttributeSet(attribute.NewSet(attrs...))
	}
	own := with(policy)
	s.count = []metric.AddOption{with(slices.Clone(s.all)...)} // it sorts what it gets
	s.duration = []metric.RecordOption{with(policy, result, source)}
	s.permits = []metric.AddOption{with(policy, source)}
	s.operation = []metric.AddOption{with(policy, operationKey.String(string(l.call)))}
	s.policy, s.policyOf = []metric.AddOption{own}, []metric.RecordOption{own}
	return s
}

// Observe is the observer, for [ratelimit.WithObserver].
func (m *Metrics) Observe(ctx context.Context, o ratelimit.Observation) {
	if m == nil || m.sets.Load() == nil { // New did not make it
		return
	}
	l := labels{policy: o.Limiter, outcome: o.Outcome, source: o.Source}
	if o.Outcome == ratelimit.OutcomeFailed {
		l.failure = observe.ErrorType(o.Err)
	}
	switch {
	case o.Call == "breaker":
		s := m.set(labels{policy: o.Limiter, call: o.Call, state: o.Breaker})
		m.breakerChanges.Add(ctx, 1, s.count...)
		m.breakerState.Record(ctx, int64(o.Breaker), s.policyOf...)
		return
	case !takes(o.Call):
		l.call = o.Call
		s := m.set(l)
		m.operations.Add(ctx, 1, s.count...)
		m.taken(ctx, o, s)
		return
	}
	if o.Reason != nil {
		l.reason = observe.ErrorType(o.Reason)
	}
	s := m.set(l)
	m.decisions.Add(ctx, 1, s.count...)
	took := o.Latency
	if o.Call == "wait" {
		took = max(took-o.Waited, 0)
		if o.Outcome == ratelimit.OutcomeAllowed {
			m.wait.Record(ctx, o.Waited.Seconds(), s.policyOf...)
		}
	}
	m.duration.Record(ctx, took.Seconds(), s.duration...)
	if o.Batch > 0 {
		m.batch.Record(ctx, int64(o.Batch), s.policyOf...)
	}
	m.taken(ctx, o, s)
	if m.events {
		m.event(ctx, o, s)
	}
}

// taken records permits.
func (m *Metrics) taken(ctx context.Context, o ratelimit.Observation, s *set) {
	switch {
	case o.Call == "lease": // those of a slice are permits taken when they are spent
		m.slices.Add(ctx, int64(o.Taken), s.operation...)
	case o.Call == "return" && o.Err == nil:
		m.slices.Add(ctx, int64(o.N), s.operation...)
	case o.Taken > 0:
		m.permits.Add(ctx, int64(o.Taken), s.permits...)
	}
	if o.HeldChange != 0 {
		m.inFlight.Add(ctx, int64(o.HeldChange), s.policy...)
	}
}

// event adds an event to the call's span.
func (m *Metrics) event(ctx context.Context, o ratelimit.Observation, s *set) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	attrs := append(make([]attribute.KeyValue, 0, 11), s.all...)
	attrs = append(attrs, attribute.Int("ratelimit.permits", o.N))
	if o.Result.Limit > 0 {
		attrs = append(attrs, attribute.Int("ratelimit.limit", o.Result.Limit), attribute.Int("ratelimit.remaining", o.Result.Remaining))
	}
	inSeconds := func(key string, d time.Duration) {
		if d > 0 {
			attrs = append(attrs, attribute.Float64(key, d.Seconds()))
		}
	}
	inSeconds("ratelimit.retry_after", o.Result.RetryAfter)
	inSeconds("ratelimit.waited", o.Waited)
	if o.Batch > 0 {
		attrs = append(attrs, attribute.Int("ratelimit.batch.size", o.Batch))
	}
	span.AddEvent("ratelimit.decision", trace.WithAttributes(attrs...))
}

// takes reports whether the call is allowed or denied.
func takes(call ratelimit.Call) bool {
	switch call {
	case "acquire", "up to", "reserve", "wait", "estimate", "hold":
		return true
	}
	return false
}

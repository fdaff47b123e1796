package serve

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/recent"
)

// Options are what a service does beside its files. The zero value works, without any limit.
type Options struct {
	// Files reads the config files, see Dir.
	Files func() ([]Source, error)

	// XDS has the config instead of files, see Service.Follow. Requests wait for the first one for a second at most, and are
	// then answered with an error.
	XDS *XDS

	// MergeDomains lets several files have descriptors of one domain.
	MergeDomains bool

	// CountDenied counts as envoyproxy/ratelimit does: fixed windows count what they deny, and what another descriptor of
	// the request denies. Without it, a denied request counts nowhere. In a file, count_denied does so for one limit.
	CountDenied bool

	// Headers adds RateLimit-Limit, RateLimit-Remaining, RateLimit-Reset, and to denials Retry-After, to the client's
	// response.
	Headers bool

	// Metadata adds dynamic_metadata to answers, as envoyproxy/ratelimit does with RESPONSE_DYNAMIC_METADATA: the request, and
	// the metadata of the files' descriptors that are not over their limits.
	Metadata bool

	// Shadow answers OK to every request; what would have been denied is counted as shadow_mode.
	Shadow bool

	// Outage decides requests that Redis does not answer, see Outage. The zero value answers with an error, on which Envoy
	// acts by failure_mode_deny.
	Outage Outage

	// Denials denies a descriptor of a file from memory while it can only be denied, for so long at most; 0: Redis is asked
	// each time. Nothing is allowed from memory. What other processes give back can be noticed so much later.
	Denials time.Duration

	// Leases takes hits of files' buckets, fixed and calendar windows a slice at a time, and spends them in this process, as
	// ratelimit.Leased does. Close gives back what is left.
	Leases bool

	// OriginalMetrics gives metrics the names and labels of envoyproxy/ratelimit, for its dashboards: domain, key1 and key2,
	// and adds how long requests took.
	OriginalMetrics bool

	// Traces records a span of each request: which rules are over their limits, and whether Redis or memory said so. nil: none.
	Traces trace.TracerProvider

	// Limiters are given to each limiter on Redis, for tests: WithClock.
	Limiters []ratelimit.Option
}

// An Outage says what happens while Redis does not answer.
type Outage struct {
	// Fallback is "" (an error), "allow", "deny", or "local", which counts in this process, with a part of each limit.
	Fallback string

	Budget    time.Duration // how long a request waits for Redis; 20ms if it is 0
	Instances int           // by how many processes "local" divides limits; 1 if it is 0
}

// A Service is the service. It is safe for concurrent use.
type Service struct {
	pb.UnimplementedRateLimitServiceServer
	client    ratelimit.Client
	options   Options
	observed  []ratelimit.PolicyOption // of what goes around limiters: an observer, if there are traces
	outage    func(spec, ratelimit.Limiter) (ratelimit.Limiter, error)
	overrides *recent.Cache[spec, ratelimit.Limiter] // of limits that come with requests
	current   atomic.Pointer[state]
	loading   sync.Mutex        // one Reload at a time; guards limiters
	limiters  map[spec]made     // of the rules in force
	breaker   ratelimit.Breaker // of all of them, and of the holds
	stats     stats
	tracer    trace.Tracer // nil: no spans
	now       func() time.Time
	retry     time.Duration // see firstRetry
	begun     chan struct{} // closed when the first config is in force
	begin     sync.Once     // closes it
}

// A state is the files that are in force.
type state struct {
	config *config // nil: none has come yet
	files  []Source
}

// New returns a service that has read its files. The error names each mistake in them with its line. Redis is not asked.
func New(c ratelimit.Client, o Options) (*Service, error) {
	if o.Denials < 0 {
		return nil, fmt.Errorf("%w: denials cannot be kept for %v; write 0 to ask Redis each time", ratelimit.ErrInvalidConfig, o.Denials)
	}
	if o.XDS != nil && (o.Files != nil || o.XDS.Conn == nil) {
		return nil, fmt.Errorf("%w: the config comes from files or from a management server; leave one out, and give the server a connection", ratelimit.ErrInvalidConfig)
	}
	s := &Service{client: c, options: o, now: time.Now, retry: firstRetry, begun: make(chan struct{})}
	if o.Traces != nil {
		s.tracer = o.Traces.Tracer(scope)
		s.observed = []ratelimit.PolicyOption{ratelimit.WithObserver(noteSource)}
		s.options.Limiters = append(slices.Clip(o.Limiters), ratelimit.WithObserver(noteSource))
	}
	var err error
	if s.outage, err = o.Outage.policy(&s.breaker, s.observed...); err != nil {
		return nil, err
	}
	s.overrides = recent.New(mostLimiters, func(of spec) (ratelimit.Limiter, error) {
		l, err := of.build(c, s.options.Limiters...)
		if err != nil {
			return nil, err
		}
		return s.outage(of, l)
	})
	if o.XDS != nil {
		s.current.Store(&state{})
		return s, nil
	}
	if o.Files == nil {
		s.current.Store(&state{config: &config{domains: map[string]*node{}}})
		return s, nil
	}
	if err := s.Reload(); err != nil {
		return nil, err
	}
	return s, nil
}

// ShouldRateLimit decides a request. A request that is denied is an answer, not an error.
func (s *Service) ShouldRateLimit(ctx context.Context, r *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	if s.tracer != nil {
		return s.inSpan(ctx, r)
	}
	answer, _, err := s.answer(ctx, r)
	return answer, err
}

// answer decides a request, and has its descriptors too.
func (s *Service) answer(ctx context.Context, r *pb.RateLimitRequest) (*pb.RateLimitResponse, []descriptor, error) {
	if s.options.OriginalMetrics {
		defer func(begin time.Time) { s.stats.times.note(time.Since(begin)) }(time.Now())
	}
	c := s.current.Load().config
	if c == nil {
		c = s.firstConfig(ctx)
	}
	if c == nil {
		return nil, nil, s.stats.fail(status.Error(codes.Unavailable, "no config has come from the management server yet"))
	}
	all, err := s.descriptors(c, r)
	if err != nil {
		s.stats.mistakes.Add(1)
		return nil, nil, err
	}
	over, err := s.decide(ctx, all)
	if err != nil {
		return nil, nil, s.stats.fail(err)
	}
	now := s.now()
	answer := &pb.RateLimitResponse{OverallCode: pb.RateLimitResponse_OK}
	if over {
		answer.OverallCode = pb.RateLimitResponse_OVER_LIMIT
	}
	answer.Statuses = make([]*pb.RateLimitResponse_DescriptorStatus, len(all))
	for i := range all {
		answer.Statuses[i] = all[i].status(now)
		s.stats.note(&all[i])
	}
	if over && s.options.Shadow {
		answer.OverallCode = pb.RateLimitResponse_OK
		s.stats.shadowed.Add(1)
	}
	if s.options.Headers {
		answer.ResponseHeadersToAdd = headers(all, answer)
	}
	if s.options.Metadata {
		answer.DynamicMetadata = dynamicMetadata(r, all, answer)
	}
	return answer, all, nil
}

// headers tell the client of the descriptor that denies for longest, or else of that which has the least left. Quotas deny only
// together, so of these the first one to come back counts.
func headers(all []descriptor, answer *pb.RateLimitResponse) []*core.HeaderValue {
	var governs *pb.RateLimitResponse_DescriptorStatus
	denied := false // by governs
	for i, s := range answer.GetStatuses() {
		if s.GetCurrentLimit() == nil {
			continue
		}
		denies, left := s.GetCode() == pb.RateLimitResponse_OVER_LIMIT && all[i].enforced(), s.GetLimitRemaining()
		after := s.GetDurationUntilReset().GetSeconds() - governs.GetDurationUntilReset().GetSeconds()
		switch {
		case governs == nil, denies && !denied, denies && after > 0:
		case denies || denied || left > governs.GetLimitRemaining():
			continue
		case left == governs.GetLimitRemaining() && (s.GetCode() != pb.RateLimitResponse_OVER_LIMIT || after >= 0):
			continue
		}
		governs, denied = s, denies
	}
	if governs == nil {
		return nil
	}
	reset := strconv.FormatInt(governs.GetDurationUntilReset().GetSeconds(), 10)
	list := []*core.HeaderValue{
		{Key: "RateLimit-Limit", Value: strconv.FormatUint(uint64(governs.GetCurrentLimit().GetRequestsPerUnit()), 10)},
		{Key: "RateLimit-Remaining", Value: strconv.FormatUint(uint64(governs.GetLimitRemaining()), 10)},
		{Key: "RateLimit-Reset", Value: reset},
	}
	if answer.GetOverallCode() == pb.RateLimitResponse_OVER_LIMIT {
		list = append(list, &core.HeaderValue{Key: "Retry-After", Value: reset})
	}
	return list
}

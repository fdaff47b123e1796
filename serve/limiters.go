package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/exact"
)

// build makes the limiter of a spec. All limiters of one algorithm and unit have one name, so that a descriptor goes on
// from what was counted when its limit changes.
func (s spec) build(c ratelimit.Client, opts ...ratelimit.Option) (ratelimit.Limiter, error) {
	opts = append(opts, ratelimit.WithName(strings.ToLower(s.unit.String())))
	window := units[s.unit]
	switch s.algorithm {
	case tokenBucket:
		return ratelimit.NewTokenBucket(c, ratelimit.Per(s.limit, window), s.burst, opts...)
	case slidingWindow:
		return ratelimit.NewSlidingWindow(c, s.limit, window, opts...)
	case calendarWindow:
		zone, err := time.LoadLocation(s.zone)
		if err != nil {
			return nil, err
		}
		calendar := ratelimit.Daily(zone)
		switch s.unit {
		case pb.RateLimitResponse_RateLimit_WEEK:
			calendar = ratelimit.Weekly(time.Monday, zone)
		case pb.RateLimitResponse_RateLimit_MONTH:
			calendar = ratelimit.Monthly(1, zone)
		}
		return ratelimit.NewCalendarWindow(c, s.limit, calendar, opts...)
	}
	limit := s.limit
	if s.countDenied {
		limit = mostLimit // it counts everything; the answer compares the count with the limit
	}
	return ratelimit.NewFixedWindow(c, limit, window, append(opts, ratelimit.WithAlignment(0))...)
}

// most is how many hits one request can get.
func (s spec) most() int {
	switch s.algorithm {
	case tokenBucket:
		return s.burst
	case inFlight:
		return min(s.limit, mostOfOne)
	}
	return s.limit
}

// local is what decides in this process while Redis is down: the limit in as many times its unit as there are processes. If
// that is longer than a limiter can count, it is a part of the limit in a shorter time.
func (s spec) local(instances int) (ratelimit.Limiter, error) {
	limit, times := s.limit, instances
	if longest := int64(exact.Duration(exact.Micros) / units[s.unit]); int64(instances) > longest {
		times = int(longest)
		limit = max(limit/instances*times+limit%instances*times/instances, 1)
	}
	return ratelimit.NewLocalTokenBucket(ratelimit.Per(limit, units[s.unit]*time.Duration(times)), max(s.most()/instances, 1))
}

// mostLimiters bounds the limiters that are kept for limits that come with requests.
const mostLimiters = 16_384

// policy returns what puts the outage policy around a limiter.
func (o Outage) policy(breaker *ratelimit.Breaker, opts ...ratelimit.PolicyOption) (func(spec, ratelimit.Limiter) (ratelimit.Limiter, error), error) {
	if o.Instances < 0 {
		return nil, fmt.Errorf("%w: limits cannot be divided by %d instances; write how many processes there are", ratelimit.ErrInvalidConfig, o.Instances)
	}
	var secondary func(spec) (ratelimit.Limiter, error)
	switch instances := max(o.Instances, 1); o.Fallback {
	case "":
		return func(_ spec, l ratelimit.Limiter) (ratelimit.Limiter, error) { return l, nil }, nil
	case "allow":
		secondary = func(spec) (ratelimit.Limiter, error) { return ratelimit.AllowAll(), nil }
	case "deny":
		secondary = func(spec) (ratelimit.Limiter, error) { return ratelimit.DenyAll(), nil }
	case "local":
		secondary = func(s spec) (ratelimit.Limiter, error) { return s.local(instances) }
	default:
		return nil, fmt.Errorf("%w: the fallback %q is not known; write allow, deny or local, or leave it out to answer with errors",
			ratelimit.ErrInvalidConfig, o.Fallback)
	}
	around := append(o.around(breaker), opts...)
	return func(s spec, primary ratelimit.Limiter) (ratelimit.Limiter, error) {
		other, err := secondary(s)
		if err != nil {
			return nil, err
		}
		return ratelimit.NewFallback(primary, other, around...)
	}, nil
}

// around are the options of what waits for Redis for a time.
func (o Outage) around(breaker *ratelimit.Breaker) []ratelimit.PolicyOption {
	return []ratelimit.PolicyOption{ratelimit.WithBudget(cmp.Or(o.Budget, 20*time.Millisecond)), ratelimit.WithBreaker(breaker)}
}

// A noClient is the client of limiters that are only built.
type noClient struct{}

func (noClient) Process(context.Context, redis.Cmder) error {
	return errors.New("ratelimit/serve: there is no client")
}

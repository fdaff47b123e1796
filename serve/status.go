package serve

import (
	"math"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/durationpb"
)

// untilReset is the time until the window of an instant ends.
func untilReset(s spec, now time.Time) time.Duration {
	window := units[s.unit]
	return window - time.Duration(now.UnixNano())%window
}

// status is the answer to a descriptor.
func (d *descriptor) status(now time.Time) *pb.RateLimitResponse_DescriptorStatus {
	switch {
	case d.match == nil:
		return &pb.RateLimitResponse_DescriptorStatus{Code: pb.RateLimitResponse_OK}
	case d.unlimited:
		return &pb.RateLimitResponse_DescriptorStatus{Code: pb.RateLimitResponse_OK, LimitRemaining: math.MaxUint32}
	}
	answer := &pb.RateLimitResponse_DescriptorStatus{
		Code:               pb.RateLimitResponse_OK,
		CurrentLimit:       d.rule.limit,
		LimitRemaining:     d.remaining(),
		DurationUntilReset: durationpb.New(d.reset(now)),
	}
	if d.over && !d.shadow {
		answer.Code = pb.RateLimitResponse_OVER_LIMIT
	}
	if d.over {
		answer.LimitRemaining = 0
	}
	return answer
}

// remaining is what is left; of a limit above what a limiter knows, of that limit.
func (d *descriptor) remaining() uint32 {
	if d.result.Limit == 0 && d.result.Allowed { // nobody counts, in an outage
		return d.rule.limit.GetRequestsPerUnit()
	}
	return uint32(max(0, d.result.Remaining))
}

// reset is, in whole seconds, when the window ends, or when a denied call of a bucket would be allowed.
func (d *descriptor) reset(now time.Time) time.Duration {
	r := d.result
	after := r.ResetAfter
	switch {
	case d.over && d.algorithm != fixedWindow && d.algorithm != inFlight && r.RetryAfter > 0:
		after = r.RetryAfter
	case d.algorithm == inFlight: // a place is free when somebody leaves it, and nobody knows when that is
		after = 0
	case after == 0 && d.algorithm == fixedWindow:
		after = untilReset(d.spec, now)
	}
	if d.over { // also of more hits than can ever be allowed
		after = max(after, time.Second)
	}
	return (after + time.Second - 1).Truncate(time.Second)
}

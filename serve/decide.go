package serve

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tryacquire/ratelimit"
)

// A descriptor is one of a request.
type descriptor struct {
	*match       // nil: it has no limit
	hits   int   // 0 looks
	asked  int64 // the hits, even if they are more than a limiter can count
	back   int   // hits that are given back; then there are no others

	known  bool // what follows is an answer
	result ratelimit.Result
	over   bool
	used   int64 // the count after the request, -1 if the algorithm has none
}

// enforced reports whether the descriptor alone can deny the request.
func (d *descriptor) enforced() bool { return !d.shadow && !d.quota }

// descriptors are those of a request, with their rules.
func (s *Service) descriptors(c *config, r *pb.RateLimitRequest) ([]descriptor, error) {
	switch {
	case r.GetDomain() == "":
		return nil, status.Error(codes.InvalidArgument, "rate limit domain must not be empty")
	case len(r.GetDescriptors()) == 0:
		return nil, status.Error(codes.InvalidArgument, "rate limit descriptor list must not be empty")
	}
	all := make([]descriptor, len(r.GetDescriptors()))
	var replaced map[string]bool
	for i, from := range r.GetDescriptors() {
		d := &all[i]
		if d.match = c.find(r.GetDomain(), from); d.match == nil {
			continue
		}
		for _, name := range d.replaces {
			if replaced == nil {
				replaced = map[string]bool{}
			}
			replaced[name] = true
		}
		if d.unlimited {
			continue
		}
		switch {
		case d.algorithm == inFlight:
			if d.id == "" || len(d.id) > longestID {
				return nil, status.Errorf(codes.InvalidArgument, "descriptor %d: the value of its last entry is the id of what is in flight; it has %d bytes, and must have 1 to %d", i+1, len(d.id), longestID)
			}
		case units[d.unit] == 0:
			return nil, status.Errorf(codes.InvalidArgument, "descriptor %d: the limit's unit %d is not known", i+1, d.unit)
		}
		d.asked, d.used = hitsOf(r, from), -1
		if from.GetIsNegativeHits() {
			if d.algorithm == slidingWindow {
				return nil, status.Errorf(codes.Unimplemented, "descriptor %d: is_negative_hits: a sliding_window takes no hits back", i+1)
			}
			d.back, d.asked = int(min(d.asked, mostLimit)), 0
		}
		d.hits = int(min(d.asked, mostLimit+1))
		if s.options.CountDenied && d.algorithm == fixedWindow && !d.countDenied {
			d.countDenied = true // a rule of the request: those of the files have it
		}
	}
	for i := range all {
		d := &all[i]
		if d.match == nil || d.unlimited {
			continue
		}
		if d.name != "" && replaced[d.name] {
			d.match = nil
			continue
		}
		if d.limiter == nil && d.hold == nil && d.spec.limit > 0 {
			var err error
			if d.limiter, err = s.overrides.Get(d.spec); err != nil {
				return nil, status.Error(codes.InvalidArgument, err.Error())
			}
		}
	}
	return all, nil
}

// hitsOf is what a descriptor takes: its own hits_addend, where 0 looks, or that of the request, where 0 means 1.
func hitsOf(r *pb.RateLimitRequest, d *common.RateLimitDescriptor) int64 {
	if own := d.GetHitsAddend(); own != nil {
		return int64(min(own.GetValue(), math.MaxInt64))
	}
	return max(1, int64(r.GetHitsAddend()))
}

// decide answers the descriptors. Those that count what they deny come first, because their counts do not depend on the
// others. Then all others that can deny the request decide together, all or nothing, and last those that cannot, and what
// is given back.
func (s *Service) decide(ctx context.Context, all []descriptor) (over bool, err error) {
	var counting, enforced, quotas, shadows, credits []*descriptor
	for i := range all {
		d := &all[i]
		switch {
		case d.match == nil || d.unlimited:
		case d.spec.limit == 0:
			d.answerNothing()
			if d.over && d.enforced() {
				over = true
			}
		case d.back > 0:
			credits = append(credits, d)
		case d.countDenied:
			counting = append(counting, d)
		case d.quota:
			quotas = append(quotas, d)
		case d.shadow:
			shadows = append(shadows, d)
		default:
			enforced = append(enforced, d)
		}
	}
	var t taken
	defer func() {
		if err != nil {
			t.giveBack(ctx, enforced)
		}
	}()
	if err := s.count(ctx, counting); err != nil {
		return false, err
	}
	for _, d := range counting {
		over = over || d.over && d.enforced()
	}
	for _, d := range enforced {
		if d.hits > d.most() {
			d.over, over = true, true
		}
	}
	later := len(quotas) > 0
	over = over || !later && allQuotasOver(all)
	if !over {
		if over, err = t.take(ctx, enforced, later); err != nil {
			return false, err
		}
	}
	for _, d := range quotas {
		if err := d.alone(ctx, !over, &t, true); err != nil {
			return false, err
		}
	}
	if over = over || allQuotasOver(all); over {
		t.giveBack(ctx, enforced)
	}
	for _, d := range shadows {
		if err := d.alone(ctx, !over, &t, false); err != nil {
			return false, err
		}
	}
	for _, d := range credits {
		if err := d.credit(ctx, !over); err != nil {
			return false, err
		}
	}
	for _, d := range enforced {
		if err := d.look(ctx); err != nil {
			return false, err
		}
	}
	return over, nil
}

// allQuotasOver reports whether there are quotas and all are used up: then there is nothing to draw from.
func allQuotasOver(all []descriptor) bool {
	quotas := 0
	for i := range all {
		if d := &all[i]; d.match != nil && !d.unlimited && d.quota && d.back == 0 {
			if quotas++; !d.over {
				return false
			}
		}
	}
	return quotas > 0
}

// answerNothing answers for a limit of 0.
func (d *descriptor) answerNothing() {
	d.known, d.over, d.used = true, d.asked > 0, d.asked
	d.result = ratelimit.Result{ResetAfter: untilReset(d.spec, time.Now())}
}

// mostTogether is how many limiters one script holds.
const mostTogether = 8

// count takes the hits of descriptors that count what they deny.
func (s *Service) count(ctx context.Context, all []*descriptor) error {
	for len(all) > 0 {
		var claims []ratelimit.Claim
		chunk, rest := together(all, false)
		for _, d := range chunk {
			if d.counts() {
				claims = append(claims, d.claim(false))
			}
		}
		r, err := acquire(ctx, claims, false)
		if err != nil {
			return err
		}
		parts := r.Parts
		for _, d := range chunk {
			switch {
			case d.counts():
				d.counted(parts[0].Result)
				parts = parts[1:]
			default:
				r, err := d.peek(ctx)
				if err != nil {
					return failed(err)
				}
				d.counted(r)
			}
		}
		all = rest
	}
	return nil
}

// counts reports whether the descriptor takes hits, and not so many that they cannot be counted.
func (d *descriptor) counts() bool { return 0 < d.hits && d.hits <= mostLimit }

// counted is the answer of a limiter that counts everything.
func (d *descriptor) counted(r ratelimit.Result) {
	if r.Fallback {
		d.answered(r)
		return
	}
	d.known, d.result = true, r
	d.used = mostLimit - int64(r.Remaining)
	if d.hits > mostLimit {
		d.used += d.asked
	}
	d.over = d.used > int64(d.spec.limit)
	d.result.Remaining = int(max(0, int64(d.spec.limit)-d.used))
}

// answered is the answer of a limiter that counts what it allows.
func (d *descriptor) answered(r ratelimit.Result) {
	d.known, d.result, d.over = true, r, !r.Allowed
	if r.Limit == d.spec.limit && !r.Fallback && d.algorithm != tokenBucket {
		d.used = int64(r.Limit - r.Remaining)
	}
}

// alone takes the hits of a descriptor that cannot deny the request on its own; if the request is denied, it only looks.
// If later is set, the request can still be denied.
func (d *descriptor) alone(ctx context.Context, take bool, t *taken, later bool) error {
	switch {
	case d.hits > d.most():
		d.over = true
		return d.look(ctx)
	case !take || d.hits == 0:
		return d.look(ctx)
	case later || d.hold != nil:
		r, err := t.acquire(ctx, []*descriptor{d}, []ratelimit.Claim{d.claim(later)})
		if err != nil {
			return err
		}
		d.answered(r.Parts[0].Result)
		t.add(d, r.Parts[0], r.Repeated)
		return nil
	}
	_, err := takeOne(ctx, d)
	return err
}

// credit gives hits back, or if the request is denied, it only looks. The descriptor is never over its limit.
func (d *descriptor) credit(ctx context.Context, give bool) error {
	switch {
	case d.hold != nil: // what is done is done
		if err := d.hold.release(ctx, d.key, min(d.back, d.most()), d.id); err != nil {
			return failed(err)
		}
	case give:
		if _, err := d.limiter.(ratelimit.Settler).Credit(ctx, d.key, d.back); err != nil {
			return failed(err)
		}
	}
	r, err := d.peek(ctx)
	if err != nil {
		return failed(err)
	}
	if d.countDenied {
		d.counted(r)
	} else {
		d.answered(r)
	}
	d.over = false
	return nil
}

// look answers a descriptor without taking anything. It is over the limit if it was before, or if less is left than it
// asks for; without hits, if nothing is left.
func (d *descriptor) look(ctx context.Context) error {
	if d.known {
		return nil
	}
	over := d.over
	r, err := d.peekHits(ctx)
	if err != nil {
		return failed(err)
	}
	d.answered(r)
	d.over = over || r.Limit > 0 && r.Remaining < max(d.hits, 1) || !r.Allowed
	return nil
}

// failed is the error of a request that could not be decided.
func failed(err error) error {
	switch {
	case errors.Is(err, context.Canceled):
		return status.Error(codes.Canceled, err.Error())
	case errors.Is(err, context.DeadlineExceeded):
		return status.Error(codes.DeadlineExceeded, err.Error())
	case errors.Is(err, ratelimit.ErrIDReused):
		return status.Error(codes.InvalidArgument, err.Error())
	case errors.Is(err, ratelimit.ErrCorruptState), errors.Is(err, ratelimit.ErrInvalidConfig):
		return status.Error(codes.Internal, err.Error())
	}
	return status.Error(codes.Unavailable, fmt.Sprintf("no decision: %v", err))
}

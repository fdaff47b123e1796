package serve

import (
	"context"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/limits/yamlfile"
)

const (
	mostHeld  = 100_000 // of a limit
	mostOfOne = 1_000   // of one hold
	longestID = 4_096
)

// readHold reads a limit of requests at the same time.
func (r *rule) readHold(m yamlfile.Map) {
	for _, name := range []string{"unit", "requests_per_unit", "burst", "time_zone", "count_denied"} {
		if v := m.Get(name); v.Given() {
			v.Errorf("is not for in_flight, which has limit and lease; leave it out")
		}
	}
	limit := m.Must("limit", "write how many requests may be in flight at the same time")
	lease := m.Must("lease", "write after which time a request that is never reported as done gives its place back, such as 5m")
	if !limit.Given() || !lease.Given() {
		return
	}
	r.spec.limit, r.lease = limit.OrNone().Int(1, mostHeld), lease.OrNone().Duration()
	r.limit = &pb.RateLimitResponse_RateLimit{RequestsPerUnit: uint32(r.spec.limit), Name: r.name}
	if r.spec.limit > 0 && r.lease != 0 {
		if _, err := r.buildHold(noClient{}); err != nil {
			m.Errorf("cannot work: %s", yamlfile.Plain(err))
		}
	}
}

// checkHold notes what a descriptor cannot have whose last entry is an id.
func checkHold(m yamlfile.Map) {
	for _, name := range []string{"value", "detailed_metric", "value_to_metric"} {
		if v := m.Get(name).OrNone(); v.Given() {
			v.Errorf("has no meaning beside in_flight: the value of the entry is the id of a request; leave it out")
		}
	}
}

// holdOf is the key under which a request of a descriptor is held, and its id, which is the value of the last entry.
func holdOf(domain string, d *common.RateLimitDescriptor, shared []string) (key, id string) {
	last := len(d.GetEntries()) - 1
	patterns := make([]string, last+1)
	copy(patterns, shared)
	patterns[last] = "*"
	return keyOf(domain, d, patterns), d.GetEntries()[last].GetValue()
}

// A holder is a limit of requests at the same time.
type holder struct {
	ratelimit.Holder // with the outage policy
	redis            *ratelimit.InFlight
	lenient          bool // there is an outage policy
}

func (s spec) buildHold(c ratelimit.Client, opts ...ratelimit.Option) (*ratelimit.InFlight, error) {
	return ratelimit.NewInFlight(c, s.limit, s.lease, append(opts, ratelimit.WithName("requests"))...)
}

// makeHold makes the holder of a file's rule. In an outage nobody counts, even if others are counted in this process:
// another process may get the report that a request is done.
func (s *Service) makeHold(of spec) (*holder, error) {
	redis, err := of.buildHold(s.client, s.options.Limiters...)
	if err != nil {
		return nil, err
	}
	h := &holder{Holder: redis, redis: redis, lenient: s.options.Outage.Fallback != ""}
	if h.lenient {
		secondary := ratelimit.AllowHolds()
		if s.options.Outage.Fallback == "deny" {
			secondary = ratelimit.DenyHolds()
		}
		h.Holder, err = ratelimit.NewHoldFallback(redis, secondary, append(s.options.Outage.around(&s.breaker), s.observed...)...)
	}
	return h, err
}

// release gives the places of an id back, for a second at most. With an outage policy there is no error: the lease ends.
func (h *holder) release(ctx context.Context, key string, n int, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := h.redis.ReleaseAs(ctx, key, n, id); err != nil && !h.lenient {
		return err
	}
	return nil
}

package httplimit

import (
	"math/bits"
	"time"

	"github.com/tryacquire/ratelimit"
)

// A Decision is what the limiter answered to a request, and what the answer's fields and body
// follow from. It does not have the key, because clients must not see it.
//
// Of several limits ([NewAll]), it is the decision of the limit that governs, see
// [ratelimit.All]. Parts has all of them.
type Decision struct {
	Policy      string // the name of the limit, see WithPolicy
	Unit        string // what is counted, see WithUnit; "" for requests
	Bucket      bool   // the limiter is a token or leaky bucket, see WithBucket
	InFlight    bool   // the limiter is a ratelimit.InFlight
	Unavailable bool   // see WithServiceUnavailable

	// Result is the limiter's answer. Of an InFlight, RetryAfter is that of WithRetryAfter.
	Result ratelimit.Result

	// Parts are the decisions of each limit of NewAll and NewInFlight that the request has taken
	// permits of, in the order of the limits. It is nil for New.
	Parts []Decision
}

// Violated returns the policies that denied the request, nil if it was allowed.
func (d Decision) Violated() []string {
	if d.Parts == nil {
		if d.Result.Allowed {
			return nil
		}
		return []string{d.Policy}
	}
	var names []string
	for _, p := range d.Parts {
		names = append(names, p.Violated()...)
	}
	return names
}

// unavailable reports whether all limits that denied the request are there to protect the
// service.
func (d Decision) unavailable() bool {
	if d.Parts == nil {
		return d.Unavailable
	}
	for _, p := range d.Parts {
		if !p.Result.Allowed && !p.Unavailable {
			return false
		}
	}
	return true
}

// together is the decision of several limits. All of them are allowed, or one at least is not.
func together(parts []Decision) Decision {
	governing := parts[0]
	for _, p := range parts[1:] {
		g := governing.Result
		switch {
		case g.Allowed != p.Result.Allowed:
			if g.Allowed {
				governing = p
			}
		case g.Allowed && p.Result.Remaining < g.Remaining, !g.Allowed && p.Result.RetryAfter > g.RetryAfter:
			governing = p
		}
	}
	governing.Parts = parts
	return governing
}

// RetryAfter is the value of Retry-After: Result.RetryAfter in whole seconds, rounded up, so
// that no client comes back too early. It is 0 if the request was allowed, and at least 1 if it
// was denied.
func (d Decision) RetryAfter() int {
	if d.Result.Allowed {
		return 0
	}
	return max(1, wholeSeconds(d.Result.RetryAfter))
}

// EffectiveWindow is the number of seconds over which a client may spread its Result.Remaining
// requests, rounded up. A client that does so is not denied, if no other client has its key.
//
// For a denied request it is RetryAfter. For an allowed one it is the time until the window is
// over; for a bucket the time in which that many permits come back, at least 1; for requests in
// flight 0, as nobody knows when they end.
func (d Decision) EffectiveWindow() int {
	r := d.Result
	switch {
	case !r.Allowed:
		return d.RetryAfter()
	case d.InFlight:
		return 0
	case d.Bucket:
		return max(1, wholeSeconds(refill(r)))
	}
	return wholeSeconds(r.ResetAfter)
}

// refill is Remaining × Window / Limit, rounded up to a nanosecond.
func refill(r ratelimit.Result) time.Duration {
	if r.Limit < 1 || r.Remaining < 1 || r.Window < 1 {
		return 0
	}
	limit := uint64(r.Limit)
	hi, lo := bits.Mul64(min(uint64(r.Remaining), limit), uint64(r.Window))
	q, rest := bits.Div64(hi, lo, limit) // hi < limit, because Remaining <= limit
	if rest > 0 {
		q++
	}
	return time.Duration(q) // at most Window
}

// wholeSeconds rounds up.
func wholeSeconds(d time.Duration) int {
	if d <= 0 {
		return 0
	}
	return int((d-1)/time.Second) + 1
}

package httplimit

import (
	"cmp"
	"net/http"
	"time"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/identity"
	"github.com/tryacquire/ratelimit/internal/integration"
	"github.com/tryacquire/ratelimit/internal/limitername"
)

// A limit is one of a middleware's limits.
type limit struct {
	limiter  ratelimit.Limiter // nil for permits in flight
	key      KeyFunc
	decision Decision // without its Result
	cost     func(*http.Request) int

	settle  func(*http.Request, Outcome) int // nil: the cost is final
	watched bool                             // settle needs to know what the handler has written
	settler ratelimit.Settler                // of New, if there is settle

	retryAfter time.Duration    // of permits in flight
	holder     ratelimit.Holder // instead of a limiter
}

// newLimit is a limit with its options, those about the whole in m. limiter is a Limiter or an
// InFlight.
func newLimit(what string, limiter any, key KeyFunc, opts []Option, m *middleware) (*limit, error) {
	switch {
	case identity.IsNil(limiter):
		return nil, invalidConfig("%s: the limiter is nil", what)
	case key == nil:
		return nil, invalidConfig("%s: the key function is nil; ClientIP and User return such", what)
	}
	l := &limit{key: key}
	if err := apply(what, opts, l, m); err != nil {
		return nil, err
	}
	d := &l.decision
	switch limiter := limiter.(type) {
	case ratelimit.Holder:
		if l.settle != nil {
			return nil, invalidConfig("%s: permits in flight are given back when the handler returns, and have no cost to settle", what)
		}
		l.holder = limiter
		l.retryAfter = cmp.Or(l.retryAfter, time.Second)
		d.InFlight, d.Unit = true, cmp.Or(d.Unit, unitInFlight)
	case ratelimit.Limiter:
		if l.retryAfter > 0 {
			return nil, invalidConfig("WithRetryAfter: the Retry-After of a %T is exact; the option is for InFlight", limiter)
		}
		l.limiter = limiter
		switch limiter.(type) {
		case *ratelimit.TokenBucket, *ratelimit.LeakyBucket, *ratelimit.LocalTokenBucket:
			d.Bucket = true
		}
	}
	if d.Policy == "" {
		d.Policy = limitername.Of(limiter)
		if !integration.IsPolicyName(d.Policy) {
			return nil, invalidConfig("%s: %q, the limiter's name, is no name for its policy (1 to %d printable ASCII characters); give WithPolicy",
				what, d.Policy, integration.MostPolicyName)
		}
	}
	return l, nil
}

// costOf is how many permits r takes.
func (l *limit) costOf(r *http.Request) int {
	if l.cost == nil {
		return 1
	}
	return l.cost(r)
}

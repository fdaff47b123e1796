package httplimit

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/integration"
)

// NewAll returns a middleware of several limits, each with a key of its own. A request takes its
// permits from all of them, or from none:
//
//	limit, err := httplimit.NewAll(
//		httplimit.Limit(perAddress, address),
//		httplimit.Limit(perCustomer, apiKey),
//		httplimit.Limit(all, httplimit.Everyone()),
//		httplimit.InFlight(reports, apiKey))
//
// The options are 1 to 8 limits ([Limit] and [InFlight]), and options about the whole middleware,
// such as [WithFields]. The fields have each limit under the name of its policy, and the body of a
// denial names the limits that denied. Retry-After is the longest that one of these needs.
//
// The limits are decided by ratelimit.AcquireAcrossSlots. On a single server, or if all keys are
// in one slot, that is one script, in one round trip. On a Cluster or a Ring, where different keys are
// in several slots, it is one script for each limit, and permits that were taken are given back if
// one limit denies. No limit is ever exceeded, and no limit stays charged for a request that
// another one denies.
//
// The error wraps ratelimit.ErrInvalidConfig: no limit, more than 8, two of one policy, an option
// that is about one limit, or limiters that cannot decide together: several clients, or clocks of
// both kinds. Redis is not asked.
//
// While Redis is down the error handler answers, see [WithErrorHandler] and [ServeInOutages]: a
// ratelimit.Fallback cannot be one of several.
func NewAll(opts ...Option) (func(http.Handler) http.Handler, error) {
	m := newMiddleware()
	if err := apply("NewAll", opts, nil, m); err != nil {
		return nil, err
	}
	return m.together()
}

// Limit is one of the limits of [NewAll]. The options are those about one limit, such as
// [WithPolicy] and [WithCost].
//
// The limiter must decide on Redis, or be a [ratelimit.Choice] that picks such limiters.
// DenyCache, Fallback and Shadow cannot take their permits together with others: NewAll returns
// an error for them. A limiter may be used by several limits that differ in key and policy.
//
// A Choice may also pick [ratelimit.AllowAll]: the request then goes on without this limit. If it
// picks [ratelimit.DenyAll], the request is denied with this limit's policy before any permit is
// taken.
func Limit(limiter ratelimit.Limiter, key KeyFunc, opts ...Option) Option {
	return Option{name: "Limit", many: true, whole: func(m *middleware) error {
		l, err := newLimit("Limit", limiter, key, opts, nil)
		if err == nil {
			l.claims, err = claimsOf(limiter)
		}
		return m.add(l, err)
	}}
}

// InFlight is one of the limits of [NewAll]: how many requests of a key are served at once, in
// all processes. See [NewInFlight], which has it alone.
func InFlight(limiter *ratelimit.InFlight, key KeyFunc, opts ...Option) Option {
	return Option{name: "InFlight", many: true, whole: func(m *middleware) error {
		l, err := newLimit("InFlight", limiter, key, opts, nil)
		return m.add(l, err)
	}}
}

// NewInFlight returns a middleware that limits how many requests of a key are served at once, in
// all processes: for slow handlers. A request holds a permit while its handler runs. Its
// lease is extended while the handler runs, and the permit is given back when the handler returns
// or panics. If the lease is lost, because Redis cannot be reached or has forgotten it, the
// request's context is cancelled with ratelimit.ErrLeaseLost as its cause: others may then have
// the permit.
//
// A request that finds no permit free is denied at once, with 429, or with 503 if
// [WithServiceUnavailable] is given, and a Retry-After of a second, see [WithRetryAfter]. The
// fields have qu="concurrent-requests" and no time, as nobody knows when a permit is free.
//
// A handler that hijacks the connection holds its permit until it returns, not until the
// connection is closed. The options are those of [New], but for WithSettle, WithReportedCost and
// WithMaxWait. The error wraps ratelimit.ErrInvalidConfig.
func NewInFlight(limiter *ratelimit.InFlight, key KeyFunc, opts ...Option) (func(http.Handler) http.Handler, error) {
	m := newMiddleware()
	l, err := newLimit("NewInFlight", limiter, key, opts, m)
	if err := m.add(l, err); err != nil {
		return nil, err
	}
	return m.together()
}

const (
	mostLimits   = 8 // of ratelimit.AcquireAll
	unitInFlight = "concurrent-requests"
)

// add adds a limit, if there is no error.
func (m *middleware) add(l *limit, err error) error {
	if err != nil {
		return fmt.Errorf("%w (limit %d)", err, len(m.limits)+1)
	}
	for i, other := range m.limits {
		if other.decision.Policy == l.decision.Policy {
			return invalidConfig("limits %d and %d have the same policy %q, so that clients could not tell them apart; give WithPolicy to one",
				i+1, len(m.limits)+1, l.decision.Policy)
		}
	}
	m.limits = append(m.limits, l)
	return nil
}

// together is the middleware of all its limits.
func (m *middleware) together() (func(http.Handler) http.Handler, error) {
	switch {
	case len(m.limits) < 1 || len(m.limits) > mostLimits:
		return nil, invalidConfig("NewAll: %d limits; give 1 to %d", len(m.limits), mostLimits)
	case m.maxWait > 0:
		return nil, invalidConfig("WithMaxWait: several limits and permits in flight are not waited for; give it to New")
	}
	if m.readFirst > 0 {
		return nil, errNoWait
	}
	if err := m.check(); err != nil {
		return nil, err
	}
	m.serve = m.serveTogether
	return m.wrap, nil
}

// holds reports whether permits in flight are among the limits.
func (m *middleware) holds() bool {
	return slices.ContainsFunc(m.limits, func(l *limit) bool { return l.decision.InFlight })
}

// check refuses limiters that cannot decide together.
func (m *middleware) check() error {
	var all []ratelimit.Claim
	for i, l := range m.limits {
		if l.claims.fixed != nil {
			all = append(all, l.claims.fixed.Claim(fmt.Sprintf("{check}%d", i), 1))
		}
	}
	if all == nil {
		return nil
	}
	if err := ratelimit.CheckAll(all...); err != nil {
		return fmt.Errorf("%w (httplimit.NewAll)", err)
	}
	return nil
}

// claims makes the claims of one limit: on one limiter, or on the one that a Choice picks.
type claims struct {
	fixed  claimer
	choice *ratelimit.Choice
}

type claimer interface {
	Claim(key string, n int) ratelimit.Claim
}

func claimsOf(limiter ratelimit.Limiter) (claims, error) {
	if choice, ok := limiter.(*ratelimit.Choice); ok {
		return claims{choice: choice}, nil
	}
	c, err := claimerOf(limiter)
	return claims{fixed: c}, err
}

// claimerOf does not ask for a claimer: a type that embeds a limiter has its Claim too, which
// would pass over what that type does in TryAcquireN.
func claimerOf(limiter ratelimit.Limiter) (claimer, error) {
	switch limiter.(type) {
	case *ratelimit.FixedWindow, *ratelimit.CalendarWindow, *ratelimit.SlidingWindow, *ratelimit.SlidingLog,
		*ratelimit.TokenBucket, *ratelimit.LeakyBucket:
		return limiter.(claimer), nil
	case *ratelimit.DenyCache, *ratelimit.Fallback, *ratelimit.Shadow:
		return nil, invalidConfig("Limit: a %T cannot take its permits together with others; give the limiter inside it, or put New with the %T in front", limiter, limiter)
	case *ratelimit.All:
		return nil, invalidConfig("Limit: a %T is several limiters; give each of them to a Limit", limiter)
	}
	return nil, invalidConfig("Limit: a %T does not decide on Redis, and cannot take its permits together with others; put New with it in front", limiter)
}

// pick returns the limiter that decides for key: a claimer, or AllowAll or DenyAll of a Choice.
func (c claims) pick(ctx context.Context, key string) (one claimer, picked ratelimit.Limiter, err error) {
	if c.choice == nil {
		return c.fixed, nil, nil
	}
	picked, err = c.choice.Pick(ctx, key)
	if err != nil || picked == ratelimit.AllowAll() || picked == ratelimit.DenyAll() {
		return nil, picked, err
	}
	if one, err = claimerOf(picked); err != nil {
		return nil, nil, fmt.Errorf("%w (picked by a Choice)", err)
	}
	return one, picked, nil
}

// A question is what a request asks of one limit.
type question struct {
	limit    *limit
	n        int
	claim    ratelimit.Claim
	decision Decision // without its Result, if there is a claim
	claimed  bool     // otherwise decision is whether the request goes on without this limit
}

// ask takes nothing yet.
func (l *limit) ask(r *http.Request) (question, error) {
	q := question{limit: l, n: l.costOf(r), decision: l.decision}
	if q.n == 0 {
		q.decision.Result.Allowed = true
		return q, nil
	}
	key, err := integration.CheckKey(l.key(r))
	if err != nil {
		return q, err
	}
	one, picked, err := l.claims.pick(r.Context(), key)
	if err != nil {
		return q, err
	}
	if one == nil {
		q.decision.Result, err = picked.TryAcquireN(r.Context(), key, q.n)
		return q, err
	}
	q.claim, q.claimed = one.Claim(key, q.n), true
	if l.settle != nil {
		q.claim = q.claim.Estimate()
	}
	q.decision.Bucket = q.decision.Bucket || picked != nil && isBucket(picked)
	return q, nil
}

func (m *middleware) serveTogether(w http.ResponseWriter, r *http.Request, next http.Handler) {
	ctx := r.Context()
	var space [mostLimits]ratelimit.Claim
	all := space[:0]
	var asked [mostLimits]question // one for each claim
	for _, l := range m.limits {
		q, err := l.ask(r)
		switch {
		case err != nil:
			m.failed(w, r, err, next)
			return
		case q.claimed:
			asked[len(all)] = q
			all = append(all, q.claim)
		case !q.decision.Result.Allowed: // nothing has been taken yet
			m.deny(w, r, together([]Decision{q.decision}))
			return
		}
	}
	if len(all) == 0 {
		next.ServeHTTP(w, r)
		return
	}
	answer, err := ratelimit.AcquireAcrossSlots(ctx, all...)
	if err != nil {
		m.failed(w, r, err, next)
		return
	}
	var estimates []estimate
	parts := make([]Decision, len(answer.Parts))
	for i, p := range answer.Parts {
		q := &asked[i]
		parts[i] = q.decision
		parts[i].Result = p.Result
		if q.decision.InFlight && !p.Result.Allowed {
			parts[i].Result.RetryAfter = q.limit.retryAfter
		}
		if p.Ticket != nil {
			estimates = append(estimates, estimate{q.limit, p.Ticket, q.n})
		}
	}
	d := together(parts)
	if !answer.Allowed {
		m.deny(w, r, d)
		return
	}
	began := false
	err = answer.Do(ctx, func(ctx context.Context) error {
		began = true
		m.setHeaders(w.Header(), r, d)
		m.run(ctx, w, r, next, estimates)
		return nil
	})
	switch {
	case err == nil:
	case began:
		m.late(r, err)
	default: // the lease was over before the handler could begin
		m.giveBack(r, estimates)
		m.failed(w, r, err, next)
	}
}

func (m *middleware) deny(w http.ResponseWriter, r *http.Request, d Decision) {
	m.setHeaders(w.Header(), r, d)
	m.denied(w, r, d)
}

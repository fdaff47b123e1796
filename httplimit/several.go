package httplimit

import (
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
// The limits are decided by ratelimit.TryAcquireAcrossSlots. On a single server, or if all keys are
// in one slot, that is one script, in one round trip. On a Cluster or a Ring, where different keys are
// in several slots, it is one script for each limit, and permits that were taken are given back if
// one limit denies. No limit is ever exceeded, and no limit stays charged for a request that
// another one denies.
//
// The error wraps ratelimit.ErrInvalidConfig: no limit, more than 8, two of one policy, an option
// that is about one limit, or limiters that cannot decide together: several clients, or clocks of
// both kinds. Redis is not asked.
//
// While Redis is down the secondaries decide, all or nothing, if every limit has a ratelimit.Fallback
// (permits in flight a ratelimit.NewHoldFallback); otherwise the error handler answers, see
// [WithErrorHandler] and [ServeInOutages].
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
// The limiter decides on Redis, or is a decorator around one: a [ratelimit.DenyCache], a
// [ratelimit.Fallback], a [ratelimit.Choice], a [ratelimit.Shadow]. A limiter may be used by several
// limits that differ in key and policy. NewAll returns an error for a ratelimit.All, whose limiters are
// given one by one, and for a type of your own, which decides only on its own.
//
// A Choice may also pick [ratelimit.AllowAll]: the request then goes on without this limit. If it
// picks [ratelimit.DenyAll], the request is denied with this limit's policy before any permit is
// taken.
func Limit(limiter ratelimit.Limiter, key KeyFunc, opts ...Option) Option {
	return Option{name: "Limit", many: true, whole: func(m *middleware) error {
		l, err := newLimit("Limit", limiter, key, opts, nil)
		return m.add(l, err)
	}}
}

// InFlight is one of the limits of [NewAll]: how many requests of a key are served at once, in
// all processes. See [NewInFlight], which has it alone.
func InFlight(limiter ratelimit.Holder, key KeyFunc, opts ...Option) Option {
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
// fields have qu="concurrent-requests" and no time, as nobody knows when a permit is free. With
// [WithMaxWait] it waits for one first, and [WithMaxWaiting] bounds how many do.
//
// A handler that hijacks the connection holds its permit until it returns, not until the
// connection is closed. The options are those of [New], but for WithSettle and WithReportedCost.
// The error wraps ratelimit.ErrInvalidConfig.
func NewInFlight(limiter ratelimit.Holder, key KeyFunc, opts ...Option) (func(http.Handler) http.Handler, error) {
	m := newMiddleware()
	l, err := newLimit("NewInFlight", limiter, key, opts, m)
	if err := m.add(l, err); err != nil {
		return nil, err
	}
	return m.together()
}

const (
	mostLimits   = 8 // of ratelimit.TryAcquireAll
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
	}
	if err := m.checkWait(); err != nil {
		return nil, err
	}
	m.inLine = m.maxWait > 0 && m.holds()
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
	if err := ratelimit.CheckClaims(m.claims("{check}")...); err != nil {
		return fmt.Errorf("%w (httplimit.NewAll)", err)
	}
	return nil
}

// acquireAll takes the permits, at once or after a wait.
func (m *middleware) acquireAll(r *http.Request, all []ratelimit.Claim, asked []question) (ratelimit.AllResult, error) {
	if m.maxWait == 0 {
		return integration.AcquireAll(r.Context(), all, 0, nil, nil)
	}
	waits := waiter{m: m, r: r}
	defer waits.leave()
	var line *integration.Line
	if m.inLine {
		of := place{m: m}
		var held [mostLimits]bool
		for i := range asked {
			of.keys[i], held[i] = asked[i].key, asked[i].decision.InFlight
		}
		line = &integration.Line{Of: of, InFlight: func(i int) bool { return held[i] }}
	}
	return integration.AcquireAll(r.Context(), all, m.maxWait, waits.ready, line)
}

// A place is where requests of the same keys wait in one line.
type place struct {
	m    *middleware
	keys [mostLimits]string
}

// A question is what a request asks of one limit.
type question struct {
	limit    *limit
	n        int
	key      string
	claim    ratelimit.Claim
	decision Decision // without its Result
}

// ask takes nothing yet. It returns false for a request that costs nothing.
func (l *limit) ask(r *http.Request) (q question, ok bool, err error) {
	q = question{limit: l, n: l.costOf(r), decision: l.decision}
	if q.n == 0 {
		return q, false, nil
	}
	key, err := integration.CheckKey(l.key(r))
	if err != nil {
		return q, false, err
	}
	q.key, q.claim = key, l.claim(key, q.n)
	return q, true, nil
}

// claim is the limit's claim for n permits of key.
func (l *limit) claim(key string, n int) ratelimit.Claim {
	if l.holder != nil {
		return ratelimit.ClaimHold(l.holder, key, n)
	}
	c := ratelimit.ClaimOf(l.limiter, key, n)
	if l.settle != nil {
		c = c.Estimate()
	}
	return c
}

func (m *middleware) serveTogether(w http.ResponseWriter, r *http.Request, next http.Handler) {
	var space [mostLimits]ratelimit.Claim
	all := space[:0]
	var asked [mostLimits]question // one for each claim
	for _, l := range m.limits {
		q, ok, err := l.ask(r)
		switch {
		case err != nil:
			m.fail(w, r, err, next)
			return
		case ok:
			asked[len(all)] = q
			all = append(all, q.claim)
		}
	}
	if len(all) == 0 {
		next.ServeHTTP(w, r)
		return
	}
	answer, err := m.acquireAll(r, all, asked[:len(all)])
	if err != nil {
		m.fail(w, r, err, next)
		return
	}
	var estimates []estimate
	parts := make([]Decision, 0, len(answer.Parts))
	for i, p := range answer.Parts {
		q := &asked[i]
		if p.Ticket != nil {
			estimates = append(estimates, estimate{q.limit, p.Ticket, q.n})
		}
		if p.Unknown || p.Result.Unlimited() {
			continue // it was not asked, or there is none for this key
		}
		d := q.decision
		d.Result = p.Result
		d.Bucket = d.Bucket || integration.IsBucket(&answer.Parts[i])
		if d.InFlight && !p.Result.Allowed {
			d.Result.RetryAfter = q.limit.retryAfter
		}
		parts = append(parts, d)
	}
	var d Decision
	if len(parts) > 0 {
		d = together(parts)
	}
	if !answer.Allowed {
		m.deny(w, r, d)
		return
	}
	m.run(w, r, next, answer, estimates, func() {
		if len(parts) > 0 {
			m.setHeaders(w.Header(), r, d)
		}
	})
}

func (m *middleware) deny(w http.ResponseWriter, r *http.Request, d Decision) {
	exact := d.Result.RetryAfter
	d.Result = m.spread.Of(d.Result)
	for i := range d.Parts {
		if p := &d.Parts[i].Result; !p.Allowed {
			p.RetryAfter += d.Result.RetryAfter - exact
		}
	}
	m.setHeaders(w.Header(), r, d)
	m.denied(w, r, d)
}

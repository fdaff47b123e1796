package httplimit

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/integration"
)

// New returns a middleware, which puts the limit in front of a handler. Each request takes a
// permit of the key that the function key returns. If it gets one, the handler runs; otherwise
// the denial handler does (see [WithDenialHandler]), or, if there is no decision, the error
// handler (see [WithErrorHandler]).
//
// A CORS preflight takes a permit like every other request, because any client can dress its request
// as one. Put the CORS handler outside: it answers preflights itself, and they do not reach the limit.
//
// Mount each limit once: a request that passes it twice takes two permits, and the fields then
// have the policy twice.
//
// The error wraps ratelimit.ErrInvalidConfig: limiter or key is nil, or an option cannot work or
// is given twice. Redis is not asked.
func New(limiter ratelimit.Limiter, key KeyFunc, opts ...Option) (func(http.Handler) http.Handler, error) {
	m := newMiddleware()
	l, err := newLimit("New", limiter, key, opts, m)
	if err != nil {
		return nil, err
	}
	if l.settle != nil {
		if m.maxWait > 0 {
			return nil, errWaitAndSettle
		}
		var ok bool
		if l.settler, ok = limiter.(ratelimit.Settler); !ok {
			return nil, invalidConfig("New: a %T cannot settle; give a limiter on Redis or a decorator around one, and the limiters of an All to NewAll", limiter)
		}
		if err := ratelimit.CheckClaims(ratelimit.ClaimOf(limiter, "check", 1).Estimate()); err != nil {
			return nil, fmt.Errorf("%w (httplimit.New)", err)
		}
	}
	if err := m.checkWait(); err != nil {
		return nil, err
	}
	m.limits = []*limit{l}
	m.serve = m.serveOne
	return m.wrap, nil
}

type middleware struct {
	serve      func(http.ResponseWriter, *http.Request, http.Handler) // a request that is limited
	limits     []*limit                                               // one of New
	fields     []Fields
	exposed    string // for browsers: the fields, and Retry-After
	skip       func(*http.Request) bool
	maxWait    time.Duration // 0: none
	readFirst  int           // bytes of a body, before the wait
	mostWait   int           // requests that wait; 0: any number
	waiting    atomic.Int64  // requests that wait, if their number is bounded
	inLine     bool          // requests wait for permits in flight
	denied     func(http.ResponseWriter, *http.Request, Decision)
	failed     func(http.ResponseWriter, *http.Request, error, http.Handler)
	failedLate func(*http.Request, error) // or nil

	outageRetryAfter time.Duration // 0: none
	spread           integration.Spread
}

func newMiddleware() *middleware {
	m := &middleware{denied: DefaultDenialHandler, failed: DefaultErrorHandler}
	m.setFields(Draft11())
	return m
}

func (m *middleware) setFields(fields ...Fields) {
	var names []string
	for _, f := range fields {
		names = append(names, f.names...)
	}
	m.fields = append([]Fields(nil), fields...)
	m.exposed = strings.Join(append(names, nameRetryAfter), ", ")
}

func (m *middleware) wrap(next http.Handler) http.Handler {
	if next == nil {
		next = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			m.fail(w, r, errNoHandler, http.NotFoundHandler())
		})
	}
	return &limited{m, next}
}

// limited is a handler behind its limits. It has a type of its own for Preload.
type limited struct {
	*middleware
	next http.Handler
}

func (l *limited) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if l.skip != nil && l.skip(r) {
		l.next.ServeHTTP(w, r)
		return
	}
	l.serve(w, r, l.next)
}

func (m *middleware) serveOne(w http.ResponseWriter, r *http.Request, next http.Handler) {
	l := m.limits[0]
	cost := l.costOf(r)
	if cost == 0 {
		next.ServeHTTP(w, r)
		return
	}
	key, err := integration.CheckKey(l.key(r))
	if err != nil {
		m.fail(w, r, err, next)
		return
	}
	d := l.decision
	var ticket *ratelimit.Ticket
	switch {
	case l.settler != nil:
		ticket, d.Result, err = l.settler.Estimate(r.Context(), key, cost)
	default:
		d.Result, err = m.acquire(r, l, key, cost)
	}
	if err != nil {
		m.fail(w, r, err, next)
		return
	}
	if !d.Result.Allowed {
		m.deny(w, r, d)
		return
	}
	m.setHeaders(w.Header(), r, d)
	switch {
	case ticket != nil:
		answer := ratelimit.AllResult{Result: d.Result, Parts: []ratelimit.PartResult{{Result: d.Result, Ticket: ticket}}}
		m.run(w, r, next, answer, []estimate{{l, ticket, cost}}, func() {})
	default:
		next.ServeHTTP(w, r)
	}
}

func (m *middleware) acquire(r *http.Request, l *limit, key string, cost int) (ratelimit.Result, error) {
	if m.readFirst == 0 && m.mostWait == 0 {
		return integration.Acquire(r.Context(), l.limiter, key, cost, m.maxWait)
	}
	waits := waiter{m: m, r: r}
	defer waits.leave()
	return integration.AcquireReady(r.Context(), l.limiter, key, cost, m.maxWait, waits.ready)
}

func (m *middleware) setHeaders(h http.Header, r *http.Request, d Decision) {
	keep(r.Context(), d)
	if !d.Result.Allowed {
		forgetAnswer(h) // before the fields, which users can write too
	}
	for _, f := range m.fields {
		f.write(h, d)
	}
	if !d.Result.Allowed {
		h[nameRetryAfter] = []string{strconv.Itoa(d.RetryAfter())}
	}
	if r.Header["Origin"] != nil {
		addField(h, nameExpose, []string{m.exposed})
	}
}

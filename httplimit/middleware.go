package httplimit

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/tryacquire/ratelimit"
)

// New returns a middleware: what puts the limit in front of a handler. Each request takes a
// permit of the key that key returns. If it gets one, the handler runs; otherwise the denial
// handler does (see [WithDenialHandler]), or, if there is no decision, the error handler (see
// [WithErrorHandler]). A CORS preflight takes none (see [WithPreflights]).
//
// The error wraps ratelimit.ErrInvalidConfig: limiter or key is nil, or an option cannot work or
// is given twice. Redis is not asked.
func New(limiter ratelimit.Limiter, key KeyFunc, opts ...Option) (func(http.Handler) http.Handler, error) {
	m := &middleware{limiter: limiter, key: key, denied: DefaultDenialHandler, failed: DefaultErrorHandler}
	m.decision.Policy = defaultPolicy
	m.setFields(Draft11())
	switch limiter.(type) {
	case nil:
		return nil, invalidConfig("New: the limiter is nil")
	case *ratelimit.TokenBucket, *ratelimit.LeakyBucket, *ratelimit.LocalTokenBucket:
		m.decision.Bucket = true
	}
	if key == nil {
		return nil, invalidConfig("New: the key function is nil; ClientIP and User return such")
	}
	given := map[string]bool{}
	for i, o := range opts {
		if o.set == nil {
			return nil, invalidConfig("New: option %d is empty", i+1)
		}
		if given[o.name] {
			return nil, invalidConfig("%s is given twice", o.name)
		}
		given[o.name] = true
		if err := o.set(m); err != nil {
			return nil, err
		}
	}
	return m.wrap, nil
}

// An Option is what the functions With… of this package return.
type Option struct {
	name string
	set  func(*middleware) error
}

const (
	defaultPolicy  = "default"
	mostPolicyName = 128 // bytes
)

// WithPolicy names the limit for clients, in the fields and the body of a denial; "default" if
// not given. It is for the limiter's name, or what the limit is called in the service's
// documentation: 1 to 128 printable ASCII characters.
func WithPolicy(name string) Option {
	return Option{"WithPolicy", func(m *middleware) error {
		if name == "" || len(name) > mostPolicyName {
			return invalidConfig("WithPolicy: a name of %d bytes; give 1 to %d", len(name), mostPolicyName)
		}
		for i := range len(name) {
			if name[i] < ' ' || name[i] > '~' {
				return invalidConfig("WithPolicy: %q holds a character that is not printable ASCII, which the fields cannot hold", name)
			}
		}
		m.decision.Policy = name
		return nil
	}}
}

// WithBucket says that the limiter's answers are those of a token or leaky bucket, for
// [Decision.EffectiveWindow]. A bucket inside a decorator (DenyCache, Fallback, Choice) needs it; one that is given
// to New itself is known as such. Without it, clients that spread their requests evenly are
// slower than they have to be, and never denied.
func WithBucket() Option {
	return Option{"WithBucket", func(m *middleware) error {
		m.decision.Bucket = true
		return nil
	}}
}

// WithFields chooses the fields that tell clients about their limit, in place of [Draft11]:
// several kinds, or none. Retry-After is always in a denial.
func WithFields(fields ...Fields) Option {
	return Option{"WithFields", func(m *middleware) error {
		for i, f := range fields {
			if f.write == nil {
				return invalidConfig("WithFields: fields %d are empty; NewFields makes such", i+1)
			}
		}
		m.setFields(fields...)
		return nil
	}}
}

// WithCost says how many permits a request takes; 1 if not given. A request of cost 0 is served
// without asking the limiter. A cost below 0 is an error, and so is one above what the limiter can ever allow.
// cost must not read the body, unless it puts another one in its place.
func WithCost(cost func(*http.Request) int) Option {
	return Option{"WithCost", func(m *middleware) error {
		if cost == nil {
			return invalidConfig("WithCost: the function is nil")
		}
		m.cost = cost
		return nil
	}}
}

// WithSkip serves the requests for which skip is true without a limit and without fields:
// health checks, for example. It is asked before the key function. It must rest on nothing that
// a client can forge.
func WithSkip(skip func(*http.Request) bool) Option {
	return Option{"WithSkip", func(m *middleware) error {
		if skip == nil {
			return invalidConfig("WithSkip: the function is nil")
		}
		m.skip = skip
		return nil
	}}
}

// WithPreflights limits CORS preflights as all other requests. Without it they take no permit, because
// a browser sends them unasked. A preflight is a request of the method OPTIONS with Origin and
// Access-Control-Request-Method, and with no body, no Authorization and no Cookie, as browsers
// send it. Use this option if the handler does work for OPTIONS.
func WithPreflights() Option {
	return Option{"WithPreflights", func(m *middleware) error {
		m.preflights = true
		return nil
	}}
}

// WithDenialHandler answers denied requests, in place of [DefaultDenialHandler]. Retry-After and
// the fields are set when it is called.
func WithDenialHandler(denied func(http.ResponseWriter, *http.Request, Decision)) Option {
	return Option{"WithDenialHandler", func(m *middleware) error {
		if denied == nil {
			return invalidConfig("WithDenialHandler: the function is nil")
		}
		m.denied = denied
		return nil
	}}
}

// WithErrorHandler answers the requests for which there is no decision, in place of
// [DefaultErrorHandler]: without a key, or while Redis is down. next is the handler behind
// the limit: calling it serves the request without a limit. To log, and answer as usual:
//
//	httplimit.WithErrorHandler(func(w http.ResponseWriter, r *http.Request, err error, next http.Handler) {
//		log.Print(err)
//		httplimit.DefaultErrorHandler(w, r, err, next)
//	})
//
// err is that of the key function or of the limiter. It is for the log, and not for clients.
func WithErrorHandler(failed func(w http.ResponseWriter, r *http.Request, err error, next http.Handler)) Option {
	return Option{"WithErrorHandler", func(m *middleware) error {
		if failed == nil {
			return invalidConfig("WithErrorHandler: the function is nil")
		}
		m.failed = failed
		return nil
	}}
}

type middleware struct {
	limiter    ratelimit.Limiter
	key        KeyFunc
	decision   Decision // without its Result
	fields     []Fields
	exposed    string // for browsers: the fields, and Retry-After
	cost       func(*http.Request) int
	skip       func(*http.Request) bool
	preflights bool // are limited
	denied     func(http.ResponseWriter, *http.Request, Decision)
	failed     func(http.ResponseWriter, *http.Request, error, http.Handler)
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
			m.failed(w, r, errNoHandler, http.NotFoundHandler())
		})
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
}

func (m *middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if m.skip != nil && m.skip(r) || !m.preflights && isPreflight(r) {
		next.ServeHTTP(w, r)
		return
	}
	cost := 1
	if m.cost != nil {
		if cost = m.cost(r); cost == 0 {
			next.ServeHTTP(w, r)
			return
		}
	}
	key, err := keyOf(m.key, r)
	if err != nil {
		m.failed(w, r, err, next)
		return
	}
	d := m.decision
	if d.Result, err = m.limiter.TryAcquireN(r.Context(), key, cost); err != nil {
		m.failed(w, r, err, next)
		return
	}
	m.setHeaders(w.Header(), r, d)
	if d.Result.Allowed {
		next.ServeHTTP(w, r)
	} else {
		m.denied(w, r, d)
	}
}

func (m *middleware) setHeaders(h http.Header, r *http.Request, d Decision) {
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

// isPreflight reports whether r is what a browser asks on its own before it sends a request to
// another origin. It brings neither a body nor credentials, so that a request that brings
// them cannot pass for one.
func isPreflight(r *http.Request) bool {
	return r.Method == http.MethodOptions &&
		r.Header["Origin"] != nil && r.Header["Access-Control-Request-Method"] != nil &&
		r.Header["Authorization"] == nil && r.Header["Cookie"] == nil &&
		r.ContentLength == 0 && len(r.TransferEncoding) == 0
}

// DefaultDenialHandler answers a denial with 429 and a body of the type application/problem+json
// that names the policy:
//
//	{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",
//	 "title":"Request cannot be satisfied as assigned quota has been exceeded",
//	 "status":429,"violated-policies":["api"]}
//
// A denial because of an outage, as by a [ratelimit.Fallback] to [ratelimit.DenyAll], is no fault of the client's: it is
// answered with 503.
func DefaultDenialHandler(w http.ResponseWriter, _ *http.Request, d Decision) {
	if d.Result.Fallback && d.Result.Limit == 0 {
		writeProblem(w, problem{Status: http.StatusServiceUnavailable})
		return
	}
	writeProblem(w, problem{
		Type:     "https://iana.org/assignments/http-problem-types#quota-exceeded",
		Title:    "Request cannot be satisfied as assigned quota has been exceeded",
		Status:   http.StatusTooManyRequests,
		Policies: []string{d.Policy},
	})
}

// DefaultErrorHandler answers a request for which there is no decision. It never calls the handler
// behind the limit, and tells the client nothing of the error but the status:
//
//	400  ErrNoKey and ErrBadKey; ratelimit.ErrExceedsLimit: a cost that no wait would help
//	500  a mistake of the service's: ratelimit.ErrInvalidConfig, ErrInvalidKey, ErrInvalidPermits, ErrCrossSlot
//	503  everything else: Redis is down, for example
func DefaultErrorHandler(w http.ResponseWriter, _ *http.Request, err error, _ http.Handler) {
	writeProblem(w, problem{Status: statusOf(err)})
}

func statusOf(err error) int {
	is := func(sentinels ...error) bool {
		return slices.ContainsFunc(sentinels, func(s error) bool { return errors.Is(err, s) })
	}
	switch {
	case is(ratelimit.ErrInvalidConfig, ratelimit.ErrInvalidKey, ratelimit.ErrInvalidPermits, ratelimit.ErrCrossSlot):
		return http.StatusInternalServerError
	case is(ErrNoKey, ErrBadKey, ratelimit.ErrExceedsLimit):
		return http.StatusBadRequest
	}
	return http.StatusServiceUnavailable
}

// problem is a problem detail of RFC 9457.
type problem struct {
	Type     string   `json:"type,omitempty"`
	Title    string   `json:"title"`
	Status   int      `json:"status"`
	Policies []string `json:"violated-policies,omitempty"`
}

func writeProblem(w http.ResponseWriter, p problem) {
	if p.Title == "" {
		p.Title = http.StatusText(p.Status)
	}
	body, err := json.Marshal(p)
	if err != nil { // strings and numbers only
		body = nil
	}
	h := w.Header()
	for _, name := range []string{"Cache-Control", "Content-Encoding", "Content-Length", "Etag", "Last-Modified"} {
		delete(h, name) // set by a middleware outside, for the handler's answer
	}
	h["Cache-Control"] = []string{"no-store"} // as RFC 6585 asks for
	h["Content-Type"] = []string{"application/problem+json"}
	h["X-Content-Type-Options"] = []string{"nosniff"}
	w.WriteHeader(p.Status)
	_, _ = w.Write(body) // if the client is gone, there is nobody to tell
}

package httplimit

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/tryacquire/ratelimit/internal/deadline"
	"github.com/tryacquire/ratelimit/internal/errclass"
	"github.com/tryacquire/ratelimit/internal/integration"
)

// DefaultDenialHandler answers a denial with 429 and a body of the type application/problem+json
// that names the policies that denied:
//
//	{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",
//	 "title":"Request cannot be satisfied as assigned quota has been exceeded",
//	 "status":429,"violated-policies":["api"]}
//
// With [WithServiceUnavailable] it is 503, and of the type temporary-reduced-capacity. A denial
// because of an outage, as by a [ratelimit.Fallback] to [ratelimit.DenyAll], is no fault of the
// client's: it is answered with 503 that names no policy.
func DefaultDenialHandler(w http.ResponseWriter, _ *http.Request, d Decision) {
	switch {
	case integration.IsOutageDenial(d.Result):
		writeProblem(w, problem{Status: http.StatusServiceUnavailable})
	case d.unavailable():
		writeProblem(w, problem{
			Type:     "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
			Title:    "Request cannot be satisfied due to temporary server capacity constraints",
			Status:   http.StatusServiceUnavailable,
			Policies: d.Violated(),
		})
	default:
		writeProblem(w, problem{
			Type:     "https://iana.org/assignments/http-problem-types#quota-exceeded",
			Title:    "Request cannot be satisfied as assigned quota has been exceeded",
			Status:   http.StatusTooManyRequests,
			Policies: d.Violated(),
		})
	}
}

// DefaultErrorHandler answers a request for which there is no decision. It never calls the handler
// behind the limit, and the client learns only the status of the error:
//
//	400  ErrNoKey and ErrBadKey; ratelimit.ErrExceedsLimit: a cost that no wait would help
//	429  a limiter that returns its denials as errors: ratelimit.ErrDenied, ErrWaitTooLong
//	500  a mistake of the service's: ratelimit.ErrInvalidConfig, ErrInvalidKey, ErrInvalidPermits, ErrCrossSlot;
//	     a key in Redis that is damaged: ratelimit.ErrCorruptState
//	503  everything else: Redis is down, for example; with a Retry-After if there is [WithOutageRetryAfter]
func DefaultErrorHandler(w http.ResponseWriter, r *http.Request, err error, _ http.Handler) {
	status := statusOf(err)
	if after := integration.RetryAfter(err); after > 0 && status == http.StatusServiceUnavailable {
		h := w.Header()
		h[nameRetryAfter] = []string{strconv.Itoa(wholeSeconds(after))}
		if r.Header["Origin"] != nil {
			addField(h, nameExpose, []string{nameRetryAfter})
		}
	}
	writeProblem(w, problem{Status: status})
}

// fail answers a request for which there is no decision.
func (m *middleware) fail(w http.ResponseWriter, r *http.Request, err error, next http.Handler) {
	if m.outageRetryAfter > 0 {
		err = integration.Later(err, m.outageRetryAfter)
	}
	m.failed(w, r, err, next)
}

// ServeInOutages is an error handler (see [WithErrorHandler]) that serves requests without a limit
// while there is no decision because of Redis or the network: those that [DefaultErrorHandler]
// answers with 503, but for ratelimit.ErrLeaseLost. It answers all other errors as
// DefaultErrorHandler does, and also every error of a key function, so that no request without a
// key is served, none after a mistake of the service, and none whose key in Redis is damaged.
//
// Make the client with [ratelimit.ClientOptions]: a request is served only when the call to Redis has failed.
// A [ratelimit.Fallback] around each limiter also has a budget, a breaker, and other policies.
func ServeInOutages(w http.ResponseWriter, r *http.Request, err error, next http.Handler) {
	if errclass.Is(err, errclass.Outage) && !integration.IsKeyError(err) && deadline.Ended(r.Context()) == nil {
		next.ServeHTTP(w, r)
		return
	}
	DefaultErrorHandler(w, r, err, next)
}

func statusOf(err error) int {
	switch errclass.Of(err).Class {
	case errclass.Mistake, errclass.Damaged:
		return http.StatusInternalServerError
	case errclass.NoKey, errclass.TooMuch:
		return http.StatusBadRequest
	case errclass.Decision:
		return http.StatusTooManyRequests
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

// forgetAnswer removes what a middleware outside has set for the handler's answer, and keeps caches from storing the one
// that comes in its place, as RFC 6585 asks for: also those that go by a field of their own (RFC 9213). Content-Encoding
// stays: the middleware that has set it compresses this body too, see go.dev/issue/66343.
func forgetAnswer(h http.Header) {
	for name := range h {
		switch name {
		case "Content-Length", "Etag", "Last-Modified", "Expires", "X-Accel-Expires", "Edge-Control", "Surrogate-Control":
			delete(h, name)
		default:
			if strings.HasSuffix(name, "-Cache-Control") {
				delete(h, name)
			}
		}
	}
	h["Cache-Control"] = []string{"no-store"}
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
	forgetAnswer(h)
	h["Content-Type"] = []string{"application/problem+json"}
	h["X-Content-Type-Options"] = []string{"nosniff"}
	w.WriteHeader(p.Status)
	_, _ = w.Write(body) // if the client is gone, there is nobody to tell
}

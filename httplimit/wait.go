package httplimit

import (
	"net/http"
	"time"

	"github.com/tryacquire/ratelimit/internal/integration"
)

// WithMaxWait lets a request wait for its permits, for less than d, instead of being denied. On a
// bucket, requests are served in turn, evenly spaced; on other limiters in no order, see
// ratelimit.WaitN. d is at least 1ms, and less than the server's WriteTimeout, which goes on
// during the wait.
//
// A request that would have to wait for d or longer is denied at once. Its Retry-After is the whole
// wait: a client that comes back then is served without a wait, if nobody else takes the permits. A
// request that a [ratelimit.Fallback] denies because of an outage is not made to wait either.
//
// If the client goes away while it waits, the permits are given back as far as that exceeds no
// limit, and the error handler is called with an error that wraps context.Canceled. net/http
// notices that over HTTP/2. Over HTTP/1.1 it does so if the request has no body, or its body has
// been read: see [WithReadFirst]. Otherwise the request keeps its turn, and its handler runs for
// nobody.
//
// Each request that waits keeps its goroutine and its connection: if many clients may wait, bound
// their number, see [WithMaxWaiting]. A request that is allowed at once costs as
// much as without this option; one that waits asks Redis at least once more.
//
// The limits of [NewAll] promise no turn: a request that several limits decide asks again when the denial says, and the
// longest Retry-After of those that deny must be shorter than d. In [New] it is not together with WithSettle or
// WithReportedCost.
//
// For permits in flight, in [NewInFlight] and in NewAll, requests of one process with the same keys are served in the order
// in which they came, and at once when one of them ends. The first of them asks again, up to four times a second, because
// nobody hears when a request ends in another process; among processes there is no order, see ratelimit.WaitAll. A request
// that finds none free for d is denied, as it is without the option.
func WithMaxWait(d time.Duration) Option {
	return aboutWhole("WithMaxWait", func(m *middleware) error {
		if d < integration.LeastWait {
			return invalidConfig("WithMaxWait: %v is not from %v up", d, integration.LeastWait)
		}
		m.maxWait = d
		return nil
	})
}

// WithMaxWaiting bounds how many requests of this process wait at the same time, see [WithMaxWait]: n, 1 or more, of all
// keys together. One more is denied at once, as without WithMaxWait. Without it any number may wait.
func WithMaxWaiting(n int) Option {
	return aboutWhole("WithMaxWaiting", func(m *middleware) error {
		if n < 1 {
			return invalidConfig("WithMaxWaiting: %d requests; give 1 or more, or leave out WithMaxWait", n)
		}
		m.mostWait = n
		return nil
	})
}

// checkWait refuses options about a wait without one.
func (m *middleware) checkWait() error {
	switch {
	case m.maxWait > 0:
	case m.readFirst > 0:
		return errNoWait
	case m.mostWait > 0:
		return errNoQueue
	}
	return nil
}

// A waiter is a request that may have to wait.
type waiter struct {
	m  *middleware
	r  *http.Request
	in bool // it is counted
}

// ready reports whether the request may begin to wait.
func (w *waiter) ready() bool {
	if most := int64(w.m.mostWait); most > 0 {
		if w.in = w.m.waiting.Add(1) <= most; !w.in {
			w.m.waiting.Add(-1)
			return false
		}
	}
	return w.m.readFirst == 0 || readBody(w.r, w.m.readFirst)
}

// leave ends the request's wait.
func (w *waiter) leave() {
	if w.in {
		w.m.waiting.Add(-1)
	}
}

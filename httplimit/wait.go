package httplimit

import (
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
// Each request that waits keeps its goroutine and its connection: if many clients may wait, limit
// their number outside, with [NewInFlight] for example. A request that is allowed at once costs as
// much as without this option; one that waits asks Redis at least once more.
//
// The limits of [NewAll] promise no turn: a request that several limits decide asks again when the denial says, and the
// longest Retry-After of those that deny must be shorter than d. The option is not for permits in flight, and in [New] not
// together with WithSettle or WithReportedCost.
func WithMaxWait(d time.Duration) Option {
	return aboutWhole("WithMaxWait", func(m *middleware) error {
		if d < integration.LeastWait {
			return invalidConfig("WithMaxWait: %v is not from %v up", d, integration.LeastWait)
		}
		m.maxWait = d
		return nil
	})
}

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
// wait: a client that comes back then is served without one, if nobody else takes the permits. A
// request that a [ratelimit.Fallback] denies because of an outage is not made to wait either.
// If the client goes away while it waits, the permits are given back as far as that exceeds no
// limit, and the error handler is called with an error that wraps context.Canceled.
//
// Each request that waits keeps its goroutine and its connection: where many clients may wait,
// bound them outside, with [NewInFlight] for example. Beside a request that is allowed at once,
// which costs what it costs without this option, one that waits asks Redis at least once more. The
// option is for [New], and not together with WithSettle or WithReportedCost.
func WithMaxWait(d time.Duration) Option {
	return aboutWhole("WithMaxWait", func(m *middleware) error {
		if d < integration.LeastWait {
			return invalidConfig("WithMaxWait: %v is not from %v up", d, integration.LeastWait)
		}
		m.maxWait = d
		return nil
	})
}

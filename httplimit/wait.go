package httplimit

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/tryacquire/ratelimit"
)

// WithMaxWait lets a request wait for its permits, for less than d, instead of being denied. On a
// bucket, requests are served in turn, evenly spaced; on other limiters in no order, see
// ratelimit.WaitN. d is at least 1ms, and less than the server's WriteTimeout, which goes on
// during the wait.
//
// A request that would have to wait for d or longer is denied at once. Its Retry-After is the whole
// wait: a client that comes back then is served without one, if nobody else takes the permits.
// If the client goes away while it waits, the permits are given back as far as that exceeds no
// limit, and the error handler is called with an error that wraps context.Canceled.
//
// Each request that waits keeps its goroutine and its connection: if many clients may wait, limit
// their number outside, with [NewInFlight] for example. A request that is allowed at once costs as
// much as without this option; one that waits asks Redis at least once more. The option is for
// [New], and not together with WithSettle or WithReportedCost.
func WithMaxWait(d time.Duration) Option {
	return aboutWhole("WithMaxWait", func(m *middleware) error {
		if d < time.Millisecond {
			return invalidConfig("WithMaxWait: %v is not from 1ms up", d)
		}
		m.maxWait = d
		return nil
	})
}

// wait takes n permits, now or before the longest wait is over. It asks before it waits: what is
// allowed at once is merged with other calls, and what would take too long has a Result.
func (m *middleware) wait(r *http.Request, limiter ratelimit.Limiter, key string, n int) (ratelimit.Result, error) {
	deadline := time.Now().Add(m.maxWait)
	first, err := limiter.TryAcquireN(r.Context(), key, n)
	if err != nil || first.Allowed || first.RetryAfter >= m.maxWait {
		return first, err
	}
	ctx, cancel := context.WithDeadline(r.Context(), deadline)
	defer cancel()
	result, err := ratelimit.WaitN(ctx, limiter, key, n)
	var late *ratelimit.WaitError
	switch {
	case errors.As(err, &late): // others have come first
		first.RetryAfter = late.Wait
		first.ResetAfter = max(first.ResetAfter, late.Wait)
		return first, nil
	case err != nil && endOf(ctx) != nil && endOf(r.Context()) == nil: // the wait is over, which is no outage
		return first, nil
	}
	return result, err
}

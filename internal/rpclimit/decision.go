package rpclimit

import (
	"fmt"
	"math"
	"time"

	"github.com/tryacquire/ratelimit"
)

// A Decision is what the limiter answered to a call that is denied. The packages' own are the
// same.
type Decision struct {
	Policy   string
	InFlight bool
	Result   ratelimit.Result
}

// RetryDelay is Result.RetryAfter in whole milliseconds, rounded up, and at least one.
func (d Decision) RetryDelay() time.Duration {
	wait := d.Result.RetryAfter
	if wait > math.MaxInt64-time.Millisecond {
		return wait.Truncate(time.Millisecond)
	}
	return max(time.Millisecond, (wait + time.Millisecond - 1).Truncate(time.Millisecond))
}

// Text is the message for clients.
func (d Decision) Text() string {
	return fmt.Sprintf("the limit %q is used up, retry after %v", d.Policy, d.RetryDelay())
}

// Violation is the subject and the description in QuotaFailure. The description is empty where no
// limit is known.
func (d Decision) Violation() (subject, description string) {
	subject = "policy:" + d.Policy
	switch {
	case d.Result.Limit <= 0:
		return subject, ""
	case d.InFlight:
		return subject, fmt.Sprintf("limit %d, at once", d.Result.Limit)
	}
	return subject, fmt.Sprintf("limit %d, window %v", d.Result.Limit, d.Result.Window)
}

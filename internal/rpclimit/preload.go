package rpclimit

import (
	"context"
	"errors"
	"fmt"

	"github.com/tryacquire/ratelimit"
)

// Preload loads the scripts of each of its limiters, which decide one after the other.
func (l *Limit[C]) Preload(ctx context.Context) error {
	const key = "preload"
	var errs []error
	for _, limiter := range []ratelimit.Limiter{l.call.limiter, l.received.limiter, l.sent.limiter} {
		if limiter != nil {
			errs = append(errs, ratelimit.Preload(ctx, ratelimit.ClaimOf(limiter, key, 1)))
		}
	}
	if l.inFlight != nil {
		errs = append(errs, ratelimit.Preload(ctx, ratelimit.ClaimHold(l.inFlight, key, 1)))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w (%s.Preload)", err, l.Package)
	}
	return nil
}

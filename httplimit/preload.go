package httplimit

import (
	"context"
	"fmt"
	"net/http"

	"github.com/tryacquire/ratelimit"
)

// Preload loads the scripts that requests to a limit need, so that the first request finds them in Redis, and a
// connection, and does not miss the limit's budget. Call it before the service listens:
//
//	if err := httplimit.Preload(ctx, limit); err != nil {
//		log.Print(err) // Redis is down, for example: the service can start all the same
//	}
//
// limit is what [New], [NewAll] or [NewInFlight] returned. [ratelimit.Preload] says what is loaded. A
// [ratelimit.Choice] is asked with ctx, and a key that begins with "{preload}"; if it has no plan for these, the error
// says so: give a context with a plan, or the claims to Preload yourself. Requests that cost nothing of one of
// several limits (see [WithCost]) are decided by a script of the others alone, which is not loaded.
//
// The error wraps ratelimit.ErrInvalidConfig if limit is of another package, or wrapped in a function of your own.
func Preload(ctx context.Context, limit func(http.Handler) http.Handler) error {
	if limit == nil {
		return invalidConfig("Preload: the limit is nil; give what New, NewAll or NewInFlight returned")
	}
	l, ok := limit(http.NotFoundHandler()).(*limited)
	if !ok {
		return invalidConfig("Preload: this is no limit of package httplimit; give what New, NewAll or NewInFlight returned, not a function around it")
	}
	claims := l.claims("{preload}")
	if err := ratelimit.Preload(ctx, claims...); err != nil {
		return fmt.Errorf("%w (httplimit.Preload)", err)
	}
	return nil
}

// claims are such as a request makes, each of a key of its own.
func (m *middleware) claims(tag string) []ratelimit.Claim {
	var all []ratelimit.Claim
	for i, l := range m.limits {
		all = append(all, l.claim(fmt.Sprintf("%s%d", tag, i), 1))
	}
	return all
}

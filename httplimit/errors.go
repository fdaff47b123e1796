package httplimit

import (
	"errors"
	"fmt"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/integration"
)

// The errors of key functions that are about the request. They reach the error handler (see
// [WithErrorHandler]) with what was wrong, but without the value of a header. There is one
// exception: of a header with addresses, [ClientIP] quotes what is no address, at most 64
// bytes. Errors about the service's own setup wrap [ratelimit.ErrInvalidConfig] instead.
var (
	// ErrNoKey: the request lacks what its key is made of: a header, an API key, a user.
	// [FirstOf] then asks its next key function.
	ErrNoKey = integration.ErrNoKey

	// ErrBadKey: the request has what its key is made of, but in a form of which no key
	// can be made: two values, or no address where a proxy should have written one.
	ErrBadKey = integration.ErrBadKey
)

func noKey(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrNoKey, fmt.Sprintf(format, args...))
}

func badKey(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrBadKey, fmt.Sprintf(format, args...))
}

func invalidConfig(format string, args ...any) error {
	return fmt.Errorf("%w: httplimit: %s", ratelimit.ErrInvalidConfig, fmt.Sprintf(format, args...))
}

var (
	errNoHandler = invalidConfig("the handler behind the limit is nil")

	errTwoSettle     = invalidConfig("WithSettle and WithReportedCost both say what a request has cost; give one")
	errNoWait        = invalidConfig("WithReadFirst: no request waits without WithMaxWait; give it to New")
	errNoQueue       = invalidConfig("WithMaxWaiting: no request waits without WithMaxWait; give it too")
	errWaitAndSettle = invalidConfig("WithMaxWait: an estimate is not waited for; leave out WithSettle and WithReportedCost, or the wait")

	errNoPrefix     = errors.New("is not valid")
	errAllTrusted   = errors.New("would trust every address, and let each client choose its key; give the networks of the proxies")
	errPartlyMapped = errors.New("is partly IPv4 in IPv6 form; give it as IPv4")
)

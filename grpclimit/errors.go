package grpclimit

import (
	"fmt"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/httplimit"
)

// The errors of key functions that are about the call. They are those of package httplimit, so
// that one error handler serves both. They reach the error handler (see [WithErrorHandler]) with
// what was wrong, but without the value of metadata. Errors about the service's own setup wrap
// [ratelimit.ErrInvalidConfig] instead.
var (
	// ErrNoKey: the call lacks what it would be limited by: metadata, an API key, a user.
	// [FirstOf] then asks its next key function.
	ErrNoKey = httplimit.ErrNoKey

	// ErrBadKey: the call has what it would be limited by, but in a form that names nobody:
	// two values, or no address where a proxy should have written one.
	ErrBadKey = httplimit.ErrBadKey
)

func invalidConfig(format string, args ...any) error {
	return fmt.Errorf("%w: grpclimit: %s", ratelimit.ErrInvalidConfig, fmt.Sprintf(format, args...))
}

var (
	errEmptyKey   = fmt.Errorf("%w: the key function returned an empty one and no error", ratelimit.ErrInvalidKey)
	errUnmade     = invalidConfig("the limit was not made by its constructor, which has returned an error")
	errClientPeer = invalidConfig("ClientIP: the limit is on a client, whose own calls have no client's address; use another key")
	errNoPeer     = invalidConfig("ClientIP: the context has no peer; only calls that grpc.Server has received have one")
)

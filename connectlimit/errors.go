package connectlimit

import "github.com/tryacquire/ratelimit/httplimit"

// The errors of key functions that are about the call. They are those of package httplimit, so
// that one error handler serves both. They reach the error handler (see [WithErrorHandler]) with
// what was wrong, but without the value of a header. Errors about the service's own setup wrap
// [ratelimit.ErrInvalidConfig] instead.
var (
	// ErrNoKey: the call lacks what its key is made of: a header, an API key, a user.
	// [FirstOf] then asks its next key function.
	ErrNoKey = httplimit.ErrNoKey

	// ErrBadKey: the call has what its key is made of, but in a form of which no key can be
	// made: two values, or no address where a proxy should have written one.
	ErrBadKey = httplimit.ErrBadKey
)

var (
	errClientPeer = protocol.InvalidConfig("ClientIP: the limit is on a client, whose own calls have no client's address; use another key")
	errOnClient   = protocol.InvalidConfig("NewServer: this interceptor is for handlers, and was given to a client; use NewClient")
	errNoLimit    = protocol.InvalidConfig("Preload: this is no limit; give what NewServer or NewClient returned")
	errOnHandler  = protocol.InvalidConfig("NewClient: this interceptor is for clients, and was given to a handler; use NewServer")
)

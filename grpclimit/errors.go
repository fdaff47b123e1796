package grpclimit

import "github.com/tryacquire/ratelimit/httplimit"

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

var (
	errUnmade     = protocol.InvalidConfig("the limit was not made by its constructor, which has returned an error")
	errClientPeer = protocol.InvalidConfig("ClientIP: the limit is on a client, whose own calls have no client's address; use another key")
	errNoPeer     = protocol.InvalidConfig("ClientIP: the context has no peer; only calls that grpc.Server has received have one")
)

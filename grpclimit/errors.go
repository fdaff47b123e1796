package grpclimit

import "github.com/tryacquire/ratelimit/httplimit"

// The errors of key functions that are about the call. They are those of package httplimit, so
// that one error handler serves both. They reach the error handler (see [WithErrorHandler]) with
// what was wrong, but without the value of metadata. Errors about the service's own setup wrap
// [ratelimit.ErrInvalidConfig] instead.
var (
	// ErrNoKey: the call lacks what its key is made of: metadata, an API key, a user.
	// [FirstOf] then asks its next key function.
	ErrNoKey = httplimit.ErrNoKey

	// ErrBadKey: the call has what its key is made of, but in a form of which no key can be
	// made: two values, or no address where a proxy should have written one.
	ErrBadKey = httplimit.ErrBadKey
)

var (
	errUnmade     = protocol.InvalidConfig("the limit was not made by its constructor, which has returned an error")
	errClientPeer = protocol.InvalidConfig("ClientIP: the limit is on a client, whose own calls have no client's address; use another key")
	errTapMethod  = protocol.InvalidConfig("Method: a tap handle does not know whether the method exists, and a client can invent names; give a key function that returns a key for each of the service's methods, and one for all others")
	errNoPeer     = protocol.InvalidConfig("ClientIP: the context has no peer; only calls that grpc.Server has received have one")
)

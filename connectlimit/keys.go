package connectlimit

import (
	"context"
	"net/http"
	"net/netip"
	"net/textproto"

	"connectrpc.com/connect"

	"github.com/tryacquire/ratelimit/httplimit"
	"github.com/tryacquire/ratelimit/internal/rpclimit"
)

// A Call is the RPC that is to be limited.
type Call struct {
	// Spec has the procedure, such as "/grpc.health.v1.Health/Check", and its kind; IsClient
	// reports whether the call is made by this process, not received.
	Spec connect.Spec

	// Peer is the other side, and the protocol that is spoken with it.
	Peer connect.Peer

	// Header is the request's header. It must not be changed.
	Header http.Header

	// Message is the request of a unary call, or the message of a stream that is to be
	// limited (see WithReceived and WithSent). It is nil when a stream starts. It must not
	// be changed.
	Message any
}

// A KeyFunc says whose call it is, and so which key of the limiter it counts for.
//
// An error means that the call has no key, and never that it has no limit: the error goes to
// the error handler, and the call fails unless that handler lets it go on. An empty key is an
// error too. A KeyFunc of your own returns an error that wraps [ErrNoKey] or [ErrBadKey] for
// what the client has done, and keeps secrets out of errors and keys. It is called from many
// goroutines at once.
type KeyFunc func(ctx context.Context, call Call) (string, error)

// ClientIP limits a handler's calls by the client's address, as [httplimit.ClientIP] does, with
// the same keys: "ip:192.0.2.7" and "ip:2001:db8:1:2::/64". trusted are the networks of the
// proxies in front of the service, and nothing else. Without any, the address is that of the
// connection. With them, and if the connection comes from one, X-Forwarded-For is read from the
// right; httplimit.WithForwarded reads Forwarded instead, and httplimit.WithIPv6Prefix groups
// IPv6 clients by another prefix than a /64.
//
// Behind a proxy all calls come from the proxy's address: without its network in trusted,
// all clients have one limit together.
//
// [ErrBadKey] is the error for anything but an address where a trusted proxy should have written
// one. A peer without an IP address, as on a Unix socket, is an error that wraps
// ratelimit.ErrInvalidConfig, and so is a call of a client.
//
// ClientIP's own error wraps ratelimit.ErrInvalidConfig: a prefix that is not valid, or that
// trusts every address, or an option that cannot work.
func ClientIP(trusted []netip.Prefix, opts ...httplimit.ClientIPOption) (KeyFunc, error) {
	key, err := httplimit.ClientIP(trusted, opts...)
	if err != nil {
		return nil, err
	}
	return func(_ context.Context, call Call) (string, error) {
		if call.Spec.IsClient {
			return "", errClientPeer
		}
		return key(&http.Request{RemoteAddr: call.Peer.Addr, Header: call.Header})
	}, nil
}

// Header limits by a header, with keys such as "header:x-tenant:acme". Whoever sets the header
// chooses the key: use it for one that a proxy in front of the service sets or replaces, or that
// has been checked. A call without the header gets [ErrNoKey], and one with several values
// [ErrBadKey]. For secrets use [APIKey].
//
// The error wraps ratelimit.ErrInvalidConfig: name is not that of a header, or longer than 64
// bytes.
func Header(name string) (KeyFunc, error) { return ofHeader(httplimit.Header, name) }

// APIKey limits by the API key in a header, hashed by SHA-256, with keys such as
// "apikey#1EZb…". Of "Authorization" it takes the token of the scheme Bearer, of other headers
// the whole value. The service must check before the limit that the API key is valid: otherwise
// a client could invent one for each call. A call without the header gets [ErrNoKey]; several
// values, or another scheme, [ErrBadKey]. No error holds the API key.
//
// The error wraps ratelimit.ErrInvalidConfig: header is not the name of a header, or longer than
// 64 bytes.
func APIKey(header string) (KeyFunc, error) { return ofHeader(httplimit.APIKey, header) }

func ofHeader(of func(string) (httplimit.KeyFunc, error), name string) (KeyFunc, error) {
	key, err := of(name)
	if err != nil {
		return nil, err
	}
	canonical := textproto.CanonicalMIMEHeaderKey(name)
	return func(_ context.Context, call Call) (string, error) {
		return key(&http.Request{Header: http.Header{canonical: call.Header[canonical]}})
	}, nil
}

// User limits by the user whom the service's authentication has put into the context, with keys
// such as "user:42". user returns "" if there is none, and the call then gets [ErrNoKey]. The
// authentication goes outside of the limit: in an HTTP middleware, or an interceptor that is given
// before. The error wraps ratelimit.ErrInvalidConfig: user is nil.
func User(user func(context.Context) string) (KeyFunc, error) { return rpclimit.User[Call](user) }

// Everyone limits all calls together, by the key "all". On a Redis Cluster all limits of that key
// are in one slot, on one master. A KeyFunc that returns a constant of its own for each limit, such
// as "all:search", spreads them.
func Everyone() KeyFunc {
	return func(context.Context, Call) (string, error) { return "all", nil }
}

// Procedure limits by the procedure, with keys such as "route:/grpc.health.v1.Health/Check": one
// limit for all clients of a procedure; with [Join], one for each client.
func Procedure() KeyFunc {
	key := httplimit.Pattern()
	return func(_ context.Context, call Call) (string, error) {
		return key(&http.Request{Pattern: call.Spec.Procedure})
	}
}

// Join limits by several things together, such as each user for each procedure, with keys such
// as "user:42|route:/grpc.health.v1.Health/Check". If one of keys returns an error, Join's key
// function does too. The error wraps ratelimit.ErrInvalidConfig: no keys, more than 8, or a nil
// one.
//
// Different parts never make the same key, if keys are those of this package or escape "|"
// themselves.
func Join(keys ...KeyFunc) (KeyFunc, error) { return rpclimit.Combined(httplimit.Join, keys) }

// FirstOf limits by the first of keys that the call has: for example by user, and by address if
// there is no user. After [ErrNoKey] it asks the next key function; it returns every other
// error, and [ErrNoKey] if the last one returns it. The error wraps ratelimit.ErrInvalidConfig:
// no keys, more than 8, or a nil one.
//
// A client can leave out what the first key function needs, and is then limited by the second:
// each key alone must limit enough.
func FirstOf(keys ...KeyFunc) (KeyFunc, error) { return rpclimit.Combined(httplimit.FirstOf, keys) }

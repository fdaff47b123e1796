package grpclimit

import (
	"context"
	"net/http"
	"net/netip"
	"net/textproto"
	"strings"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/tryacquire/ratelimit/httplimit"
	"github.com/tryacquire/ratelimit/internal/rpclimit"
)

// A Call is the RPC that is to be limited. Its metadata, its peer and its deadline are in the
// context, as for any interceptor: on a server metadata.FromIncomingContext has the metadata, on
// a client metadata.FromOutgoingContext.
type Call struct {
	// Method is the full name of the method, such as "/grpc.health.v1.Health/Check".
	Method string

	// Message is the request of a unary call, or the message of a stream that is to be
	// limited (see WithReceived and WithSent). It is nil when a stream starts, and in a tap
	// handle. It must not be changed.
	Message any

	// Client reports whether the call is made by this process, not received.
	Client bool

	name naming
}

// A naming is who has chosen the method's name.
type naming int8

const (
	byService     naming = iota // the method is registered, or called by this process
	unknownMethod               // grpc.UnknownServiceHandler serves it
	notYetKnown                 // in a tap handle
)

// A KeyFunc says whose call it is, and so which key of the limiter it counts for.
//
// An error means that the call has no key, and never that it has no limit: the error goes to
// the error handler, and the call fails unless that handler lets it go on. An empty key is an
// error too. A KeyFunc of your own returns an error that wraps [ErrNoKey] or [ErrBadKey] for
// what the client has done, and keeps secrets out of errors and keys. It is called from many
// goroutines at once.
type KeyFunc func(ctx context.Context, call Call) (string, error)

// ClientIP limits a server's calls by the client's address, as [httplimit.ClientIP] does, with
// the same keys: "ip:192.0.2.7" and "ip:2001:db8:1:2::/64". trusted are the networks of the
// proxies in front of the service, and nothing else. Without any, the address is that of the
// connection. With them, and if the connection comes from one, the metadata x-forwarded-for is
// read from the right; httplimit.WithForwarded reads forwarded instead, and
// httplimit.WithIPv6Prefix groups IPv6 clients by another prefix than a /64.
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
	return func(ctx context.Context, call Call) (string, error) {
		if call.Client {
			return "", errClientPeer
		}
		p, ok := peer.FromContext(ctx)
		if !ok || p.Addr == nil {
			return "", errNoPeer
		}
		address := p.Addr.String()
		if _, err := netip.ParseAddrPort(address); err != nil {
			return "", protocol.InvalidConfig("ClientIP: the peer's address %q is no IP address and port; on such a listener use another key", address)
		}
		return key(&http.Request{RemoteAddr: address, Header: http.Header{
			"X-Forwarded-For": metadata.ValueFromIncomingContext(ctx, "x-forwarded-for"),
			"Forwarded":       metadata.ValueFromIncomingContext(ctx, "forwarded"),
		}})
	}, nil
}

// Metadata limits by a value of the metadata, with keys such as "header:x-tenant:acme". Whoever
// sets the value chooses the key: use it for one that a proxy in front of the service sets or
// replaces, or that has been checked. A call without the value gets [ErrNoKey], and one with
// several values [ErrBadKey]. For secrets use [APIKey]. On a client it is the outgoing metadata.
//
// The error wraps ratelimit.ErrInvalidConfig: name is not that of a header, or longer than 64
// bytes.
func Metadata(name string) (KeyFunc, error) { return ofHeader(httplimit.Header, name) }

// APIKey limits by the API key in the metadata, hashed by SHA-256, with keys such as
// "apikey#1EZb…". Of "authorization" it takes the token of the scheme Bearer, of other names the
// whole value. The service must check before the limit that the API key is valid: otherwise a
// client could invent one for each call. A call without the value gets [ErrNoKey]; several
// values, or another scheme, [ErrBadKey]. No error holds the API key.
//
// On a client it is the outgoing metadata, in which per-RPC credentials are not.
//
// The error wraps ratelimit.ErrInvalidConfig: name is not that of a header, or longer than 64
// bytes.
func APIKey(name string) (KeyFunc, error) { return ofHeader(httplimit.APIKey, name) }

// ofHeader is a key function for one header, given the metadata as that header.
func ofHeader(of func(string) (httplimit.KeyFunc, error), name string) (KeyFunc, error) {
	key, err := of(name)
	if err != nil {
		return nil, err
	}
	lower, canonical := strings.ToLower(name), textproto.CanonicalMIMEHeaderKey(name)
	return func(ctx context.Context, call Call) (string, error) {
		var values []string
		if call.Client {
			outgoing, _ := metadata.FromOutgoingContext(ctx)
			values = outgoing[lower]
		} else {
			values = metadata.ValueFromIncomingContext(ctx, lower)
		}
		return key(&http.Request{Header: http.Header{canonical: values}})
	}, nil
}

// User limits by the user whom the service's authentication has put into the context, with keys
// such as "user:42". user returns "" if there is none, and the call then gets [ErrNoKey]. The
// interceptor that authenticates goes outside of the limit. The error wraps
// ratelimit.ErrInvalidConfig: user is nil.
func User(user func(context.Context) string) (KeyFunc, error) { return rpclimit.User[Call](user) }

// Everyone limits all calls together, by the key "all". On a Redis Cluster all limits of that key
// are in one slot, on one master. A KeyFunc that returns a constant of its own for each limit, such
// as "all:search", spreads them.
func Everyone() KeyFunc {
	return func(context.Context, Call) (string, error) { return "all", nil }
}

// Method limits by the full name of the method, with keys such as
// "route:/grpc.health.v1.Health/Check": one limit for all clients of a method; with [Join], one
// for each client.
//
// All methods that are not registered, which grpc.UnknownServiceHandler serves, have the key "route:none"
// together: a client could invent their names. In a tap handle it is not known whether a method exists, and the
// error wraps ratelimit.ErrInvalidConfig.
func Method() KeyFunc {
	key := httplimit.Pattern()
	return func(_ context.Context, call Call) (string, error) {
		switch call.name {
		case unknownMethod:
			return "route:none", nil
		case notYetKnown:
			return "", errTapMethod
		}
		return key(&http.Request{Pattern: call.Method})
	}
}

// Join limits by several things together, such as each user for each method, with keys such as
// "user:42|route:/grpc.health.v1.Health/Check". If one of keys returns an error, Join's key
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

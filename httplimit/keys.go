package httplimit

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"net/textproto"
	"strings"

	"github.com/tryacquire/ratelimit/internal/integration"
)

// A KeyFunc says whose request it is, and so which key of the limiter it counts for.
//
// An error means that the request has no key, and never that it has no limit: the error goes to the error
// handler, and the request is not served unless that handler serves it. An empty key is an error too. A
// KeyFunc of your own returns an error that wraps [ErrNoKey] or [ErrBadKey] for what the client has done,
// and keeps secrets out of errors and keys. It is called from many goroutines at once.
type KeyFunc func(*http.Request) (string, error)

const (
	mostPlain      = 128 // bytes of a value; longer ones are hashed
	mostHeaderName = 64  // bytes
	mostParts      = 8   // of Join and FirstOf; so their keys have fewer than 4,096 bytes
	separator      = "|" // between the parts of Join
)

// Header limits by a header, with keys such as "header:x-tenant:acme". Whoever sets the header chooses the
// key: use Header for one that a proxy in front of the service sets or replaces, or that has been checked.
// A request without the header gets [ErrNoKey], and one with several values [ErrBadKey]. For secrets use
// [APIKey].
//
// The error wraps ratelimit.ErrInvalidConfig: name is not that of a header, or longer than 64
// bytes.
func Header(name string) (KeyFunc, error) {
	canonical, err := headerName("Header", name)
	if err != nil {
		return nil, err
	}
	kind := "header:" + strings.ToLower(name)
	return func(r *http.Request) (string, error) {
		value, err := single(r, canonical)
		if err != nil {
			return "", err
		}
		return part(kind, value), nil
	}, nil
}

// APIKey limits by the API key in a header, hashed by SHA-256, with keys such as
// "apikey#1EZb…". Of "Authorization" it takes the token of the scheme Bearer, of other headers
// the whole value. The service must check before the limit that the API key is valid: otherwise
// a client could invent one for each request. A request without the header gets [ErrNoKey];
// several values, or another scheme, [ErrBadKey]. No error holds the API key.
//
// The error wraps ratelimit.ErrInvalidConfig: header is not the name of a header, or longer than
// 64 bytes.
func APIKey(header string) (KeyFunc, error) {
	canonical, err := headerName("APIKey", header)
	if err != nil {
		return nil, err
	}
	return func(r *http.Request) (string, error) {
		value, err := single(r, canonical)
		if err != nil {
			return "", err
		}
		if canonical == "Authorization" {
			scheme, token, _ := strings.Cut(value, " ")
			if !strings.EqualFold(scheme, "Bearer") {
				return "", badKey("the scheme in Authorization is not Bearer")
			}
			// Servers differ in what they trim. A client must not get a key for each way to write one token.
			if value = strings.Trim(token, " \t"); value == "" {
				return "", noKey("Authorization has no token")
			}
		}
		return hashed("apikey", value), nil
	}, nil
}

// User limits by the user whom the service's authentication has put into the request's context,
// with keys such as "user:42". user returns "" if there is none, and the request then gets
// [ErrNoKey]. The error wraps ratelimit.ErrInvalidConfig: user is nil.
func User(user func(context.Context) string) (KeyFunc, error) {
	if user == nil {
		return nil, invalidConfig("User: the function is nil")
	}
	return func(r *http.Request) (string, error) {
		id := user(r.Context())
		if id == "" {
			return "", noKey("the context has no user")
		}
		return part("user", id), nil
	}, nil
}

// Everyone limits all requests together, by the key "all". On a Redis Cluster all limits of that key are
// in one slot, on one master. A KeyFunc that returns a constant of its own for each limit, such as
// "all:search", spreads them.
func Everyone() KeyFunc {
	return func(*http.Request) (string, error) { return "all", nil }
}

// Pattern limits by the pattern that http.ServeMux has matched, with keys such as
// "route:GET /users/%7Bid%7D": one limit for all clients of a route; with [Join], one for each
// client. The mux sets it when it calls the handler, so the limit goes between mux and handler:
//
//	mux.Handle("GET /users/{id}", limit(handler))
//
// Outside of the mux, the error wraps ratelimit.ErrInvalidConfig. Code of your own that sets Request.Pattern, for another
// router, must set one of its routes, and one text for all requests that none matches: if it puts the request's method
// in front of a path, each method that a client invents has a limit of its own.
func Pattern() KeyFunc {
	return func(r *http.Request) (string, error) {
		if r.Pattern == "" {
			return "", invalidConfig("Pattern: the request has none; put the limit between http.ServeMux and the handler")
		}
		return part("route", r.Pattern), nil
	}
}

// Join limits by several things together, such as each user on each route, with keys such as
// "user:42|route:GET /reports". If one of keys returns an error, Join's key function does too.
// The error wraps ratelimit.ErrInvalidConfig: no keys, more than 8, or a nil one.
//
// Different parts never make the same key, if keys are those of this package or escape "|"
// themselves.
func Join(keys ...KeyFunc) (KeyFunc, error) {
	keys, err := several("Join", keys)
	if err != nil {
		return nil, err
	}
	return func(r *http.Request) (string, error) {
		var parts [mostParts]string
		for i, key := range keys {
			var err error
			if parts[i], err = integration.CheckKey(key(r)); err != nil {
				return "", err
			}
		}
		return strings.Join(parts[:len(keys)], separator), nil
	}, nil
}

// FirstOf limits by the first of keys that the request has: for example by user, and by address if
// there is no user. After [ErrNoKey] it asks the next key function; it returns every other error,
// and [ErrNoKey] if the last one returns it. The error wraps ratelimit.ErrInvalidConfig: no keys,
// more than 8, or a nil one.
//
// A client can leave out what the first key function needs, and is then limited by the second:
// each key alone must limit enough.
func FirstOf(keys ...KeyFunc) (KeyFunc, error) {
	keys, err := several("FirstOf", keys)
	if err != nil {
		return nil, err
	}
	return func(r *http.Request) (key string, err error) {
		for _, one := range keys {
			if key, err = integration.CheckKey(one(r)); !errors.Is(err, ErrNoKey) {
				break
			}
		}
		return key, err
	}, nil
}

// several checks keys, and copies them: the caller's slice may change.
func several(what string, keys []KeyFunc) ([]KeyFunc, error) {
	if len(keys) < 1 || len(keys) > mostParts {
		return nil, invalidConfig("%s: %d key functions; give 1 to %d", what, len(keys), mostParts)
	}
	for i, key := range keys {
		if key == nil {
			return nil, invalidConfig("%s: key function %d is nil", what, i+1)
		}
	}
	return append([]KeyFunc(nil), keys...), nil
}

// headerName is name in its canonical form.
func headerName(what, name string) (string, error) {
	if !isToken(name) || len(name) > mostHeaderName {
		return "", invalidConfig("%s: %q is not the name of a header with at most %d bytes", what, name, mostHeaderName)
	}
	canonical := textproto.CanonicalMIMEHeaderKey(name)
	if canonical == "Host" {
		return "", invalidConfig("%s: net/http takes Host out of the headers; write a KeyFunc that returns r.Host", what)
	}
	return canonical, nil
}

// single is the one value of a header. With two, the handler may read the one that is not
// limited.
func single(r *http.Request, canonical string) (string, error) {
	switch values := r.Header[canonical]; {
	case len(values) > 1:
		return "", badKey("%d values of the header %s", len(values), canonical)
	case len(values) == 0 || values[0] == "":
		return "", noKey("no header %s", canonical)
	default:
		return values[0], nil
	}
}

// part is one part of a key: kind and value, or kind and hash of a long value. "#" in place of
// ":" keeps the two apart, so that no value can pass for the hash of another.
func part(kind, value string) string {
	if len(value) > mostPlain {
		return hashed(kind, value)
	}
	if !strings.ContainsAny(value, escaped) {
		return kind + ":" + value
	}
	var space [128 + 3*mostPlain]byte
	b := append(append(space[:0], kind...), ':')
	for i := range len(value) {
		if c := value[i]; strings.IndexByte(escaped, c) >= 0 {
			b = append(b, '%', upperHex[c>>4], upperHex[c&15])
		} else {
			b = append(b, c)
		}
	}
	return string(b)
}

// escaped: braces would be a hash tag of Redis Cluster, by which a client could choose the slot of
// its key, or that of another's; "|" separates parts; "%" begins an escape, so that no two values
// become one, and url.PathUnescape gives back the value.
const (
	escaped  = "{}|%"
	upperHex = "0123456789ABCDEF"
)

func hashed(kind, value string) string {
	var space, secret [256]byte // so that neither the value nor the key is allocated twice
	sum := sha256.Sum256(append(secret[:0], value...))
	b := append(append(space[:0], kind...), '#')
	return string(base64.RawURLEncoding.AppendEncode(b, sum[:]))
}

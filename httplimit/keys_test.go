package httplimit_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/tryacquire/ratelimit/httplimit"
	"github.com/tryacquire/ratelimit/internal/testing/integrationtest"
)

// requestOf is the request of a call.
func requestOf(ctx context.Context, c integrationtest.Call) *http.Request {
	r := newRequest("GET", "/"+c.Sent).WithContext(c.Context(ctx))
	r.RemoteAddr, r.Pattern = c.From, c.Route
	for i := 0; i < len(c.Header); i += 2 {
		r.Header.Add(c.Header[i], c.Header[i+1])
	}
	return r
}

func constantKey(key string, err error) httplimit.KeyFunc {
	return func(*http.Request) (string, error) { return key, err }
}

func TestKeys(t *testing.T) {
	integrationtest.Keys[httplimit.KeyFunc]{
		ClientIP: httplimit.ClientIP, Header: httplimit.Header, APIKey: httplimit.APIKey, User: httplimit.User,
		Join: httplimit.Join, FirstOf: httplimit.FirstOf, Route: httplimit.Pattern(), Everyone: httplimit.Everyone(),
		Reserved: "host", ErrNoKey: httplimit.ErrNoKey, ErrBadKey: httplimit.ErrBadKey,
		Own: func(key func(pattern, sent string) (string, error)) httplimit.KeyFunc {
			return func(r *http.Request) (string, error) { return key(r.Pattern, r.URL.Path[1:]) }
		},
		Ask: func(t testing.TB, key httplimit.KeyFunc, c integrationtest.Call) (string, error) {
			return key(requestOf(t.Context(), c))
		},
	}.Test(t)
}

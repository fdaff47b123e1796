package httplimit_test

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/tryacquire/ratelimit"
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

// FuzzJoin: requests with different values have different keys, without braces, from which short values can be read again.
func FuzzJoin(f *testing.F) {
	for _, s := range []string{"", "42", "a|user:b", "a%7Cb", "{tag}", "}", "%", "#", "a\x00b", strings.Repeat("a", 128), strings.Repeat("{", 129)} {
		f.Add(s, "GET /users/{id}", "x", s)
		f.Add("x", s, s, "y")
	}
	user := ratelimit.Must(httplimit.User(integrationtest.UserOf))
	join := ratelimit.Must(httplimit.Join(user, httplimit.Pattern()))
	keyOf := func(who, route string) (string, error) {
		r := &http.Request{Pattern: route}
		return join(r.WithContext(integrationtest.Call{User: who}.Context(context.Background())))
	}
	f.Fuzz(func(t *testing.T, who, route, otherWho, otherRoute string) {
		key, err := keyOf(who, route)
		if who == "" || route == "" {
			if err == nil || key != "" {
				t.Fatalf("key %q, error %v", key, err)
			}
			return
		}
		if err != nil || len(key) > 4096 || strings.ContainsAny(key, "{}") || strings.Count(key, "|") != 1 {
			t.Fatalf("key %q, error %v", key, err)
		}
		first, second, _ := strings.Cut(key, "|")
		for part, value := range map[string]string{first: "user:" + who, second: "route:" + route} {
			if _, v, _ := strings.Cut(value, ":"); len(v) > 128 {
				continue
			}
			if read, err := url.PathUnescape(part); err != nil || read != value {
				t.Fatalf("%q is read as %q, not %q: %v", part, read, value, err)
			}
		}
		other, err := keyOf(otherWho, otherRoute)
		if err == nil && other == key && (who != otherWho || route != otherRoute) {
			t.Fatalf("%q and %q, %q and %q have the key %q", who, route, otherWho, otherRoute, key)
		}
	})
}

// FuzzAPIKey: a token has one key however the header is written, different tokens have different keys, and neither keys nor
// errors hold the token.
func FuzzAPIKey(f *testing.F) {
	for _, s := range []string{"", "s3cret", " s3cret", "s3cret\t", "a b", "Bearer x", "{tag}", "\x00", "\u00a0s", strings.Repeat("a", 300)} {
		f.Add("Bearer", s, "other", " ")
		f.Add(s, "s3cret", s, "\t ")
	}
	key := ratelimit.Must(httplimit.APIKey("Authorization"))
	form := regexp.MustCompile(`^apikey#[A-Za-z0-9_-]{43}$`)
	f.Fuzz(func(t *testing.T, scheme, token, other, space string) {
		ask := func(value string) (string, error) {
			return key(&http.Request{Header: http.Header{"Authorization": {value}}})
		}
		got, err := ask(scheme + " " + token)
		switch {
		case err != nil && (got != "" || !errors.Is(err, httplimit.ErrNoKey) && !errors.Is(err, httplimit.ErrBadKey)):
			t.Fatalf("key %q, error %v", got, err)
		case err == nil && !form.MatchString(got):
			t.Fatalf("key %q", got)
		case len(token) > 30 && (strings.Contains(got, token) || err != nil && strings.Contains(err.Error(), token)):
			t.Fatalf("%q, %v", got, err)
		}
		if strings.Trim(space, " \t") != "" || strings.Trim(token, " \t") == "" {
			return
		}
		plain, err := ask("Bearer " + token)
		if err != nil {
			t.Fatal(err)
		}
		if spaced, err := ask("bEARER " + space + token + space); err != nil || spaced != plain {
			t.Fatalf("%q and %q, %v", plain, spaced, err)
		}
		if another, err := ask("Bearer " + other); err == nil && (another == plain) != (strings.Trim(other, " \t") == strings.Trim(token, " \t")) {
			t.Fatalf("%q and %q: %q and %q", token, other, plain, another)
		}
	})
}

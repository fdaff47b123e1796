package httplimit_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/httplimit"
)

func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

func must(t testing.TB) func(httplimit.KeyFunc, error) httplimit.KeyFunc {
	return func(key httplimit.KeyFunc, err error) httplimit.KeyFunc {
		t.Helper()
		require.NoError(t, err)
		return key
	}
}

func withHeader(name string, values ...string) *http.Request {
	r := newRequest("GET", "/")
	for _, v := range values {
		r.Header.Add(name, v)
	}
	return r
}

type userKey struct{}

func userOf(ctx context.Context) string {
	id, _ := ctx.Value(userKey{}).(string)
	return id
}

func withUser(id string) *http.Request {
	r := newRequest("GET", "/")
	return r.WithContext(context.WithValue(r.Context(), userKey{}, id))
}

func constantKey(key string, err error) httplimit.KeyFunc {
	return func(*http.Request) (string, error) { return key, err }
}

func TestKeys(t *testing.T) {
	header := must(t)(httplimit.Header("X-Tenant"))
	apiKey := must(t)(httplimit.APIKey("x-api-key"))
	bearer := must(t)(httplimit.APIKey("authorization"))
	user := must(t)(httplimit.User(userOf))
	route := func(pattern string) *http.Request {
		r := newRequest("GET", "/")
		r.Pattern = pattern
		return r
	}
	at128, at129 := strings.Repeat("a", 128), strings.Repeat("a", 129)
	for name, c := range map[string]struct {
		key  httplimit.KeyFunc
		r    *http.Request
		want string
		err  error
	}{
		"header":                      {header, withHeader("X-Tenant", "acme"), "header:x-tenant:acme", nil},
		"header, none":                {header, withHeader("X-Other", "acme"), "", httplimit.ErrNoKey},
		"header, empty":               {header, withHeader("X-Tenant", ""), "", httplimit.ErrNoKey},
		"header, two":                 {header, withHeader("X-Tenant", "acme", "acme"), "", httplimit.ErrBadKey},
		"header, braces":              {header, withHeader("X-Tenant", "{a}|b%7B"), "header:x-tenant:%7Ba%7D%7Cb%257B", nil},
		"header, 128 bytes":           {header, withHeader("X-Tenant", at128), "header:x-tenant:" + at128, nil},
		"header, 129 bytes":           {header, withHeader("X-Tenant", at129), "header:x-tenant#" + hash(at129), nil},
		"header, 128 braces":          {header, withHeader("X-Tenant", strings.Repeat("{", 128)), "header:x-tenant:" + strings.Repeat("%7B", 128), nil},
		"header, as if hashed":        {header, withHeader("X-Tenant", "#"+hash(at129)), "header:x-tenant:#" + hash(at129), nil},
		"api key":                     {apiKey, withHeader("X-Api-Key", "s3cret"), "apikey#" + hash("s3cret"), nil},
		"api key, long":               {apiKey, withHeader("X-Api-Key", strings.Repeat("s", 1000)), "apikey#" + hash(strings.Repeat("s", 1000)), nil},
		"api key, none":               {apiKey, newRequest("GET", "/"), "", httplimit.ErrNoKey},
		"api key, empty":              {apiKey, withHeader("X-Api-Key", ""), "", httplimit.ErrNoKey},
		"api key, two":                {apiKey, withHeader("X-Api-Key", "s3cret", "other"), "", httplimit.ErrBadKey},
		"bearer":                      {bearer, withHeader("Authorization", "Bearer s3cret"), "apikey#" + hash("s3cret"), nil},
		"bearer, written differently": {bearer, withHeader("Authorization", "bEARER   s3cret"), "apikey#" + hash("s3cret"), nil},
		"bearer, none":                {bearer, newRequest("GET", "/"), "", httplimit.ErrNoKey},
		"bearer, no token":            {bearer, withHeader("Authorization", "Bearer  "), "", httplimit.ErrNoKey},
		"bearer, only the scheme":     {bearer, withHeader("Authorization", "Bearer"), "", httplimit.ErrNoKey},
		"basic":                       {bearer, withHeader("Authorization", "Basic s3cret"), "", httplimit.ErrBadKey},
		"no scheme":                   {bearer, withHeader("Authorization", "s3cret"), "", httplimit.ErrBadKey},
		"user":                        {user, withUser("42"), "user:42", nil},
		"user, as an address":         {user, withUser("192.0.2.1"), "user:192.0.2.1", nil},
		"user, braces":                {user, withUser("{42}"), "user:%7B42%7D", nil},
		"user, 129 bytes":             {user, withUser(at129), "user#" + hash(at129), nil},
		"user, none":                  {user, newRequest("GET", "/"), "", httplimit.ErrNoKey},
		"route":                       {httplimit.Pattern(), route("GET /users/{id}"), "route:GET /users/%7Bid%7D", nil},
		"route, none":                 {httplimit.Pattern(), route(""), "", ratelimit.ErrInvalidConfig},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := c.key(c.r)
			require.Equal(t, c.want, got)
			require.ErrorIs(t, err, c.err)
			if err != nil {
				require.NotContains(t, err.Error(), "s3cret")
			}
		})
	}
}

func TestJoin(t *testing.T) {
	a, b := must(t)(httplimit.Header("A")), must(t)(httplimit.Header("B"))
	join := must(t)(httplimit.Join(a, b))
	request := func(a, b string) *http.Request {
		r := withHeader("A", a)
		r.Header.Set("B", b)
		return r
	}
	got, err := join(request("1", "2"))
	require.NoError(t, err)
	require.Equal(t, "header:a:1|header:b:2", got)

	// No two pairs of values meet.
	seen := map[string][2]string{}
	values := []string{"|", "a", "a|", "|header:b:a", "a|header:b:a", "%7C", "%", "{", "%7B", "#", ":"}
	for _, x := range values {
		for _, y := range values {
			got, err := join(request(x, y))
			require.NoError(t, err)
			require.NotContains(t, seen, got, "%q and %q", x, y)
			require.NotContains(t, got, "{")
			seen[got] = [2]string{x, y}
		}
	}
	_, err = join(withHeader("A", "1"))
	require.ErrorIs(t, err, httplimit.ErrNoKey)
	_, err = must(t)(httplimit.Join(a, constantKey("", nil)))(withHeader("A", "1"))
	require.ErrorIs(t, err, ratelimit.ErrInvalidKey)

	// The longest key is one that a limiter accepts.
	r := newRequest("GET", "/")
	var longest []httplimit.KeyFunc
	for _, c := range "abcdefgh" {
		name := strings.Repeat(string(c), 64)
		r.Header.Set(name, strings.Repeat("{", 128))
		longest = append(longest, must(t)(httplimit.Header(name)))
	}
	got, err = must(t)(httplimit.Join(longest...))(r)
	require.NoError(t, err)
	require.Len(t, got, 8*(len("header:")+64+1+3*128)+7)
	_, err = ratelimit.AllowAll().TryAcquire(t.Context(), got)
	require.NoError(t, err)
}

func TestFirstOf(t *testing.T) {
	user, ip := must(t)(httplimit.User(userOf)), clientIP(t, nil)
	first := must(t)(httplimit.FirstOf(user, ip))
	got, err := first(withUser("42"))
	require.NoError(t, err)
	require.Equal(t, "user:42", got)
	got, err = first(newRequest("GET", "/"))
	require.NoError(t, err)
	require.Equal(t, "ip:192.0.2.1", got)

	_, err = must(t)(httplimit.FirstOf(user, user))(newRequest("GET", "/"))
	require.ErrorIs(t, err, httplimit.ErrNoKey)
	for _, other := range []error{httplimit.ErrBadKey, ratelimit.ErrInvalidConfig, errors.New("the database is down")} {
		got, err = must(t)(httplimit.FirstOf(constantKey("", other), ip))(newRequest("GET", "/"))
		require.Empty(t, got)
		require.ErrorIs(t, err, other)
	}
	_, err = must(t)(httplimit.FirstOf(constantKey("", nil), ip))(newRequest("GET", "/"))
	require.ErrorIs(t, err, ratelimit.ErrInvalidKey, "an empty key is not a missing one")
}

func TestKeysRefuseWhatCannotWork(t *testing.T) {
	one := constantKey("a", nil)
	nine := []httplimit.KeyFunc{one, one, one, one, one, one, one, one, one}
	for name, make := range map[string]func() (httplimit.KeyFunc, error){
		"no header":           func() (httplimit.KeyFunc, error) { return httplimit.Header("") },
		"not a header":        func() (httplimit.KeyFunc, error) { return httplimit.Header("a b") },
		"a long header":       func() (httplimit.KeyFunc, error) { return httplimit.Header(strings.Repeat("a", 65)) },
		"Host":                func() (httplimit.KeyFunc, error) { return httplimit.Header("host") },
		"not an API key":      func() (httplimit.KeyFunc, error) { return httplimit.APIKey("a:") },
		"no function":         func() (httplimit.KeyFunc, error) { return httplimit.User(nil) },
		"Join of none":        func() (httplimit.KeyFunc, error) { return httplimit.Join() },
		"Join of nine":        func() (httplimit.KeyFunc, error) { return httplimit.Join(nine...) },
		"Join with nil":       func() (httplimit.KeyFunc, error) { return httplimit.Join(one, nil) },
		"FirstOf without any": func() (httplimit.KeyFunc, error) { return httplimit.FirstOf() },
		"FirstOf with nil":    func() (httplimit.KeyFunc, error) { return httplimit.FirstOf(nil) },
	} {
		key, err := make()
		require.Nil(t, key, name)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig, name)
	}
	must(t)(httplimit.Join(nine[:8]...))
	must(t)(httplimit.Header(strings.Repeat("a", 64)))
}

package integrationtest

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/httplimit"
	"github.com/tryacquire/ratelimit/internal/keyname"
)

// Proxies are the networks of the proxies in front of the service.
var Proxies = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8:ff::/48")}

// A Call is a call, or request, that a server has received.
type Call struct {
	From   string   // the address and port of the connection
	Header []string // names and values
	Route  string   // the method, procedure or pattern
	User   string   // whom UserOf finds in the context
	Sent   string   // the message, or the path of the URL without its slash
}

// Context returns a context with the call's user.
func (c Call) Context(ctx context.Context) context.Context {
	return context.WithValue(ctx, userKey{}, c.User)
}

type userKey struct{}

// UserOf is the user of a Call, or "".
func UserOf(ctx context.Context) string {
	user, _ := ctx.Value(userKey{}).(string)
	return user
}

// Hash is how a key holds what is secret or too long.
func Hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// Keys are the key functions of a package. F is its KeyFunc.
type Keys[F any] struct {
	ClientIP       func(trusted []netip.Prefix, opts ...httplimit.ClientIPOption) (F, error)
	Header, APIKey func(name string) (F, error)
	User           func(func(context.Context) string) (F, error)
	Join, FirstOf  func(...F) (F, error)
	Route          F // Pattern, Method or Procedure
	Everyone       F
	Reserved       string // the name of a header that is not for keys

	ErrNoKey, ErrBadKey error

	// Own makes a key function, as users write them, of one that gets the call's route and
	// what was sent.
	Own func(key func(route, sent string) (string, error)) F

	// Ask asks a key function for the key of a call.
	Ask func(t testing.TB, key F, c Call) (string, error)
}

// constant is a key function of one answer.
func (k Keys[F]) constant(key string, err error) F {
	return k.Own(func(string, string) (string, error) { return key, err })
}

// Test tests all of them.
func (k Keys[F]) Test(t *testing.T) {
	t.Run("each", k.testEach)
	t.Run("Join and FirstOf", k.testJoinAndFirstOf)
	t.Run("Join is unambiguous", k.testJoinIsUnambiguous)
	t.Run("clients choose no slot", k.testClientsChooseNoSlot)
	t.Run("what cannot work", k.testRefusals)
}

func (k Keys[F]) testEach(t *testing.T) {
	must := ratelimit.Must[F]
	direct, proxied := must(k.ClientIP(nil)), must(k.ClientIP(Proxies))
	forwarded := must(k.ClientIP(Proxies, httplimit.WithForwarded()))
	site := must(k.ClientIP(nil, httplimit.WithIPv6Prefix(48)))
	tenant, tenantLower := must(k.Header("X-Tenant")), must(k.Header("x-tenant"))
	apiKey, apiKeyLower := must(k.APIKey("X-Api-Key")), must(k.APIKey("x-api-key"))
	bearer := must(k.APIKey("authorization"))
	user, route := must(k.User(UserOf)), k.Route
	from := func(address string, header ...string) Call { return Call{From: address, Header: header} }
	with := func(header ...string) Call { return Call{Header: header} }
	of := func(id string) Call { return Call{User: id} }
	at := func(route string) Call { return Call{Route: route} }
	at128, at129 := strings.Repeat("a", 128), strings.Repeat("a", 129)
	noKey, badKey, mistake := k.ErrNoKey, k.ErrBadKey, ratelimit.ErrInvalidConfig

	for name, c := range map[string]struct {
		key  F
		call Call
		want string
		err  error
	}{
		"IPv4":                        {direct, from("192.0.2.7:1"), "ip:192.0.2.7", nil},
		"IPv4 in IPv6 form":           {direct, from("[::ffff:192.0.2.7]:1"), "ip:192.0.2.7", nil},
		"IPv6":                        {direct, from("[2001:db8:1:2:3:4:5:6]:1"), "ip:2001:db8:1:2::/64", nil},
		"IPv6 with a zone":            {direct, from("[fe80::1%lo]:1"), "ip:fe80::/64", nil},
		"IPv6 by /48":                 {site, from("[2001:db8:1:2:3:4:5:6]:1"), "ip:2001:db8:1::/48", nil},
		"a forged address":            {direct, from("192.0.2.7:1", "X-Forwarded-For", "203.0.113.1", "Forwarded", "for=203.0.113.1"), "ip:192.0.2.7", nil},
		"not from a proxy":            {proxied, from("192.0.2.7:1", "X-Forwarded-For", "203.0.113.1"), "ip:192.0.2.7", nil},
		"from a proxy":                {proxied, from("10.0.0.1:1", "X-Forwarded-For", "192.0.2.99, 203.0.113.1"), "ip:203.0.113.1", nil},
		"through two":                 {proxied, from("10.0.0.1:1", "X-Forwarded-For", "192.0.2.99", "X-Forwarded-For", "203.0.113.1, 10.0.0.2"), "ip:203.0.113.1", nil},
		"from an IPv6 proxy":          {proxied, from("[2001:db8:ff::1]:1", "X-Forwarded-For", "203.0.113.1"), "ip:203.0.113.1", nil},
		"a proxy's own":               {proxied, from("10.0.0.1:1"), "ip:10.0.0.1", nil},
		"garbage of a proxy":          {proxied, from("10.0.0.1:1", "X-Forwarded-For", "unknown"), "", badKey},
		"forwarded":                   {forwarded, from("10.0.0.1:1", "X-Forwarded-For", "192.0.2.99", "Forwarded", `for="[2001:db8:1:2::3]:4"`), "ip:2001:db8:1:2::/64", nil},
		"header":                      {tenant, with("X-Tenant", "acme"), "header:x-tenant:acme", nil},
		"header, lower case":          {tenantLower, with("X-Tenant", "acme"), "header:x-tenant:acme", nil},
		"header, none":                {tenant, with(), "", noKey},
		"header, another":             {tenant, with("X-Other", "acme"), "", noKey},
		"header, empty":               {tenant, with("X-Tenant", ""), "", noKey},
		"header, two":                 {tenant, with("X-Tenant", "s3cret", "X-Tenant", "s3cret"), "", badKey},
		"header, braces":              {tenant, with("X-Tenant", "{a}|b%7B"), "header:x-tenant:%7Ba%7D%7Cb%257B", nil},
		"header, 128 bytes":           {tenant, with("X-Tenant", at128), "header:x-tenant:" + at128, nil},
		"header, 129 bytes":           {tenant, with("X-Tenant", at129), "header:x-tenant#" + Hash(at129), nil},
		"header, 128 braces":          {tenant, with("X-Tenant", strings.Repeat("{", 128)), "header:x-tenant:" + strings.Repeat("%7B", 128), nil},
		"header, as if hashed":        {tenant, with("X-Tenant", "#"+Hash(at129)), "header:x-tenant:#" + Hash(at129), nil},
		"API key":                     {apiKey, with("X-Api-Key", "s3cret"), "apikey#" + Hash("s3cret"), nil},
		"API key, lower case":         {apiKeyLower, with("X-Api-Key", "s3cret"), "apikey#" + Hash("s3cret"), nil},
		"API key, long":               {apiKey, with("X-Api-Key", strings.Repeat("s", 1000)), "apikey#" + Hash(strings.Repeat("s", 1000)), nil},
		"API key, none":               {apiKey, with(), "", noKey},
		"API key, empty":              {apiKey, with("X-Api-Key", ""), "", noKey},
		"API key, two":                {apiKey, with("X-Api-Key", "s3cret", "X-Api-Key", "s3cret2"), "", badKey},
		"bearer":                      {bearer, with("Authorization", "Bearer s3cret"), "apikey#" + Hash("s3cret"), nil},
		"bearer, written differently": {bearer, with("Authorization", "bEARER   s3cret"), "apikey#" + Hash("s3cret"), nil},
		"bearer, none":                {bearer, with(), "", noKey},
		"bearer, no token":            {bearer, with("Authorization", "Bearer  "), "", noKey},
		"bearer, only the scheme":     {bearer, with("Authorization", "Bearer"), "", noKey},
		"basic":                       {bearer, with("Authorization", "Basic s3cret"), "", badKey},
		"no scheme":                   {bearer, with("Authorization", "s3cret"), "", badKey},
		"user":                        {user, of("42"), "user:42", nil},
		"user, as an address":         {user, of("192.0.2.1"), "user:192.0.2.1", nil},
		"user, braces":                {user, of("{42}"), "user:%7B42%7D", nil},
		"user, 129 bytes":             {user, of(at129), "user#" + Hash(at129), nil},
		"user, none":                  {user, Call{}, "", noKey},
		"route":                       {route, at("/test.Echo/Unary"), "route:/test.Echo/Unary", nil},
		"route, braces":               {route, at("GET /users/{id}"), "route:GET /users/%7Bid%7D", nil},
		"route, 129 bytes":            {route, at(at129), "route#" + Hash(at129), nil},
		"route, none":                 {route, at(""), "", mistake},
		"everyone":                    {k.Everyone, Call{}, "all", nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := k.Ask(t, c.key, c.call)
			require.Equal(t, c.want, got)
			require.ErrorIs(t, err, c.err)
			if err != nil {
				require.NotContains(t, err.Error(), "s3cret")
			}
		})
	}
}

func (k Keys[F]) testJoinAndFirstOf(t *testing.T) {
	must := ratelimit.Must[F]
	user, ip := must(k.User(UserOf)), must(k.ClientIP(nil))
	seen := k.Own(func(route, sent string) (string, error) { return route + "/" + sent, nil })
	unknown := Call{From: "192.0.2.7:1", Route: "/test.Echo/Unary", Sent: "m"}
	known := unknown
	known.User = "4|2"
	require.Equal(t, "user:4%7C2|route:/test.Echo/Unary|ip:192.0.2.7|/test.Echo/Unary/m",
		k.ask(t, must(k.Join(user, k.Route, ip, seen)), known))
	_, err := k.Ask(t, must(k.Join(user, ip)), unknown)
	require.ErrorIs(t, err, k.ErrNoKey)

	first := must(k.FirstOf(user, ip))
	require.Equal(t, "user:4%7C2", k.ask(t, first, known))
	require.Equal(t, "ip:192.0.2.7", k.ask(t, first, unknown))
	nested := must(k.Join(first, must(k.FirstOf(user, seen))))
	require.Equal(t, "ip:192.0.2.7|/test.Echo/Unary/m", k.ask(t, nested, unknown))
	_, err = k.Ask(t, must(k.FirstOf(user, user)), unknown)
	require.ErrorIs(t, err, k.ErrNoKey)

	for _, other := range []error{k.ErrBadKey, ratelimit.ErrInvalidConfig, errors.New("the database is down")} {
		got, err := k.Ask(t, must(k.FirstOf(k.constant("", other), ip)), unknown)
		require.Empty(t, got)
		require.ErrorIs(t, err, other)
	}
	for _, keys := range []F{must(k.Join(k.constant("", nil), ip)), must(k.Join(ip, k.constant("", nil))), must(k.FirstOf(k.constant("", nil), ip))} {
		_, err = k.Ask(t, keys, unknown)
		require.ErrorIs(t, err, ratelimit.ErrInvalidKey, "an empty key is not a missing one")
	}
}

// ask asks for a key, which there is.
func (k Keys[F]) ask(t testing.TB, key F, c Call) string {
	t.Helper()
	got, err := k.Ask(t, key, c)
	require.NoError(t, err)
	return got
}

// testJoinIsUnambiguous: no two pairs of values make one key, and the longest key is one that a
// limiter accepts.
func (k Keys[F]) testJoinIsUnambiguous(t *testing.T) {
	must := ratelimit.Must[F]
	join := must(k.Join(must(k.Header("A")), must(k.Header("B"))))
	require.Equal(t, "header:a:1|header:b:2", k.ask(t, join, Call{Header: []string{"A", "1", "B", "2"}}))
	seen := map[string][2]string{}
	values := []string{"|", "a", "a|", "|header:b:a", "a|header:b:a", "%7C", "%", "{", "%7B", "#", ":"}
	for _, x := range values {
		for _, y := range values {
			got := k.ask(t, join, Call{Header: []string{"A", x, "B", y}})
			require.NotContains(t, seen, got, "%q and %q", x, y)
			require.NotContains(t, got, "{")
			seen[got] = [2]string{x, y}
		}
	}
	_, err := k.Ask(t, join, Call{Header: []string{"A", "1"}})
	require.ErrorIs(t, err, k.ErrNoKey)

	var all Call
	var keys []F
	for _, c := range "abcdefgh" {
		name := strings.Repeat(string(c), 64)
		all.Header = append(all.Header, name, strings.Repeat("{", 128))
		keys = append(keys, must(k.Header(name)))
	}
	longest := k.ask(t, must(k.Join(keys...)), all)
	require.Len(t, longest, 8*(len("header:")+64+1+3*128)+7)
	_, err = ratelimit.AllowAll().TryAcquire(t.Context(), longest)
	require.NoError(t, err)
}

// testClientsChooseNoSlot: a client's value is in the key without braces, so that the hash tag of
// the key's name is the whole key; the value can be read again, and no two make one key.
func (k Keys[F]) testClientsChooseNoSlot(t *testing.T) {
	must := ratelimit.Must[F]
	header, user := must(k.Header("X-Tenant")), must(k.User(UserOf))
	seen := map[string]string{}
	values := []string{""}
	for range 3 {
		for _, shorter := range values {
			for _, more := range []string{"{", "}", "%", "|", "a", ":", ";", "%7B", "%7D"} {
				values = append(values, shorter+more)
			}
		}
		values = slices.Compact(slices.Sorted(slices.Values(values)))
	}
	for _, value := range values[1:] { // all but the empty one
		for kind, key := range map[string]string{
			"header:x-tenant:": k.ask(t, header, Call{Header: []string{"X-Tenant", value}}),
			"user:":            k.ask(t, user, Call{User: value}),
		} {
			require.NotContains(t, seen, key, "%q", value)
			seen[key] = value
			require.Equal(t, key, keyname.Tag(key), "%q", value)
			read, err := url.PathUnescape(strings.TrimPrefix(key, kind))
			require.NoError(t, err)
			require.Equal(t, value, read)
		}
	}
	require.Greater(t, len(seen), 1000)
}

func (k Keys[F]) testRefusals(t *testing.T) {
	one := k.constant("a", nil)
	nine := []F{one, one, one, one, one, one, one, one, one}
	var none F
	for name, build := range map[string]func() (F, error){
		"a network of all":      func() (F, error) { return k.ClientIP([]netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}) },
		"no trust":              func() (F, error) { return k.ClientIP(nil, httplimit.WithForwarded()) },
		"a header without name": func() (F, error) { return k.Header("") },
		"not a header":          func() (F, error) { return k.Header("a b") },
		"a long header":         func() (F, error) { return k.Header(strings.Repeat("a", 65)) },
		"a reserved header":     func() (F, error) { return k.Header(k.Reserved) },
		"not an API key":        func() (F, error) { return k.APIKey("a b") },
		"an API key with colon": func() (F, error) { return k.APIKey("a:") },
		"no function":           func() (F, error) { return k.User(nil) },
		"Join of none":          func() (F, error) { return k.Join() },
		"Join of nine":          func() (F, error) { return k.Join(nine...) },
		"Join with nil":         func() (F, error) { return k.Join(one, none) },
		"FirstOf without any":   func() (F, error) { return k.FirstOf() },
		"FirstOf with nil":      func() (F, error) { return k.FirstOf(none) },
	} {
		key, err := build()
		require.Nil(t, key, name)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig, name)
	}
	for _, build := range []func() (F, error){
		func() (F, error) { return k.Join(nine[:8]...) },
		func() (F, error) { return k.Header(strings.Repeat("a", 64)) },
	} {
		_, err := build()
		require.NoError(t, err)
	}
}

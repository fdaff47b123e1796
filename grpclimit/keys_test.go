package grpclimit_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/grpclimit"
	"github.com/tryacquire/ratelimit/httplimit"
)

var proxies = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8:ff::/48")}

// incoming is the context of a call that a server has received.
func incoming(t testing.TB, from string, md ...string) context.Context {
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(md...))
	if from == "" {
		return ctx
	}
	return peer.NewContext(ctx, &peer.Peer{Addr: net.TCPAddrFromAddrPort(netip.MustParseAddrPort(from))})
}

type userKey struct{}

func userOf(ctx context.Context) string {
	user, _ := ctx.Value(userKey{}).(string)
	return user
}

func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

func TestKeys(t *testing.T) {
	key := must[grpclimit.KeyFunc](t)
	direct, proxied := key(grpclimit.ClientIP(nil)), key(grpclimit.ClientIP(proxies))
	forwarded := key(grpclimit.ClientIP(proxies, httplimit.WithForwarded()))
	site := key(grpclimit.ClientIP(nil, httplimit.WithIPv6Prefix(48)))
	tenant, bearer, xKey := key(grpclimit.Metadata("X-Tenant")), key(grpclimit.APIKey("authorization")), key(grpclimit.APIKey("X-Api-Key"))
	user, method := key(grpclimit.User(userOf)), grpclimit.Method()
	at := func(name string) grpclimit.Call { return grpclimit.Call{Method: name} }
	of := func(id string) context.Context { return context.WithValue(t.Context(), userKey{}, id) }
	long := strings.Repeat("a", 129)
	unix := peer.NewContext(t.Context(), &peer.Peer{Addr: &net.UnixAddr{Name: "/run/a.sock", Net: "unix"}})

	for name, c := range map[string]struct {
		key  grpclimit.KeyFunc
		ctx  context.Context
		call grpclimit.Call
		want string
		err  error
	}{
		"IPv4":                        {direct, incoming(t, "192.0.2.7:1"), at(unary), "ip:192.0.2.7", nil},
		"IPv4 in IPv6 form":           {direct, incoming(t, "[::ffff:192.0.2.7]:1"), at(unary), "ip:192.0.2.7", nil},
		"IPv6":                        {direct, incoming(t, "[2001:db8:1:2:3:4:5:6]:1"), at(unary), "ip:2001:db8:1:2::/64", nil},
		"IPv6 with a zone":            {direct, incoming(t, "[fe80::1%lo]:1"), at(unary), "ip:fe80::/64", nil},
		"IPv6 by /48":                 {site, incoming(t, "[2001:db8:1:2:3:4:5:6]:1"), at(unary), "ip:2001:db8:1::/48", nil},
		"a forged address":            {direct, incoming(t, "192.0.2.7:1", "x-forwarded-for", "203.0.113.1", "forwarded", "for=203.0.113.1"), at(unary), "ip:192.0.2.7", nil},
		"not from a proxy":            {proxied, incoming(t, "192.0.2.7:1", "x-forwarded-for", "203.0.113.1"), at(unary), "ip:192.0.2.7", nil},
		"from a proxy":                {proxied, incoming(t, "10.0.0.1:1", "x-forwarded-for", "192.0.2.99, 203.0.113.1"), at(unary), "ip:203.0.113.1", nil},
		"through two":                 {proxied, incoming(t, "10.0.0.1:1", "x-forwarded-for", "192.0.2.99", "x-forwarded-for", "203.0.113.1, 10.0.0.2"), at(unary), "ip:203.0.113.1", nil},
		"from an IPv6 proxy":          {proxied, incoming(t, "[2001:db8:ff::1]:1", "x-forwarded-for", "203.0.113.1"), at(unary), "ip:203.0.113.1", nil},
		"a proxy's own":               {proxied, incoming(t, "10.0.0.1:1"), at(unary), "ip:10.0.0.1", nil},
		"garbage of a proxy":          {proxied, incoming(t, "10.0.0.1:1", "x-forwarded-for", "unknown"), at(unary), "", grpclimit.ErrBadKey},
		"forwarded":                   {forwarded, incoming(t, "10.0.0.1:1", "x-forwarded-for", "192.0.2.99", "forwarded", `for="[2001:db8:1:2::3]:4"`), at(unary), "ip:2001:db8:1:2::/64", nil},
		"a Unix socket":               {direct, unix, at(unary), "", ratelimit.ErrInvalidConfig},
		"no peer":                     {direct, t.Context(), at(unary), "", ratelimit.ErrInvalidConfig},
		"a peer without an address":   {direct, peer.NewContext(t.Context(), &peer.Peer{}), at(unary), "", ratelimit.ErrInvalidConfig},
		"a client's own call":         {direct, incoming(t, "192.0.2.7:1"), grpclimit.Call{Client: true}, "", ratelimit.ErrInvalidConfig},
		"metadata":                    {tenant, incoming(t, "", "x-tenant", "acme"), at(unary), "header:x-tenant:acme", nil},
		"metadata, braces":            {tenant, incoming(t, "", "x-tenant", "{a}|%"), at(unary), "header:x-tenant:%7Ba%7D%7C%25", nil},
		"metadata, 128 bytes":         {tenant, incoming(t, "", "x-tenant", long[1:]), at(unary), "header:x-tenant:" + long[1:], nil},
		"metadata, 129 bytes":         {tenant, incoming(t, "", "x-tenant", long), at(unary), "header:x-tenant#" + hash(long), nil},
		"metadata, none":              {tenant, incoming(t, ""), at(unary), "", grpclimit.ErrNoKey},
		"metadata, empty":             {tenant, incoming(t, "", "x-tenant", ""), at(unary), "", grpclimit.ErrNoKey},
		"metadata, two":               {tenant, incoming(t, "", "x-tenant", "s3cret", "x-tenant", "s3cret"), at(unary), "", grpclimit.ErrBadKey},
		"metadata, no context":        {tenant, t.Context(), at(unary), "", grpclimit.ErrNoKey},
		"metadata, outgoing":          {tenant, metadata.AppendToOutgoingContext(incoming(t, "", "x-tenant", "caller"), "X-Tenant", "own"), grpclimit.Call{Client: true}, "header:x-tenant:own", nil},
		"metadata, only incoming":     {tenant, incoming(t, "", "x-tenant", "caller"), grpclimit.Call{Client: true}, "", grpclimit.ErrNoKey},
		"metadata, only outgoing":     {tenant, metadata.AppendToOutgoingContext(t.Context(), "x-tenant", "own"), at(unary), "", grpclimit.ErrNoKey},
		"bearer":                      {bearer, incoming(t, "", "authorization", "Bearer s3cret"), at(unary), "apikey#" + hash("s3cret"), nil},
		"bearer, written differently": {bearer, incoming(t, "", "authorization", "bEARER   s3cret"), at(unary), "apikey#" + hash("s3cret"), nil},
		"bearer, none":                {bearer, incoming(t, ""), at(unary), "", grpclimit.ErrNoKey},
		"basic":                       {bearer, incoming(t, "", "authorization", "Basic s3cret"), at(unary), "", grpclimit.ErrBadKey},
		"API key":                     {xKey, incoming(t, "", "x-api-key", "s3cret"), at(unary), "apikey#" + hash("s3cret"), nil},
		"API key, two":                {xKey, incoming(t, "", "x-api-key", "s3cret", "x-api-key", "s3cret2"), at(unary), "", grpclimit.ErrBadKey},
		"user":                        {user, of("42"), at(unary), "user:42", nil},
		"user, braces":                {user, of("{42}"), at(unary), "user:%7B42%7D", nil},
		"user, none":                  {user, t.Context(), at(unary), "", grpclimit.ErrNoKey},
		"user, of a client":           {user, of("42"), grpclimit.Call{Client: true}, "user:42", nil},
		"method":                      {method, t.Context(), at(unary), "route:/test.Echo/Unary", nil},
		"method, braces":              {method, t.Context(), at("/{a}/b"), "route:/%7Ba%7D/b", nil},
		"method, 129 bytes":           {method, t.Context(), at(long), "route#" + hash(long), nil},
		"method, none":                {method, t.Context(), at(""), "", ratelimit.ErrInvalidConfig},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := c.key(c.ctx, c.call)
			require.Equal(t, c.want, got)
			require.ErrorIs(t, err, c.err)
			if err != nil {
				require.NotContains(t, err.Error(), "s3cret")
			}
		})
	}
}

// constantKey is a key function of one answer.
func constantKey(key string, err error) grpclimit.KeyFunc {
	return func(context.Context, grpclimit.Call) (string, error) { return key, err }
}

func TestJoinAndFirstOf(t *testing.T) {
	key := must[grpclimit.KeyFunc](t)
	user, ip := key(grpclimit.User(userOf)), key(grpclimit.ClientIP(nil))
	seen := func(_ context.Context, call grpclimit.Call) (string, error) {
		return call.Method + "/" + call.Message.(string), nil
	}
	ctx, sent := incoming(t, "192.0.2.7:1"), grpclimit.Call{Method: unary, Message: "m"}
	known := context.WithValue(ctx, userKey{}, "4|2")

	join := key(grpclimit.Join(user, grpclimit.Method(), ip, seen))
	got, err := join(known, sent)
	require.NoError(t, err)
	require.Equal(t, "user:4%7C2|route:/test.Echo/Unary|ip:192.0.2.7|/test.Echo/Unary/m", got)
	_, err = join(ctx, sent)
	require.ErrorIs(t, err, grpclimit.ErrNoKey)

	first := key(grpclimit.FirstOf(user, ip))
	got, err = first(known, sent)
	require.NoError(t, err)
	require.Equal(t, "user:4%7C2", got)
	got, err = first(ctx, sent)
	require.NoError(t, err)
	require.Equal(t, "ip:192.0.2.7", got)
	nested := key(grpclimit.Join(first, key(grpclimit.FirstOf(user, seen))))
	got, err = nested(ctx, sent)
	require.NoError(t, err)
	require.Equal(t, "ip:192.0.2.7|/test.Echo/Unary/m", got)
	_, err = first(t.Context(), grpclimit.Call{Client: true})
	require.ErrorIs(t, err, ratelimit.ErrInvalidConfig, "a mistake is no missing key")

	for _, other := range []error{grpclimit.ErrBadKey, ratelimit.ErrInvalidConfig, errors.New("the database is down")} {
		got, err = key(grpclimit.FirstOf(constantKey("", other), ip))(ctx, sent)
		require.Empty(t, got)
		require.ErrorIs(t, err, other)
	}
	for _, how := range []func(...grpclimit.KeyFunc) (grpclimit.KeyFunc, error){grpclimit.Join, grpclimit.FirstOf} {
		_, err = key(how(constantKey("", nil), ip))(ctx, sent)
		require.ErrorIs(t, err, ratelimit.ErrInvalidKey, "an empty key is no missing one")
	}
}

func TestWhatCannotWorkIsRefused(t *testing.T) {
	one := constantKey("a", nil)
	nine := []grpclimit.KeyFunc{one, one, one, one, one, one, one, one, one}
	for name, make := range map[string]func() (grpclimit.KeyFunc, error){
		"a network of all": func() (grpclimit.KeyFunc, error) {
			return grpclimit.ClientIP([]netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")})
		},
		"no trust":            func() (grpclimit.KeyFunc, error) { return grpclimit.ClientIP(nil, httplimit.WithForwarded()) },
		"a pseudo-header":     func() (grpclimit.KeyFunc, error) { return grpclimit.Metadata(":authority") },
		"no name":             func() (grpclimit.KeyFunc, error) { return grpclimit.Metadata("") },
		"not an API key":      func() (grpclimit.KeyFunc, error) { return grpclimit.APIKey("a b") },
		"no function":         func() (grpclimit.KeyFunc, error) { return grpclimit.User(nil) },
		"Join of none":        func() (grpclimit.KeyFunc, error) { return grpclimit.Join() },
		"Join of nine":        func() (grpclimit.KeyFunc, error) { return grpclimit.Join(nine...) },
		"Join with nil":       func() (grpclimit.KeyFunc, error) { return grpclimit.Join(one, nil) },
		"FirstOf without any": func() (grpclimit.KeyFunc, error) { return grpclimit.FirstOf() },
		"FirstOf with nil":    func() (grpclimit.KeyFunc, error) { return grpclimit.FirstOf(nil) },
	} {
		key, err := make()
		require.Nil(t, key, name)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig, name)
	}
	must[grpclimit.KeyFunc](t)(grpclimit.Join(nine[:8]...))

	constructors := map[string]func(ratelimit.Limiter, grpclimit.KeyFunc, ...grpclimit.Option) error{
		"NewServer": func(l ratelimit.Limiter, key grpclimit.KeyFunc, opts ...grpclimit.Option) error {
			_, err := grpclimit.NewServer(l, key, opts...)
			return err
		},
		"NewClient": func(l ratelimit.Limiter, key grpclimit.KeyFunc, opts ...grpclimit.Option) error {
			_, err := grpclimit.NewClient(l, key, opts...)
			return err
		},
		"NewTap": func(l ratelimit.Limiter, key grpclimit.KeyFunc, opts ...grpclimit.Option) error {
			_, err := grpclimit.NewTap(l, key, opts...)
			return err
		},
	}
	inFlight := must[*ratelimit.InFlight](t)(ratelimit.NewInFlight(offline{}, 1, 10e9))
	all := "NewServer NewClient NewTap"
	for _, c := range []struct {
		opts    []grpclimit.Option
		mention string // in the error; none: it works
		where   string
	}{
		{[]grpclimit.Option{{}}, "option 1 is empty", all},
		{[]grpclimit.Option{grpclimit.WithPolicy("a"), grpclimit.WithPolicy("b")}, "WithPolicy is given twice", all},
		{[]grpclimit.Option{grpclimit.WithPolicy("")}, "WithPolicy", all},
		{[]grpclimit.Option{grpclimit.WithPolicy(strings.Repeat("a", 129))}, "129", all},
		{[]grpclimit.Option{grpclimit.WithPolicy(strings.Repeat("a", 128))}, "", all},
		{[]grpclimit.Option{grpclimit.WithPolicy("ä")}, "ASCII", all},
		{[]grpclimit.Option{grpclimit.WithCost(nil)}, "WithCost", all},
		{[]grpclimit.Option{grpclimit.WithSkip(nil)}, "WithSkip", all},
		{[]grpclimit.Option{grpclimit.WithDenialHandler(nil)}, "WithDenialHandler", all},
		{[]grpclimit.Option{grpclimit.WithErrorHandler(nil)}, "WithErrorHandler", all},
		{[]grpclimit.Option{grpclimit.WithMaxWait(0)}, "WithMaxWait", all},
		{[]grpclimit.Option{grpclimit.WithMaxWait(1e6 - 1)}, "WithMaxWait", all},
		{[]grpclimit.Option{grpclimit.WithMaxWait(1e6)}, "", "NewServer NewClient"},
		{[]grpclimit.Option{grpclimit.WithMaxWait(1e6)}, "NewTap: WithMaxWait does not apply", "NewTap"},
		{[]grpclimit.Option{grpclimit.WithReceived(nil, 0)}, "WithReceived: the limiter", "NewServer NewClient"},
		{[]grpclimit.Option{grpclimit.WithReceived(allowing(), -1)}, "WithReceived: a wait of -1ns", "NewServer NewClient"},
		{[]grpclimit.Option{grpclimit.WithReceived(allowing(), 0)}, "NewTap: WithReceived does not apply", "NewTap"},
		{[]grpclimit.Option{grpclimit.WithSent(nil, 0)}, "WithSent: the limiter", "NewServer NewClient"},
		{[]grpclimit.Option{grpclimit.WithSent(allowing(), 1)}, "WithSent: a wait of 1ns", "NewServer NewClient"},
		{[]grpclimit.Option{grpclimit.WithSent(allowing(), 0)}, "NewTap: WithSent does not apply", "NewTap"},
		{[]grpclimit.Option{grpclimit.WithInFlight(nil)}, "WithInFlight: the limiter", "NewServer"},
		{[]grpclimit.Option{grpclimit.WithInFlight(inFlight)}, "", "NewServer"},
		{[]grpclimit.Option{grpclimit.WithInFlight(inFlight)}, "WithInFlight does not apply", "NewClient NewTap"},
		{[]grpclimit.Option{grpclimit.WithMaxPushback(-1)}, "WithMaxPushback: -1ns", "NewServer"},
		{[]grpclimit.Option{grpclimit.WithRetryAfter(0)}, "WithRetryAfter: 0s", "NewServer"},
		{[]grpclimit.Option{grpclimit.WithRetryAfter(1)}, "nothing limits the calls at once", "NewServer"},
		{[]grpclimit.Option{grpclimit.WithRetryAfter(1), grpclimit.WithInFlight(inFlight)}, "", "NewServer"},
		{[]grpclimit.Option{grpclimit.WithRetryAfter(1)}, "WithRetryAfter does not apply", "NewClient"},
		{[]grpclimit.Option{grpclimit.WithMaxPushback(24*3600e9 + 1)}, "WithMaxPushback", "NewServer"},
		{[]grpclimit.Option{grpclimit.WithMaxPushback(24 * 3600e9)}, "", "NewServer"},
		{[]grpclimit.Option{grpclimit.WithMaxPushback(1)}, "WithMaxPushback does not apply", "NewClient NewTap"},
	} {
		for _, where := range strings.Fields(c.where) {
			err := constructors[where](allowing(), one, c.opts...)
			if c.mention == "" {
				require.NoError(t, err, where)
				continue
			}
			require.ErrorIs(t, err, ratelimit.ErrInvalidConfig, "%s %s", where, c.mention)
			require.ErrorContains(t, err, c.mention)
		}
	}
	everyone, err := grpclimit.Everyone()(t.Context(), grpclimit.Call{})
	require.NoError(t, err)
	require.Equal(t, "all", everyone)
	for name, construct := range constructors {
		require.ErrorContains(t, construct(nil, one), name+": the limiter is nil")
		require.ErrorContains(t, construct((*ratelimit.TokenBucket)(nil), one), name+": the limiter is nil")
		require.NoError(t, construct(named{allowing(), "ok"}, one))
		require.ErrorContains(t, construct(named{allowing(), "ä"}, one), name+": the limiter's name")
		require.NoError(t, construct(named{allowing(), "ä"}, one, grpclimit.WithPolicy("a")))
		require.ErrorContains(t, construct(allowing(), nil), name+": the key function is nil")
	}
}

package connectlimit_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/connectlimit"
	"github.com/tryacquire/ratelimit/httplimit"
)

var proxies = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8:ff::/48")}

// from is a call that a handler has received.
func from(address string, header ...string) connectlimit.Call {
	c := connectlimit.Call{Spec: connect.Spec{Procedure: unary}, Peer: connect.Peer{Addr: address}, Header: http.Header{}}
	for i := 0; i < len(header); i += 2 {
		c.Header.Add(header[i], header[i+1])
	}
	return c
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
	key := must[connectlimit.KeyFunc](t)
	direct, proxied := key(connectlimit.ClientIP(nil)), key(connectlimit.ClientIP(proxies))
	forwarded := key(connectlimit.ClientIP(proxies, httplimit.WithForwarded()))
	site := key(connectlimit.ClientIP(nil, httplimit.WithIPv6Prefix(48)))
	tenant, bearer, xKey := key(connectlimit.Header("x-tenant")), key(connectlimit.APIKey("authorization")), key(connectlimit.APIKey("X-Api-Key"))
	user, procedure := key(connectlimit.User(userOf)), connectlimit.Procedure()
	of := func(id string) context.Context { return context.WithValue(t.Context(), userKey{}, id) }
	ofClient := connectlimit.Call{Spec: connect.Spec{IsClient: true, Procedure: unary}, Peer: connect.Peer{Addr: "192.0.2.7:1"}}
	long := strings.Repeat("a", 129)

	for name, c := range map[string]struct {
		key  connectlimit.KeyFunc
		call connectlimit.Call
		want string
		err  error
	}{
		"IPv4":                        {direct, from("192.0.2.7:1"), "ip:192.0.2.7", nil},
		"IPv4 in IPv6 form":           {direct, from("[::ffff:192.0.2.7]:1"), "ip:192.0.2.7", nil},
		"IPv6":                        {direct, from("[2001:db8:1:2:3:4:5:6]:1"), "ip:2001:db8:1:2::/64", nil},
		"IPv6 by /48":                 {site, from("[2001:db8:1:2:3:4:5:6]:1"), "ip:2001:db8:1::/48", nil},
		"a forged address":            {direct, from("192.0.2.7:1", "X-Forwarded-For", "203.0.113.1", "Forwarded", "for=203.0.113.1"), "ip:192.0.2.7", nil},
		"not from a proxy":            {proxied, from("192.0.2.7:1", "X-Forwarded-For", "203.0.113.1"), "ip:192.0.2.7", nil},
		"from a proxy":                {proxied, from("10.0.0.1:1", "X-Forwarded-For", "192.0.2.99, 203.0.113.1"), "ip:203.0.113.1", nil},
		"through two":                 {proxied, from("10.0.0.1:1", "X-Forwarded-For", "192.0.2.99", "X-Forwarded-For", "203.0.113.1, 10.0.0.2"), "ip:203.0.113.1", nil},
		"from an IPv6 proxy":          {proxied, from("[2001:db8:ff::1]:1", "X-Forwarded-For", "203.0.113.1"), "ip:203.0.113.1", nil},
		"garbage of a proxy":          {proxied, from("10.0.0.1:1", "X-Forwarded-For", "unknown"), "", connectlimit.ErrBadKey},
		"forwarded":                   {forwarded, from("10.0.0.1:1", "X-Forwarded-For", "192.0.2.99", "Forwarded", `for="[2001:db8:1:2::3]:4"`), "ip:2001:db8:1:2::/64", nil},
		"a Unix socket":               {direct, from("@"), "", ratelimit.ErrInvalidConfig},
		"a client's own call":         {direct, ofClient, "", ratelimit.ErrInvalidConfig},
		"header":                      {tenant, from("", "X-Tenant", "acme"), "header:x-tenant:acme", nil},
		"header, braces":              {tenant, from("", "X-Tenant", "{a}|%"), "header:x-tenant:%7Ba%7D%7C%25", nil},
		"header, 128 bytes":           {tenant, from("", "X-Tenant", long[1:]), "header:x-tenant:" + long[1:], nil},
		"header, 129 bytes":           {tenant, from("", "X-Tenant", long), "header:x-tenant#" + hash(long), nil},
		"header, none":                {tenant, from(""), "", connectlimit.ErrNoKey},
		"header, no map":              {tenant, ofClient, "", connectlimit.ErrNoKey},
		"header, empty":               {tenant, from("", "X-Tenant", ""), "", connectlimit.ErrNoKey},
		"header, two":                 {tenant, from("", "X-Tenant", "s3cret", "X-Tenant", "s3cret"), "", connectlimit.ErrBadKey},
		"bearer":                      {bearer, from("", "Authorization", "Bearer s3cret"), "apikey#" + hash("s3cret"), nil},
		"bearer, written differently": {bearer, from("", "Authorization", "bEARER   s3cret"), "apikey#" + hash("s3cret"), nil},
		"bearer, none":                {bearer, from(""), "", connectlimit.ErrNoKey},
		"basic":                       {bearer, from("", "Authorization", "Basic s3cret"), "", connectlimit.ErrBadKey},
		"API key":                     {xKey, from("", "X-Api-Key", "s3cret"), "apikey#" + hash("s3cret"), nil},
		"API key, two":                {xKey, from("", "X-Api-Key", "s3cret", "X-Api-Key", "s3cret2"), "", connectlimit.ErrBadKey},
		"procedure":                   {procedure, from(""), "route:/test.Echo/Unary", nil},
		"procedure, none":             {procedure, connectlimit.Call{}, "", ratelimit.ErrInvalidConfig},
		"user, none":                  {user, from(""), "", connectlimit.ErrNoKey},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := c.key(t.Context(), c.call)
			require.Equal(t, c.want, got)
			require.ErrorIs(t, err, c.err)
			if err != nil {
				require.NotContains(t, err.Error(), "s3cret")
			}
		})
	}
	for id, want := range map[string]string{"42": "user:42", "{42}": "user:%7B42%7D", long: "user#" + hash(long)} {
		got, err := user(of(id), ofClient)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

// TestKeysOfRealCalls: what connect makes of a call has what the key functions ask for.
func TestKeysOfRealCalls(t *testing.T) {
	key := must[connectlimit.KeyFunc](t)
	join := key(connectlimit.Join(key(connectlimit.ClientIP(proxies)), key(connectlimit.APIKey("Authorization")), connectlimit.Procedure()))
	eachKind(t, func(t *testing.T, kind, _ string, do func(context.Context, service, ...connect.ClientOption) error) {
		limiter := allowing()
		s := serve(t, nil, must[connect.Interceptor](t)(connectlimit.NewServer(limiter, join)))
		require.NoError(t, do(t.Context(), s, connect.WithInterceptors(bearing("s3cret"))))
		require.Equal(t, []string{"ip:127.0.0.1|apikey#" + hash("s3cret") + "|route:" + kind + " 1"}, limiter.asked())
		requireError(t, do(t.Context(), s), connect.CodeInvalidArgument, "the call lacks what it is limited by")
		require.Empty(t, limiter.asked())
	})
}

// bearing sends a token.
type bearing string

func (b bearing) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		req.Header().Set("Authorization", "Bearer "+string(b))
		return next(ctx, req)
	}
}
func (b bearing) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}
func (b bearing) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		conn.RequestHeader().Set("Authorization", "Bearer "+string(b))
		return conn
	}
}

// constantKey is a key function of one answer.
func constantKey(key string, err error) connectlimit.KeyFunc {
	return func(context.Context, connectlimit.Call) (string, error) { return key, err }
}

func TestJoinAndFirstOf(t *testing.T) {
	key := must[connectlimit.KeyFunc](t)
	user, ip := key(connectlimit.User(userOf)), key(connectlimit.ClientIP(nil))
	seen := func(_ context.Context, call connectlimit.Call) (string, error) {
		return call.Spec.Procedure + "/" + call.Message.(string), nil
	}
	sent := from("192.0.2.7:1")
	sent.Message = "m"
	known := context.WithValue(t.Context(), userKey{}, "4|2")

	got, err := key(connectlimit.Join(user, connectlimit.Procedure(), ip, seen))(known, sent)
	require.NoError(t, err)
	require.Equal(t, "user:4%7C2|route:/test.Echo/Unary|ip:192.0.2.7|/test.Echo/Unary/m", got)
	_, err = key(connectlimit.Join(user, ip))(t.Context(), sent)
	require.ErrorIs(t, err, connectlimit.ErrNoKey)

	first := key(connectlimit.FirstOf(user, ip))
	got, err = first(known, sent)
	require.NoError(t, err)
	require.Equal(t, "user:4%7C2", got)
	got, err = key(connectlimit.Join(first, key(connectlimit.FirstOf(user, seen))))(t.Context(), sent)
	require.NoError(t, err)
	require.Equal(t, "ip:192.0.2.7|/test.Echo/Unary/m", got)
	for _, other := range []error{connectlimit.ErrBadKey, ratelimit.ErrInvalidConfig, errors.New("the database is down")} {
		got, err = key(connectlimit.FirstOf(constantKey("", other), ip))(t.Context(), sent)
		require.Empty(t, got)
		require.ErrorIs(t, err, other)
	}
	for _, how := range []func(...connectlimit.KeyFunc) (connectlimit.KeyFunc, error){connectlimit.Join, connectlimit.FirstOf} {
		_, err = key(how(constantKey("", nil), ip))(t.Context(), sent)
		require.ErrorIs(t, err, ratelimit.ErrInvalidKey, "an empty key is no missing one")
	}
}

func TestWhatCannotWorkIsRefused(t *testing.T) {
	one := constantKey("a", nil)
	nine := []connectlimit.KeyFunc{one, one, one, one, one, one, one, one, one}
	for name, make := range map[string]func() (connectlimit.KeyFunc, error){
		"a network of all": func() (connectlimit.KeyFunc, error) {
			return connectlimit.ClientIP([]netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")})
		},
		"no trust":            func() (connectlimit.KeyFunc, error) { return connectlimit.ClientIP(nil, httplimit.WithForwarded()) },
		"Host":                func() (connectlimit.KeyFunc, error) { return connectlimit.Header("host") },
		"no name":             func() (connectlimit.KeyFunc, error) { return connectlimit.Header("") },
		"not an API key":      func() (connectlimit.KeyFunc, error) { return connectlimit.APIKey("a b") },
		"no function":         func() (connectlimit.KeyFunc, error) { return connectlimit.User(nil) },
		"Join of none":        func() (connectlimit.KeyFunc, error) { return connectlimit.Join() },
		"Join of nine":        func() (connectlimit.KeyFunc, error) { return connectlimit.Join(nine...) },
		"Join with nil":       func() (connectlimit.KeyFunc, error) { return connectlimit.Join(one, nil) },
		"FirstOf without any": func() (connectlimit.KeyFunc, error) { return connectlimit.FirstOf() },
		"FirstOf with nil":    func() (connectlimit.KeyFunc, error) { return connectlimit.FirstOf(nil) },
	} {
		key, err := make()
		require.Nil(t, key, name)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig, name)
	}

	constructors := map[string]func(ratelimit.Limiter, connectlimit.KeyFunc, ...connectlimit.Option) (connect.Interceptor, error){
		"NewServer": connectlimit.NewServer, "NewClient": connectlimit.NewClient,
	}
	inFlight := must[*ratelimit.InFlight](t)(ratelimit.NewInFlight(offline{}, 1, 10*time.Second))
	both := "NewServer NewClient"
	for _, c := range []struct {
		opts    []connectlimit.Option
		mention string // in the error; none: it works
		where   string
	}{
		{[]connectlimit.Option{{}}, "option 1 is empty", both},
		{[]connectlimit.Option{connectlimit.WithPolicy("a"), connectlimit.WithPolicy("b")}, "WithPolicy is given twice", both},
		{[]connectlimit.Option{connectlimit.WithPolicy("")}, "WithPolicy", both},
		{[]connectlimit.Option{connectlimit.WithPolicy(strings.Repeat("a", 129))}, "129", both},
		{[]connectlimit.Option{connectlimit.WithPolicy(strings.Repeat("a", 128))}, "", both},
		{[]connectlimit.Option{connectlimit.WithPolicy("ä")}, "ASCII", both},
		{[]connectlimit.Option{connectlimit.WithCost(nil)}, "WithCost", both},
		{[]connectlimit.Option{connectlimit.WithSkip(nil)}, "WithSkip", both},
		{[]connectlimit.Option{connectlimit.WithDenialHandler(nil)}, "WithDenialHandler", both},
		{[]connectlimit.Option{connectlimit.WithErrorHandler(nil)}, "WithErrorHandler", both},
		{[]connectlimit.Option{connectlimit.WithMaxWait(time.Millisecond - 1)}, "WithMaxWait", both},
		{[]connectlimit.Option{connectlimit.WithMaxWait(time.Millisecond)}, "", both},
		{[]connectlimit.Option{connectlimit.WithReceived(nil, 0)}, "WithReceived: the limiter", both},
		{[]connectlimit.Option{connectlimit.WithReceived(allowing(), -1)}, "WithReceived: a wait of -1ns", both},
		{[]connectlimit.Option{connectlimit.WithSent(nil, 0)}, "WithSent: the limiter", both},
		{[]connectlimit.Option{connectlimit.WithSent(allowing(), 1)}, "WithSent: a wait of 1ns", both},
		{[]connectlimit.Option{connectlimit.WithInFlight(nil)}, "WithInFlight: the limiter", "NewServer"},
		{[]connectlimit.Option{connectlimit.WithInFlight(inFlight)}, "", "NewServer"},
		{[]connectlimit.Option{connectlimit.WithInFlight(inFlight)}, "NewClient: WithInFlight does not apply", "NewClient"},
		{[]connectlimit.Option{connectlimit.WithMaxPushback(-1)}, "WithMaxPushback: -1ns", "NewServer"},
		{[]connectlimit.Option{connectlimit.WithRetryAfter(0)}, "WithRetryAfter: 0s", "NewServer"},
		{[]connectlimit.Option{connectlimit.WithRetryAfter(1)}, "nothing limits the calls at once", "NewServer"},
		{[]connectlimit.Option{connectlimit.WithRetryAfter(1), connectlimit.WithInFlight(inFlight)}, "", "NewServer"},
		{[]connectlimit.Option{connectlimit.WithRetryAfter(1)}, "WithRetryAfter does not apply", "NewClient"},
		{[]connectlimit.Option{connectlimit.WithMaxPushback(24*time.Hour + 1)}, "WithMaxPushback", "NewServer"},
		{[]connectlimit.Option{connectlimit.WithMaxPushback(24 * time.Hour)}, "", "NewServer"},
		{[]connectlimit.Option{connectlimit.WithMaxPushback(1)}, "WithMaxPushback does not apply", "NewClient"},
	} {
		for _, where := range strings.Fields(c.where) {
			limit, err := constructors[where](allowing(), one, c.opts...)
			if c.mention == "" {
				require.NoError(t, err, where)
				continue
			}
			require.Nil(t, limit)
			require.ErrorIs(t, err, ratelimit.ErrInvalidConfig, "%s %s", where, c.mention)
			require.ErrorContains(t, err, c.mention)
		}
	}
	all, err := connectlimit.Everyone()(t.Context(), connectlimit.Call{})
	require.NoError(t, err)
	require.Equal(t, "all", all)
	for name, construct := range constructors {
		_, err := construct(nil, one)
		require.ErrorContains(t, err, name+": the limiter is nil")
		_, err = construct((*ratelimit.TokenBucket)(nil), one)
		require.ErrorContains(t, err, name+": the limiter is nil")
		_, err = construct(named{allowing(), "ä"}, one)
		require.ErrorContains(t, err, name+": the limiter's name")
		_, err = construct(named{allowing(), "ä"}, one, connectlimit.WithPolicy("a"))
		require.NoError(t, err)
		_, err = construct(allowing(), nil)
		require.ErrorContains(t, err, name+": the key function is nil")
	}
}

package connectlimit_test

import (
	"context"
	"net/http"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/connectlimit"
	"github.com/tryacquire/ratelimit/internal/testing/integrationtest"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

func TestKeys(t *testing.T) {
	integrationtest.Keys[connectlimit.KeyFunc]{
		ClientIP: connectlimit.ClientIP, Header: connectlimit.Header, APIKey: connectlimit.APIKey, User: connectlimit.User,
		Join: connectlimit.Join, FirstOf: connectlimit.FirstOf, Route: connectlimit.Procedure(), Everyone: connectlimit.Everyone(),
		Reserved: "host", ErrNoKey: connectlimit.ErrNoKey, ErrBadKey: connectlimit.ErrBadKey,
		Own: func(key func(procedure, sent string) (string, error)) connectlimit.KeyFunc {
			return func(_ context.Context, call connectlimit.Call) (string, error) {
				return key(call.Spec.Procedure, call.Message.(string))
			}
		},
		Ask: func(t testing.TB, key connectlimit.KeyFunc, c integrationtest.Call) (string, error) {
			call := connectlimit.Call{Spec: connect.Spec{Procedure: c.Route}, Peer: connect.Peer{Addr: c.From}, Header: http.Header{}, Message: c.Sent}
			for i := 0; i < len(c.Header); i += 2 {
				call.Header.Add(c.Header[i], c.Header[i+1])
			}
			return key(c.Context(t.Context()), call)
		},
	}.Test(t)
}

// TestKeysOfClients and of connections without an address.
func TestKeysOfClients(t *testing.T) {
	direct, tenant := ratelimit.Must(connectlimit.ClientIP(nil)), ratelimit.Must(connectlimit.Header("X-Tenant"))
	own := connectlimit.Call{Spec: connect.Spec{IsClient: true, Procedure: unary}, Peer: connect.Peer{Addr: "192.0.2.7:1"}}
	for name, c := range map[string]struct {
		key  connectlimit.KeyFunc
		call connectlimit.Call
		err  error
	}{
		"a Unix socket":       {direct, connectlimit.Call{Spec: connect.Spec{Procedure: unary}, Peer: connect.Peer{Addr: "@"}, Header: http.Header{}}, ratelimit.ErrInvalidConfig},
		"a client's own call": {direct, own, ratelimit.ErrInvalidConfig},
		"header, no map":      {tenant, own, connectlimit.ErrNoKey},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := c.key(t.Context(), c.call)
			require.Empty(t, got)
			require.ErrorIs(t, err, c.err)
		})
	}
	got, err := ratelimit.Must(connectlimit.User(integrationtest.UserOf))(integrationtest.Call{User: "42"}.Context(t.Context()), own)
	require.NoError(t, err)
	require.Equal(t, "user:42", got)
}

// TestKeysOfRealCalls: what connect makes of a call has what the key functions ask for.
func TestKeysOfRealCalls(t *testing.T) {
	join := ratelimit.Must(connectlimit.Join(ratelimit.Must(connectlimit.ClientIP(integrationtest.Proxies)),
		ratelimit.Must(connectlimit.APIKey("Authorization")), connectlimit.Procedure()))
	eachKind(t, func(t *testing.T, kind, _ string, do func(context.Context, service, ...connect.ClientOption) error) {
		limiter := limitertest.Allowing()
		s := serve(t, nil, ratelimit.Must(connectlimit.NewServer(limiter, join)))
		require.NoError(t, do(t.Context(), s, connect.WithInterceptors(sending{"Authorization", "Bearer s3cret"})))
		require.Equal(t, []string{"ip:127.0.0.1|apikey#" + integrationtest.Hash("s3cret") + "|route:" + kind + " 1"}, limiter.Asked())
		requireError(t, do(t.Context(), s), connect.CodeInvalidArgument, "the call lacks what it is limited by")
		require.Empty(t, limiter.Asked())
	})
}

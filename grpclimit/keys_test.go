package grpclimit_test

import (
	"context"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/grpclimit"
	"github.com/tryacquire/ratelimit/internal/testing/integrationtest"
)

// incoming is the context of a call that a server has received.
func incoming(t testing.TB, from string, md ...string) context.Context {
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(md...))
	if from == "" {
		return ctx
	}
	return peer.NewContext(ctx, &peer.Peer{Addr: net.TCPAddrFromAddrPort(netip.MustParseAddrPort(from))})
}

func TestKeys(t *testing.T) {
	integrationtest.Keys[grpclimit.KeyFunc]{
		ClientIP: grpclimit.ClientIP, Header: grpclimit.Metadata, APIKey: grpclimit.APIKey, User: grpclimit.User,
		Join: grpclimit.Join, FirstOf: grpclimit.FirstOf, Route: grpclimit.Method(), Everyone: grpclimit.Everyone(),
		Reserved: ":authority", ErrNoKey: grpclimit.ErrNoKey, ErrBadKey: grpclimit.ErrBadKey,
		Own: func(key func(method, sent string) (string, error)) grpclimit.KeyFunc {
			return func(_ context.Context, call grpclimit.Call) (string, error) {
				return key(call.Method, call.Message.(string))
			}
		},
		Ask: func(t testing.TB, key grpclimit.KeyFunc, c integrationtest.Call) (string, error) {
			return key(c.Context(incoming(t, c.From, c.Header...)), grpclimit.Call{Method: c.Route, Message: c.Sent})
		},
	}.Test(t)
}

// TestKeysByMetadataAndPeer: what only gRPC has.
func TestKeysByMetadataAndPeer(t *testing.T) {
	direct, tenant := ratelimit.Must(grpclimit.ClientIP(nil)), ratelimit.Must(grpclimit.Metadata("X-Tenant"))
	user := ratelimit.Must(grpclimit.User(integrationtest.UserOf))
	received, own := grpclimit.Call{Method: unary}, grpclimit.Call{Client: true}
	unix := peer.NewContext(t.Context(), &peer.Peer{Addr: &net.UnixAddr{Name: "/run/a.sock", Net: "unix"}})
	for name, c := range map[string]struct {
		key  grpclimit.KeyFunc
		ctx  context.Context
		call grpclimit.Call
		want string
		err  error
	}{
		"a Unix socket":             {direct, unix, received, "", ratelimit.ErrInvalidConfig},
		"no peer":                   {direct, t.Context(), received, "", ratelimit.ErrInvalidConfig},
		"a peer without an address": {direct, peer.NewContext(t.Context(), &peer.Peer{}), received, "", ratelimit.ErrInvalidConfig},
		"a client's own call":       {direct, incoming(t, "192.0.2.7:1"), own, "", ratelimit.ErrInvalidConfig},
		"metadata, no context":      {tenant, t.Context(), received, "", grpclimit.ErrNoKey},
		"metadata, outgoing":        {tenant, metadata.AppendToOutgoingContext(incoming(t, "", "x-tenant", "caller"), "X-Tenant", "own"), own, "header:x-tenant:own", nil},
		"metadata, only incoming":   {tenant, incoming(t, "", "x-tenant", "caller"), own, "", grpclimit.ErrNoKey},
		"metadata, only outgoing":   {tenant, metadata.AppendToOutgoingContext(t.Context(), "x-tenant", "own"), received, "", grpclimit.ErrNoKey},
		"user, of a client":         {user, integrationtest.Call{User: "42"}.Context(t.Context()), own, "user:42", nil},
		"FirstOf, a mistake":        {ratelimit.Must(grpclimit.FirstOf(user, direct)), t.Context(), own, "", ratelimit.ErrInvalidConfig},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := c.key(c.ctx, c.call)
			require.Equal(t, c.want, got)
			require.ErrorIs(t, err, c.err)
		})
	}
}

package valkeyclient

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/valkey-io/valkey-go"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/otherclients"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
	"github.com/tryacquire/ratelimit/otherclient"
	"github.com/tryacquire/ratelimit/otherclient/clienttest"
)

func open(t testing.TB, option valkey.ClientOption) valkey.Client {
	t.Helper()
	option.ConnWriteTimeout, option.DisableCache = time.Second, true
	client, err := valkey.NewClient(option)
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return client
}

func openAt(t testing.TB, addrs ...string) ratelimit.Client {
	return New(open(t, valkey.ClientOption{InitAddress: addrs}))
}

// Miniredis knows RESP2 only, and says that it is a Cluster.
func TestConn(t *testing.T) {
	clienttest.Run(t, func(t *testing.T, addr string) otherclient.Conn {
		return conn{open(t, valkey.ClientOption{InitAddress: []string{addr}, AlwaysRESP2: true, ForceSingleClient: true})}
	})
}

func TestNoClient(t *testing.T) {
	require.Nil(t, New(nil))
}

func TestRealServers(t *testing.T) { otherclients.OnRealServers(t, openAt) }

// TestSharded: what a client says of itself.
func TestSharded(t *testing.T) {
	require.False(t, conn{open(t, valkey.ClientOption{InitAddress: []string{redistest.Shared(t).Addr()}})}.Sharded())
}

// BenchmarkClients is beside go-redis:
//
//	go test -run '^$' -bench Clients -benchtime 1s -count 7 .
func BenchmarkClients(b *testing.B) { otherclients.Benchmark(b, "valkey-go", openAt) }

package valkeyclient

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/valkey-io/valkey-go"

	"github.com/tryacquire/ratelimit"
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

// Miniredis knows RESP2 only, and says that it is a Cluster.
func TestConn(t *testing.T) {
	clienttest.Run(t, func(t *testing.T, addr string) otherclient.Conn {
		return conn{open(t, valkey.ClientOption{InitAddress: []string{addr}, AlwaysRESP2: true, ForceSingleClient: true})}
	})
}

func TestNoClient(t *testing.T) {
	require.Nil(t, New(nil))
}

// TestRealServers: many callers over many keys get exactly what the rules allow, all operations work, and a Cluster whose
// slots are on three masters, and of which one moves, is no different.
func TestRealServers(t *testing.T) {
	cluster := redistest.StartCluster(t)
	for name, addrs := range map[string][]string{"one server": {redistest.Start(t).Addr()}, "Cluster": cluster.Addrs()} {
		t.Run(name, func(t *testing.T) {
			client := New(open(t, valkey.ClientOption{InitAddress: addrs}))
			l := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerHour(1), 7))
			require.NoError(t, l.Reset(t.Context(), "key 0"))
			var allowed [30]atomic.Int64
			var all sync.WaitGroup
			for range 32 {
				all.Go(func() {
					for i := range 90 {
						r, err := l.TryAcquire(context.Background(), fmt.Sprintf("key %d", i%len(allowed)))
						if err != nil {
							t.Error(err)
							return
						}
						if r.Allowed {
							allowed[i%len(allowed)].Add(1)
						}
					}
				})
			}
			if name == "Cluster" {
				slot := cluster.Slot("key 3")
				for _, to := range cluster.Masters() {
					if to != cluster.NodeForSlot(slot) {
						cluster.MigrateSlot(slot, to)
						break
					}
				}
			}
			all.Wait()
			for i := range allowed {
				require.EqualValues(t, 7, allowed[i].Load(), i)
			}

			log := ratelimit.Must(ratelimit.NewSlidingLog(client, []ratelimit.Rule{{Limit: 3, Window: time.Hour}, {Limit: 9, Window: 24 * time.Hour}}))
			answer, err := ratelimit.TryAcquireAcrossSlots(t.Context(),
				ratelimit.ClaimOf(l, "other", 2), ratelimit.ClaimOf(log, "another", 1).Estimate(), ratelimit.ClaimOf(log, "third", 4))
			require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
			require.False(t, answer.Allowed)
			answer, err = ratelimit.TryAcquireAcrossSlots(t.Context(),
				ratelimit.ClaimOf(l, "other", 2), ratelimit.ClaimOf(log, "another", 1).Estimate(), ratelimit.ClaimOf(log, "third", 3))
			require.NoError(t, err)
			require.True(t, answer.Allowed)
			require.NoError(t, answer.Parts[1].Ticket.Settle(t.Context(), 0))
			r, err := log.Peek(t.Context(), "another")
			require.NoError(t, err)
			require.Equal(t, 3, r.Remaining)
			require.NoError(t, l.Reset(t.Context(), "other"))
			r, err = l.Peek(t.Context(), "other")
			require.NoError(t, err)
			require.Equal(t, 7, r.Remaining)

			_, err = ratelimit.TryAcquireAll(t.Context(), ratelimit.ClaimOf(l, "a", 1), ratelimit.ClaimOf(l, "b", 1))
			if name == "Cluster" {
				require.ErrorIs(t, err, ratelimit.ErrCrossSlot)
			} else {
				require.NoError(t, err)
			}
		})
	}
}

// TestSharded: what a client says of itself.
func TestSharded(t *testing.T) {
	require.False(t, conn{open(t, valkey.ClientOption{InitAddress: []string{redistest.Shared(t).Addr()}})}.Sharded())
}

// BenchmarkClients compares one hot key and 1,000 keys, with 256 callers, on valkey-go and on go-redis, in turns.
//
//	go test -run '^$' -bench Clients -benchtime 1s -count 7 .
func BenchmarkClients(b *testing.B) {
	server := redistest.Start(b)
	clients := map[string]ratelimit.Client{
		"valkey-go": New(open(b, valkey.ClientOption{InitAddress: []string{server.Addr()}})),
		"go-redis":  server.Client(b),
	}
	for _, keys := range []int{1, 1000} {
		names := make([]string, keys)
		for i := range names {
			names[i] = net.JoinHostPort("key", fmt.Sprint(i))
		}
		for _, name := range []string{"valkey-go", "go-redis"} {
			b.Run(fmt.Sprintf("%d keys, %s", keys, name), func(b *testing.B) {
				l := ratelimit.Must(ratelimit.NewTokenBucket(clients[name], ratelimit.PerSecond(1e6), 1e6, ratelimit.WithName(name)))
				var next atomic.Int64
				var all sync.WaitGroup
				for range 256 {
					all.Go(func() {
						for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
							if _, err := l.TryAcquire(context.Background(), names[i%int64(keys)]); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				all.Wait()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
			})
		}
	}
}

// Package otherclients tests limiters on clients of other libraries than go-redis, on real servers.
package otherclients

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// OnRealServers tests a client: many callers over many keys get exactly what the rules allow, all operations work, and a
// Cluster whose slots are on three masters, and of which one moves, is no different.
func OnRealServers(t *testing.T, open func(t testing.TB, addrs ...string) ratelimit.Client) {
	cluster := redistest.StartCluster(t)
	for name, addrs := range map[string][]string{"one server": {redistest.Start(t).Addr()}, "Cluster": cluster.Addrs()} {
		t.Run(name, func(t *testing.T) {
			client := open(t, addrs...)
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

// Benchmark compares one hot key and 1,000 keys, with 256 callers, on the client of a library and on go-redis, in turns.
func Benchmark(b *testing.B, library string, open func(t testing.TB, addrs ...string) ratelimit.Client) {
	server := redistest.Start(b)
	clients := map[string]ratelimit.Client{
		library:    open(b, server.Addr()),
		"go-redis": server.Client(b),
	}
	for _, keys := range []int{1, 1000} {
		names := make([]string, keys)
		for i := range names {
			names[i] = net.JoinHostPort("key", fmt.Sprint(i))
		}
		for _, name := range []string{library, "go-redis"} {
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

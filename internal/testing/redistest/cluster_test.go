package redistest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// One cluster for all: most of a cluster test is the start.
func TestCluster(t *testing.T) {
	c := StartCluster(t)
	client := c.Client(t)
	t.Run("starts complete", func(t *testing.T) { testClusterStart(t, c, client) })
	t.Run("moves a slot in phases", func(t *testing.T) { testMigrationPhases(t, c, client) })
	t.Run("moves a slot under traffic", func(t *testing.T) { testMigrationUnderTraffic(t, c, client) })
	t.Run("counts executions over all masters", func(t *testing.T) { testClusterExecutions(t, c, client) })
	t.Run("is reached through proxies", func(t *testing.T) { testClusterThroughProxies(t, c, client) })
	t.Run("survives the death of a master", func(t *testing.T) { testClusterFailover(t, c, client) })
}

func testClusterStart(t *testing.T, c *Cluster, client *redis.ClusterClient) {
	ctx := testContext(t)
	require.Equal(t, 6, len(c.Addrs()), "addresses")
	require.Equal(t, 3, len(c.Masters()), "masters")
	require.Equal(t, 3, len(c.Replicas()), "replicas")
	for i := range 50 {
		key := fmt.Sprint("key", i)
		require.NoError(t, client.Set(ctx, key, i, 0).Err())
		n, err := c.NodeFor(key).Client(t).Get(ctx, key).Int()
		require.NoError(t, err)
		require.Equal(t, i, n, key)
	}
	require.Equal(t, 12182, c.Slot("{foo}bar"), "slot")
}

func testMigrationPhases(t *testing.T, c *Cluster, client *redis.ClusterClient) {
	ctx := testContext(t)
	require.NoError(t, client.MSet(ctx, "{m}1", "one", "{m}2", "two").Err())
	slot := c.Slot("{m}")
	from, to := c.NodeForSlot(slot), c.AddEmptyMaster()
	require.Equal(t, 4, len(c.Masters()), "masters")
	source := from.Client(t)

	m := c.BeginMigration(slot, to)
	require.Equal(t, "one", source.Get(ctx, "{m}1").Val(), "before its move")
	m.MoveKeys("{m}1")
	err := source.Get(ctx, "{m}1").Err()
	require.True(t, redis.HasErrorPrefix(err, "ASK"), "%v", err)
	err = source.MGet(ctx, "{m}1", "{m}2").Err()
	require.True(t, redis.HasErrorPrefix(err, "TRYAGAIN"), "%v", err)
	require.Equal(t, "one", client.Get(ctx, "{m}1").Val(), "asked for")
	require.Equal(t, "two", client.Get(ctx, "{m}2").Val(), "not moved yet")

	m.Finish()
	err = source.Get(ctx, "{m}2").Err()
	require.True(t, redis.HasErrorPrefix(err, "MOVED"), "%v", err)
	require.Equal(t, "two", client.Get(ctx, "{m}2").Val(), "moved")
	require.Equal(t, to.Addr(), c.NodeForSlot(slot).Addr(), "new master")
	c.MigrateSlot(slot, from)
	require.Equal(t, "one", client.Get(ctx, "{m}1").Val(), "moved back")
}

func testMigrationUnderTraffic(t *testing.T, c *Cluster, client *redis.ClusterClient) {
	ctx := testContext(t)
	const writers, most = 4, 100_000
	var wg sync.WaitGroup
	done := make(chan struct{})
	counts := make([]int64, writers)
	for i := range counts {
		wg.Go(func() {
			for counts[i] < most {
				select {
				case <-done:
					return
				default:
				}
				n, err := client.Incr(ctx, fmt.Sprintf("{t}%d", i)).Result()
				if counts[i]++; err != nil || n != counts[i] {
					t.Errorf("got %d, %v; want %d", n, err, counts[i])
					return
				}
			}
		})
	}
	slot := c.Slot("{t}")
	from := c.NodeForSlot(slot)
	for _, to := range c.Masters() {
		if to.Addr() != c.NodeForSlot(slot).Addr() {
			c.MigrateSlot(slot, to)
		}
	}
	if c.NodeForSlot(slot).Addr() != from.Addr() {
		c.MigrateSlot(slot, from)
	}
	close(done)
	wg.Wait()
	for i, n := range counts {
		require.NotZero(t, n, "writer %d wrote nothing during the migration", i)
	}
}

func testClusterExecutions(t *testing.T, c *Cluster, client *redis.ClusterClient) {
	ctx := testContext(t)
	before := Executions(t, client)
	for i := range 12 {
		require.NoError(t, incr.Run(ctx, client, []string{fmt.Sprint("executions", i)}).Err())
	}
	require.Equal(t, int64(12), Executions(t, client)-before, "executions")
}

func testClusterThroughProxies(t *testing.T, c *Cluster, client *redis.ClusterClient) {
	ctx := testContext(t)
	var proxies []*Proxy
	var faults []*Fault
	for _, addr := range c.Addrs() {
		p := NewProxy(t, addr)
		proxies, faults = append(proxies, p), append(faults, p.DropNextReply(OnCommand("incr")))
	}
	through := c.Client(t, func(o *redis.ClusterOptions) { o.Dialer = Through(proxies...) })
	require.NoError(t, through.Incr(ctx, "proxied").Err()) // go-redis sends it again
	require.Equal(t, "2", client.Get(ctx, "proxied").Val(), "executed")
	hits := 0
	for _, f := range faults {
		hits += f.Hits()
	}
	require.Equal(t, 1, hits, "hits")
}

func testClusterFailover(t *testing.T, c *Cluster, client *redis.ClusterClient) {
	ctx := testContext(t)
	const key = "survivor"
	old := c.NodeFor(key)
	require.NoError(t, client.Set(ctx, key, "v", 0).Err())
	// A write is acknowledged before replicas have it, so wait for that.
	n, err := old.Client(t).Wait(ctx, 1, callDeadline).Result()
	require.NoError(t, err)
	require.Equal(t, int64(1), n, "replicas that have it")

	start := time.Now()
	old.Kill()
	c.AwaitOK()
	t.Logf("failover took %v", time.Since(start))
	require.NotEqual(t, old.Addr(), c.NodeFor(key).Addr(), "the dead master is still named")
	await(t, "client to find the new master", func(ctx context.Context) error { return client.Get(ctx, key).Err() })
	require.Equal(t, 4, len(c.Masters()), "masters")
	require.Equal(t, 2, len(c.Replicas()), "replicas")

	old.Restart()
	await(t, "the old master to become a replica", func(context.Context) error {
		if n := len(c.Replicas()); n != 3 {
			return fmt.Errorf("%d replicas", n)
		}
		return nil
	})
}

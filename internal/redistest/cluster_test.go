package redistest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
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
	equal(t, "addresses", len(c.Addrs()), 6)
	equal(t, "masters", len(c.Masters()), 3)
	equal(t, "replicas", len(c.Replicas()), 3)
	for i := range 50 {
		key := fmt.Sprint("key", i)
		check(t, client.Set(ctx, key, i, 0).Err())
		n, err := c.NodeFor(key).Client(t).Get(ctx, key).Int()
		check(t, err)
		equal(t, key, n, i)
	}
	equal(t, "slot", c.Slot("{foo}bar"), 12182)
}

func testMigrationPhases(t *testing.T, c *Cluster, client *redis.ClusterClient) {
	ctx := testContext(t)
	check(t, client.MSet(ctx, "{m}1", "one", "{m}2", "two").Err())
	slot := c.Slot("{m}")
	from, to := c.NodeForSlot(slot), c.AddEmptyMaster()
	equal(t, "masters", len(c.Masters()), 4)
	source := from.Client(t)

	m := c.BeginMigration(slot, to)
	equal(t, "before its move", source.Get(ctx, "{m}1").Val(), "one")
	m.MoveKeys("{m}1")
	if err := source.Get(ctx, "{m}1").Err(); !redis.HasErrorPrefix(err, "ASK") {
		t.Errorf("got %v, want ASK", err)
	}
	if err := source.MGet(ctx, "{m}1", "{m}2").Err(); !redis.HasErrorPrefix(err, "TRYAGAIN") {
		t.Errorf("got %v, want TRYAGAIN", err)
	}
	equal(t, "asked for", client.Get(ctx, "{m}1").Val(), "one")
	equal(t, "not moved yet", client.Get(ctx, "{m}2").Val(), "two")

	m.Finish()
	if err := source.Get(ctx, "{m}2").Err(); !redis.HasErrorPrefix(err, "MOVED") {
		t.Errorf("got %v, want MOVED", err)
	}
	equal(t, "moved", client.Get(ctx, "{m}2").Val(), "two")
	equal(t, "new master", c.NodeForSlot(slot).Addr(), to.Addr())
	c.MigrateSlot(slot, from)
	equal(t, "moved back", client.Get(ctx, "{m}1").Val(), "one")
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
		if n == 0 {
			t.Errorf("writer %d did nothing meanwhile", i)
		}
	}
}

func testClusterExecutions(t *testing.T, c *Cluster, client *redis.ClusterClient) {
	ctx := testContext(t)
	before := Executions(t, client)
	for i := range 12 {
		check(t, incr.Run(ctx, client, []string{fmt.Sprint("executions", i)}).Err())
	}
	equal(t, "executions", Executions(t, client)-before, 12)
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
	check(t, through.Incr(ctx, "proxied").Err()) // go-redis sends it again
	equal(t, "executed", client.Get(ctx, "proxied").Val(), "2")
	hits := 0
	for _, f := range faults {
		hits += f.Hits()
	}
	equal(t, "hits", hits, 1)
}

func testClusterFailover(t *testing.T, c *Cluster, client *redis.ClusterClient) {
	ctx := testContext(t)
	const key = "survivor"
	old := c.NodeFor(key)
	check(t, client.Set(ctx, key, "v", 0).Err())
	// A write is acknowledged before replicas have it, so wait for that.
	n, err := old.Client(t).Wait(ctx, 1, callDeadline).Result()
	check(t, err)
	equal(t, "replicas that have it", n, 1)

	start := time.Now()
	old.Kill()
	c.AwaitOK()
	t.Logf("failover took %v", time.Since(start))
	if c.NodeFor(key).Addr() == old.Addr() {
		t.Error("the dead master is still named")
	}
	await(t, "client to find the new master", func(ctx context.Context) error { return client.Get(ctx, key).Err() })
	equal(t, "masters", len(c.Masters()), 4)
	equal(t, "replicas", len(c.Replicas()), 2)

	old.Restart()
	await(t, "the old master to become a replica", func(context.Context) error {
		if n := len(c.Replicas()); n != 3 {
			return fmt.Errorf("%d replicas", n)
		}
		return nil
	})
}

package redistest

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	clusterMasters = 3
	clusterSlots   = 16384
)

// Cluster is a Redis Cluster. It starts with three masters and a replica for each. Its methods end the test when they
// fail, so they belong in the test's goroutine.
type Cluster struct {
	t     testing.TB
	conf  config
	nodes []*node
}

// node is a server of a cluster with a client of its own, which is not redirected.
type node struct {
	*Server
	admin *redis.Client
	id    string // its name in the cluster
}

// StartCluster starts a cluster and waits until every node considers it complete. The options apply to every node.
// A master that is killed is replaced by its replica after two to four seconds; AwaitOK waits for that.
func StartCluster(t testing.TB, opts ...Option) *Cluster {
	t.Helper()
	c := &Cluster{t: t, conf: newConfig(opts)}
	requirePrograms(t, c.conf)
	if c.conf.secure {
		t.Fatal("redistest: a cluster cannot have TLS")
	}
	c.conf.cluster = true
	c.conf.args = append([]string{
		"--cluster-enabled", "yes",
		// Half of it is enough on an idle machine; on a busy one, nodes that have to wait would be considered dead.
		"--cluster-node-timeout", "2000",
		"--cluster-allow-replica-migration", "no", // roles change by failover only
		"--cluster-replica-validity-factor", "0", // a replica may take over, however old its data is
		"--repl-diskless-sync-delay", "0",
		// Replicas are shown to clients once they have received something, and this is the first that they receive.
		"--repl-ping-replica-period", "1",
	}, c.conf.args...)

	c.add(2 * clusterMasters)
	c.meet()
	masters, replicas := c.nodes[:clusterMasters], c.nodes[clusterMasters:]
	ctx, cancel := callContext()
	defer cancel()
	for i, n := range masters {
		first, last := clusterSlots*i/clusterMasters, clusterSlots*(i+1)/clusterMasters-1
		c.must(n.admin.ClusterAddSlotsRange(ctx, first, last).Err())
	}
	for i, n := range replicas {
		c.must(n.admin.ClusterReplicate(ctx, masters[i].id).Err())
	}
	c.AwaitOK()
	await(t, "replication", c.replicated)
	return c
}

// Addrs returns the addresses of all nodes, running or not.
func (c *Cluster) Addrs() []string {
	addrs := make([]string, len(c.nodes))
	for i, n := range c.nodes {
		addrs[i] = n.Addr()
	}
	return addrs
}

// Client returns a client that the test's cleanup closes. It reloads the slots every second, not every minute as by
// default: go-redis notices a failover only when it reloads them or is redirected, not when a master is dead. Each tweak
// may change the options.
func (c *Cluster) Client(t testing.TB, tweaks ...func(*redis.ClusterOptions)) *redis.ClusterClient {
	opt := &redis.ClusterOptions{
		Addrs: c.Addrs(), Password: c.conf.password, ClusterStateReloadInterval: time.Second,
	}
	for _, tweak := range tweaks {
		tweak(opt)
	}
	client := redis.NewClusterClient(opt)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// Masters returns the nodes that run and consider themselves masters, with slots or without.
func (c *Cluster) Masters() []*Server { return c.withRole("master") }

// Replicas returns the nodes that run and consider themselves replicas.
func (c *Cluster) Replicas() []*Server { return c.withRole("slave") }

// AddEmptyMaster adds a master without slots, as the target of a migration.
func (c *Cluster) AddEmptyMaster() *Server {
	c.t.Helper()
	n := c.add(1)[0]
	c.meet()
	c.AwaitOK()
	return n.Server
}

// add starts more nodes, all at once.
func (c *Cluster) add(count int) []*node {
	c.t.Helper()
	servers, err := startServers(c.t, count, c.conf)
	c.must(err)
	ctx, cancel := callContext()
	defer cancel()
	for _, s := range servers {
		n := &node{Server: s, admin: s.Client(c.t, func(o *redis.Options) { o.MaxRetries = -1 })}
		n.id, err = n.admin.ClusterMyID(ctx).Result()
		c.must(err)
		c.nodes = append(c.nodes, n)
		// If the epochs differ from the start, the nodes need no election to make them differ.
		c.must(n.admin.Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", len(c.nodes)).Err())
	}
	return c.nodes[len(c.nodes)-count:]
}

// meet introduces all running nodes to each other, and waits until they know each other. One introduction for each node
// would be enough, but the nodes' gossip then takes seconds.
func (c *Cluster) meet() {
	c.t.Helper()
	ctx, cancel := callContext()
	defer cancel()
	running := c.running()
	for i, n := range running {
		for _, other := range running[:i] {
			c.must(n.admin.ClusterMeet(ctx, "127.0.0.1", strconv.Itoa(other.Port())).Err())
		}
	}
	await(c.t, "nodes to meet", func(ctx context.Context) error {
		for _, n := range running {
			list, err := n.clusterNodes(ctx)
			if err != nil {
				return err
			}
			for _, other := range running {
				if !list[other.id] {
					return fmt.Errorf("%s does not know %s", n.Addr(), other.Addr())
				}
			}
		}
		return nil
	})
}

func (c *Cluster) running() []*node {
	var running []*node
	for _, n := range c.nodes {
		if n.running() {
			running = append(running, n)
		}
	}
	return running
}

func (c *Cluster) withRole(role string) []*Server {
	c.t.Helper()
	ctx, cancel := callContext()
	defer cancel()
	var with []*Server
	for _, n := range c.running() {
		info, err := n.admin.Info(ctx, "replication").Result()
		c.must(err)
		if infoField(info, "role") == role {
			with = append(with, n.Server)
		}
	}
	return with
}

func (c *Cluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatalf("redistest: cluster: %v", err)
	}
}

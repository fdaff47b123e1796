package redistest

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// NodeFor returns the running master that serves the key. It waits for one, as during a failover.
func (c *Cluster) NodeFor(key string) *Server {
	c.t.Helper()
	return c.NodeForSlot(c.Slot(key))
}

// NodeForSlot returns the running master that serves the slot. It waits for one, as during a failover.
func (c *Cluster) NodeForSlot(slot int) *Server {
	c.t.Helper()
	return c.owner(slot).Server
}

// Slot returns the slot of the key.
func (c *Cluster) Slot(key string) int {
	c.t.Helper()
	ctx, cancel := callContext()
	defer cancel()
	slot, err := c.running()[0].admin.ClusterKeySlot(ctx, key).Result()
	c.must(err)
	return int(slot)
}

// AwaitOK waits until all running nodes say that the cluster is complete, and name running masters for all slots. Use it
// after masters were killed or paused: it returns when their replicas have taken over.
func (c *Cluster) AwaitOK() {
	c.t.Helper()
	await(c.t, "complete cluster", func(ctx context.Context) error {
		running := map[string]bool{}
		for _, n := range c.running() {
			running[n.Addr()] = true
		}
		for _, n := range c.running() {
			info, err := n.admin.ClusterInfo(ctx).Result()
			if err != nil {
				return err
			}
			if state := infoField(info, "cluster_state"); state != "ok" {
				return fmt.Errorf("%s says that the state is %s", n.Addr(), state)
			}
			//lint:ignore SA1019 it works on Redis 6, ClusterShards does not
			slots, err := n.admin.ClusterSlots(ctx).Result()
			if err != nil {
				return err
			}
			for _, s := range slots {
				if master := s.Nodes[0].Addr; !running[master] {
					return fmt.Errorf("%s says that slots are at %s, which is down", n.Addr(), master)
				}
			}
		}
		return nil
	})
}

// owner returns the node that considers itself the master of the slot. Other nodes may not know that yet.
func (c *Cluster) owner(slot int) *node {
	c.t.Helper()
	var owner *node
	await(c.t, fmt.Sprintf("master of slot %d", slot), func(ctx context.Context) error {
		for _, n := range c.running() {
			addr, err := n.ownerOf(ctx, slot)
			if err == nil && addr == n.Addr() {
				owner = n
				return nil
			}
		}
		return errors.New("no node claims it")
	})
	return owner
}

// node returns the node of this server.
func (c *Cluster) node(s *Server) *node {
	c.t.Helper()
	for _, n := range c.nodes {
		if n.Server.instance == s.instance {
			return n
		}
	}
	c.t.Fatalf("redistest: %s is not a node of this cluster", s.Addr())
	return nil
}

// replicated returns nil if all replicas have caught up and all nodes report them to clients.
func (c *Cluster) replicated(ctx context.Context) error {
	for i, n := range c.nodes {
		if i >= clusterMasters {
			info, err := n.admin.Info(ctx, "replication").Result()
			if err != nil {
				return err
			}
			if status := infoField(info, "master_link_status"); status != "up" {
				return fmt.Errorf("the link of %s is %q", n.Addr(), status)
			}
		}
		//lint:ignore SA1019 it works on Redis 6, ClusterShards does not
		slots, err := n.admin.ClusterSlots(ctx).Result()
		if err != nil {
			return err
		}
		for _, s := range slots {
			if len(s.Nodes) != 2 {
				return fmt.Errorf("%s knows %d nodes for slots %d to %d", n.Addr(), len(s.Nodes), s.Start, s.End)
			}
		}
	}
	return nil
}

// ownerOf returns the address of the master that this node names for the slot.
func (n *node) ownerOf(ctx context.Context, slot int) (string, error) {
	//lint:ignore SA1019 it works on Redis 6, ClusterShards does not
	slots, err := n.admin.ClusterSlots(ctx).Result()
	if err != nil {
		return "", err
	}
	for _, s := range slots {
		if s.Start <= slot && slot <= s.End {
			return s.Nodes[0].Addr, nil
		}
	}
	return "", fmt.Errorf("%s knows no master of slot %d", n.Addr(), slot)
}

// clusterNodes returns the ids of the nodes that this node has met.
func (n *node) clusterNodes(ctx context.Context) (map[string]bool, error) {
	list, err := n.admin.ClusterNodes(ctx).Result()
	if err != nil {
		return nil, err
	}
	ids := map[string]bool{}
	for line := range strings.Lines(list) {
		if fields := strings.Fields(line); len(fields) > 2 && !strings.Contains(fields[2], "handshake") {
			ids[fields[0]] = true
		}
	}
	return ids, nil
}

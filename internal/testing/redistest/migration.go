package redistest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
)

// Migration is a slot on its way from one master to another, under live traffic. Until Finish, the source answers for
// the keys that it still has and ASK for the others; a command with keys on both sides gets TRYAGAIN.
type Migration struct {
	c        *Cluster
	slot     int
	from, to *node
}

// MigrateSlot moves a slot and its keys to another master.
func (c *Cluster) MigrateSlot(slot int, to *Server) {
	c.t.Helper()
	m := c.BeginMigration(slot, to)
	m.MoveKeys()
	m.Finish()
}

// BeginMigration starts to move a slot from the master that has it. No key has moved yet.
func (c *Cluster) BeginMigration(slot int, to *Server) *Migration {
	c.t.Helper()
	m := &Migration{c: c, slot: slot, from: c.owner(slot), to: c.node(to)}
	if m.from == m.to {
		c.t.Fatalf("redistest: slot %d is at %s already", slot, to.Addr())
	}
	ctx, cancel := callContext()
	defer cancel()
	// The target comes first: otherwise the source would send clients to a target that sends them back.
	c.must(m.setSlot(ctx, m.to, "IMPORTING", m.from.id))
	c.must(m.setSlot(ctx, m.from, "MIGRATING", m.to.id))
	return m
}

// MoveKeys moves the given keys, or all keys of the slot. Keys that do not exist are ignored.
func (m *Migration) MoveKeys(keys ...string) {
	m.c.t.Helper()
	ctx, cancel := callContext()
	defer cancel()
	if len(keys) > 0 {
		m.c.must(m.migrate(ctx, keys))
		return
	}
	for {
		keys, err := m.from.admin.ClusterGetKeysInSlot(ctx, m.slot, 100).Result()
		m.c.must(err)
		if len(keys) == 0 {
			return
		}
		m.c.must(m.migrate(ctx, keys))
	}
}

// Finish gives the slot to the target and waits until all running nodes know it. Keys that were not moved would be lost,
// so it moves them first.
func (m *Migration) Finish() {
	m.c.t.Helper()
	m.MoveKeys()
	ctx, cancel := callContext()
	defer cancel()
	// The target comes first, so that the slot always has a master.
	m.c.must(m.setSlot(ctx, m.to, "NODE", m.to.id))
	m.c.must(m.setSlot(ctx, m.from, "NODE", m.to.id))
	await(m.c.t, "all nodes to know the new master", func(ctx context.Context) error {
		for _, n := range m.c.running() {
			addr, err := n.ownerOf(ctx, m.slot)
			if err != nil {
				return err
			}
			if addr != m.to.Addr() {
				return fmt.Errorf("%s says that slot %d is at %s", n.Addr(), m.slot, addr)
			}
		}
		return nil
	})
}

func (m *Migration) setSlot(ctx context.Context, at *node, state, id string) error {
	return at.admin.Do(ctx, "CLUSTER", "SETSLOT", m.slot, state, id).Err()
}

func (m *Migration) migrate(ctx context.Context, keys []string) error {
	args := []any{"MIGRATE", "127.0.0.1", strconv.Itoa(m.to.Port()), "", 0, callDeadline.Milliseconds()}
	if password := m.c.conf.password; password != "" {
		args = append(args, "AUTH", password)
	}
	args = append(args, "KEYS")
	for _, k := range keys {
		args = append(args, k)
	}
	status, err := m.from.admin.Do(ctx, args...).Text()
	if err == nil && status != "OK" && status != "NOKEY" {
		err = errors.New(status)
	}
	return err
}

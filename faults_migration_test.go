package ratelimit

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/redistest"
)

// The keys of a slot that everybody uses move from master to master, the first
// time to one that knows no script, in all the phases of a migration.
func TestSlotThatMovesUnderLoad(t *testing.T) {
	cluster := redistest.StartCluster(t)
	newcomer := cluster.AddEmptyMaster()
	slot := cluster.Slot("{hot}")
	home := cluster.NodeForSlot(slot)

	auto := func(a *redis.AutoPipeliner, err error) Client {
		require.NoError(t, err)
		t.Cleanup(func() { _ = a.Close() })
		return a
	}
	const limit = 100
	traffics := map[string]*traffic{}
	for _, kind := range []struct {
		name   string
		client Client
		opts   []Option
	}{
		{"ClusterClient", cluster.Client(t), nil},
		{"ClusterClient, unmerged", cluster.Client(t), []Option{WithoutMerging()}},
		{"blocking AutoPipeliner", auto(cluster.Client(t).AutoPipeline()), nil},
		{"deferred AutoPipeliner", auto(cluster.Client(t).AsyncAutoPipeline()), nil},
	} {
		traffics[kind.name] = startTraffic(slow(t, limit, kind.client, append(kind.opts, WithPrefix(kind.name))...), limit, 12, "hot")
	}

	pause := func() { time.Sleep(100 * time.Millisecond) }
	var moved int
	for _, target := range []*redistest.Server{newcomer, home, newcomer} {
		source := cluster.NodeForSlot(slot).Client(t)
		migration := cluster.BeginMigration(slot, target)
		pause() // new keys are asked for at the target
		some, err := source.ClusterGetKeysInSlot(ctx, slot, 30).Result()
		require.NoError(t, err)
		migration.MoveKeys(some...)
		moved += len(some)
		pause() // keys of both
		migration.MoveKeys()
		pause() // all at the target, and nobody was told
		migration.Finish()
		pause()
	}
	replies := map[string]int{}
	for _, tr := range traffics {
		tr.stop()
	}
	for _, node := range cluster.Masters() {
		for _, code := range []string{"MOVED", "ASK", "TRYAGAIN", "NOSCRIPT"} {
			replies[code] += errorReplies(t, node.Client(t), code)
		}
	}
	for name, tr := range traffics {
		t.Log(name)
		tr.requireExact(t)
	}
	t.Logf("3 migrations; %d keys were moved one by one, more all at once; error replies on the way: %v", moved, replies)
	require.Positive(t, replies["MOVED"])
	require.Positive(t, replies["ASK"])
	require.Positive(t, replies["NOSCRIPT"])
}

package faulttest

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// The keys of a slot that all callers use move from master to master, the first
// time to one that knows no script, in all the phases of a migration.
func TestWhileASlotMovesEachPermitIsTakenOnce(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	newcomer := cluster.AddEmptyMaster()
	slot := cluster.Slot("{hot}")
	home := cluster.NodeForSlot(slot)

	const limit = 100
	traffics := map[string]*traffic{}
	start := func(name string, client ratelimit.Client, opts ...ratelimit.Option) {
		traffics[name] = startTraffic(slow(t, limit, client, append(opts, ratelimit.WithPrefix(name))...), limit, 12, "hot")
	}
	start("ClusterClient", cluster.Client(t))
	start("ClusterClient, unmerged", cluster.Client(t), ratelimit.WithoutMerging())
	for _, p := range limitertest.Pipelinings {
		if p.Clustered {
			start(p.Name, p.Of(t, cluster.Client(t)))
		}
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
		pause() // all at the target, and no client knows
		migration.Finish()
		pause()
	}
	replies := map[string]int{}
	for _, tr := range traffics {
		tr.stop(t)
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

// TestSeveralLimitsWhileTheirSlotMoves: while their keys are on both sides of the move, a call
// for several limits is an error and takes nothing; calls for one of them go on.
func TestSeveralLimitsWhileTheirSlotMoves(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	client := cluster.Client(t)
	first := ratelimit.Must(ratelimit.NewFixedWindow(client, 10, aDay, ratelimit.WithName("first")))
	second := ratelimit.Must(ratelimit.NewFixedWindow(client, 10, aDay, ratelimit.WithName("second")))
	take := func() error {
		_, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(first, "{hot}", 1), ratelimit.ClaimOf(second, "{hot}", 1))
		return err
	}
	left := func(firstLeft, secondLeft int) {
		t.Helper()
		require.Equal(t, firstLeft, must(t)(first.Peek(ctx, "{hot}")).Remaining)
		require.Equal(t, secondLeft, must(t)(second.Peek(ctx, "{hot}")).Remaining)
	}
	require.NoError(t, take())
	migration := cluster.BeginMigration(cluster.Slot("{hot}"), cluster.AddEmptyMaster())
	require.NoError(t, take(), "all keys are still where they were")
	migration.MoveKeys("ratelimit:first:fixedwindow:{hot}")
	err := take()
	require.True(t, redis.HasErrorPrefix(err, "TRYAGAIN"), "%v", err)
	left(8, 8)
	must(t)(first.TryAcquire(ctx, "{hot}"))
	must(t)(second.TryAcquire(ctx, "{hot}"))
	migration.MoveKeys()
	require.NoError(t, take(), "all keys have moved")
	migration.Finish()
	require.NoError(t, take())
	left(5, 5)
}

// TestAKeyThatIsNotThereWhileItsSlotMoves: Redis does not know whether a missing key has moved, so a call with one of several
// keys is refused until the slot has moved, even if nobody has used the key before.
func TestAKeyThatIsNotThereWhileItsSlotMoves(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	client := cluster.Client(t)
	plain := ratelimit.Must(ratelimit.NewFixedWindow(client, 10, aDay, ratelimit.WithName("plain")))
	tickets := ratelimit.Must(ratelimit.NewFixedWindow(client, 10, aDay, ratelimit.WithName("tickets"), ratelimit.WithTicketLease(time.Minute)))
	fair := ratelimit.Must(ratelimit.NewFairTokenBucket(client, ratelimit.PerSecond(10), 10))
	must(t)(tickets.TryAcquire(ctx, "{hot}:old")) // there are no tickets beside it
	migration := cluster.BeginMigration(cluster.Slot("{hot}"), cluster.AddEmptyMaster())
	refused := func(err error) { require.True(t, redis.HasErrorPrefix(err, "TRYAGAIN"), "%v", err) }
	for _, key := range []string{"{hot}:old", "{hot}:new"} {
		_, err := tickets.TryAcquire(ctx, key)
		refused(err)
		_, err = ratelimit.TryAcquireOnce(ctx, "id", time.Minute, ratelimit.ClaimOf(plain, key, 1))
		refused(err)
		_, err = fair.TryAcquire(ctx, key)
		refused(err)
		_, err = plain.TryAcquire(ctx, key)
		require.NoError(t, err)
	}
	migration.MoveKeys()
	migration.Finish()
	require.Equal(t, 8, must(t)(tickets.TryAcquire(ctx, "{hot}:old")).Remaining)
	require.Equal(t, 9, must(t)(tickets.TryAcquire(ctx, "{hot}:new")).Remaining)
	r, err := ratelimit.TryAcquireOnce(ctx, "id", time.Minute, ratelimit.ClaimOf(plain, "{hot}:new", 1))
	require.NoError(t, err)
	require.False(t, r.Repeated)
	require.Equal(t, 8, r.Remaining)
}

package ratelimit

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/redistest"
)

// What a Redis user must be allowed to do, as the README says it. Redis checks
// the commands of a script against the user who runs it.
const (
	everyPrivilege   = "+evalsha +eval"
	resetPrivilege   = "+unlink" // which some scripts need too
	preloadPrivilege = "+script|load"
	timePrivilege    = "+time" // with the server's clock, which a fixed window without WithAlignment does not read
)

// privileges are what the scripts of each limiter do.
var privileges = []struct {
	limiter, commands string
	readsTime         bool
	build             func(c Client, o ...Option) limiterWithPreload
}{
	{"FixedWindow", "+get +set +incrby +pttl", false, func(c Client, o ...Option) limiterWithPreload {
		return Must(NewFixedWindow(c, 5, time.Second, widen[FixedWindowOption](o)...))
	}},
	{"FixedWindow aligned", "+get +set +pttl", true, func(c Client, o ...Option) limiterWithPreload {
		return Must(NewFixedWindow(c, 5, time.Second, append(widen[FixedWindowOption](o), WithAlignment(0))...))
	}},
	{"SlidingWindow Hash", "+hmget +hlen +hset +hdel +unlink +pexpire +pttl", true, func(c Client, o ...Option) limiterWithPreload {
		return Must(NewSlidingWindow(c, 5, time.Second, widen[SlidingWindowOption](o)...))
	}},
	{"SlidingWindow List", "+llen +lrange +lset +ltrim +rpush +unlink +pexpire +pttl", true, func(c Client, o ...Option) limiterWithPreload {
		return Must(NewSlidingWindow(c, 5, time.Second, append(widen[SlidingWindowOption](o), WithStorage(List))...))
	}},
	{"SlidingWindow ZSet", "+zcount +zrange +zcard +zadd +zrangebyscore +zremrangebyscore +pexpire +pttl", true, func(c Client, o ...Option) limiterWithPreload {
		return Must(NewSlidingWindow(c, 5, time.Second, append(widen[SlidingWindowOption](o), WithStorage(ZSet))...))
	}},
	{"SlidingLog", "+llen +lrange +lset +ltrim +rpush +unlink +pexpire +pttl", true, func(c Client, o ...Option) limiterWithPreload {
		return Must(NewSlidingLog(c, []Rule{{5, time.Second}}, widen[SlidingLogOption](o)...))
	}},
	{"TokenBucket", "+get +set", true, func(c Client, o ...Option) limiterWithPreload {
		return Must(NewTokenBucket(c, PerSecond(5), 5, widen[TokenBucketOption](o)...))
	}},
	{"TokenBucket stepped", "+get +set +pttl", true, func(c Client, o ...Option) limiterWithPreload {
		return Must(NewTokenBucket(c, PerSecond(5), 5, append(widen[TokenBucketOption](o), WithRefillEvery(time.Second))...))
	}},
	{"LeakyBucket", "+get +set", true, func(c Client, o ...Option) limiterWithPreload {
		return Must(NewLeakyBucket(c, PerSecond(5), 5, widen[LeakyBucketOption](o)...))
	}},
}

type limiterWithPreload interface {
	Limiter
	Preload(ctx context.Context) error
}

// leastPrivilege is the rule for all limiters and Preload, but for the name, the
// keys, and what a cluster or ring needs in addition.
func leastPrivilege() []string {
	commands := strings.Fields(everyPrivilege + " " + resetPrivilege + " " + preloadPrivilege + " " + timePrivilege)
	for _, p := range privileges {
		for _, c := range strings.Fields(p.commands) {
			if !slices.Contains(commands, c) {
				commands = append(commands, c)
			}
		}
	}
	return append([]string{"on", ">secret", "resetchannels", "-@all"}, commands...)
}

const (
	ringPrivilege    = "+ping"                           // its heartbeat
	clusterPrivilege = "+cluster|slots +asking +command" // where slots are, are moving to, and what a command's key is
)

func asLimiter(o *redis.Options) { o.Username, o.Password = "limiter", "secret" }

// onLeastPrivilege is a stage whose limiters may do no more than they must.
func onLeastPrivilege(t testing.TB) *stage {
	// "other" is a prefix that the suite uses.
	server := redistest.Start(t, redistest.ACL("limiter", append(leastPrivilege(), "~ratelimit:*", "~other:*")...))
	return onClock(server.Client(t, asLimiter), server.Client(t))
}

// exercise makes calls of limiters, by their index in privileges or of all, that
// lead through all that their scripts can do, but for Reset. It returns the first
// error.
func exercise(client Client, admin redis.UniversalClient, key string, which ...int) error {
	h := &hand{at: start}
	var limiters []limiterWithPreload
	for i, p := range privileges {
		if len(which) == 0 || slices.Contains(which, i) {
			limiters = append(limiters, p.build(client), p.build(client, WithoutMerging()))
			if p.readsTime {
				limiters = append(limiters, p.build(client, WithClock(h.now)))
			}
		}
	}
	flush := func(ctx context.Context, c *redis.Client) error { return c.ScriptFlush(ctx).Err() }
	var err error
	if cluster, ok := admin.(*redis.ClusterClient); ok {
		err = cluster.ForEachMaster(ctx, flush)
	} else {
		err = admin.ScriptFlush(ctx).Err()
	}
	if err != nil {
		return err
	}
	for i, l := range limiters {
		key := fmt.Sprint(key, i)
		h.set(start)
		for step := range 40 {
			for range 2 {
				if _, err := l.TryAcquire(ctx, key); err != nil {
					return err
				}
			}
			if _, err := l.Peek(ctx, key); err != nil {
				return err
			}
			h.set(h.now().Add(70 * time.Millisecond))
			switch step {
			case 30: // the clock steps back
				h.set(h.now().Add(-500 * time.Millisecond))
			case 38: // all has left the window, and Redis's own clock has not noticed
				h.set(h.now().Add(3 * time.Second))
			}
		}
		if err := l.Preload(ctx); err != nil {
			return err
		}
	}
	return nil
}

// acl changes what the user of the tests may do.
func acl(t testing.TB, admin *redis.Client, rules ...string) {
	t.Helper()
	require.NoError(t, admin.ACLSetUser(ctx, "limiter", rules...).Err())
}

// refusals are the commands that the server refused to the user, but for what
// go-redis tells of itself, to whom it may concern.
func refusals(t testing.TB, admin *redis.Client) (objects []string) {
	t.Helper()
	entries, err := admin.ACLLog(ctx, 100).Result()
	require.NoError(t, err)
	for _, e := range entries {
		if !strings.HasPrefix(e.Object, "client|") {
			objects = append(objects, e.Object)
		}
	}
	require.NoError(t, admin.ACLLogReset(ctx).Err())
	return objects
}

func TestEveryPrivilegeIsNeededAndNoOther(t *testing.T) {
	rule := append(leastPrivilege(), "~ratelimit:*")
	server := redistest.Start(t, redistest.ACL("limiter", rule...))
	admin, client := server.Client(t), server.Client(t, asLimiter)
	// needed takes each of the commands away, and must see the calls fail.
	needed := func(commands []string, which ...int) {
		t.Helper()
		require.NoError(t, exercise(client, admin, "all", which...))
		require.Empty(t, refusals(t, admin), "refused, though no call failed")
		for _, command := range commands {
			acl(t, admin, "-"+command[1:])
			err := exercise(client, admin, "all but "+command, which...)
			require.ErrorContains(t, err, "ratelimit: ", "%s is not needed", command)
			acl(t, admin, command)
		}
		refusals(t, admin)
	}
	var commands []string
	for _, word := range rule {
		if strings.HasPrefix(word, "+") {
			commands = append(commands, word)
		}
	}
	needed(commands)
	t.Logf("%d commands, each of them needed: user limiter %s", len(commands), strings.Join(rule, " "))

	for i, p := range privileges {
		own := everyPrivilege + " " + preloadPrivilege + " " + p.commands // and no other
		if p.readsTime {
			own += " " + timePrivilege
		}
		acl(t, admin, "-@all")
		acl(t, admin, strings.Fields(own)...)
		needed(strings.Fields(own), i)
		t.Logf("%s: %s", p.limiter, own)
	}

	l := Must(NewTokenBucket(client, PerSecond(1), 1))
	acl(t, admin, "-"+resetPrivilege[1:])
	require.Error(t, l.Reset(ctx, "k"))
	acl(t, admin, resetPrivilege)
	require.NoError(t, l.Reset(ctx, "k"))

	_, err := Must(NewTokenBucket(client, PerSecond(1), 1, WithPrefix("elsewhere"))).TryAcquire(ctx, "k")
	require.True(t, redis.HasErrorPrefix(err, "NOPERM"), "%v", err)
}

// TestWhatMayNotBeReadIsRefusedBeforeAnyWrite: who is told an error was not
// charged.
func TestWhatMayNotBeReadIsRefusedBeforeAnyWrite(t *testing.T) {
	server := redistest.Start(t, redistest.ACL("limiter", append(leastPrivilege(), "~ratelimit:*")...))
	admin, client := server.Client(t), server.Client(t, asLimiter)
	acl(t, admin, "-pttl")
	refused := 0
	for _, v := range variants() {
		for _, merging := range [][]Option{nil, {WithoutMerging()}} {
			require.NoError(t, admin.FlushDB(ctx).Err())
			h := &hand{at: start}
			l, err := v.build(client, append(merging, WithClock(h.now))...)
			require.NoError(t, err)
			for range 4 {
				before := admin.Dump(ctx, v.key).Val()
				_, err := l.TryAcquire(ctx, "k")
				if err != nil {
					refused++
					require.Regexp(t, "can.t run this command|permission", err.Error(), v.name)
					require.Equal(t, before, admin.Dump(ctx, v.key).Val(), v.name)
				}
			}
		}
	}
	require.Positive(t, refused)
	t.Logf("%d calls refused", refused)
}

func TestPrivilegesOfARing(t *testing.T) {
	server := redistest.Start(t, redistest.ACL("limiter", append(leastPrivilege(), "~ratelimit:*", ringPrivilege)...))
	admin := server.Client(t)
	ring := redis.NewRing(&redis.RingOptions{
		Addrs:    map[string]string{"one": server.Addr()},
		Username: "limiter", Password: "secret", HeartbeatFrequency: 10 * time.Millisecond,
	})
	t.Cleanup(func() { _ = ring.Close() })
	require.NoError(t, exercise(ring, admin, "k"))
	require.NoError(t, Must(NewTokenBucket(ring, PerSecond(1), 1)).Reset(ctx, "k"))
	time.Sleep(100 * time.Millisecond) // some heartbeats
	require.NoError(t, exercise(ring, admin, "k"))
	require.Empty(t, refusals(t, admin))

	acl(t, admin, "-"+ringPrivilege[1:])
	require.Eventually(t, func() bool { return exercise(ring, admin, "k") != nil }, 10*time.Second, 10*time.Millisecond,
		"a shard that does not answer PING is taken for dead")
}

func TestPrivilegesInACluster(t *testing.T) {
	rules := append(append(leastPrivilege(), "~ratelimit:*"), strings.Fields(clusterPrivilege)...)
	cluster := redistest.StartCluster(t, redistest.ACL("limiter", rules...))
	admin := cluster.Client(t)
	fresh := func() *redis.ClusterClient {
		return cluster.Client(t, func(o *redis.ClusterOptions) { o.Username, o.Password = "limiter", "secret" })
	}
	nodes := append(cluster.Masters(), cluster.Replicas()...) // any of them may be asked where slots are
	onAll := func(rules ...string) {
		for _, node := range nodes {
			acl(t, node.Client(t), rules...)
		}
	}
	refused := func() (all []string) {
		for _, node := range nodes {
			all = append(all, refusals(t, node.Client(t))...)
		}
		return all
	}
	require.NoError(t, exercise(fresh(), admin, "k"))
	require.NoError(t, Must(NewTokenBucket(fresh(), PerSecond(1), 1)).Reset(ctx, "k"))
	require.Empty(t, refused())

	slot := cluster.Slot("k")
	home := cluster.NodeForSlot(slot)
	for _, node := range cluster.Masters() {
		if node.Addr() != home.Addr() {
			cluster.BeginMigration(slot, node)
			break
		}
	}
	moving := func(c Client, key string) error {
		_, err := Must(NewTokenBucket(c, PerSecond(1), 1)).TryAcquire(ctx, "{k}"+key)
		return err
	}
	require.NoError(t, moving(fresh(), "a"), "a key that is asked for where the slot goes")
	onAll("-asking")
	require.Error(t, moving(fresh(), "b"))
	onAll("+asking", "-command")
	refused()
	require.NoError(t, moving(fresh(), "c"))
	require.Contains(t, refused(), "command", "go-redis does without, asks again with every call, and complains in its log")
	onAll("+command", "-cluster|slots")
	require.Error(t, moving(fresh(), "d"))
}

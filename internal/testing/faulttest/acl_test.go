package faulttest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// exercisePause pauses a key and ends the pause.
func exercisePause(p *ratelimit.Pause, key string) error {
	if _, err := p.Pause(ctx, key, 0); err != nil {
		return err
	}
	for range 2 {
		if _, err := p.TryAcquire(ctx, key); err != nil {
			return err
		}
	}
	return p.Resume(ctx, key)
}

// exercise makes calls of limiters, by their index in privileges or of all, that
// lead through all that their scripts can do, but for Reset. It returns the first
// error.
func exercise(client ratelimit.Client, admin redis.UniversalClient, key string, which ...int) error {
	h := limitertest.NewClock()
	var limiters []ratelimit.Limiter
	for i, p := range limitertest.Privileges {
		if len(which) == 0 || slices.Contains(which, i) {
			limiters = append(limiters, p.Build(client), p.Build(client, ratelimit.WithoutMerging()))
			if p.ReadsTime {
				limiters = append(limiters, p.Build(client, ratelimit.WithClock(h.Now), ratelimit.WithMaxSkew(time.Minute))) // keys outlive a busy machine
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
	if len(which) == 0 {
		if err := exerciseInFlight(client, key); err != nil {
			return err
		}
	}
	for i, l := range limiters {
		key := fmt.Sprint(key, i)
		if _, ok := l.(*ratelimit.FairTokenBucket); ok {
			key = "{" + key + "}:tenant"
		}
		h.Set(limitertest.Start)
		for step := range 50 {
			for _, n := range []int{1, 1, 2} {
				if _, err := l.TryAcquireN(ctx, key, n); err != nil {
					return err
				}
			}
			if _, err := l.Peek(ctx, key); err != nil {
				return err
			}
			if p, ok := l.(*ratelimit.Pause); ok {
				if err := exercisePause(p, key); err != nil {
					return err
				}
			}
			h.Set(h.Now().Add(210 * time.Millisecond))
			switch step {
			case 40: // the clock steps back
				h.Set(h.Now().Add(-500 * time.Millisecond))
			case 48: // all has left the window, and Redis's own clock has not noticed
				h.Set(h.Now().Add(3 * time.Second))
			}
		}
		if err := ratelimit.Preload(ctx, ratelimit.ClaimOf(l, "{k}:tenant", 1)); err != nil {
			return err
		}
		// A permit of a server's clock that has stepped back since.
		permit := redis.Z{Score: float64(time.Now().Add(time.Hour).UnixMicro()), Member: "1000000500/1000000"}
		if zset := "ratelimit:default:slidingwindow-zset{" + key + "}"; admin.Exists(ctx, zset).Val() > 0 {
			if err := admin.ZAdd(ctx, zset, permit).Err(); err != nil {
				return err
			}
			if _, err := l.TryAcquire(ctx, key); err != nil {
				return err
			}
		}
	}
	return nil
}

// exerciseInFlight leads through all that the scripts of an InFlight can do, by the server's
// clock and by a caller's.
func exerciseInFlight(client ratelimit.Client, key string) error {
	h := limitertest.NewClock()
	for i, opts := range [][]ratelimit.Option{nil, {ratelimit.WithClock(h.Now), ratelimit.WithMaxSkew(0)}} {
		f := ratelimit.Must(ratelimit.NewInFlight(client, 2, time.Minute, opts...))
		key := fmt.Sprint(key, " in flight ", i)
		hold, r, err := f.TryAcquireN(ctx, key, 2)
		if err != nil {
			return err
		}
		if !r.Allowed {
			return errors.New("the key was used before")
		}
		if _, _, err := f.TryAcquire(ctx, key); err != nil { // denied
			return err
		}
		if _, err := f.Peek(ctx, key); err != nil {
			return err
		}
		if err := hold.Extend(ctx); err != nil {
			return err
		}
		if i == 1 { // the leases have ended, and their places are needed
			h.Set(limitertest.Start.Add(time.Minute))
			if hold, _, err = f.TryAcquire(ctx, key); err != nil {
				return err
			}
		}
		if err := hold.Release(ctx); err != nil {
			return err
		}
		if err := ratelimit.Preload(ctx, ratelimit.ClaimHold(f, "k", 1)); err != nil {
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
// go-redis reports of itself.
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
	t.Parallel()
	rule := append(limitertest.LeastPrivilege(), "~ratelimit:*")
	server := redistest.Start(t, redistest.ACL("limiter", rule...))
	admin, client := server.Client(t), server.Client(t, limitertest.AsLimiter)
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

	own := limitertest.EveryPrivilege + " " + limitertest.PreloadPrivilege + " " + limitertest.TimePrivilege + " " + limitertest.InFlightPrivilege
	acl(t, admin, append([]string{"-@all"}, strings.Fields(own)...)...)
	require.NoError(t, exerciseInFlight(client, "all"))
	for _, command := range strings.Fields(own) {
		acl(t, admin, "-"+command[1:])
		require.ErrorContains(t, exerciseInFlight(client, "all but "+command), "ratelimit: ", "%s is not needed", command)
		acl(t, admin, command)
		require.NoError(t, admin.FlushDB(ctx).Err())
		require.NoError(t, admin.ScriptFlush(ctx).Err())
	}
	refusals(t, admin)

	own = limitertest.EveryPrivilege + " " + limitertest.TimePrivilege + " +get +set " + limitertest.TicketsPrivilege
	acl(t, admin, append([]string{"-@all"}, strings.Fields(own)...)...)
	require.NoError(t, exerciseTickets(client, "all"))
	for _, command := range strings.Fields(limitertest.TicketsPrivilege) {
		acl(t, admin, "-"+command[1:])
		require.ErrorContains(t, exerciseTickets(client, "all but "+command), "ratelimit: ", "%s is not needed", command)
		acl(t, admin, command)
		require.NoError(t, admin.FlushDB(ctx).Err())
	}
	refusals(t, admin)

	own = limitertest.EveryPrivilege + " " + limitertest.TimePrivilege + " +get +set +llen +lrange +lset +ltrim +rpush +unlink +pexpire +pttl"
	acl(t, admin, append([]string{"-@all"}, strings.Fields(own)...)...)
	require.NoError(t, exerciseOnce(client, "all"))
	for _, command := range []string{"+get", "+set"} {
		acl(t, admin, "-"+command[1:])
		require.ErrorContains(t, exerciseOnce(client, "all but "+command), "ratelimit: ", "%s is not needed", command)
		acl(t, admin, command)
	}
	refusals(t, admin)

	for i, p := range limitertest.Privileges {
		own := limitertest.EveryPrivilege + " " + limitertest.PreloadPrivilege + " " + p.Commands // and no other
		if p.ReadsTime {
			own += " " + limitertest.TimePrivilege
		}
		acl(t, admin, "-@all")
		acl(t, admin, strings.Fields(own+" "+limitertest.RepairPrivilege)...)
		needed(strings.Fields(own), i)
		t.Logf("%s: %s", p.Limiter, own)
	}

	l := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(1), 1))
	acl(t, admin, "-"+limitertest.ResetPrivilege[1:])
	require.Error(t, l.Reset(ctx, "k"))
	acl(t, admin, limitertest.ResetPrivilege)
	require.NoError(t, l.Reset(ctx, "k"))

	_, err := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(1), 1, ratelimit.WithPrefix("elsewhere"))).TryAcquire(ctx, "k")
	require.True(t, redis.HasErrorPrefix(err, "NOPERM"), "%v", err)
}

// TestKeyPatternsOfOneLimiter: its name or its algorithm ends the pattern, and no colon behind
// the algorithm, where most keys have a brace.
func TestKeyPatternsOfOneLimiter(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.ACL("limiter", limitertest.LeastPrivilege()...))
	admin, client := server.Client(t), server.Client(t, limitertest.AsLimiter)
	login := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(1), 1, ratelimit.WithName("login")))
	other := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(1), 1, ratelimit.WithName("other")))
	window := ratelimit.Must(ratelimit.NewFixedWindow(client, 1, time.Second, ratelimit.WithName("login")))
	keys := []string{"user:42", "{user:42}", "{user:42}:x", "}x"}
	for pattern, allowed := range map[string][]string{
		"~ratelimit:login:*":             keys,
		"~ratelimit:login:tokenbucket*":  keys,
		"~ratelimit:login:tokenbucket:*": {"{user:42}", "{user:42}:x"},
		"~ratelimit:login:tokenbucket{*": {"user:42"},
	} {
		acl(t, admin, "resetkeys", pattern)
		for _, key := range keys {
			_, err := login.Peek(ctx, key)
			require.Equal(t, slices.Contains(allowed, key), err == nil, "%s, %s: %v", pattern, key, err)
			_, err = other.Peek(ctx, key)
			require.True(t, redis.HasErrorPrefix(err, "NOPERM"), "%s, %s: %v", pattern, key, err)
			_, err = window.Peek(ctx, key)
			require.Equal(t, pattern != "~ratelimit:login:*", redis.HasErrorPrefix(err, "NOPERM"), "%s, %s: %v", pattern, key, err)
		}
	}
}

// TestPrivilegesOfReservations: a bucket's own are enough to reserve, and to cancel where the key has a
// state to go back to. Otherwise the key is deleted, which takes one more: without it nothing is given
// back.
func TestPrivilegesOfReservations(t *testing.T) {
	t.Parallel()
	own := strings.Fields("on >secret resetchannels -@all ~ratelimit:* +get +set " + limitertest.EveryPrivilege + " " + limitertest.TimePrivilege)
	server := redistest.Start(t, redistest.ACL("limiter", own...))
	admin, client := server.Client(t), server.Client(t, limitertest.AsLimiter)
	l := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerHour(1), 1))
	for range 2 {
		_, err := l.Reserve(ctx, "k", 1, 2*time.Hour)
		require.NoError(t, err)
	}
	state := admin.Dump(ctx, "ratelimit:default:tokenbucket{k}").Val()
	last, err := l.Reserve(ctx, "k", 1, 2*time.Hour)
	require.NoError(t, err)
	require.NoError(t, last.Cancel(ctx), "the key has a state to go back to")
	require.Equal(t, state, admin.Dump(ctx, "ratelimit:default:tokenbucket{k}").Val())
	ended, end := context.WithCancel(ctx)
	end()
	only := func() { // of the key, due at once: only a Wait that fails gives it back
		require.NoError(t, admin.FlushAll(ctx).Err())
		r, err := l.Reserve(ctx, "k", 1, 0)
		require.NoError(t, err)
		require.ErrorIs(t, r.Wait(ended), context.Canceled)
	}
	only()
	require.Equal(t, int64(1), admin.Exists(ctx, "ratelimit:default:tokenbucket{k}").Val())
	acl(t, admin, limitertest.CancelPrivilege)
	only()
	require.Zero(t, admin.Exists(ctx, "ratelimit:default:tokenbucket{k}").Val())
}

// TestAForbiddenReadFailsBeforeAnyWrite: a caller that gets an error was not
// charged.
func TestAForbiddenReadFailsBeforeAnyWrite(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.ACL("limiter", append(limitertest.LeastPrivilege(), "~ratelimit:*")...))
	admin, client := server.Client(t), server.Client(t, limitertest.AsLimiter)
	acl(t, admin, "-pttl")
	refused := 0
	for _, v := range limitertest.Variants() {
		for _, merging := range [][]ratelimit.Option{nil, {ratelimit.WithoutMerging()}} {
			require.NoError(t, admin.FlushDB(ctx).Err())
			h := limitertest.NewClock()
			l, err := v.Build(client, append(merging, ratelimit.WithClock(h.Now))...)
			require.NoError(t, err)
			for range 4 {
				before := admin.Dump(ctx, v.Key).Val()
				_, err := l.TryAcquire(ctx, v.Of("k"))
				if err != nil {
					refused++
					require.Regexp(t, "can.t run this command|permission", err.Error(), v.Name)
					require.Equal(t, before, admin.Dump(ctx, v.Key).Val(), v.Name)
				}
			}
		}
	}
	require.Positive(t, refused)
	t.Logf("%d calls refused", refused)
}

func TestPrivilegesOfARing(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.ACL("limiter", append(limitertest.LeastPrivilege(), "~ratelimit:*", limitertest.RingPrivilege)...))
	admin := server.Client(t)
	ring := redis.NewRing(&redis.RingOptions{
		Addrs:    map[string]string{"one": server.Addr()},
		Username: "limiter", Password: "secret", HeartbeatFrequency: 10 * time.Millisecond,
	})
	t.Cleanup(func() { _ = ring.Close() })
	require.NoError(t, exercise(ring, admin, "k"))
	require.NoError(t, ratelimit.Must(ratelimit.NewTokenBucket(ring, ratelimit.PerSecond(1), 1)).Reset(ctx, "k"))
	time.Sleep(100 * time.Millisecond) // some heartbeats
	require.NoError(t, exercise(ring, admin, "k"))
	require.Empty(t, refusals(t, admin))

	acl(t, admin, "-"+limitertest.RingPrivilege[1:])
	require.Eventually(t, func() bool { return exercise(ring, admin, "k") != nil }, 10*time.Second, 10*time.Millisecond,
		"a shard that does not answer PING is taken for dead")
}

func TestPrivilegesInACluster(t *testing.T) {
	t.Parallel()
	rules := append(append(limitertest.LeastPrivilege(), "~ratelimit:*"), strings.Fields(limitertest.ClusterPrivilege)...)
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
	require.NoError(t, ratelimit.Must(ratelimit.NewTokenBucket(fresh(), ratelimit.PerSecond(1), 1)).Reset(ctx, "k"))
	require.NoError(t, exerciseTickets(fresh(), "tickets"))
	require.NoError(t, exerciseOnce(fresh(), "once"))
	require.Empty(t, refused())

	slot := cluster.Slot("k")
	home := cluster.NodeForSlot(slot)
	for _, node := range cluster.Masters() {
		if node.Addr() != home.Addr() {
			cluster.BeginMigration(slot, node)
			break
		}
	}
	moving := func(c ratelimit.Client, key string) error {
		_, err := ratelimit.Must(ratelimit.NewTokenBucket(c, ratelimit.PerSecond(1), 1)).TryAcquire(ctx, "{k}"+key)
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

// exerciseOnce takes from a log, which needs neither GET nor SET, twice under one id.
func exerciseOnce(client ratelimit.Client, key string) error {
	l := ratelimit.Must(ratelimit.NewSlidingLog(client, []ratelimit.Rule{{Limit: 5, Window: time.Minute}}))
	for range 2 {
		if _, err := ratelimit.TryAcquireOnce(ctx, "id", time.Minute, ratelimit.ClaimOf(l, key, 1)); err != nil {
			return err
		}
	}
	return nil
}

// exerciseTickets does all that tickets with a lease do, on a window that others have used too.
func exerciseTickets(client ratelimit.Client, key string) error {
	var errs []error
	failed := func(err error) { errs = append(errs, err) }
	for _, lease := range []time.Duration{time.Hour, time.Millisecond} {
		l := ratelimit.Must(ratelimit.NewCalendarWindow(client, 10, ratelimit.Monthly(1, time.UTC), ratelimit.WithTicketLease(lease)))
		_, err := l.TryAcquire(ctx, key)
		failed(err)
		ticket, _, err := l.Estimate(ctx, key, 1)
		if failed(err); err != nil {
			break
		}
		if lease == time.Millisecond {
			time.Sleep(2 * lease)
			_, err = l.Peek(ctx, key)
			failed(err)
			break
		}
		other, _, err := l.Estimate(ctx, key, 1)
		if failed(err); err != nil {
			break
		}
		_, err = l.TryAcquireN(ctx, key, 10) // denied: it asks when tickets end
		failed(err)
		failed(ticket.Extend(ctx))
		failed(ticket.Settle(ctx, 0))
		failed(other.Settle(ctx, 0))
	}
	return errors.Join(errs...)
}

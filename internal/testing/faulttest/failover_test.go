package faulttest

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// A failover is a system whose master is replaced under load.
//
// Replication lags because the link to the replica is cut at some instant: from
// then on, what the master allows is lost to the one that takes its place. The
// replica says how many permits of a key it knows to be taken: S. The old master
// allows up to the limit, in all it ever does; the new one, starting from S, up to
// limit - S. So callers receive at most
//
//	limit + (min(limit, U) - S)
//
// where U is what the old master can have allowed: what callers have received,
// and what failed calls may have taken, before it was gone for good.
type failover struct {
	accounts []*account
	load     *load
	known    []int // S of each account
}

// cutLink ends the replication until one of the servers is configured otherwise: the
// replica tries again, with a password that the master does not accept.
func cutLink(t testing.TB, master, replica *redis.Client) {
	t.Helper()
	require.NoError(t, replica.ConfigSet(ctx, "masterauth", "wrong").Err())
	require.NoError(t, master.Do(ctx, "CLIENT", "KILL", "TYPE", "replica").Err())
	eventually(t, "the link is down", func() bool {
		return strings.Contains(replica.Info(ctx, "replication").Val(), "master_link_status:down")
	})
}

// lag starts the load, cuts the link when a third of all permits is allowed,
// notes what the replica knows, and returns when another third is allowed.
func (f *failover) lag(t testing.TB, master, replica *redis.Client, ask ratelimit.Client) {
	t.Helper()
	all := 0
	for _, a := range f.accounts {
		all += a.limit
	}
	f.load = startLoad(12, func() []*account { return f.accounts })
	eventually(t, "permits taken", func() bool { return sum(f.accounts, (*account).received) >= all/3 })
	cutLink(t, master, replica)
	for _, a := range f.accounts {
		l, err := a.build(ask, a.limit, a.window)
		require.NoError(t, err)
		f.known = append(f.known, a.used(t, l))
	}
	eventually(t, "permits taken", func() bool { return sum(f.accounts, (*account).received) >= all*2/3 })
}

// recovered waits until all callers are answered, without having been touched,
// and all quotas are used up; then it judges. gone are the accounts' most when
// the old master was gone for good, down when its fault began, nanoseconds.
func (f *failover) recovered(t testing.TB, gone []int, down int64) {
	t.Helper()
	for _, a := range f.accounts {
		a.denied()
	}
	for _, a := range f.accounts {
		eventually(t, "a denial of "+a.name, a.denied)
	}
	f.load.stop(t)
	first, last := int64(1<<62), int64(0) // of the new master's allowed calls, of the failures
	over, lost, allowed := 0, 0, 0
	for i, a := range f.accounts {
		gap := min(a.limit, gone[i]) - f.known[i]
		require.GreaterOrEqual(t, gap, 0, "%s: the replica knows more than was ever asked for", a.name)
		require.LessOrEqual(t, a.received(), a.limit+gap, "%s: more than the lost writes explain, of %d the replica knew %d", a.name, gone[i], f.known[i])
		over += max(a.received()-a.limit, 0)
		lost += gap
		allowed += a.received()
		for _, g := range a.takes {
			if g.Call > down {
				first = min(first, g.Return)
			}
		}
	}
	for _, failed := range f.load.failures() {
		require.GreaterOrEqual(t, failed.Return, down, "a call failed before the failover: %v", failed.err)
		last = max(last, failed.Return)
	}
	require.Less(t, first, int64(1<<62), "the new master allowed nothing")
	since := func(at int64) time.Duration { return time.Duration(max(at-down, 0)).Round(time.Millisecond) }
	t.Logf("%v", &f.load.tally)
	t.Logf("%d keys: %d permits allowed, %d beyond a single quota, %d lost at most; first allowed call %v after the fault, last error %v after",
		len(f.accounts), allowed, over, lost, since(first), since(last))
}

// gone is what can have been allowed so far, of each account.
func (f *failover) gone() []int {
	var gone []int
	for _, a := range f.accounts {
		gone = append(gone, a.most())
	}
	return gone
}

const failoverLimit = 100

// TestASentinelFailoverForgetsOnlyWhatWasNotReplicated kills a master under load, or freezes it until another
// has taken its place: when it wakes up, it answers calls that were sent to it
// long ago, and has yet to learn that it is the master no more.
func TestASentinelFailoverForgetsOnlyWhatWasNotReplicated(t *testing.T) {
	for _, freeze := range []bool{false, true} {
		name := map[bool]string{false: "killed", true: "frozen and back"}[freeze]
		t.Run(name, func(t *testing.T) {
			system := redistest.StartSentinel(t)
			master, replica := system.Master(), system.Replica()
			before := runtime.NumGoroutine()
			open := func() *redis.Client {
				return redis.NewFailoverClient(&redis.FailoverOptions{
					MasterName: redistest.MasterName, SentinelAddrs: system.Addrs(),
					ReadTimeout: 2 * time.Second, WriteTimeout: 2 * time.Second,
				})
			}
			merged, unmerged := open(), open()
			f := failover{accounts: openAccounts(t, quotas(), "k", failoverLimit, aDay, []ratelimit.Client{merged, unmerged},
				nil, []ratelimit.Option{ratelimit.WithoutMerging()})}
			ask := replica.Client(t)
			f.lag(t, master.Client(t), ask, ask)

			down := clock()
			var gone []int
			if freeze {
				master.Pause()
			} else {
				master.Kill()
				gone = f.gone()
			}
			system.AwaitFailover(master)
			if freeze {
				master.Resume()
				gone = make([]int, len(f.accounts))
				for i, a := range f.accounts {
					gone[i] = a.limit // it goes on for a while; its limit is its limit
				}
			}
			f.recovered(t, gone, down)
			_ = merged.Close()
			_ = unmerged.Close()
			goroutinesEnded(t, before+4) // the pools of the test's own clients
		})
	}
}

// TestAClusterFailoverForgetsOnlyWhatWasNotReplicated kills one of three masters under load of keys that are all
// its own.
func TestAClusterFailoverForgetsOnlyWhatWasNotReplicated(t *testing.T) {
	cluster := redistest.StartCluster(t)
	const key = "{hot}"
	master := cluster.NodeFor(key)
	replica := replicaOf(t, cluster, master)
	before := runtime.NumGoroutine()
	open := func() *redis.ClusterClient {
		return redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: cluster.Addrs(), ClusterStateReloadInterval: time.Second,
			ReadTimeout: 2 * time.Second, WriteTimeout: 2 * time.Second,
		})
	}
	merged, unmerged := open(), open()
	f := failover{accounts: openAccounts(t, quotas(), key, failoverLimit, aDay, []ratelimit.Client{merged, unmerged},
		nil, []ratelimit.Option{ratelimit.WithoutMerging()})}
	look := replica.Client(t)
	conn := look.Conn() // in the mode in which a replica answers for its master's keys
	require.NoError(t, conn.ReadOnly(ctx).Err())
	f.lag(t, master.Client(t), look, conn)
	require.NoError(t, conn.Close())

	down := clock()
	master.Kill()
	gone := f.gone()
	cluster.AwaitOK()
	f.recovered(t, gone, down)
	_ = merged.Close()
	_ = unmerged.Close()
	goroutinesEnded(t, before+4)
}

func replicaOf(t testing.TB, cluster *redistest.Cluster, master *redistest.Server) *redistest.Server {
	t.Helper()
	info := master.Client(t).Info(ctx, "replication").Val()
	for _, r := range cluster.Replicas() {
		if strings.Contains(info, "port="+r.Addr()[strings.LastIndex(r.Addr(), ":")+1:]+",") {
			return r
		}
	}
	t.Fatalf("no replica in %s", info)
	return nil
}

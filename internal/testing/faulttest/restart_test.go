package faulttest

import (
	"io"
	"runtime"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// recovery is how long after a server's return a call may still fail: a pool of
// go-redis that could not connect for a while tries again once a second. The
// rest is for a busy machine; the tests log what it really took.
const recovery = 20 * time.Second

// A quota of a day is one of which nothing comes back during a test.
const aDay = 24 * time.Hour

// openAccounts opens one account of each quota, over each of the clients. Its key
// is its own, for some quotas share an algorithm.
func openAccounts(t testing.TB, of []quota, key string, limit int, window time.Duration, clients []ratelimit.Client, opts ...[]ratelimit.Option) []*account {
	t.Helper()
	var accounts []*account
	for _, q := range of {
		a := &account{quota: q, key: key + " " + q.name, limit: limit, window: window}
		for i, c := range clients {
			var o []ratelimit.Option
			if len(opts) > 0 {
				o = opts[i]
			}
			l, err := q.build(c, limit, window, o...)
			require.NoError(t, err)
			a.by = append(a.by, l)
		}
		accounts = append(accounts, a)
	}
	return accounts
}

// kindsOfClient are clients of limiters that merge, that do not, and with go-redis's own
// pipelining. closeAll closes them, which ends all their goroutines.
func kindsOfClient(t testing.TB, connect func() *redis.Client) (clients []ratelimit.Client, opts [][]ratelimit.Option, closeAll func()) {
	t.Helper()
	merged, unmerged := connect(), connect()
	closers := []io.Closer{merged, unmerged}
	clients, opts = []ratelimit.Client{merged, unmerged}, [][]ratelimit.Option{nil, {ratelimit.WithoutMerging()}}
	for _, p := range limitertest.Pipelinings {
		plain := connect()
		pipelining := p.Of(t, plain)
		clients, opts = append(clients, pipelining), append(opts, nil)
		closers = append(closers, pipelining.(io.Closer), plain)
	}
	return clients, opts, func() {
		for _, c := range closers {
			_ = c.Close()
		}
	}
}

func sum(accounts []*account, of func(*account) int) int {
	total := 0
	for _, a := range accounts {
		total += of(a)
	}
	return total
}

// TestAKilledServerForgetsOnlyItsLastWrites kills a server under load, again and again. Limits are per
// day, so that permits come back only if the server forgets that they were taken.
//
// With U permits of a key taken at a kill, and S of them known after the restart,
// U - S were lost, and just as many may be allowed again. U is at most the limit,
// and at most what was taken before (S of the last restart) and since (by allowed calls,
// and calls that failed and may have been executed). All permits that callers
// ever received are therefore at most
//
//	limit + the sum of min(limit, U) - S over the kills.
//
// Without persistence S is 0: one fresh quota for each key and kill.
func TestAKilledServerForgetsOnlyItsLastWrites(t *testing.T) {
	const kills, limit, workers = 3, 60, 12
	t.Run("without persistence", func(t *testing.T) { killAgainAndAgain(t, kills, limit, workers, false) })
	t.Run("AOF everysec", func(t *testing.T) {
		killAgainAndAgain(t, kills, limit, workers, true, "--appendonly", "yes", "--appendfsync", "everysec")
	})
}

func killAgainAndAgain(t *testing.T, kills, limit, workers int, persistent bool, args ...string) {
	server := redistest.Start(t, redistest.Args(args...))
	before := runtime.NumGoroutine()
	clients, opts, closeAll := kindsOfClient(t, func() *redis.Client { return redis.NewClient(server.Options()) })
	accounts := openAccounts(t, quotas(), "k", limit, aDay, clients, opts...)
	load := startLoad(workers, func() []*account { return accounts })

	known, lost := make([]int, len(accounts)), make([]int, len(accounts))
	counted := make([]int, len(accounts)) // of account.most, up to the last restart
	var downs []span
	all := len(accounts) * limit
	for range kills {
		// Kill where about half of what there is has been allowed.
		from := sum(accounts, (*account).received)
		left := all
		for _, k := range known {
			left -= k
		}
		eventually(t, "permits taken", func() bool { return sum(accounts, (*account).received) >= from+left/2 })
		down := span{Call: clock()}
		server.Kill()
		failed := load.failed.Load()
		eventually(t, "errors", func() bool { return load.failed.Load() >= failed+int64(workers)/2 })
		if persistent {
			load.gate.Lock() // no call is made while the test reads what the server knows
		}
		server.Restart()
		down.Return = clock()
		downs = append(downs, down)
		var look *redis.Client
		if persistent {
			look = server.Client(t)
		}
		for i, a := range accounts {
			taken := min(limit, known[i]+a.most()-counted[i])
			if persistent {
				l, err := a.build(look, limit, aDay)
				require.NoError(t, err)
				known[i] = a.used(t, l)
				require.LessOrEqual(t, known[i], taken, "%s: more was taken than anybody asked for", a.name)
				counted[i] = a.most()
				lost[i] += taken - known[i]
			} else {
				lost[i] += limit // whatever was taken, all is forgotten
			}
		}
		if persistent {
			load.gate.Unlock()
		}
	}
	// The service goes on, to the end of every quota.
	for _, a := range accounts {
		a.denied()
	}
	for _, a := range accounts {
		eventually(t, "a denial of "+a.name, a.denied)
	}
	load.stop(t)
	closeAll()

	over := 0
	for i, a := range accounts {
		require.LessOrEqual(t, a.received(), limit+lost[i], "%s: more than the lost writes explain", a.name)
		require.GreaterOrEqual(t, a.most(), limit-2, "%s: the last server was asked until it denied", a.name)
		over += max(a.received()-limit, 0)
	}
	var late time.Duration
	for _, f := range load.failures() {
		nearest := time.Duration(1 << 62)
		for _, d := range downs {
			switch {
			case f.Return < d.Call:
			case f.Call > d.Return:
				nearest = min(nearest, time.Duration(f.Call-d.Return))
			default:
				nearest = 0
			}
		}
		late = max(late, nearest)
		require.Less(t, nearest, recovery, "a call failed while the server was up: %v", f.err)
	}
	t.Logf("%v", &load.tally)
	t.Logf("%d keys, %d kills: %d permits beyond a single quota, %d lost at most; the last call to fail began %v after the server's return",
		len(accounts), kills, over, sumOf(lost), late.Round(time.Millisecond))
	goroutinesEnded(t, before)
}

func sumOf(n []int) int {
	total := 0
	for _, n := range n {
		total += n
	}
	return total
}

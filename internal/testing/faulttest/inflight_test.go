package faulttest

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

const (
	holderEnv    = "RATELIMIT_TEST_HOLDER"
	holdersLimit = 3
	holdersLease = 200 * time.Millisecond
)

// A belief is an instant at which a process believed in a hold's lease.
type belief struct {
	Hold int
	At   int64
}

// A belief is a line on the pipe to the test, so that those of a process that is killed
// arrive too.
func TestHolderProcess(t *testing.T) {
	addr := os.Getenv(holderEnv)
	if addr == "" {
		t.Skip("started by TestProcessesThatAreKilledHoldNoMoreThanTheLimit")
	}
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	f := ratelimit.Must(ratelimit.NewInFlight(client, holdersLimit, holdersLease))
	out := os.NewFile(3, "beliefs")
	var mu sync.Mutex
	var holds atomic.Int64
	for range 3 {
		go func() {
			for {
				hold, _, err := f.TryAcquire(ctx, "k")
				if err != nil {
					return // the server has ended
				}
				if hold == nil {
					time.Sleep(time.Duration(rand.IntN(5)) * time.Millisecond)
					continue
				}
				number := int(holds.Add(1))
				end := time.Now().Add(time.Duration(rand.Int64N(int64(2 * holdersLease))))
				extend := time.Now().Add(holdersLease / 3)
				for time.Now().Before(end) {
					at := clock()
					if hold.Left() == 0 {
						break
					}
					line, _ := json.Marshal(belief{number, at})
					mu.Lock()
					_, _ = out.Write(append(line, '\n'))
					mu.Unlock()
					time.Sleep(time.Millisecond)
					if time.Now().After(extend) {
						extend = time.Now().Add(holdersLease / 3)
						if hold.Extend(ctx) != nil {
							break
						}
					}
				}
				for range rand.IntN(3) { // or nobody releases it, as after a panic
					_ = hold.Release(ctx)
				}
			}
		}()
	}
	time.Sleep(time.Minute) // it is killed
}

// Processes that are killed, and some that are stopped for longer than their lease, hold at
// most what the limit allows, by what each believed. The permits of the killed are free
// when their leases have ended.
func TestProcessesThatAreKilledHoldNoMoreThanTheLimit(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	var mu sync.Mutex
	var spans [][2]int64 // from the first belief in a hold to the last
	var readers sync.WaitGroup
	start := func() *exec.Cmd {
		read, write, err := os.Pipe()
		require.NoError(t, err)
		cmd := exec.Command(os.Args[0], "-test.run=^TestHolderProcess$", "-test.timeout=2m")
		cmd.Env = append(os.Environ(), holderEnv+"="+server.Addr())
		cmd.ExtraFiles = []*os.File{write}
		require.NoError(t, cmd.Start())
		require.NoError(t, write.Close())
		readers.Go(func() {
			defer read.Close()
			own := map[int][2]int64{}
			for lines := bufio.NewScanner(read); lines.Scan(); {
				var b belief
				if json.Unmarshal(bytes.TrimSpace(lines.Bytes()), &b) != nil {
					break // it was killed in the middle of a line
				}
				span, ok := own[b.Hold]
				if !ok {
					span[0] = b.At
				}
				span[1] = b.At
				own[b.Hold] = span
			}
			mu.Lock()
			defer mu.Unlock()
			for _, span := range own {
				spans = append(spans, span)
			}
		})
		return cmd
	}
	var running []*exec.Cmd
	defer func() {
		for _, cmd := range running {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}()
	rounds := limitertest.Rounds(40, 5)
	for range 4 {
		running = append(running, start())
	}
	for range rounds {
		time.Sleep(holdersLease)
		redistest.PauseProcess(running[1].Process)
		require.NoError(t, running[0].Process.Kill()) // kill -9
		_ = running[0].Wait()
		running = append(running[1:], start())
		time.Sleep(holdersLease * 5 / 4)
		redistest.ResumeProcess(running[0].Process)
	}
	time.Sleep(holdersLease)
	for _, cmd := range running {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	running = nil
	readers.Wait()

	// All permits are free at the instant that a denial names.
	f := ratelimit.Must(ratelimit.NewInFlight(server.Client(t), holdersLimit, holdersLease))
	hold, r, err := f.TryAcquireN(ctx, "k", holdersLimit)
	require.NoError(t, err)
	if hold == nil {
		require.LessOrEqual(t, r.RetryAfter, holdersLease)
		time.Sleep(r.RetryAfter + time.Millisecond)
		hold, _, err = f.TryAcquireN(ctx, "k", holdersLimit)
		require.NoError(t, err)
		require.NotNil(t, hold)
	}

	most := mostAtOnce(spans)
	t.Logf("%d holds of %d processes, at most %d of %d at once", len(spans), 4+rounds, most, holdersLimit)
	require.Equal(t, holdersLimit, most, "all permits are used, and no more")
}

// mostAtOnce is how many spans have an instant in common.
func mostAtOnce(spans [][2]int64) (most int) {
	type edge struct {
		at    int64
		count int
	}
	var edges []edge
	for _, s := range spans {
		edges = append(edges, edge{s[0], 1}, edge{s[1], -1})
	}
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.count, b.count)) })
	now := 0
	for _, e := range edges {
		now += e.count
		most = max(most, now)
	}
	return most
}

// After a failover the holds that were not replicated are too many, and no others. They
// learn of it when they are extended.
func TestAFailoverForgetsOnlyHoldsThatWereNotReplicated(t *testing.T) {
	t.Parallel()
	master, replica := redistest.Start(t, redistest.Args("--repl-diskless-sync-delay", "0")), redistest.Start(t)
	admin, other := master.Client(t), replica.Client(t)
	host, port, err := net.SplitHostPort(master.Addr())
	require.NoError(t, err)
	require.NoError(t, other.ReplicaOf(ctx, host, port).Err())
	var to atomic.Pointer[string]
	addr, next := master.Addr(), replica.Addr()
	to.Store(&addr)
	client := redis.NewClient(&redis.Options{
		Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, *to.Load())
		},
		MaxRetries: -1,
	})
	t.Cleanup(func() { _ = client.Close() })
	f := ratelimit.Must(ratelimit.NewInFlight(client, 4, time.Minute))
	acquire := func() *ratelimit.Hold {
		hold, _, err := f.TryAcquire(ctx, "k")
		require.NoError(t, err)
		return hold
	}
	replicated := []*ratelimit.Hold{acquire(), acquire()}
	eventually(t, "two holds on the replica", func() bool {
		return other.ZCard(ctx, "ratelimit:default:inflight{k}").Val() == 2
	})
	require.NoError(t, other.ConfigSet(ctx, "masterauth", "wrong").Err())
	require.NoError(t, admin.Do(ctx, "CLIENT", "KILL", "TYPE", "replica").Err())
	eventually(t, "the link is down", func() bool {
		return !bytes.Contains([]byte(other.Info(ctx, "replication").Val()), []byte("master_link_status:up"))
	})
	lost := []*ratelimit.Hold{acquire(), acquire()}
	require.Nil(t, acquire(), "the limit is 4")

	master.Kill()
	to.Store(&next)
	require.NoError(t, other.Do(ctx, "REPLICAOF", "NO", "ONE").Err())
	var more []*ratelimit.Hold
	eventually(t, "the replica answers", func() bool {
		hold, _, err := f.TryAcquire(ctx, "k")
		if err == nil && hold != nil {
			more = append(more, hold)
		}
		return err == nil
	})
	more = append(more, acquire())
	require.Len(t, more, len(lost), "as many too many as were not replicated")
	require.Nil(t, acquire())
	for _, hold := range append(replicated, more...) {
		require.NoError(t, hold.Extend(ctx))
	}
	for _, hold := range lost {
		require.ErrorIs(t, hold.Extend(ctx), ratelimit.ErrLeaseLost)
		require.Zero(t, hold.Left())
	}
}

// Permits whose reply was lost are given back, and calls are executed once.
func TestALostReplyLeavesNoHold(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	proxy := redistest.NewProxy(t, server.Addr())
	client := redis.NewClient(&redis.Options{Addr: proxy.Addr()})
	defer client.Close()
	f := ratelimit.Must(ratelimit.NewInFlight(client, 3, time.Minute, ratelimit.WithPrefix("lostholds")))
	require.NoError(t, ratelimit.Preload(ctx, ratelimit.ClaimHold(f, "k", 1)))
	kept, _, err := f.TryAcquire(ctx, "k")
	require.NoError(t, err)
	bounded, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, ctx := range []context.Context{ctx, bounded} {
		fault := proxy.DropNextReply(redistest.OnScript())
		hold, _, err := f.TryAcquireN(ctx, "k", 2)
		require.Error(t, err)
		require.Nil(t, hold)
		require.Equal(t, 1, fault.Hits())
		eventually(t, "the permits are given back", func() bool { return must(t)(f.Peek(ctx, "k")).Remaining == 2 })
	}
	// A release and an extension may be sent again.
	fault := proxy.DropNextReply(redistest.OnCommand("zrem"))
	require.NoError(t, kept.Release(ctx))
	require.Equal(t, 1, fault.Hits())
	require.Equal(t, 3, must(t)(f.Peek(ctx, "k")).Remaining)
}

package faulttest

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// A grid is a server and a cluster, and proxies on every way to them.
type grid struct {
	server  *redistest.Server
	doors   []*redistest.Proxy // two, in front of the server
	cluster *redistest.Cluster
	gates   []*redistest.Proxy // one in front of each node
}

func startGrid(t testing.TB) *grid {
	g := &grid{server: redistest.Start(t), cluster: redistest.StartCluster(t)}
	for range 2 {
		g.doors = append(g.doors, redistest.NewProxy(t, g.server.Addr()))
	}
	for _, addr := range g.cluster.Addrs() {
		g.gates = append(g.gates, redistest.NewProxy(t, addr))
	}
	return g
}

// A rig is a client whose ways to Redis can be broken.
type rig struct {
	client  ratelimit.Client
	opts    []ratelimit.Option
	ways    []*redistest.Proxy
	admin   redis.UniversalClient // past the proxies
	merging bool
}

// all does something to every way of the client.
func (r *rig) all(do func(p *redistest.Proxy)) {
	for _, p := range r.ways {
		do(p)
	}
}

// each runs a test with every kind of client. Their retries and everything else
// are as go-redis has them, except for the timeout of one command.
func (g *grid) each(t *testing.T, timeout time.Duration, test func(t *testing.T, r *rig)) {
	single := func(t testing.TB) *redis.Client {
		return g.server.Client(t, func(o *redis.Options) {
			o.Addr, o.ReadTimeout, o.WriteTimeout = g.doors[0].Addr(), timeout, timeout
		})
	}
	cluster := func(t testing.TB) *redis.ClusterClient {
		return g.cluster.Client(t, func(o *redis.ClusterOptions) {
			o.Dialer, o.ReadTimeout, o.WriteTimeout = redistest.Through(g.gates...), timeout, timeout
		})
	}
	ring := func(t testing.TB) *redis.Ring {
		c := redis.NewRing(&redis.RingOptions{
			Addrs:       map[string]string{"one": g.doors[0].Addr(), "two": g.doors[1].Addr()},
			ReadTimeout: timeout, WriteTimeout: timeout,
			HeartbeatFrequency: time.Hour, // a ring that takes a shard for dead moves its keys
		})
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	type kind struct {
		name      string
		clustered bool
		merges    bool
		build     func(t testing.TB) ratelimit.Client
	}
	kinds := []kind{
		{"Client", false, true, func(t testing.TB) ratelimit.Client { return single(t) }},
		{"ClusterClient", true, true, func(t testing.TB) ratelimit.Client { return cluster(t) }},
		{"Ring", false, true, func(t testing.TB) ratelimit.Client { return ring(t) }},
	}
	for _, p := range limitertest.Pipelinings {
		kinds = append(kinds, kind{p.Name, false, false, func(t testing.TB) ratelimit.Client { return p.Of(t, single(t)) }})
		if p.Clustered {
			kinds = append(kinds, kind{p.Name + " of a ClusterClient", true, false, func(t testing.TB) ratelimit.Client { return p.Of(t, cluster(t)) }})
		}
	}
	for _, kind := range kinds {
		for _, merging := range []bool{true, false} {
			name := kind.name
			var opts []ratelimit.Option
			switch {
			case !merging && !kind.merges:
				continue
			case !merging:
				name, opts = name+", unmerged", []ratelimit.Option{ratelimit.WithoutMerging()}
			}
			t.Run(name, func(t *testing.T) {
				r := &rig{client: kind.build(t), opts: opts, merging: merging && kind.merges}
				if kind.clustered {
					r.ways, r.admin = g.gates, g.cluster.Client(t)
				} else {
					r.ways, r.admin = g.doors, g.server.Client(t)
				}
				t.Cleanup(func() {
					r.all((*redistest.Proxy).Disarm)
					r.all((*redistest.Proxy).Unhang)
				})
				test(t, r)
			})
		}
	}
}

// figures are what a test logs of its calls.
type figures struct {
	mu       sync.Mutex // guards all below
	calls    int
	allowed  int
	denied   int
	failed   int
	firstErr error
	longest  time.Duration
}

// count adds one call, which began at start.
func (f *figures) count(start time.Time, r ratelimit.Result, err error) {
	took := time.Since(start)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	f.longest = max(f.longest, took)
	switch {
	case err != nil:
		f.failed++
		if f.firstErr == nil {
			f.firstErr = err
		}
	case r.Allowed:
		f.allowed++
	default:
		f.denied++
	}
}

func (f *figures) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := fmt.Sprintf("%d calls: %d allowed, %d denied, %d errors; longest %v",
		f.calls, f.allowed, f.denied, f.failed, f.longest.Round(100*time.Microsecond))
	if f.firstErr != nil {
		s += fmt.Sprintf("; the first error: %v", f.firstErr)
	}
	return s
}

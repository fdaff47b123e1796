package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/valkey-io/valkey-go"
	"github.com/zeromicro/go-zero/core/logx"
	zero "github.com/zeromicro/go-zero/core/stores/redis"

	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// A testbed is a server, and the clients that reach it at one address, each with the
// settings it comes with.
type testbed struct {
	server *redistest.Server
	admin  *redis.Client   // of the server itself, not through a proxy
	others []*redis.Client // of the other masters of a Cluster

	client  *redis.Client
	cluster *redis.ClusterClient // nil: the server is alone
	rueidis rueidis.Client
	valkey  valkey.Client
	zero    *zero.Redis
}

// newTestbed connects to the server, at addr: its own or a proxy's.
func newTestbed(h *host, server *redistest.Server, addr string) (*testbed, error) {
	logx.Disable()
	b := &testbed{
		server: server, admin: server.Client(h),
		client: server.Client(h, func(o *redis.Options) { o.Addr = addr }),
	}
	if err := b.openOthers(h, addr); err != nil {
		return nil, err
	}
	var err error
	b.zero, err = zero.NewRedis(zero.RedisConf{Host: addr, Type: zero.NodeType})
	return b, err
}

// openOthers opens the clients that find out on their own whether there is a Cluster.
func (b *testbed) openOthers(h *host, addr string) (err error) {
	if b.rueidis, err = rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true}); err != nil {
		return fmt.Errorf("rueidis: %w", err)
	}
	h.Cleanup(b.rueidis.Close)
	if b.valkey, err = valkey.NewClient(valkey.ClientOption{InitAddress: []string{addr}, DisableCache: true}); err != nil {
		return fmt.Errorf("valkey-go: %w", err)
	}
	h.Cleanup(b.valkey.Close)
	return nil
}

// othersCPU is what the processes of the other masters have used, in microseconds.
func (b *testbed) othersCPU(ctx context.Context) (float64, error) {
	sum := 0.0
	for _, other := range b.others {
		t, err := takeTally(ctx, other)
		if err != nil {
			return 0, err
		}
		sum += t.cpu
	}
	return sum, nil
}

// users are the keys of a benchmark, all of one length.
func users(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = user(i)
	}
	return keys
}

func user(i int) string { return fmt.Sprintf("user:%07d", i) }

// visit calls decide once for each key, from several goroutines, and returns
// the first error of each.
func visit(ctx context.Context, decide decide, keys []string) error {
	const visitors = 16
	errs := make([]error, visitors)
	var wg sync.WaitGroup
	for v := range visitors {
		wg.Go(func() {
			for i := v; i < len(keys); i += visitors {
				if _, err := decide(ctx, keys[i]); err != nil {
					errs[v] = err
					return
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

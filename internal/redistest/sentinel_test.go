package redistest

import (
	"context"
	"testing"
	"time"
)

func TestSentinelFailsOver(t *testing.T) {
	s, ctx := StartSentinel(t, Password("open sesame")), testContext(t)
	client := s.Client(t)
	check(t, client.Set(ctx, "k", "v", 0).Err())
	old, replica := s.Master(), s.Replica()
	n, err := old.Client(t).Wait(ctx, 1, callDeadline).Result()
	check(t, err)
	equal(t, "replicas that have it", n, 1)

	start := time.Now()
	old.Kill()
	master := s.AwaitFailover(old)
	t.Logf("failover took %v", time.Since(start))
	equal(t, "new master", master.Addr(), replica.Addr())
	equal(t, "named master", s.Master().Addr(), replica.Addr())
	equal(t, "replica", s.Replica().Addr(), old.Addr())
	await(t, "client to find the new master", func(ctx context.Context) error {
		return client.Set(ctx, "k2", "v", 0).Err()
	})
	equal(t, "value", client.Get(ctx, "k").Val(), "v")
}

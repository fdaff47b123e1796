package redistest

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSentinelFailsOver(t *testing.T) {
	s, ctx := StartSentinel(t, Password("open sesame")), testContext(t)
	client := s.Client(t)
	require.NoError(t, client.Set(ctx, "k", "v", 0).Err())
	old, replica := s.Master(), s.Replica()
	n, err := old.Client(t).Wait(ctx, 1, callDeadline).Result()
	require.NoError(t, err)
	require.Equal(t, int64(1), n, "replicas that have it")

	start := time.Now()
	old.Kill()
	master := s.AwaitFailover(old)
	t.Logf("failover took %v", time.Since(start))
	require.Equal(t, replica.Addr(), master.Addr(), "new master")
	require.Equal(t, replica.Addr(), s.Master().Addr(), "named master")
	require.Equal(t, old.Addr(), s.Replica().Addr(), "replica")
	await(t, "client to find the new master", func(ctx context.Context) error {
		return client.Set(ctx, "k2", "v", 0).Err()
	})
	require.Equal(t, "v", client.Get(ctx, "k").Val(), "value")
}

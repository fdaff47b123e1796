package redisclient

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

type embedding struct{ *redis.Client }

func (e embedding) Process(ctx context.Context, cmd redis.Cmder) error {
	return e.Client.Process(ctx, cmd)
}

func TestWhatEachClientCanDo(t *testing.T) {
	one, ring := redis.NewClient(&redis.Options{}), redis.NewRing(&redis.RingOptions{})
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	t.Cleanup(func() { _, _, _ = one.Close(), ring.Close(), cluster.Close() })
	require.False(t, Of(one).Several())
	require.True(t, Of(ring).Several())
	require.True(t, Of(cluster).Several())
	require.Nil(t, Of(embedding{one}), "its Process may do more")
	require.Nil(t, Of(nil))
	for _, c := range []Client{one, ring, cluster} {
		require.Zero(t, testing.AllocsPerRun(100, func() { Of(c) }))
		require.NoError(t, Check(c))
	}
}

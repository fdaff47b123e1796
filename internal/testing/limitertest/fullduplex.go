//go:build newest

package limitertest

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
)

func init() {
	Pipelinings = append(Pipelinings, Pipelining{
		Name: "full-duplex AutoPipeliner",
		Of: func(t testing.TB, c redis.UniversalClient) ratelimit.Client {
			client, ok := c.(*redis.Client)
			require.True(t, ok, "%T cannot be full-duplex", c)
			auto, err := client.AutoPipelineWithOptions(&redis.AutoPipelineOptions{FullDuplex: true})
			require.NoError(t, err)
			t.Cleanup(func() { _ = auto.Close() })
			return auto
		},
	})
}

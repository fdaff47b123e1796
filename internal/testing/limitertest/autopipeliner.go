package limitertest

import (
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
)

func init() {
	// The methods that redis.Client and redis.ClusterClient have in common.
	type autoPipelining interface {
		AutoPipeline() (*redis.AutoPipeliner, error)
		AsyncAutoPipeline() (*redis.AutoPipeliner, error)
	}
	of := func(open func(c autoPipelining) (*redis.AutoPipeliner, error)) func(testing.TB, redis.UniversalClient) ratelimit.Client {
		return func(t testing.TB, c redis.UniversalClient) ratelimit.Client {
			from, ok := c.(autoPipelining)
			require.True(t, ok, fmt.Sprintf("%T has no AutoPipeliner", c))
			auto, err := open(from)
			require.NoError(t, err)
			t.Cleanup(func() { _ = auto.Close() })
			return auto
		}
	}
	Pipelinings = append(Pipelinings,
		Pipelining{Name: "blocking AutoPipeliner", Clustered: true, Of: of(autoPipelining.AutoPipeline)},
		Pipelining{Name: "deferred AutoPipeliner", Clustered: true, Of: of(autoPipelining.AsyncAutoPipeline)},
	)
}

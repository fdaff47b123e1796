package ratelimit

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// What the tests of package ratelimit use of internal/limitertest, which imports this
// package and therefore cannot be imported by them.

var ctx = context.Background()

var start = time.UnixMicro(1_763_670_000_000_000)

// A stage is a miniredis to test limiters on.
type stage struct {
	client Client
	admin  redis.UniversalClient // looks at keys
}

func onMini(t testing.TB) *stage {
	server := miniredis.RunT(t)
	server.ClockTTL(true)
	server.SetTime(start)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	return &stage{client, client}
}

// offline is a client that must not be asked.
type offline struct{ t testing.TB }

func (o offline) Process(context.Context, redis.Cmder) error {
	o.t.Error("Redis was asked")
	return errors.New("offline")
}

func must(t testing.TB) func(Result, error) Result {
	return func(r Result, err error) Result {
		t.Helper()
		require.NoError(t, err)
		return r
	}
}

package redisexec

import (
	"context"
	"errors"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestOnceIsNeverRetried(t *testing.T) {
	once := &Once{Cmder: redis.NewIntCmd(context.Background(), "incr", "k")}
	require.True(t, once.NoRetry())
	require.True(t, once.Clone().NoRetry())
	require.Equal(t, once.Args(), once.Clone().Args())
}

type client func(cmd redis.Cmder) error

func (c client) Process(_ context.Context, cmd redis.Cmder) error { return c(cmd) }

func TestSendReturnsTheCommandsError(t *testing.T) {
	boom := errors.New("boom")
	send := func(c client) error {
		return (&Once{Cmder: redis.NewIntCmd(context.Background(), "incr", "k")}).Send(context.Background(), c)
	}
	require.NoError(t, send(func(redis.Cmder) error { return nil }))
	require.ErrorIs(t, send(func(redis.Cmder) error { return boom }), boom)
	require.ErrorIs(t, send(func(cmd redis.Cmder) error { cmd.SetErr(boom); return nil }), boom, "a deferred one")
}

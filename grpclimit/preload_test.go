package grpclimit_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/grpclimit"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// TestTheFirstCallAfterPreload finds the scripts of all limits: of calls, of messages, and of calls at once.
func TestTheFirstCallAfterPreload(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client(t)
	window := ratelimit.Must(ratelimit.NewFixedWindow(client, 100, time.Hour))
	list := ratelimit.Must(ratelimit.NewSlidingWindow(client, 100, time.Hour, ratelimit.WithStorage(ratelimit.StorageList)))
	zset := ratelimit.Must(ratelimit.NewSlidingWindow(client, 100, time.Hour, ratelimit.WithStorage(ratelimit.StorageZSet)))
	running := ratelimit.Must(ratelimit.NewInFlight(client, 5, time.Hour))
	limit := newServer(t, window, grpclimit.WithReceived(list, 0), grpclimit.WithSent(zset, 0), grpclimit.WithInFlight(running))
	require.NoError(t, limit.Preload(t.Context()))
	bucket := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerHour(1), 1))
	outgoing := newClient(t, bucket)
	require.NoError(t, outgoing.Preload(t.Context()))

	require.NoError(t, client.ConfigResetStat(t.Context()).Err())
	_, err := exchange(t.Context(), dial(t, &echo{}, limit.Options()), bidi, []string{"a"})
	require.NoError(t, err)
	invoked := false
	require.NoError(t, outgoing.Unary(t.Context(), unary, nil, nil, nil, func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
		invoked = true
		return nil
	}))
	require.True(t, invoked)
	require.Zero(t, redistest.WholeScripts(t, client))
}

func TestPreloadOfWhatIsNoLimit(t *testing.T) {
	require.ErrorIs(t, (*grpclimit.Server)(nil).Preload(t.Context()), ratelimit.ErrInvalidConfig)
	require.ErrorIs(t, (&grpclimit.Client{}).Preload(t.Context()), ratelimit.ErrInvalidConfig)
	none := ratelimit.Must(ratelimit.NewChoice(func(context.Context, string) (ratelimit.Limiter, error) { return nil, nil }))
	err := newServer(t, none).Preload(t.Context())
	require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
	require.ErrorContains(t, err, `pick returned nil for "preload"`)
}

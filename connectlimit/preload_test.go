package connectlimit_test

import (
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/connectlimit"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// TestTheFirstCallAfterPreload finds the scripts of all limits.
func TestTheFirstCallAfterPreload(t *testing.T) {
	client := redistest.Start(t).Client(t)
	window := ratelimit.Must(ratelimit.NewFixedWindow(client, 100, time.Hour))
	log := ratelimit.Must(ratelimit.NewSlidingLog(client, []ratelimit.Rule{{Limit: 100, Window: time.Hour}}))
	running := ratelimit.Must(ratelimit.NewInFlight(client, 5, time.Hour))
	limit := newServer(t, window, connectlimit.WithReceived(log, 0), connectlimit.WithInFlight(running))
	require.NoError(t, connectlimit.Preload(t.Context(), limit))

	require.NoError(t, client.ConfigResetStat(t.Context()).Err())
	_, err := everyKind[clientStream](t.Context(), serve(t, nil, limit))
	require.NoError(t, err)
	require.Zero(t, redistest.WholeScripts(t, client))
}

func TestPreloadOfWhatIsNoLimit(t *testing.T) {
	for _, other := range []connect.Interceptor{nil, connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc { return next })} {
		require.ErrorIs(t, connectlimit.Preload(t.Context(), other), ratelimit.ErrInvalidConfig)
	}
}

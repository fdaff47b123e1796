package grpclimit_test

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/grpclimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/ratelimittest"
)

// stampede is 50 clients with connections of their own, whose retry policy has five tries. They call at once, where a
// permit comes every 20 ms. The time is that of the bubble.
func stampede(t *testing.T, opts ...grpclimit.Option) (served, tries int) {
	synctest.Test(t, func(t *testing.T) {
		bucket := ratelimit.Must(ratelimit.NewTokenBucket(ratelimittest.New(t).Client(), ratelimit.Per(1, 20*time.Millisecond), 1))
		_, err := bucket.Peek(t.Context(), "k") // connects
		require.NoError(t, err)
		calls := &attempts{}
		listener := bufconn.Listen(1 << 16)
		server := grpc.NewServer(append(calls.options(), newServer(t, bucket, opts...).Options()...)...)
		server.RegisterService(&description, &echo{})
		go func() { _ = server.Serve(listener) }()
		defer server.Stop()
		dialing := grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) })
		var ok atomic.Int32
		var clients sync.WaitGroup
		for range 50 {
			conn, err := grpc.NewClient("passthrough:///limited", dialing, grpc.WithTransportCredentials(insecure.NewCredentials()), retrying(5, time.Hour))
			require.NoError(t, err)
			defer conn.Close()
			clients.Go(func() {
				if _, err := call(t.Context(), conn, "a"); err == nil {
					ok.Add(1)
				}
			})
		}
		clients.Wait()
		served, tries = int(ok.Load()), len(calls.codes())
	})
	return served, tries
}

// TestASpreadServesAStampede: clients that obey an exact time come back together, and find one permit each time.
func TestASpreadServesAStampede(t *testing.T) {
	served, tries := stampede(t)
	require.Equal(t, []int{5, 240}, []int{served, tries}, "exact")

	const most = 2500 * time.Millisecond
	allServed, allTries, rounds := 0, 0, limitertest.Rounds(10, 1)
	for range rounds {
		served, tries = stampede(t, grpclimit.WithRetrySpread(most))
		require.GreaterOrEqual(t, served, 45)
		require.Less(t, tries, 150)
		allServed, allTries = allServed+served, allTries+tries
	}
	t.Logf("spread by %v: %.1f served by %.1f tries, the mean of %d runs", most, float64(allServed)/float64(rounds), float64(allTries)/float64(rounds), rounds)
}

package connectlimit_test

import (
	"context"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/connectlimit"
	"github.com/tryacquire/ratelimit/internal/testing/integrationtest"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// TestCallsAtOnce: a call holds its place while its handler runs, and is denied without a permit
// of the rate if there is none. The place is free afterwards.
func TestCallsAtOnce(t *testing.T) {
	eachKind(t, func(t *testing.T, _, protocol string, do func(context.Context, service, ...connect.ClientOption) error) {
		stage := limitertest.OnMiniredis(t)
		inFlight := ratelimit.Must(ratelimit.NewInFlight(stage.Client, 1, time.Minute))
		rate := limitertest.Allowing()
		entered, leave := make(chan struct{}, 1), make(chan struct{})
		s := serve(t, func(context.Context, string) error {
			entered <- struct{}{}
			<-leave
			return nil
		}, newServer(t, rate, connectlimit.WithInFlight(inFlight), connectlimit.WithPolicy("slow"), connectlimit.WithRetryAfter(3*time.Second)))

		first := make(chan error, 1)
		go func() { first <- do(t.Context(), s) }()
		<-entered
		require.Equal(t, []string{"k 1"}, rate.Asked())
		err := do(t.Context(), s)
		requireDenied(t, err, "slow.inflight", 1, integrationtest.AtOnce, 3*time.Second)
		requirePushback(t, err, protocol, "3", "3000")
		require.Empty(t, rate.Asked())
		close(leave)
		require.NoError(t, <-first)
		require.NoError(t, do(t.Context(), s))
		<-entered

		// A denial by the rate frees its place too.
		rate.Result = limitertest.Denying(5, time.Second, time.Second).Result
		for range 2 {
			requireDenied(t, do(t.Context(), s), "slow", 5, time.Second, time.Second)
		}
	})
}

// TestCallsAtOnceInAnOutage: as without a decision of the rate's limiter.
func TestCallsAtOnceInAnOutage(t *testing.T) {
	inFlight := ratelimit.Must(ratelimit.NewInFlight(limitertest.Down(), 1, time.Minute))
	open := connectlimit.WithErrorHandler(connectlimit.ServeInOutages)
	eachKind(t, func(t *testing.T, _, _ string, do func(context.Context, service, ...connect.ClientOption) error) {
		rate := limitertest.Allowing()
		err := do(t.Context(), serve(t, nil, newServer(t, rate, connectlimit.WithInFlight(inFlight))))
		requireError(t, err, connect.CodeUnavailable, "the rate limit could not be decided")
		require.Empty(t, rate.Asked())
		require.NoError(t, do(t.Context(), serve(t, nil, newServer(t, rate, connectlimit.WithInFlight(inFlight), open))))
		require.Equal(t, []string{"k 1"}, rate.Asked(), "the rate still holds")
	})
}

func TestADeadlineIsNoOutage(t *testing.T) {
	integrationtest.DeadlinesAreNoOutages(t, connect.CodeResourceExhausted, connect.CodeDeadlineExceeded,
		func(ctx context.Context, t *testing.T, l ratelimit.Limiter, wait time.Duration) connect.Code {
			opts := []connectlimit.Option{connectlimit.WithErrorHandler(connectlimit.ServeInOutages)}
			if wait > 0 {
				opts = append(opts, connectlimit.WithMaxWait(wait))
			}
			handler := newServer(t, l, opts...).WrapUnary(func(context.Context, connect.AnyRequest) (connect.AnyResponse, error) { return nil, nil })
			_, err := handler(ctx, connect.NewRequest(&emptypb.Empty{}))
			return connect.CodeOf(err)
		})
}

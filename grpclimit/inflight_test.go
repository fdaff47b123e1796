package grpclimit_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/grpclimit"
	"github.com/tryacquire/ratelimit/internal/testing/integrationtest"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// TestCallsAtOnce: a call holds its place while its handler runs, and is denied without a permit
// of the rate if there is none. The place is free afterwards, even if the handler panics.
func TestCallsAtOnce(t *testing.T) {
	for kind, do := range everyKind {
		stage := limitertest.OnMiniredis(t)
		inFlight := ratelimit.Must(ratelimit.NewInFlight(stage.Client, 1, time.Minute))
		rate := limitertest.Allowing()
		entered, leave := make(chan struct{}, 1), make(chan struct{})
		panics := false
		hold := func() {
			if panics {
				panic("oh")
			}
			entered <- struct{}{}
			<-leave
		}
		e := &echo{
			unary: func(_ context.Context, text string) (string, error) { hold(); return text, nil },
			stream: func(method string, s grpc.ServerStream) error {
				hold()
				return echoStream(method, s)
			},
		}
		recovering := []grpc.ServerOption{
			grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (_ any, err error) {
				defer func() { err = either(err, recover() == nil) }()
				return handler(ctx, req)
			}),
			grpc.ChainStreamInterceptor(func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
				defer func() { err = either(err, recover() == nil) }()
				return handler(srv, s)
			}),
		}
		conn := dial(t, e, append(recovering, newServer(t, rate, grpclimit.WithInFlight(inFlight), grpclimit.WithPolicy("slow"), grpclimit.WithRetryAfter(3*time.Second)).Options()...))

		first := make(chan error, 1)
		go func() { first <- do(t.Context(), conn) }()
		<-entered
		require.Equal(t, []string{"k 1"}, rate.Asked())
		var trailer metadata.MD
		requireDenied(t, do(t.Context(), conn, grpc.Trailer(&trailer)), "slow.inflight", 1, integrationtest.AtOnce, 3*time.Second)
		require.Equal(t, []string{"3000"}, trailer["grpc-retry-pushback-ms"], kind)
		require.Empty(t, rate.Asked())
		close(leave)
		require.NoError(t, <-first)
		require.NoError(t, do(t.Context(), conn))
		<-entered
		panics = true
		for range 2 {
			require.Equal(t, codes.Unknown, status.Code(do(t.Context(), conn)), "panics, and frees its place")
		}

		// A denial by the rate frees its place too.
		panics = false
		rate.Result = limitertest.Denying(5, time.Second, time.Second).Result
		for range 2 {
			requireDenied(t, do(t.Context(), conn), "slow", 5, time.Second, time.Second)
		}
	}
}

// TestCallsAtOnceInAnOutage: as without a decision of the rate's limiter.
func TestCallsAtOnceInAnOutage(t *testing.T) {
	inFlight := ratelimit.Must(ratelimit.NewInFlight(limitertest.Down(), 1, time.Minute))
	for kind, do := range everyKind {
		rate := limitertest.Allowing()
		conn := dial(t, &echo{}, newServer(t, rate, grpclimit.WithInFlight(inFlight)).Options())
		requireStatus(t, do(t.Context(), conn), status.New(codes.Unavailable, "the rate limit could not be decided"))
		require.Empty(t, rate.Asked(), kind)

		conn = dial(t, &echo{}, newServer(t, rate, grpclimit.WithInFlight(inFlight), grpclimit.WithErrorHandler(grpclimit.ServeInOutages)).Options())
		require.NoError(t, do(t.Context(), conn), kind)
		require.Equal(t, []string{"k 1"}, rate.Asked(), "the rate still holds")
	}
}

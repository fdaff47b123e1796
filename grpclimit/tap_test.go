package grpclimit_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/grpclimit"
	"github.com/tryacquire/ratelimit/internal/testing/integrationtest"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// counting counts the calls that a server has begun to serve.
type counting struct{ begun *int }

func (c counting) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }
func (c counting) HandleRPC(_ context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.Begin); ok {
		*c.begun++
	}
}
func (c counting) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (c counting) HandleConn(context.Context, stats.ConnStats)                       {}

// TestTheTapHandle measures what its documentation says: a denial has the status with its details
// and no trailer, and comes before everything else; the handle sees metadata, peer, deadline and
// method.
func TestTheTapHandle(t *testing.T) {
	method := func(_ context.Context, call grpclimit.Call) (string, error) { return "route:" + call.Method, nil }
	for kind, do := range everyKind {
		limiter := limitertest.Denying(5, time.Second, 1500*time.Microsecond)
		var begun int
		var deadlines []bool
		join := ratelimit.Must(grpclimit.Join(
			ratelimit.Must(grpclimit.ClientIP(nil)), ratelimit.Must(grpclimit.APIKey("x-api-key")), method))
		tap, err := grpclimit.NewTap(limiter, join, grpclimit.WithPolicy("flood"), grpclimit.WithCost(func(ctx context.Context, call grpclimit.Call) int {
			_, ok := ctx.Deadline()
			deadlines = append(deadlines, ok)
			require.Nil(t, call.Message)
			require.False(t, call.Client)
			return 2
		}))
		require.NoError(t, err)
		calls := &attempts{}
		options := append(calls.options(), grpc.InTapHandle(tap), grpc.StatsHandler(counting{&begun}))
		conn := dial(t, &echo{}, options, retrying(3, time.Millisecond))

		ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "x-api-key", "s3cret"), time.Minute)
		defer cancel()
		requireDenied(t, do(ctx, dial(t, &echo{}, options)), "flood", 5, time.Second, 2*time.Millisecond)
		require.Len(t, limiter.Asked(), 1)
		deadlines = nil
		var trailer metadata.MD
		err = do(ctx, conn, grpc.Trailer(&trailer))
		if sendsOneMessage(kind) {
			requireDenied(t, err, "flood", 5, time.Second, 2*time.Millisecond)
		}
		want := "ip:127.0.0.1|apikey#" + integrationtest.Hash("s3cret") + "|route:" + kind + " 2"
		require.Equal(t, []string{want, want, want}, limiter.Asked(), "the retry policy goes by its own backoff")
		require.Equal(t, []bool{true, true, true}, deadlines)
		require.Empty(t, trailer["grpc-retry-pushback-ms"])
		require.Zero(t, begun)
		require.Empty(t, calls.codes())

		limiter.Result = limitertest.Allowing().Result
		require.NoError(t, do(ctx, conn))
		require.Equal(t, []string{want}, limiter.Asked())
		require.Equal(t, 1, begun)
	}
}

// TestATapHandleHasNoKeyOfTheMethod: whether it exists is not known yet, and the client could invent names.
func TestATapHandleHasNoKeyOfTheMethod(t *testing.T) {
	limiter := limitertest.Allowing()
	var failures []error
	tap, err := grpclimit.NewTap(limiter, grpclimit.Method(), grpclimit.WithErrorHandler(func(ctx context.Context, call grpclimit.Call, err error) error {
		failures = append(failures, err)
		return grpclimit.DefaultErrorHandler(ctx, call, err)
	}))
	require.NoError(t, err)
	conn := dial(t, &echo{}, append(newServer(t, ratelimit.DenyAll()).Options(), grpc.InTapHandle(tap)))
	_, err = exchange(t.Context(), conn, "/made.Up/{Name}", nil)
	require.Equal(t, codes.Internal, status.Code(err))
	require.Len(t, failures, 1)
	require.ErrorIs(t, failures[0], ratelimit.ErrInvalidConfig)
	require.ErrorContains(t, failures[0], "a client can invent names")
	require.Empty(t, limiter.Asked())
}

// TestInventedMethodsHaveOneKey: where grpc.UnknownServiceHandler serves them, and not the limit of a method that exists.
func TestInventedMethodsHaveOneKey(t *testing.T) {
	stage := limitertest.OnMiniredis(t)
	window := ratelimit.Must(ratelimit.NewFixedWindow(stage.Client, 1, time.Hour))
	limit := ratelimit.Must(grpclimit.NewServer(window, grpclimit.Method()))
	served := 0
	unknown := grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error { served++; return nil })
	conn := dial(t, &echo{}, append(limit.Options(), unknown))
	for i := range 55 {
		_, err := exchange(t.Context(), conn, fmt.Sprintf("/made.Up/M%d", i), nil)
		if i > 0 {
			require.Equal(t, codes.ResourceExhausted, status.Code(err))
		}
	}
	require.Equal(t, 1, served)
	for kind, do := range everyKind {
		require.NoError(t, do(t.Context(), conn), kind)
		require.Equal(t, codes.ResourceExhausted, status.Code(do(t.Context(), conn)), kind)
	}
	require.Len(t, stage.Admin.Keys(t.Context(), "*").Val(), 1+len(everyKind))
}

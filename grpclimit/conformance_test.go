package grpclimit_test

import (
	"context"
	"strconv"
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

// TestTheConformanceSuiteOverGRPC: every algorithm, storage and way to count, on miniredis, through
// the interceptors of servers and clients, by unary calls and by streams. A status does not carry
// Remaining and ResetAfter, nor the limit and window of a call that is allowed; and calls cannot ask
// for Peek and Reset.
func TestTheConformanceSuiteOverGRPC(t *testing.T) {
	cost := grpclimit.WithCost(func(ctx context.Context, call grpclimit.Call) int {
		of := metadata.ValueFromIncomingContext(ctx, "cost")
		if call.Client {
			md, _ := metadata.FromOutgoingContext(ctx)
			of = md["cost"]
		}
		n, err := strconv.Atoi(of[0])
		require.NoError(t, err)
		return n
	})
	for _, v := range limitertest.Variants() {
		stage := limitertest.OnMiniredis(t)
		limiter, err := v.Build(stage.Client, stage.Opts...)
		require.NoError(t, err)
		key := func(context.Context, grpclimit.Call) (string, error) { return v.Of("k"), nil }
		sides := map[string]*grpc.ClientConn{
			"server": dial(t, &echo{}, ratelimit.Must(grpclimit.NewServer(limiter, key, cost)).Options()),
			"client": dial(t, &echo{}, nil, ratelimit.Must(grpclimit.NewClient(limiter, key, cost)).Options()...),
		}
		for side, conn := range sides {
			for _, kind := range []string{unary, bidi} {
				do := everyKind[kind]
				t.Run(v.Name+" "+side+kind, func(t *testing.T) {
					integrationtest.Calls{
						Stage: stage, Variant: v, Denied: requireDenied,
						Ask: func(n int) error {
							return do(metadata.AppendToOutgoingContext(t.Context(), "cost", strconv.Itoa(n)), conn)
						},
						Code: func(err error) uint32 { return uint32(status.Code(err)) },
					}.Conform(t)
				})
			}
		}
	}
}

// TestAllOfSeveralLimits: the status is about the one that denies, and none has taken a permit.
func TestAllOfSeveralLimits(t *testing.T) {
	stage := limitertest.OnMiniredis(t)
	second := ratelimit.Must(ratelimit.NewFixedWindow(stage.Client, 5, time.Second, ratelimit.WithName("second")))
	minute := ratelimit.Must(ratelimit.NewFixedWindow(stage.Client, 2, time.Minute, ratelimit.WithName("minute")))
	all := ratelimit.Must(ratelimit.NewAll(second, minute))
	conn := dial(t, &echo{}, newServer(t, all, grpclimit.WithPolicy("api")).Options())
	for range 2 {
		_, err := call(t.Context(), conn, "a")
		require.NoError(t, err)
	}
	for range 9 {
		_, err := call(t.Context(), conn, "a")
		requireDenied(t, err, "api", 2, time.Minute, time.Minute)
	}
	require.Equal(t, 3, ratelimit.Must(second.Peek(t.Context(), "k")).Remaining)
}

// TestTheNumbersOfADenial at the edges of what fits.
func TestTheNumbersOfADenial(t *testing.T) {
	const most = time.Duration(1<<63 - 1)
	for retry, want := range map[time.Duration]time.Duration{
		-time.Second: time.Millisecond, 0: time.Millisecond, 1: time.Millisecond,
		time.Millisecond: time.Millisecond, time.Millisecond + 1: 2 * time.Millisecond,
		most: most.Truncate(time.Millisecond),
	} {
		require.Equal(t, want, grpclimit.Decision{Result: ratelimit.Result{RetryAfter: retry}}.RetryDelay(), retry)
	}
	for _, err := range []error{nil, context.Canceled, status.Error(codes.ResourceExhausted, "")} {
		_, ok := grpclimit.RetryAfter(err)
		require.False(t, ok)
	}
}

package connectlimit_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/connectlimit"
	"github.com/tryacquire/ratelimit/internal/limitertest"
)

// costing sends what a call costs in its header, on the client.
type costing int

func (c costing) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		req.Header().Set("Cost", strconv.Itoa(int(c)))
		return next(ctx, req)
	}
}
func (c costing) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}
func (c costing) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		conn.RequestHeader().Set("Cost", strconv.Itoa(int(c)))
		return conn
	}
}

// TestTheConformanceSuiteOverConnect: every algorithm, storage and way to count, on miniredis,
// through the interceptors of handlers and clients, in turn unary and by a stream, and in each
// protocol. What a call carries is compared: whether it was allowed; of a denial, limit, window and
// RetryAfter, to the millisecond; and the codes of errors. An error does not carry Remaining and
// ResetAfter, nor the limit and window of a call that is allowed; and calls cannot ask for Peek and
// Reset.
func TestTheConformanceSuiteOverConnect(t *testing.T) {
	cost := connectlimit.WithCost(func(_ context.Context, call connectlimit.Call) int {
		n, err := strconv.Atoi(call.Header.Get("Cost"))
		require.NoError(t, err)
		return n
	})
	names := []string{connect.ProtocolConnect, connect.ProtocolGRPC, connect.ProtocolGRPCWeb}
	for i, v := range limitertest.Variants() {
		stage := limitertest.OnMiniredis(t)
		limiter, err := v.Build(stage.Client, stage.Opts...)
		require.NoError(t, err)
		limited, free := serve(t, nil, newServer(t, limiter, cost)), serve(t, nil)
		for j, kind := range []string{unary, bidi} {
			for side, do := range map[string]func(costs costing) error{
				"server": func(c costing) error {
					_, err := everyKind[kind](t.Context(), limited, append(protocols[names[i%3]], connect.WithInterceptors(c))...)
					return err
				},
				"client": func(c costing) error {
					own := must[connect.Interceptor](t)(connectlimit.NewClient(limiter, fixed, cost))
					_, err := everyKind[kind](t.Context(), free, append(protocols[names[i%3]], connect.WithInterceptors(c, own))...)
					return err
				},
			} {
				if (i+j)%2 == 0 != (side == "server") {
					continue // in turn, unary on one side and the stream on the other
				}
				t.Run(v.Name+" "+side+kind, func(t *testing.T) {
					denied := func(err error, retry time.Duration) {
						t.Helper()
						requireDenied(t, err, "default", v.Limit, v.Window, (retry + time.Millisecond - 1).Truncate(time.Millisecond))
					}
					stage.Wipe(t)
					for range 3 {
						require.NoError(t, do(1))
					}
					denied(do(1), v.Retry)
					stage.Advance(v.Retry - v.Grain)
					denied(do(1), v.Grain)
					stage.Advance(v.Grain)
					require.NoError(t, do(1))

					stage.Wipe(t)
					require.NoError(t, do(2))
					denied(do(2), v.Retry)
					require.NoError(t, do(1), "a denial takes nothing")

					require.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(do(4)), "more than can ever be allowed")
					require.Equal(t, connect.CodeInternal, connect.CodeOf(do(-1)))
					if v.Corrupt != nil {
						stage.Wipe(t)
						require.NoError(t, v.Corrupt(stage.Admin, v.Key))
						require.Equal(t, connect.CodeUnavailable, connect.CodeOf(do(1)))
					}
				})
			}
		}
	}
}

package connectlimit_test

import (
	"context"
	"strconv"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/connectlimit"
	"github.com/tryacquire/ratelimit/internal/testing/integrationtest"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// TestTheConformanceSuiteOverConnect: every algorithm, storage and way to count, on miniredis,
// through the interceptors of handlers and clients. The variants take turns with the protocols.
// Unary calls are limited on the one side and streams on the other, and with the next variant the
// other way round. An error does not carry Remaining and ResetAfter, nor the limit and window of a
// call that is allowed; and calls cannot ask for Peek and Reset.
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
		key := func(context.Context, connectlimit.Call) (string, error) { return v.Of("k"), nil }
		limited, free := serve(t, nil, ratelimit.Must(connectlimit.NewServer(limiter, key, cost))), serve(t, nil)
		protocol := protocols[names[i%3]]
		for j, kind := range []string{unary, bidi} {
			side, s, opts := "server", limited, protocol
			if (i+j)%2 == 1 {
				side, s, opts = "client", free, append([]connect.ClientOption{connect.WithInterceptors(ratelimit.Must(connectlimit.NewClient(limiter, key, cost)))}, protocol...)
			}
			t.Run(v.Name+" "+side+kind, func(t *testing.T) {
				integrationtest.Calls{
					Stage: stage, Variant: v, Denied: requireDenied,
					Ask: func(n int) error {
						costs := []connect.ClientOption{connect.WithInterceptors(sending{"Cost", strconv.Itoa(n)})}
						_, err := everyKind[kind](t.Context(), s, append(costs, opts...)...)
						return err
					},
					Code: func(err error) uint32 { return uint32(connect.CodeOf(err)) },
				}.Conform(t)
			})
		}
	}
}

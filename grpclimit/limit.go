package grpclimit

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/rpclimit"
)

// The part that does not know grpc-go is internal/rpclimit.
type (
	limit    = rpclimit.Limit[Call]
	messages = rpclimit.Messages[Call]
)

var protocol = &rpclimit.Protocol[Call]{
	Package: "grpclimit",
	WithMessage: func(call Call, message any) Call {
		call.Message = message
		return call
	},
	Denied: func(ctx context.Context, call Call, d rpclimit.Decision) error {
		return DefaultDenialHandler(ctx, call, Decision(d))
	},
	Failed: DefaultErrorHandler,
	Tell:   setTrailer,
}

func newLimit(side rpclimit.Side, limiter ratelimit.Limiter, key KeyFunc, opts []Option) (*limit, error) {
	shared := make([]rpclimit.Option[Call], len(opts))
	for i, o := range opts {
		shared[i] = o.rpc
	}
	return rpclimit.New(protocol, side, limiter, key, shared)
}

const namePushback = "grpc-retry-pushback-ms"

// setTrailer tells the client's retry policy when to retry.
func setTrailer(ctx context.Context, _ Call, err error, _ time.Duration, pushback string) error {
	_ = grpc.SetTrailer(ctx, metadata.Pairs(namePushback, pushback))
	return err
}

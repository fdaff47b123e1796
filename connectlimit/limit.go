package connectlimit

import (
	"context"

	"connectrpc.com/connect"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/rpclimit"
)

// The part that does not know connect-go is internal/rpclimit.
type (
	limit    = rpclimit.Limit[Call]
	messages = rpclimit.Messages[Call]
)

var protocol = &rpclimit.Protocol[Call]{
	Package: "connectlimit",
	WithMessage: func(call Call, message any) Call {
		call.Message = message
		return call
	},
	Denied: func(ctx context.Context, call Call, d rpclimit.Decision) error {
		return DefaultDenialHandler(ctx, call, Decision(d))
	},
	Failed: DefaultErrorHandler,
	Tell:   withMetadata,
	Answer: withoutCaching,
}

// An interceptor is that of servers or that of clients, as its limit is.
type interceptor struct{ limit *limit }

func newInterceptor(side rpclimit.Side, limiter ratelimit.Limiter, key KeyFunc, opts []Option) (connect.Interceptor, error) {
	shared := make([]rpclimit.Option[Call], len(opts))
	for i, o := range opts {
		shared[i] = o.rpc
	}
	l, err := rpclimit.New(protocol, side, limiter, key, shared)
	if err != nil {
		return nil, err
	}
	return &interceptor{l}, nil
}

// Preload loads the scripts that calls need, so that the first call finds them in Redis, and a connection, and does not
// miss the limit's budget. Call it before the server listens; after an error, as while Redis is down, the limit works
// all the same. [ratelimit.Preload] says what is loaded. A [ratelimit.Choice] is asked for the key "preload" with
// ctx; if it has no plan for these, the error says so.
//
// The error wraps ratelimit.ErrInvalidConfig if limit is not what [NewServer] or [NewClient] returned.
func Preload(ctx context.Context, limit connect.Interceptor) error {
	i, ok := limit.(*interceptor)
	if !ok || i == nil {
		return errNoLimit
	}
	return i.limit.Preload(ctx)
}

// begin is for the calls of a client, serve for those of a handler. connect gives an interceptor to
// either.

func (i *interceptor) begin(ctx context.Context, call Call) (*messages, error) {
	if i.limit.Side != rpclimit.Client {
		return nil, DefaultErrorHandler(ctx, call, errOnClient)
	}
	return i.limit.Begin(ctx, call)
}

func (i *interceptor) serve(ctx context.Context, call Call, work func(context.Context, *messages) error) error {
	if i.limit.Side != rpclimit.Server {
		return DefaultErrorHandler(ctx, call, errOnHandler)
	}
	return i.limit.Serve(ctx, call, work)
}

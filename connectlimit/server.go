package connectlimit

import (
	"context"

	"connectrpc.com/connect"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/rpclimit"
)

// NewServer returns an interceptor for handlers: each call takes a permit of the key that key
// returns, before its handler runs. If it gets none, it fails with the error of the denial
// handler (see [WithDenialHandler]), and if there is no decision, with that of the error handler
// (see [WithErrorHandler]).
//
//	connect.WithInterceptors(authentication, limit)
//
// A unary call's message has been read by then. To deny without reading it, use package httplimit
// by address in front of the handler, with a denial handler as in the example of [Decision.Err].
//
// The error wraps ratelimit.ErrInvalidConfig: limiter or key is nil, or an option cannot work,
// is not for servers, or is given twice. Redis is not asked.
func NewServer(limiter ratelimit.Limiter, key KeyFunc, opts ...Option) (connect.Interceptor, error) {
	return newInterceptor(rpclimit.Server, limiter, key, opts)
}

func (i *interceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (resp connect.AnyResponse, err error) {
		call := Call{Spec: req.Spec(), Peer: req.Peer(), Header: req.Header(), Message: req.Any()}
		if call.Spec.IsClient {
			if _, err = i.begin(ctx, call); err != nil {
				return nil, err
			}
			return next(ctx, req)
		}
		err = i.serve(ctx, call, func(ctx context.Context, _ *messages) error {
			resp, err = next(ctx, req)
			return err
		})
		return resp, err
	}
}

func (i *interceptor) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		call := Call{Spec: conn.Spec(), Peer: conn.Peer(), Header: conn.RequestHeader()}
		return i.serve(ctx, call, func(ctx context.Context, m *messages) error {
			if m != nil {
				conn = &handlerConn{conn, ctx, m}
			}
			return next(ctx, conn)
		})
	}
}

// A handlerConn limits the messages of a handler's stream.
type handlerConn struct {
	connect.StreamingHandlerConn
	ctx      context.Context
	messages *messages
}

func (c *handlerConn) Receive(m any) error {
	return c.messages.Receive(c.ctx, m, c.StreamingHandlerConn.Receive)
}

func (c *handlerConn) Send(m any) error {
	return c.messages.Send(c.ctx, m, c.StreamingHandlerConn.Send)
}

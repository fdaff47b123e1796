package connectlimit

import (
	"context"
	"errors"

	"connectrpc.com/connect"

	"github.com/tryacquire/ratelimit"
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
	l, err := newLimit(server, limiter, key, opts)
	if err != nil {
		return nil, err
	}
	return &interceptor{l}, nil
}

// An interceptor is that of servers or that of clients, as its limit is.
type interceptor struct{ limit *limit }

func (i *interceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		call := Call{Spec: req.Spec(), Peer: req.Peer(), Header: req.Header(), Message: req.Any()}
		key, limited, err := i.limit.keyed(ctx, call)
		switch {
		case err != nil:
			return nil, err
		case !limited:
			return next(ctx, req)
		}
		var resp connect.AnyResponse
		err = i.limit.hold(ctx, call, key, func(ctx context.Context) (err error) {
			if err = i.limit.start(ctx, call, key); err == nil {
				resp, err = next(ctx, req)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		return resp, nil
	}
}

func (i *interceptor) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		call := Call{Spec: conn.Spec(), Peer: conn.Peer(), Header: conn.RequestHeader()}
		key, limited, err := i.limit.keyed(ctx, call)
		switch {
		case err != nil:
			return err
		case !limited:
			return next(ctx, conn)
		}
		return i.limit.hold(ctx, call, key, func(ctx context.Context) error {
			if err := i.limit.start(ctx, call, key); err != nil {
				return err
			}
			if i.limit.limitsMessages() {
				conn = &handlerConn{conn, ctx, messages{limit: i.limit, call: call, key: key}}
			}
			return next(ctx, conn)
		})
	}
}

// hold runs work while the call holds a permit of the limiter for calls at once, if there is one.
func (l *limit) hold(ctx context.Context, call Call, key string, work func(context.Context) error) error {
	if l.inFlight == nil {
		return work(ctx)
	}
	ran := false
	var result error
	err := l.inFlight.Do(ctx, key, func(ctx context.Context) error {
		ran = true
		result = work(ctx)
		return nil
	})
	var denied *ratelimit.DeniedError
	switch {
	case ran: // a lease that was lost has cancelled the handler's context; what that made of it counts
		return result
	case errors.As(err, &denied):
		d := Decision{Policy: l.heldPolicy, InFlight: true, Result: denied.Result}
		d.Result.RetryAfter = l.retryAfter
		return l.deny(ctx, call, d, false)
	}
	if err = l.failed(ctx, call, err); err == nil {
		return work(ctx)
	}
	return err
}

// A handlerConn limits the messages of a handler's stream.
type handlerConn struct {
	connect.StreamingHandlerConn
	ctx context.Context
	messages
}

func (c *handlerConn) Receive(m any) error {
	return c.receive(c.ctx, m, c.StreamingHandlerConn.Receive)
}
func (c *handlerConn) Send(m any) error { return c.send(c.ctx, m, c.StreamingHandlerConn.Send) }

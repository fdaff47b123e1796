package grpclimit

import (
	"context"
	"errors"

	"google.golang.org/grpc"

	"github.com/tryacquire/ratelimit"
)

// A Server limits the calls that a grpc.Server receives.
type Server struct{ limit *limit }

// NewServer returns a limit for servers: each call takes a permit of the key that key returns,
// before its handler runs. If it gets none, it fails with the error of the denial handler (see
// [WithDenialHandler]), and if there is no decision, with that of the error handler (see
// [WithErrorHandler]).
//
//	server := grpc.NewServer(limit.Options()...)
//
// The error wraps ratelimit.ErrInvalidConfig: limiter or key is nil, or an option cannot work,
// is not for servers, or is given twice. Redis is not asked.
func NewServer(limiter ratelimit.Limiter, key KeyFunc, opts ...Option) (*Server, error) {
	l, err := newLimit(server, limiter, key, opts)
	if err != nil {
		return nil, err
	}
	return &Server{l}, nil
}

// Options chains Unary and Stream behind the interceptors that stand before it in the arguments
// of grpc.NewServer.
func (s *Server) Options() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(s.Unary), grpc.ChainStreamInterceptor(s.Stream)}
}

// made is nil if the constructor did not make s, as after an error of its.
func (s *Server) made() *limit {
	if s == nil {
		return nil
	}
	return s.limit
}

// Unary is a grpc.UnaryServerInterceptor.
func (s *Server) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	call := Call{Method: info.FullMethod, Message: req}
	key, limited, err := s.made().keyed(ctx, call)
	switch {
	case err != nil:
		return nil, err
	case !limited:
		return handler(ctx, req)
	}
	var resp any
	err = s.limit.hold(ctx, call, key, func(ctx context.Context) (err error) {
		if err = s.limit.start(ctx, call, key); err == nil {
			resp, err = handler(ctx, req)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// Stream is a grpc.StreamServerInterceptor.
func (s *Server) Stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx := stream.Context()
	call := Call{Method: info.FullMethod}
	key, limited, err := s.made().keyed(ctx, call)
	switch {
	case err != nil:
		return err
	case !limited:
		return handler(srv, stream)
	}
	return s.limit.hold(ctx, call, key, func(held context.Context) error {
		if err := s.limit.start(held, call, key); err != nil {
			return err
		}
		if s.limit.inFlight != nil || s.limit.limitsMessages() {
			stream = &serverStream{stream, held, messages{limit: s.limit, call: call, key: key}}
		}
		return handler(srv, stream)
	})
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

// A serverStream limits the messages of a stream.
type serverStream struct {
	grpc.ServerStream
	ctx context.Context
	messages
}

// Context is that of the stream's permits.
func (s *serverStream) Context() context.Context { return s.ctx }

func (s *serverStream) RecvMsg(m any) error {
	return s.receive(s.ctx, m, s.ServerStream.RecvMsg)
}

func (s *serverStream) SendMsg(m any) error {
	return s.send(s.ctx, m, s.ServerStream.SendMsg)
}

package grpclimit

import (
	"context"

	"google.golang.org/grpc"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/rpclimit"
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
	l, err := newLimit(rpclimit.Server, limiter, key, opts)
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

// Preload loads the scripts that calls need, so that the first call finds them in Redis, and a connection, and does not
// miss the limit's budget. Call it before the server listens; after an error, as while Redis is down, the limit works
// all the same. [ratelimit.Preload] says what is loaded. A [ratelimit.Choice] is asked for the key "preload" with
// ctx; if it has no plan for these, the error says so.
func (s *Server) Preload(ctx context.Context) error {
	if s == nil || s.limit == nil {
		return errUnmade
	}
	return s.limit.Preload(ctx)
}

// Unary is a grpc.UnaryServerInterceptor.
func (s *Server) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	call := Call{Method: info.FullMethod, Message: req}
	err = s.serve(ctx, call, func(ctx context.Context, _ *messages) error {
		resp, err = handler(ctx, req)
		return err
	})
	return resp, err
}

// Stream is a grpc.StreamServerInterceptor.
func (s *Server) Stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	call := Call{Method: info.FullMethod}
	if srv == nil {
		call.name = unknownMethod
	}
	return s.serve(stream.Context(), call, func(ctx context.Context, m *messages) error {
		if m != nil || s.limit.HasInFlight() {
			stream = &serverStream{stream, ctx, m}
		}
		return handler(srv, stream)
	})
}

// serve knows of a Server that the constructor did not make, as after an error of its.
func (s *Server) serve(ctx context.Context, call Call, work func(context.Context, *messages) error) error {
	if s == nil || s.limit == nil {
		return DefaultErrorHandler(ctx, call, errUnmade)
	}
	return s.limit.Serve(ctx, call, work)
}

// A serverStream limits the messages of a stream.
type serverStream struct {
	grpc.ServerStream
	ctx      context.Context
	messages *messages
}

// Context is that of the stream's permits.
func (s *serverStream) Context() context.Context { return s.ctx }

func (s *serverStream) RecvMsg(m any) error {
	return s.messages.Receive(s.ctx, m, s.ServerStream.RecvMsg)
}

func (s *serverStream) SendMsg(m any) error {
	return s.messages.Send(s.ctx, m, s.ServerStream.SendMsg)
}

package grpclimit

import (
	"context"

	"google.golang.org/grpc"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/rpclimit"
)

// A Client limits the calls that a grpc.ClientConn makes.
type Client struct{ limit *limit }

// NewClient returns a limit for clients: each call takes a permit of the key that key returns,
// before anything is sent, and fails as a call that a server denies, with the same status. With
// [WithMaxWait] it waits for the permit instead.
//
//	conn, err := grpc.NewClient(target, append(limit.Options(), others...)...)
//
// A call takes its permits once, however often gRPC's own retry policy sends it. The retry policy
// does not retry what the limit itself denies.
//
// The error wraps ratelimit.ErrInvalidConfig: limiter or key is nil, or an option cannot work,
// is not for clients, or is given twice. Redis is not asked.
func NewClient(limiter ratelimit.Limiter, key KeyFunc, opts ...Option) (*Client, error) {
	l, err := newLimit(rpclimit.Client, limiter, key, opts)
	if err != nil {
		return nil, err
	}
	return &Client{l}, nil
}

// Options chains Unary and Stream behind the interceptors that stand before it in the arguments
// of grpc.NewClient.
func (c *Client) Options() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(c.Unary), grpc.WithChainStreamInterceptor(c.Stream)}
}

// Preload loads the scripts that calls need, see [Server.Preload].
func (c *Client) Preload(ctx context.Context) error {
	if c == nil || c.limit == nil {
		return errUnmade
	}
	return c.limit.Preload(ctx)
}

// Unary is a grpc.UnaryClientInterceptor.
func (c *Client) Unary(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if _, err := c.begin(ctx, Call{Method: method, Message: req, Client: true}); err != nil {
		return err
	}
	return invoker(ctx, method, req, reply, conn, opts...)
}

// Stream is a grpc.StreamClientInterceptor.
func (c *Client) Stream(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	m, err := c.begin(ctx, Call{Method: method, Client: true})
	switch {
	case err != nil:
		return nil, err
	case m == nil:
		return streamer(ctx, desc, conn, method, opts...)
	}
	ctx, cancel := context.WithCancel(ctx)
	stream, err := streamer(ctx, desc, conn, method, opts...)
	if err != nil {
		cancel()
		return nil, err
	}
	return &clientStream{stream, ctx, cancel, !desc.ServerStreams, m}, nil
}

// begin knows of a Client that the constructor did not make, as after an error of its.
func (c *Client) begin(ctx context.Context, call Call) (*messages, error) {
	if c == nil || c.limit == nil {
		return nil, DefaultErrorHandler(ctx, call, errUnmade)
	}
	return c.limit.Begin(ctx, call)
}

// A clientStream limits the messages of a stream. A denial ends the stream, as any error of
// SendMsg and RecvMsg does, and so has to cancel it: nobody else will.
type clientStream struct {
	grpc.ClientStream
	ctx      context.Context
	cancel   context.CancelFunc
	single   bool // the server sends one message at most
	messages *messages
}

func (s *clientStream) RecvMsg(m any) error {
	err := s.messages.Receive(s.ctx, m, s.ClientStream.RecvMsg)
	if err != nil || s.single {
		s.cancel()
	}
	return err
}

func (s *clientStream) SendMsg(m any) error {
	err := s.messages.Send(s.ctx, m, s.ClientStream.SendMsg)
	if s.messages.Ended() != nil {
		s.cancel()
	}
	return err
}

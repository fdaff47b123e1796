package grpclimit

import (
	"context"

	"google.golang.org/grpc"

	"github.com/tryacquire/ratelimit"
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
	l, err := newLimit(client, limiter, key, opts)
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

// made is nil if the constructor did not make c, as after an error of its.
func (c *Client) made() *limit {
	if c == nil {
		return nil
	}
	return c.limit
}

// Unary is a grpc.UnaryClientInterceptor.
func (c *Client) Unary(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	call := Call{Method: method, Message: req, Client: true}
	key, limited, err := c.made().keyed(ctx, call)
	if err == nil && limited {
		err = c.limit.start(ctx, call, key)
	}
	if err != nil {
		return err
	}
	return invoker(ctx, method, req, reply, conn, opts...)
}

// Stream is a grpc.StreamClientInterceptor.
func (c *Client) Stream(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	call := Call{Method: method, Client: true}
	key, limited, err := c.made().keyed(ctx, call)
	if err == nil && limited {
		err = c.limit.start(ctx, call, key)
	}
	if err != nil {
		return nil, err
	}
	if !limited || !c.limit.limitsMessages() {
		return streamer(ctx, desc, conn, method, opts...)
	}
	ctx, cancel := context.WithCancel(ctx)
	stream, err := streamer(ctx, desc, conn, method, opts...)
	if err != nil {
		cancel()
		return nil, err
	}
	return &clientStream{stream, ctx, cancel, !desc.ServerStreams, messages{limit: c.limit, call: call, key: key}}, nil
}

// A clientStream limits the messages of a stream. A denial ends the stream, as any error of
// SendMsg and RecvMsg does, and so has to cancel it: nobody else will.
type clientStream struct {
	grpc.ClientStream
	ctx    context.Context
	cancel context.CancelFunc
	single bool // the server sends one message at most
	messages
}

func (s *clientStream) RecvMsg(m any) error {
	err := s.receive(s.ctx, m, s.ClientStream.RecvMsg)
	if err != nil || s.single {
		s.cancel()
	}
	return err
}

func (s *clientStream) SendMsg(m any) error {
	err := s.send(s.ctx, m, s.ClientStream.SendMsg)
	if ended := s.ended.Load(); ended != nil {
		s.cancel()
	}
	return err
}

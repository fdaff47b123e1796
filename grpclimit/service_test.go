package grpclimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/grpclimit"
	"github.com/tryacquire/ratelimit/internal/testing/integrationtest"
)

// The service has one method of each kind, of strings. It needs no generated code.
const (
	unary        = "/test.Echo/Unary"
	serverStream = "/test.Echo/ServerStream"
	clientStream = "/test.Echo/ClientStream"
	bidi         = "/test.Echo/Bidi"
)

// An echo is the service's handlers. Those that are nil echo.
type echo struct {
	unary  func(ctx context.Context, text string) (string, error)
	stream func(method string, s grpc.ServerStream) error
}

var description = grpc.ServiceDesc{
	ServiceName: "test.Echo",
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{MethodName: "Unary", Handler: func(srv any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
		in := new(wrapperspb.StringValue)
		if err := decode(in); err != nil {
			return nil, err
		}
		handler := func(ctx context.Context, req any) (any, error) {
			text := req.(*wrapperspb.StringValue).GetValue()
			if h := srv.(*echo).unary; h != nil {
				var err error
				if text, err = h(ctx, text); err != nil {
					return nil, err
				}
			}
			return wrapperspb.String(text), nil
		}
		if interceptor == nil {
			return handler(ctx, in)
		}
		return interceptor(ctx, in, &grpc.UnaryServerInfo{Server: srv, FullMethod: unary}, handler)
	}}},
	Streams: []grpc.StreamDesc{
		{StreamName: "ServerStream", ServerStreams: true, Handler: streamHandler(serverStream)},
		{StreamName: "ClientStream", ClientStreams: true, Handler: streamHandler(clientStream)},
		{StreamName: "Bidi", ServerStreams: true, ClientStreams: true, Handler: streamHandler(bidi)},
	},
}

func streamHandler(method string) grpc.StreamHandler {
	return func(srv any, s grpc.ServerStream) error {
		if h := srv.(*echo).stream; h != nil {
			return h(method, s)
		}
		return echoStream(method, s)
	}
}

// echoStream answers each message of bidi with itself, that of serverStream with itself three
// times, and the messages of clientStream with their number.
func echoStream(method string, s grpc.ServerStream) error {
	n := 0
	for ; ; n++ {
		in := new(wrapperspb.StringValue)
		if err := s.RecvMsg(in); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
		times := map[string]int{serverStream: 3, bidi: 1}[method]
		for range times {
			if err := s.SendMsg(in); err != nil {
				return err
			}
		}
	}
	if method == clientStream {
		return s.SendMsg(wrapperspb.String(fmt.Sprint(n)))
	}
	return nil
}

// dial starts a server of e on a loopback address, and connects to it.
func dial(t testing.TB, e *echo, onServer []grpc.ServerOption, onClient ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer(onServer...)
	server.RegisterService(&description, e)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient(listener.Addr().String(), append(onClient, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func call(ctx context.Context, conn *grpc.ClientConn, text string, opts ...grpc.CallOption) (string, error) {
	out := new(wrapperspb.StringValue)
	err := conn.Invoke(ctx, unary, wrapperspb.String(text), out, opts...)
	return out.GetValue(), err
}

// open opens a stream. Each RPC of a test ends with the test at the latest.
func open(ctx context.Context, conn *grpc.ClientConn, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return conn.NewStream(ctx, &grpc.StreamDesc{
		ServerStreams: method != clientStream, ClientStreams: method != serverStream,
	}, method, opts...)
}

// exchange sends the messages on a stream, then receives all that comes.
func exchange(ctx context.Context, conn *grpc.ClientConn, method string, send []string, opts ...grpc.CallOption) (got []string, err error) {
	s, err := open(ctx, conn, method, opts...)
	if err != nil {
		return nil, err
	}
	for _, text := range send {
		if err := s.SendMsg(wrapperspb.String(text)); errors.Is(err, io.EOF) {
			break // the stream is over; RecvMsg says why
		} else if err != nil {
			return nil, err
		}
	}
	if err := s.CloseSend(); err != nil {
		return nil, err
	}
	for {
		out := new(wrapperspb.StringValue)
		switch err := s.RecvMsg(out); {
		case errors.Is(err, io.EOF):
			return got, nil
		case err != nil:
			return got, err
		}
		got = append(got, out.GetValue())
		if method == clientStream {
			return got, nil
		}
	}
}

// everyKind makes a call of each kind, whose answers are those of an echo.
var everyKind = map[string]func(ctx context.Context, conn *grpc.ClientConn, opts ...grpc.CallOption) error{
	unary: func(ctx context.Context, conn *grpc.ClientConn, opts ...grpc.CallOption) error {
		got, err := call(ctx, conn, "a", opts...)
		return either(err, got == "a")
	},
	serverStream: func(ctx context.Context, conn *grpc.ClientConn, opts ...grpc.CallOption) error {
		got, err := exchange(ctx, conn, serverStream, []string{"a"}, opts...)
		return either(err, fmt.Sprint(got) == "[a a a]")
	},
	clientStream: func(ctx context.Context, conn *grpc.ClientConn, opts ...grpc.CallOption) error {
		got, err := exchange(ctx, conn, clientStream, []string{"a", "b"}, opts...)
		return either(err, fmt.Sprint(got) == "[2]")
	},
	bidi: func(ctx context.Context, conn *grpc.ClientConn, opts ...grpc.CallOption) error {
		got, err := exchange(ctx, conn, bidi, []string{"a", "b"}, opts...)
		return either(err, fmt.Sprint(got) == "[a b]")
	},
}

func either(err error, right bool) error {
	if err == nil && !right {
		return errors.New("the answer is not that of an echo")
	}
	return err
}

// fixed is the key "k".
func fixed(context.Context, grpclimit.Call) (string, error) { return "k", nil }

func newServer(t testing.TB, limiter ratelimit.Limiter, opts ...grpclimit.Option) *grpclimit.Server {
	t.Helper()
	return ratelimit.Must(grpclimit.NewServer(limiter, fixed, opts...))
}

func newClient(t testing.TB, limiter ratelimit.Limiter, opts ...grpclimit.Option) *grpclimit.Client {
	t.Helper()
	return ratelimit.Must(grpclimit.NewClient(limiter, fixed, opts...))
}

// requireDenied asserts all of a denial's status.
func requireDenied(t testing.TB, err error, policy string, limit int, window, delay time.Duration) {
	t.Helper()
	message, description := integrationtest.DenialTexts(policy, limit, window, delay)
	want, fault := status.New(codes.ResourceExhausted, message).WithDetails(
		&errdetails.RetryInfo{RetryDelay: durationpb.New(delay)},
		&errdetails.QuotaFailure{Violations: []*errdetails.QuotaFailure_Violation{{
			Subject: "policy:" + policy, Description: description, QuotaId: policy, QuotaValue: int64(limit),
		}}})
	require.NoError(t, fault)
	requireStatus(t, err, want)
	wait, ok := grpclimit.RetryAfter(err)
	require.True(t, ok)
	require.Equal(t, delay, wait)
}

// exhausted is what later releases of grpc-go write before the last attempt's message.
var exhausted = regexp.MustCompile(`^max retries exhausted: failed after \d+ attempts: rpc error: code = \w+ desc = `)

func requireStatus(t testing.TB, err error, want *status.Status) {
	t.Helper()
	require.Error(t, err)
	last := status.Convert(err).Proto()
	last.Message = exhausted.ReplaceAllString(last.GetMessage(), "")
	got := status.FromProto(last)
	require.True(t, proto.Equal(want.Proto(), got.Proto()), "got %v, want %v", got.Proto(), want.Proto())
}

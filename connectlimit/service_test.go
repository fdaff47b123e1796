package connectlimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/connectlimit"
	"github.com/tryacquire/ratelimit/internal/testing/integrationtest"
)

// The service has one procedure of each kind, of strings. It needs no generated code.
const (
	unary        = "/test.Echo/Unary"
	serverStream = "/test.Echo/ServerStream"
	clientStream = "/test.Echo/ClientStream"
	bidi         = "/test.Echo/Bidi"
)

type text = wrapperspb.StringValue

// protocols are those that connect speaks.
var protocols = map[string][]connect.ClientOption{
	connect.ProtocolConnect: nil,
	connect.ProtocolGRPC:    {connect.WithGRPC()},
	connect.ProtocolGRPCWeb: {connect.WithGRPCWeb()},
}

// An echo is what runs before the handlers answer: the answer of bidi is each message, that of
// serverStream the message three times, and that of clientStream the number of messages.
type echo func(ctx context.Context, procedure string) error

func (e echo) before(ctx context.Context, procedure string) error {
	if e == nil {
		return nil
	}
	return e(ctx, procedure)
}

// A service is a server and what it needs to be called.
type service struct {
	url  string
	http *http.Client
}

// serve starts a server of the service.
func serve(t testing.TB, e echo, interceptors ...connect.Interceptor) service {
	t.Helper()
	opt := connect.WithInterceptors(interceptors...)
	mux := http.NewServeMux()
	mux.Handle(unary, connect.NewUnaryHandler(unary, func(ctx context.Context, req *connect.Request[text]) (*connect.Response[text], error) {
		return connect.NewResponse(req.Msg), e.before(ctx, unary)
	}, opt))
	mux.Handle(serverStream, connect.NewServerStreamHandler(serverStream, func(ctx context.Context, req *connect.Request[text], s *connect.ServerStream[text]) error {
		if err := e.before(ctx, serverStream); err != nil {
			return err
		}
		for range 3 {
			if err := s.Send(req.Msg); err != nil {
				return err
			}
		}
		return nil
	}, opt))
	mux.Handle(clientStream, connect.NewClientStreamHandler(clientStream, func(ctx context.Context, s *connect.ClientStream[text]) (*connect.Response[text], error) {
		if err := e.before(ctx, clientStream); err != nil {
			return nil, err
		}
		n := 0
		for s.Receive() {
			n++
		}
		return connect.NewResponse(wrapperspb.String(fmt.Sprint(n))), s.Err()
	}, opt))
	mux.Handle(bidi, connect.NewBidiStreamHandler(bidi, func(ctx context.Context, s *connect.BidiStream[text, text]) error {
		if err := e.before(ctx, bidi); err != nil {
			return err
		}
		for {
			m, err := s.Receive()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err == nil {
				err = s.Send(m)
			}
			if err != nil {
				return err
			}
		}
	}, opt))
	return serveHTTP(t, mux)
}

func serveHTTP(t testing.TB, handler http.Handler) service {
	t.Helper()
	var both, two http.Protocols
	both.SetHTTP1(true)
	both.SetUnencryptedHTTP2(true)
	two.SetUnencryptedHTTP2(true)
	server := httptest.NewUnstartedServer(handler)
	server.Config.Protocols = &both
	server.Start()
	transport := &http.Transport{Protocols: &two}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		server.Close()
	})
	return service{server.URL, &http.Client{Transport: transport}}
}

// client is a client of one procedure.
func (s service) client(procedure string, opts ...connect.ClientOption) *connect.Client[text, text] {
	return connect.NewClient[text, text](s.http, s.url+procedure, opts...)
}

// everyKind makes a call of each kind, and returns what came, and the error.
var everyKind = map[string]func(ctx context.Context, s service, opts ...connect.ClientOption) ([]string, error){
	unary: func(ctx context.Context, s service, opts ...connect.ClientOption) ([]string, error) {
		resp, err := s.client(unary, opts...).CallUnary(ctx, connect.NewRequest(wrapperspb.String("a")))
		if err != nil {
			return nil, err
		}
		return []string{resp.Msg.GetValue()}, nil
	},
	serverStream: func(ctx context.Context, s service, opts ...connect.ClientOption) (got []string, err error) {
		stream, err := s.client(serverStream, opts...).CallServerStream(ctx, connect.NewRequest(wrapperspb.String("a")))
		if err != nil {
			return nil, err
		}
		for stream.Receive() {
			got = append(got, stream.Msg().GetValue())
		}
		_ = stream.Close()
		return got, stream.Err()
	},
	clientStream: func(ctx context.Context, s service, opts ...connect.ClientOption) ([]string, error) {
		stream := s.client(clientStream, opts...).CallClientStream(ctx)
		for _, m := range []string{"a", "b"} {
			if err := stream.Send(wrapperspb.String(m)); errors.Is(err, io.EOF) {
				break // the stream is over; CloseAndReceive says why
			} else if err != nil {
				return nil, err
			}
		}
		resp, err := stream.CloseAndReceive()
		if err != nil {
			return nil, err
		}
		return []string{resp.Msg.GetValue()}, nil
	},
	bidi: func(ctx context.Context, s service, opts ...connect.ClientOption) ([]string, error) {
		return exchange(ctx, s, []string{"a", "b"}, opts...)
	},
}

// answers are those of everyKind.
var answers = map[string][]string{unary: {"a"}, serverStream: {"a", "a", "a"}, clientStream: {"2"}, bidi: {"a", "b"}}

// exchange sends messages by bidi, each after the answer to the one before.
func exchange(ctx context.Context, s service, messages []string, opts ...connect.ClientOption) (got []string, err error) {
	stream := s.client(bidi, opts...).CallBidiStream(ctx)
	defer func() { _ = stream.CloseResponse() }()
	for _, m := range messages {
		if err := stream.Send(wrapperspb.String(m)); err != nil && !errors.Is(err, io.EOF) {
			return got, err
		}
		answer, err := stream.Receive()
		if err != nil {
			return got, err
		}
		got = append(got, answer.GetValue())
	}
	if err := stream.CloseRequest(); err != nil {
		return got, err
	}
	if _, err := stream.Receive(); !errors.Is(err, io.EOF) {
		return got, err
	}
	return got, nil
}

// eachKind runs a test for each kind of call in each protocol.
func eachKind(t *testing.T, test func(t *testing.T, kind, protocol string, do func(ctx context.Context, s service, more ...connect.ClientOption) error)) {
	for protocol, opts := range protocols {
		for kind, call := range everyKind {
			t.Run(protocol+kind, func(t *testing.T) {
				test(t, kind, protocol, func(ctx context.Context, s service, more ...connect.ClientOption) error {
					got, err := call(ctx, s, append(more, opts...)...)
					if err == nil && fmt.Sprint(got) != fmt.Sprint(answers[kind]) {
						return fmt.Errorf("the answer is %v, not that of an echo", got)
					}
					return err
				})
			})
		}
	}
}

// sending is a client's interceptor that sets a header.
type sending struct{ name, value string }

func (s sending) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		req.Header().Set(s.name, s.value)
		return next(ctx, req)
	}
}
func (s sending) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}
func (s sending) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		conn.RequestHeader().Set(s.name, s.value)
		return conn
	}
}

// fixed is the key "k".
func fixed(context.Context, connectlimit.Call) (string, error) { return "k", nil }

func newServer(t testing.TB, limiter ratelimit.Limiter, opts ...connectlimit.Option) connect.Interceptor {
	t.Helper()
	return ratelimit.Must(connectlimit.NewServer(limiter, fixed, opts...))
}

func newClient(t testing.TB, limiter ratelimit.Limiter, opts ...connectlimit.Option) connect.ClientOption {
	t.Helper()
	return connect.WithInterceptors(ratelimit.Must(connectlimit.NewClient(limiter, fixed, opts...)))
}

// requireDenied asserts the code, the text and all details of a denial.
func requireDenied(t testing.TB, err error, policy string, limit int, window, delay time.Duration) {
	t.Helper()
	message, description := integrationtest.DenialTexts(policy, limit, window, delay)
	requireError(t, err, connect.CodeResourceExhausted, message,
		&errdetails.RetryInfo{RetryDelay: durationpb.New(delay)},
		&errdetails.QuotaFailure{Violations: []*errdetails.QuotaFailure_Violation{{
			Subject: "policy:" + policy, Description: description, QuotaId: policy, QuotaValue: int64(limit),
		}}})
	wait, ok := connectlimit.RetryAfter(err)
	require.True(t, ok)
	require.Equal(t, delay, wait)
}

func requireError(t testing.TB, err error, code connect.Code, message string, details ...proto.Message) *connect.Error {
	t.Helper()
	var got *connect.Error
	require.ErrorAs(t, err, &got)
	require.Equal(t, code, got.Code(), "%v", err)
	require.Equal(t, message, got.Message())
	require.Len(t, got.Details(), len(details))
	for i, want := range details {
		value, err := got.Details()[i].Value()
		require.NoError(t, err)
		require.True(t, proto.Equal(want, value), "got %v, want %v", value, want)
	}
	return got
}

func meta(err error, name string) []string {
	var failure *connect.Error
	if !errors.As(err, &failure) {
		return nil
	}
	return failure.Meta().Values(name)
}

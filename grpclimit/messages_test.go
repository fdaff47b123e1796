package grpclimit_test

import (
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/grpclimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// TestEachMessageTakesAPermit counts them, on both sides and in both directions. What ends a
// stream takes none, and a unary call has no messages.
func TestEachMessageTakesAPermit(t *testing.T) {
	for kind, want := range map[string][2]int{ // of the client's messages, of the server's
		unary: {0, 0}, serverStream: {1, 3}, clientStream: {2, 1}, bidi: {2, 2},
	} {
		received, sent, clientSent, clientReceived := limitertest.Allowing(), limitertest.Allowing(), limitertest.Allowing(), limitertest.Allowing()
		limit := newServer(t, ratelimit.AllowAll(), grpclimit.WithReceived(received, 0), grpclimit.WithSent(sent, 0))
		own := newClient(t, ratelimit.AllowAll(), grpclimit.WithSent(clientSent, 0), grpclimit.WithReceived(clientReceived, 0))
		conn := dial(t, &echo{}, limit.Options(), own.Options()...)
		require.NoError(t, everyKind[kind](t.Context(), conn), kind)
		require.Len(t, received.Asked(), want[0], "%s, received by the server", kind)
		require.Len(t, sent.Asked(), want[1], "%s, sent by the server", kind)
		require.Len(t, clientSent.Asked(), want[0], "%s, sent by the client", kind)
		require.Len(t, clientReceived.Asked(), want[1], "%s, received by the client", kind)
	}
}

// TestADeniedMessageEndsTheStream of a server, with the status of a denial.
func TestADeniedMessageEndsTheStream(t *testing.T) {
	var messages []string
	for name, c := range map[string]struct {
		opts func(l ratelimit.Limiter) []grpclimit.Option
		want []string // what the client has received before
	}{
		"received": {func(l ratelimit.Limiter) []grpclimit.Option { return []grpclimit.Option{grpclimit.WithReceived(l, 0)} }, []string{"a", "b"}},
		"sent":     {func(l ratelimit.Limiter) []grpclimit.Option { return []grpclimit.Option{grpclimit.WithSent(l, 0)} }, []string{"a", "b"}},
	} {
		limiter := limitertest.After(2, 1500*time.Microsecond)
		opts := append(c.opts(limiter), grpclimit.WithPolicy("api"), grpclimit.WithDenialHandler(
			func(ctx context.Context, call grpclimit.Call, d grpclimit.Decision) error {
				messages = append(messages, call.Method+" "+call.Message.(*wrapperspb.StringValue).GetValue())
				return grpclimit.DefaultDenialHandler(ctx, call, d)
			}))
		conn := dial(t, &echo{}, newServer(t, ratelimit.AllowAll(), opts...).Options())
		var trailer metadata.MD
		got, err := exchange(t.Context(), conn, bidi, []string{"a", "b", "c", "d"}, grpc.Trailer(&trailer))
		requireDenied(t, err, "api."+name, 5, time.Second, 2*time.Millisecond)
		require.Equal(t, c.want, got)
		require.Equal(t, []string{"-1"}, trailer["grpc-retry-pushback-ms"])
		require.Equal(t, 3, limiter.Count())
		require.Equal(t, []string{bidi + " c"}, messages)
		messages = nil
	}
}

// TestNothingFollowsADenial: a handler that goes on after a denial gets the same error again,
// with nested limits too, and the limiters are not asked.
func TestNothingFollowsADenial(t *testing.T) {
	outer, inner := limitertest.After(1, time.Millisecond), limitertest.After(0, time.Millisecond)
	handled := make(chan []error, 1)
	e := &echo{stream: func(_ string, s grpc.ServerStream) error {
		var errs []error
		for range 3 {
			errs = append(errs, s.RecvMsg(new(wrapperspb.StringValue)))
		}
		errs = append(errs, s.SendMsg(wrapperspb.String("x")))
		handled <- errs
		return errs[1]
	}}
	options := append(newServer(t, ratelimit.AllowAll(), grpclimit.WithReceived(outer, 0), grpclimit.WithPolicy("outer")).Options(),
		newServer(t, ratelimit.AllowAll(), grpclimit.WithSent(inner, 0), grpclimit.WithPolicy("inner")).Options()...)
	conn := dial(t, e, options)
	var trailer metadata.MD
	_, err := exchange(t.Context(), conn, bidi, []string{"a", "b", "c"}, grpc.Trailer(&trailer))
	requireDenied(t, err, "outer.received", 5, time.Second, time.Millisecond)
	errs := <-handled
	require.NoError(t, errs[0])
	require.ErrorIs(t, errs[1], ratelimit.ErrDenied)
	require.Equal(t, []error{errs[1], errs[1]}, errs[2:])
	require.Equal(t, []string{"-1"}, trailer["grpc-retry-pushback-ms"], "two values would be one too many")
	require.Equal(t, 2, outer.Count())
	require.Zero(t, inner.Count())
}

// TestAMessageWaits until the limiter allows it, in order and without a denial.
func TestAMessageWaits(t *testing.T) {
	for name, opts := range map[string]func(l ratelimit.Limiter, wait time.Duration) grpclimit.Option{
		"received": grpclimit.WithReceived, "sent": grpclimit.WithSent,
	} {
		for _, wait := range []time.Duration{time.Hour, grpclimit.UntilDeadline} {
			limiter := limitertest.After(1, time.Millisecond)
			conn := dial(t, &echo{}, newServer(t, ratelimit.AllowAll(), opts(limiter, wait)).Options())
			got, err := exchange(t.Context(), conn, bidi, []string{"a", "b", "c"})
			require.NoError(t, err, name)
			require.Equal(t, []string{"a", "b", "c"}, got)
			require.Greater(t, limiter.Count(), 3, "the second message was denied, and asked again")

			limiter = limitertest.After(1, time.Millisecond)
			conn = dial(t, &echo{}, nil, newClient(t, ratelimit.AllowAll(), opts(limiter, wait)).Options()...)
			got, err = exchange(t.Context(), conn, bidi, []string{"a", "b", "c"})
			require.NoError(t, err, name)
			require.Equal(t, []string{"a", "b", "c"}, got)
			require.Greater(t, limiter.Count(), 3)
		}

		// Permits that come too late are not waited for.
		limiter := limitertest.Denying(5, time.Second, time.Hour)
		conn := dial(t, &echo{}, newServer(t, ratelimit.AllowAll(), opts(limiter, time.Minute)).Options())
		_, err := exchange(t.Context(), conn, bidi, []string{"a"})
		requireDenied(t, err, "default."+name, 5, time.Second, time.Hour)
		require.Equal(t, []string{"k 1"}, limiter.Asked())
	}
}

// TestAnOutageDuringAStream: the error handler decides for each message.
func TestAnOutageDuringAStream(t *testing.T) {
	down := &limitertest.Stub{Err: fmt.Errorf("secret: %w", io.EOF)} // Redis has closed the connection
	for _, opt := range []grpclimit.Option{grpclimit.WithReceived(down, 0), grpclimit.WithSent(down, 0)} {
		conn := dial(t, &echo{}, newServer(t, ratelimit.AllowAll(), opt).Options())
		_, err := exchange(t.Context(), conn, bidi, []string{"a"})
		requireStatus(t, err, status.New(codes.Unavailable, "the rate limit could not be decided"))

		for _, kind := range []string{serverStream, clientStream} {
			requireStatus(t, everyKind[kind](t.Context(), conn), status.New(codes.Unavailable, "the rate limit could not be decided"))
			own := newClient(t, ratelimit.AllowAll(), opt)
			requireStatus(t, everyKind[kind](t.Context(), dial(t, &echo{}, nil, own.Options()...)), status.New(codes.Unavailable, "the rate limit could not be decided"))
		}
		conn = dial(t, &echo{}, newServer(t, ratelimit.AllowAll(), opt, grpclimit.WithErrorHandler(grpclimit.ServeInOutages)).Options())
		got, err := exchange(t.Context(), conn, bidi, []string{"a", "b"})
		require.NoError(t, err)
		require.Equal(t, []string{"a", "b"}, got)
	}
}

// TestAClientsDeniedMessageEndsTheStream on both sides: the server's handler learns of it.
func TestAClientsDeniedMessageEndsTheStream(t *testing.T) {
	for name, c := range map[string]struct {
		opt func(ratelimit.Limiter, time.Duration) grpclimit.Option
	}{"sent": {grpclimit.WithSent}, "received": {grpclimit.WithReceived}} {
		ended := make(chan error, 1)
		e := &echo{stream: func(method string, s grpc.ServerStream) error {
			err := echoStream(method, s)
			<-s.Context().Done()
			ended <- s.Context().Err()
			return err
		}}
		conn := dial(t, e, nil, newClient(t, ratelimit.AllowAll(), c.opt(limitertest.After(1, 1500*time.Microsecond), 0)).Options()...)
		s, err := open(t.Context(), conn, bidi)
		require.NoError(t, err)
		var denial error
		for i := 0; denial == nil; i++ {
			if denial = s.SendMsg(wrapperspb.String(fmt.Sprint(i))); denial == nil {
				denial = s.RecvMsg(new(wrapperspb.StringValue))
			}
		}
		requireDenied(t, denial, "default."+name, 5, time.Second, 2*time.Millisecond)
		require.ErrorIs(t, denial, ratelimit.ErrDenied)
		require.Equal(t, denial, s.SendMsg(wrapperspb.String("x")))
		require.Equal(t, denial, s.RecvMsg(new(wrapperspb.StringValue)))
		require.ErrorIs(t, <-ended, context.Canceled)
	}
}

// TestAReceiveThatWaitsLearnsOfADenial of what the client wanted to send meanwhile.
func TestAReceiveThatWaitsLearnsOfADenial(t *testing.T) {
	entered := make(chan struct{}, 1)
	limiter := limitertest.InTurn(limitertest.Await(entered, limitertest.Denying(5, time.Second, time.Second).Result))
	limit := newClient(t, ratelimit.AllowAll(), grpclimit.WithSent(limiter, 0))
	conn := dial(t, &echo{}, nil, append(limit.Options(), grpc.WithChainStreamInterceptor(
		func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			s, err := streamer(ctx, desc, cc, method, opts...)
			return enteringStream{s, entered}, err
		}))...)
	s, err := open(t.Context(), conn, bidi)
	require.NoError(t, err)
	received := make(chan error, 1)
	go func() { received <- s.RecvMsg(new(wrapperspb.StringValue)) }()
	denial := s.SendMsg(wrapperspb.String("a"))
	requireDenied(t, denial, "default.sent", 5, time.Second, time.Second)
	require.Equal(t, denial, <-received)
}

// enteringStream reports when it begins to receive.
type enteringStream struct {
	grpc.ClientStream
	entered chan struct{}
}

func (s enteringStream) RecvMsg(m any) error {
	s.entered <- struct{}{}
	return s.ClientStream.RecvMsg(m)
}

// TestAStreamThatIsDoneCancelsItsContext, so that nothing of it is kept by the caller's.
func TestAStreamThatIsDoneCancelsItsContext(t *testing.T) {
	for _, kind := range []string{serverStream, clientStream, bidi} {
		var contexts []context.Context
		own := newClient(t, ratelimit.AllowAll(), grpclimit.WithSent(limitertest.Allowing(), 0))
		conn := dial(t, &echo{}, nil, append(own.Options(), grpc.WithChainStreamInterceptor(
			func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
				contexts = append(contexts, ctx)
				return streamer(ctx, desc, cc, method, opts...)
			}))...)
		require.NoError(t, everyKind[kind](t.Context(), conn))
		require.Len(t, contexts, 1)
		require.ErrorIs(t, contexts[0].Err(), context.Canceled, kind)
		require.NoError(t, t.Context().Err())
	}
	failing := func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
		return nil, io.ErrUnexpectedEOF
	}
	_, err := newClient(t, ratelimit.AllowAll(), grpclimit.WithSent(limitertest.Allowing(), 0)).Stream(t.Context(), &grpc.StreamDesc{}, nil, bidi, failing)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
}

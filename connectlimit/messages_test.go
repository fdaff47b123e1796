package connectlimit_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/connectlimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// TestEachMessageTakesAPermit counts them, on both sides and in both directions. What ends a
// stream takes none, and a unary call has no messages.
func TestEachMessageTakesAPermit(t *testing.T) {
	eachKind(t, func(t *testing.T, kind, _ string, do func(context.Context, service, ...connect.ClientOption) error) {
		want := map[string][2]int{ // of the client's messages, of the server's
			unary: {0, 0}, serverStream: {1, 3}, clientStream: {2, 1}, bidi: {2, 2},
		}[kind]
		received, sent, clientSent, clientReceived := limitertest.Allowing(), limitertest.Allowing(), limitertest.Allowing(), limitertest.Allowing()
		s := serve(t, nil, newServer(t, ratelimit.AllowAll(), connectlimit.WithReceived(received, 0), connectlimit.WithSent(sent, 0)))
		own := newClient(t, ratelimit.AllowAll(), connectlimit.WithSent(clientSent, 0), connectlimit.WithReceived(clientReceived, 0))
		require.NoError(t, do(t.Context(), s, own))
		require.Len(t, received.Asked(), want[0], "received by the server")
		require.Len(t, sent.Asked(), want[1], "sent by the server")
		require.Len(t, clientSent.Asked(), want[0], "sent by the client")
		require.Len(t, clientReceived.Asked(), want[1], "received by the client")
	})
}

type messageOption = func(ratelimit.Limiter, time.Duration) connectlimit.Option

var directions = map[string]messageOption{"received": connectlimit.WithReceived, "sent": connectlimit.WithSent}

// TestADeniedMessageEndsTheStream of a server, with the error of a denial.
func TestADeniedMessageEndsTheStream(t *testing.T) {
	for protocol, opts := range protocols {
		for name, direction := range directions {
			var messages []string
			limiter := limitertest.After(2, 1500*time.Microsecond)
			s := serve(t, nil, newServer(t, ratelimit.AllowAll(), direction(limiter, 0), connectlimit.WithPolicy("api"), connectlimit.WithDenialHandler(
				func(ctx context.Context, call connectlimit.Call, d connectlimit.Decision) error {
					messages = append(messages, call.Spec.Procedure+" "+call.Message.(*text).GetValue())
					return connectlimit.DefaultDenialHandler(ctx, call, d)
				})))
			got, err := exchange(t.Context(), s, []string{"a", "b", "c", "d"}, opts...)
			requireDenied(t, err, "api."+name, 5, time.Second, 2*time.Millisecond)
			requirePushback(t, err, protocol, "1", "-1")
			require.Equal(t, []string{"a", "b"}, got)
			require.Equal(t, 3, limiter.Count())
			require.Equal(t, []string{bidi + " c"}, messages)
		}
	}
}

// TestNothingFollowsADenial: a handler that goes on after a denial gets the same error again,
// with nested limits too, and the limiters are not asked.
func TestNothingFollowsADenial(t *testing.T) {
	outer, inner := limitertest.After(1, time.Millisecond), limitertest.After(0, time.Millisecond)
	handled := make(chan []error, 1)
	eager := goingOn(func(conn connect.StreamingHandlerConn) error {
		var errs []error
		for range 3 {
			errs = append(errs, conn.Receive(new(text)))
		}
		errs = append(errs, conn.Send(wrapperspb.String("x")))
		handled <- errs
		return errs[1]
	})
	s := serve(t, nil,
		newServer(t, ratelimit.AllowAll(), connectlimit.WithReceived(outer, 0), connectlimit.WithPolicy("outer")),
		newServer(t, ratelimit.AllowAll(), connectlimit.WithSent(inner, 0), connectlimit.WithPolicy("inner")), eager)
	stream := s.client(bidi).CallBidiStream(t.Context())
	for _, m := range []string{"a", "b", "c"} {
		if err := stream.Send(wrapperspb.String(m)); err != nil {
			require.ErrorIs(t, err, io.EOF)
		}
	}
	_, err := stream.Receive()
	requireDenied(t, err, "outer.received", 5, time.Second, time.Millisecond)
	require.NoError(t, stream.CloseResponse())
	errs := <-handled
	require.NoError(t, errs[0])
	require.ErrorIs(t, errs[1], ratelimit.ErrDenied)
	require.Equal(t, []error{errs[1], errs[1]}, errs[2:])
	require.Equal(t, 2, outer.Count())
	require.Zero(t, inner.Count())
}

// goingOn is a handler of streams in place of the service's.
type goingOn func(connect.StreamingHandlerConn) error

func (g goingOn) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc { return next }
func (g goingOn) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}
func (g goingOn) WrapStreamingHandler(connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(_ context.Context, conn connect.StreamingHandlerConn) error { return g(conn) }
}

// TestAMessageWaits until the limiter allows it, in order and without a denial.
func TestAMessageWaits(t *testing.T) {
	for _, opts := range protocols {
		for name, direction := range directions {
			for _, wait := range []time.Duration{time.Hour, connectlimit.UntilDeadline} {
				limiter := limitertest.After(1, time.Millisecond)
				got, err := exchange(t.Context(), serve(t, nil, newServer(t, ratelimit.AllowAll(), direction(limiter, wait))), []string{"a", "b", "c"}, opts...)
				require.NoError(t, err, name)
				require.Equal(t, []string{"a", "b", "c"}, got)
				require.Greater(t, limiter.Count(), 3, "the second message was denied, and asked again")

				limiter = limitertest.After(1, time.Millisecond)
				own := newClient(t, ratelimit.AllowAll(), direction(limiter, wait))
				got, err = exchange(t.Context(), serve(t, nil), []string{"a", "b", "c"}, append(opts, own)...)
				require.NoError(t, err, name)
				require.Equal(t, []string{"a", "b", "c"}, got)
				require.Greater(t, limiter.Count(), 3)
			}

			// Permits that come too late are not waited for.
			limiter := limitertest.Denying(5, time.Second, time.Hour)
			_, err := exchange(t.Context(), serve(t, nil, newServer(t, ratelimit.AllowAll(), direction(limiter, time.Minute))), []string{"a"}, opts...)
			requireDenied(t, err, "default."+name, 5, time.Second, time.Hour)
			require.Equal(t, []string{"k 1"}, limiter.Asked())
		}
	}
}

// TestAnOutageDuringAStream: the error handler decides for each message.
func TestAnOutageDuringAStream(t *testing.T) {
	down := &limitertest.Stub{Err: fmt.Errorf("secret: %w", io.EOF)} // Redis has closed the connection
	open := connectlimit.WithErrorHandler(connectlimit.ServeInOutages)
	for _, opts := range protocols {
		for _, direction := range directions {
			_, err := exchange(t.Context(), serve(t, nil, newServer(t, ratelimit.AllowAll(), direction(down, 0))), []string{"a"}, opts...)
			requireError(t, err, connect.CodeUnavailable, "the rate limit could not be decided")
			for _, kind := range []string{serverStream, clientStream} {
				got, err := everyKind[kind](t.Context(), serve(t, nil, newServer(t, ratelimit.AllowAll(), direction(down, 0))), opts...)
				requireError(t, err, connect.CodeUnavailable, "the rate limit could not be decided")
				require.Empty(t, got, "an outage is not the end of the stream")
				got, err = everyKind[kind](t.Context(), serve(t, nil), append(opts, newClient(t, ratelimit.AllowAll(), direction(down, 0)))...)
				requireError(t, err, connect.CodeUnavailable, "the rate limit could not be decided")
				require.Empty(t, got)
			}
			got, err := exchange(t.Context(), serve(t, nil, newServer(t, ratelimit.AllowAll(), direction(down, 0), open)), []string{"a", "b"}, opts...)
			require.NoError(t, err)
			require.Equal(t, []string{"a", "b"}, got)
		}
	}
}

// TestAClientsDeniedMessageEndsTheStream on both sides: the server's handler learns of it.
func TestAClientsDeniedMessageEndsTheStream(t *testing.T) {
	for protocol, opts := range protocols {
		for name, direction := range directions {
			ended := make(chan error, 1)
			s := serve(t, nil, goingOn(func(conn connect.StreamingHandlerConn) error {
				for {
					m := new(text)
					err := conn.Receive(m)
					if err == nil {
						err = conn.Send(m)
					}
					if err != nil {
						ended <- err
						return err
					}
				}
			}))
			stream := s.client(bidi, append(opts, newClient(t, ratelimit.AllowAll(), direction(limitertest.After(1, 1500*time.Microsecond), 0)))...).CallBidiStream(t.Context())
			var denial error
			for denial == nil {
				if denial = stream.Send(wrapperspb.String("a")); denial == nil {
					_, denial = stream.Receive()
				}
			}
			requireDenied(t, denial, "default."+name, 5, time.Second, 2*time.Millisecond)
			require.ErrorIs(t, denial, ratelimit.ErrDenied)
			require.Equal(t, denial, stream.Send(wrapperspb.String("x")))
			_, err := stream.Receive()
			require.Equal(t, denial, err)
			require.Equal(t, denial, stream.CloseRequest())
			require.NoError(t, stream.CloseResponse())
			require.NotErrorIs(t, <-ended, io.EOF, "%s: the messages so far are not all of them", protocol)
		}
	}
}

// TestADeniedUploadIsNotTakenForAWholeOne: the server must not see the end of the request.
func TestADeniedUploadIsNotTakenForAWholeOne(t *testing.T) {
	for protocol, opts := range protocols {
		ended := make(chan error, 1)
		s := serve(t, nil, goingOn(func(conn connect.StreamingHandlerConn) error {
			for {
				if err := conn.Receive(new(text)); err != nil {
					ended <- err
					return err
				}
			}
		}))
		stream := s.client(clientStream, append(opts, newClient(t, ratelimit.AllowAll(), connectlimit.WithSent(limitertest.After(2, time.Millisecond), 0)))...).CallClientStream(t.Context())
		require.NoError(t, stream.Send(wrapperspb.String("a")))
		require.NoError(t, stream.Send(wrapperspb.String("b")))
		denial := stream.Send(wrapperspb.String("c"))
		requireDenied(t, denial, "default.sent", 5, time.Second, time.Millisecond)
		require.NotErrorIs(t, <-ended, io.EOF, "%s: the server is told at once", protocol)
		_, err := stream.CloseAndReceive()
		require.Equal(t, denial, err)
	}
}

// TestAFirstMessageThatIsDenied: nothing is sent, and a Receive that waits for the answer ends.
func TestAFirstMessageThatIsDenied(t *testing.T) {
	var arrived atomic.Int32
	s := serveHTTP(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { arrived.Add(1) }))
	for _, opts := range protocols {
		entered := make(entering, 1)
		limiter := limitertest.InTurn(limitertest.Await(entered, limitertest.Denying(5, time.Second, time.Second).Result))
		stream := s.client(bidi, append(opts, newClient(t, ratelimit.AllowAll(), connectlimit.WithSent(limiter, 0)), connect.WithInterceptors(entered))...).CallBidiStream(t.Context())
		received := make(chan error, 1)
		go func() {
			_, err := stream.Receive()
			received <- err
		}()
		denial := stream.Send(wrapperspb.String("a"))
		requireDenied(t, denial, "default.sent", 5, time.Second, time.Second)
		require.Equal(t, denial, <-received)
		require.Empty(t, stream.ResponseHeader())
		require.Empty(t, stream.ResponseTrailer())
		require.NoError(t, stream.CloseResponse())
	}
	require.Zero(t, arrived.Load())
}

// entering gets a value when a client's stream inside of the limit begins to receive.
type entering chan struct{}

func (e entering) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc { return next }
func (e entering) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}
func (e entering) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		return enteringConn{next(ctx, spec), e}
	}
}

type enteringConn struct {
	connect.StreamingClientConn
	e entering
}

func (c enteringConn) Receive(m any) error {
	c.e <- struct{}{}
	return c.StreamingClientConn.Receive(m)
}

// TestAStreamThatIsDoneCancelsItsContext, so that nothing of it is kept by the caller's.
func TestAStreamThatIsDoneCancelsItsContext(t *testing.T) {
	eachKind(t, func(t *testing.T, kind, _ string, do func(context.Context, service, ...connect.ClientOption) error) {
		seen := &contexts{}
		own := newClient(t, ratelimit.AllowAll(), connectlimit.WithSent(limitertest.Allowing(), 0))
		require.NoError(t, do(t.Context(), serve(t, nil), own, connect.WithInterceptors(seen)))
		if kind != unary {
			require.Len(t, seen.all, 1)
			require.ErrorIs(t, seen.all[0].Err(), context.Canceled)
		}
		require.NoError(t, t.Context().Err())
	})

	// Without Close too, if it was received to its end.
	seen := &contexts{}
	own := newClient(t, ratelimit.AllowAll(), connectlimit.WithSent(limitertest.Allowing(), 0))
	stream, err := serve(t, nil).client(serverStream, own, connect.WithInterceptors(seen)).CallServerStream(t.Context(), connect.NewRequest(wrapperspb.String("a")))
	require.NoError(t, err)
	for stream.Receive() {
		require.NoError(t, seen.all[0].Err())
	}
	require.NoError(t, stream.Err())
	require.ErrorIs(t, seen.all[0].Err(), context.Canceled)
}

// contexts records those of a client's streams.
type contexts struct{ all []context.Context }

func (c *contexts) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc { return next }
func (c *contexts) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}
func (c *contexts) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		c.all = append(c.all, ctx)
		return next(ctx, spec)
	}
}

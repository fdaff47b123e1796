package connectlimit_test

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/connectlimit"
	"github.com/tryacquire/ratelimit/internal/testing/integrationtest"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// TestAClientLimitsItself: a call that is denied is not sent, and fails as if a server had denied
// it.
func TestAClientLimitsItself(t *testing.T) {
	eachKind(t, func(t *testing.T, kind, _ string, do func(context.Context, service, ...connect.ClientOption) error) {
		var arrived atomic.Int32
		s := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			arrived.Add(1)
			w.WriteHeader(http.StatusTeapot)
		}))
		limiter := limitertest.Denying(5, time.Second, 1500*time.Microsecond)
		own := newClient(t, limiter, connectlimit.WithPolicy("upstream"))
		err := do(t.Context(), s, own)
		requireDenied(t, err, "upstream", 5, time.Second, 2*time.Millisecond)
		require.Empty(t, meta(err, "Retry-After"))
		var denied *ratelimit.DeniedError
		require.ErrorAs(t, err, &denied)
		require.Equal(t, &ratelimit.DeniedError{Result: limiter.Result}, denied)
		require.Equal(t, []string{"k 1"}, limiter.Asked(), kind)

		limiter.Err = errors.New("dial tcp: secret")
		requireError(t, do(t.Context(), s, own), connect.CodeUnavailable, "the rate limit could not be decided")
		require.Zero(t, arrived.Load(), "nothing was sent")

		limiter = limitertest.Allowing()
		require.NoError(t, do(t.Context(), serve(t, nil), newClient(t, limiter)))
		require.Equal(t, []string{"k 1"}, limiter.Asked())
	})
}

// TestAStreamsHeaderIsCompleteWhenItIsLimited: the permits are taken with the first message.
func TestAStreamsHeaderIsCompleteWhenItIsLimited(t *testing.T) {
	limiter := limitertest.Allowing()
	limit := ratelimit.Must(connectlimit.NewClient(limiter, ratelimit.Must(connectlimit.Header("X-Tenant"))))
	stream := serve(t, nil).client(bidi, connect.WithInterceptors(limit)).CallBidiStream(t.Context())
	stream.RequestHeader().Set("X-Tenant", "acme")
	require.Empty(t, limiter.Asked())
	require.NoError(t, stream.Send(nil), "the header alone")
	require.Equal(t, []string{"header:x-tenant:acme 1"}, limiter.Asked())
	require.NoError(t, stream.Send(wrapperspb.String("a")))
	m, err := stream.Receive()
	require.NoError(t, err)
	require.Equal(t, "a", m.GetValue())
	require.NoError(t, stream.CloseRequest())
	require.NoError(t, stream.CloseResponse())
	require.Empty(t, limiter.Asked())
}

// TestTheSideThatReceivesDoesNotBeginAStream: it may not read the header, which is not complete
// yet.
func TestTheSideThatReceivesDoesNotBeginAStream(t *testing.T) {
	limiter := limitertest.Allowing()
	limit := ratelimit.Must(connectlimit.NewClient(limiter, ratelimit.Must(connectlimit.Header("X-Tenant"))))
	s := serve(t, nil)
	stream := s.client(bidi, connect.WithInterceptors(limit)).CallBidiStream(t.Context())
	received := make(chan string, 1)
	go func() {
		m, _ := stream.Receive()
		received <- m.GetValue()
	}()
	stream.RequestHeader().Set("X-Tenant", "acme")
	require.NoError(t, stream.Send(wrapperspb.String("a")))
	require.Equal(t, "a", <-received)
	require.Equal(t, []string{"header:x-tenant:acme 1"}, limiter.Asked())
	require.NoError(t, stream.CloseResponse())

	// Of a stream that has not begun there is nothing to close, and its context ends the wait.
	ctx, cancel := context.WithCancel(t.Context())
	idle := s.client(bidi, connect.WithInterceptors(limit)).CallBidiStream(ctx)
	require.NoError(t, idle.CloseResponse())
	cancel()
	_, err := idle.Receive()
	requireError(t, err, connect.CodeCanceled, "context canceled")
	require.Empty(t, idle.ResponseHeader())
	require.Empty(t, idle.ResponseTrailer())
	require.Empty(t, limiter.Asked())
}

// TestADeniedStreamHasNothingOpen: each of its methods answers at once.
func TestADeniedStreamHasNothingOpen(t *testing.T) {
	own := newClient(t, limitertest.Denying(5, time.Second, time.Second), connectlimit.WithSent(limitertest.Allowing(), 0))
	for _, opts := range protocols {
		stream := serve(t, nil).client(bidi, append(opts, own)...).CallBidiStream(t.Context())
		requireDenied(t, stream.Send(wrapperspb.String("a")), "default", 5, time.Second, time.Second)
		_, err := stream.Receive()
		requireDenied(t, err, "default", 5, time.Second, time.Second)
		require.Empty(t, stream.ResponseHeader())
		require.Empty(t, stream.ResponseTrailer())
		requireDenied(t, stream.CloseRequest(), "default", 5, time.Second, time.Second)
		require.NoError(t, stream.CloseResponse())
	}
}

// TestWaiting: a call waits for its permits, on a client and on a server.
func TestWaiting(t *testing.T) {
	for kind, call := range everyKind {
		t.Run("server"+kind, func(t *testing.T) {
			waits(func(ctx context.Context, l ratelimit.Limiter, wait time.Duration) error {
				_, err := call(ctx, serve(t, nil, newServer(t, l, connectlimit.WithMaxWait(wait))))
				return err
			}).Test(t)
		})
		t.Run("client"+kind, func(t *testing.T) {
			waits(func(ctx context.Context, l ratelimit.Limiter, wait time.Duration) error {
				_, err := call(ctx, serve(t, nil), newClient(t, l, connectlimit.WithMaxWait(wait)))
				return err
			}).Test(t)
		})
	}
}

func waits(call func(context.Context, ratelimit.Limiter, time.Duration) error) integrationtest.Waits {
	return integrationtest.Waits{Call: call, Denied: requireDenied, UntilDeadline: connectlimit.UntilDeadline}
}

func TestAWaitThatIsOver(t *testing.T) {
	waits(func(ctx context.Context, l ratelimit.Limiter, wait time.Duration) error {
		_, err := everyKind[unary](ctx, serve(t, nil, newServer(t, l, connectlimit.WithMaxWait(wait))))
		return err
	}).TestEnd(t)
}

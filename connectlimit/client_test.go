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
	"github.com/tryacquire/ratelimit/internal/limitertest"
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
		limiter := denying(5, time.Second, 1500*time.Microsecond)
		own := newClient(t, limiter, connectlimit.WithPolicy("upstream"))
		err := do(t.Context(), s, own)
		requireDenied(t, err, "upstream", 5, time.Second, 2*time.Millisecond)
		require.Empty(t, meta(err, "Retry-After"))
		var denied *ratelimit.DeniedError
		require.ErrorAs(t, err, &denied)
		require.Equal(t, &ratelimit.DeniedError{Result: limiter.result}, denied)
		require.Equal(t, []string{"k 1"}, limiter.asked(), kind)

		limiter.err = errors.New("dial tcp: secret")
		requireError(t, do(t.Context(), s, own), connect.CodeUnavailable, "the rate limit could not be decided")
		require.Zero(t, arrived.Load(), "nothing was sent")

		limiter = allowing()
		require.NoError(t, do(t.Context(), serve(t, nil), newClient(t, limiter)))
		require.Equal(t, []string{"k 1"}, limiter.asked())
	})
}

// TestAStreamsHeaderIsCompleteWhenItIsLimited: the permits are taken with the first message.
func TestAStreamsHeaderIsCompleteWhenItIsLimited(t *testing.T) {
	limiter := allowing()
	limit := must[connect.Interceptor](t)(connectlimit.NewClient(limiter, must[connectlimit.KeyFunc](t)(connectlimit.Header("X-Tenant"))))
	stream := serve(t, nil).client(bidi, connect.WithInterceptors(limit)).CallBidiStream(t.Context())
	stream.RequestHeader().Set("X-Tenant", "acme")
	require.Empty(t, limiter.asked())
	require.NoError(t, stream.Send(nil), "the header alone")
	require.Equal(t, []string{"header:x-tenant:acme 1"}, limiter.asked())
	require.NoError(t, stream.Send(wrapperspb.String("a")))
	m, err := stream.Receive()
	require.NoError(t, err)
	require.Equal(t, "a", m.GetValue())
	require.NoError(t, stream.CloseRequest())
	require.NoError(t, stream.CloseResponse())
	require.Empty(t, limiter.asked())
}

// TestTheSideThatReceivesDoesNotBeginAStream: it may not read the header, which is not complete
// yet.
func TestTheSideThatReceivesDoesNotBeginAStream(t *testing.T) {
	limiter := allowing()
	limit := must[connect.Interceptor](t)(connectlimit.NewClient(limiter, must[connectlimit.KeyFunc](t)(connectlimit.Header("X-Tenant"))))
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
	require.Equal(t, []string{"header:x-tenant:acme 1"}, limiter.asked())
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
	require.Empty(t, limiter.asked())
}

// TestADeniedStreamHasNothingOpen: each of its methods answers at once.
func TestADeniedStreamHasNothingOpen(t *testing.T) {
	own := newClient(t, denying(5, time.Second, time.Second), connectlimit.WithSent(allowing(), 0))
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

// TestWaiting: a call waits for its permits, on a client and on a server, up to the wait and the
// deadline, and not where that is hopeless. A bucket is waited for by a reservation.
func TestWaiting(t *testing.T) {
	const period = 3 * time.Millisecond
	for side, limited := range map[string]func(l ratelimit.Limiter, wait time.Duration) (service, connect.ClientOption){
		"server": func(l ratelimit.Limiter, wait time.Duration) (service, connect.ClientOption) {
			return serve(t, nil, newServer(t, l, connectlimit.WithMaxWait(wait))), connect.WithInterceptors()
		},
		"client": func(l ratelimit.Limiter, wait time.Duration) (service, connect.ClientOption) {
			return serve(t, nil), newClient(t, l, connectlimit.WithMaxWait(wait))
		},
	} {
		for kind, call := range everyKind {
			do := func(ctx context.Context, l ratelimit.Limiter, wait time.Duration) error {
				s, own := limited(l, wait)
				_, err := call(ctx, s, own)
				return err
			}
			// Redis's clock stands still, so that three calls make reservations that are
			// one, two and three periods away.
			stage := limitertest.OnMiniredis(t)
			bucket := must[*ratelimit.TokenBucket](t)(ratelimit.NewTokenBucket(stage.Client, ratelimit.Per(1, period), 1))
			for i := range 4 {
				begin := time.Now()
				require.NoError(t, do(t.Context(), bucket, connectlimit.UntilDeadline), "%s %s", side, kind)
				require.GreaterOrEqual(t, time.Since(begin), time.Duration(i)*period)
			}
			// The fifth would be due after four periods.
			requireDenied(t, do(t.Context(), bucket, 4*period-time.Millisecond), "default", 1, period, 4*period)

			// By the call's own deadline, which leaves no time.
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			far := denying(5, time.Second, time.Hour)
			requireDenied(t, do(ctx, far, connectlimit.UntilDeadline), "default", 5, time.Second, time.Hour)
			require.Equal(t, []string{"k 1", "k 1"}, far.asked(), "to wait, it is asked again")
			requireDenied(t, do(t.Context(), far, time.Hour-1), "default", 5, time.Second, time.Hour)
			require.Equal(t, []string{"k 1"}, far.asked())

			// Others are faster until the wait is over.
			starved := denying(5, time.Second, time.Microsecond)
			requireDenied(t, do(t.Context(), starved, 4*time.Millisecond), "default", 5, time.Second, time.Millisecond)
			require.Greater(t, len(starved.asked()), 1)
		}
	}
}

// hanging answers once, and then no more.
type hanging struct{ scripted }

func (h *hanging) TryAcquireN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	r, err := h.scripted.TryAcquireN(ctx, key, n)
	if h.count() > 1 {
		<-ctx.Done()
		return ratelimit.Result{}, ctx.Err()
	}
	return r, err
}

// TestAWaitThatIsOver is a denial, with what is known of the next permit.
func TestAWaitThatIsOver(t *testing.T) {
	soon := ratelimit.Result{Limit: 5, Window: time.Second, RetryAfter: time.Millisecond}
	late := ratelimit.Result{Limit: 5, Window: time.Second, RetryAfter: time.Hour}
	for name, c := range map[string]struct {
		limiter ratelimit.Limiter
		retry   time.Duration
	}{
		"others have come first":   {&scripted{results: []ratelimit.Result{soon, late}}, time.Hour},
		"the limiter has not said": {&hanging{scripted{results: []ratelimit.Result{soon}}}, time.Millisecond},
	} {
		t.Log(name)
		_, err := everyKind[unary](t.Context(), serve(t, nil, newServer(t, c.limiter, connectlimit.WithMaxWait(20*time.Millisecond))))
		requireDenied(t, err, "default", 5, time.Second, c.retry)
	}
}

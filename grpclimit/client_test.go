package grpclimit_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/grpclimit"
	"github.com/tryacquire/ratelimit/internal/testing/integrationtest"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// TestAClientLimitsItself: a call that is denied is not sent, and fails as if a server had denied
// it.
func TestAClientLimitsItself(t *testing.T) {
	for kind, do := range everyKind {
		calls := &attempts{}
		limiter := limitertest.Denying(5, time.Second, 1500*time.Microsecond)
		conn := dial(t, &echo{}, calls.options(), append(newClient(t, limiter, grpclimit.WithPolicy("upstream")).Options(), retrying(5, time.Millisecond))...)
		err := do(t.Context(), conn)
		requireDenied(t, err, "upstream", 5, time.Second, 2*time.Millisecond)
		require.ErrorIs(t, err, ratelimit.ErrDenied)
		var denied *ratelimit.DeniedError
		require.ErrorAs(t, err, &denied)
		require.Equal(t, &ratelimit.DeniedError{Result: limiter.Result}, denied)
		require.Equal(t, []string{"k 1"}, limiter.Asked(), kind)

		limiter.Result = limitertest.Allowing().Result
		require.NoError(t, do(t.Context(), conn))
		require.Equal(t, []codes.Code{codes.OK}, calls.codes(), "what was denied was not sent")

		limiter.Err = errors.New("dial tcp: secret")
		requireStatus(t, do(t.Context(), conn), status.New(codes.Unavailable, "the rate limit could not be decided"))
	}
	var unmade *grpclimit.Client
	for _, do := range everyKind {
		requireStatus(t, do(t.Context(), dial(t, &echo{}, nil, unmade.Options()...)), status.New(codes.Internal, "the rate limit is set up wrongly"))
	}
}

// TestARetriedCallTakesItsPermitsOnce: the retry policy is inside of the interceptors.
func TestARetriedCallTakesItsPermitsOnce(t *testing.T) {
	for kind, do := range everyKind {
		onServer, own := limitertest.After(0, time.Millisecond), limitertest.Allowing()
		conn := dial(t, &echo{}, newServer(t, onServer).Options(), append(newClient(t, own).Options(), retrying(5, time.Hour))...)
		require.NoError(t, do(t.Context(), conn), kind)
		require.Equal(t, 2, onServer.Count())
		require.Equal(t, []string{"k 1"}, own.Asked())
	}
}

// TestTheClientOfAHandlerSetsNoTrailer of the call that the handler serves.
func TestTheClientOfAHandlerSetsNoTrailer(t *testing.T) {
	upstream := dial(t, &echo{}, nil, newClient(t, limitertest.Denying(5, time.Second, time.Second)).Options()...)
	conn := dial(t, &echo{unary: func(ctx context.Context, text string) (string, error) {
		_, err := call(ctx, upstream, text)
		requireDenied(t, err, "default", 5, time.Second, time.Second)
		return "from memory", nil
	}}, nil)
	var trailer metadata.MD
	got, err := call(t.Context(), conn, "a", grpc.Trailer(&trailer))
	require.NoError(t, err)
	require.Equal(t, "from memory", got)
	require.Empty(t, trailer["grpc-retry-pushback-ms"])
}

// TestWaiting: a call waits for its permits, on a client and on a server.
func TestWaiting(t *testing.T) {
	for kind, do := range everyKind {
		t.Run("server"+kind, func(t *testing.T) {
			waits(func(ctx context.Context, l ratelimit.Limiter, wait time.Duration) error {
				return do(ctx, dial(t, &echo{}, newServer(t, l, grpclimit.WithMaxWait(wait)).Options()))
			}).Test(t)
		})
		t.Run("client"+kind, func(t *testing.T) {
			waits(func(ctx context.Context, l ratelimit.Limiter, wait time.Duration) error {
				return do(ctx, dial(t, &echo{}, nil, newClient(t, l, grpclimit.WithMaxWait(wait)).Options()...))
			}).Test(t)
		})
	}
}

func waits(call func(context.Context, ratelimit.Limiter, time.Duration) error) integrationtest.Waits {
	return integrationtest.Waits{Call: call, Denied: requireDenied, UntilDeadline: grpclimit.UntilDeadline}
}

// TestACallThatIsCancelledWhileItWaits gives back its place.
func TestACallThatIsCancelledWhileItWaits(t *testing.T) {
	stage := limitertest.OnMiniredis(t)
	bucket := ratelimit.Must(ratelimit.NewTokenBucket(stage.Client, ratelimit.PerHour(1), 1))
	require.True(t, ratelimit.Must(bucket.TryAcquire(t.Context(), "k")).Allowed)
	before := ratelimit.Must(bucket.Peek(t.Context(), "k"))

	ctx, cancel := context.WithCancel(t.Context())
	conn := dial(t, &echo{}, nil, newClient(t, bucket, grpclimit.WithMaxWait(grpclimit.UntilDeadline)).Options()...)
	done := make(chan error, 1)
	go func() {
		_, err := call(ctx, conn, "a")
		done <- err
	}()
	require.Eventually(t, func() bool { // until it has its reservation
		r, err := bucket.Peek(t.Context(), "k")
		return err == nil && r.RetryAfter > before.RetryAfter
	}, 10*time.Second, time.Millisecond)
	cancel()
	requireStatus(t, <-done, status.New(codes.Canceled, "context canceled"))
	require.Eventually(t, func() bool { // if the reply was still on its way, in the background
		r, err := bucket.Peek(t.Context(), "k")
		return err == nil && r == before
	}, 10*time.Second, time.Millisecond)
}

func TestAWaitThatIsOver(t *testing.T) {
	waits(func(ctx context.Context, l ratelimit.Limiter, wait time.Duration) error {
		_, err := call(ctx, dial(t, &echo{}, newServer(t, l, grpclimit.WithMaxWait(wait)).Options()), "a")
		return err
	}).TestEnd(t)
}

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
	"github.com/tryacquire/ratelimit/internal/limitertest"
)

// TestAClientLimitsItself: a call that is denied is not sent, and fails as if a server had denied
// it.
func TestAClientLimitsItself(t *testing.T) {
	for kind, do := range everyKind {
		calls := &attempts{}
		limiter := denying(5, time.Second, 1500*time.Microsecond)
		conn := dial(t, &echo{}, calls.options(), append(newClient(t, limiter, grpclimit.WithPolicy("upstream")).Options(), retrying(5, time.Millisecond))...)
		err := do(t.Context(), conn)
		requireDenied(t, err, "upstream", 5, time.Second, 2*time.Millisecond)
		require.ErrorIs(t, err, ratelimit.ErrDenied)
		var denied *ratelimit.DeniedError
		require.ErrorAs(t, err, &denied)
		require.Equal(t, &ratelimit.DeniedError{Result: limiter.result}, denied)
		require.Equal(t, []string{"k 1"}, limiter.asked(), kind)

		limiter.result = allowing().result
		require.NoError(t, do(t.Context(), conn))
		require.Equal(t, []codes.Code{codes.OK}, calls.codes(), "what was denied was not sent")

		limiter.err = errors.New("dial tcp: secret")
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
		onServer, own := after(0, time.Millisecond), allowing()
		conn := dial(t, &echo{}, newServer(t, onServer).Options(), append(newClient(t, own).Options(), retrying(5, time.Hour))...)
		require.NoError(t, do(t.Context(), conn), kind)
		require.Equal(t, 2, onServer.count())
		require.Equal(t, []string{"k 1"}, own.asked())
	}
}

// TestTheClientOfAHandlerSetsNoTrailer of the call that the handler serves.
func TestTheClientOfAHandlerSetsNoTrailer(t *testing.T) {
	upstream := dial(t, &echo{}, nil, newClient(t, denying(5, time.Second, time.Second)).Options()...)
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

// TestWaiting: a call waits for its permits, on a client and on a server, up to the wait and the
// deadline, and not where that is hopeless. A bucket is waited for by a reservation.
func TestWaiting(t *testing.T) {
	const period = 5 * time.Millisecond
	for kind, do := range everyKind {
		for side, conn := range map[string]func(l ratelimit.Limiter, wait time.Duration) *grpc.ClientConn{
			"server": func(l ratelimit.Limiter, wait time.Duration) *grpc.ClientConn {
				return dial(t, &echo{}, newServer(t, l, grpclimit.WithMaxWait(wait)).Options())
			},
			"client": func(l ratelimit.Limiter, wait time.Duration) *grpc.ClientConn {
				return dial(t, &echo{}, nil, newClient(t, l, grpclimit.WithMaxWait(wait)).Options()...)
			},
		} {
			t.Run(side+kind, func(t *testing.T) {
				// Redis's clock stands still, so that three calls make reservations that are
				// one, two and three periods away.
				stage := limitertest.OnMiniredis(t)
				bucket := must[*ratelimit.TokenBucket](t)(ratelimit.NewTokenBucket(stage.Client, ratelimit.Per(1, period), 1))
				waiting := conn(bucket, grpclimit.UntilDeadline)
				begin := time.Now()
				for i := range 4 {
					require.NoError(t, do(t.Context(), waiting))
					require.GreaterOrEqual(t, time.Since(begin), time.Duration(i)*period)
					begin = time.Now()
				}
				// The fifth would be due after four periods.
				err := do(t.Context(), conn(bucket, 4*period-time.Millisecond))
				requireDenied(t, err, "default", 1, period, 4*period)

				// By the call's own deadline, which leaves no time.
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				far := denying(5, time.Second, time.Hour)
				requireDenied(t, do(ctx, conn(far, grpclimit.UntilDeadline)), "default", 5, time.Second, time.Hour)
				require.Equal(t, []string{"k 1", "k 1"}, far.asked(), "to wait, it is asked again")
				requireDenied(t, do(t.Context(), conn(far, time.Hour-1)), "default", 5, time.Second, time.Hour)
				require.Equal(t, []string{"k 1"}, far.asked())

				// Others are faster until the wait is over.
				starved := denying(5, time.Second, time.Microsecond)
				requireDenied(t, do(t.Context(), conn(starved, 4*time.Millisecond)), "default", 5, time.Second, time.Millisecond)
				require.Greater(t, len(starved.asked()), 1)
			})
		}
	}
}

// TestACallThatIsCancelledWhileItWaits gives back its place.
func TestACallThatIsCancelledWhileItWaits(t *testing.T) {
	stage := limitertest.OnMiniredis(t)
	bucket := must[*ratelimit.TokenBucket](t)(ratelimit.NewTokenBucket(stage.Client, ratelimit.PerHour(1), 1))
	require.True(t, must[ratelimit.Result](t)(bucket.TryAcquire(t.Context(), "k")).Allowed)
	before := must[ratelimit.Result](t)(bucket.Peek(t.Context(), "k"))

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
		_, err := call(t.Context(), dial(t, &echo{}, newServer(t, c.limiter, grpclimit.WithMaxWait(20*time.Millisecond)).Options()), "a")
		requireDenied(t, err, "default", 5, time.Second, c.retry)
	}
}

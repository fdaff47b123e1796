package grpclimit_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/grpclimit"
	"github.com/tryacquire/ratelimit/internal/testing/integrationtest"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// retrying is an ordinary retry policy of grpc-go, which retries denials.
func retrying(attempts int, backoff time.Duration) grpc.DialOption {
	return grpc.WithDefaultServiceConfig(fmt.Sprintf(`{"methodConfig": [{"name": [{}], "retryPolicy": {
		"maxAttempts": %d, "initialBackoff": "%.3fs", "maxBackoff": "%.3fs", "backoffMultiplier": 1,
		"retryableStatusCodes": ["RESOURCE_EXHAUSTED", "UNAVAILABLE"]}}]}`, attempts, backoff.Seconds(), backoff.Seconds()))
}

// An attempt is a call as it arrives at the server, and leaves it.
type attempt struct {
	arrived time.Time // by this process's monotonic clock
	code    codes.Code
}

// attempts records the calls that reach a server, and calls arrive before each.
type attempts struct {
	mu     sync.Mutex
	all    []attempt
	arrive func(i int)
}

func (a *attempts) record(call func() error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if a.arrive != nil {
		a.arrive(len(a.all))
	}
	err := call()
	a.all = append(a.all, attempt{now, status.Code(err)})
	return err
}

func (a *attempts) options() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
			err = a.record(func() error { resp, err = handler(ctx, req); return err })
			return resp, err
		}),
		grpc.ChainStreamInterceptor(func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			return a.record(func() error { return handler(srv, s) })
		}),
	}
}

func (a *attempts) codes() (all []codes.Code) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, one := range a.all {
		all = append(all, one.code)
	}
	return all
}

// TestAnOrdinaryRetryPolicyBacksOff: the client comes back when the limiter allows it, as told
// by the trailer and never earlier, whatever its own backoff is; and is then allowed, at the
// instant of the limiter's own RetryAfter. A permit comes every 20 ms. Redis's clock moves with
// the attempts.
func TestAnOrdinaryRetryPolicyBacksOff(t *testing.T) {
	const period = 20 * time.Millisecond
	for backoff, name := range map[time.Duration]string{time.Millisecond: "shorter", time.Hour: "longer"} {
		for kind, do := range everyKind {
			t.Run(name+kind, func(t *testing.T) {
				stage := limitertest.OnMiniredis(t)
				bucket := ratelimit.Must(ratelimit.NewTokenBucket(stage.Client, ratelimit.Per(1, period), 1))
				steps := []time.Duration{0, 0, period - time.Microsecond, time.Microsecond}
				calls := &attempts{arrive: func(i int) { stage.Advance(steps[i]) }}
				conn := dial(t, &echo{}, append(calls.options(), newServer(t, bucket).Options()...), retrying(4, backoff))

				require.NoError(t, do(t.Context(), conn), "the permit")
				require.NoError(t, do(t.Context(), conn), "denied twice, the second time a microsecond too early")
				require.Equal(t, []codes.Code{codes.OK, codes.ResourceExhausted, codes.ResourceExhausted, codes.OK}, calls.codes())
				require.GreaterOrEqual(t, calls.all[2].arrived.Sub(calls.all[1].arrived), period)
				require.GreaterOrEqual(t, calls.all[3].arrived.Sub(calls.all[2].arrived), time.Millisecond)
			})
		}
	}
}

// sendsOneMessage reports whether a caller of that kind surely learns of the denial of its last
// attempt. grpc-go 1.80 may give the callers of other streams io.EOF instead, as if the stream had
// ended well: when the denial arrives while the messages are sent again (clientStream.retryLocked
// returns the error of SendMsg).
func sendsOneMessage(kind string) bool { return kind == unary || kind == serverStream }

// TestRetriesEnd: the client gives up after its attempts, and gets the last denial whole.
func TestRetriesEnd(t *testing.T) {
	for kind, do := range everyKind {
		calls := &attempts{}
		limiter := limitertest.Denying(5, time.Second, time.Millisecond)
		conn := dial(t, &echo{}, append(calls.options(), newServer(t, limiter).Options()...), retrying(3, time.Hour))
		err := do(t.Context(), conn)
		if sendsOneMessage(kind) {
			requireDenied(t, err, "default", 5, time.Second, time.Millisecond)
		}
		require.Len(t, calls.codes(), 3, kind)
		require.Len(t, limiter.Asked(), 3)
	}
}

// TestAHopelessRetryIsNotMade: where the permits come after the deadline, or not before long, the
// client gets the denial at once, and not DEADLINE_EXCEEDED at the end.
func TestAHopelessRetryIsNotMade(t *testing.T) {
	for kind, do := range everyKind {
		calls := &attempts{}
		limiter := limitertest.Denying(5, time.Hour, time.Minute)
		conn := dial(t, &echo{}, append(calls.options(), newServer(t, limiter).Options()...), retrying(5, time.Millisecond))
		ctx, cancel := context.WithTimeout(t.Context(), 59*time.Second)
		defer cancel()
		requireDenied(t, do(ctx, conn), "default", 5, time.Hour, time.Minute)
		require.Len(t, calls.codes(), 1, kind)

		limiter.Result.RetryAfter = 720 * time.Hour
		requireDenied(t, do(t.Context(), conn), "default", 5, time.Hour, 720*time.Hour)
		require.Len(t, calls.codes(), 2, kind)
	}
}

// TestAClosedOutageBacksOff: the denial because of an outage has a pushback too.
func TestAClosedOutageBacksOff(t *testing.T) {
	primary := &limitertest.Stub{Err: context.DeadlineExceeded}
	secondary := limitertest.Denying(0, 0, 5*time.Millisecond)
	closed := ratelimit.Must(ratelimit.NewFallback(primary, secondary))
	calls := &attempts{arrive: func(i int) {
		if i == 1 {
			primary.Err, primary.Result = nil, ratelimit.Result{Allowed: true, Limit: 1, Window: time.Second}
		}
	}}
	conn := dial(t, &echo{}, append(calls.options(), newServer(t, closed).Options()...), retrying(3, time.Hour))
	got, err := call(t.Context(), conn, "a")
	require.NoError(t, err)
	require.Equal(t, "a", got)
	require.Equal(t, []codes.Code{codes.Unavailable, codes.OK}, calls.codes())
	require.GreaterOrEqual(t, calls.all[1].arrived.Sub(calls.all[0].arrived), 5*time.Millisecond)
}

// TestAnOutageBacksOffAsToldByTheService: without a decision there is a pushback if the service names a time.
func TestAnOutageBacksOffAsToldByTheService(t *testing.T) {
	limiter := &limitertest.Stub{Err: context.DeadlineExceeded}
	calls := &attempts{arrive: func(i int) {
		if i == 1 {
			limiter.Err, limiter.Result = nil, ratelimit.Result{Allowed: true, Limit: 1, Window: time.Second}
		}
	}}
	limit := newServer(t, limiter, grpclimit.WithOutageRetryAfter(5*time.Millisecond))
	conn := dial(t, &echo{}, append(calls.options(), limit.Options()...), retrying(3, time.Hour))
	got, err := call(t.Context(), conn, "a")
	require.NoError(t, err)
	require.Equal(t, "a", got)
	require.Equal(t, []codes.Code{codes.Unavailable, codes.OK}, calls.codes())
}

// TestAStreamDeniedMidwayIsNotReplayed: a client would send all its messages again, and have
// the same message denied.
func TestAStreamDeniedMidwayIsNotReplayed(t *testing.T) {
	calls := &attempts{}
	second := limitertest.After(1, time.Millisecond)
	conn := dial(t, &echo{}, append(calls.options(), newServer(t, limitertest.Allowing(), grpclimit.WithReceived(second, 0)).Options()...), retrying(5, time.Millisecond))
	_, err := exchange(t.Context(), conn, clientStream, []string{"a", "b", "c"})
	requireDenied(t, err, "default.received", 5, time.Second, time.Millisecond)
	require.Len(t, calls.codes(), 1)
}

// TestAStreamThatFailsMidwayIsNotReplayed, nor told to come back.
func TestAStreamThatFailsMidwayIsNotReplayed(t *testing.T) {
	calls := &attempts{}
	messages := &limitertest.Stub{Err: context.DeadlineExceeded}
	conn := dial(t, &echo{}, append(calls.options(), newServer(t, limitertest.Allowing(),
		grpclimit.WithReceived(messages, 0), grpclimit.WithOutageRetryAfter(time.Millisecond)).Options()...), retrying(5, time.Millisecond))
	_, err := exchange(t.Context(), conn, clientStream, []string{"a"})
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.Len(t, calls.codes(), 1)
}

func TestADeadlineIsNoOutage(t *testing.T) {
	integrationtest.DeadlinesAreNoOutages(t, codes.ResourceExhausted, codes.DeadlineExceeded,
		func(ctx context.Context, t *testing.T, l ratelimit.Limiter, wait time.Duration) codes.Code {
			opts := []grpclimit.Option{grpclimit.WithErrorHandler(grpclimit.ServeInOutages)}
			if wait > 0 {
				opts = append(opts, grpclimit.WithMaxWait(wait))
			}
			_, err := newServer(t, l, opts...).Unary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: "/a/b"},
				func(context.Context, any) (any, error) { return nil, nil })
			return status.Code(err)
		})
}

// TestRetrySpread: what clients are told is spread, and never less than exact.
func TestRetrySpread(t *testing.T) {
	denied := &limitertest.Stub{Result: ratelimit.Result{Limit: 1, Window: time.Second, RetryAfter: time.Second, ResetAfter: time.Second}}
	conn := dial(t, &echo{}, newServer(t, denied, grpclimit.WithRetrySpread(time.Second)).Options())
	seen := map[time.Duration]bool{}
	for range 50 {
		_, err := call(t.Context(), conn, "a")
		wait, ok := grpclimit.RetryAfter(err)
		require.True(t, ok)
		require.True(t, time.Second <= wait && wait <= 2*time.Second, wait)
		seen[wait] = true
	}
	require.Greater(t, len(seen), 10)
}

package connectlimit_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/connectlimit"
	"github.com/tryacquire/ratelimit/internal/limitertest"
)

// offline is a Redis that is down.
type offline struct{}

func (offline) Process(context.Context, redis.Cmder) error { return errors.New("dial: secret") }

// TestCallsAtOnce: a call holds its place while its handler runs, and is denied without a permit
// of the rate if there is none. The place is free afterwards.
func TestCallsAtOnce(t *testing.T) {
	eachKind(t, func(t *testing.T, _, protocol string, do func(context.Context, service, ...connect.ClientOption) error) {
		stage := limitertest.OnMiniredis(t)
		inFlight := must[*ratelimit.InFlight](t)(ratelimit.NewInFlight(stage.Client, 1, time.Minute))
		rate := allowing()
		entered, leave := make(chan struct{}, 1), make(chan struct{})
		s := serve(t, func(context.Context, string) error {
			entered <- struct{}{}
			<-leave
			return nil
		}, newServer(t, rate, connectlimit.WithInFlight(inFlight), connectlimit.WithPolicy("slow"), connectlimit.WithRetryAfter(3*time.Second)))

		first := make(chan error, 1)
		go func() { first <- do(t.Context(), s) }()
		<-entered
		require.Equal(t, []string{"k 1"}, rate.asked())
		err := do(t.Context(), s)
		requireHeld(t, err, "slow.inflight", 1, 3*time.Second)
		requirePushback(t, err, protocol, "3", "3000")
		require.Empty(t, rate.asked())
		close(leave)
		require.NoError(t, <-first)
		require.NoError(t, do(t.Context(), s))
		<-entered

		// A denial by the rate frees its place too.
		rate.result = denying(5, time.Second, time.Second).result
		for range 2 {
			requireDenied(t, do(t.Context(), s), "slow", 5, time.Second, time.Second)
		}
	})
}

// TestCallsAtOnceInAnOutage: as without a decision of the rate's limiter.
func TestCallsAtOnceInAnOutage(t *testing.T) {
	inFlight := must[*ratelimit.InFlight](t)(ratelimit.NewInFlight(offline{}, 1, time.Minute))
	open := connectlimit.WithErrorHandler(connectlimit.ServeInOutages)
	eachKind(t, func(t *testing.T, _, _ string, do func(context.Context, service, ...connect.ClientOption) error) {
		rate := allowing()
		err := do(t.Context(), serve(t, nil, newServer(t, rate, connectlimit.WithInFlight(inFlight))))
		requireError(t, err, connect.CodeUnavailable, "the rate limit could not be decided")
		require.Empty(t, rate.asked())
		require.NoError(t, do(t.Context(), serve(t, nil, newServer(t, rate, connectlimit.WithInFlight(inFlight), open))))
		require.Equal(t, []string{"k 1"}, rate.asked(), "the rate still holds")
	})
}

// onTime denies its first call, if it is to, and fails at the deadline of the next one, a moment
// before or after the context ends.
type onTime struct {
	*stub
	denies bool
}

func (l *onTime) TryAcquireN(ctx context.Context, _ string, _ int) (ratelimit.Result, error) {
	if l.denies {
		l.denies = false
		return ratelimit.Result{Limit: 5, Window: time.Second, RetryAfter: time.Second}, nil
	}
	deadline, _ := ctx.Deadline()
	time.Sleep(time.Until(deadline))
	return ratelimit.Result{}, errors.New("i/o timeout")
}

// TestADeadlineIsNoOutage: neither that of the wait nor the call's own, which a client chooses.
func TestADeadlineIsNoOutage(t *testing.T) {
	for range 100 {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			open := connectlimit.WithErrorHandler(connectlimit.ServeInOutages)
			ask := func(i connect.Interceptor) connect.Code {
				_, err := i.WrapUnary(func(context.Context, connect.AnyRequest) (connect.AnyResponse, error) { return nil, nil })(ctx, connect.NewRequest(&emptypb.Empty{}))
				return connect.CodeOf(err)
			}
			require.Equal(t, connect.CodeResourceExhausted, ask(newServer(t, &onTime{denies: true}, open, connectlimit.WithMaxWait(2*time.Second))))
			require.Equal(t, connect.CodeDeadlineExceeded, ask(newServer(t, &onTime{}, open)))
		})
	}
}

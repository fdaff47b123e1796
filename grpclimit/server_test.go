package grpclimit_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/grpclimit"
	"github.com/tryacquire/ratelimit/internal/testing/integrationtest"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

func TestCallsOfEachKindAreAllowedAndDenied(t *testing.T) {
	for kind, do := range everyKind {
		limiter := limitertest.Allowing()
		conn := dial(t, &echo{}, newServer(t, limiter, grpclimit.WithPolicy("api")).Options())
		require.NoError(t, do(t.Context(), conn), kind)
		require.Equal(t, []string{"k 1"}, limiter.Asked(), "a call takes one permit, a stream when it starts")

		ran := false
		limiter = limitertest.Denying(5, time.Second, 1500*time.Microsecond)
		conn = dial(t, &echo{
			unary:  func(context.Context, string) (string, error) { ran = true; return "", nil },
			stream: func(string, grpc.ServerStream) error { ran = true; return nil },
		}, newServer(t, limiter, grpclimit.WithPolicy("api")).Options())
		var header, trailer metadata.MD
		requireDenied(t, do(t.Context(), conn, grpc.Header(&header), grpc.Trailer(&trailer)), "api", 5, time.Second, 2*time.Millisecond)
		require.Equal(t, []string{"k 1"}, limiter.Asked())
		require.False(t, ran, "the handler must not run")
		require.Equal(t, []string{"2"}, trailer["grpc-retry-pushback-ms"], "%s: %v", kind, header)
	}
}

// TestThePolicyIsTheLimitersName, if no other is given.
func TestThePolicyIsTheLimitersName(t *testing.T) {
	for want, limit := range map[string]*grpclimit.Server{
		"bucket":  newServer(t, limitertest.Named("bucket", limitertest.Denying(5, time.Second, time.Second))),
		"other":   newServer(t, limitertest.Named("bucket", limitertest.Denying(5, time.Second, time.Second)), grpclimit.WithPolicy("other")),
		"default": newServer(t, limitertest.Named("", limitertest.Denying(5, time.Second, time.Second))),
	} {
		_, err := call(t.Context(), dial(t, &echo{}, limit.Options()), "a")
		requireDenied(t, err, want, 5, time.Second, time.Second)
	}
}

// TestPushback: a client's retry policy is told when to retry, or not to where no retry helps.
func TestPushback(t *testing.T) {
	for _, c := range []struct {
		name     string
		retry    time.Duration
		deadline time.Duration // of the call; 0: none
		opts     []grpclimit.Option
		want     string
	}{
		{"a microsecond", time.Microsecond, 0, nil, "1"},
		{"no time at all", 0, 0, nil, "1"},
		{"a millisecond", time.Millisecond, 0, nil, "1"},
		{"a nanosecond more", time.Millisecond + 1, 0, nil, "2"},
		{"the longest", time.Minute, 0, nil, "60000"},
		{"longer", time.Minute + 1, 0, nil, "-1"},
		{"a month", 720 * time.Hour, 0, nil, "-1"},
		{"a longest of one's own", time.Second, 0, []grpclimit.Option{grpclimit.WithMaxPushback(time.Second)}, "1000"},
		{"longer than that", time.Second + 1, 0, []grpclimit.Option{grpclimit.WithMaxPushback(time.Second)}, "-1"},
		{"never", 1, 0, []grpclimit.Option{grpclimit.WithMaxPushback(0)}, "-1"},
		{"within the deadline", time.Second, time.Hour, nil, "1000"},
		{"beyond the deadline", 59 * time.Second, 50 * time.Second, nil, "-1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn := dial(t, &echo{}, newServer(t, limitertest.Denying(5, time.Second, c.retry), c.opts...).Options())
			ctx := t.Context()
			if c.deadline > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, c.deadline)
				defer cancel()
			}
			for kind, do := range everyKind {
				var trailer metadata.MD
				err := do(ctx, conn, grpc.Trailer(&trailer))
				require.Equal(t, codes.ResourceExhausted, status.Code(err))
				require.Equal(t, []string{c.want}, trailer["grpc-retry-pushback-ms"], kind)
			}
		})
	}
}

// TestOutages: without a decision a call is UNAVAILABLE, and so it is under a closed policy; an
// open one lets it pass.
func TestOutages(t *testing.T) {
	primary := &limitertest.Stub{Err: errors.New("dial tcp 10.1.2.3:6379: secret")}
	closed := ratelimit.Must(ratelimit.NewFallback(primary, ratelimit.DenyAll()))
	opened := ratelimit.Must(ratelimit.NewFallback(primary, ratelimit.AllowAll()))
	undecided := status.New(codes.Unavailable, "the rate limit could not be decided")
	second, err := undecided.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Second)})
	require.NoError(t, err)

	later, err := undecided.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(1501 * time.Millisecond)})
	require.NoError(t, err)
	retryLater := grpclimit.WithOutageRetryAfter(1500*time.Millisecond + 1)
	gone := status.New(codes.Unavailable, "gone")

	for name, c := range map[string]struct {
		limiter ratelimit.Limiter
		opts    []grpclimit.Option
		want    *status.Status // nil: the call goes on
		trailer []string
	}{
		"no policy":          {primary, nil, undecided, nil},
		"closed":             {closed, nil, second, []string{"1000"}},
		"open":               {opened, nil, nil, nil},
		"open by the option": {primary, []grpclimit.Option{grpclimit.WithErrorHandler(grpclimit.ServeInOutages)}, nil, nil},
		"no policy, later":   {primary, []grpclimit.Option{retryLater}, later, []string{"1501"}},
		"later than that":    {primary, []grpclimit.Option{retryLater, grpclimit.WithMaxPushback(time.Second)}, later, []string{"-1"}},
		"closed, later":      {closed, []grpclimit.Option{retryLater}, second, []string{"1000"}},
		"open, later":        {primary, []grpclimit.Option{retryLater, grpclimit.WithErrorHandler(grpclimit.ServeInOutages)}, nil, nil},
		"of its own, later": {primary, []grpclimit.Option{retryLater, grpclimit.WithErrorHandler(func(context.Context, grpclimit.Call, error) error {
			return gone.Err()
		})}, gone, []string{"1501"}},
		"no outage":           {&limitertest.Stub{Err: ratelimit.ErrExceedsLimit}, []grpclimit.Option{retryLater}, status.New(codes.InvalidArgument, "the call takes more than the rate limit can ever allow"), nil},
		"closed, with a wait": {closed, []grpclimit.Option{grpclimit.WithMaxWait(time.Hour)}, second, []string{"1000"}},
	} {
		t.Run(name, func(t *testing.T) {
			conn := dial(t, &echo{}, newServer(t, c.limiter, c.opts...).Options())
			for kind, do := range everyKind {
				var trailer metadata.MD
				err := do(t.Context(), conn, grpc.Trailer(&trailer))
				if c.want == nil {
					require.NoError(t, err, kind)
				} else {
					requireStatus(t, err, c.want)
				}
				require.Equal(t, c.trailer, trailer["grpc-retry-pushback-ms"], kind)
			}
		})
	}
	_, err = newServer(t, primary, retryLater).Unary(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/a/b"}, nil)
	require.ErrorIs(t, err, primary.Err)
	require.NotContains(t, err.Error(), "secret")
	require.ErrorContains(t, newClient(t, primary, retryLater).Unary(t.Context(), "/a/b", nil, nil, nil, nil), "could not be decided")
	conn := dial(t, &echo{}, newServer(t, ratelimit.DenyAll()).Options())
	_, err = call(t.Context(), conn, "a")
	requireDenied(t, err, "default", 0, 0, time.Second) // a client that is blocked, and no outage
}

func TestErrorsHaveACodeAndNoText(t *testing.T) {
	for _, c := range integrationtest.Failures() {
		wrapped := fmt.Errorf("secret: %w", c.Err)
		want := status.New(codes.Code(c.Code), c.Text)

		limiter := &limitertest.Stub{Err: wrapped}
		conn := dial(t, &echo{}, newServer(t, limiter).Options())
		noKey := ratelimit.Must(grpclimit.NewServer(limiter, func(context.Context, grpclimit.Call) (string, error) { return "", wrapped }))
		connNoKey := dial(t, &echo{}, noKey.Options())
		for kind, do := range everyKind {
			var trailer metadata.MD
			requireStatus(t, do(t.Context(), conn, grpc.Trailer(&trailer)), want)
			require.Empty(t, trailer["grpc-retry-pushback-ms"], kind)
			limiter.Asked()
			requireStatus(t, do(t.Context(), connNoKey), want)
			require.Empty(t, limiter.Asked(), "without a key the limiter is not asked")
		}
		// In the process the cause is known.
		_, err := newServer(t, limiter).Unary(t.Context(), nil, &grpc.UnaryServerInfo{}, nil)
		require.ErrorIs(t, err, c.Err)
		require.Equal(t, fmt.Sprintf("rpc error: code = %v desc = %s", want.Code(), c.Text), err.Error())
	}
	mistake := status.New(codes.Internal, "the rate limit is set up wrongly")
	empty := ratelimit.Must(grpclimit.NewServer(limitertest.Allowing(), func(context.Context, grpclimit.Call) (string, error) { return "", nil }))
	_, err := call(t.Context(), dial(t, &echo{}, empty.Options()), "a")
	requireStatus(t, err, mistake)
	var unmade *grpclimit.Server
	for _, do := range everyKind {
		requireStatus(t, do(t.Context(), dial(t, &echo{}, unmade.Options())), mistake)
	}
}

// TestOpenIsNoWayAroundTheLimit: only an outage lets a call pass.
func TestOpenIsNoWayAroundTheLimit(t *testing.T) {
	for _, c := range integrationtest.Failures() {
		got := grpclimit.ServeInOutages(t.Context(), grpclimit.Call{}, c.Err)
		require.Equal(t, c.IsOutage(), got == nil, c.Err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.Equal(t, codes.Canceled, status.Code(grpclimit.ServeInOutages(ended, grpclimit.Call{}, errors.New("dial"))))

	// Whatever the error of a key function is, the call has no key.
	session := func(context.Context, grpclimit.Call) (string, error) { return "", errSession }
	joined, err := grpclimit.Join(session, grpclimit.Everyone())
	require.NoError(t, err)
	for _, key := range []grpclimit.KeyFunc{session, joined} {
		var got error
		open, err := grpclimit.NewServer(ratelimit.AllowAll(), key, grpclimit.WithErrorHandler(func(ctx context.Context, call grpclimit.Call, err error) error {
			got = err
			return grpclimit.ServeInOutages(ctx, call, err)
		}))
		require.NoError(t, err)
		for _, do := range everyKind {
			requireStatus(t, do(t.Context(), dial(t, &echo{}, open.Options())), status.New(codes.Unavailable, "the rate limit could not be decided"))
			require.ErrorIs(t, got, errSession)
			require.EqualError(t, got, "no session")
		}
	}
}

var errSession = errors.New("no session")

func TestHandlersOfOnesOwn(t *testing.T) {
	var got []grpclimit.Decision
	var calls []grpclimit.Call
	limiter := limitertest.Denying(5, 5*time.Second, 1500*time.Microsecond)
	teapot := status.Error(codes.FailedPrecondition, "a teapot")
	conn := dial(t, &echo{}, newServer(t, limiter, grpclimit.WithPolicy("api"),
		grpclimit.WithDenialHandler(func(_ context.Context, call grpclimit.Call, d grpclimit.Decision) error {
			call.Message = nil
			got, calls = append(got, d), append(calls, call)
			return teapot
		})).Options())
	for kind, do := range everyKind {
		var trailer metadata.MD
		requireStatus(t, do(t.Context(), conn, grpc.Trailer(&trailer)), status.Convert(teapot))
		require.Equal(t, []string{"2"}, trailer["grpc-retry-pushback-ms"])
		require.Equal(t, []grpclimit.Decision{{Policy: "api", Result: limiter.Result}}, got)
		require.Equal(t, []grpclimit.Call{{Method: kind}}, calls)
		got, calls = nil, nil
	}
	require.Equal(t, 2*time.Millisecond, grpclimit.Decision{Result: limiter.Result}.RetryDelay())

	conn = dial(t, &echo{}, newServer(t, limiter,
		grpclimit.WithDenialHandler(func(context.Context, grpclimit.Call, grpclimit.Decision) error { return nil })).Options())
	for _, do := range everyKind {
		requireDenied(t, do(t.Context(), conn), "default", 5, 5*time.Second, 2*time.Millisecond)
	}

	failure := errors.New("down")
	var errs []error
	conn = dial(t, &echo{}, newServer(t, &limitertest.Stub{Err: failure}, grpclimit.WithErrorHandler(func(_ context.Context, _ grpclimit.Call, err error) error {
		errs = append(errs, err)
		return nil
	})).Options())
	for kind, do := range everyKind {
		require.NoError(t, do(t.Context(), conn), kind)
	}
	require.Equal(t, []error{failure, failure, failure, failure}, errs)
}

func TestCostAndSkip(t *testing.T) {
	for cost, want := range map[int][]string{0: nil, 1: {"k 1"}, 7: {"k 7"}, -1: {"k -1"}} {
		limiter := limitertest.Allowing()
		conn := dial(t, &echo{}, newServer(t, limiter, grpclimit.WithCost(func(context.Context, grpclimit.Call) int { return cost })).Options())
		for kind, do := range everyKind {
			require.NoError(t, do(t.Context(), conn), kind)
			require.Equal(t, want, limiter.Asked(), kind)
		}
	}
	negative := grpclimit.WithCost(func(context.Context, grpclimit.Call) int { return -1 })
	_, err := call(t.Context(), dial(t, &echo{}, newServer(t, ratelimit.AllowAll(), negative).Options()), "a")
	require.Equal(t, codes.Internal, status.Code(err))

	limiter := limitertest.Allowing()
	conn := dial(t, &echo{}, newServer(t, limiter,
		grpclimit.WithSkip(func(_ context.Context, c grpclimit.Call) bool { return c.Method == unary || c.Method == bidi }),
		grpclimit.WithReceived(limiter, 0), grpclimit.WithSent(limiter, 0)).Options())
	for kind, do := range everyKind {
		require.NoError(t, do(t.Context(), conn), kind)
		require.Equal(t, kind == unary || kind == bidi, len(limiter.Asked()) == 0, kind)
	}
}

// TestNestedLimits: of two limits the inner one is asked only if the outer one allows, and the
// status names the one that denied. The same limit twice takes two permits.
func TestNestedLimits(t *testing.T) {
	outer, inner := limitertest.Allowing(), limitertest.Denying(3, time.Second, time.Second)
	options := append(newServer(t, outer, grpclimit.WithPolicy("outer")).Options(), newServer(t, inner, grpclimit.WithPolicy("inner")).Options()...)
	conn := dial(t, &echo{}, options)
	for kind, do := range everyKind {
		var trailer metadata.MD
		requireDenied(t, do(t.Context(), conn, grpc.Trailer(&trailer)), "inner", 3, time.Second, time.Second)
		require.Equal(t, []string{"1000"}, trailer["grpc-retry-pushback-ms"], kind)
		require.Len(t, outer.Asked(), 1)
		require.Len(t, inner.Asked(), 1)
	}
	outer.Result = inner.Result
	for _, do := range everyKind {
		requireDenied(t, do(t.Context(), conn), "outer", 3, time.Second, time.Second)
		require.Len(t, outer.Asked(), 1)
		require.Empty(t, inner.Asked())
	}

	twice := limitertest.Allowing()
	limit := newServer(t, twice)
	conn = dial(t, &echo{}, append(limit.Options(), limit.Options()...))
	for _, do := range everyKind {
		require.NoError(t, do(t.Context(), conn))
		require.Equal(t, []string{"k 1", "k 1"}, twice.Asked())
	}
}

// TestAPanicOfAHandlerIsLeftToRecover: an interceptor outside recovers it, and the next call
// goes on.
func TestAPanicOfAHandlerIsLeftToRecover(t *testing.T) {
	e := &echo{
		unary:  func(context.Context, string) (string, error) { panic("oh") },
		stream: func(string, grpc.ServerStream) error { panic("oh") },
	}
	recovered := func(err *error) {
		if v := recover(); v != nil {
			*err = status.Errorf(codes.Internal, "recovered %v", v)
		}
	}
	options := append([]grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (_ any, err error) {
			defer recovered(&err)
			return handler(ctx, req)
		}),
		grpc.ChainStreamInterceptor(func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
			defer recovered(&err)
			return handler(srv, s)
		}),
	}, newServer(t, limitertest.Allowing(), grpclimit.WithReceived(limitertest.Allowing(), 0)).Options()...)
	conn := dial(t, e, options)
	for range 2 {
		for _, do := range everyKind {
			requireStatus(t, do(t.Context(), conn), status.New(codes.Internal, "recovered oh"))
		}
	}
}

// TestACallThatIsCancelled: the limiter's call ends with it, and the error is the call's own.
func TestACallThatIsCancelled(t *testing.T) {
	for kind, do := range everyKind {
		limiter, asked := limitertest.Blocked()
		answered := make(chan error, 1)
		options := []grpc.ServerOption{
			grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				resp, err := handler(ctx, req)
				answered <- err
				return resp, err
			}),
			grpc.ChainStreamInterceptor(func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
				err := handler(srv, s)
				answered <- err
				return err
			}),
		}
		conn := dial(t, &echo{}, append(options, newServer(t, limiter, grpclimit.WithErrorHandler(grpclimit.ServeInOutages)).Options()...))
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-asked
			cancel()
		}()
		require.Equal(t, codes.Canceled, status.Code(do(ctx, conn)), kind)
		err := <-answered
		requireStatus(t, err, status.New(codes.Canceled, "context canceled"))
		require.ErrorIs(t, err, context.Canceled)
	}
}

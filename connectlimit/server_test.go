package connectlimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/connectlimit"
	"github.com/tryacquire/ratelimit/internal/testing/integrationtest"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// requirePushback asserts what tells a client of the protocol when to retry.
func requirePushback(t testing.TB, err error, protocol, retryAfter, pushback string) {
	t.Helper()
	if protocol == connect.ProtocolConnect {
		require.Equal(t, []string{retryAfter}, meta(err, "Retry-After"))
		require.Empty(t, meta(err, "Grpc-Retry-Pushback-Ms"))
	} else {
		require.Equal(t, []string{pushback}, meta(err, "Grpc-Retry-Pushback-Ms"))
		require.Empty(t, meta(err, "Retry-After"))
	}
}

func TestCallsOfEachKindAreAllowedAndDenied(t *testing.T) {
	eachKind(t, func(t *testing.T, kind, protocol string, do func(context.Context, service, ...connect.ClientOption) error) {
		limiter, ran := limitertest.Allowing(), false
		s := serve(t, func(context.Context, string) error { ran = true; return nil }, newServer(t, limiter, connectlimit.WithPolicy("api")))
		require.NoError(t, do(t.Context(), s))
		require.Equal(t, []string{"k 1"}, limiter.Asked(), "a call takes one permit, a stream when it starts")

		ran = false
		limiter.Result = limitertest.Denying(5, time.Second, 1500*time.Microsecond).Result
		err := do(t.Context(), s)
		requireDenied(t, err, "api", 5, time.Second, 2*time.Millisecond)
		requirePushback(t, err, protocol, "1", "2")
		require.Equal(t, []string{"k 1"}, limiter.Asked())
		require.False(t, ran, "the handler must not run")
	})
}

// TestADenialOnTheWire: the Connect protocol's is 429 with Retry-After, which proxies and
// browsers know; that of gRPC has its trailer among the trailers.
func TestADenialOnTheWire(t *testing.T) {
	s := serve(t, nil, newServer(t, limitertest.Denying(5, time.Second, 1500*time.Millisecond)))
	post := func(contentType, body string) (*http.Response, string) {
		resp, err := s.http.Post(s.url+unary, contentType, strings.NewReader(body))
		require.NoError(t, err)
		defer func() { _ = resp.Body.Close() }()
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp, string(text)
	}
	resp, body := post("application/json", `"a"`)
	require.Equal(t, 429, resp.StatusCode)
	require.Equal(t, "2", resp.Header.Get("Retry-After"))
	require.Contains(t, body, `"code":"resource_exhausted"`)
	require.Contains(t, body, `"type":"google.rpc.RetryInfo"`)

	resp, body = post("application/grpc", "\x00\x00\x00\x00\x00")
	require.Equal(t, 200, resp.StatusCode)
	require.Empty(t, body)
	require.Equal(t, "8", resp.Trailer.Get("Grpc-Status"))
	require.Equal(t, "1500", resp.Trailer.Get("Grpc-Retry-Pushback-Ms"))
}

// TestNoCacheStoresADenial: clients may call what has no side effects by GET, and a cache between would
// go on denying when the permits are there, or Redis is.
func TestNoCacheStoresADenial(t *testing.T) {
	apiKey := ratelimit.Must(connectlimit.APIKey("X-Api-Key"))
	down := &limitertest.Stub{Err: errors.New("down")}
	for name, c := range map[string]struct {
		limit  connect.Interceptor
		status int
		retry  []string
	}{
		"denied":           {newServer(t, limitertest.Denying(5, time.Second, 1500*time.Millisecond)), 429, []string{"2"}},
		"an outage":        {newServer(t, down), 503, nil},
		"with a time":      {newServer(t, down, connectlimit.WithOutageRetryAfter(1500*time.Millisecond)), 503, []string{"2"}},
		"without a key":    {ratelimit.Must(connectlimit.NewServer(limitertest.Allowing(), apiKey)), 400, nil},
		"an error of ours": {newServer(t, down, connectlimit.WithErrorHandler(func(context.Context, connectlimit.Call, error) error { return errors.New("own") })), 500, nil},
	} {
		handler := connect.NewUnaryHandler(unary, func(_ context.Context, r *connect.Request[text]) (*connect.Response[text], error) {
			return connect.NewResponse(r.Msg), nil
		}, connect.WithIdempotency(connect.IdempotencyNoSideEffects), connect.WithInterceptors(c.limit))
		for _, r := range []*http.Request{
			httptest.NewRequest("GET", unary+`?connect=v1&encoding=json&message=%22a%22`, nil),
			httptest.NewRequest("POST", unary, strings.NewReader(`"a"`)),
		} {
			r.Header.Set("Content-Type", "application/json")
			w := httptest.NewRecorder()
			w.Header().Set("CDN-Cache-Control", "max-age=60") // of a middleware outside
			handler.ServeHTTP(w, r)
			require.Equal(t, c.status, w.Code, name, r.Method)
			require.Equal(t, c.retry, w.Header().Values("Retry-After"), name, r.Method)
			require.Equal(t, []string{"no-store"}, w.Header().Values("Cache-Control"), name, r.Method)
			require.Equal(t, []string{"no-store"}, w.Header().Values("Surrogate-Control"), name, r.Method)
			require.Equal(t, []string{"max-age=60", "no-store"}, w.Header().Values("CDN-Cache-Control"), "a list, in which no-store counts")
		}
	}
}

// TestInventedProceduresHaveNoKeyOfTheirOwn: the key is the handler's procedure, also of a handler that serves every path.
func TestInventedProceduresHaveNoKeyOfTheirOwn(t *testing.T) {
	limiter, served := limitertest.Allowing(), 0
	limit := ratelimit.Must(connectlimit.NewServer(limiter, connectlimit.Procedure()))
	handler := connect.NewUnaryHandler(unary, func(_ context.Context, r *connect.Request[text]) (*connect.Response[text], error) {
		served++
		return connect.NewResponse(r.Msg), nil
	}, connect.WithInterceptors(limit))
	mux := http.NewServeMux()
	mux.Handle(unary, handler)
	mux.Handle("/any/", handler)
	for i := range 55 {
		for _, path := range []string{fmt.Sprintf("/made.Up/M%d", i), fmt.Sprintf("/any/M%d", i), strings.ToLower(unary), unary + "/"} {
			r := httptest.NewRequest("POST", path, strings.NewReader(`"a"`))
			r.Header.Set("Content-Type", "application/json")
			mux.ServeHTTP(httptest.NewRecorder(), r)
		}
	}
	require.Equal(t, 55, served)
	require.Equal(t, slices.Repeat([]string{"route:" + unary + " 1"}, 55), limiter.Asked())
}

// TestThePolicyIsTheLimitersName, if no other is given.
func TestThePolicyIsTheLimitersName(t *testing.T) {
	for want, limit := range map[string]connect.Interceptor{
		"bucket":  newServer(t, limitertest.Named("bucket", limitertest.Denying(5, time.Second, time.Second))),
		"other":   newServer(t, limitertest.Named("bucket", limitertest.Denying(5, time.Second, time.Second)), connectlimit.WithPolicy("other")),
		"default": newServer(t, limitertest.Named("", limitertest.Denying(5, time.Second, time.Second))),
	} {
		_, err := everyKind[unary](t.Context(), serve(t, nil, limit))
		requireDenied(t, err, want, 5, time.Second, time.Second)
	}
}

func TestPushback(t *testing.T) {
	for _, c := range []struct {
		name            string
		retry, deadline time.Duration
		opts            []connectlimit.Option
		seconds, millis string
	}{
		{"a microsecond", time.Microsecond, 0, nil, "1", "1"},
		{"no time at all", 0, 0, nil, "1", "1"},
		{"a second", time.Second, 0, nil, "1", "1000"},
		{"a nanosecond more", time.Second + 1, 0, nil, "2", "1001"},
		{"the longest", time.Minute, 0, nil, "60", "60000"},
		{"longer", time.Minute + 1, 0, nil, "61", "-1"},
		{"a longest of one's own", time.Second, 0, []connectlimit.Option{connectlimit.WithMaxPushback(time.Second)}, "1", "1000"},
		{"longer than that", time.Second + 1, 0, []connectlimit.Option{connectlimit.WithMaxPushback(time.Second)}, "2", "-1"},
		{"never", 1, 0, []connectlimit.Option{connectlimit.WithMaxPushback(0)}, "1", "-1"},
		{"beyond the deadline", 59 * time.Second, 50 * time.Second, nil, "59", "-1"},
	} {
		s := serve(t, nil, newServer(t, limitertest.Denying(5, time.Second, c.retry), c.opts...))
		ctx := t.Context()
		if c.deadline > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, c.deadline)
			defer cancel()
		}
		for protocol, opts := range protocols {
			_, err := everyKind[unary](ctx, s, opts...)
			require.Equal(t, connect.CodeResourceExhausted, connect.CodeOf(err), c.name)
			requirePushback(t, err, protocol, c.seconds, c.millis)
		}
	}
}

// TestTheLongestRetryAfter is no negative number.
func TestTheLongestRetryAfter(t *testing.T) {
	for retry, seconds := range map[time.Duration]string{
		0: "1", time.Second: "1", time.Second + 1: "2", math.MaxInt64 - 1: "9223372037", math.MaxInt64: "9223372037",
	} {
		_, err := everyKind[unary](t.Context(), serve(t, nil, newServer(t, limitertest.Denying(5, time.Second, retry))))
		require.Equal(t, []string{seconds}, meta(err, "Retry-After"), retry)
	}
}

// TestOutages: without a decision a call is unavailable, and so it is under a closed policy; an
// open one lets it pass.
func TestOutages(t *testing.T) {
	primary := &limitertest.Stub{Err: errors.New("dial tcp 10.1.2.3:6379: secret")}
	closed := ratelimit.Must(ratelimit.NewFallback(primary, ratelimit.DenyAll()))
	opened := ratelimit.Must(ratelimit.NewFallback(primary, ratelimit.AllowAll()))
	open := connectlimit.WithErrorHandler(connectlimit.ServeInOutages)
	const undecided = "the rate limit could not be decided"
	eachKind(t, func(t *testing.T, _, protocol string, do func(context.Context, service, ...connect.ClientOption) error) {
		err := do(t.Context(), serve(t, nil, newServer(t, primary)))
		requireError(t, err, connect.CodeUnavailable, undecided)
		require.Empty(t, meta(err, "Retry-After"))
		require.Empty(t, meta(err, "Grpc-Retry-Pushback-Ms"))

		err = do(t.Context(), serve(t, nil, newServer(t, closed)))
		requireError(t, err, connect.CodeUnavailable, undecided, &errdetails.RetryInfo{RetryDelay: durationpb.New(time.Second)})
		requirePushback(t, err, protocol, "1", "1000")

		later := connectlimit.WithOutageRetryAfter(1500*time.Millisecond + 1)
		err = do(t.Context(), serve(t, nil, newServer(t, primary, later)))
		requireError(t, err, connect.CodeUnavailable, undecided, &errdetails.RetryInfo{RetryDelay: durationpb.New(1501 * time.Millisecond)})
		requirePushback(t, err, protocol, "2", "1501")
		err = do(t.Context(), serve(t, nil, newServer(t, closed, later)))
		requirePushback(t, err, protocol, "1", "1000")
		require.NoError(t, do(t.Context(), serve(t, nil, newServer(t, primary, later, open))))

		require.NoError(t, do(t.Context(), serve(t, nil, newServer(t, opened))))
		require.NoError(t, do(t.Context(), serve(t, nil, newServer(t, primary, open))))
	})
	_, err := everyKind[unary](t.Context(), serve(t, nil, newServer(t, ratelimit.DenyAll())))
	requireDenied(t, err, "default", 0, 0, time.Second) // a client that is blocked, and no outage
}

func TestErrorsHaveACodeAndNoText(t *testing.T) {
	const mistake = "the rate limit is set up wrongly"
	for _, c := range append(integrationtest.Failures(), integrationtest.Failure{
		Err: connect.NewError(connect.CodeOutOfRange, errors.New("secret")), Code: uint32(connect.CodeUnavailable), Text: "the rate limit could not be decided",
	}) {
		code, wrapped := connect.Code(c.Code), fmt.Errorf("secret: %w", c.Err)
		limiter := &limitertest.Stub{Err: wrapped}
		var seen error
		watch := connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
			return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
				resp, err := next(ctx, req)
				seen = err
				return resp, err
			}
		})
		s := serve(t, nil, watch, newServer(t, limiter))
		keyless := serve(t, nil, ratelimit.Must(connectlimit.NewServer(limiter,
			func(context.Context, connectlimit.Call) (string, error) { return "", wrapped })))
		for _, opts := range protocols {
			for _, call := range everyKind {
				_, err := call(t.Context(), s, opts...)
				requireError(t, err, code, c.Text)
				limiter.Asked()
				_, err = call(t.Context(), keyless, opts...)
				requireError(t, err, code, c.Text)
				require.Empty(t, limiter.Asked(), "without a key the limiter is not asked")
			}
		}
		require.ErrorIs(t, seen, c.Err, "in the process the cause is known")
		require.NotContains(t, seen.Error(), "secret")
	}
	empty := ratelimit.Must(connectlimit.NewServer(limitertest.Allowing(), func(context.Context, connectlimit.Call) (string, error) { return "", nil }))
	_, err := everyKind[unary](t.Context(), serve(t, nil, empty))
	requireError(t, err, connect.CodeInternal, mistake)

	// An interceptor on the wrong side is a mistake, and never no limit.
	onHandler := serve(t, nil, ratelimit.Must(connectlimit.NewClient(limitertest.Allowing(), fixed)))
	onClient := connect.WithInterceptors(newServer(t, limitertest.Allowing()))
	for _, call := range everyKind {
		_, err := call(t.Context(), onHandler)
		requireError(t, err, connect.CodeInternal, mistake)
		_, err = call(t.Context(), serve(t, nil), onClient)
		requireError(t, err, connect.CodeInternal, mistake)
	}
}

// TestOpenIsNoWayAroundTheLimit: only an outage lets a call pass.
func TestOpenIsNoWayAroundTheLimit(t *testing.T) {
	for _, c := range integrationtest.Failures() {
		got := connectlimit.ServeInOutages(t.Context(), connectlimit.Call{}, c.Err)
		require.Equal(t, c.IsOutage(), got == nil, c.Err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	requireError(t, connectlimit.ServeInOutages(ended, connectlimit.Call{}, errors.New("dial")), connect.CodeCanceled, "context canceled")
	late, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	requireError(t, connectlimit.ServeInOutages(late, connectlimit.Call{}, errors.New("dial")), connect.CodeDeadlineExceeded, "context deadline exceeded")

	// Whatever the error of a key function is, the call has no key.
	session := func(context.Context, connectlimit.Call) (string, error) { return "", errSession }
	joined, err := connectlimit.Join(session, connectlimit.Everyone())
	require.NoError(t, err)
	for _, key := range []connectlimit.KeyFunc{session, joined} {
		var got error
		open, err := connectlimit.NewServer(ratelimit.AllowAll(), key, connectlimit.WithErrorHandler(func(ctx context.Context, call connectlimit.Call, err error) error {
			got = err
			return connectlimit.ServeInOutages(ctx, call, err)
		}))
		require.NoError(t, err)
		for _, do := range everyKind {
			_, err := do(t.Context(), serve(t, nil, open))
			requireError(t, err, connect.CodeUnavailable, "the rate limit could not be decided")
			require.ErrorIs(t, got, errSession)
			require.EqualError(t, got, "no session")
		}
	}
}

var errSession = errors.New("no session")

func TestHandlersOfOnesOwn(t *testing.T) {
	limiter := limitertest.Denying(5, 5*time.Second, 1500*time.Microsecond)
	teapot := connect.NewError(connect.CodeFailedPrecondition, errors.New("a teapot"))
	teapot.Meta().Set("X-Tea", "black")
	detail, err := connect.NewErrorDetail(durationpb.New(time.Minute))
	require.NoError(t, err)
	teapot.AddDetail(detail)
	failure := errors.New("down")
	eachKind(t, func(t *testing.T, kind, protocol string, do func(context.Context, service, ...connect.ClientOption) error) {
		var got []connectlimit.Decision
		s := serve(t, nil, newServer(t, limiter, connectlimit.WithPolicy("api"),
			connectlimit.WithDenialHandler(func(_ context.Context, call connectlimit.Call, d connectlimit.Decision) error {
				require.Equal(t, kind, call.Spec.Procedure)
				require.Equal(t, protocol, call.Peer.Protocol)
				require.Equal(t, kind == unary, call.Message != nil)
				got = append(got, d)
				return teapot
			})))
		err := do(t.Context(), s)
		requireError(t, err, connect.CodeFailedPrecondition, "a teapot", durationpb.New(time.Minute))
		require.Equal(t, []string{"black"}, meta(err, "X-Tea"))
		requirePushback(t, err, protocol, "1", "2")
		require.Equal(t, []connectlimit.Decision{{Policy: "api", Result: limiter.Result}}, got)
		require.Equal(t, http.Header{"X-Tea": {"black"}}, teapot.Meta(), "the handler's own error is not changed")

		// An error of another server does not bring that one's header along.
		wire := connect.NewWireError(connect.CodeAborted, errors.New("upstream"))
		wire.Meta().Set("Set-Cookie", "s3cret")
		err = do(t.Context(), serve(t, nil, newServer(t, limiter, connectlimit.WithDenialHandler(
			func(context.Context, connectlimit.Call, connectlimit.Decision) error { return wire }))))
		requireError(t, err, connect.CodeAborted, "upstream")
		require.Empty(t, meta(err, "Set-Cookie"))
		requirePushback(t, err, protocol, "1", "2")

		err = do(t.Context(), serve(t, nil, newServer(t, limiter, connectlimit.WithDenialHandler(
			func(context.Context, connectlimit.Call, connectlimit.Decision) error { return failure }))))
		requireError(t, err, connect.CodeUnknown, "down")
		err = do(t.Context(), serve(t, nil, newServer(t, limiter, connectlimit.WithDenialHandler(
			func(context.Context, connectlimit.Call, connectlimit.Decision) error { return nil }))))
		requireDenied(t, err, "default", 5, 5*time.Second, 2*time.Millisecond)

		var errs []error
		s = serve(t, nil, newServer(t, &limitertest.Stub{Err: failure}, connectlimit.WithErrorHandler(func(_ context.Context, _ connectlimit.Call, err error) error {
			errs = append(errs, err)
			return nil
		})))
		require.NoError(t, do(t.Context(), s))
		require.Equal(t, []error{failure}, errs)
	})
}

func TestCostAndSkip(t *testing.T) {
	for cost, want := range map[int][]string{0: nil, 1: {"k 1"}, 7: {"k 7"}, -1: {"k -1"}} {
		limiter := limitertest.Allowing()
		s := serve(t, nil, newServer(t, limiter, connectlimit.WithCost(func(context.Context, connectlimit.Call) int { return cost })))
		for kind, call := range everyKind {
			_, err := call(t.Context(), s)
			require.NoError(t, err, kind)
			require.Equal(t, want, limiter.Asked(), kind)
		}
	}
	limiter, own := limitertest.Allowing(), limitertest.Allowing()
	skip := connectlimit.WithSkip(func(_ context.Context, c connectlimit.Call) bool {
		return c.Spec.Procedure == unary || c.Spec.Procedure == bidi
	})
	s := serve(t, nil, newServer(t, limiter, skip, connectlimit.WithReceived(limiter, 0), connectlimit.WithSent(limiter, 0)))
	onClient := newClient(t, own, skip, connectlimit.WithReceived(own, 0), connectlimit.WithSent(own, 0))
	for kind, call := range everyKind {
		_, err := call(t.Context(), s, onClient)
		require.NoError(t, err, kind)
		require.Equal(t, kind == unary || kind == bidi, len(limiter.Asked()) == 0, kind)
		require.Equal(t, kind == unary || kind == bidi, len(own.Asked()) == 0, kind)
	}
}

// TestNestedLimits: of two limits the inner one is asked only if the outer one allows, and the
// error names the one that denied. The same limit twice takes two permits.
func TestNestedLimits(t *testing.T) {
	eachKind(t, func(t *testing.T, _, protocol string, do func(context.Context, service, ...connect.ClientOption) error) {
		outer, inner := limitertest.Allowing(), limitertest.Denying(3, time.Second, time.Second)
		s := serve(t, nil, newServer(t, outer, connectlimit.WithPolicy("outer")), newServer(t, inner, connectlimit.WithPolicy("inner")))
		err := do(t.Context(), s)
		requireDenied(t, err, "inner", 3, time.Second, time.Second)
		requirePushback(t, err, protocol, "1", "1000")
		require.Len(t, outer.Asked(), 1)
		require.Len(t, inner.Asked(), 1)

		twice := limitertest.Allowing()
		limit := newServer(t, twice)
		require.NoError(t, do(t.Context(), serve(t, nil, limit, limit)))
		require.Equal(t, []string{"k 1", "k 1"}, twice.Asked())
	})
}

// TestAPanicOfAHandlerIsLeftToRecover: connect's own recovery, given before, recovers it, and
// the next call goes on.
func TestAPanicOfAHandlerIsLeftToRecover(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle(unary, connect.NewUnaryHandler(unary, func(context.Context, *connect.Request[text]) (*connect.Response[text], error) { panic("oh") },
		connect.WithRecover(func(_ context.Context, _ connect.Spec, _ http.Header, v any) error {
			return connect.NewError(connect.CodeInternal, fmt.Errorf("recovered %v", v))
		}), connect.WithInterceptors(newServer(t, limitertest.Allowing()))))
	s := serveHTTP(t, mux)
	for range 2 {
		for _, opts := range protocols {
			_, err := everyKind[unary](t.Context(), s, opts...)
			requireError(t, err, connect.CodeInternal, "recovered oh")
		}
	}
}

// answering sees the errors that handlers return.
type answering chan error

func (a answering) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		resp, err := next(ctx, req)
		a <- err
		return resp, err
	}
}
func (a answering) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}
func (a answering) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		err := next(ctx, conn)
		a <- err
		return err
	}
}

// TestACallThatIsCancelled: the limiter's call ends with it, and the error is the call's own.
func TestACallThatIsCancelled(t *testing.T) {
	eachKind(t, func(t *testing.T, _, _ string, do func(context.Context, service, ...connect.ClientOption) error) {
		limiter, asked := limitertest.Blocked()
		answered := make(answering, 1)
		s := serve(t, nil, answered, newServer(t, limiter, connectlimit.WithErrorHandler(connectlimit.ServeInOutages)))
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-asked
			cancel()
		}()
		require.Equal(t, connect.CodeCanceled, connect.CodeOf(do(ctx, s)))
		err := <-answered
		requireError(t, err, connect.CodeCanceled, "context canceled")
		require.ErrorIs(t, err, context.Canceled)
	})
}

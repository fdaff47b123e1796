package httplimit_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/httplimit"
	"github.com/tryacquire/ratelimit/internal/testing/fakes"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// A costing is a limit of 1000 that settles, in front of a handler, and what its settle function
// was told.
type costing struct {
	t        testing.TB
	window   *ratelimit.FixedWindow
	limiter  ratelimit.Limiter
	estimate int
	outcomes []httplimit.Outcome
	late     []error
}

func newCosting(t testing.TB, s *limitertest.Stage) *costing {
	window := ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 1000, time.Minute, s.Opts...))
	return &costing{t: t, window: window, limiter: window, estimate: 100}
}

func (c *costing) options(cost func(httplimit.Outcome) int) []httplimit.Option {
	opts := []httplimit.Option{
		httplimit.WithCost(func(*http.Request) int { return c.estimate }),
		httplimit.WithLateErrorHandler(func(_ *http.Request, err error) { c.late = append(c.late, err) }),
	}
	if cost == nil {
		return append(opts, httplimit.WithReportedCost())
	}
	return append(opts, httplimit.WithSettle(func(_ *http.Request, o httplimit.Outcome) int {
		c.outcomes = append(c.outcomes, o)
		return cost(o)
	}))
}

// around is h behind the limit; a nil cost settles what h reports.
func (c *costing) around(h http.HandlerFunc, cost func(httplimit.Outcome) int) http.Handler {
	wrap, err := httplimit.New(c.limiter, httplimit.Everyone(), c.options(cost)...)
	require.NoError(c.t, err)
	return wrap(h)
}

// taken is what requests have cost.
func (c *costing) taken() int { return 1000 - peek(c.t, c.window, "all").Remaining }

func byBytes(o httplimit.Outcome) int { return int(o.Bytes) }

// TestTheEstimateIsSettledByTheAnswer: by status and bytes, up and down.
func TestTheEstimateIsSettledByTheAnswer(t *testing.T) {
	onStages(t, func(t *testing.T, s *limitertest.Stage) {
		c := newCosting(t, s)
		size, status := 0, 0
		h := c.around(func(w http.ResponseWriter, r *http.Request) {
			require.Equal(t, `"default";r=`+strconv.Itoa(900-c.takenBefore())+`;t=60`, w.Header().Get("RateLimit"))
			if status > 0 {
				w.WriteHeader(status)
			}
			_, _ = io.WriteString(w, strings.Repeat("a", size))
		}, byBytes)
		for _, one := range []struct{ size, status, seen int }{{30, 0, 200}, {170, 0, 200}, {100, 201, 201}, {0, 0, 200}, {0, 404, 404}} {
			before := c.taken()
			size, status = one.size, one.status
			w := do(h, newRequest("GET", "/"))
			require.Equal(t, one.seen, w.Code)
			require.Equal(t, before+size, c.taken())
			require.Equal(t, httplimit.Outcome{Estimate: 100, Reported: 100, Status: one.seen, Bytes: int64(size)}, c.outcomes[len(c.outcomes)-1])
		}
		require.Len(t, c.outcomes, 5)
		require.Empty(t, c.late)
	})
}

// takenBefore is what was taken before the estimate of the request that is served.
func (c *costing) takenBefore() int { return c.taken() - c.estimate }

// TestADebtDeniesLaterRequests: the true cost is charged, whatever is left.
func TestADebtDeniesLaterRequests(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	c := newCosting(t, s)
	h := c.around(func(_ http.ResponseWriter, r *http.Request) { httplimit.ReportCost(r.Context(), 5000) }, nil)
	require.Equal(t, 200, do(h, newRequest("GET", "/")).Code)
	w := do(h, newRequest("GET", "/"))
	require.Equal(t, 429, w.Code)
	require.Equal(t, "60", w.Header().Get("Retry-After"))
	s.Advance(time.Minute)
	require.Equal(t, 200, do(h, newRequest("GET", "/")).Code)
}

// TestTheHandlerReportsTheCost: the last report counts, and without one the estimate. The
// ResponseWriter is not wrapped.
func TestTheHandlerReportsTheCost(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	for name, one := range map[string]struct {
		reports []int
		noted   bool
		want    int
	}{
		"nothing":          {nil, false, 100},
		"less":             {[]int{7}, true, 7},
		"nothing was used": {[]int{0}, true, 0},
		"more":             {[]int{250}, true, 250},
		"several":          {[]int{1, 90, 60}, true, 60},
		"below 0":          {[]int{-1}, false, 100},
	} {
		s.Wipe(t)
		c := newCosting(t, s)
		w := httptest.NewRecorder()
		c.around(func(got http.ResponseWriter, r *http.Request) {
			require.Same(t, w, got)
			for _, n := range one.reports {
				require.Equal(t, one.noted, httplimit.ReportCost(r.Context(), n), name)
			}
			require.False(t, httplimit.ReportCostOf(r.Context(), "other", 1000))
			require.False(t, httplimit.ReportCostOf(r.Context(), "", 1000))
		}, nil).ServeHTTP(w, newRequest("GET", "/"))
		require.Equal(t, one.want, c.taken(), name)
	}
	require.False(t, httplimit.ReportCost(t.Context(), 1), "there is no limit")
}

// TestReportsReachTheLimitTheyAreFor: several in one middleware, and one outside of it.
func TestReportsReachTheLimitTheyAreFor(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	of := func(name string) *ratelimit.FixedWindow {
		return ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 1000, time.Minute, ratelimit.WithName(name)))
	}
	input, output, bytes, outer, requests := of("input"), of("output"), of("bytes"), of("outer"), of("requests")
	estimate := httplimit.WithCost(func(*http.Request) int { return 100 })
	outside, err := httplimit.New(outer, httplimit.Everyone(), estimate, httplimit.WithReportedCost())
	require.NoError(t, err)
	h := outside(all(t,
		httplimit.Limit(input, httplimit.Everyone(), estimate, httplimit.WithReportedCost()),
		httplimit.Limit(output, httplimit.Everyone(), estimate, httplimit.WithReportedCost()),
		httplimit.Limit(bytes, httplimit.Everyone(), estimate, httplimit.WithSettle(func(_ *http.Request, o httplimit.Outcome) int {
			return int(o.Bytes) + o.Reported
		})),
		httplimit.Limit(requests, httplimit.Everyone()),
	)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		require.True(t, httplimit.ReportCost(r.Context(), 5), "all")
		require.True(t, httplimit.ReportCostOf(r.Context(), "input", 20))
		require.True(t, httplimit.ReportCostOf(r.Context(), "output", 300))
		_, _ = io.WriteString(w, "hello")
	})))
	require.Equal(t, 200, do(h, newRequest("GET", "/")).Code)
	for l, want := range map[*ratelimit.FixedWindow]int{input: 20, output: 300, bytes: 10, outer: 5, requests: 1} {
		require.Equal(t, 1000-want, peek(t, l, "all").Remaining, l.Name())
	}
}

// TestAHandlerThatPanicsIsSettledToo: by what it has written or reported until then, and the panic
// goes on.
func TestAHandlerThatPanicsIsSettledToo(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	for name, one := range map[string]struct {
		handler http.HandlerFunc
		cost    func(httplimit.Outcome) int
		outcome httplimit.Outcome
		want    int
	}{
		"at once":       {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, byBytes, httplimit.Outcome{Estimate: 100, Reported: 100, Panicked: true}, 0},
		"after a write": {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello"); panic(1) }, byBytes, httplimit.Outcome{Estimate: 100, Reported: 100, Status: 200, Bytes: 5, Panicked: true}, 5},
		"not reported":  {func(http.ResponseWriter, *http.Request) { panic(1) }, nil, httplimit.Outcome{}, 100},
		"reported":      {func(_ http.ResponseWriter, r *http.Request) { httplimit.ReportCost(r.Context(), 8); panic(1) }, nil, httplimit.Outcome{}, 8},
		"by the settle function": {func(http.ResponseWriter, *http.Request) { panic(1) }, func(o httplimit.Outcome) int {
			if o.Panicked {
				return 500
			}
			return 0
		}, httplimit.Outcome{Estimate: 100, Reported: 100, Panicked: true}, 500},
	} {
		s.Wipe(t)
		c := newCosting(t, s)
		require.Panics(t, func() { do(c.around(one.handler, one.cost), newRequest("GET", "/")) }, name)
		require.Equal(t, one.want, c.taken(), name)
		if one.cost != nil {
			require.Equal(t, []httplimit.Outcome{one.outcome}, c.outcomes, name)
		}
	}
	s.Wipe(t)
	c := newCosting(t, s)
	broken := c.around(func(http.ResponseWriter, *http.Request) {}, func(httplimit.Outcome) int { panic("settle") })
	require.PanicsWithValue(t, "settle", func() { do(broken, newRequest("GET", "/")) })
	require.Equal(t, 100, c.taken(), "the estimate stays")
}

// TestAPanicOfOneSettlementLeavesTheOthers: each limit is settled, whatever the functions of the
// others do.
func TestAPanicOfOneSettlementLeavesTheOthers(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	var windows []*ratelimit.FixedWindow
	var opts []httplimit.Option
	for name, settle := range map[string]func(*http.Request, httplimit.Outcome) int{
		"low": func(*http.Request, httplimit.Outcome) int { return 1 }, "panic": func(*http.Request, httplimit.Outcome) int { panic("settle") },
		"high": func(*http.Request, httplimit.Outcome) int { return 7 }, "late": func(*http.Request, httplimit.Outcome) int { return -1 },
	} {
		w := ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 10, time.Minute, ratelimit.WithName(name)))
		windows = append(windows, w)
		opts = append(opts, httplimit.Limit(w, httplimit.Everyone(),
			httplimit.WithCost(func(*http.Request) int { return 5 }), httplimit.WithSettle(settle)))
	}
	h := all(t, append(opts, httplimit.WithLateErrorHandler(func(*http.Request, error) { panic("late") }))...)(served)
	require.Panics(t, func() { do(h, newRequest("GET", "/")) })
	left := map[string]int{}
	for _, w := range windows {
		left[w.Name()] = peek(t, w, "all").Remaining
	}
	require.Equal(t, map[string]int{"low": 9, "panic": 5, "high": 3, "late": 5}, left)
}

// TestADeniedRequestIsNotSettled, nor is one without an estimate.
func TestADeniedRequestIsNotSettled(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	c := newCosting(t, s)
	h := c.around(func(http.ResponseWriter, *http.Request) {}, func(o httplimit.Outcome) int { return o.Estimate })
	c.estimate = 0
	w := do(h, newRequest("GET", "/"))
	require.Equal(t, 200, w.Code)
	require.Empty(t, w.Header().Get("RateLimit"))
	c.estimate = 600
	require.Equal(t, 200, do(h, newRequest("GET", "/")).Code)
	require.Equal(t, 429, do(h, newRequest("GET", "/")).Code)
	require.Len(t, c.outcomes, 1)
	require.Equal(t, 600, c.taken())
	c.estimate = 1001
	require.Equal(t, 400, do(h, newRequest("GET", "/")).Code)
	require.Len(t, c.outcomes, 1)
}

// TestErrorsOfASettlementComeLate: the answer is the handler's, and the estimate stays.
func TestErrorsOfASettlementComeLate(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	c := newCosting(t, s)
	cost := -1
	h := c.around(func(http.ResponseWriter, *http.Request) {}, func(httplimit.Outcome) int { return cost })
	require.Equal(t, 200, do(h, newRequest("GET", "/")).Code)
	require.Len(t, c.late, 1)
	require.ErrorIs(t, c.late[0], ratelimit.ErrInvalidPermits)
	require.Equal(t, 100, c.taken())
	cost = 2_000_000_000
	do(h, newRequest("GET", "/"))
	require.Len(t, c.late, 2)
	require.ErrorIs(t, c.late[1], ratelimit.ErrTooMuchDebt)
	require.Equal(t, 200, c.taken())

	silent, err := httplimit.New(c.window, httplimit.Everyone(), httplimit.WithSettle(func(*http.Request, httplimit.Outcome) int { return -1 }))
	require.NoError(t, err)
	require.Equal(t, 204, do(silent(served), newRequest("GET", "/")).Code)
}

// TestASettlementOutlivesTheClient: it goes on when the request's context has ended.
func TestASettlementOutlivesTheClient(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	c := newCosting(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	h := c.around(func(_ http.ResponseWriter, r *http.Request) {
		httplimit.ReportCost(r.Context(), 3)
		cancel()
	}, nil)
	do(h, newRequest("GET", "/").WithContext(ctx))
	require.Equal(t, 3, c.taken())
	require.Empty(t, c.late)
}

// TestSettlingThroughADenyCache: what is given back is there at once.
func TestSettlingThroughADenyCache(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	c := newCosting(t, s)
	c.limiter = ratelimit.Must(ratelimit.NewDenyCache(c.window))
	c.estimate = 1000
	var inner http.Handler
	h := c.around(func(_ http.ResponseWriter, r *http.Request) {
		if inner != nil {
			again := inner
			inner = nil
			require.Equal(t, 429, do(again, newRequest("GET", "/")).Code, "remembered")
		}
		httplimit.ReportCost(r.Context(), 0)
	}, nil)
	inner = h
	require.Equal(t, 200, do(h, newRequest("GET", "/")).Code)
	require.Equal(t, 200, do(h, newRequest("GET", "/")).Code, "forgotten")
}

// TestEverySettlerSettles: those in memory, and policies, as the doc of WithSettle says.
func TestEverySettlerSettles(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	local := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerMinute(1000), 1000))
	shared := func(name string) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 1000, time.Minute, ratelimit.WithName(name)))
	}
	for name, limiter := range map[string]ratelimit.Limiter{
		"in memory": local,
		"Fallback":  ratelimit.Must(ratelimit.NewFallback(shared("fallback"), local)),
		"Choice":    ratelimit.Must(ratelimit.NewChoice(func(context.Context, string) (ratelimit.Limiter, error) { return shared("choice"), nil })),
		"Shadow":    ratelimit.Must(ratelimit.NewShadow(shared("main"), shared("trial"), func(ratelimit.Trial) {})),
	} {
		c := &costing{t: t, limiter: limiter, estimate: 100}
		h := c.around(func(_ http.ResponseWriter, r *http.Request) { httplimit.ReportCost(r.Context(), 30) }, nil)
		before := peek(t, limiter, "all").Remaining
		require.Equal(t, 200, do(h, newRequest("GET", "/")).Code, name)
		require.InDelta(t, 30, before-peek(t, limiter, "all").Remaining, 2, name) // the bucket in memory refills
		require.Empty(t, c.late, name)
	}
	for _, constant := range []ratelimit.Limiter{ratelimit.AllowAll(), ratelimit.DenyAll()} {
		_, err := httplimit.New(constant, httplimit.Everyone(), httplimit.WithReportedCost())
		require.NoError(t, err)
	}
	all := ratelimit.Must(ratelimit.NewAll(shared("a"), shared("b")))
	_, err := httplimit.New(all, httplimit.Everyone(), httplimit.WithReportedCost())
	require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
}

func TestAnOutageBeforeTheSettlement(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	down := false
	client := fakes.Before(s.Client, func(context.Context, redis.Cmder) error {
		if down {
			return errors.New("down")
		}
		return nil
	})
	c := newCosting(t, s)
	c.limiter = ratelimit.Must(ratelimit.NewFixedWindow(client, 1000, time.Minute))
	h := c.around(func(w http.ResponseWriter, r *http.Request) {
		down = true
		httplimit.ReportCost(r.Context(), 1)
		w.WriteHeader(http.StatusAccepted)
	}, nil)
	require.Equal(t, http.StatusAccepted, do(h, newRequest("GET", "/")).Code)
	require.Len(t, c.late, 1)
	require.ErrorContains(t, c.late[0], "down")
	require.Equal(t, 100, c.taken())
}

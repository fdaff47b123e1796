package httplimit_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/httplimit"
)

// TestSeveralLimitsThroughAnOutage: by address, by customer with a cost that is settled, and requests in flight. The secondaries
// decide all or nothing, clients get fields of either, and what was taken in memory is settled and released there.
func TestSeveralLimitsThroughAnOutage(t *testing.T) {
	server := miniredis.RunT(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1})
	t.Cleanup(func() { _ = client.Close() })
	bucket := func(name string, n int) *ratelimit.TokenBucket {
		return ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerHour(1), n, ratelimit.WithName(name)))
	}
	local := func(n int) *ratelimit.LocalTokenBucket {
		return ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerHour(1), n))
	}
	policy := ratelimit.WithBreaker(&ratelimit.Breaker{Failures: 1_000})
	customer := func(r *http.Request) (string, error) { return r.Header.Get("X-Api-Key"), nil }
	tokens := local(20)
	held := ratelimit.Must(ratelimit.NewLocalInFlight(1))
	h := all(t,
		httplimit.Limit(ratelimit.Must(ratelimit.NewFallback(ratelimit.Must(ratelimit.NewDenyCache(bucket("address", 9))), local(3), policy)), clientIP(t, nil)),
		httplimit.Limit(ratelimit.Must(ratelimit.NewFallback(bucket("tokens", 100), tokens, policy)), customer,
			httplimit.WithCost(func(*http.Request) int { return 10 }), httplimit.WithReportedCost()),
		httplimit.InFlight(ratelimit.Must(ratelimit.NewHoldFallback(ratelimit.Must(ratelimit.NewInFlight(client, 5, time.Hour, ratelimit.WithName("running"))), held, policy)), httplimit.Everyone()),
	)
	var inside func(w http.ResponseWriter, r *http.Request)
	handler := h(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		httplimit.ReportCost(r.Context(), 4)
		if inside != nil {
			again := inside
			inside = nil
			again(w, r)
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	ask := func(address string) *httptest.ResponseRecorder { return do(handler, from(address, "a")) }
	fields := func(w *httptest.ResponseRecorder) []string { return w.Header()["Ratelimit"] }
	limits := func(w *httptest.ResponseRecorder) []string { return w.Header()["Ratelimit-Policy"] }

	w := ask("192.0.2.1")
	require.Equal(t, 204, w.Code)
	require.Equal(t, []string{`"address";q=9;w=32400`, `"tokens";q=100;w=360000`, `"running";q=5;qu="concurrent-requests"`}, limits(w))
	require.Equal(t, []string{`"address";r=8;t=28800`, `"tokens";r=90;t=324000`, `"running";r=4`}, fields(w))

	server.SetError("LOADING")
	var nested *httptest.ResponseRecorder
	inside = func(http.ResponseWriter, *http.Request) { nested = ask("192.0.2.1") }
	w = ask("192.0.2.1")
	require.Equal(t, 204, w.Code)
	require.Equal(t, []string{`"address";q=3;w=10800`, `"tokens";q=20;w=72000`, `"running";q=1;qu="concurrent-requests"`}, limits(w))
	require.Equal(t, []string{`"address";r=2;t=7200`, `"tokens";r=10;t=36000`, `"running";r=0`}, fields(w))
	require.Equal(t, 429, nested.Code, "one request at a time in this process")
	require.Equal(t, problemOf("running"), nested.Body.String())
	require.Equal(t, 16, peek(t, tokens, "a").Remaining, "settled where it was taken")
	require.Equal(t, 204, ask("192.0.2.1").Code)
	w = ask("192.0.2.2")
	require.Equal(t, 204, w.Code)
	w = ask("192.0.2.2")
	require.Equal(t, 429, w.Code)
	require.Equal(t, problemOf("tokens"), w.Body.String())
	require.Equal(t, []string{`"address";r=2;t=7200`, `"tokens";r=8;t=7200`, `"running";r=1`}, fields(w), "t of a bucket that did not deny is the time of its permits")
	require.Equal(t, 8, peek(t, tokens, "a").Remaining)

	server.SetError("")
	w = ask("192.0.2.1")
	require.Equal(t, 204, w.Code)
	require.Equal(t, []string{`"address";r=7;t=25200`, `"tokens";r=86;t=309600`, `"running";r=4`}, fields(w), "nothing was charged twice")

	broken := httplimit.Limit(bucket("bare", 9), httplimit.Everyone())
	server.SetError("LOADING")
	w = do(all(t, broken, httplimit.Limit(ratelimit.Must(ratelimit.NewFallback(bucket("address", 9), local(3))), clientIP(t, nil)))(served), from("192.0.2.1", "a"))
	require.Equal(t, 503, w.Code, "a limit without a policy")
}

// TestAReportedCostOfAPlan: New settles by the plan that was picked, through a cache and an outage policy; a plan that does not exist is an
// error of the service, and not an outage.
func TestAReportedCostOfAPlan(t *testing.T) {
	server := miniredis.RunT(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	plan := func(n int) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerHour(1), n, ratelimit.WithName("plan")))
	}
	plans := map[string]ratelimit.Limiter{"free": plan(10), "paid": plan(100)}
	choice := ratelimit.Must(ratelimit.NewChoice(func(_ context.Context, key string) (ratelimit.Limiter, error) { return plans[key], nil }))
	limiter := ratelimit.Must(ratelimit.NewFallback(ratelimit.Must(ratelimit.NewDenyCache(choice)), ratelimit.AllowAll()))
	var failure error
	wrap, err := httplimit.New(limiter, func(r *http.Request) (string, error) { return r.Header.Get("X-Api-Key"), nil },
		httplimit.WithCost(func(*http.Request) int { return 10 }), httplimit.WithReportedCost(),
		httplimit.WithErrorHandler(func(w http.ResponseWriter, r *http.Request, err error, next http.Handler) {
			failure = err
			httplimit.DefaultErrorHandler(w, r, err, next)
		}))
	require.NoError(t, err)
	h := wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		httplimit.ReportCost(r.Context(), 4)
		w.WriteHeader(http.StatusNoContent)
	}))
	ask := func(key string) int { return do(h, from("192.0.2.1", key)).Code }
	require.Equal(t, 204, ask("free"))
	require.Equal(t, 6, peek(t, limiter, "free").Remaining)
	require.Equal(t, 429, ask("free"))
	require.Equal(t, 204, ask("paid"))
	require.Equal(t, 96, peek(t, limiter, "paid").Remaining)
	require.Equal(t, 500, ask("gold"))
	require.ErrorContains(t, failure, `pick returned nil for "gold"`)
}

package httplimit_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/httplimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// TestDecisions: a handler and an access log see what the limits around and inside of them have decided.
func TestDecisions(t *testing.T) {
	yes := allowed(20, 2*time.Second, 17, time.Second)
	no := ratelimit.Result{Limit: 5, Window: time.Minute, RetryAfter: time.Second, ResetAfter: time.Minute}
	outer := limit(t, limitertest.InTurn(limitertest.Always(yes, nil)), httplimit.WithPolicy("outer"))
	inner := func(r ratelimit.Result, opts ...httplimit.Option) func(http.Handler) http.Handler {
		return limit(t, limitertest.InTurn(limitertest.Always(r, nil)), append(opts, httplimit.WithPolicy("inner"))...)
	}
	first := httplimit.Decision{Policy: "outer", Result: yes}
	for name, c := range map[string]struct {
		inner          func(http.Handler) http.Handler
		handler, after []httplimit.Decision
	}{
		"allowed": {inner(yes), []httplimit.Decision{first, {Policy: "inner", Result: yes}}, []httplimit.Decision{first, {Policy: "inner", Result: yes}}},
		"denied":  {inner(no), nil, []httplimit.Decision{first, {Policy: "inner", Result: no}}},
		"skipped": {inner(no, httplimit.WithSkip(func(*http.Request) bool { return true })), []httplimit.Decision{first}, []httplimit.Decision{first}},
	} {
		t.Run(name, func(t *testing.T) {
			var inHandler, inLog []httplimit.Decision
			handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { inHandler = httplimit.DecisionsOf(r.Context()) })
			limits := outer(c.inner(handler))
			log := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				limits.ServeHTTP(w, r)
				inLog = httplimit.DecisionsOf(r.Context())
			})
			do(httplimit.Decisions(log), newRequest("GET", "/"))
			require.Equal(t, c.handler, inHandler)
			require.Equal(t, c.after, inLog)

			inHandler, inLog = nil, nil
			do(log, newRequest("GET", "/"))
			require.Nil(t, inHandler, "without Decisions")
			require.Nil(t, inLog)
		})
	}

	// Of several limits, the one that governs, with its parts.
	s := limitertest.OnMiniredis(t)
	several := all(t,
		httplimit.Limit(ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 9, time.Minute, ratelimit.WithName("wide"))), httplimit.Everyone()),
		httplimit.Limit(ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 3, time.Minute, ratelimit.WithName("narrow"))), httplimit.Everyone()))
	do(httplimit.Decisions(several(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		decisions := httplimit.DecisionsOf(r.Context())
		require.Len(t, decisions, 1)
		require.Equal(t, "narrow", decisions[0].Policy)
		require.Equal(t, 2, decisions[0].Result.Remaining)
		require.Len(t, decisions[0].Parts, 2)
	}))), newRequest("GET", "/"))
}

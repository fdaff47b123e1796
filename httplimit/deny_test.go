package httplimit_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/httplimit"
)

// TestDeny: a denial from inside a handler is that of a limit around it, field by field.
func TestDeny(t *testing.T) {
	denied := func(limit int, window, retry time.Duration) ratelimit.Result {
		return ratelimit.Result{Limit: limit, Window: window, RetryAfter: retry, ResetAfter: window}
	}
	header := func(more ...string) http.Header {
		h := http.Header{"Content-Type": {"application/problem+json"}, "Cache-Control": {"no-store"}, "X-Content-Type-Options": {"nosniff"}}
		for i := 0; i < len(more); i += 2 {
			h[more[i]] = append(h[more[i]], more[i+1])
		}
		return h
	}
	for name, c := range map[string]struct {
		decision httplimit.Decision
		fields   []httplimit.Fields
		code     int
		header   http.Header
		body     string
	}{
		"one limit": {
			decision: httplimit.Decision{Policy: "login", Result: denied(5, time.Minute, 1500*time.Millisecond)},
			code:     429, body: problemOf("login"),
			header: header("Ratelimit-Policy", `"login";q=5;w=60`, "Ratelimit", `"login";r=0;t=2`, "Retry-After", "2"),
		},
		"no policy": {
			decision: httplimit.Decision{Result: denied(5, time.Minute, time.Second)},
			code:     429, body: problemOf("default"),
			header: header("Ratelimit-Policy", `"default";q=5;w=60`, "Ratelimit", `"default";r=0;t=1`, "Retry-After", "1"),
		},
		"other fields": {
			decision: httplimit.Decision{Policy: "login", Result: denied(5, time.Minute, time.Second)},
			fields:   []httplimit.Fields{httplimit.XRateLimit()},
			code:     429, body: problemOf("login"),
			header: header("X-Ratelimit-Limit", "5", "X-Ratelimit-Remaining", "0", "X-Ratelimit-Reset", "1", "Retry-After", "1"),
		},
		"the service is busy": {
			decision: httplimit.Decision{Policy: "login", Unavailable: true, Result: denied(5, time.Minute, time.Second)},
			code:     503, body: unavailable("login"),
			header: header("Ratelimit-Policy", `"login";q=5;w=60`, "Ratelimit", `"login";r=0;t=1`, "Retry-After", "1"),
		},
		"several: the longest governs, and one allows": {
			decision: httplimit.Decision{Parts: []httplimit.Decision{
				{Policy: "a", Result: denied(5, time.Minute, time.Second)},
				{Policy: "b", Result: ratelimit.Result{Allowed: true, Limit: 3, Window: time.Second, Remaining: 2, ResetAfter: time.Second}},
				{Policy: "c", Result: denied(7, time.Hour, time.Minute)},
			}},
			code: 429, body: problemOf("a", "c"),
			header: header("Ratelimit-Policy", `"a";q=5;w=60`, "Ratelimit-Policy", `"b";q=3;w=1`, "Ratelimit-Policy", `"c";q=7;w=3600`,
				"Ratelimit", `"a";r=0;t=1`, "Ratelimit", `"b";r=2;t=1`, "Ratelimit", `"c";r=0;t=60`, "Retry-After", "60"),
		},
		"nothing is known": {
			code: 429, body: problemOf("default"), header: header("Retry-After", "1"),
		},
		"an outage": {
			decision: httplimit.Decision{Result: ratelimit.Result{Fallback: true, RetryAfter: time.Second, ResetAfter: time.Second}},
			code:     503, body: `{"title":"Service Unavailable","status":503}`, header: header("Retry-After", "1"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := httptest.NewRecorder()
			w.Header().Set("ETag", `"of the handler"`)
			httplimit.Deny(w, newRequest("POST", "/"), c.decision, c.fields...)
			require.Equal(t, c.code, w.Code)
			require.Equal(t, c.header, w.Header())
			require.Equal(t, c.body, w.Body.String())
		})
	}

	w := httptest.NewRecorder()
	httplimit.Deny(w, newRequest("POST", "/"), httplimit.Decision{Policy: "p", Result: ratelimit.Result{Allowed: true, Limit: 1, Window: time.Second}})
	require.Equal(t, 429, w.Code, "it denies whatever the decision says")
	require.Equal(t, "1", w.Header().Get("Retry-After"))
}

// TestFieldsOfAnAnswerOfYourOwn: Set writes what Deny would, and nothing else.
func TestFieldsOfAnAnswerOfYourOwn(t *testing.T) {
	t.Parallel()
	d := httplimit.Decision{Policy: "tokens", Unit: "tokens", Bucket: true, Result: ratelimit.Result{
		Limit: 100, Window: time.Minute, Remaining: 7, RetryAfter: 1500 * time.Millisecond,
	}}
	h := http.Header{}
	httplimit.Draft11().Set(h, d)
	require.Equal(t, http.Header{
		"Ratelimit-Policy": {`"tokens";q=100;qu="tokens";w=60`},
		"Ratelimit":        {`"tokens";r=7;t=2`},
	}, h)
	h = http.Header{}
	httplimit.Fields{}.Set(h, d)
	require.Empty(t, h)
}

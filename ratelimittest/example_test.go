package ratelimittest_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/httplimit"
	"github.com/tryacquire/ratelimit/ratelimittest"
)

// newSignups is a service: an address may sign up three times an hour, and not at all while
// Redis is down. No part of it is there for the tests.
func newSignups(client ratelimit.Client, signUp http.Handler) (http.Handler, error) {
	limiter, err1 := ratelimit.NewSlidingLog(client, []ratelimit.Rule{{Limit: 3, Window: time.Hour}}, ratelimit.WithName("signups"))
	cached, err2 := ratelimit.NewDenyCache(limiter)
	guarded, err3 := ratelimit.NewFallback(cached, ratelimit.DenyAll(), ratelimit.WithBudget(100*time.Millisecond), ratelimit.WithBreaker(&ratelimit.Breaker{}))
	address, err4 := httplimit.ClientIP(nil)
	limit, err5 := httplimit.New(guarded, address)
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		return nil, err
	}
	return limit(signUp), nil
}

// testSignups is the service's test: in its own module, it is TestSignups.
func testSignups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := ratelimittest.New(t)
		service, err := newSignups(env.Client(), http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		if err != nil {
			t.Fatal(err)
		}
		expect := func(status int, retryAfter string) {
			t.Helper()
			w := httptest.NewRecorder()
			service.ServeHTTP(w, httptest.NewRequestWithContext(context.Background(), "POST", "/signup", nil))
			if w.Code != status || w.Header().Get("Retry-After") != retryAfter {
				t.Errorf("at %v: status %d, Retry-After %q; want %d, %q", time.Now(), w.Code, w.Header().Get("Retry-After"), status, retryAfter)
			}
		}

		for range 3 {
			expect(200, "")
		}
		expect(429, "3600")
		env.Advance(time.Hour - time.Microsecond)
		expect(429, "1")
		env.Advance(time.Microsecond)
		expect(200, "")

		env.Slow(time.Minute) // Redis hangs
		for range 5 {
			expect(503, "1") // after 100 ms each, in a moment here
		}
		env.Up()
		expect(503, "1") // the breaker is open
		env.Advance(200 * time.Millisecond)
		expect(429, "3600") // those that hung were executed, when Redis was back
	})
}

// A test of a service's limits, in which the test sets the time and the outages.
func Example() {
	var t *testing.T // that of go test
	testSignups(t)
}

package httplimit_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/httplimit"
	"github.com/tryacquire/ratelimit/internal/testing/integrationtest"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/ratelimittest"
)

// TestARequestWaits for less than the bound, and is denied at once if it would have to wait longer.
func TestARequestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1), 1))
		h := limit(t, bucket, httplimit.WithMaxWait(1500*time.Millisecond), httplimit.WithPolicy("api"))(served)
		began := time.Now()
		ask := func() (*httptest.ResponseRecorder, time.Duration) {
			w := do(h, newRequest("GET", "/"))
			return w, time.Since(began)
		}
		w, at := ask()
		require.Equal(t, 204, w.Code)
		require.Zero(t, at)
		require.Equal(t, `"api";r=0;t=1`, w.Header().Get("RateLimit"))

		w, at = ask()
		require.Equal(t, 204, w.Code)
		require.GreaterOrEqual(t, at, time.Second)
		require.Less(t, at, 1101*time.Millisecond, "RetryAfter and at most a tenth")
		require.Equal(t, http.Header{"Ratelimit-Policy": {`"api";q=1;w=1`}, "Ratelimit": {`"api";r=0;t=1`}}, w.Header())

		slow := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.Per(1, 1500*time.Millisecond), 1))
		h = limit(t, slow, httplimit.WithMaxWait(1500*time.Millisecond), httplimit.WithPolicy("api"))(served)
		began = time.Now()
		ask()
		w, at = ask()
		require.Equal(t, 429, w.Code)
		require.Zero(t, at, "it would be the bound")
		require.Equal(t, quotaExceeded, w.Body.String())
		require.Equal(t, "2", w.Header().Get("Retry-After"))
		require.Equal(t, `"api";r=0;t=2`, w.Header().Get("RateLimit"))
		time.Sleep(time.Microsecond)
		w, at = ask()
		require.Equal(t, 204, w.Code, "a microsecond less")
		require.Equal(t, 1500*time.Millisecond, at, "no room for a random delay")
	})
}

// TestARequestWaitsForSeveralLimits, with a cost that is settled: the limit that denies says when it asks again.
func TestARequestWaitsForSeveralLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := ratelimittest.New(t)
		requests := ratelimit.Must(ratelimit.NewTokenBucket(env.Client(), ratelimit.PerSecond(1), 1, ratelimit.WithName("requests")))
		bytes := ratelimit.Must(ratelimit.NewFixedWindow(env.Client(), 10, 5*time.Second, ratelimit.WithName("bytes")))
		h := all(t, httplimit.WithMaxWait(3*time.Second),
			httplimit.Limit(requests, httplimit.Everyone()),
			httplimit.Limit(bytes, httplimit.Everyone(), httplimit.WithCost(func(*http.Request) int { return 4 }),
				httplimit.WithSettle(func(_ *http.Request, o httplimit.Outcome) int { return 5 })))(served)
		began := time.Now()
		for i, c := range []struct {
			code     int
			from, to time.Duration
		}{
			{204, 0, 0},
			{204, time.Second, 1100 * time.Millisecond},             // for the bucket
			{429, time.Second, 1100 * time.Millisecond},             // the window is full for almost 4 s
			{204, 4990 * time.Millisecond, 5100 * time.Millisecond}, // for the window
		} {
			if i == 3 {
				time.Sleep(time.Second)
			}
			w := do(h, newRequest("GET", "/"))
			require.Equal(t, c.code, w.Code, i)
			require.GreaterOrEqual(t, time.Since(began), c.from, i)
			require.LessOrEqual(t, time.Since(began), c.to, i)
			if c.code == 429 {
				require.Equal(t, problemOf("requests", "bytes"), w.Body.String())
				require.Equal(t, "4", w.Header().Get("Retry-After"))
			}
		}
		require.Equal(t, 5, peek(t, bytes, "all").Remaining, "settled")
	})
}

// TestAClientThatGoesAwayWhileItWaits: its handler does not run, and nothing is taken.
func TestAClientThatGoesAwayWhileItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1), 1))
		var got error
		h := limit(t, bucket, httplimit.WithMaxWait(time.Minute), httplimit.WithErrorHandler(func(w http.ResponseWriter, r *http.Request, err error, next http.Handler) {
			got = err
			httplimit.ServeInOutages(w, r, err, next)
		}))(served)
		do(h, newRequest("GET", "/"))
		gone, leave := context.WithCancel(t.Context())
		time.AfterFunc(500*time.Millisecond, leave)
		w := do(h, newRequest("GET", "/").WithContext(gone))
		require.Equal(t, 503, w.Code)
		require.ErrorIs(t, got, context.Canceled)
		time.Sleep(500 * time.Millisecond)
		require.Equal(t, 1, peek(t, bucket, "ip:192.0.2.1").Remaining)

		// A deadline of the request's own, before the permits are there, is no reason to wait.
		do(h, newRequest("GET", "/"))
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		w = do(h, newRequest("GET", "/").WithContext(ctx))
		require.Equal(t, 429, w.Code)
		require.Equal(t, "1", w.Header().Get("Retry-After"))
		require.NoError(t, ctx.Err())
	})
}

// TestOthersComeFirst: whoever would have to wait longer after all is denied with what is then
// known, and an outage ends the wait.
func TestOthersComeFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := denied(5, time.Minute, 0, time.Second, 2*time.Second)
		l := limitertest.InTurn(nil, first, first, denied(5, time.Minute, 0, 30*time.Second, time.Minute))
		w := do(limit(t, l, httplimit.WithMaxWait(10*time.Second), httplimit.WithPolicy("api"))(served), newRequest("GET", "/"))
		require.Equal(t, 429, w.Code)
		require.Equal(t, "30", w.Header().Get("Retry-After"))
		require.Equal(t, `"api";r=0;t=30`, w.Header().Get("RateLimit"))
		require.Equal(t, `"api";q=5;w=60`, w.Header().Get("RateLimit-Policy"))
		require.Equal(t, 3, l.Count())

		l = limitertest.InTurn(nil, first)
		w = do(limit(t, l, httplimit.WithMaxWait(time.Second))(served), newRequest("GET", "/"))
		require.Equal(t, 429, w.Code)
		require.Equal(t, 1, l.Count(), "as long as the bound: it is not asked again")

		l = limitertest.InTurn(limitertest.Always(ratelimit.Result{}, errors.New("down")), first, first)
		w = do(limit(t, l, httplimit.WithMaxWait(10*time.Second))(served), newRequest("GET", "/"))
		require.Equal(t, 503, w.Code)
		require.Empty(t, w.Header().Get("RateLimit"))
	})
}

// TestTheEndOfTheWaitIsNoOutage: a request that was denied, and whose wait ends while the limiter is
// asked again, is denied, even where outages are served without a limit.
func TestTheEndOfTheWaitIsNoOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := denied(5, time.Minute, 0, time.Second, 2*time.Second)
		l := limitertest.InTurn(limitertest.Hang, first)
		h := limit(t, l, httplimit.WithMaxWait(10*time.Second), httplimit.WithPolicy("api"), httplimit.WithErrorHandler(httplimit.ServeInOutages))(served)
		began := time.Now()
		w := do(h, newRequest("GET", "/"))
		require.Equal(t, 10*time.Second, time.Since(began))
		require.Equal(t, 429, w.Code)
		require.Equal(t, quotaExceeded, w.Body.String())
		require.Equal(t, "1", w.Header().Get("Retry-After"))
		require.Equal(t, `"api";r=0;t=1`, w.Header().Get("RateLimit"))

		// The request's own end is told as such.
		l.Answer = limitertest.InTurn(limitertest.Hang, first).Answer
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		w = do(h, newRequest("GET", "/").WithContext(ctx))
		require.Equal(t, 503, w.Code)
		require.Empty(t, w.Header().Get("RateLimit"))
	})
}

// TestWaitingForABucketOnRedis takes a turn in its queue, through a DenyCache too. A client that
// goes away gives its turn back.
func TestWaitingForABucketOnRedis(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	bucket := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.Per(1, 2*time.Millisecond), 1, ratelimit.WithName("api")))
	cached := ratelimit.Must(ratelimit.NewDenyCache(bucket))
	h := limit(t, cached, httplimit.WithMaxWait(time.Minute), httplimit.WithBucket(), httplimit.WithPolicy("api"))(served)
	require.Equal(t, 204, do(h, newRequest("GET", "/")).Code)
	w := do(h, newRequest("GET", "/")) // the server's clock stands still, so that this is a debt of 2 ms
	require.Equal(t, 204, w.Code)
	require.Equal(t, `"api";r=0;t=1`, w.Header().Get("RateLimit"))
	r := peek(t, bucket, "ip:192.0.2.1")
	require.Equal(t, ratelimit.Result{Limit: 1, Window: 2 * time.Millisecond, RetryAfter: 4 * time.Millisecond, ResetAfter: 4 * time.Millisecond}, r)

	minutes := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerMinute(1), 1, ratelimit.WithName("minutes")))
	h = limit(t, minutes, httplimit.WithMaxWait(time.Hour))(served)
	require.Equal(t, 204, do(h, newRequest("GET", "/")).Code)
	before := s.Look(t, "ratelimit:minutes:tokenbucket{ip:192.0.2.1}")
	ctx, leave := context.WithCancel(t.Context())
	waiting := make(chan *httptest.ResponseRecorder)
	go func() { waiting <- do(h, newRequest("GET", "/").WithContext(ctx)) }()
	require.Eventually(t, func() bool {
		return peek(t, minutes, "ip:192.0.2.1").RetryAfter == 2*time.Minute
	}, 10*time.Second, time.Millisecond)
	leave()
	require.Equal(t, 503, (<-waiting).Code)
	require.Eventually(t, func() bool { // in the background, if the reply was still on its way
		return peek(t, minutes, "ip:192.0.2.1").RetryAfter == time.Minute
	}, 10*time.Second, time.Millisecond)
	require.Equal(t, before, s.Look(t, "ratelimit:minutes:tokenbucket{ip:192.0.2.1}"))

	h = limit(t, minutes, httplimit.WithMaxWait(time.Minute))(served)
	w = do(h, newRequest("GET", "/"))
	require.Equal(t, 429, w.Code)
	require.Equal(t, "60", w.Header().Get("Retry-After"))
	require.Equal(t, before, s.Look(t, "ratelimit:minutes:tokenbucket{ip:192.0.2.1}"), "nothing was reserved")
}

// TestWaitingWithAnOutagePolicy: a closed one denies at once, with 503.
func TestWaitingWithAnOutagePolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		closed := ratelimit.Must(ratelimit.NewFallback(&limitertest.Stub{Err: errors.New("down")}, ratelimit.DenyAll()))
		began := time.Now()
		w := do(limit(t, closed, httplimit.WithMaxWait(2500*time.Millisecond))(served), newRequest("GET", "/"))
		require.Equal(t, 503, w.Code)
		require.Equal(t, "1", w.Header().Get("Retry-After"))
		require.Zero(t, time.Since(began))
	})
}

func TestADeadlineIsNoOutage(t *testing.T) {
	integrationtest.DeadlinesAreNoOutages(t, 429, 503, func(ctx context.Context, t *testing.T, l ratelimit.Limiter, wait time.Duration) int {
		opts := []httplimit.Option{httplimit.WithErrorHandler(httplimit.ServeInOutages)}
		if wait > 0 {
			opts = append(opts, httplimit.WithMaxWait(wait))
		}
		return do(limit(t, l, opts...)(served), newRequest("GET", "/").WithContext(ctx)).Code
	})
}

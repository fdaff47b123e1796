package httplimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/httplimit"
	"github.com/tryacquire/ratelimit/internal/redisexec"
	"github.com/tryacquire/ratelimit/internal/scripts"
	"github.com/tryacquire/ratelimit/internal/testing/fakes"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/ratelimittest"
)

func inFlight(t testing.TB, limiter ratelimit.Holder, opts ...httplimit.Option) func(http.Handler) http.Handler {
	t.Helper()
	wrap, err := httplimit.NewInFlight(limiter, clientIP(t, nil), opts...)
	require.NoError(t, err)
	return wrap
}

// TestInFlight: a permit is held while the handler runs, and no longer.
func TestInFlight(t *testing.T) {
	onStages(t, func(t *testing.T, s *limitertest.Stage) {
		reports := ratelimit.Must(ratelimit.NewInFlight(s.Client, 2, time.Hour, append(s.Opts, ratelimit.WithName("reports"))...))
		free := func() int { return peek(t, reports, "ip:192.0.2.1").Remaining }
		running, end := make(chan bool), make(chan bool)
		h := inFlight(t, reports)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			running <- true
			<-end
		}))
		answers := make(chan *httptest.ResponseRecorder)
		begin := func() {
			go func() { answers <- do(h, newRequest("GET", "/")) }()
			<-running
		}
		begin()
		require.Equal(t, 1, free())
		begin()
		w := do(h, newRequest("GET", "/"))
		require.Equal(t, 429, w.Code)
		require.Equal(t, problemOf("reports"), w.Body.String())
		require.Equal(t, http.Header{
			"Ratelimit-Policy": {`"reports";q=2;qu="concurrent-requests"`}, "Ratelimit": {`"reports";r=0;t=1`}, "Retry-After": {"1"},
			"Content-Type": {"application/problem+json"}, "Cache-Control": {"no-store"}, "X-Content-Type-Options": {"nosniff"},
		}, w.Header())
		w = do(inFlight(t, reports, httplimit.WithServiceUnavailable(), httplimit.WithRetryAfter(1500*time.Millisecond), httplimit.WithUnit("acme-reports"), httplimit.WithPolicy("busy"))(served), newRequest("GET", "/"))
		require.Equal(t, 503, w.Code)
		require.Equal(t, unavailable("busy"), w.Body.String())
		require.Equal(t, "2", w.Header().Get("Retry-After"))
		require.Equal(t, `"busy";q=2;qu="acme-reports"`, w.Header().Get("RateLimit-Policy"))
		require.Equal(t, `"busy";r=0;t=2`, w.Header().Get("RateLimit"))

		end <- true
		w = <-answers
		require.Equal(t, 200, w.Code)
		require.Equal(t, 1, free(), "given back")
		begin()
		end <- true
		end <- true
		first, second := <-answers, <-answers
		require.Equal(t, 2, free())
		require.ElementsMatch(t, []string{`"reports";r=1`, `"reports";r=0`, `"reports";r=0`}, // any of the first two may have ended first
			[]string{w.Header().Get("RateLimit"), first.Header().Get("RateLimit"), second.Header().Get("RateLimit")})

		h = inFlight(t, reports)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			require.Equal(t, 1, free())
			panic("boom")
		}))
		require.PanicsWithValue(t, "boom", func() { do(h, newRequest("GET", "/")) })
		require.Equal(t, 2, free(), "given back though the handler panicked")

		// A client that goes away does not keep the permit, and does not lose it early.
		gone, leave := context.WithCancel(t.Context())
		h = inFlight(t, reports)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			leave()
			<-r.Context().Done()
			require.Equal(t, context.Canceled, context.Cause(r.Context()))
			require.Equal(t, 1, free())
		}))
		do(h, newRequest("GET", "/").WithContext(gone))
		require.Equal(t, 2, free())
	})
}

// TestInFlightBesideRates: all or nothing, and settled.
func TestInFlightBesideRates(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	requests := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(1), 3, ratelimit.WithName("requests")))
	tokens := ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 1000, time.Minute, ratelimit.WithName("tokens")))
	running := ratelimit.Must(ratelimit.NewInFlight(s.Client, 1, time.Hour, ratelimit.WithName("running")))
	var inside func(r *http.Request)
	h := all(t,
		httplimit.Limit(requests, httplimit.Everyone()),
		httplimit.InFlight(running, httplimit.Everyone(), httplimit.WithServiceUnavailable(), httplimit.WithRetryAfter(5*time.Second)),
		httplimit.Limit(tokens, httplimit.Everyone(), httplimit.WithCost(func(*http.Request) int { return 400 }), httplimit.WithReportedCost(), httplimit.WithUnit("acme-tokens")),
	)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { inside(r) }))
	left := func() []int {
		return []int{peek(t, requests, "all").Remaining, peek(t, running, "all").Remaining, peek(t, tokens, "all").Remaining}
	}

	inside = func(r *http.Request) {
		require.Equal(t, []int{2, 0, 600}, left())
		w := do(h, newRequest("GET", "/"))
		require.Equal(t, 503, w.Code)
		require.Equal(t, unavailable("running"), w.Body.String())
		require.Equal(t, "5", w.Header().Get("Retry-After"))
		require.Equal(t, []string{`"requests";q=3;w=3`, `"running";q=1;qu="concurrent-requests"`, `"tokens";q=1000;qu="acme-tokens";w=60`}, w.Header().Values("RateLimit-Policy"))
		require.Equal(t, []string{`"requests";r=2;t=2`, `"running";r=0;t=5`, `"tokens";r=600;t=60`}, w.Header().Values("RateLimit"))
		require.Equal(t, []int{2, 0, 600}, left(), "nothing was taken")
		require.True(t, httplimit.ReportCost(r.Context(), 730))
	}
	w := do(h, newRequest("GET", "/"))
	require.Equal(t, 200, w.Code)
	require.Equal(t, []string{`"requests";r=2;t=2`, `"running";r=0`, `"tokens";r=600;t=60`}, w.Header().Values("RateLimit"))
	require.Equal(t, []int{2, 1, 270}, left())

	inside = func(*http.Request) { t.Error("the handler ran") }
	w = do(h, newRequest("GET", "/"))
	require.Equal(t, 429, w.Code)
	require.Equal(t, problemOf("tokens"), w.Body.String())
	require.Equal(t, []int{2, 1, 270}, left())
}

// TestALostLeaseCancelsTheRequest, whose handler then decides what to answer. The late error
// handler learns of it.
func TestALostLeaseCancelsTheRequest(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	reports := ratelimit.Must(ratelimit.NewInFlight(s.Client, 1, 300*time.Millisecond))
	var late error
	h := inFlight(t, reports, httplimit.WithLateErrorHandler(func(_ *http.Request, err error) { late = err }))(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			require.NoError(t, s.Admin.FlushAll(context.Background()).Err())
			<-r.Context().Done() // the next extension, after a third of the lease, finds nothing
			require.Equal(t, ratelimit.ErrLeaseLost, context.Cause(r.Context()))
			w.WriteHeader(http.StatusGone)
		}))
	require.Equal(t, http.StatusGone, do(h, newRequest("GET", "/")).Code)
	require.ErrorIs(t, late, ratelimit.ErrLeaseLost)
}

// extends is the digest of the script that extends a lease.
func extends() string {
	all := scripts.Index()
	return all[slices.IndexFunc(all, func(s scripts.Named) bool { return s.Name == "inflight, extend" })].Digest()
}

// slowRedis allows everything, and replies late.
func slowRedis(late time.Duration) ratelimit.Client {
	return fakes.NewClient(func(_ context.Context, cmd redis.Cmder) error {
		time.Sleep(late)
		if once, ok := cmd.(*redisexec.Once); ok {
			cmd = once.Cmder
		}
		if words, ok := cmd.(interface{ SetVal([]int64) }); ok {
			words.SetVal([]int64{1, 1, 0, 0}) // it is allowed
			if cmd.Args()[1] == extends() {
				words.SetVal([]int64{1})
			}
		}
		return nil
	})
}

// TestALeaseThatIsOverBeforeTheHandlerRuns is an error, and the handler does not run.
func TestALeaseThatIsOverBeforeTheHandlerRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reports := ratelimit.Must(ratelimit.NewInFlight(slowRedis(time.Second), 1, time.Second))
		failed := httplimit.WithErrorHandler(func(w http.ResponseWriter, r *http.Request, err error, next http.Handler) {
			require.ErrorContains(t, err, "the reply came when the lease could have ended")
			httplimit.DefaultErrorHandler(w, r, err, next)
		})
		w := do(inFlight(t, reports, failed)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it ran") })), newRequest("GET", "/"))
		require.Equal(t, 503, w.Code)
		require.Equal(t, `{"title":"Service Unavailable","status":503}`, w.Body.String())
		time.Sleep(time.Minute) // the permit is given back in the background
	})
}

// TestALeaseThatIsOverBeforeTheHandlerRunsGivesTheEstimateBack: the request has cost nothing.
func TestALeaseThatIsOverBeforeTheHandlerRunsGivesTheEstimateBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := ratelimittest.New(t)
		late := ratelimit.WithObserver(func(context.Context, ratelimit.Observation) { time.Sleep(time.Second) })
		reports := ratelimit.Must(ratelimit.NewInFlight(env.Client(), 1, time.Second, ratelimit.WithName("reports"), late))
		tokens := ratelimit.Must(ratelimit.NewFixedWindow(env.Client(), 10, time.Hour, ratelimit.WithName("tokens")))
		var failure error
		wrap, err := httplimit.NewAll(
			httplimit.Limit(tokens, httplimit.Everyone(), httplimit.WithCost(func(*http.Request) int { return 4 }), httplimit.WithReportedCost()),
			httplimit.InFlight(reports, httplimit.Everyone()),
			httplimit.WithErrorHandler(func(w http.ResponseWriter, r *http.Request, err error, next http.Handler) {
				failure = err
				httplimit.DefaultErrorHandler(w, r, err, next)
			}))
		require.NoError(t, err)
		w := do(wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it ran") })), newRequest("GET", "/"))
		require.Equal(t, 503, w.Code)
		require.ErrorIs(t, failure, ratelimit.ErrLeaseLost)
		require.Equal(t, 10, peek(t, tokens, "all").Remaining)
		require.Equal(t, 1, peek(t, reports, "all").Remaining)
	})
}

// TestInFlightExtendsTheLease for as long as the handler runs.
func TestInFlightExtendsTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reports := ratelimit.Must(ratelimit.NewInFlight(slowRedis(0), 1, time.Minute))
		ran := false
		failed := httplimit.WithErrorHandler(func(_ http.ResponseWriter, _ *http.Request, err error, _ http.Handler) { t.Error(err) })
		w := do(inFlight(t, reports, failed)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Hour)
			require.NoError(t, r.Context().Err())
			ran = true
		})), newRequest("GET", "/"))
		require.Equal(t, 200, w.Code)
		require.True(t, ran)
	})
}

// TestWhatIsReadFromARequestAfterwards: the handler gets a copy with another context. What it has
// set is there for the server, which removes the files of a form, and for middlewares outside.
func TestWhatIsReadFromARequestAfterwards(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	reports := ratelimit.Must(ratelimit.NewInFlight(s.Client, 1, time.Hour))
	mux := http.NewServeMux()
	mux.HandleFunc("POST /upload/{name}", func(_ http.ResponseWriter, r *http.Request) {
		require.NoError(t, r.ParseMultipartForm(1))
		if r.PathValue("name") == "panics" {
			panic(errors.New("boom"))
		}
	})
	for _, name := range []string{"a", "panics"} {
		r := httptest.NewRequest("POST", "/upload/"+name, strings.NewReader("--x\r\nContent-Disposition: form-data; name=\"f\"; filename=\"f\"\r\n\r\nlong enough for a file\r\n--x--\r\n"))
		r.Header.Set("Content-Type", "multipart/form-data; boundary=x")
		func() {
			defer func() { _ = recover() }()
			do(inFlight(t, reports)(mux), r)
		}()
		require.Equal(t, "POST /upload/{name}", r.Pattern)
		require.NotNil(t, r.MultipartForm, name)
		require.NoError(t, r.MultipartForm.RemoveAll())
	}
}

// queueOf is a middleware in a bubble with one place, of which each request keeps it for ten seconds.
func queueOf(t *testing.T, env *ratelimittest.Env, opts ...httplimit.Option) (h http.Handler, reports *ratelimit.InFlight) {
	reports = ratelimit.Must(ratelimit.NewInFlight(env.Client(), 1, time.Hour, ratelimit.WithName("reports")))
	opts = append(opts, httplimit.WithMaxWait(25*time.Second))
	return inFlight(t, reports, opts...)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(10 * time.Second)
		_, _ = io.WriteString(w, r.URL.Path)
	})), reports
}

// TestAQueueInFrontOfInFlight: in their order, each when the one before ends, those who would wait too long denied.
func TestAQueueInFrontOfInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, reports := queueOf(t, ratelimittest.New(t))
		began := time.Now()
		answers := make(chan string, 9)
		for i := range 5 {
			go func() {
				w := do(h, newRequest("GET", fmt.Sprint("/", i)))
				answers <- fmt.Sprint(i, " ", w.Code, " ", w.Body.String(), " ", w.Header().Get("RateLimit"), " ", w.Header().Get("Retry-After"), " ", time.Since(began))
			}()
			synctest.Wait()
		}
		var got []string
		for range 5 {
			got = append(got, <-answers)
		}
		denied := func(i int) string { return fmt.Sprint(i, " 429 ", problemOf("reports"), ` "reports";r=0;t=1 1 25s`) }
		require.ElementsMatch(t, []string{
			`0 200 /0 "reports";r=0  10s`, `1 200 /1 "reports";r=0  20s`, `2 200 /2 "reports";r=0  30s`, denied(3), denied(4),
		}, got)
		require.Equal(t, 1, peek(t, reports, "ip:192.0.2.1").Remaining)
	})
}

// TestAQueueIsBounded, in all keys together, and the places of those who have left are free.
func TestAQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var failed error
		h, reports := queueOf(t, ratelimittest.New(t), httplimit.WithMaxWaiting(1), httplimit.WithErrorHandler(
			func(_ http.ResponseWriter, _ *http.Request, err error, _ http.Handler) { failed = err }))
		began := time.Now()
		go do(h, newRequest("GET", "/first"))
		synctest.Wait()
		leaving, leave := context.WithCancel(t.Context())
		go do(h, newRequest("GET", "/leaves").WithContext(leaving))
		synctest.Wait()
		require.Equal(t, 429, do(h, newRequest("GET", "/")).Code, "the queue is full")
		require.Zero(t, time.Since(began))
		time.Sleep(time.Second)
		leave()
		synctest.Wait()
		require.ErrorIs(t, failed, context.Canceled)
		w := do(h, newRequest("GET", "/next"))
		require.Equal(t, 200, w.Code)
		require.Equal(t, 20*time.Second, time.Since(began))
		require.Equal(t, 1, peek(t, reports, "ip:192.0.2.1").Remaining)
	})
}

// TestWhoLeavesTheLine before anybody was asked is reported with the time in it.
func TestWhoLeavesTheLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := ratelimittest.New(t)
		var seen []ratelimit.Observation
		observed := ratelimit.WithObserver(func(_ context.Context, o ratelimit.Observation) {
			if errors.Is(o.Err, context.Canceled) {
				seen = append(seen, o)
			}
		})
		reports := ratelimit.Must(ratelimit.NewInFlight(env.Client(), 1, time.Hour, ratelimit.WithName("reports"), observed))
		h := inFlight(t, reports, httplimit.WithMaxWait(25*time.Second))(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(10 * time.Second) }))
		go do(h, newRequest("GET", "/works"))
		synctest.Wait()
		go do(h, newRequest("GET", "/first"))
		synctest.Wait()
		leaving, leave := context.WithCancel(t.Context())
		go do(h, newRequest("GET", "/leaves").WithContext(leaving))
		time.Sleep(time.Second)
		leave()
		time.Sleep(time.Minute) // all are answered
		synctest.Wait()
		require.Len(t, seen, 1)
		require.Equal(t, time.Second, seen[0].Waited)
	})
}

// TestAQueueOfSeveralLimits: places and permits, all or nothing; a limit that denies for longer than the wait denies at once.
func TestAQueueOfSeveralLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := ratelimittest.New(t)
		reports := ratelimit.Must(ratelimit.NewInFlight(env.Client(), 1, time.Hour, ratelimit.WithName("reports")))
		minute := ratelimit.Must(ratelimit.NewFixedWindow(env.Client(), 3, time.Minute, ratelimit.WithName("minute")))
		h := all(t, httplimit.InFlight(reports, httplimit.Everyone()), httplimit.Limit(minute, httplimit.Everyone()),
			httplimit.WithMaxWait(25*time.Second))(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(10 * time.Second) }))
		began := time.Now()
		answers := make(chan string, 9)
		for range 4 {
			go func() { answers <- fmt.Sprint(do(h, newRequest("GET", "/")).Code, " ", time.Since(began)) }()
			synctest.Wait()
		}
		var got []string
		for range 4 {
			got = append(got, <-answers)
		}
		slices.Sort(got) // two have their answer at the same instant
		require.Equal(t, []string{"200 10s", "200 20s", "200 30s", "429 20s"}, got)
	})
}

// TestAQueueInAnOutage is not made to wait by whoever denies because of the outage.
func TestAQueueInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := ratelimittest.New(t)
		reports := ratelimit.Must(ratelimit.NewInFlight(env.Client(), 1, time.Hour, ratelimit.WithName("reports")))
		h := inFlight(t, ratelimit.Must(ratelimit.NewHoldFallback(reports, ratelimit.DenyHolds())), httplimit.WithMaxWait(time.Minute))(served)
		env.Down()
		began := time.Now()
		require.NotEqual(t, 200, do(h, newRequest("GET", "/")).Code)
		require.Less(t, time.Since(began), 2*time.Second)
	})
}

package httplimit_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/httplimit"
	"github.com/tryacquire/ratelimit/internal/testing/integrationtest"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// stages are where limiters on Redis are tested.
var stages = map[string]func(testing.TB) *limitertest.Stage{"miniredis": limitertest.OnMiniredis, "Redis": limitertest.OnRedis}

func onStages(t *testing.T, test func(t *testing.T, s *limitertest.Stage)) {
	for name, stage := range stages {
		t.Run(name, func(t *testing.T) { test(t, stage(t)) })
	}
}

func all(t testing.TB, opts ...httplimit.Option) func(http.Handler) http.Handler {
	t.Helper()
	wrap, err := httplimit.NewAll(opts...)
	require.NoError(t, err)
	return wrap
}

func do(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func problemOf(policies ...string) string {
	return `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",` +
		`"title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"violated-policies":["` +
		strings.Join(policies, `","`) + `"]}`
}

func unavailable(policies ...string) string {
	return `{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",` +
		`"title":"Request cannot be satisfied due to temporary server capacity constraints","status":503,"violated-policies":["` +
		strings.Join(policies, `","`) + `"]}`
}

// from is a request of an address with an API key.
func from(address, apiKey string) *http.Request {
	r := newRequest("GET", "/")
	r.RemoteAddr = address + ":1"
	r.Header.Set("X-Api-Key", apiKey)
	return r
}

// TestSeveralLimitsAllOrNothing: by address, by API key and for all together. What one of them
// denies is taken from none.
func TestSeveralLimitsAllOrNothing(t *testing.T) {
	onStages(t, func(t *testing.T, s *limitertest.Stage) {
		o := s.Opts
		perAddress := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(1), 3, append(o, ratelimit.WithName("address"))...))
		perKey := ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 4, time.Minute, append(o, ratelimit.WithName("key"))...))
		global := ratelimit.Must(ratelimit.NewSlidingLog(s.Client, []ratelimit.Rule{{Limit: 5, Window: 10 * time.Second}}, append(o, ratelimit.WithName("all"))...))
		served := 0
		h := all(t,
			httplimit.Limit(perAddress, clientIP(t, nil)),
			httplimit.Limit(perKey, ratelimit.Must(httplimit.APIKey("X-Api-Key")), httplimit.WithPolicy("customer")),
			httplimit.Limit(global, httplimit.Everyone()),
		)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ }))

		w := do(h, from("192.0.2.1", "a"))
		require.Equal(t, 200, w.Code)
		require.Equal(t, http.Header{
			"Ratelimit-Policy": {`"address";q=3;w=3`, `"customer";q=4;w=60`, `"all";q=5;w=10`},
			"Ratelimit":        {`"address";r=2;t=2`, `"customer";r=3;t=60`, `"all";r=4;t=10`},
		}, w.Header())
		for range 2 {
			require.Equal(t, 200, do(h, from("192.0.2.1", "a")).Code)
		}
		w = do(h, from("192.0.2.1", "a"))
		require.Equal(t, 429, w.Code)
		require.Equal(t, problemOf("address"), w.Body.String())
		require.Equal(t, http.Header{
			"Ratelimit-Policy": {`"address";q=3;w=3`, `"customer";q=4;w=60`, `"all";q=5;w=10`},
			"Ratelimit":        {`"address";r=0;t=1`, `"customer";r=1;t=60`, `"all";r=2;t=10`}, "Retry-After": {"1"},
			"Content-Type": {"application/problem+json"}, "Cache-Control": {"no-store"}, "X-Content-Type-Options": {"nosniff"},
		}, w.Header())
		require.Equal(t, 200, do(h, from("192.0.2.2", "a")).Code)
		w = do(h, from("192.0.2.1", "a"))
		require.Equal(t, problemOf("address", "customer"), w.Body.String())
		require.Equal(t, "60", w.Header().Get("Retry-After"), "the longest")
		require.Equal(t, 200, do(h, from("192.0.2.3", "b")).Code)
		w = do(h, from("192.0.2.1", "a"))
		require.Equal(t, problemOf("address", "customer", "all"), w.Body.String())
		require.Equal(t, 5, served, "no handler ran for a denial")

		keys, err := s.Admin.Keys(t.Context(), "*").Result()
		require.NoError(t, err)
		require.ElementsMatch(t, []string{
			"ratelimit:address:tokenbucket{ip:192.0.2.1}", "ratelimit:address:tokenbucket{ip:192.0.2.2}", "ratelimit:address:tokenbucket{ip:192.0.2.3}",
			"ratelimit:key:fixedwindow{apikey#" + integrationtest.Hash("a") + "}", "ratelimit:key:fixedwindow{apikey#" + integrationtest.Hash("b") + "}", "ratelimit:all:slidinglog{all}",
		}, keys)

		s.Advance(10*time.Second - time.Microsecond)
		require.Equal(t, problemOf("all"), do(h, from("192.0.2.4", "c")).Body.String())
		s.Advance(time.Microsecond)
		require.Equal(t, 200, do(h, from("192.0.2.4", "c")).Code)
	})
}

// TestSeveralLimitsOnARing: the keys are on several shards. A denial gives the others' permits
// back.
func TestSeveralLimitsOnARing(t *testing.T) {
	addrs := map[string]string{}
	var servers []*miniredis.Miniredis
	for i := range 2 {
		server := miniredis.RunT(t)
		server.ClockTTL(true)
		server.SetTime(limitertest.Start)
		addrs[fmt.Sprint("shard", i)] = server.Addr()
		servers = append(servers, server)
	}
	ring := redis.NewRing(&redis.RingOptions{Addrs: addrs})
	t.Cleanup(func() { _ = ring.Close() })
	perAddress := ratelimit.Must(ratelimit.NewFixedWindow(ring, 9, time.Minute, ratelimit.WithName("address")))
	global := ratelimit.Must(ratelimit.NewFixedWindow(ring, 10, time.Minute, ratelimit.WithName("all")))
	h := all(t, httplimit.Limit(perAddress, clientIP(t, nil)), httplimit.Limit(global, httplimit.Everyone()))(served)
	for i := range 10 {
		w := do(h, from(fmt.Sprint("192.0.2.", i), ""))
		require.Equal(t, 204, w.Code)
		require.Equal(t, []string{`"address";r=8;t=60`, fmt.Sprintf(`"all";r=%d;t=60`, 9-i)}, w.Header().Values("RateLimit"))
	}
	w := do(h, from("192.0.2.1", ""))
	require.Equal(t, 429, w.Code)
	require.Equal(t, problemOf("all"), w.Body.String())
	require.Equal(t, []string{`"address";r=8;t=60`, `"all";r=0;t=60`}, w.Header().Values("RateLimit"))
	r, err := perAddress.Peek(t.Context(), "ip:192.0.2.1")
	require.NoError(t, err)
	require.Equal(t, 8, r.Remaining, "given back")
	for _, server := range servers {
		require.NotEmpty(t, server.Keys(), "both shards have keys")
	}
}

// TestCostsOfSeveralLimits: each has a cost of its own. One of 0 is not asked and has no fields.
func TestCostsOfSeveralLimits(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	requests := ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 10, time.Minute, ratelimit.WithName("requests")))
	units := ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 100, time.Minute, ratelimit.WithName("units")))
	cost, first := 0, 0
	asked := false
	key := func(*http.Request) (string, error) { asked = true; return "k", nil }
	h := all(t,
		httplimit.Limit(requests, httplimit.Everyone(), httplimit.WithCost(func(*http.Request) int { return first })),
		httplimit.Limit(units, key, httplimit.WithCost(func(*http.Request) int { return cost }), httplimit.WithUnit("acme-units")),
	)(served)
	w := do(h, newRequest("GET", "/"))
	require.Equal(t, 204, w.Code)
	require.Empty(t, w.Header())
	require.False(t, asked)

	first = 2
	w = do(h, newRequest("GET", "/"))
	require.Equal(t, http.Header{"Ratelimit-Policy": {`"requests";q=10;w=60`}, "Ratelimit": {`"requests";r=8;t=60`}}, w.Header())
	require.False(t, asked)

	cost = 60
	w = do(h, newRequest("GET", "/"))
	require.Equal(t, http.Header{
		"Ratelimit-Policy": {`"requests";q=10;w=60`, `"units";q=100;qu="acme-units";w=60`},
		"Ratelimit":        {`"requests";r=6;t=60`, `"units";r=40;t=60`},
	}, w.Header())
	w = do(h, newRequest("GET", "/"))
	require.Equal(t, problemOf("units"), w.Body.String())
	require.Equal(t, []string{`"requests";r=6;t=60`, `"units";r=40;t=60`}, w.Header().Values("RateLimit"))

	for wrong, code := range map[int]int{-1: 500, 101: 400} {
		cost = wrong
		w = do(h, newRequest("GET", "/"))
		require.Equal(t, code, w.Code)
		require.Empty(t, w.Header().Values("RateLimit"))
	}
	require.Equal(t, 6, peek(t, requests, "all").Remaining)
	require.Equal(t, 40, peek(t, units, "k").Remaining)
}

func peek(t testing.TB, l interface {
	Peek(context.Context, string) (ratelimit.Result, error)
}, key string) ratelimit.Result {
	t.Helper()
	r, err := l.Peek(context.Background(), key)
	require.NoError(t, err)
	return r
}

// TestARequestWithoutAKeyOfOneLimit is answered as with one limit, and takes nothing.
func TestARequestWithoutAKeyOfOneLimit(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	window := ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 10, time.Minute, ratelimit.WithName("all")))
	perKey := ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 10, time.Minute, ratelimit.WithName("key")))
	apiKey := ratelimit.Must(httplimit.APIKey("X-Api-Key"))
	for name, c := range map[string]struct {
		key  httplimit.KeyFunc
		code int
	}{
		"none":                  {apiKey, 400},
		"empty":                 {constantKey("", nil), 500},
		"the service's mistake": {constantKey("", ratelimit.ErrInvalidConfig), 500},
	} {
		var got error
		h := all(t, httplimit.Limit(window, httplimit.Everyone()), httplimit.Limit(perKey, c.key),
			httplimit.WithErrorHandler(func(w http.ResponseWriter, r *http.Request, err error, next http.Handler) {
				got = err
				httplimit.ServeInOutages(w, r, err, next)
			}))(served)
		w := do(h, newRequest("GET", "/"))
		require.Equal(t, c.code, w.Code, name)
		require.Error(t, got)
	}
	require.Equal(t, 10, peek(t, window, "all").Remaining)
}

// TestPlansAmongSeveralLimits: a Choice picks the limiter of the customer's plan, which can change
// at any time.
func TestPlansAmongSeveralLimits(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	name := ratelimit.WithName("plan")
	free := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerMinute(1), 2, name))
	paid := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerMinute(100), 200, name))
	address := ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 100, time.Minute, ratelimit.WithName("address")))
	var plan ratelimit.Limiter = free
	plans := ratelimit.Must(ratelimit.NewChoice(func(context.Context, string) (ratelimit.Limiter, error) { return plan, nil }))
	h := all(t, httplimit.Limit(address, clientIP(t, nil)),
		httplimit.Limit(plans, ratelimit.Must(httplimit.APIKey("X-Api-Key")), httplimit.WithPolicy("plan")))(served)
	ask := func() *httptest.ResponseRecorder { return do(h, from("192.0.2.1", "a")) }
	for _, want := range []string{`"plan";r=1;t=60`, `"plan";r=0;t=1`} {
		require.Equal(t, want, ask().Header().Values("RateLimit")[1], "of a bucket")
	}
	w := ask()
	require.Equal(t, problemOf("plan"), w.Body.String())
	require.Equal(t, "60", w.Header().Get("Retry-After"))
	plan = paid
	w = ask()
	require.Equal(t, 204, w.Code, "an upgrade holds at once")
	require.Equal(t, []string{`"address";q=100;w=60`, `"plan";q=200;w=120`}, w.Header().Values("RateLimit-Policy"))

	for message, wrong := range map[string]ratelimit.Limiter{
		"pick returned nil":                       nil,
		"is several limiters; claim each of them": ratelimit.Must(ratelimit.NewAll(free)),
		"a *fakes.Limiter[github.com/tryacquire/ratelimit.Result] decides on its own": &limitertest.Stub{},
	} {
		plan = wrong
		var got error
		other := ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 100, time.Minute, ratelimit.WithName("other")))
		h := all(t, httplimit.Limit(plans, httplimit.Everyone()), httplimit.Limit(other, httplimit.Everyone()),
			httplimit.WithErrorHandler(func(w http.ResponseWriter, r *http.Request, err error, next http.Handler) {
				got = err
				httplimit.DefaultErrorHandler(w, r, err, next)
			}))(served)
		require.Equal(t, 500, do(h, newRequest("GET", "/")).Code)
		require.ErrorContains(t, got, message)
	}
}

// TestAChoiceThatAllowsOrDeniesEverything: an admin's hand on one customer, among other limits.
func TestAChoiceThatAllowsOrDeniesEverything(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	address := ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 2, time.Minute, ratelimit.WithName("address")))
	plan := ratelimit.AllowAll()
	plans := ratelimit.Must(ratelimit.NewChoice(func(context.Context, string) (ratelimit.Limiter, error) { return plan, nil }))
	var got httplimit.Decision
	h := all(t, httplimit.Limit(address, clientIP(t, nil)),
		httplimit.Limit(plans, ratelimit.Must(httplimit.APIKey("X-Api-Key")), httplimit.WithPolicy("plan")),
		httplimit.WithDenialHandler(func(w http.ResponseWriter, r *http.Request, d httplimit.Decision) {
			got = d
			httplimit.DefaultDenialHandler(w, r, d)
		}))(served)

	w := do(h, from("192.0.2.1", "a"))
	require.Equal(t, 204, w.Code)
	require.Equal(t, []string{`"address";q=2;w=60`}, w.Header().Values("RateLimit-Policy"), "there is no limit of a plan")

	plan = ratelimit.DenyAll()
	w = do(h, from("192.0.2.1", "a"))
	require.Equal(t, 429, w.Code)
	require.Equal(t, problemOf("plan"), w.Body.String())
	require.Equal(t, "1", w.Header().Get("Retry-After"))
	require.Empty(t, w.Header().Values("RateLimit-Policy"), "no limit is known")
	refused := httplimit.Decision{Policy: "plan", Result: ratelimit.Result{RetryAfter: time.Second, ResetAfter: time.Second}}
	alone := refused
	alone.Parts = []httplimit.Decision{refused}
	require.Equal(t, alone, got)
	require.Equal(t, 1, peek(t, address, "ip:192.0.2.1").Remaining, "the other limit is not charged")

	only := all(t, httplimit.Limit(plans, httplimit.Everyone(), httplimit.WithPolicy("plan")))(served)
	require.Equal(t, 429, do(only, newRequest("GET", "/")).Code)
	plan = ratelimit.AllowAll()
	require.Equal(t, 204, do(only, newRequest("GET", "/")).Code)
}

// TestTheGoverningLimit: the Decision is that of the longest RetryAfter, or of the fewest permits
// left, and X-RateLimit-* have it.
func TestTheGoverningLimit(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	hour := ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 3, time.Hour, ratelimit.WithName("hour")))
	minute := ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 2, time.Minute, ratelimit.WithName("minute")))
	var decisions []httplimit.Decision
	own, err := httplimit.NewFields(func(_ http.Header, d httplimit.Decision) { decisions = append(decisions, d) })
	require.NoError(t, err)
	var got httplimit.Decision
	h := all(t, httplimit.Limit(hour, httplimit.Everyone()), httplimit.Limit(minute, httplimit.Everyone(), httplimit.WithServiceUnavailable()),
		httplimit.WithFields(httplimit.XRateLimit(), own),
		httplimit.WithDenialHandler(func(w http.ResponseWriter, r *http.Request, d httplimit.Decision) {
			got = d
			httplimit.DefaultDenialHandler(w, r, d)
		}))(served)
	x := func(limit, remaining, reset string) http.Header {
		return http.Header{"X-Ratelimit-Limit": {limit}, "X-Ratelimit-Remaining": {remaining}, "X-Ratelimit-Reset": {reset}}
	}
	require.Equal(t, x("2", "1", "60"), do(h, newRequest("GET", "/")).Header())
	require.Equal(t, []httplimit.Decision{{
		Policy: "minute", Unavailable: true, Result: allowed(2, time.Minute, 1, time.Minute),
		Parts: []httplimit.Decision{
			{Policy: "hour", Result: allowed(3, time.Hour, 2, time.Hour)},
			{Policy: "minute", Unavailable: true, Result: allowed(2, time.Minute, 1, time.Minute)},
		},
	}}, decisions)
	require.Nil(t, decisions[0].Violated())
	require.Equal(t, x("2", "0", "60"), do(h, newRequest("GET", "/")).Header())
	w := do(h, newRequest("GET", "/"))
	require.Equal(t, 503, w.Code, "all that deny protect the service")
	require.Equal(t, unavailable("minute"), w.Body.String())
	require.Equal(t, "60", w.Header().Get("Retry-After"))
	require.Equal(t, []string{"minute"}, got.Violated())

	s.Advance(time.Minute)
	require.Equal(t, x("3", "0", "3540"), do(h, newRequest("GET", "/")).Header())
	do(h, newRequest("GET", "/"))
	require.Equal(t, "hour", got.Policy)
	w = do(h, newRequest("GET", "/"))
	require.Equal(t, 429, w.Code)
	require.Equal(t, problemOf("hour"), w.Body.String())
	require.Equal(t, "3540", w.Header().Get("Retry-After"))

	minuteOnly := limit(t, minute, httplimit.WithServiceUnavailable())(served)
	for _, code := range []int{204, 204, 503} {
		require.Equal(t, code, do(minuteOnly, newRequest("GET", "/")).Code)
	}
}

// TestOutagesOfSeveralLimits: closed unless the error handler says otherwise, and never open for a
// request without a key.
func TestOutagesOfSeveralLimits(t *testing.T) {
	server := miniredis.RunT(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1})
	t.Cleanup(func() { _ = client.Close() })
	server.Close()
	window := ratelimit.Must(ratelimit.NewFixedWindow(client, 10, time.Minute))
	limits := httplimit.Limit(window, ratelimit.Must(httplimit.APIKey("X-Api-Key")))
	closed := all(t, limits)(served)
	open := all(t, limits, httplimit.WithErrorHandler(httplimit.ServeInOutages))(served)
	w := do(closed, from("192.0.2.1", "a"))
	require.Equal(t, 503, w.Code)
	require.Equal(t, `{"title":"Service Unavailable","status":503}`, w.Body.String())
	require.Equal(t, 204, do(open, from("192.0.2.1", "a")).Code)
	require.Equal(t, 400, do(open, newRequest("GET", "/")).Code)

	gone, cancel := context.WithCancel(t.Context())
	cancel()
	require.Equal(t, 503, do(open, from("192.0.2.1", "a").WithContext(gone)).Code, "the client's end is no outage")

	for err, code := range map[error]int{
		errors.New("dial"): 204, ratelimit.ErrCorruptState: 500,
		ratelimit.ErrInvalidConfig: 500, ratelimit.ErrExceedsLimit: 400, httplimit.ErrNoKey: 400,
	} {
		w := serve(t, &limitertest.Stub{Err: err}, newRequest("GET", "/"), httplimit.WithErrorHandler(httplimit.ServeInOutages))
		require.Equal(t, code, w.Code, err)
	}
}

// TestAnErrorOfAKeyIsNoOutage: whatever it is, the request has no key, and is never served for it.
func TestAnErrorOfAKeyIsNoOutage(t *testing.T) {
	failure := errors.New("no session")
	session := func(*http.Request) (string, error) { return "", failure }
	joined := ratelimit.Must(httplimit.Join(session, httplimit.Everyone()))
	window := ratelimit.Must(ratelimit.NewFixedWindow(limitertest.Offline(t), 10, time.Minute))
	inFlight := ratelimit.Must(ratelimit.NewInFlight(limitertest.Offline(t), 10, time.Minute))
	for _, key := range []httplimit.KeyFunc{session, joined} {
		var got error
		open := httplimit.WithErrorHandler(func(w http.ResponseWriter, r *http.Request, err error, next http.Handler) {
			got = err
			httplimit.ServeInOutages(w, r, err, next)
		})
		for _, limit := range []func(http.Handler) http.Handler{
			ratelimit.Must(httplimit.New(window, key, open)),
			all(t, httplimit.Limit(window, key), open),
			ratelimit.Must(httplimit.NewInFlight(inFlight, key, open)),
		} {
			w := do(limit(served), newRequest("GET", "/"))
			require.Equal(t, 503, w.Code)
			require.Equal(t, `{"title":"Service Unavailable","status":503}`, w.Body.String())
			require.ErrorIs(t, got, failure)
			require.EqualError(t, got, "no session")
		}
	}
}

// embedding has the methods of a bucket, and denies all the same.
type embedding struct{ *ratelimit.TokenBucket }

func (embedding) TryAcquireN(context.Context, string, int) (ratelimit.Result, error) {
	return ratelimit.Result{}, nil
}

func TestNewAllRefusesWhatCannotWork(t *testing.T) {
	offline := limitertest.Offline(t)
	key := httplimit.Everyone()
	window := func(name string, opts ...ratelimit.Option) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.NewFixedWindow(offline, 10, time.Minute, append(opts, ratelimit.WithName(name))...))
	}
	bucket := ratelimit.Must(ratelimit.NewTokenBucket(offline, ratelimit.PerSecond(1), 1))
	cached := func(l ratelimit.Limiter) ratelimit.Limiter { return ratelimit.Must(ratelimit.NewDenyCache(l)) }
	local := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1), 1))
	fallback := ratelimit.Must(ratelimit.NewFallback(cached(bucket), local))
	mixed := ratelimit.Must(ratelimit.NewFallback(window("a"), window("c")))
	both := ratelimit.Must(ratelimit.NewAll(bucket))
	inFlight := ratelimit.Must(ratelimit.NewInFlight(offline, 1, time.Second))
	elsewhere := ratelimit.Must(ratelimit.NewFixedWindow(limitertest.OnMiniredis(t).Client, 1, time.Second, ratelimit.WithName("elsewhere")))
	logs := func(n int) (all []httplimit.Option) {
		for i := range n {
			l := ratelimit.Must(ratelimit.NewSlidingLog(offline, []ratelimit.Rule{{Limit: 1, Window: time.Second}}, ratelimit.WithName(fmt.Sprint(i))))
			all = append(all, httplimit.Limit(l, key))
		}
		return all
	}
	windows := func(n int) (all []httplimit.Option) {
		for i := range n {
			all = append(all, httplimit.Limit(window(fmt.Sprint(i)), key))
		}
		return all
	}
	a := httplimit.Limit(window("a"), key)
	of := func(opts ...httplimit.Option) []httplimit.Option { return opts }
	for message, opts := range map[string][]httplimit.Option{
		"NewAll: 0 limits; give 1 to 8":                                                        nil,
		"NewAll: 9 limits; give 1 to 8":                                                        windows(9),
		"Limit: the key function is nil; ClientIP and User return such":                        of(httplimit.Limit(window("a"), nil)),
		"Limit: the limiter is nil":                                                            of(httplimit.Limit(nil, key)),
		"Limit: the limiter is nil (limit 1)":                                                  of(httplimit.Limit((*ratelimit.TokenBucket)(nil), key)),
		"the limiter was not made by its constructor":                                          of(httplimit.Limit(&ratelimit.TokenBucket{}, key)),
		"InFlight: the limiter is nil":                                                         of(httplimit.InFlight(nil, key)),
		"InFlight: the key function is nil":                                                    of(httplimit.InFlight(inFlight, nil)),
		"some of the limiters decide on Redis and some in memory":                              of(a, httplimit.Limit(local, key, httplimit.WithPolicy("b"))),
		"some in memory, so that nothing decides them together; as secondaries of one call":    of(httplimit.Limit(mixed, key), httplimit.Limit(fallback, key, httplimit.WithPolicy("b"))),
		"a *ratelimit.All is several limiters; claim each of them":                             of(a, httplimit.Limit(cached(both), key)),
		"a httplimit_test.embedding decides on its own":                                        of(a, httplimit.Limit(embedding{bucket}, key)),
		"a *fakes.Limiter[github.com/tryacquire/ratelimit.Result] decides on its own":          of(a, httplimit.Limit(&limitertest.Stub{}, key)),
		"the secondaries of a call that an outage meets":                                       of(httplimit.Limit(ratelimit.Must(ratelimit.NewFallback(bucket, &limitertest.Stub{})), key), httplimit.Limit(fallback, key, httplimit.WithPolicy("b"))),
		`limits 1 and 3 have the same policy "a", so that clients`:                             of(a, httplimit.Limit(bucket, key), httplimit.Limit(bucket, key, httplimit.WithPolicy("a"))),
		"have different clients":                                                               of(a, httplimit.Limit(elsewhere, key)),
		"only one has WithClock":                                                               of(a, httplimit.Limit(window("b", ratelimit.WithClock(time.Now)), key)),
		"NewAll: WithPolicy is about one limit; give it to Limit or InFlight":                  of(a, httplimit.WithPolicy("a")),
		"NewAll: WithCost is about one limit":                                                  of(a, httplimit.WithCost(func(*http.Request) int { return 1 })),
		"NewAll: WithSettle is about one limit":                                                of(a, httplimit.WithSettle(func(*http.Request, httplimit.Outcome) int { return 1 })),
		"Limit: WithFields is about all limits; give it to NewAll":                             of(httplimit.Limit(window("a"), key, httplimit.WithFields())),
		"InFlight: WithSkip is about all limits; give it to NewAll":                            of(httplimit.InFlight(inFlight, key, httplimit.WithSkip(func(*http.Request) bool { return true }))),
		"Limit: Limit is one of several limits; give it to NewAll":                             of(httplimit.Limit(window("a"), key, a)),
		"NewAll: option 2 is empty":                                                            of(a, httplimit.Option{}),
		"Limit: option 1 is empty":                                                             of(httplimit.Limit(window("a"), key, httplimit.Option{})),
		"WithFields is given twice":                                                            of(a, httplimit.WithFields(), httplimit.WithFields()),
		"WithBucket is given twice":                                                            of(httplimit.Limit(window("a"), key, httplimit.WithBucket(), httplimit.WithBucket())),
		"InFlight: permits in flight are given back when the handler returns, and have no":     of(httplimit.InFlight(inFlight, key, httplimit.WithReportedCost())),
		"WithRetryAfter: the Retry-After of a *ratelimit.FixedWindow is exact":                 of(httplimit.Limit(window("a"), key, httplimit.WithRetryAfter(time.Second))),
		"WithRetryAfter: 0s is not more than 0":                                                of(httplimit.InFlight(inFlight, key, httplimit.WithRetryAfter(0))),
		"WithUnit: a name of 0 bytes":                                                          of(httplimit.Limit(window("a"), key, httplimit.WithUnit(""))),
		"WithSettle: the function is nil":                                                      of(httplimit.Limit(window("a"), key, httplimit.WithSettle(nil))),
		"WithSettle and WithReportedCost both say what a request has cost":                     of(httplimit.Limit(window("a"), key, httplimit.WithReportedCost(), httplimit.WithSettle(func(*http.Request, httplimit.Outcome) int { return 1 }))),
		"WithSettle and WithReportedCost both say what a request has cost; give one (limit 1)": of(httplimit.Limit(window("a"), key, httplimit.WithSettle(func(*http.Request, httplimit.Outcome) int { return 1 }), httplimit.WithReportedCost())),
		`Limit: "é", the limiter's name, is no name for its policy`:                            of(httplimit.Limit(window("é"), key)),
		"WithLateErrorHandler: the function is nil":                                            of(a, httplimit.WithLateErrorHandler(nil)),
	} {
		wrap, err := httplimit.NewAll(opts...)
		require.Nil(t, wrap, message)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig, message)
		require.ErrorContains(t, err, message)
	}
	for message, opts := range map[string][]httplimit.Option{
		"New: Limit is one of several limits; give it to NewAll":    {a},
		"New: InFlight is one of several limits; give it to NewAll": {httplimit.InFlight(inFlight, key)},
		"WithMaxWait: 999.999µs is not from 1ms up":                 {httplimit.WithMaxWait(time.Millisecond - 1)},
		"WithMaxWait: an estimate is not waited for":                {httplimit.WithMaxWait(time.Second), httplimit.WithReportedCost()},
	} {
		_, err := httplimit.New(bucket, key, opts...)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig, message)
		require.ErrorContains(t, err, message)
	}
	_, err := httplimit.New(cached(both), key, httplimit.WithReportedCost())
	require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
	require.ErrorContains(t, err, "a *ratelimit.All cannot settle; give the claims of its limiters")
	_, err = httplimit.New((*ratelimit.TokenBucket)(nil), key)
	require.ErrorContains(t, err, "New: the limiter is nil")
	_, err = httplimit.NewInFlight(nil, key)
	require.ErrorContains(t, err, "NewInFlight: the limiter is nil")
	_, err = httplimit.NewInFlight(inFlight, key, httplimit.WithMaxWaiting(1))
	require.ErrorContains(t, err, "WithMaxWaiting: no request waits without WithMaxWait; give it too")
	_, err = httplimit.NewInFlight(inFlight, key, httplimit.WithMaxWait(time.Second), httplimit.WithMaxWaiting(0))
	require.ErrorContains(t, err, "WithMaxWaiting: 0 requests; give 1 or more")
	_, err = httplimit.NewInFlight(inFlight, key, a)
	require.ErrorContains(t, err, "NewInFlight: Limit is one of several limits")

	all(t, windows(8)...)
	all(t, logs(8)...)
	all(t, a, httplimit.Limit(window("a"), constantKey("b", nil), httplimit.WithPolicy("b")))
}

// TestALimitMountedTwiceTakesTwice, and shows it: the fields have its policy twice.
func TestALimitMountedTwiceTakesTwice(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	window := ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 10, time.Minute, ratelimit.WithName("api")))
	once := limit(t, window)
	w := do(once(once(served)), newRequest("GET", "/"))
	require.Equal(t, []string{`"api";r=9;t=60`, `"api";r=8;t=60`}, w.Header().Values("RateLimit"))
}

// TestThePolicyIsTheLimitersName unless another one is given.
func TestThePolicyIsTheLimitersName(t *testing.T) {
	client := limitertest.OnMiniredis(t).Client
	window := ratelimit.Must(ratelimit.NewFixedWindow(client, 10, time.Minute, ratelimit.WithName("api")))
	policy := func(l ratelimit.Limiter, opts ...httplimit.Option) string {
		return serve(t, l, newRequest("GET", "/"), opts...).Header().Get("RateLimit-Policy")
	}
	require.Equal(t, `"api";q=10;w=60`, policy(window))
	require.Equal(t, `"public";q=10;w=60`, policy(window, httplimit.WithPolicy("public")))
	require.Equal(t, `"api";q=10;w=60`, policy(ratelimit.Must(ratelimit.NewDenyCache(window))))
	require.Equal(t, `"default";q=10;w=60`, policy(ratelimit.Must(ratelimit.NewFixedWindow(client, 10, time.Minute))))
	_, err := httplimit.New(ratelimit.Must(ratelimit.NewFixedWindow(client, 10, time.Minute, ratelimit.WithName("é"))), clientIP(t, nil))
	require.ErrorContains(t, err, "give WithPolicy")
}

// TestWhatTheAuthenticationTurnsAwayCountsToo is the recipe of docs/http.md: strangers take permits of their address
// alone, and those who pass take permits of both limits or of none.
func TestWhatTheAuthenticationTurnsAwayCountsToo(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	t.Cleanup(func() { _ = client.Close() })
	window := func(name string, limit int) *ratelimit.FixedWindow {
		return ratelimit.Must(ratelimit.NewFixedWindow(client, limit, time.Hour, ratelimit.WithName(name)))
	}
	everybody := window("everybody", 2)
	perAddress := httplimit.Limit(window("address", 3), clientIP(t, nil))
	inside := all(t, perAddress, httplimit.Limit(everybody, httplimit.Everyone()))(served)
	stranger := all(t, perAddress)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "unknown API key", http.StatusUnauthorized)
	}))
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Api-Key") != "secret" {
			stranger.ServeHTTP(w, r)
			return
		}
		inside.ServeHTTP(w, r)
	})
	require.Equal(t, 401, do(h, from("192.0.2.1", "guess")).Code)
	require.Equal(t, 401, do(h, from("192.0.2.1", "")).Code)
	require.Equal(t, 204, do(h, from("192.0.2.1", "secret")).Code)
	require.Equal(t, 429, do(h, from("192.0.2.1", "guess")).Code)
	require.Equal(t, 429, do(h, from("192.0.2.1", "secret")).Code, "its address has used the limit up")
	require.Equal(t, 1, peek(t, everybody, "all").Remaining, "nothing was taken for those who were denied or turned away")
	require.Equal(t, 204, do(h, from("192.0.2.2", "secret")).Code)
	w := do(h, from("192.0.2.2", "secret"))
	require.Equal(t, 429, w.Code)
	require.Equal(t, problemOf("everybody"), w.Body.String())
	require.Equal(t, []string{`"address";r=2;t=3600`, `"everybody";r=0;t=3600`}, w.Header()["Ratelimit"], "the address kept its permit")
}

// TestAPauseBesideALimit: a paused address takes nothing of the limit, and is told until when. Bans go on by themselves.
func TestAPauseBesideALimit(t *testing.T) {
	onStages(t, func(t *testing.T, s *limitertest.Stage) {
		o := slices.Clip(s.Opts)
		blocked := ratelimit.Must(ratelimit.NewPause(s.Client, append(o, ratelimit.WithName("blocked"))...))
		limit := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerMinute(3), 3, append(o, ratelimit.WithName("api"))...))
		served := 0
		handler := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ })
		h := all(t, httplimit.Limit(blocked, clientIP(t, nil)), httplimit.Limit(limit, clientIP(t, nil)))(handler)
		ask := func(h http.Handler) *httptest.ResponseRecorder { return do(h, from("192.0.2.1", "")) }

		w := ask(h)
		require.Equal(t, 200, w.Code)
		require.Equal(t, http.Header{"Ratelimit-Policy": {`"api";q=3;w=60`}, "Ratelimit": {`"api";r=2;t=40`}}, w.Header(), "a pause is no quota")

		_, err := blocked.Pause(t.Context(), "ip:192.0.2.1", time.Hour)
		require.NoError(t, err)
		for range 5 {
			w = ask(h)
			require.Equal(t, 429, w.Code)
			require.Equal(t, "3600", w.Header().Get("Retry-After"))
			require.Equal(t, problemOf("blocked"), w.Body.String())
		}
		require.Equal(t, 200, do(h, from("192.0.2.2", "")).Code)
		require.NoError(t, blocked.Reset(t.Context(), "ip:192.0.2.1"))
		require.Equal(t, `"api";r=1;t=20`, ask(h).Header().Get("Ratelimit"), "the denials took nothing")
		require.Equal(t, 3, served)

		bans := ratelimit.Must(ratelimit.NewBans(limit, blocked, []time.Duration{2 * time.Minute, time.Hour}, 24*time.Hour))
		for _, h := range []http.Handler{
			ratelimit.Must(httplimit.New(bans, clientIP(t, nil)))(handler),
			all(t, httplimit.Limit(bans, clientIP(t, nil)))(handler),
		} {
			require.NoError(t, bans.Reset(t.Context(), "ip:192.0.2.1"))
			for range 3 {
				require.Equal(t, 200, ask(h).Code)
			}
			for range 2 {
				w = ask(h)
				require.Equal(t, 429, w.Code)
				require.Equal(t, "120", w.Header().Get("Retry-After"))
				require.Equal(t, problemOf("api"), w.Body.String())
			}
			s.Advance(2 * time.Minute)
			for range 3 {
				require.Equal(t, 200, ask(h).Code)
			}
			require.Equal(t, "3600", ask(h).Header().Get("Retry-After"))
		}
	})
}

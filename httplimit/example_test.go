package httplimit_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/httplimit"
)

// redisForExamples is a Redis inside this process, whose clock stands still.
func redisForExamples() *redis.Client {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	server.SetTime(time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC))
	return redis.NewClient(&redis.Options{Addr: server.Addr()})
}

// A limit by address, and what a client sees of it.
func ExampleNew() {
	client := redisForExamples()
	limiter := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(1), 2, ratelimit.WithName("hello")))
	limit := ratelimit.Must(httplimit.New(limiter, ratelimit.Must(httplimit.ClientIP(nil)), httplimit.WithPolicy("hello")))

	handler := limit(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }))

	for range 3 {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		fmt.Printf("%d %s, Retry-After %q\n", w.Code, w.Header().Get("RateLimit"), w.Header().Get("Retry-After"))
	}
	// Output:
	// 200 "hello";r=1;t=1, Retry-After ""
	// 200 "hello";r=0;t=1, Retry-After ""
	// 429 "hello";r=0;t=1, Retry-After "1"
}

// Behind proxies in 10.0.0.0/8, each of which appends to X-Forwarded-For the address that it was
// called from. What the client has sent itself stands on the left, and does not count.
func ExampleClientIP() {
	key := ratelimit.Must(httplimit.ClientIP([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}))

	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = "10.0.0.1:443"
	r.Header.Set("X-Forwarded-For", "192.0.2.99, 203.0.113.7, 10.0.0.2")
	fmt.Println(key(r))

	r.Header.Set("X-Forwarded-For", "2001:db8:1:2:3:4:5:6")
	fmt.Println(key(r))
	// Output:
	// ip:203.0.113.7 <nil>
	// ip:2001:db8:1:2::/64 <nil>
}

// Each user who has logged in has a limit; everybody else is limited by address.
func ExampleFirstOf() {
	type userKey struct{}
	user := ratelimit.Must(httplimit.User(func(ctx context.Context) string {
		id, _ := ctx.Value(userKey{}).(string)
		return id
	}))
	key := ratelimit.Must(httplimit.FirstOf(user, ratelimit.Must(httplimit.ClientIP(nil))))

	r := httptest.NewRequest("GET", "/", nil)
	fmt.Println(key(r))
	fmt.Println(key(r.WithContext(context.WithValue(r.Context(), userKey{}, "42"))))
	// Output:
	// ip:192.0.2.1 <nil>
	// user:42 <nil>
}

// What happens to a request without a decision is the service's choice. This one answers
// 401 to a request without an API key, and logs all other errors.
func ExampleWithErrorHandler() {
	client := redisForExamples()
	limiter := ratelimit.Must(ratelimit.NewFixedWindow(client, 100, time.Hour, ratelimit.WithName("api")))
	limit := ratelimit.Must(httplimit.New(limiter, ratelimit.Must(httplimit.APIKey("Authorization")),
		httplimit.WithErrorHandler(func(w http.ResponseWriter, r *http.Request, err error, next http.Handler) {
			if errors.Is(err, httplimit.ErrNoKey) {
				w.Header().Set("WWW-Authenticate", "Bearer")
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			log.Print(err)
			httplimit.DefaultErrorHandler(w, r, err, next)
		})))

	w := httptest.NewRecorder()
	limit(http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	fmt.Println(w.Code)
	// Output: 401
}

// By address, by customer and for all together, all or nothing. The answer names the limits that
// denied.
func ExampleNewAll() {
	client := redisForExamples()
	perAddress := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(10), 20, ratelimit.WithName("address")))
	perCustomer := ratelimit.Must(ratelimit.NewFixedWindow(client, 7, time.Hour, ratelimit.WithName("customer")))
	global := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(1000), 2000, ratelimit.WithName("all")))

	address := ratelimit.Must(httplimit.ClientIP(nil))
	apiKey := ratelimit.Must(httplimit.APIKey("Authorization"))
	limit := ratelimit.Must(httplimit.NewAll(
		httplimit.Limit(perAddress, address),
		httplimit.Limit(perCustomer, apiKey, httplimit.WithCost(func(*http.Request) int { return 5 })),
		httplimit.Limit(global, httplimit.Everyone(), httplimit.WithServiceUnavailable())))
	handler := limit(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }))

	for range 2 {
		w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Authorization", "Bearer 6f1e")
		handler.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Body)
		for _, field := range w.Header().Values("RateLimit") {
			fmt.Println(field)
		}
	}
	// Output:
	// 200 hello
	// "address";r=19;t=2
	// "customer";r=2;t=3600
	// "all";r=1999;t=2
	// 429 {"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"violated-policies":["customer"]}
	// "address";r=19;t=2
	// "customer";r=2;t=3600
	// "all";r=1999;t=2
}

// One report at a time for each customer, in all processes.
func ExampleNewInFlight() {
	client := redisForExamples()
	reports := ratelimit.Must(ratelimit.NewInFlight(client, 1, 30*time.Second, ratelimit.WithName("reports")))
	apiKey := ratelimit.Must(httplimit.APIKey("Authorization"))
	limit := ratelimit.Must(httplimit.NewInFlight(reports, apiKey, httplimit.WithRetryAfter(10*time.Second)))

	var handler http.Handler
	ask := func(inside bool) {
		w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Authorization", "Bearer 6f1e")
		if inside {
			r.Header.Set("Inside", "1")
		}
		handler.ServeHTTP(w, r)
		fmt.Printf("%d %s, Retry-After %q\n", w.Code, w.Header().Get("RateLimit"), w.Header().Get("Retry-After"))
	}
	handler = limit(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Inside") == "" {
			ask(true) // while this one runs
		}
	}))
	ask(false)
	ask(false)
	// Output:
	// 429 "reports";r=0;t=10, Retry-After "10"
	// 200 "reports";r=0, Retry-After ""
	// 429 "reports";r=0;t=10, Retry-After "10"
	// 200 "reports";r=0, Retry-After ""
}

// The tokens of a model: 1000 are estimated, and what the answer has cost is settled.
func ExampleReportCost() {
	client := redisForExamples()
	tokens := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerMinute(10_000), 10_000, ratelimit.WithName("tokens")))
	limit := ratelimit.Must(httplimit.New(tokens, httplimit.Everyone(),
		httplimit.WithCost(func(*http.Request) int { return 1000 }),
		httplimit.WithReportedCost(),
		httplimit.WithUnit("acme-tokens")))
	handler := limit(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		httplimit.ReportCost(r.Context(), 730)
	}))

	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest("POST", "/", nil))
	fmt.Println(w.Header().Get("RateLimit-Policy"), w.Header().Get("RateLimit"))
	left, err := tokens.Peek(context.Background(), "all")
	fmt.Println(left.Remaining, err)
	// Output:
	// "tokens";q=10000;qu="acme-tokens";w=60 "tokens";r=9000;t=54
	// 9270 <nil>
}

// What is sent costs a permit for each kilobyte, and an answer that is the service's fault nothing.
func ExampleWithSettle() {
	client := redisForExamples()
	kilobytes := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(100), 1000, ratelimit.WithName("egress")))
	limit := ratelimit.Must(httplimit.New(kilobytes, httplimit.Everyone(),
		httplimit.WithCost(func(*http.Request) int { return 10 }),
		httplimit.WithSettle(func(_ *http.Request, o httplimit.Outcome) int {
			if o.Status >= 500 || o.Panicked {
				return 0
			}
			return int((o.Bytes + 1023) / 1024)
		})))
	handler := limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/large" {
			_, _ = w.Write(make([]byte, 100<<10))
			return
		}
		w.WriteHeader(http.StatusBadGateway)
	}))
	for _, path := range []string{"/large", "/fails"} {
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", path, nil))
		left, err := kilobytes.Peek(context.Background(), "all")
		fmt.Println(left.Remaining, err)
	}
	// Output:
	// 900 <nil>
	// 900 <nil>
}

// Only failures count: each attempt takes a permit before the password is checked, and a success gives it back.
func ExampleWithSettle_failures() {
	client := redisForExamples()
	attempts := ratelimit.Must(ratelimit.NewSlidingLog(client, []ratelimit.Rule{{Limit: 5, Window: 15 * time.Minute}}, ratelimit.WithName("login")))
	limit := ratelimit.Must(httplimit.New(attempts, httplimit.Everyone(), httplimit.WithSettle(func(_ *http.Request, o httplimit.Outcome) int {
		if o.Status == http.StatusUnauthorized {
			return 1
		}
		return 0
	})))
	handler := limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.PostFormValue("password") != "secret" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	for _, password := range []string{"guess", "secret", "secret", "guess"} {
		r := httptest.NewRequest("POST", "/login?password="+password, nil)
		r.PostForm = r.URL.Query()
		handler.ServeHTTP(httptest.NewRecorder(), r)
		left, err := attempts.Peek(context.Background(), "all")
		fmt.Println(password, left.Remaining, err)
	}
	// Output:
	// guess 4 <nil>
	// secret 4 <nil>
	// secret 4 <nil>
	// guess 3 <nil>
}

// A request that would have to wait for less than two seconds waits, and any other is denied at
// once.
func ExampleWithMaxWait() {
	client := redisForExamples()
	limiter := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerMinute(1), 1, ratelimit.WithName("calm")))
	limit := ratelimit.Must(httplimit.New(limiter, httplimit.Everyone(), httplimit.WithMaxWait(2*time.Second)))
	handler := limit(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }))
	for range 2 {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		fmt.Printf("%d, Retry-After %q\n", w.Code, w.Header().Get("Retry-After"))
	}
	// Output:
	// 200, Retry-After ""
	// 429, Retry-After "60"
}

// A limit of all requests together is one hot key. A Leased around its limiter decides most requests without Redis; it is a
// Limiter like any other.
func ExampleNew_hotKey() {
	bucket := ratelimit.Must(ratelimit.NewTokenBucket(redisForExamples(), ratelimit.PerSecond(1000), 20_000, ratelimit.WithName("all")))
	leased := ratelimit.Must(ratelimit.NewLeased(bucket))
	defer leased.Close(context.Background()) // gives back what is left
	limit := ratelimit.Must(httplimit.New(leased, httplimit.Everyone(), httplimit.WithServiceUnavailable()))

	here := 0
	handler := httplimit.Decisions(limit(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if httplimit.DecisionsOf(r.Context())[0].Result.Leased {
			here++
		}
	})))
	for range 3000 {
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	}
	fmt.Println("without Redis, nine of ten:", here > 2700)
	// Output: without Redis, nine of ten: true
}

// Each customer's plan has its limiter. A limit on trial is outside of it: it allows everything,
// sends no fields, and reports what it would have denied.
func ExampleNew_plansAndTrial() {
	client := redisForExamples()
	name := ratelimit.WithName("plan")
	free := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerMinute(1), 1, name))
	paid := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerMinute(100), 100, name))
	var upgraded atomic.Bool
	plans := ratelimit.Must(ratelimit.NewChoice(func(context.Context, string) (ratelimit.Limiter, error) {
		if upgraded.Load() {
			return paid, nil
		}
		return free, nil
	}))
	reported := make(chan ratelimit.Trial)
	strict := ratelimit.Must(ratelimit.NewFixedWindow(client, 2, time.Hour, ratelimit.WithName("strict")))
	dryRun := ratelimit.Must(ratelimit.NewShadow(ratelimit.AllowAll(), strict, func(t ratelimit.Trial) { reported <- t }))

	key := ratelimit.Must(httplimit.ClientIP(nil))
	limit := ratelimit.Must(httplimit.New(plans, key, httplimit.WithPolicy("plan"), httplimit.WithBucket()))
	trial := ratelimit.Must(httplimit.New(dryRun, key))
	handler := trial(limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	for range 3 {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		fmt.Printf("%d %s, the trial would have allowed it: %v\n", w.Code, w.Header().Values("RateLimit"), (<-reported).Result.Allowed)
		upgraded.Store(w.Code == http.StatusTooManyRequests)
	}
	// Output:
	// 200 ["plan";r=0;t=1], the trial would have allowed it: true
	// 429 ["plan";r=0;t=60], the trial would have allowed it: true
	// 200 ["plan";r=98;t=59], the trial would have allowed it: false
}

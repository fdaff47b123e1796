package httplimit_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"
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

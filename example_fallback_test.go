package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit"
)

// Redis decides; while it is down or slow, each of four instances applies a quarter of
// the limit on its own.
func ExampleNewFallback() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379", ContextTimeoutEnabled: true})
	defer func() { _ = client.Close() }()

	shared := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(100), 200))
	local := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(100/4), 200/4))
	limiter := ratelimit.Must(ratelimit.NewFallback(shared, local,
		ratelimit.WithBudget(20*time.Millisecond),
		ratelimit.WithBreaker(&ratelimit.Breaker{}),
		ratelimit.WithObserver(func(_ context.Context, e ratelimit.Observation) {
			if e.Call == "breaker" {
				fmt.Println("the breaker is", e.Breaker) // a metric, an alert
			}
		}),
	))
	_ = limiter // limiter.TryAcquire(ctx, "user:42")
}

// In an outage every call is allowed. Both the result and the observer report it.
func ExampleAllowAll() {
	limiter := ratelimit.Must(ratelimit.NewFallback(unreachable{}, ratelimit.AllowAll(),
		ratelimit.WithObserver(func(_ context.Context, e ratelimit.Observation) {
			fmt.Printf("%v by the %v: %v\n", e.Outcome, e.Source, e.Reason)
		})))

	r, err := limiter.TryAcquire(context.Background(), "user:42")
	fmt.Println(r.Allowed, r.Fallback, err)
	// Output:
	// allowed by the fallback: connection refused
	// true true <nil>
}

// In an outage every call is denied.
func ExampleDenyAll() {
	limiter := ratelimit.Must(ratelimit.NewFallback(unreachable{}, ratelimit.DenyAll()))

	r, err := limiter.TryAcquire(context.Background(), "login:alice")
	fmt.Println(r.Allowed, r.RetryAfter, r.Fallback, err)
	// Output: false 1s true <nil>
}

func ExampleNewLocalTokenBucket() {
	// A limit of 100 per second with a burst of 20, divided among 10 instances.
	local := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(100/10), 20/10))

	for range 3 {
		r, err := local.TryAcquire(context.Background(), "user:42")
		fmt.Println(r.Allowed, r.Remaining, err)
	}
	// Output:
	// true 1 <nil>
	// true 0 <nil>
	// false 0 <nil>
}

// While the breaker is open, the primary is not asked at all.
func ExampleWithBreaker() {
	limiter := ratelimit.Must(ratelimit.NewFallback(unreachable{}, ratelimit.AllowAll(),
		ratelimit.WithBreaker(&ratelimit.Breaker{Failures: 2, ProbeEvery: time.Minute}),
		ratelimit.WithObserver(func(_ context.Context, e ratelimit.Observation) {
			if e.Call == "breaker" {
				fmt.Println("breaker:", e.From, "to", e.Breaker)
			} else {
				fmt.Println(e.Reason)
			}
		})))

	for range 3 {
		_, _ = limiter.TryAcquire(context.Background(), "user:42")
	}
	// Output:
	// connection refused
	// breaker: closed to open
	// connection refused
	// ratelimit: the breaker is open
}

// All limiters of one Redis share a breaker: when one of them notices an outage, the
// others know it too.
func ExampleBreaker() {
	observe := ratelimit.WithObserver(func(_ context.Context, e ratelimit.Observation) {
		if e.Call == "breaker" {
			fmt.Println("breaker:", e.From, "to", e.Breaker)
		} else {
			fmt.Println(e.Key+":", e.Reason)
		}
	})
	breaker := &ratelimit.Breaker{Failures: 1, ProbeEvery: time.Minute}
	guard := func(shared ratelimit.Limiter) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.NewFallback(shared, ratelimit.AllowAll(), ratelimit.WithBreaker(breaker), observe))
	}
	perUser, perAddress := guard(unreachable{}), guard(unreachable{})

	_, _ = perUser.TryAcquire(context.Background(), "user:42")
	_, _ = perAddress.TryAcquire(context.Background(), "192.0.2.7")
	fmt.Println(breaker.State())
	// Output:
	// breaker: closed to open
	// user:42: connection refused
	// 192.0.2.7: ratelimit: the breaker is open
	// open
}

// In an outage, a call for more permits than the local bucket can ever allow is denied
// until Redis is asked again.
func ExampleFallback_TryAcquireN() {
	local := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(100/4), 200/4))
	limiter := ratelimit.Must(ratelimit.NewFallback(unreachable{}, local))

	r, err := limiter.TryAcquireN(context.Background(), "user:42", 60)
	fmt.Println(r.Allowed, r.Limit, r.RetryAfter, err)
	r, err = limiter.TryAcquireN(context.Background(), "user:42", 50)
	fmt.Println(r.Allowed, r.Limit, r.RetryAfter, err)
	// Output:
	// false 50 1s <nil>
	// true 50 0s <nil>
}

// A service sends no headers about a limit that does not exist.
func ExampleResult_Unlimited() {
	limiter := ratelimit.Must(ratelimit.NewFallback(unreachable{}, ratelimit.AllowAll()))

	r, err := limiter.TryAcquire(context.Background(), "user:42")
	switch {
	case err != nil:
		fmt.Println(err)
	case r.Unlimited():
		fmt.Println("no limit")
	default:
		fmt.Printf("RateLimit-Limit: %d\n", r.Limit)
	}
	// Output: no limit
}

// unreachable is a limiter whose Redis is down.
type unreachable struct{}

var errRefused = errors.New("connection refused")

func (unreachable) TryAcquire(context.Context, string) (ratelimit.Result, error) {
	return ratelimit.Result{}, errRefused
}

func (unreachable) TryAcquireN(context.Context, string, int) (ratelimit.Result, error) {
	return ratelimit.Result{}, errRefused
}

func (unreachable) Peek(context.Context, string) (ratelimit.Result, error) {
	return ratelimit.Result{}, errRefused
}

func (unreachable) Reset(context.Context, string) error { return errRefused }

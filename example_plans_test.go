package ratelimit_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit"
)

// A config is read when the service starts, and again when it has changed.
type config struct {
	Burst map[string]int // by plan; the rate is as many a minute
}

// plans are the limiters of a config. All have the same name, so that a customer has the
// same state in all of them.
func plans(client ratelimit.Client, c config) (map[string]ratelimit.Limiter, error) {
	limiters := map[string]ratelimit.Limiter{}
	for plan, burst := range c.Burst {
		l, err := ratelimit.NewTokenBucket(client, ratelimit.PerMinute(burst), burst, ratelimit.WithName("api"))
		if err != nil {
			return nil, fmt.Errorf("plan %q: %w", plan, err) // keep the plans that work
		}
		limiters[plan] = l
	}
	return limiters, nil
}

// Three plans, a customer who upgrades, and a config that is reloaded while requests come.
func ExampleNewChoice() {
	server, err := miniredis.Run() // a Redis in this process; use your own
	if err != nil {
		panic(err)
	}
	defer server.Close()
	server.SetTime(time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC))
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()

	var current atomic.Pointer[map[string]ratelimit.Limiter] // the plans
	var planOf sync.Map                                      // by customer
	reload := func(c config) {
		limiters, err := plans(client, c)
		if err != nil {
			panic(err)
		}
		current.Store(&limiters)
	}
	choice := ratelimit.Must(ratelimit.NewChoice(func(_ context.Context, customer string) (ratelimit.Limiter, error) {
		plan, known := planOf.Load(customer)
		if !known {
			plan = "free"
		}
		return (*current.Load())[plan.(string)], nil
	}))
	// The DenyCache goes inside, the Fallback outside.
	limiter := ratelimit.Must(ratelimit.NewFallback(ratelimit.Must(ratelimit.NewDenyCache(choice)), ratelimit.AllowAll()))

	call := func(permits int) {
		r, err := limiter.TryAcquireN(context.Background(), "customer:42", permits)
		if err != nil {
			panic(err)
		}
		fmt.Printf("%3d permits: allowed %-5v  %3d left of %d\n", permits, r.Allowed, r.Remaining, r.Limit)
	}
	reload(config{Burst: map[string]int{"free": 10, "pro": 100, "team": 500}})
	call(10)
	call(1) // from now on memory denies, for six seconds
	fmt.Println("the customer upgrades")
	planOf.Store("customer:42", "pro")
	call(1)
	fmt.Println("the config is reloaded: pro has 200 now")
	reload(config{Burst: map[string]int{"free": 10, "pro": 200, "team": 500}})
	call(150)
	fmt.Println("and back to free")
	planOf.Delete("customer:42")
	call(1)
	// Output:
	//  10 permits: allowed true     0 left of 10
	//   1 permits: allowed false    0 left of 10
	// the customer upgrades
	//   1 permits: allowed true    89 left of 100
	// the config is reloaded: pro has 200 now
	// 150 permits: allowed true    39 left of 200
	// and back to free
	//   1 permits: allowed false    0 left of 10
}

// A stricter limit is on trial beside the limit that is enforced.
func ExampleNewShadow() {
	server, err := miniredis.Run() // a Redis in this process; use your own
	if err != nil {
		panic(err)
	}
	defer server.Close()
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()

	enforced := ratelimit.Must(ratelimit.NewFixedWindow(client, 100, time.Hour, ratelimit.WithName("api")))
	stricter := ratelimit.Must(ratelimit.NewFixedWindow(client, 2, time.Hour, ratelimit.WithName("api-stricter")))
	trials := make(chan ratelimit.Trial, 8) // a service would count in its metrics
	limiter := ratelimit.Must(ratelimit.NewShadow(enforced, stricter, func(t ratelimit.Trial) { trials <- t }))

	for range 3 {
		result, err := limiter.TryAcquire(context.Background(), "customer:42")
		if err != nil {
			panic(err)
		}
		trial := <-trials
		fmt.Println("allowed:", result.Allowed, " would be allowed:", trial.Err == nil && trial.Result.Allowed)
	}
	// Output:
	// allowed: true  would be allowed: true
	// allowed: true  would be allowed: true
	// allowed: true  would be allowed: false
}

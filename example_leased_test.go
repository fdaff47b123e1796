package ratelimit_test

import (
	"context"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit"
)

// A tenant makes three thousand calls. Redis decides about the first ones; then the process has a slice of the tenant's
// permits, takes the next one before it is used up, and hardly asks.
func ExampleNewLeased() {
	server, err := miniredis.Run() // a Redis in this process; use your own
	if err != nil {
		panic(err)
	}
	defer server.Close()
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()

	// A slice lasts burst/rate/4, here 5s.
	bucket := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(1000), 20_000))
	limiter := ratelimit.Must(ratelimit.NewLeased(bucket, ratelimit.WithMaxSlice(500)))

	allowed, here, asked := 0, 0, server.CommandCount()
	for range 3000 {
		result, err := limiter.TryAcquire(context.Background(), "tenant:42")
		if err != nil {
			panic(err)
		}
		if result.Allowed {
			allowed++
		}
		if result.Leased {
			here++
		}
	}
	fmt.Println("allowed:", allowed)
	fmt.Println("most from slices:", here > 2700)
	fmt.Println("asked Redis less than once in ten calls:", server.CommandCount()-asked < 300)

	// When the process ends, what is left of its slices goes back.
	soon, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := limiter.Close(soon); err != nil {
		panic(err)
	}
	// Output:
	// allowed: 3000
	// most from slices: true
	// asked Redis less than once in ten calls: true
}

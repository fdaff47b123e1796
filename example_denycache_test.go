package ratelimit_test

import (
	"context"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit"
)

// One client calls an API without a pause. Redis decides until it denies the client;
// from then on Redis is not asked about this client until a permit is available.
func ExampleNewDenyCache() {
	server, err := miniredis.Run() // a Redis in this process; use your own
	if err != nil {
		panic(err)
	}
	defer server.Close()
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()

	bucket := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerHour(1), 2))
	limiter := ratelimit.Must(ratelimit.NewDenyCache(bucket, ratelimit.WithMaxDenial(10*time.Minute)))

	asked := server.CommandCount()
	for range 5 {
		result, err := limiter.TryAcquire(context.Background(), "203.0.113.7")
		if err != nil {
			panic(err)
		}
		now := server.CommandCount()
		fmt.Printf("allowed: %-5v  retry after: %-6v  asked Redis: %v\n",
			result.Allowed, result.RetryAfter.Round(time.Hour), now > asked)
		asked = now
	}
	// Output:
	// allowed: true   retry after: 0s      asked Redis: true
	// allowed: true   retry after: 0s      asked Redis: true
	// allowed: false  retry after: 1h0m0s  asked Redis: true
	// allowed: false  retry after: 1h0m0s  asked Redis: false
	// allowed: false  retry after: 1h0m0s  asked Redis: false
}

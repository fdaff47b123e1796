package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tryacquire/ratelimit"
)

// A leaky bucket of capacity 1 is a shaper: calls that come in at the same time go out at
// the rate, one at a time, in all processes that share the Redis.
func ExampleWait() {
	client := redisForExamples()
	shaper := ratelimit.Must(ratelimit.NewLeakyBucket(client, ratelimit.PerSecond(500), 1, ratelimit.WithName("outgoing")))

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, message := range []string{"one", "two", "three"} {
		if _, err := ratelimit.Wait(ctx, shaper, "smtp.example.com"); err != nil {
			fmt.Println("not sent:", err)
			return
		}
		fmt.Println("send", message) // 2 ms after the one before
	}
	// Output:
	// send one
	// send two
	// send three
}

func ExampleWaitError() {
	client := redisForExamples()
	limiter := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerMinute(1), 1, ratelimit.WithName("reports")))
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for range 2 {
		_, err := ratelimit.Wait(ctx, limiter, "user:42")
		var late *ratelimit.WaitError
		if errors.As(err, &late) { // at once, not after a second
			fmt.Println("try again in", late.Wait)
			return
		}
		fmt.Println("make the report", err)
	}
	// Output:
	// make the report <nil>
	// try again in 1m0s
}

func ExampleTokenBucket_Reserve() {
	client := redisForExamples()
	limiter := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerHour(1), 1, ratelimit.WithName("jobs")))
	ctx := context.Background()
	for range 3 {
		r, err := limiter.Reserve(ctx, "backup", 1, 90*time.Minute)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("run in", r.Delay().Round(time.Minute))
	}
	// Output:
	// run in 0s
	// run in 1h0m0s
	// ratelimit: "backup" would have to wait 2h0m0s, which is too long
}

func ExampleReservation_Cancel() {
	client := redisForExamples()
	limiter := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerHour(1), 1, ratelimit.WithName("jobs")))
	ctx := context.Background()
	limiter.TryAcquire(ctx, "backup")
	reserve := func() *ratelimit.Reservation {
		r, err := limiter.Reserve(ctx, "backup", 1, 2*time.Hour)
		if err != nil {
			fmt.Println(err)
			return nil
		}
		fmt.Println("run in", r.Delay().Round(time.Hour))
		return r
	}
	r := reserve()
	fmt.Println("nothing to back up", r.Cancel(ctx))
	r = reserve() // the same hour
	defer r.Cancel(ctx)
	// Output:
	// run in 1h0m0s
	// nothing to back up <nil>
	// run in 1h0m0s
}

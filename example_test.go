package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit"
)

// redisForExamples is a client of a Redis inside the process, whose clock stands
// still.
func redisForExamples() *redis.Client {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	server.SetTime(time.Unix(1_763_670_000, 0))
	return redis.NewClient(&redis.Options{Addr: server.Addr()})
}

func Example() {
	client := redisForExamples()
	ctx := context.Background()

	// Ten a second, and up to twenty at once.
	limiter := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(10), 20,
		ratelimit.WithName("api")))

	result, err := limiter.TryAcquire(ctx, "user:42")
	if err != nil {
		fmt.Println("no decision:", err)
		return
	}
	fmt.Println(result.Allowed, result.Remaining)

	result, _ = limiter.TryAcquireN(ctx, "user:42", 20)
	fmt.Println(result.Allowed, "retry after", result.RetryAfter)
	// Output:
	// true 19
	// false retry after 100ms
}

func ExampleNewAll() {
	client := redisForExamples()
	second := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(5), 5, ratelimit.WithName("second")))
	hour := ratelimit.Must(ratelimit.NewFixedWindow(client, 100, time.Hour, ratelimit.WithName("hour")))
	limiter, err := ratelimit.NewAll(second, hour)
	if err != nil {
		panic(err)
	}
	ctx := context.Background()

	result, _ := limiter.TryAcquireN(ctx, "user:42", 5)
	fmt.Println(result.Allowed, result.Remaining, "of", result.Limit)

	// The bucket denies, and the window is not charged.
	result, _ = limiter.TryAcquire(ctx, "user:42")
	fmt.Println(result.Allowed, "retry after", result.RetryAfter)
	left, _ := hour.Peek(ctx, "user:42")
	fmt.Println(left.Remaining, "left this hour")
	// Output:
	// true 0 of 5
	// false retry after 200ms
	// 95 left this hour
}

// Before an export begins: are all its calls there, for the minute and for the day, and when will they be?
func ExampleLook() {
	client := redisForExamples()
	ctx := context.Background()
	minute := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerMinute(60), 30, ratelimit.WithName("minute")))
	day := ratelimit.Must(ratelimit.NewFixedWindow(client, 1000, 24*time.Hour, ratelimit.WithName("day")))

	if _, err := minute.TryAcquireN(ctx, "user:42", 20); err != nil {
		fmt.Println("no decision:", err)
		return
	}
	for _, calls := range []int{10, 25} {
		look, err := ratelimit.Look(ctx, ratelimit.ClaimOf(minute, "user:42", calls), ratelimit.ClaimOf(day, "user:42", calls))
		if err != nil {
			fmt.Println("no decision:", err)
			return
		}
		fmt.Println(calls, look.Allowed, look.RetryAfter, look.Parts[0].Result.Remaining, look.Parts[1].Result.Remaining)
	}
	// Output:
	// 10 true 0s 10 1000
	// 25 false 15s 10 1000
}

func ExampleTryAcquireAll() {
	client := redisForExamples()
	perUser := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(10), 20, ratelimit.WithName("user")))
	perAddress := ratelimit.Must(ratelimit.NewSlidingWindow(client, 100, time.Minute, ratelimit.WithName("address")))
	tokens := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerMinute(60_000), 1000, ratelimit.WithName("tokens")))

	for range 2 {
		r, err := ratelimit.TryAcquireAll(context.Background(),
			ratelimit.ClaimOf(perUser, "user:42", 1),
			ratelimit.ClaimOf(perAddress, "203.0.113.7", 1),
			ratelimit.ClaimOf(tokens, "user:42", 730),
		)
		if err != nil {
			fmt.Println("no decision:", err)
			return
		}
		fmt.Println(r.Allowed, r.RetryAfter)
		for _, part := range r.Parts {
			fmt.Println(" ", part.Name, part.Result.Allowed, part.Result.Remaining)
		}
	}
	// Output:
	// true 0s
	//   user true 19
	//   address true 99
	//   tokens true 270
	// false 460ms
	//   user true 19
	//   address true 99
	//   tokens false 270
}

// An LLM gateway: requests, tokens and concurrency are one decision, and the tokens are
// settled when the model has answered.
func ExampleClaim_Estimate() {
	client := redisForExamples()
	requests := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerMinute(60), 10, ratelimit.WithName("requests")))
	tokens := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerMinute(6_000), 2_000, ratelimit.WithName("tokens")))
	running := ratelimit.Must(ratelimit.NewInFlight(client, 2, time.Minute, ratelimit.WithName("running")))
	ctx := context.Background()

	ask := func(estimate, used int) error {
		all, err := ratelimit.TryAcquireAll(ctx,
			ratelimit.ClaimOf(requests, "customer:42", 1),
			ratelimit.ClaimOf(tokens, "customer:42", estimate).Estimate(),
			ratelimit.ClaimHold(running, "customer:42", 1),
		)
		if err != nil {
			return err // no decision was made
		}
		defer all.Finish(ctx, nil)
		if err := all.Err(); err != nil {
			return err // denied
		}
		return all.Parts[1].Ticket.Settle(ctx, used) // when the model has answered
	}
	fmt.Println(ask(1_500, 730))
	fmt.Println(ask(1_500, 0))
	left, _ := tokens.Peek(ctx, "customer:42")
	fmt.Println(left.Remaining, "tokens left")
	// Output:
	// <nil>
	// ratelimit: denied, retry after 2.3s
	// 1270 tokens left
}

func ExampleNewFixedWindow() {
	client := redisForExamples()
	// A thousand a day; days start at midnight in Berlin's winter.
	limiter := ratelimit.Must(ratelimit.NewFixedWindow(client, 1000, 24*time.Hour,
		ratelimit.WithAlignment(-time.Hour)))
	result, _ := limiter.TryAcquireN(context.Background(), "key:abc", 250)
	fmt.Println(result.Remaining, "left for", result.ResetAfter)
	// Output: 750 left for 2h40m0s
}

func ExampleNewSlidingWindow() {
	client := redisForExamples()
	limiter := ratelimit.Must(ratelimit.NewSlidingWindow(client, 100, time.Minute,
		ratelimit.WithSubWindows(60)))
	result, _ := limiter.TryAcquire(context.Background(), "ip:192.0.2.7")
	fmt.Println(result.Allowed, result.Remaining)
	// Output: true 99
}

func ExampleNewSlidingLog() {
	client := redisForExamples()
	limiter := ratelimit.Must(ratelimit.NewSlidingLog(client, []ratelimit.Rule{
		{Limit: 2, Window: time.Second},
		{Limit: 100, Window: time.Hour},
	}))
	ctx := context.Background()
	for range 3 {
		result, _ := limiter.TryAcquire(ctx, "user:42")
		fmt.Println(result.Allowed, result.Limit, "per", result.Window, result.RetryAfter)
	}
	// Output:
	// true 2 per 1s 0s
	// true 2 per 1s 0s
	// false 2 per 1s 1s
}

func ExampleNewLeakyBucket() {
	client := redisForExamples()
	limiter := ratelimit.Must(ratelimit.NewLeakyBucket(client, ratelimit.PerMinute(7), 3))
	ctx := context.Background()
	for range 4 {
		result, _ := limiter.TryAcquire(ctx, "mailer")
		fmt.Println(result.Allowed, result.RetryAfter, result.ResetAfter)
	}
	// Output:
	// true 0s 8.571429s
	// true 0s 17.142858s
	// true 0s 25.714286s
	// false 8.571429s 25.714286s
}

func ExampleResult_Err() {
	client := redisForExamples()
	limiter := ratelimit.Must(ratelimit.NewFixedWindow(client, 1, time.Minute))
	serve := func() error {
		result, err := limiter.TryAcquire(context.Background(), "user:42")
		if err != nil {
			return err
		}
		return result.Err()
	}
	fmt.Println(serve())
	err := serve()
	fmt.Println(errors.Is(err, ratelimit.ErrDenied), err)
	// Output:
	// <nil>
	// true ratelimit: denied, retry after 1m0s
}

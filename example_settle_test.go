package ratelimit_test

import (
	"context"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit"
)

// A gateway limits each customer to 6,000 tokens of a language model per minute. It takes
// an estimate before it asks the model, and settles what the answer has really cost.
func ExampleSettler() {
	server, err := miniredis.Run() // a Redis in this process; use your own
	if err != nil {
		panic(err)
	}
	defer server.Close()
	server.SetTime(time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC))
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	ctx := context.Background()

	tokens := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerMinute(6_000), 2_000, ratelimit.WithName("tokens")))

	ask := func(prompt string, estimate, cost int) {
		ticket, result, err := tokens.Estimate(ctx, "customer:42", estimate)
		switch {
		case err != nil:
			panic(err) // no decision was made: Redis is down, for example
		case ticket == nil:
			fmt.Printf("%s: denied, retry after %v\n", prompt, result.RetryAfter)
			return
		}
		// Here the model answers, and says how many tokens that took. If this process
		// dies, the estimate stays charged.
		if err := ticket.Settle(ctx, cost); err != nil {
			panic(err)
		}
		now, err := tokens.Peek(ctx, "customer:42")
		if err != nil {
			panic(err)
		}
		fmt.Printf("%s: estimated %d, cost %d, left %d, all back in %v\n", prompt, estimate, cost, now.Remaining, now.ResetAfter)
	}
	ask("a short answer", 1_000, 730)
	ask("a long answer", 1_000, 1_400)
	ask("the next", 1_000, 1_000)
	// Output:
	// a short answer: estimated 1000, cost 730, left 1270, all back in 7.3s
	// a long answer: estimated 1000, cost 1400, left 0, all back in 21.3s
	// the next: denied, retry after 11.3s
}

// Batch jobs share a limit with users who wait for an answer, and leave the last 4
// permits to the users.
func ExampleWithHeadroom() {
	server, err := miniredis.Run() // a Redis in this process; use your own
	if err != nil {
		panic(err)
	}
	defer server.Close()
	server.SetTime(time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC))
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	ctx := context.Background()

	rate, name := ratelimit.PerSecond(1), ratelimit.WithName("search") // one name: one limit
	users := ratelimit.Must(ratelimit.NewTokenBucket(client, rate, 10, name))
	batch := ratelimit.Must(ratelimit.NewTokenBucket(client, rate, 10, name, ratelimit.WithHeadroom(4)))

	allowed := 0
	for range 10 {
		result, err := batch.TryAcquire(ctx, "index-1")
		if err != nil {
			panic(err)
		}
		if result.Allowed {
			allowed++
		}
	}
	fmt.Printf("batch jobs: %d of 10 allowed\n", allowed)

	result, err := users.TryAcquire(ctx, "index-1")
	if err != nil {
		panic(err)
	}
	fmt.Printf("a user: allowed %v, %d left\n", result.Allowed, result.Remaining)

	result, err = batch.TryAcquire(ctx, "index-1")
	if err != nil {
		panic(err)
	}
	fmt.Printf("a batch job: allowed %v, retry after %v\n", result.Allowed, result.RetryAfter)
	// Output:
	// batch jobs: 6 of 10 allowed
	// a user: allowed true, 3 left
	// a batch job: allowed false, retry after 2s
}

// A worker takes as many messages from its backlog as it may send now.
func ExampleTokenBucket_TryAcquireUpTo() {
	server, err := miniredis.Run() // a Redis in this process; use your own
	if err != nil {
		panic(err)
	}
	defer server.Close()
	start := time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)
	server.SetTime(start)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	ctx := context.Background()

	messages := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(10), 100, ratelimit.WithName("messages")))
	for backlog := 150; backlog > 0; {
		taken, result, err := messages.TryAcquireUpTo(ctx, "provider", backlog)
		if err != nil {
			panic(err)
		}
		backlog -= taken
		fmt.Printf("sent %d, %d wait; retry after %v\n", taken, backlog, result.RetryAfter)
		server.SetTime(start.Add(result.RetryAfter)) // time.Sleep(result.RetryAfter), or do something else
		if backlog < 50 {
			break
		}
	}
	// Output:
	// sent 100, 50 wait; retry after 100ms
	// sent 1, 49 wait; retry after 100ms
}

package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tryacquire/ratelimit"
)

func ExampleInFlight_Do() {
	client := redisForExamples()
	ctx := context.Background()

	// Each tenant runs at most one report at a time, whichever process it runs in. If the
	// process crashes, its place is free again after half a minute.
	reports := ratelimit.Must(ratelimit.NewInFlight(client, 1, 30*time.Second,
		ratelimit.WithName("reports")))

	run := func(ctx context.Context) error {
		// A second report of the tenant, while this one runs.
		err := reports.Do(ctx, "tenant:42", func(context.Context) error { return nil })
		fmt.Println(errors.Is(err, ratelimit.ErrDenied))
		return ctx.Err() // ErrLeaseLost is its cause if the place was lost
	}
	fmt.Println(reports.Do(ctx, "tenant:42", run))
	fmt.Println(reports.Do(ctx, "tenant:42", func(context.Context) error { return nil }))
	// Output:
	// true
	// <nil>
	// <nil>
}

func ExampleInFlight_TryAcquire() {
	client := redisForExamples()
	connections := ratelimit.Must(ratelimit.NewInFlight(client, 2, time.Minute,
		ratelimit.WithName("connections")))

	open := func(ctx context.Context) (func(), error) {
		hold, result, err := connections.TryAcquire(ctx, "user:42")
		if err != nil {
			return nil, err // Redis is down, for example
		}
		if err := result.Err(); err != nil {
			return nil, err
		}
		fmt.Println(result.Remaining, "left")
		// A connection that lives longer than a minute calls hold.Extend three times in each.
		return func() { _ = hold.Release(ctx) }, nil
	}

	ctx := context.Background()
	first, _ := open(ctx)
	_, _ = open(ctx)
	_, err := open(ctx)
	fmt.Println(err)
	first()
	_, err = open(ctx)
	fmt.Println(err)
	// Output:
	// 1 left
	// 0 left
	// ratelimit: denied, retry after 1m0s
	// 0 left
	// <nil>
}

// One decision takes a place among the calls in flight and a permit of a rate. The call
// keeps the place while it runs.
func ExampleAllResult_Do() {
	client := redisForExamples()
	ctx := context.Background()
	running := ratelimit.Must(ratelimit.NewInFlight(client, 1, 30*time.Second, ratelimit.WithName("running")))
	requests := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerMinute(60), 10, ratelimit.WithName("requests")))

	answer, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimHold(running, "tenant:42", 1), ratelimit.ClaimOf(requests, "tenant:42", 1))
	if err != nil || !answer.Allowed {
		fmt.Println("denied:", answer, err)
		return
	}
	err = answer.Do(ctx, func(ctx context.Context) error {
		r, err := running.Peek(ctx, "tenant:42")
		fmt.Println("places left while it runs:", r.Remaining)
		return err // ctx is cancelled if the place is lost
	}, nil)
	r, _ := running.Peek(ctx, "tenant:42")
	fmt.Println("and then:", r.Remaining, err)
	// Output:
	// places left while it runs: 0
	// and then: 1 <nil>
}

func ExampleWaitAll() {
	client := redisForExamples()
	ctx := context.Background()
	reports := ratelimit.Must(ratelimit.NewInFlight(client, 1, 30*time.Second, ratelimit.WithName("waited")))
	running, _, _ := reports.TryAcquire(ctx, "tenant:42")

	time.AfterFunc(10*time.Millisecond, func() { _ = running.Release(ctx) })
	place, err := ratelimit.WaitAll(ctx, ratelimit.ClaimHold(reports, "tenant:42", 1))
	if err != nil {
		return // ctx has ended, or Redis is down
	}
	fmt.Println(place.Do(ctx, func(context.Context) error { return nil }, nil))
	// Output: <nil>
}

// A job keeps its place when another process goes on with it.
func ExampleClaim_As() {
	client := redisForExamples()
	ctx := context.Background()
	jobs := ratelimit.Must(ratelimit.NewInFlight(client, 1, 30*time.Second, ratelimit.WithName("jobs")))
	claim := ratelimit.ClaimHold(jobs, "tenant:42", 1).As("job:8f14e45f")

	accepted, _ := ratelimit.TryAcquireAll(ctx, claim)
	_ = accepted.Parts[0].Hold.HandOver(ctx) // to the worker, which gets the job's id

	worker, err := ratelimit.TryAcquireAll(ctx, claim)
	fmt.Println(worker.Allowed, worker.Repeated, err)
	fmt.Println(worker.Do(ctx, func(context.Context) error { return nil }, nil))
	// Output:
	// true true <nil>
	// <nil>
}

package ratelimit_test

import (
	"context"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit"
)

// A plan of 1,000 calls a month, billed from the 15th, in the customer's time zone.
func ExampleNewCalendarWindow() {
	server, err := miniredis.Run() // a Redis in this process; use your own
	if err != nil {
		panic(err)
	}
	defer server.Close()
	server.SetTime(time.Date(2026, time.March, 20, 12, 0, 0, 0, time.UTC))
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()

	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		panic(err)
	}
	quota := ratelimit.Must(ratelimit.NewCalendarWindow(client, 1000, ratelimit.Monthly(15, berlin), ratelimit.WithName("plan")))

	result, err := quota.TryAcquireN(context.Background(), "customer:42", 400)
	if err != nil {
		panic(err)
	}
	// Clocks are set on the 29th of March: this month is an hour shorter than its 31 days.
	fmt.Println(result.Remaining, "left of", result.Limit, "in", result.Window, "until", result.ResetAfter, "from now")
	// Output:
	// 600 left of 1000 in 743h0m0s until 610h0m0s from now
}

package rueidisclient_test

import (
	"context"
	"fmt"
	"log"

	"github.com/redis/rueidis"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/rueidisclient"
)

func ExampleNew() {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{"localhost:6379"}})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	limits := rueidisclient.New(client) // one for all limiters
	limiter, err := ratelimit.NewTokenBucket(limits, ratelimit.PerSecond(10), 20)
	if err != nil {
		log.Fatal(err)
	}
	result, err := limiter.TryAcquire(context.Background(), "user:42")
	fmt.Println(result.Allowed, err)
}

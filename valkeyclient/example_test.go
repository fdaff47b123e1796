package valkeyclient_test

import (
	"context"
	"fmt"
	"log"

	"github.com/valkey-io/valkey-go"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/valkeyclient"
)

func ExampleNew() {
	client, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{"localhost:6379"}})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	limits := valkeyclient.New(client) // one for all limiters
	limiter, err := ratelimit.NewTokenBucket(limits, ratelimit.PerSecond(10), 20)
	if err != nil {
		log.Fatal(err)
	}
	result, err := limiter.TryAcquire(context.Background(), "user:42")
	fmt.Println(result.Allowed, err)
}

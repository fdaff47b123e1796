// Llm is a gateway to a language model. Each tenant has a limit of requests a minute, of tokens a
// minute, and of answers at the same time. One decision covers all three, and the tokens are
// settled when an answer is complete or its reader has left.
//
//	go run ./examples/llm                            # a Redis inside the process
//	REDIS_ADDR=localhost:6379 go run ./examples/llm  # a real one
//	curl -N -H 'X-Tenant: acme' -d prompt='Why is the sky blue?' -d max_tokens=20 localhost:8080
package main

import (
	"context"
	"log"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit"
)

// budget is about what a call to Redis may take; the client gives up after 100 ms.
const budget = 20 * time.Millisecond

func main() {
	addr := os.Getenv("REDIS_ADDR")
	if addr == "" {
		server, err := miniredis.Run()
		if err != nil {
			log.Fatal(err)
		}
		defer server.Close()
		addr = server.Addr()
	}
	g, err := newGateway(redis.NewClient(ratelimit.Must(ratelimit.ClientOptions(budget, &redis.Options{Addr: addr}))), parrot)
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe("localhost:8080", g))
}

// parrot is a model that repeats the prompt, at ten tokens a second.
func parrot(ctx context.Context, prompt string, most int, emit func(token string) error) error {
	words := strings.Fields(prompt)
	for i := 0; i < most && len(words) > 0; i++ {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
		}
		if err := emit(words[i%len(words)] + " "); err != nil {
			return err
		}
	}
	return nil
}

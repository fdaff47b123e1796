// Client gets URLs and obeys limits: its own, and those that servers announce with Retry-After and the RateLimit
// fields. Its instances share both: a 429 to one of them stops all, and what a server says is left lowers the limit of all.
//
//	go run ./examples/client https://example.com/a https://example.com/b            # a Redis inside the process
//	REDIS_ADDR=localhost:6379 go run ./examples/client https://example.com/a        # a real one
package main

import (
	"fmt"
	"log"
	"net/http"
	"os"
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
	store := redis.NewClient(ratelimit.Must(ratelimit.ClientOptions(budget, &redis.Options{Addr: addr})))
	rate, burst, name := ratelimit.PerSecond(5), 5, ratelimit.WithName("outgoing")
	perHost, err := ratelimit.NewTokenBucket(store, rate, burst, name)
	if err != nil {
		log.Fatal(err)
	}
	polite, err := newTransport(http.DefaultTransport, perHost, store)
	if err != nil {
		log.Fatal(err)
	}
	polite.lower = lowering(store, rate, burst, name)
	client := &http.Client{Transport: polite, Timeout: time.Minute}
	for _, url := range os.Args[1:] {
		resp, err := client.Get(url)
		if err != nil {
			log.Print(err)
			continue
		}
		resp.Body.Close()
		fmt.Println(url, resp.Status)
	}
}

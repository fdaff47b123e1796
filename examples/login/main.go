// Login protects passwords: in a quarter of an hour, five tries may fail for a user, and fifty
// for an address, whatever the user names. Whoever goes on is banned, for longer each time. While
// Redis is down, nobody can log in.
//
//	go run ./examples/login                            # a Redis inside the process
//	REDIS_ADDR=localhost:6379 go run ./examples/login  # a real one
//	curl -d user=alice -d password=secret localhost:8080
package main

import (
	"context"
	"crypto/subtle"
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
	l, err := newLogin(redis.NewClient(ratelimit.Must(ratelimit.ClientOptions(budget, &redis.Options{Addr: addr}))), check)
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe("localhost:8080", l))
}

// check stands for a real check, which takes the same time for users that do not exist,
// because it then compares the password with some other hash.
func check(_ context.Context, user, password string) (bool, error) {
	known := subtle.ConstantTimeCompare([]byte(user), []byte("alice"))
	right := subtle.ConstantTimeCompare([]byte(password), []byte("secret"))
	return known&right == 1, nil
}

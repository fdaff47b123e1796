// Worker sends messages no faster than their receivers allow, in any number of instances, which
// wait for their turn in Redis. It shuts down cleanly: a message that is being sent is finished,
// a message that waits goes back to the queue, and its turn goes to the other instances.
//
//	go run ./examples/worker                            # a Redis inside the process
//	REDIS_ADDR=localhost:6379 go run ./examples/worker  # a real one; start it several times
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit"
)

// A message is for a receiver that accepts one message a second.
type message struct{ to, text string }

// newLimiter returns a shaper: a leaky bucket of capacity 1 whose callers wait.
func newLimiter(client ratelimit.Client) (ratelimit.Limiter, error) {
	return ratelimit.NewLeakyBucket(client, ratelimit.PerSecond(1), 1, ratelimit.WithName("messages"))
}

const (
	sendTime   = 10 * time.Second      // for one message, also while the worker shuts down
	outageTime = time.Second           // between two tries while Redis is down
	budget     = 20 * time.Millisecond // about what a call to Redis may take; the client gives up after 100 ms
)

// A worker is one of several workers that share a queue.
type worker struct {
	limiter ratelimit.Limiter
	queue   chan message // with room for the messages that go back
	send    func(context.Context, message) error
}

// run sends messages until ctx ends.
func (w *worker) run(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case m := <-w.queue:
			if err := w.sendInTurn(ctx, m); err != nil {
				w.queue <- m
				log.Print(err)
			}
		}
	}
}

// sendInTurn returns an error if m was not sent.
func (w *worker) sendInTurn(ctx context.Context, m message) error {
	if _, err := ratelimit.Wait(ctx, w.limiter, m.to); err != nil {
		if ctx.Err() == nil { // Redis is down; nothing is sent without a decision
			pause(ctx, outageTime)
		}
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sendTime)
	defer cancel()
	return w.send(ctx, m)
}

func pause(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	<-ctx.Done()
}

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
	client := redis.NewClient(ratelimit.Must(ratelimit.ClientOptions(budget, &redis.Options{Addr: addr})))
	defer client.Close()
	limiter, err := newLimiter(client)
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	w := &worker{limiter: limiter, queue: make(chan message, 100), send: func(_ context.Context, m message) error {
		fmt.Println(time.Now().Format(time.TimeOnly), m.to, m.text)
		return nil
	}}
	for i := range 10 {
		w.queue <- message{to: fmt.Sprintf("receiver-%d", i%2), text: fmt.Sprintf("message %d", i)}
	}
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() { w.run(ctx) })
	}
	workers.Wait()
	fmt.Println(len(w.queue), "messages are left for the next run")
}

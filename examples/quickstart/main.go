// Quickstart shows every limiter take, deny, report when to retry, and recover.
//
//	go run ./examples/quickstart                            # a Redis inside the process
//	REDIS_ADDR=localhost:6379 go run ./examples/quickstart  # a real one
//
// On a real Redis it uses keys under a prefix of its own, and deletes them at the end.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit"
)

func main() {
	if err := run(context.Background(), os.Stdout, os.Getenv("REDIS_ADDR"), time.Sleep); err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

// A show is one limiter with a description.
type show struct {
	title   string
	about   string
	limiter ratelimit.Limiter
}

func run(ctx context.Context, out io.Writer, addr string, sleep func(time.Duration)) error {
	if addr == "" {
		server, err := miniredis.Run()
		if err != nil {
			return err
		}
		defer server.Close()
		server.ClockTTL(true) // keys expire as time goes by
		addr = server.Addr()
		fmt.Fprintln(out, "Redis: inside this process (set REDIS_ADDR to use a real one)")
	} else {
		fmt.Fprintln(out, "Redis:", addr)
	}
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	shows, err := limiters(client, fmt.Sprintf("quickstart-%d", os.Getpid()))
	if err != nil {
		return err
	}
	for _, s := range shows {
		fmt.Fprintf(out, "\n%s: %s\n", s.title, s.about)
		if err := present(ctx, out, s.limiter, sleep); err != nil {
			return err
		}
	}
	return nil
}

// limiters returns all limiters, each of which allows three permits at once.
func limiters(client ratelimit.Client, prefix string) ([]show, error) {
	const second = time.Second
	own := ratelimit.WithPrefix(prefix)
	fixed, err1 := ratelimit.NewFixedWindow(client, 3, second/2, own)
	list, err2 := ratelimit.NewSlidingWindow(client, 3, second/2, own)
	hash, err3 := ratelimit.NewSlidingWindow(client, 3, second/2, own, ratelimit.WithStorage(ratelimit.StorageHash))
	zset, err4 := ratelimit.NewSlidingWindow(client, 3, second/2, own, ratelimit.WithStorage(ratelimit.StorageZSet))
	log, err5 := ratelimit.NewSlidingLog(client, []ratelimit.Rule{{Limit: 3, Window: second / 2}, {Limit: 100, Window: time.Minute}}, own)
	token, err6 := ratelimit.NewTokenBucket(client, ratelimit.PerSecond(4), 3, own)
	leaky, err7 := ratelimit.NewLeakyBucket(client, ratelimit.PerSecond(4), 3, own)
	return []show{
		{"Fixed window", "3 requests per half second, counted from the first", fixed},
		{"Sliding window", "3 in any half second, counted by fortieths of it", list},
		{"Sliding window, in a hash", "the same, kept in a hash", hash},
		{"Sliding window, in a sorted set", "3 in any half second, exactly", zset},
		{"Sliding log", "3 in any half second and 100 in any minute, exactly", log},
		{"Token bucket", "a burst of 3, then 4 a second", token},
		{"Leaky bucket", "room for 3, drains 4 a second", leaky},
	}, errors.Join(err1, err2, err3, err4, err5, err6, err7)
}

// present takes permits until one is denied, waits as long as the denial says,
// and takes another.
func present(ctx context.Context, out io.Writer, l ratelimit.Limiter, sleep func(time.Duration)) error {
	const key = "user:42"
	var denied ratelimit.Result
	for i := 1; ; i++ {
		result, err := l.TryAcquire(ctx, key)
		if err != nil {
			return err
		}
		if !result.Allowed {
			fmt.Fprintf(out, "  request %d: denied, retry after %v\n", i, result.RetryAfter.Round(time.Millisecond))
			denied = result
			break
		}
		fmt.Fprintf(out, "  request %d: allowed, %d of %d left\n", i, result.Remaining, result.Limit)
	}
	sleep(denied.RetryAfter)
	result, err := l.TryAcquire(ctx, key)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "  %v later: allowed is %v, %d of %d left\n",
		denied.RetryAfter.Round(time.Millisecond), result.Allowed, result.Remaining, result.Limit)
	return l.Reset(ctx, key)
}

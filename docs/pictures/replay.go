package main

import (
	"context"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit"
)

const window = 10 * time.Second

// An algorithm is a row of a picture.
type algorithm struct {
	name       string
	rule       string // with a verb for the limit
	boundaries bool   // its windows have boundaries, which are drawn
	limiter    func(client ratelimit.Client, limit int) (ratelimit.Limiter, error)
}

func algorithms() []algorithm {
	return []algorithm{
		{"token bucket", "%[1]s at once, then %[1]s in 10 s", false, func(c ratelimit.Client, limit int) (ratelimit.Limiter, error) {
			return ratelimit.NewTokenBucket(c, ratelimit.Per(limit, window), limit)
		}},
		{"leaky bucket, capacity 1", "one by one, %[1]s in 10 s", false, func(c ratelimit.Client, limit int) (ratelimit.Limiter, error) {
			return ratelimit.NewLeakyBucket(c, ratelimit.Per(limit, window), 1)
		}},
		{"fixed window", "%[1]s in each window of 10 s", true, func(c ratelimit.Client, limit int) (ratelimit.Limiter, error) {
			return ratelimit.NewFixedWindow(c, limit, window)
		}},
		{"sliding window", "%[1]s in any 10 s, by sub-windows", false, func(c ratelimit.Client, limit int) (ratelimit.Limiter, error) {
			return ratelimit.NewSlidingWindow(c, limit, window)
		}},
		{"sliding log", "%[1]s in any 10 s, exactly", false, func(c ratelimit.Client, limit int) (ratelimit.Limiter, error) {
			return ratelimit.NewSlidingLog(c, []ratelimit.Rule{{Limit: limit, Window: window}})
		}},
	}
}

// An answer is what became of one request.
type answer struct {
	at      time.Duration
	allowed bool
	reset   time.Duration // when the full limit is there again, without the grain of Redis's expiry
}

// start is the instant 0 of each scene.
var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// onClock runs f with a client of a Redis whose clock at sets.
func onClock(f func(at func(time.Duration), client ratelimit.Client) error) error {
	server, err := miniredis.Run()
	if err != nil {
		return err
	}
	defer server.Close()
	server.ClockTTL(true) // keys expire as the scene goes on
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	return f(func(at time.Duration) { server.SetTime(start.Add(at)) }, client)
}

// replay sends the requests of a scene to limiters of one algorithm that share a key.
func replay(ctx context.Context, a algorithm, s scene) (answers []answer, err error) {
	err = onClock(func(at func(time.Duration), client ratelimit.Client) error {
		limiters := map[int]ratelimit.Limiter{}
		for _, c := range s.limits {
			var err error
			if limiters[c.limit], err = a.limiter(client, c.limit); err != nil {
				return err
			}
		}
		for _, now := range s.requests {
			at(now)
			result, err := limiters[s.limitAt(now)].TryAcquire(ctx, "user:42")
			if err != nil {
				return err
			}
			answers = append(answers, answer{now, result.Allowed, (now + result.ResetAfter).Round(10 * time.Millisecond)})
		}
		return nil
	})
	return answers, err
}

// allowed counts the requests that were allowed.
func allowed(answers []answer) int {
	n := 0
	for _, a := range answers {
		if a.allowed {
			n++
		}
	}
	return n
}

// most is the largest number of requests that were allowed in any interval of a window.
func most(answers []answer) int {
	most := 0
	for i, from := range answers {
		n := 0
		for _, a := range answers[i:] {
			if a.at < from.at+window && a.allowed {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

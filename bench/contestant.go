package main

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit"
)

// A contestant is one way to decide, of this library or another.
type contestant struct {
	name string
	kind kind

	// open sets it up so that all its answers are the verdict, but for the first
	// for a key, which is allowed. Its keys begin with tag.
	open func(b *testbed, v verdict, tag string) (decide, error)

	// cost is the server's time in microseconds, that of all scripts if nil.
	cost func(tally) float64

	script      string  // its row among the server costs; none if empty
	only        verdict // no other is measured, if not empty
	selected    bool    // for more cells than the others
	fast        bool    // takes so little that timing every call would distort
	cancellable bool    // is called with a context that can end
}

// decide asks for one permit.
type decide func(ctx context.Context, key string) (allowed bool, err error)

type kind int

const (
	ours kind = iota
	peer
	floor
)

type verdict string

const (
	allowed verdict = "allowed"
	denied  verdict = "denied"
)

// What is allowed is so rarely restored, and so plentiful, that keys live and
// are not used up while they are measured; what is denied is one an hour.
const (
	plenty       = 30_000_000
	plentyWindow = time.Hour
	// Permits leave a log during a run, as they do in use.
	logLimit  = 1_000_000
	logWindow = time.Minute
	// As many permits as a sorted set takes, in a window that a hot key does not fill.
	zsetWindow = 20 * time.Millisecond
)

func contestants() []contestant {
	return append(append(limiters(), peers()...), floors()...)
}

// limiters are this library's.
func limiters() []contestant {
	return []contestant{
		{name: "fixed window", script: "fixed window", selected: true, open: limiter(fixedWindow)},
		{name: "sliding window, Hash", script: "sliding window, Hash", open: limiter(slidingWindow(ratelimit.StorageHash))},
		{name: "sliding window, List", script: "sliding window, List", open: limiter(slidingWindow(ratelimit.StorageList))},
		{name: "sliding window, ZSet", script: "sliding window, ZSet", open: limiter(slidingWindow(ratelimit.StorageZSet))},
		{name: "sliding log", script: "sliding log", open: limiter(slidingLog)},
		{name: "leaky bucket", script: "leaky bucket", open: limiter(leakyBucket)},
		{name: "token bucket", selected: true, open: limiter(tokenBucket)},
		{name: "token bucket, context", selected: true, cancellable: true, open: limiter(tokenBucket)},
		{name: "token bucket, plain", script: "token bucket", selected: true, open: plainTokenBucket},
		{name: "token bucket, AutoPipeliner", selected: true, open: pipelinedTokenBucket},
		{name: "token bucket, deny cache", only: denied, fast: true, open: limiter(denyCached)},
	}
}

// build makes a limiter of this library.
type build func(c ratelimit.Client, v verdict, prefix ratelimit.Option) (ratelimit.Limiter, error)

// limiter opens what is built on the plain client.
func limiter(build build) func(*testbed, verdict, string) (decide, error) {
	return func(b *testbed, v verdict, tag string) (decide, error) {
		return decider(build(b.client, v, ratelimit.WithPrefix(tag)))
	}
}

func decider(l ratelimit.Limiter, err error) (decide, error) {
	return func(ctx context.Context, key string) (bool, error) {
		r, err := l.TryAcquire(ctx, key)
		return r.Allowed, err
	}, err
}

func fixedWindow(c ratelimit.Client, v verdict, prefix ratelimit.Option) (ratelimit.Limiter, error) {
	if v == denied {
		return ratelimit.NewFixedWindow(c, 1, time.Hour, prefix)
	}
	return ratelimit.NewFixedWindow(c, plenty, plentyWindow, prefix)
}

func slidingWindow(storage ratelimit.Storage) build {
	return func(c ratelimit.Client, v verdict, prefix ratelimit.Option) (ratelimit.Limiter, error) {
		if v == denied {
			return ratelimit.NewSlidingWindow(c, 1, time.Hour, prefix, ratelimit.WithStorage(storage))
		}
		limit, window := logLimit, logWindow
		if storage == ratelimit.StorageZSet {
			limit, window = mostZSet, zsetWindow
		}
		return ratelimit.NewSlidingWindow(c, limit, window, prefix, ratelimit.WithStorage(storage))
	}
}

func slidingLog(c ratelimit.Client, v verdict, prefix ratelimit.Option) (ratelimit.Limiter, error) {
	rule := ratelimit.Rule{Limit: plenty, Window: logWindow}
	if v == denied {
		rule = ratelimit.Rule{Limit: 1, Window: time.Hour}
	}
	return ratelimit.NewSlidingLog(c, []ratelimit.Rule{rule}, prefix)
}

// bucket is a rate and a burst, whose state is one number, as those of usual rules: with one permit a
// minute, so many would be counted by the script of a bucket that refills in steps.
func bucket(v verdict) (ratelimit.Rate, int) {
	if v == denied {
		return ratelimit.PerHour(1), 1
	}
	return ratelimit.PerSecond(1), plenty
}

func tokenBucket(c ratelimit.Client, v verdict, prefix ratelimit.Option) (ratelimit.Limiter, error) {
	rate, burst := bucket(v)
	return ratelimit.NewTokenBucket(c, rate, burst, prefix)
}

func leakyBucket(c ratelimit.Client, v verdict, prefix ratelimit.Option) (ratelimit.Limiter, error) {
	rate, capacity := bucket(v)
	return ratelimit.NewLeakyBucket(c, rate, capacity, prefix)
}

func denyCached(c ratelimit.Client, v verdict, prefix ratelimit.Option) (ratelimit.Limiter, error) {
	l, err := tokenBucket(c, v, prefix)
	if err != nil {
		return nil, err
	}
	return ratelimit.NewDenyCache(l)
}

func plainTokenBucket(b *testbed, v verdict, tag string) (decide, error) {
	rate, burst := bucket(v)
	return decider(ratelimit.NewTokenBucket(b.client, rate, burst,
		ratelimit.WithPrefix(tag), ratelimit.WithoutMerging()))
}

func pipelinedTokenBucket(b *testbed, v verdict, tag string) (decide, error) {
	var client *redis.AutoPipeliner
	client, err := b.client.AutoPipeline()
	if err != nil {
		return nil, err
	}
	return decider(tokenBucket(client, v, ratelimit.WithPrefix(tag)))
}

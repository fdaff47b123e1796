// Package redis_rate has the types and calls of github.com/go-redis/redis_rate/v10, whose
// decisions are made by [ratelimit.TokenBucket]. A service changes one import to use it, and
// changes it back to return:
//
//	import "github.com/tryacquire/ratelimit/shims/redis_rate"
//
// It counts in keys of its own: while old and new instances run side by side, a key may get up to
// twice its limit. The README of this module has what else differs.
package redis_rate

import (
	"context"
	"fmt"
	"time"

	"github.com/tryacquire/ratelimit"
)

// Name is the name of the shim's limiters. A limiter of package ratelimit with this name goes on
// from what the shim has counted:
//
//	ratelimit.NewTokenBucket(client, ratelimit.PerSecond(10), 10, ratelimit.WithName(redis_rate.Name))
const Name = "redis_rate"

// A Limiter decides how often events may happen. The limit comes with each call.
type Limiter struct {
	buckets *ratelimit.TokenBucket
	err     error // why there are none
}

// NewLimiter returns a Limiter. rdb is a *redis.Client, *redis.ClusterClient, *redis.Ring or
// redis.UniversalClient. If it cannot work, every call returns the reason.
func NewLimiter(rdb ratelimit.Client) *Limiter {
	buckets, err := ratelimit.NewTokenBucket(rdb, ratelimit.PerSecond(1), 1, ratelimit.WithName(Name))
	return &Limiter{buckets, err}
}

// A Result is a decision.
type Result struct {
	// Limit is the limit of the call.
	Limit Limit

	// Allowed is how many events may happen now: 0 if the call was denied.
	Allowed int

	// Remaining is how many more events could happen now.
	Remaining int

	// RetryAfter is -1 if an event may happen now. Otherwise it is the time until the same call
	// would be allowed, or, for AllowAtMost, until one event may happen.
	RetryAfter time.Duration

	// ResetAfter is the time until Remaining is the burst again.
	ResetAfter time.Duration
}

// Allow is AllowN(ctx, key, limit, 1).
func (l Limiter) Allow(ctx context.Context, key string, limit Limit) (*Result, error) {
	return l.AllowN(ctx, key, limit, 1)
}

// AllowN reports whether n events may happen now. With n = 0 it returns the state and changes
// nothing. More than the burst is denied, with the RetryAfter of a bucket of any size, although
// no wait would help.
func (l Limiter) AllowN(ctx context.Context, key string, limit Limit, n int) (*Result, error) {
	bucket, err := l.bucket(limit)
	switch {
	case err != nil:
		return nil, err
	case n == 0:
		state, err := peek(ctx, bucket, key, limit)
		state.RetryAfter = 0
		return result(limit, 0, state, err)
	case n > limit.Burst:
		state, err := peek(ctx, bucket, key, limit)
		state.RetryAfter = state.ResetAfter + limit.refills(n-limit.Burst)
		return result(limit, 0, state, err)
	}
	r, err := bucket.TryAcquireN(ctx, key, n)
	if !r.Allowed {
		n = 0
	}
	return result(limit, n, r, err)
}

// AllowAtMost reports how many of n events may happen now. With n = 0 it returns the state and
// changes nothing.
func (l Limiter) AllowAtMost(ctx context.Context, key string, limit Limit, n int) (*Result, error) {
	bucket, err := l.bucket(limit)
	switch {
	case err != nil:
		return nil, err
	case n == 0 || limit.Burst < 1:
		state, err := peek(ctx, bucket, key, limit)
		return result(limit, 0, state, err)
	}
	taken, r, err := bucket.TryAcquireUpTo(ctx, key, n)
	if taken > 0 {
		r.RetryAfter = 0
	}
	return result(limit, taken, r, err)
}

// Reset deletes what key has used.
func (l *Limiter) Reset(ctx context.Context, key string) error {
	bucket, err := l.bucket(PerSecond(1)) // all limits share the state of a key
	if err != nil {
		return err
	}
	return bucket.Reset(ctx, key)
}

// bucket is the token bucket of a limit. That of a burst below 1, which denies everything, is one
// of a burst of 1, which is only looked at.
func (l Limiter) bucket(limit Limit) (*ratelimit.TokenBucket, error) {
	if l.err != nil {
		return nil, l.err
	}
	buckets := l.buckets
	if buckets == nil { // the zero value: the error says so
		buckets = new(ratelimit.TokenBucket)
	}
	bucket, err := buckets.With(limit.rate(), max(limit.Burst, 1))
	if err != nil {
		return nil, fmt.Errorf("redis_rate: the limit %v: %w", limit, err)
	}
	return bucket, nil
}

// peek is the state of key. A limit whose burst is below 1 has none.
func peek(ctx context.Context, bucket *ratelimit.TokenBucket, key string, limit Limit) (ratelimit.Result, error) {
	if limit.Burst < 1 {
		return ratelimit.Result{RetryAfter: limit.refills(1 - limit.Burst)}, ctx.Err()
	}
	return bucket.Peek(ctx, key)
}

// refills is how long n events take to become available, at most 146 years.
func (l Limit) refills(n int) time.Duration {
	d := float64(l.Period) * float64(n) / float64(l.Rate)
	return time.Duration(min(d, 1<<62))
}

func result(limit Limit, allowed int, r ratelimit.Result, err error) (*Result, error) {
	if err != nil {
		return nil, err
	}
	if r.RetryAfter == 0 {
		r.RetryAfter = -1
	}
	return &Result{Limit: limit, Allowed: allowed, Remaining: r.Remaining, RetryAfter: r.RetryAfter, ResetAfter: r.ResetAfter}, nil
}

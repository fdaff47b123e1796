package ratelimit

import "context"

// The methods that the buckets share with the other limiters on Redis; windowmethods.go says why they are here.

func (l *TokenBucket) decider() *core {
	if l == nil {
		return nil
	}
	return l.core
}

// Name returns the limiter's name, see [WithName].
func (l *TokenBucket) Name() string { return l.decider().Name() }

// TryAcquire is that of [Limiter].
func (l *TokenBucket) TryAcquire(ctx context.Context, key string) (Result, error) {
	return l.decider().TryAcquire(ctx, key)
}

// TryAcquireN is that of [Limiter].
func (l *TokenBucket) TryAcquireN(ctx context.Context, key string, n int) (Result, error) {
	return l.decider().TryAcquireN(ctx, key, n)
}

// Peek is that of [Limiter].
func (l *TokenBucket) Peek(ctx context.Context, key string) (Result, error) {
	return l.decider().Peek(ctx, key)
}

// Reset is that of [Limiter].
func (l *TokenBucket) Reset(ctx context.Context, key string) error {
	return l.decider().Reset(ctx, key)
}

// Preload loads the limiter's scripts, on every master of a ClusterClient and
// every shard of a Ring, so that the first request finds them there. It is never
// needed: if Redis does not know the script of a call, the call is sent again with the
// script. After an error some of the scripts may have been loaded.
func (l *TokenBucket) Preload(ctx context.Context) error { return l.decider().Preload(ctx) }

// Claim is what [TryAcquireAll] takes.
func (l *TokenBucket) Claim(key string, n int) Claim { return l.decider().Claim(key, n) }

// TryAcquireMany decides many requests, each as TryAcquireN would and independently of the
// others, and returns their answers in the same order. The answer to a request that cannot
// work, such as one with an empty key, is its error, and the others are decided. Requests
// for the same key are decided in their order.
//
// It takes one round trip where the keys are on one server. On a Cluster or a Ring, and with
// [WithoutMerging], it takes one for each thousand requests, to all servers at once. Many
// requests are sent in several executions of about a millisecond each, and between these
// Redis serves other clients. The requests are not merged with those of other callers. If
// ctx ends first, every answer has the error of ctx, and the permits may have been taken.
func (l *TokenBucket) TryAcquireMany(ctx context.Context, requests []Request) []Answer {
	return l.decider().TryAcquireMany(ctx, requests)
}

// TryAcquireUpTo takes up to n permits from key: as many as are left. n may exceed the
// limit. taken is how many were taken.
//
// Allowed reports whether at least one permit was taken. Limit, Window, Remaining and
// ResetAfter are those of a call for as many permits as were taken. If fewer than n were
// taken, RetryAfter is the time until one more is available, even if Allowed is true;
// otherwise it is 0.
//
// Redis executes the call at most once, and the call is merged with others, see
// [WithoutMerging]. It costs Redis as much as TryAcquire; with the storage ZSet, as much as
// TryAcquireN for the permits that are taken. Its errors are those of TryAcquire, and
// ErrInvalidPermits for n below 1.
func (l *TokenBucket) TryAcquireUpTo(ctx context.Context, key string, n int) (taken int, r Result, err error) {
	return l.decider().TryAcquireUpTo(ctx, key, n)
}

// Estimate is that of [Settler].
func (l *TokenBucket) Estimate(ctx context.Context, key string, n int) (*Ticket, Result, error) {
	return l.decider().Estimate(ctx, key, n)
}

// Charge is that of [Settler].
func (l *TokenBucket) Charge(ctx context.Context, key string, n int) (Result, error) {
	return l.decider().Charge(ctx, key, n)
}

func (l *LeakyBucket) decider() *core {
	if l == nil {
		return nil
	}
	return l.core
}

// Name returns the limiter's name, see [WithName].
func (l *LeakyBucket) Name() string { return l.decider().Name() }

// TryAcquire is that of [Limiter].
func (l *LeakyBucket) TryAcquire(ctx context.Context, key string) (Result, error) {
	return l.decider().TryAcquire(ctx, key)
}

// TryAcquireN is that of [Limiter].
func (l *LeakyBucket) TryAcquireN(ctx context.Context, key string, n int) (Result, error) {
	return l.decider().TryAcquireN(ctx, key, n)
}

// Peek is that of [Limiter].
func (l *LeakyBucket) Peek(ctx context.Context, key string) (Result, error) {
	return l.decider().Peek(ctx, key)
}

// Reset is that of [Limiter].
func (l *LeakyBucket) Reset(ctx context.Context, key string) error {
	return l.decider().Reset(ctx, key)
}

// Preload is [TokenBucket.Preload].
func (l *LeakyBucket) Preload(ctx context.Context) error { return l.decider().Preload(ctx) }

// Claim is what [TryAcquireAll] takes.
func (l *LeakyBucket) Claim(key string, n int) Claim { return l.decider().Claim(key, n) }

// TryAcquireMany is [TokenBucket.TryAcquireMany].
func (l *LeakyBucket) TryAcquireMany(ctx context.Context, requests []Request) []Answer {
	return l.decider().TryAcquireMany(ctx, requests)
}

// TryAcquireUpTo is [TokenBucket.TryAcquireUpTo].
func (l *LeakyBucket) TryAcquireUpTo(ctx context.Context, key string, n int) (taken int, r Result, err error) {
	return l.decider().TryAcquireUpTo(ctx, key, n)
}

// Estimate is that of [Settler].
func (l *LeakyBucket) Estimate(ctx context.Context, key string, n int) (*Ticket, Result, error) {
	return l.decider().Estimate(ctx, key, n)
}

// Charge is that of [Settler].
func (l *LeakyBucket) Charge(ctx context.Context, key string, n int) (Result, error) {
	return l.decider().Charge(ctx, key, n)
}

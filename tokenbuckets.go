package ratelimit

import (
	"github.com/tryacquire/ratelimit/internal/exact"
	"github.com/tryacquire/ratelimit/internal/recent"
)

// TokenBuckets are the token buckets of one name whose limit comes with each call: from a
// database, a token's claims or a configuration that changes.
//
//	buckets, err := ratelimit.NewTokenBuckets(client, ratelimit.WithName("tenant"))
//	...
//	limiter, err := buckets.Of(tenant.Rate, tenant.Burst)
//	...
//	result, err := limiter.TryAcquire(ctx, tenant.ID)
//
// The limiter of each rate and burst is made once. All of them share the state of a key, see
// [WithName]: after its limit has changed, a key goes on from what it has used. Calls of
// different limits are sent together, as those of one limit are, except with [WithClock].
//
// To put a [Fallback] or a [DenyCache] around limits that come with each call, put it around a
// [Choice] whose pick calls Of.
type TokenBuckets struct {
	cache *recent.Cache[bucketLimit, *TokenBucket]
}

type bucketLimit struct {
	rate  Rate
	burst int
}

// NewTokenBuckets returns token buckets with a client and options that all of them have. It
// returns an error that wraps ErrInvalidConfig for a client and for options that cannot work
// with any limit. Redis is not asked.
func NewTokenBuckets(c Client, opts ...Option) (*TokenBuckets, error) {
	s, err := collect(newTokenBuckets, opts)
	if err != nil {
		return nil, err
	}
	of := func(l bucketLimit) (*TokenBucket, error) { return tokenBucket(c, l.rate, l.burst, s) }
	if _, err := of(bucketLimit{PerSecond(exact.Permits), exact.Permits}); err != nil {
		return nil, err
	}
	return &TokenBuckets{recent.New(maxTokenBuckets, of)}, nil
}

// Of returns the token bucket of a rate and a burst. The last 16,384 limits that were used, or
// about so, are kept; another is made again, with the same state, in some microseconds. The
// error for a limit that cannot work is that of [NewTokenBucket], and wraps ErrInvalidConfig.
func (b *TokenBuckets) Of(rate Rate, burst int) (*TokenBucket, error) {
	if b == nil || b.cache == nil {
		return nil, errUnmade
	}
	return b.cache.Get(bucketLimit{rate, burst})
}

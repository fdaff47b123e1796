package ratelimit

import "github.com/tryacquire/ratelimit/internal/recent"

// LocalTokenBuckets are [TokenBuckets] in the memory of this process: each call comes with its
// limit, and after its limit has changed, a key goes on from what it has used, as on Redis. They are made to
// be the secondary where TokenBuckets are the primary of a [Fallback]:
//
//	local, err := ratelimit.NewLocalTokenBuckets()
//	...
//	limiter, err := local.Of(ratelimit.Per(tenant.Rate.Count, instances*tenant.Rate.Period), max(tenant.Burst/instances, 1))
//
// What [LocalTokenBucket] says of one limit holds for all of them together, which have one table of keys.
type LocalTokenBuckets struct {
	cache *recent.Cache[bucketLimit, *LocalTokenBucket]
}

// NewLocalTokenBuckets returns local token buckets with options that all of them have. The error wraps
// ErrInvalidConfig, as that of [NewLocalTokenBucket].
func NewLocalTokenBuckets(opts ...Option) (*LocalTokenBuckets, error) {
	s, err := collect(newLocalTokenBuckets, opts)
	if err != nil {
		return nil, err
	}
	return &LocalTokenBuckets{recent.New(maxTokenBuckets, newLocal(&s).of)}, nil
}

// Of returns the local token bucket of a rate and a burst. The last 16,384 limits that were used, or about
// so, are kept; another is made again, with the same state. The error for a limit that cannot work is that of
// [NewLocalTokenBucket], and wraps ErrInvalidConfig.
func (b *LocalTokenBuckets) Of(rate Rate, burst int) (*LocalTokenBucket, error) {
	if b == nil || b.cache == nil {
		return nil, errUnmade
	}
	return b.cache.Get(bucketLimit{rate, burst})
}

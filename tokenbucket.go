package ratelimit

import "time"

// A TokenBucket holds up to burst tokens and gains them at a rate; a permit
// takes one. In any interval t it grants at most burst + rate × t permits,
// exactly: a rate such as 7 per minute neither leaks nor loses one.
//
// It is the limiter to start with: callers may burst, and settle to the rate.
// Its state is one string of some 20 bytes, a decision is O(1).
//
// WithRefillEvery lets tokens arrive in steps instead, for at most
// burst + ⌈t/d⌉ × what a step adds in any interval t > 0.
type TokenBucket struct{ *core }

// NewTokenBucket returns a token bucket; burst is from 1 to 1,000,000,000. What
// could not be counted exactly is refused: the burst times the period's microseconds,
// without the factor that these share with the rate's count, must be below 2^52. So
// is what takes more than 71 years to refill. The error wraps ErrInvalidConfig, and
// says what would be right. Redis is not asked.
func NewTokenBucket(c Client, rate Rate, burst int, opts ...TokenBucketOption) (*TokenBucket, error) {
	s, err := collect(opts)
	if err != nil {
		return nil, err
	}
	a, err := tokenBucketAlgorithm(rate, burst, s.refillEvery)
	if err != nil {
		return nil, err
	}
	inner, err := newCore(c, s, a)
	if err != nil {
		return nil, err
	}
	return &TokenBucket{inner}, nil
}

// tokenBucketAlgorithm is that of a bucket that refills every so often, or evenly if
// every is 0.
func tokenBucketAlgorithm(rate Rate, burst int, every time.Duration) (algorithm, error) {
	if every > 0 {
		s, err := newStepped(rate, burst, "burst", every)
		if err != nil {
			return algorithm{}, err
		}
		return steppedAlgorithm("token bucket", idTokenBucket, s), nil
	}
	b, err := newBucket(rate, burst, "burst")
	if err != nil {
		return algorithm{}, err
	}
	return bucketAlgorithm("token bucket", idTokenBucket, b), nil
}

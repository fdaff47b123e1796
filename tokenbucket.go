package ratelimit

import "github.com/tryacquire/ratelimit/internal/algorithms"

// A TokenBucket holds up to burst tokens and gains tokens at a rate; a permit takes
// one. In any interval t it allows at most burst + rate × t permits, exactly: a rate
// such as 7 per minute neither leaks nor loses a permit.
//
// It is the limiter to start with: callers may burst, and then have to keep to the
// rate. It is a GCRA (generic cell rate algorithm, ITU-T I.371). Its state is one string
// of some 35 bytes; a decision is O(1).
//
// With [WithRefillEvery], tokens arrive in steps every d instead, and in any interval t >
// 0 the bucket allows at most burst + ⌈t/d⌉ × the tokens of a step.
type TokenBucket struct{ bucketCore }

func (l *TokenBucket) kind() kind { return kindOnRedis(l, &l.core) }

// NewTokenBucket returns a token bucket; burst is 1 to 1,000,000,000. It refuses a
// bucket that takes more than 71 years to refill, and says which burst and which rate it
// accepts instead. The error wraps ErrInvalidConfig. Redis is not asked.
//
// Any rate is exact to the microsecond. Let f be the greatest common divisor of the period
// in microseconds and the rate's count. If burst × period / f is 2^48 or more, one number
// cannot hold the state, and a decision costs Redis about a quarter more time. So does a
// decision of a bucket that refills in steps.
func NewTokenBucket(c Client, rate Rate, burst int, opts ...Option) (*TokenBucket, error) {
	s, err := collect(newTokenBucket, opts)
	if err != nil {
		return nil, err
	}
	return tokenBucket(c, rate, burst, s)
}

func tokenBucket(c Client, rate Rate, burst int, s settings) (*TokenBucket, error) {
	b, err := newBucket(rate, burst, "burst", &s)
	if err != nil {
		return nil, err
	}
	l := &TokenBucket{}
	if err := l.build(c, s, bucketAlgorithm(algorithms.TokenBucket, b, s.exactly, s.mark())); err != nil {
		return nil, err
	}
	return l, nil
}

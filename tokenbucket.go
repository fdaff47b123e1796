package ratelimit

import (
	"github.com/tryacquire/ratelimit/internal/algorithms"
	"github.com/tryacquire/ratelimit/internal/recent"
)

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
//
// Where each call comes with its limit, as from a database, [TokenBucket.With] has the bucket of another rate and burst.
type TokenBucket struct {
	bucketCore
	limits *recent.Cache[bucketLimit, *TokenBucket] // of the same name, client and options
}

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
	var limits *recent.Cache[bucketLimit, *TokenBucket]
	limits = recent.New(maxLimits, func(of bucketLimit) (*TokenBucket, error) {
		b, err := newBucket(of.rate, of.burst, "burst", &s)
		if err != nil {
			return nil, err
		}
		l := &TokenBucket{limits: limits}
		if err := l.build(c, s, bucketAlgorithm(algorithms.TokenBucket, b, s.exactly, s.mark())); err != nil {
			return nil, err
		}
		return l, nil
	})
	return limits.Get(bucketLimit{rate, burst})
}

type bucketLimit struct {
	rate  Rate
	burst int
}

// With returns the token bucket of another rate and burst, with l's name, client and options, for limits that come with
// each call: from a database, a token's claims or a configuration that changes.
//
//	limiter, err := buckets.With(tenant.Rate, tenant.Burst)
//	...
//	result, err := limiter.TryAcquire(ctx, tenant.ID)
//
// All of them share the state of a key, see [WithName]: after its limit has changed, a key goes on from what it has
// used. Calls of different limits are sent together, as those of one limit are, except with [WithClock]. The last 16,384
// limits that were used, or about so, are kept; another is made again, with the same state, in some microseconds.
//
// To put a [Fallback] or a [DenyCache] around such limits, put it around a [Choice] whose pick calls With. The error for
// a limit that cannot work is that of [NewTokenBucket].
func (l *TokenBucket) With(rate Rate, burst int) (*TokenBucket, error) {
	if l.limits == nil {
		return nil, errUnmade
	}
	return l.limits.Get(bucketLimit{rate, burst})
}

package ratelimit

import (
	"fmt"
	"strings"
	"time"

	"github.com/tryacquire/ratelimit/internal/algorithms"
	"github.com/tryacquire/ratelimit/internal/exact"
	"github.com/tryacquire/ratelimit/internal/gcra"
	"github.com/tryacquire/ratelimit/internal/recent"
	"github.com/tryacquire/ratelimit/internal/redisexec"
	"github.com/tryacquire/ratelimit/internal/scripts"
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
// 0 the bucket allows at most burst + ⌈t/d⌉ × the tokens of a step, also if [WithAlignment] aligns the steps to the clock.
//
// Where each call comes with its limit, as from a database, [TokenBucket.With] has the bucket of another rate and burst.
type TokenBucket struct {
	bucketCore
	limits *recent.Cache[bucketLimit, *TokenBucket] // of the same name, client and options
}

func (l *TokenBucket) kind() kind { return kindOnRedis(l, &l.core) }

// NewTokenBucket returns a token bucket; burst has the bounds of a [Rule]'s Limit. It refuses a
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
	if err := s.checkOffset(); err != nil {
		return nil, err
	}
	if s.aligned && s.refillEvery == 0 {
		return nil, invalidConfig("WithAlignment: tokens arrive continuously, and only steps are aligned; add WithRefillEvery, or leave it out")
	}
	var limits *recent.Cache[bucketLimit, *TokenBucket]
	limits = recent.New(maxLimits, func(of bucketLimit) (*TokenBucket, error) {
		b, err := newBucket(of.rate, of.burst, "burst", &s)
		if err != nil {
			return nil, err
		}
		l := &TokenBucket{limits: limits}
		a, err := bucketAlgorithm(algorithms.TokenBucket, b, s.exactly, s.mark()).withTickets(&s)
		if err != nil {
			return nil, err
		}
		return l, l.build(c, s, a)
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

// newBucket is the bucket of settings, whose size an error calls the burst or the capacity.
func newBucket(rate Rate, size int, sizeName string, s *settings) (*gcra.Bucket, error) {
	if err := rate.check(); err != nil {
		return nil, err
	}
	if err := checkCount("the "+sizeName, size); err != nil {
		return nil, err
	}
	b := gcra.New(int64(rate.Count), rate.Period, int64(size), s.refillEvery)
	if s.aligned {
		b.Align(s.offset)
	}
	if b.Window > exact.Duration(exact.Micros) {
		return nil, tooSlow(rate, size, sizeName, s.refillEvery)
	}
	if err := s.checkHeadroom(sizeName, size); err != nil {
		return nil, err
	}
	b.Size -= int64(s.headroom)
	return b, nil
}

// tooSlow is the error for a bucket that takes too long to refill. It names the largest
// size and the lowest rate that do not.
func tooSlow(rate Rate, size int, sizeName string, every time.Duration) error {
	if every > exact.Duration(exact.Micros) {
		return invalidConfig("WithRefillEvery: %v is more than %v; use a shorter step", every, exact.Duration(exact.Micros))
	}
	inTime := func(count, size int64) bool {
		return gcra.New(count, rate.Period, size, every).Window <= exact.Duration(exact.Micros)
	}
	var remedies []string
	if largest := greatest(int64(size), func(n int64) bool { return inTime(int64(rate.Count), n) }); largest > 0 {
		remedies = append(remedies, fmt.Sprintf("lower the %s to at most %d", sizeName, largest))
	}
	if more := greatest(exact.Permits-int64(rate.Count), func(n int64) bool { return inTime(exact.Permits+1-n, int64(size)) }); more > 0 {
		remedies = append(remedies, fmt.Sprintf("raise the rate to at least %d per %v", exact.Permits+1-more, rate.Period))
	}
	if remedies == nil {
		remedies = []string{"use a shorter period"}
	}
	return invalidConfig("a %s of %d at %d per %v takes more than %v to refill; %s",
		sizeName, size, rate.Count, rate.Period, exact.Duration(exact.Micros), strings.Join(remedies, ", or "))
}

// greatest is the greatest number up to most for which ok is true, where it is true for
// all lower ones, and 0 if there is none.
func greatest(most int64, ok func(int64) bool) int64 {
	low, high := int64(0), most+1
	for high-low > 1 {
		if middle := (low + high) / 2; ok(middle) {
			low = middle
		} else {
			high = middle
		}
	}
	return low
}

// returnExactly makes the block giveback give back only what a bucket cannot have refilled.
const returnExactly = 1

// bucketAlgorithm is what runs b on Redis. mark is that of the clock in its states.
func bucketAlgorithm(id string, b *gcra.Bucket, exactly bool, mark string) algorithm {
	a := algorithm{id: id, most: int(b.Size), cost: redisexec.Cost{Key: 8, Run: 1}, credits: true}
	a.which = func(int64, int64) int64 { return 0 }
	if exactly {
		a.which = func(int64, int64) int64 { return returnExactly }
	}
	stepped := gcra.Stepped{Bucket: b}
	large := algorithm{
		scripts: scripts.Of("steppedbucket"), explainer: stepped, args: stepped.Args(mark), longest: stepped.Longest(),
	}
	if !b.IsEven() {
		a.scripts, a.explainer, a.args, a.longest = large.scripts, large.explainer, large.args, large.longest
		return a
	}
	even := gcra.Even{Bucket: b}
	a.scripts, a.explainer, a.args, a.longest = scripts.Of("bucket"), even, even.Args(mark), even.Longest()
	a.large = &large
	if mark == "" {
		a.unpack, a.inWords = even.Unpack, scripts.BucketInWords
	}
	return a
}

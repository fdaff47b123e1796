package ratelimit

import (
	"github.com/tryacquire/ratelimit/internal/algorithms"
	"github.com/tryacquire/ratelimit/internal/gcra"
	"github.com/tryacquire/ratelimit/internal/recent"
	"github.com/tryacquire/ratelimit/internal/redisexec"
	"github.com/tryacquire/ratelimit/internal/scripts"
)

// A FairTokenBucket is one token bucket that tenants share, so that none of them takes what another one needs. A key is
// the limit, as a hash tag, and then the tenant: "{gpt-4}:tenant:42". Other keys are ErrInvalidKey.
//
// In any interval t all tenants of a limit together get at most burst + rate × t permits, exactly. While several ask for
// more than there is, each gets as much as the others, by weight; what one does not ask for, the others get. docs/fair.md
// says how, what is kept for whom, and what invented keys can do. The state is some 80 bytes for a limit and 30 for each
// tenant that counts; a decision reads and writes both, and is O(1).
//
// Limit in a Result is the burst. One tenant gets seven eighths of it at once, and a call for more is ErrExceedsLimit.
// ByShare says of a denial that the limit had room. RetryAfter is exact if nobody else takes any; the call can be allowed
// earlier, when others have had more, and so a [DenyCache] remembers no such denial. One call charges at most 100,000,000.
// Reset of a tenant's key deletes its share, and what it has taken stays taken; Reset of "{gpt-4}" deletes the limit.
type FairTokenBucket struct {
	limiterCore
	weights *recent.Cache[int, *FairTokenBucket]
}

func (l *FairTokenBucket) kind() kind { return kindOnRedis(l, &l.core) }

// mostWeight keeps what weights divide exact.
const mostWeight = 1_000

// NewFairTokenBucket returns a bucket that tenants of weight 1 share. burst is 2 to 100,000,000, best eight times as many
// permits as usual calls of all active tenants take: with less, a tenant's part of it is less than a call. A permit
// takes at most two hours to come back. The error wraps ErrInvalidConfig. Redis is not asked.
func NewFairTokenBucket(c Client, rate Rate, burst int, opts ...Option) (*FairTokenBucket, error) {
	s, err := collect(newFairTokenBucket, opts)
	if err != nil {
		return nil, err
	}
	b, err := newBucket(rate, burst, "burst", &s)
	if err != nil {
		return nil, err
	}
	if burst < 2 {
		return nil, invalidConfig("a burst of %d cannot be shared; use at least 2", burst)
	}
	if !(gcra.Fair{Bucket: b, Weight: 1}).Fits() {
		return nil, invalidConfig("a burst of %d at %v cannot be shared exactly; use a smaller burst, or a rate of fewer permits in a shorter period", burst, rate)
	}
	var weights *recent.Cache[int, *FairTokenBucket]
	weights = recent.New(mostWeight, func(weight int) (*FairTokenBucket, error) {
		if weight < 1 || weight > mostWeight {
			return nil, invalidConfig("a weight of %d is not between 1 and %d", weight, mostWeight)
		}
		of := gcra.Fair{Bucket: b, Weight: int64(weight)}
		l := &FairTokenBucket{weights: weights}
		return l, l.build(c, s, algorithm{
			id: algorithms.FairTokenBucket, scripts: scripts.Of("fairbucket"), most: int(of.Most()), args: of.Args(s.mark()), short: true,
			cost: redisexec.Cost{Key: 14, Run: 1}, explainer: of, tenants: true, mostCharge: gcra.MostShared,
		})
	})
	return weights.Get(1)
}

// Weight returns the bucket for tenants of so much weight, 1 to 1,000, of the same limits: one of weight 3 gets three times
// as much as one of weight 1. Give the plans theirs in a [Choice].
func (l *FairTokenBucket) Weight(weight int) (*FairTokenBucket, error) {
	if l.weights == nil {
		return nil, errUnmade
	}
	return l.weights.Get(weight)
}

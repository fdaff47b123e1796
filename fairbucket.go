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
	plans *recent.Cache[fairPlan, *FairTokenBucket]
	plan  fairPlan
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
	var plans *recent.Cache[fairPlan, *FairTokenBucket]
	plans = recent.New(mostWeight, func(plan fairPlan) (*FairTokenBucket, error) {
		if plan.weight < 1 || plan.weight > mostWeight {
			return nil, invalidConfig("a weight of %d is not between 1 and %d", plan.weight, mostWeight)
		}
		of := gcra.Fair{Bucket: b, Weight: int64(plan.weight)}
		if plan.promise != (Rate{}) {
			var err error
			if of, err = promised(of, plan.promise, rate, burst); err != nil {
				return nil, err
			}
		}
		l := &FairTokenBucket{plans: plans, plan: plan}
		return l, l.build(c, s, algorithm{
			id: algorithms.FairTokenBucket, scripts: scripts.Of("fairbucket"), most: int(of.Most()), args: of.Args(s.mark()), short: true,
			cost: redisexec.Cost{Key: 14, Run: 1}, explainer: of, tenants: true, mostCharge: gcra.MostShared,
		})
	})
	return plans.Get(fairPlan{weight: 1})
}

// A fairPlan is what differs between tenants.
type fairPlan struct {
	weight  int
	promise Rate // zero: none
}

// promised returns b for tenants that are promised a rate.
func promised(b gcra.Fair, promise, rate Rate, burst int) (gcra.Fair, error) {
	b.Promise = b.Parts(int64(promise.Count), promise.Period)
	switch {
	case !b.Promises():
		return b, invalidConfig("promises of a burst of %d at %v cannot be kept exactly; use a smaller burst, or a rate of fewer permits in a shorter period", burst, rate)
	case b.Promise > gcra.Parts:
		return b, invalidConfig("a promise of %v is more than the limit, %v", promise, rate)
	case b.Promise < 1 || b.Ticks(1) > b.Tau():
		return b, invalidConfig("a promise of %v, of %v and a burst of %d, never comes to a permit: a quarter of the burst is for all promises together; use a larger burst, or promise more", promise, rate, burst)
	}
	return b, nil
}

// Weight returns the bucket for tenants of so much weight, 1 to 1,000, of the same limits, with l's promise: one of weight
// 3 gets three times as much as one of weight 1. Give the plans theirs in a [Choice].
func (l *FairTokenBucket) Weight(weight int) (*FairTokenBucket, error) {
	if l.plans == nil {
		return nil, errUnmade
	}
	return l.plans.Get(fairPlan{weight, l.plan.promise})
}

// Promise returns the bucket for tenants to each of which a rate is promised, of the same limits, with l's weight. From
// its first allowed call on, such a tenant is never denied what it asks for at that rate, whatever others do, as long as
// no call is for more than three quarters of the burst; beyond that it has its share. What it does not use, others may.
// Permits that it does not ask for come together, up to those of a quarter of the limit's full refill.
//
// A promise is kept to a ten-thousandth of the rule, rounded down. One that is more than the rule is ErrInvalidConfig.
// The promises of all tenants that count should not be more than the rule either: while they would be, who comes last has
// its share and no promise, from its first call until it is counted in another epoch (docs/fair.md).
func (l *FairTokenBucket) Promise(rate Rate) (*FairTokenBucket, error) {
	if l.plans == nil {
		return nil, errUnmade
	}
	if err := rate.check(); err != nil {
		return nil, err
	}
	return l.plans.Get(fairPlan{l.plan.weight, rate})
}

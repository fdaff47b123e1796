package ratelimit_test

import (
	"fmt"
	"math/rand/v2"
	"sort"
	"time"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/fairshares"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
)

// families are all algorithms and storages, with a bucket that tenants share. Its keys are those of [limitertest.Keys].
func families() []limitertest.Family { return append(limitertest.Families(), fairFamily()) }

// fairFamily is a bucket that tenants share, as the only tenant of each limit sees it, of any weight and promise. The
// tests name keys by [limitertest.Keys].
func fairFamily() limitertest.Family {
	return limitertest.Family{Name: "FairTokenBucket", Draw: func(rng *rand.Rand, c ratelimit.Client, opts ...ratelimit.Option) (limitertest.Pair, error) {
		burst := 8 * (1 + rng.IntN(20))
		rate := ratelimit.Rate{Count: 1 + rng.IntN(1000), Period: time.Duration(1+rng.IntN(20_000)) * time.Millisecond}
		l, err := ratelimit.NewFairTokenBucket(c, rate, burst, opts...)
		if err != nil {
			return limitertest.Pair{}, err
		}
		weight, parts := 1+rng.IntN(5), []int{0, 2000, 5000, 10_000}[rng.IntN(4)]
		if l, err = l.Weight(weight); err != nil {
			return limitertest.Pair{}, err
		}
		if of, err := l.Promise(ratelimit.Rate{Count: rate.Count, Period: rate.Period * 10_000 / time.Duration(max(parts, 1))}); parts > 0 && err == nil {
			l = of
		} else {
			parts = 0
		}
		return limitertest.Pair{
			About: fmt.Sprintf("%v, burst %d, weight %d, %d parts promised", rate, burst, weight, parts), Limiter: l, Keys: limitertest.Keys{Tenants: true},
			Model: func() model.Model {
				m := newLonelyTenant(rate.Count, rate.Period, burst, weight, parts)
				m.CallersClock = len(opts) > 0
				return m
			},
			Broken: func(taken []model.Taken) string {
				if exceeds, worst := model.ExceedsBucket(taken, rate.Count, rate.Period, burst); exceeds {
					return fmt.Sprintf("%+v", worst)
				}
				return ""
			},
		}, nil
	}}
}

// A lonelyTenant is a limit that tenants share, as one tenant sees it that nobody shares it with: the rule of package
// fairshares, and the fields of a result.
type lonelyTenant struct {
	CallersClock bool

	rule            fairshares.Rule
	weight, promise int64
	limit           fairshares.Limit
	tenant          fairshares.Tenant
}

// newLonelyTenant returns the model of an unused limit. burst is a multiple of 8; promise is in ten-thousandths of the rule.
func newLonelyTenant(count int, period time.Duration, burst, weight, promise int) *lonelyTenant {
	us := period.Microseconds()
	common := int64(count)
	for b := us; b != 0; {
		common, b = b, common%b
	}
	r := fairshares.Rule{Burst: int64(burst), Permit: us / common, Flow: int64(count) / common,
		Kept: int64(burst) / 8 * 3, Spare: int64(burst) / 8, Grain: 1_000_000, Parts: 10_000}
	full := r.Burst * r.Permit
	r.Tau, r.Epoch = full/r.Flow/4, max((full+r.Flow-1)/r.Flow, 1_000_000)
	return &lonelyTenant{rule: r, weight: int64(weight), promise: int64(promise)}
}

// Take implements [model.Model].
func (b *lonelyTenant) Take(now int64, n int, peek bool) model.Answer {
	lag := int64(0)
	if b.CallersClock && b.limit.Exists && now < b.limit.At {
		lag = b.limit.At - now
		now = b.limit.At
	}
	before := *b
	decided := b.rule.Call(&b.limit, &b.tenant, now, int64(n), b.weight, b.promise)
	if peek {
		*b = before
	}
	a := model.Answer{Allowed: decided.Allowed, Limit: int(b.rule.Burst), Window: b.Span(), ByShare: decided.ByShare}
	a.Remaining = sort.Search(b.Max(), func(most int) bool { // one more is denied
		l, t := b.limit, b.tenant
		return !b.rule.Call(&l, &t, now, int64(most)+1, b.weight, b.promise).Allowed
	})
	if missing := b.missing(now); missing > 0 {
		a.ResetAfter = fromMicros((missing+b.rule.Flow-1)/b.rule.Flow + lag)
	}
	if !a.Allowed {
		a.RetryAfter = fromMicros(decided.Retry + lag)
		a.ResetAfter = max(a.ResetAfter, a.RetryAfter)
	}
	return a
}

func (b *lonelyTenant) missing(now int64) int64 {
	return max(b.limit.Missing-max(now-b.limit.At, 0)*b.rule.Flow, 0)
}

// Reset implements [model.Model].
func (b *lonelyTenant) Reset() { b.limit, b.tenant = fairshares.Limit{}, fairshares.Tenant{} }

// Unused implements [model.Model]. A tenant counts for longer than its permits are missing: what its keys hold matters until
// they expire.
func (b *lonelyTenant) Unused(int64) bool { return !b.limit.Exists }

// Max implements [model.Model].
func (b *lonelyTenant) Max() int { return int(b.rule.Burst - b.rule.Spare) }

// Span implements [model.Model].
func (b *lonelyTenant) Span() time.Duration {
	return fromMicros((b.rule.Burst*b.rule.Permit + b.rule.Flow - 1) / b.rule.Flow)
}

func fromMicros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

package limitertest

import (
	"time"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/algorithms"
	"github.com/tryacquire/ratelimit/internal/testing/model"
)

// A Kind is an algorithm, a storage or a way to count, for any limit and window: of a
// bucket, the burst and the time of a full refill.
type Kind struct {
	Name  string
	Build func(c ratelimit.Client, limit int, window time.Duration, o ...ratelimit.Option) (ratelimit.Limiter, error)
	Bound func(limit int, window time.Duration) Bound
	Keys
}

// Kinds are all algorithms, storages and ways to count. The window must divide into ten
// whole milliseconds.
func Kinds() []Kind {
	window := func(limit int, window time.Duration) Bound { return Bound{Limit: limit, Window: window} }
	log := func(slots time.Duration) func(limit int, window time.Duration) Bound {
		return func(limit int, window time.Duration) Bound {
			b := Bound{Limit: limit, Window: window, Rules: []model.Rule{{Limit: limit, Window: window}}}
			if slots > 0 {
				b.Slot = window / slots
			}
			return b
		}
	}
	sliding := func(storage ratelimit.Storage) func(c ratelimit.Client, limit int, window time.Duration, o ...ratelimit.Option) (ratelimit.Limiter, error) {
		return func(c ratelimit.Client, limit int, window time.Duration, o ...ratelimit.Option) (ratelimit.Limiter, error) {
			own := append(o, ratelimit.WithStorage(storage))
			if storage != ratelimit.StorageZSet {
				own = append(own, ratelimit.WithSubWindows(10))
			}
			return ratelimit.NewSlidingWindow(c, limit, window, own...)
		}
	}
	kinds := []Kind{
		{"FixedWindow", func(c ratelimit.Client, limit int, window time.Duration, o ...ratelimit.Option) (ratelimit.Limiter, error) {
			return ratelimit.NewFixedWindow(c, limit, window, o...)
		}, window, Keys{}},
		{"FixedWindow aligned", func(c ratelimit.Client, limit int, window time.Duration, o ...ratelimit.Option) (ratelimit.Limiter, error) {
			return ratelimit.NewFixedWindow(c, limit, window, append(o, ratelimit.WithAlignment(0))...)
		}, window, Keys{}},
		{"SlidingLog", func(c ratelimit.Client, limit int, window time.Duration, o ...ratelimit.Option) (ratelimit.Limiter, error) {
			return ratelimit.NewSlidingLog(c, []ratelimit.Rule{{Limit: limit, Window: window}}, o...)
		}, log(0), Keys{}},
		{"SlidingLog of two rules", func(c ratelimit.Client, limit int, window time.Duration, o ...ratelimit.Option) (ratelimit.Limiter, error) {
			return ratelimit.NewSlidingLog(c, []ratelimit.Rule{{Limit: limit, Window: window}, {Limit: 2 * limit, Window: 3 * window}}, o...)
		}, func(limit int, window time.Duration) Bound {
			return Bound{Limit: 2 * limit, Window: 3 * window, Rules: []model.Rule{{Limit: limit, Window: window}, {Limit: 2 * limit, Window: 3 * window}}}
		}, Keys{}},
		{"TokenBucket", func(c ratelimit.Client, limit int, window time.Duration, o ...ratelimit.Option) (ratelimit.Limiter, error) {
			return ratelimit.NewTokenBucket(c, ratelimit.Per(limit, window), limit, o...)
		}, func(limit int, window time.Duration) Bound { return bucketBound(ratelimit.Per(limit, window), limit) }, Keys{}},
		{"TokenBucket stepped", func(c ratelimit.Client, limit int, window time.Duration, o ...ratelimit.Option) (ratelimit.Limiter, error) {
			return ratelimit.NewTokenBucket(c, ratelimit.Per(limit, window), limit, append(o, ratelimit.WithRefillEvery(window/10))...)
		}, func(limit int, window time.Duration) Bound {
			return steppedBound(ratelimit.Per(limit, window), limit, window/10)
		}, Keys{}},
		{"LeakyBucket", func(c ratelimit.Client, limit int, window time.Duration, o ...ratelimit.Option) (ratelimit.Limiter, error) {
			return ratelimit.NewLeakyBucket(c, ratelimit.Per(limit, window), limit, o...)
		}, func(limit int, window time.Duration) Bound { return bucketBound(ratelimit.Per(limit, window), limit) }, Keys{}},
		{"FairTokenBucket", func(c ratelimit.Client, limit int, window time.Duration, o ...ratelimit.Option) (ratelimit.Limiter, error) {
			return ratelimit.NewFairTokenBucket(c, ratelimit.Per(limit, window), sharedBurst(limit), o...)
		}, func(limit int, window time.Duration) Bound {
			return bucketBound(ratelimit.Per(limit, window), sharedBurst(limit))
		}, Keys{Tenants: true}},
	}
	for i, in := range algorithms.Storages() {
		slots := time.Duration(10)
		if ratelimit.Storage(i) == ratelimit.StorageZSet {
			slots = 0
		}
		kinds = append(kinds, Kind{"SlidingWindow " + in.Storage, sliding(ratelimit.Storage(i)), log(slots), Keys{}})
	}
	return kinds
}

// sharedBurst is the burst of a bucket that tenants share, of which one gets so many permits at once.
func sharedBurst(limit int) int {
	burst := limit
	for burst-(burst+7)/8 < limit {
		burst++
	}
	return burst
}

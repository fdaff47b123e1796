package ratelimit

import (
	"fmt"
	"strings"
	"time"

	"github.com/tryacquire/ratelimit/internal/exact"
	"github.com/tryacquire/ratelimit/internal/gcra"
	"github.com/tryacquire/ratelimit/internal/redisexec"
	"github.com/tryacquire/ratelimit/internal/scripts"
)

// newBucket is the bucket of settings, whose size an error calls the burst or the capacity.
func newBucket(rate Rate, size int, sizeName string, s *settings) (*gcra.Bucket, error) {
	if err := rate.check(); err != nil {
		return nil, err
	}
	if err := checkCount("the "+sizeName, size); err != nil {
		return nil, err
	}
	b := gcra.New(int64(rate.Count), rate.Period, int64(size), s.refillEvery)
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
	a := algorithm{id: id, most: int(b.Size), cost: redisexec.Cost{Key: 8, Run: 1}}
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

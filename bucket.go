package ratelimit

import (
	_ "embed"
	"math/bits"
	"strconv"
	"time"
)

var (
	//go:embed scripts/bucket.lua
	bucketSource string
	//go:embed scripts/steppedbucket.lua
	steppedBucketSource string
	//go:embed scripts/inherit.lua
	inheritSource string
)

// bucket is the arithmetic that the token bucket and the leaky bucket share. It
// counts in units of which a microsecond restores flow and a permit costs
// permit, the rate's period and count without their common factor, so that all
// numbers are whole whatever the rate.
type bucket struct {
	size     int64 // burst or capacity, permits
	permit   int64
	flow     int64
	capacity int64 // size × permit
	window   time.Duration
}

func newBucket(rate Rate, size int, sizeName string) (bucket, error) {
	if err := checkCount("the rate's Count", rate.Count); err != nil {
		return bucket{}, err
	}
	if err := checkSpan("the rate's Period", rate.Period); err != nil {
		return bucket{}, err
	}
	if err := checkCount("the "+sizeName, size); err != nil {
		return bucket{}, err
	}
	count, period := int64(rate.Count), rate.Period.Microseconds()
	common := gcd(count, period)
	b := bucket{size: int64(size), permit: period / common, flow: count / common}
	high, low := bits.Mul64(uint64(b.size), uint64(b.permit))
	if high > 0 || low >= exact/2 {
		return bucket{}, invalidConfig("a %s of %d at %d per %v needs integers beyond what Redis holds exactly; "+
			"lower the %s, or use a rate whose count and period have a larger common factor",
			sizeName, size, rate.Count, rate.Period, sizeName)
	}
	b.capacity = int64(low)
	full := ceilDiv(b.capacity, b.flow)
	if full > maxMicros {
		return bucket{}, invalidConfig("a %s of %d at %d per %v takes more than %v to refill; lower it or raise the rate",
			sizeName, size, rate.Count, rate.Period, micros(maxMicros))
	}
	b.window = micros(full)
	return b, nil
}

// args are the scripts' ARGV.
func (b bucket) args() []string {
	return []string{
		strconv.FormatInt(b.capacity, 10), strconv.FormatInt(b.permit, 10), strconv.FormatInt(b.flow, 10),
	}
}

// unpack reads the units missing before the call, negative when it was denied.
// A granted call can find nothing missing, a denied one cannot.
func (b bucket) unpack(reply int64, words []int64) {
	words[0], words[1] = 1, reply
	if reply < 0 {
		words[0], words[1] = 0, -reply
	}
}

func (b bucket) explain(words []int64, n, i int64) Result {
	r, missing, excess := b.settle(words, n, i)
	r.RetryAfter = micros(ceilDiv(excess, b.flow))
	r.ResetAfter = micros(ceilDiv(missing, b.flow))
	return r
}

// settle fills in what does not depend on how the bucket refills, and tells the
// units missing after the request and, when it is denied, those that have to be
// restored before it fits.
func (b bucket) settle(words []int64, n, i int64) (r Result, missing, excess int64) {
	granted := words[0]
	missing = words[1] + min(i+1, granted)*n*b.permit
	r = Result{
		Allowed:   i < granted,
		Limit:     int(b.size),
		Window:    b.window,
		Remaining: int((b.capacity - missing) / b.permit),
	}
	if !r.Allowed {
		excess = missing + n*b.permit - b.capacity
	}
	return r, missing, excess
}

// stepped is a bucket that refills every so often.
type stepped struct {
	bucket
	every int64 // microseconds
	gain  int64 // units a step restores
}

func newStepped(b bucket, every time.Duration) (stepped, error) {
	s := stepped{bucket: b, every: every.Microseconds()}
	high, low := bits.Mul64(uint64(s.every), uint64(b.flow))
	if high > 0 || low >= exact/2 {
		return stepped{}, invalidConfig("WithRefillEvery: %v at this rate needs integers beyond what Redis holds exactly; "+
			"use a shorter step, or a rate whose count and period have a larger common factor", every)
	}
	s.gain = int64(low)
	steps := ceilDiv(b.capacity, s.gain)
	if steps > maxMicros/s.every {
		return stepped{}, invalidConfig("WithRefillEvery: %v takes more than %v to refill; use a shorter step or a higher rate",
			every, micros(maxMicros))
	}
	s.window = micros(steps * s.every)
	return s, nil
}

func (s stepped) args() []string {
	return append(s.bucket.args(), strconv.FormatInt(s.every, 10))
}

func (s stepped) explain(words []int64, n, i int64) Result {
	r, missing, excess := s.settle(words, n, i)
	since := words[2]
	if excess > 0 {
		r.RetryAfter = micros(ceilDiv(excess, s.gain)*s.every - since)
	}
	r.ResetAfter = micros(ceilDiv(missing, s.gain)*s.every - since)
	return r
}

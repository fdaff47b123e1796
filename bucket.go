package ratelimit

import (
	_ "embed"
	"math/bits"
	"strconv"
	"time"

	"github.com/tryacquire/ratelimit/internal/script"
)

var (
	//go:embed scripts/bucket.lua
	bucketText string
	//go:embed scripts/steppedbucket.lua
	steppedBucketText string

	bucketScripts        = newScripts(script.Parse("bucket.lua", bucketText))
	steppedBucketScripts = newScripts(script.Parse("steppedbucket.lua", steppedBucketText))
)

// bucket is the arithmetic that the token bucket and the leaky bucket share. It
// counts in units, so that all numbers are whole whatever the rate: a microsecond
// restores flow units, and a permit costs permit units. These two are the rate's
// count and its period in microseconds, without their common factor.
type bucket struct {
	size     int64 // burst or capacity, permits
	permit   int64
	flow     int64
	capacity int64 // size × permit
	window   time.Duration
}

// The words of a bucket's reply, after wordAllowed.
const (
	wordMissing = 1 // units missing before the call
	bucketWords = 2

	wordSince    = 2 // where tokens come in steps: microseconds since the last step
	steppedWords = 3
)

// bucketAlgorithm is a bucket that refills evenly.
func bucketAlgorithm(title, id string, b *bucket) algorithm {
	return algorithm{
		title: title, id: id, most: int(b.size),
		scripts: bucketScripts,
		args:    b.args(), words: bucketWords, unpack: b.unpack, explainer: b,
	}
}

func newBucket(rate Rate, size int, sizeName string) (*bucket, error) {
	if err := checkCount("the rate's Count", rate.Count); err != nil {
		return nil, err
	}
	if err := checkSpan("the rate's Period", rate.Period); err != nil {
		return nil, err
	}
	if err := checkCount("the "+sizeName, size); err != nil {
		return nil, err
	}
	count, period := int64(rate.Count), rate.Period.Microseconds()
	common := gcd(count, period)
	b := &bucket{size: int64(size), permit: period / common, flow: count / common}
	high, low := bits.Mul64(uint64(b.size), uint64(b.permit))
	if high > 0 || low >= exact/2 {
		return nil, invalidConfig("a %s of %d at %d per %v needs integers beyond what Redis holds exactly; "+
			"lower the %s, or use a rate whose count and period have a larger common factor",
			sizeName, size, rate.Count, rate.Period, sizeName)
	}
	b.capacity = int64(low)
	full := ceilDiv(b.capacity, b.flow)
	if full > maxMicros {
		return nil, invalidConfig("a %s of %d at %d per %v takes more than %v to refill; lower it or raise the rate",
			sizeName, size, rate.Count, rate.Period, micros(maxMicros))
	}
	b.window = micros(full)
	return b, nil
}

// args are the scripts' ARGV.
func (b *bucket) args() []string {
	return []string{
		strconv.FormatInt(b.capacity, 10), strconv.FormatInt(b.permit, 10), strconv.FormatInt(b.flow, 10),
	}
}

// unpack reads a reply of one integer: the units missing before the call, negative when
// the call was denied. 0 means that it was allowed: of a full bucket no call is denied.
func (b *bucket) unpack(reply int64, words []int64) {
	words[wordAllowed], words[wordMissing] = 1, reply
	if reply < 0 {
		words[wordAllowed], words[wordMissing] = 0, -reply
	}
}

func (b *bucket) look(words []int64) Result {
	r := b.explain(words, 1, 0)
	r.Remaining = int((b.capacity - words[wordMissing]) / b.permit)
	r.ResetAfter = micros(ceilDiv(words[wordMissing], b.flow))
	return r
}

func (b *bucket) explain(words []int64, n, i int64) Result {
	missing, excess := b.settle(words, n, i)
	return b.result(i < words[wordAllowed], missing, ceilDiv(excess, b.flow), ceilDiv(missing, b.flow))
}

// settle returns the units missing after request i and, when the request is denied, the
// units that have to be restored before it fits.
func (b *bucket) settle(words []int64, n, i int64) (missing, excess int64) {
	allowed := words[wordAllowed]
	missing = words[wordMissing] + min(i+1, allowed)*n*b.permit
	if i >= allowed {
		excess = missing + n*b.permit - b.capacity
	}
	return missing, excess
}

// result takes retry and reset in microseconds.
func (b *bucket) result(allowed bool, missing, retry, reset int64) Result {
	return Result{
		Allowed:    allowed,
		Limit:      int(b.size),
		Window:     b.window,
		Remaining:  int((b.capacity - missing) / b.permit),
		RetryAfter: micros(retry),
		ResetAfter: micros(reset),
	}
}

// stepped is a bucket that refills in steps.
type stepped struct {
	*bucket
	every int64 // microseconds between two steps
	gain  int64 // units that a step restores
}

// steppedAlgorithm is a bucket that refills in steps.
func steppedAlgorithm(title, id string, s *stepped) algorithm {
	return algorithm{
		title: title, id: id, most: int(s.size),
		scripts: steppedBucketScripts,
		args:    s.args(), words: steppedWords, explainer: s,
	}
}

func newStepped(rate Rate, size int, sizeName string, every time.Duration) (*stepped, error) {
	b, err := newBucket(rate, size, sizeName)
	if err != nil {
		return nil, err
	}
	s := &stepped{bucket: b, every: every.Microseconds()}
	high, low := bits.Mul64(uint64(s.every), uint64(b.flow))
	if high > 0 || low >= exact/2 {
		return nil, invalidConfig("WithRefillEvery: %v at this rate needs integers beyond what Redis holds exactly; "+
			"use a shorter step, or a rate whose count and period have a larger common factor", every)
	}
	s.gain = int64(low)
	steps := ceilDiv(b.capacity, s.gain)
	if steps > maxMicros/s.every {
		return nil, invalidConfig("WithRefillEvery: %v takes more than %v to refill; use a shorter step or a higher rate",
			every, micros(maxMicros))
	}
	s.window = micros(steps * s.every)
	return s, nil
}

func (s *stepped) args() []string {
	return append(s.bucket.args(), strconv.FormatInt(s.every, 10))
}

func (s *stepped) look(words []int64) Result {
	r := s.explain(words, 1, 0)
	r.Remaining = int((s.capacity - words[wordMissing]) / s.permit)
	r.ResetAfter = micros(max(ceilDiv(words[wordMissing], s.gain)*s.every-words[wordSince], 0))
	return r
}

func (s *stepped) explain(words []int64, n, i int64) Result {
	missing, excess := s.settle(words, n, i)
	since, retry := words[wordSince], int64(0)
	if excess > 0 {
		retry = ceilDiv(excess, s.gain)*s.every - since
	}
	return s.result(i < words[wordAllowed], missing, retry, ceilDiv(missing, s.gain)*s.every-since)
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// ceilDiv is a/b rounded up, for a ≥ 0 and b > 0.
func ceilDiv(a, b int64) int64 {
	q := a / b
	if a%b > 0 {
		q++
	}
	return q
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

package ratelimit

import (
	_ "embed"
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tryacquire/ratelimit/internal/redisexec"
	"github.com/tryacquire/ratelimit/internal/script"
)

var (
	//go:embed scripts/bucket.lua
	bucketText string
	//go:embed scripts/steppedbucket.lua
	steppedBucketText string
	//go:embed scripts/bucket_rules.lua
	bucketRulesText string

	bucketRules = script.Parse("bucket_rules.lua", bucketRulesText)

	bucketFile = script.Parse("bucket.lua", script.Include(bucketText, bucketRules))
	// By the caller's clock the reply is words, because it includes the clock's lag.
	bucketScripts = newScriptsOf(bucketFile, bucketFile.AnswerInWords())
	// A reply of one integer does not hold what another rule's state says.
	bucketInWords        = sync.OnceValue(func() *script.Script { return bucketFile.AnswerInWords().Script() })
	steppedBucketScripts = newScripts(script.Parse("steppedbucket.lua", script.Include(steppedBucketText, bucketRules)))
)

// bucket is the arithmetic that the token bucket and the leaky bucket share. It counts
// in permits and units, so that all numbers are whole whatever the rate: a microsecond
// restores flow units, and a permit is as many units as permit says. These two are the
// rate's count and its period in microseconds, without their common factor.
type bucket struct {
	limit  int64 // burst or capacity, permits
	size   int64 // what of it this limiter may use, see WithHeadroom
	permit int64
	flow   int64
	every  int64 // microseconds between two steps; 1 if the refill is even
	window time.Duration

	exactly bool // see WithExactReturns
}

// A level is how much a bucket is short of: whole permits, and units beyond them.
type level struct{ permits, units int64 }

func newBucket(rate Rate, size int, sizeName string, every time.Duration) (*bucket, error) {
	if err := rate.check(); err != nil {
		return nil, err
	}
	if err := checkCount("the "+sizeName, size); err != nil {
		return nil, err
	}
	b := bucketOf(int64(rate.Count), rate.Period, int64(size), every)
	if b.window > micros(maxMicros) {
		return nil, tooSlow(rate, size, sizeName, every)
	}
	return b, nil
}

// bucketOf is a bucket of any rate and size, however long it takes to refill.
func bucketOf(count int64, period time.Duration, size int64, every time.Duration) *bucket {
	common := gcd(count, period.Microseconds())
	b := &bucket{limit: size, size: size, permit: period.Microseconds() / common, flow: count / common, every: max(every.Microseconds(), 1)}
	b.window = micros(b.restores(level{permits: size}))
	return b
}

// set applies WithHeadroom and WithExactReturns.
func (b *bucket) set(s *settings, sizeName string) error {
	b.size -= int64(s.headroom)
	b.exactly = s.exactly
	return s.checkHeadroom(sizeName, int(b.limit))
}

// tooSlow is the error for a bucket that takes too long to refill. It names the largest
// size and the lowest rate that do not.
func tooSlow(rate Rate, size int, sizeName string, every time.Duration) error {
	if every > micros(maxMicros) {
		return invalidConfig("WithRefillEvery: %v is more than %v; use a shorter step", every, micros(maxMicros))
	}
	inTime := func(count, size int64) bool {
		return bucketOf(count, rate.Period, size, every).window <= micros(maxMicros)
	}
	var remedies []string
	if largest := greatest(int64(size), func(n int64) bool { return inTime(int64(rate.Count), n) }); largest > 0 {
		remedies = append(remedies, fmt.Sprintf("lower the %s to at most %d", sizeName, largest))
	}
	if more := greatest(maxCount-int64(rate.Count), func(n int64) bool { return inTime(maxCount+1-n, int64(size)) }); more > 0 {
		remedies = append(remedies, fmt.Sprintf("raise the rate to at least %d per %v", maxCount+1-more, rate.Period))
	}
	if remedies == nil {
		remedies = []string{"use a shorter period"}
	}
	return invalidConfig("a %s of %d at %d per %v takes more than %v to refill; %s",
		sizeName, size, rate.Count, rate.Period, micros(maxMicros), strings.Join(remedies, ", or "))
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

// evenUnits bounds the capacity of a bucket whose state is one number, so that a debt of
// fifteen times as much fits beside it.
const evenUnits = exact / 32

// returnExactly makes the block giveback give back only what a bucket cannot have refilled.
const returnExactly = 1

// bucketAlgorithm is what runs b on Redis. mark is that of the clock in its states.
func bucketAlgorithm(title, id string, b *bucket, mark string) algorithm {
	a := algorithm{title: title, id: id, most: int(b.size), cost: redisexec.Cost{Key: 8, Run: 1}, bucket: b}
	a.which = func(int64, int64) int64 { return 0 }
	if b.exactly {
		a.which = func(int64, int64) int64 { return returnExactly }
	}
	if high, capacity := bits.Mul64(uint64(b.limit), uint64(b.permit)); b.every == 1 && high == 0 && capacity < evenUnits {
		e := evenBucket{b}
		a.large = &algorithm{
			scripts: steppedBucketScripts, words: steppedWords, explainer: steppedBucket{b}, args: steppedArgs(b, mark), longest: b.longestInSteps(),
		}
		a.longest = (exact/2 - 1 - b.size*b.permit) / b.flow // the units of the capacity and the debt are below 2^52
		a.scripts, a.words, a.explainer = bucketScripts, evenWords, e
		a.args = withRule(integers(b.size*b.permit, b.permit, b.flow), mark)
		if mark == "" {
			a.unpack, a.inWords = e.unpack, bucketInWords
		}
	} else {
		a.scripts, a.words, a.explainer = steppedBucketScripts, steppedWords, steppedBucket{b}
		a.args, a.longest = steppedArgs(b, mark), b.longestInSteps()
	}
	return a
}

// longestInSteps is the longest wait of a reservation by steppedbucket.lua: the permits of the debt
// are at most 2^51.
func (b *bucket) longestInSteps() int64 {
	if b.permit >= b.flow {
		return maxMicros
	}
	high, low := bits.Mul64(maxMicros, uint64(b.permit))
	longest, _ := bits.Div64(high, low, uint64(b.flow))
	return int64(longest)
}

// steppedArgs are the arguments of steppedbucket.lua.
func steppedArgs(b *bucket, mark string) []string {
	return withRule(integers(b.size, b.permit, b.flow, b.every), mark)
}

// withRule adds the rule as it stands in a state: all numbers but the first.
func withRule(args []string, mark string) []string {
	return append(args, "/"+strings.Join(args[1:], "/")+mark)
}

func integers(all ...int64) []string {
	texts := make([]string, len(all))
	for i, n := range all {
		texts[i] = strconv.FormatInt(n, 10)
	}
	return texts
}

// The words of a reply of bucket.lua, after wordAllowed.
const (
	wordMissing = 1 // units missing before the run
	wordLate    = 2 // microseconds of the clock's lag, or until another rule's state lets the request fit
	wordFull    = 3 // microseconds until another rule's state is full, or 0
	evenWords   = 4
)

// evenBucket explains the replies of bucket.lua.
type evenBucket struct{ *bucket }

// unpack reads a reply of one integer: the units missing before the call, negative when
// the call was denied. 0 means that it was allowed: of a full bucket no call is denied.
func (b evenBucket) unpack(reply int64, words []int64) {
	words[wordAllowed], words[wordMissing] = 1, reply
	if reply < 0 {
		words[wordAllowed], words[wordMissing] = 0, -reply
	}
}

func (b evenBucket) explain(words []int64, n, taken int64, allowed bool) Result {
	missing := level{words[wordMissing] / b.permit, words[wordMissing] % b.permit}
	if full := words[wordFull]; full > 0 && taken == 0 {
		return b.beside(missing, allowed, words[wordLate], full)
	}
	return b.result(missing, n, taken, allowed, words[wordLate])
}

// The words of a reply of steppedbucket.lua, after wordAllowed.
const (
	wordMissingPermits = 1 // missing before the run
	wordMissingUnits   = 2
	wordSince          = 3 // microseconds since the last step, less the clock's lag; or minus those until another rule's state is full
	wordWait           = 4 // microseconds until another rule's state lets the request fit, or 0
	steppedWords       = 5
)

// steppedBucket explains the replies of steppedbucket.lua.
type steppedBucket struct{ *bucket }

func (b steppedBucket) explain(words []int64, n, taken int64, allowed bool) Result {
	missing := level{words[wordMissingPermits], words[wordMissingUnits]}
	if wait := words[wordWait]; wait > 0 && taken == 0 {
		return b.beside(missing, allowed, wait, -words[wordSince])
	}
	return b.result(missing, n, taken, allowed, -words[wordSince])
}

// result is the answer to a request for n permits. missing is what was missing before the
// run. taken: the run's permits so far, with this request's. late is added to every time until
// something is restored.
func (b *bucket) result(missing level, n, taken int64, allowed bool, late int64) Result {
	missing.permits += taken
	r := b.left(missing)
	r.Allowed = allowed
	if missing != (level{}) {
		r.ResetAfter = micros(b.restores(missing) + late)
	}
	if !allowed {
		r.RetryAfter = micros(max(b.restores(level{missing.permits + n - b.size, missing.units})+late, 1))
		r.ResetAfter = max(r.ResetAfter, r.RetryAfter)
	}
	return r
}

// beside is the answer to a request that has taken nothing, while the state is one of another
// rule: the microseconds until the request fits and until the bucket is full count by the
// faster of the two rules, which the reply does not name.
func (b *bucket) beside(missing level, allowed bool, wait, full int64) Result {
	r := b.left(missing)
	r.Allowed = allowed
	r.ResetAfter = micros(max(full, 0))
	if !allowed {
		r.RetryAfter = micros(max(wait, 1))
		r.ResetAfter = max(r.ResetAfter, r.RetryAfter)
	}
	return r
}

// left is a Result that says what is left.
func (b *bucket) left(missing level) Result {
	return Result{Limit: int(b.limit), Window: b.window, Remaining: int(max(b.size-missing.ceil(), 0))}
}

// ceil is l in whole permits, rounded up.
func (l level) ceil() int64 {
	if l.units > 0 {
		return l.permits + 1
	}
	return l.permits
}

// minus is what is missing of l after b has refilled for passed microseconds, evenly.
func (b *bucket) minus(l level, passed int64) level {
	high, low := bits.Mul64(uint64(passed), uint64(b.flow))
	if high >= uint64(b.permit) {
		return level{}
	}
	permits, units := bits.Div64(high, low, uint64(b.permit))
	if permits > uint64(l.permits) {
		return level{}
	}
	l.permits -= int64(permits)
	l.units -= int64(units)
	if l.units < 0 {
		l.permits, l.units = l.permits-1, l.units+b.permit
	}
	if l.permits < 0 {
		return level{}
	}
	return l
}

// restores is how many microseconds b takes to restore l, counted from a step. Beyond 2^53
// it is not exact: no bucket and no debt takes as long.
func (b *bucket) restores(l level) int64 {
	high, low := bits.Mul64(uint64(max(l.permits, 0)), uint64(b.permit))
	low, carry := bits.Add64(low, uint64(max(l.units, 0)), 0)
	high += carry
	if high >= uint64(b.flow) {
		return exact
	}
	full, rest := bits.Div64(high, low, uint64(b.flow))
	if full >= exact {
		return exact
	}
	if rest > 0 {
		full++
	}
	return ceilDiv(int64(full), b.every) * b.every
}

// micros is n microseconds, or the longest Duration, 292 years.
func micros(n int64) time.Duration {
	return time.Duration(min(n, math.MaxInt64/int64(time.Microsecond))) * time.Microsecond
}

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

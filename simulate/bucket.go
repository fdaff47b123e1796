package simulate

import (
	"math/bits"
	"time"

	"github.com/tryacquire/ratelimit"
)

// A bucket counts what is missing of it, in permits and in units, so that all numbers are
// whole: a microsecond restores flow units, and one permit is permit units.
// These two are the rate's count and its period in microseconds, without their common
// factor. What is restored comes in steps that are every microseconds apart: a continuous
// refill has steps of one microsecond.
type bucket struct {
	size, permit, flow, every int64
	window                    time.Duration // to restore all
}

// A level is what is missing: permits, and less than a permit's units beyond them.
type level struct{ permits, units int64 }

// A bucketState is what was missing at an instant: at the last step before permits were last
// taken.
type bucketState struct {
	missing level // the zero level: never used, or full
	at      int64
}

func newBucket(rate ratelimit.Rate, size int, every time.Duration) bucket {
	count, period := int64(rate.Count), rate.Period.Microseconds()
	common := gcd(count, period)
	b := bucket{size: int64(size), permit: period / common, flow: count / common, every: max(every.Microseconds(), 1)}
	b.window = micros(b.restores(level{permits: b.size}))
	return b
}

func (b bucket) decide(s *bucketState, now, n int64, peek bool) ratelimit.Result {
	missing, at := b.load(s, now)
	repaired := s.missing != level{} && now < s.at

	r := ratelimit.Result{Limit: int(b.size), Window: b.window}
	wanted := level{missing.permits + n, missing.units}
	if r.Allowed = wanted.ceil() <= b.size; r.Allowed && !peek {
		missing = wanted
	}
	if !r.Allowed {
		r.RetryAfter = micros(b.restores(level{wanted.permits - b.size, wanted.units}) + at - now)
	}
	r.Remaining = int(b.size - missing.ceil())
	if missing != (level{}) {
		r.ResetAfter = micros(b.restores(missing) + at - now)
	}
	if !peek && (r.Allowed || repaired) {
		s.missing, s.at = missing, at
	}
	return r
}

// load is what is missing at now, and the instant of the last step. If the clock was set back,
// that is now; and if nothing is missing, because the next permits begin a new row of steps.
func (b bucket) load(s *bucketState, now int64) (missing level, at int64) {
	if now <= s.at {
		return s.missing, now
	}
	steps := (now - s.at) / b.every
	if missing = b.minus(s.missing, steps*b.every); missing == (level{}) {
		return missing, now
	}
	return missing, s.at + steps*b.every
}

func (b bucket) unused(s *bucketState, now int64) bool {
	missing, _ := b.load(s, now)
	return missing == level{}
}

// minus is what is missing of l after passed microseconds.
func (b bucket) minus(l level, passed int64) level {
	high, low := bits.Mul64(uint64(passed), uint64(b.flow))
	if high >= uint64(b.permit) {
		return level{}
	}
	permits, units := bits.Div64(high, low, uint64(b.permit))
	if permits > uint64(l.permits) {
		return level{}
	}
	l.permits -= int64(permits)
	if l.units -= int64(units); l.units < 0 {
		l.permits, l.units = l.permits-1, l.units+b.permit
	}
	if l.permits < 0 {
		return level{}
	}
	return l
}

// restores is how many microseconds b takes to restore l, counted from a step. It is below
// 2^52, because no bucket takes longer to be restored.
func (b bucket) restores(l level) int64 {
	high, low := bits.Mul64(uint64(l.permits), uint64(b.permit))
	low, carry := bits.Add64(low, uint64(l.units), 0)
	full, rest := bits.Div64(high+carry, low, uint64(b.flow))
	if rest > 0 {
		full++
	}
	return (int64(full) + b.every - 1) / b.every * b.every
}

// ceil is l in whole permits, rounded up.
func (l level) ceil() int64 {
	if l.units > 0 {
		return l.permits + 1
	}
	return l.permits
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

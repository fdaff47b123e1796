package model

import (
	"math/big"
	"time"
)

// A SteppedBucket is a token bucket whose tokens arrive in steps, at equal intervals. The
// intervals count from the instant at which permits were taken from the full bucket. The
// step that fills the bucket is the last one; the next permits taken begin a new cycle.
//
// Its state is a level and its instant, the last step that came before permits were last
// taken. When the clock is set back to a time earlier than that instant, the level stays
// and the instant becomes now.
type SteppedBucket struct {
	burst int
	every int64    // microseconds between two steps
	step  *big.Rat // tokens that a step brings
	level *big.Rat // nil: never used
	last  int64    // instant of the last step, or of the beginning of the cycle
}

// NewSteppedBucket returns the model of an unused key.
func NewSteppedBucket(count int, period time.Duration, burst int, every time.Duration) *SteppedBucket {
	checkPositive("count", count)
	checkPositive("period", period)
	checkPositive("burst", burst)
	checkPositive("every", every)
	return &SteppedBucket{
		burst: burst,
		every: wholeMicros("every", every),
		step:  quo(mul(rat(int64(count)), ratMicros(every)), ratMicros(period)),
	}
}

// Take implements [Model].
func (b *SteppedBucket) Take(now int64, n int, peek bool) Answer {
	checkPermits(n, b.burst)
	level, last, repaired := b.load(now)
	answer := Answer{Limit: b.burst, Window: b.Span()}

	want := rat(int64(n))
	if less(level, want) {
		answer.RetryAfter = micros(last + b.steps(level, want)*b.every - now)
	} else {
		answer.Allowed = true
		level = sub(level, want)
	}
	answer.Remaining = int(floor(level))
	answer.ResetAfter = micros(last + b.steps(level, rat(int64(b.burst)))*b.every - now)
	if !peek && (answer.Allowed || repaired) {
		b.level, b.last = level, last
	}
	return answer
}

// load returns the level at now, the instant of the last step up to now, and whether the
// clock was set back to a time earlier than the stored instant. For a full bucket the
// instant is now, because taking permits would begin a cycle.
func (b *SteppedBucket) load(now int64) (level *big.Rat, last int64, repaired bool) {
	full := rat(int64(b.burst))
	switch {
	case b.level == nil:
		return full, now, false
	case now < b.last:
		return b.level, now, true
	}
	steps := (now - b.last) / b.every
	level = add(b.level, mul(rat(steps), b.step))
	if !less(level, full) {
		return full, now, false
	}
	return level, b.last + steps*b.every, false
}

// steps is how many steps raise the level from have to want.
func (b *SteppedBucket) steps(have, want *big.Rat) int64 {
	return ceil(quo(sub(want, have), b.step))
}

// Reset implements [Model].
func (b *SteppedBucket) Reset() { b.level = nil }

// Unused implements [Model].
func (b *SteppedBucket) Unused(now int64) bool {
	level, _, _ := b.load(now)
	return !less(level, rat(int64(b.burst)))
}

// Max implements [Model].
func (b *SteppedBucket) Max() int { return b.burst }

// Span implements [Model].
func (b *SteppedBucket) Span() time.Duration {
	return micros(b.steps(rat(0), rat(int64(b.burst))) * b.every)
}

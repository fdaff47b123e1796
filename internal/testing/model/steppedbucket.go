package model

import (
	"math/big"
	"time"
)

// A SteppedBucket is a token bucket whose tokens arrive in steps, at equal intervals. The
// intervals count from the instant at which permits were taken from the full bucket. The
// step that fills the bucket is the last one; the next permits taken begin a new cycle.
//
// Aligned steps come at given instants instead. Then the instant of the state is that of the
// last take. When the clock is set back to before a step that has come, its tokens leave the
// bucket until it comes again.
//
// Its state is a level and its instant, the last step that came before permits were last
// taken. When the clock is set back to a time earlier than that instant, the level stays
// and the instant becomes now. By the caller's clock, the call is decided at the state's
// instant instead.
type SteppedBucket struct {
	CallersClock bool
	ExactReturns bool // see GiveBack

	burst int
	every int64    // microseconds between two steps
	step  *big.Rat // tokens that a step brings
	level *big.Rat // below 0 while permits are reserved; nil: never used
	last  int64    // instant of the state
	changes

	aligned bool
	offset  int64 // of aligned steps, from 1970
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

// Align makes the steps of b aligned.
func (b *SteppedBucket) Align(offset time.Duration) *SteppedBucket {
	b.aligned, b.offset = true, offset.Microseconds()
	return b
}

// Take implements [Model].
func (b *SteppedBucket) Take(now int64, n int, peek bool) Answer {
	checkPermits(n, b.burst)
	return b.decide(now, n, peek, false)
}

// decide is Take. If charge is true, the permits are taken whether they are there or not.
func (b *SteppedBucket) decide(now int64, n int, peek, charge bool) Answer {
	answer, _ := b.take(now, n, peek, longest(charge))
	return answer
}

// Reserve implements [Reserver].
func (b *SteppedBucket) Reserve(now int64, n int, longest int64) (answer Answer, due int64, cancel func()) {
	checkPositive("permits", n)
	before := *b
	answer, due = b.take(now, n, false, longest)
	restore := func() { *b = before }
	if !answer.Allowed {
		return answer, due, restore
	}
	return answer, due, b.reserved(due, before.changes, restore)
}

// take allows the call if n tokens are there within longest.
func (b *SteppedBucket) take(now int64, n int, peek bool, longest int64) (answer Answer, due int64) {
	present, repaired := now, false
	if b.level != nil {
		present, repaired = b.presentAt(now)
	}
	level, last := b.load(present)
	answer = Answer{Limit: b.burst, Window: b.Span()}

	want := rat(int64(n))
	if less(level, want) {
		due = last + b.steps(level, want)*b.every - now
	}
	answer.Allowed = due <= longest
	if !answer.Allowed {
		answer.RetryAfter = micros(due)
	} else if !peek {
		level = sub(level, want)
	}
	answer.Remaining = int(max(floor(level), 0))
	if less(level, rat(int64(b.burst))) {
		answer.ResetAfter = micros(last + b.steps(level, rat(int64(b.burst)))*b.every - now)
	}
	switch {
	case peek:
	case b.aligned && answer.Allowed:
		b.level, b.last = level, present
		b.change()
	case b.aligned && repaired:
		b.last = b.next(now)
		b.change()
	case answer.Allowed || repaired:
		b.level, b.last = level, last
		b.change()
	}
	return answer, due
}

// presentAt is the instant at which a call is decided, and whether the clock was set back so far that the state changes.
func (b *SteppedBucket) presentAt(now int64) (present int64, repaired bool) {
	present, repaired = presentAt(now, b.last, b.CallersClock)
	return present, repaired && (!b.aligned || b.last > b.next(now))
}

// next is the first aligned step after now.
func (b *SteppedBucket) next(now int64) int64 {
	return (floorDiv(now-b.offset, b.every)+1)*b.every + b.offset
}

// load returns the level at now, and the instant of the last step up to now, which is now
// if the clock was set back. For a full bucket it is now too, because taking permits
// would begin a cycle.
func (b *SteppedBucket) load(now int64) (level *big.Rat, last int64) {
	full := rat(int64(b.burst))
	if b.aligned {
		last = b.next(now) - b.every
		if b.level == nil {
			return full, last
		}
		came := max((last-b.next(b.last))/b.every+1, -1) // steps since the state
		if level = add(b.level, mul(rat(came), b.step)); less(full, level) {
			level = full
		}
		return level, last
	}
	switch {
	case b.level == nil:
		return full, now
	case now < b.last:
		return b.level, now
	}
	steps := (now - b.last) / b.every
	level = add(b.level, mul(rat(steps), b.step))
	if !less(level, full) {
		return full, now
	}
	return level, b.last + steps*b.every
}

// steps is how many steps raise the level from have to want.
func (b *SteppedBucket) steps(have, want *big.Rat) int64 {
	return ceil(quo(sub(want, have), b.step))
}

// Reset implements [Model].
func (b *SteppedBucket) Reset() {
	b.level = nil
	b.change()
}

// Unused implements [Model].
func (b *SteppedBucket) Unused(now int64) bool {
	level, _ := b.load(now)
	return !less(level, rat(int64(b.burst)))
}

// Max implements [Model].
func (b *SteppedBucket) Max() int { return b.burst }

// Span implements [Model].
func (b *SteppedBucket) Span() time.Duration {
	return micros(b.steps(rat(0), rat(int64(b.burst))) * b.every)
}

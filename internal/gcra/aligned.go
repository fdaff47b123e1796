package gcra

import (
	"math/bits"
	"time"
)

// Align makes the steps of b come at the multiples of their distance since 1970 plus offset, rather than count from the
// first permit that leaves it less than full.
func (b *Bucket) Align(offset time.Duration) {
	b.aligned, b.offset = true, modulo(offset.Microseconds(), b.every)
}

// Last is the last aligned step up to now; if b has none, now.
func (b *Bucket) Last(now int64) int64 {
	if !b.aligned {
		return now
	}
	return now - modulo(now-b.offset, b.every)
}

// Latest is the latest instant that a state can have at now. A state that is dated later shows that the clock was set
// back: then it is dated at Latest. Of aligned steps it is the next one, which then has been counted already.
func (b *Bucket) Latest(now int64) int64 {
	if !b.aligned {
		return now
	}
	return b.Last(now) + b.every
}

// Dated is the instant of the state that a take at now writes, if last was the last step.
func (b *Bucket) Dated(last, now int64) int64 {
	if b.aligned {
		return now
	}
	return last
}

// Again is what is missing before an aligned step that comes again, if l is missing after it.
func (b *Bucket) Again(l Level) Level {
	if !b.aligned {
		return l
	}
	high, low := bits.Mul64(uint64(b.every), uint64(b.flow))
	permits, units := uint64(1<<52), uint64(0) // as the script has it: no number holds such a step
	if high < uint64(b.permit) {
		permits, units = bits.Div64(high, low, uint64(b.permit))
		permits = min(permits, 1<<52)
	}
	l.Permits += int64(permits)
	if l.Units += int64(units); l.Units >= b.permit {
		l.Permits, l.Units = l.Permits+1, l.Units-b.permit
	}
	return l
}

// modulo is n modulo d, from 0 up.
func modulo(n, d int64) int64 { return (n%d + d) % d }

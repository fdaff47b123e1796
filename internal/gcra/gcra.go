// Package gcra is the arithmetic of buckets that refill at a rate (the generic cell rate algorithm, ITU-T I.371).
package gcra

import (
	"math/bits"
	"time"

	"github.com/tryacquire/ratelimit/internal/exact"
)

// A Bucket counts in permits and units, so that all numbers are whole whatever the rate: a
// microsecond restores flow units, and a permit is as many units as permit says. These two are the
// rate's count and its period in microseconds, without their common factor.
type Bucket struct {
	Limit  int64         // burst or capacity, permits
	Size   int64         // what of it can be used
	Window time.Duration // in which all of it is restored

	permit, flow int64
	every        int64 // microseconds between two steps; 1 if the refill is even
	aligned      bool  // steps are at the multiples of every since 1970 plus offset, microseconds below every
	offset       int64
}

// A Level is what is missing of a bucket: whole permits, and units beyond them.
type Level struct{ Permits, Units int64 }

// New returns a bucket of so many permits that restores count of them in each period, in steps that are
// every apart, or evenly if that is 0. It may take however long to refill.
func New(count int64, period time.Duration, size int64, every time.Duration) *Bucket {
	common := gcd(count, period.Microseconds())
	b := &Bucket{Limit: size, Size: size, permit: period.Microseconds() / common, flow: count / common, every: max(every.Microseconds(), 1)}
	b.Window = exact.Duration(b.Restores(Level{Permits: size}))
	return b
}

// Ceil is l in whole permits, rounded up.
func (l Level) Ceil() int64 {
	if l.Units > 0 {
		return l.Permits + 1
	}
	return l.Permits
}

// Plus is l with so many permits more missing.
func (l Level) Plus(permits int64) Level { return Level{l.Permits + permits, l.Units} }

// Minus is what is missing of l after b has refilled for passed microseconds, evenly.
func (b *Bucket) Minus(l Level, passed int64) Level {
	high, low := bits.Mul64(uint64(passed), uint64(b.flow))
	if high >= uint64(b.permit) {
		return Level{}
	}
	permits, units := bits.Div64(high, low, uint64(b.permit))
	if permits > uint64(l.Permits) {
		return Level{}
	}
	l.Permits -= int64(permits)
	l.Units -= int64(units)
	if l.Units < 0 {
		l.Permits, l.Units = l.Permits-1, l.Units+b.permit
	}
	if l.Permits < 0 {
		return Level{}
	}
	return l
}

// Steps is how many microseconds the whole steps last that end within passed microseconds after a step.
func (b *Bucket) Steps(passed int64) int64 { return passed / b.every * b.every }

// Restores is how many microseconds b takes to restore l, counted from a step. Beyond 2^53
// it is not exact: no bucket and no debt takes as long.
func (b *Bucket) Restores(l Level) int64 {
	high, low := bits.Mul64(uint64(max(l.Permits, 0)), uint64(b.permit))
	low, carry := bits.Add64(low, uint64(max(l.Units, 0)), 0)
	high += carry
	if high >= uint64(b.flow) {
		return exact.Bound
	}
	full, rest := bits.Div64(high, low, uint64(b.flow))
	if full >= exact.Bound {
		return exact.Bound
	}
	if rest > 0 {
		full++
	}
	return exact.CeilDiv(int64(full), b.every) * b.every
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

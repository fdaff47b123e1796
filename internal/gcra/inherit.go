package gcra

import (
	"math/bits"

	"github.com/tryacquire/ratelimit/internal/exact"
)

// RefillsAs reports whether a Level counts the same by both, at all times.
func (b *Bucket) RefillsAs(other *Bucket) bool {
	return b.permit == other.permit && b.flow == other.flow
}

// fasterThan compares the rates.
func (b *Bucket) fasterThan(other *Bucket) bool {
	high, low := bits.Mul64(uint64(b.flow), uint64(other.permit))
	otherHigh, otherLow := bits.Mul64(uint64(other.flow), uint64(b.permit))
	return high > otherHigh || high == otherHigh && low > otherLow
}

// An Inheritance is how a rule counts what another one has written, as the block inherit of scripts/bucket_rules.lua does:
// until a call is allowed, a key goes on by the faster of the two, and what is promised to waiters comes back by the
// writer's rule only.
type Inheritance struct {
	rule, writer *Bucket
	promised     int64 // microseconds for which only the writer's rule counts
	age          int64 // since then; below 0 while permits are promised
}

// Inherit is how b counts at present what writer wrote at an instant. due is when the last promised permit is due.
func (b *Bucket) Inherit(writer *Bucket, at, due, present int64) Inheritance {
	i := Inheritance{rule: b, writer: writer}
	if due > at && b.fasterThan(writer) {
		i.promised = due - at
	}
	i.age = present - at - i.promised
	return i
}

// own is l in units of the rule, rounded up.
func (i Inheritance) own(l Level) Level {
	high, low := bits.Mul64(uint64(l.Units), uint64(i.rule.permit))
	units, rest := bits.Div64(high, low, uint64(i.writer.permit)) // units are less than a permit
	if rest > 0 {
		units++
	}
	if units == uint64(i.rule.permit) {
		return Level{l.Permits + 1, 0}
	}
	return Level{l.Permits, int64(units)}
}

// Missing is what l has become.
func (i Inheritance) Missing(l Level) Level {
	if l == (Level{}) {
		return l
	}
	l = i.writer.Minus(l, i.promised)
	if i.age < 0 {
		return i.rule.plus(i.own(l), -i.age)
	}
	own, theirs := i.rule.Minus(i.own(l), i.age), i.own(i.writer.Minus(l, i.age))
	if own.Permits < theirs.Permits || own.Permits == theirs.Permits && own.Units < theirs.Units {
		return own
	}
	return theirs
}

// Wait is how many microseconds it takes until n permits fit beside l, by the faster of the two rules.
func (i Inheritance) Wait(l Level, n int64) int64 {
	l = i.writer.Minus(l, i.promised)
	own, room := i.own(l), i.rule.Size-n
	if own.Permits < room { // they fit before the last promised permit is due
		high, low := bits.Mul64(uint64(room-own.Permits), uint64(i.rule.permit))
		low, borrow := bits.Sub64(low, uint64(own.Units), 0)
		early, _ := bits.Div64(min(high-borrow, uint64(i.rule.flow)-1), low, uint64(i.rule.flow))
		return -i.age - int64(min(early, exact.Bound))
	}
	return min(i.rule.Restores(Level{own.Permits - room, own.Units}), i.writer.Restores(Level{l.Permits - room, l.Units})) - i.age
}

// plus is what was missing of l before b had refilled for passed microseconds.
func (b *Bucket) plus(l Level, passed int64) Level {
	high, low := bits.Mul64(uint64(passed), uint64(b.flow))
	if high >= uint64(b.permit) {
		return Level{Permits: exact.Bound}
	}
	permits, units := bits.Div64(high, low, uint64(b.permit))
	l.Permits += int64(min(permits, exact.Bound))
	if l.Units += int64(units); l.Units >= b.permit {
		l.Permits, l.Units = l.Permits+1, l.Units-b.permit
	}
	return l
}

package model

import (
	"math/big"
	"time"
)

// A LeakyBucket starts empty and drains count per period, continuously. n
// permits are poured in when they fit under the capacity.
//
// It decides as a [TokenBucket] does, but is written differently on purpose: its state
// is the instant at which it is empty again, and the instant up to which it has drained.
// What is in the bucket is what drains from the one to the other. When the clock is set
// back, both move back with it. By the caller's clock, time stands still until the caller
// has caught up.
type LeakyBucket struct {
	CallersClock bool
	ExactReturns bool // see GiveBack

	capacity int
	rate     *big.Rat // permits that drain in a microsecond
	empty    *big.Rat // nil: never used
	drained  int64
	changes
}

// NewLeakyBucket returns the model of an unused key.
func NewLeakyBucket(count int, period time.Duration, capacity int) *LeakyBucket {
	checkPositive("count", count)
	checkPositive("period", period)
	checkPositive("capacity", capacity)
	return &LeakyBucket{capacity: capacity, rate: quo(rat(int64(count)), ratMicros(period))}
}

// Take implements [Model].
func (b *LeakyBucket) Take(now int64, n int, peek bool) Answer {
	checkPermits(n, b.capacity)
	return b.decide(now, n, peek, false)
}

// decide is Take. If charge is true, the permits are taken whether they are there or not.
func (b *LeakyBucket) decide(now int64, n int, peek, charge bool) Answer {
	answer, _ := b.take(now, n, peek, longest(charge))
	return answer
}

// Reserve implements [Reserver].
func (b *LeakyBucket) Reserve(now int64, n int, longest int64) (answer Answer, due int64, cancel func()) {
	checkPositive("permits", n)
	before := *b
	answer, due = b.take(now, n, false, longest)
	restore := func() { *b = before }
	if !answer.Allowed {
		return answer, due, restore
	}
	return answer, due, b.reserved(due, before.changes, restore)
}

// take allows the call if n permits fit within longest.
func (b *LeakyBucket) take(now int64, n int, peek bool, longest int64) (answer Answer, due int64) {
	clock, repaired, empty := now, false, rat(now)
	if b.empty != nil {
		empty = b.empty
		if back := b.drained - now; back > 0 && b.CallersClock {
			clock = b.drained
		} else if back > 0 {
			empty, repaired = sub(empty, rat(back)), true
		}
	}
	if less(empty, rat(clock)) {
		empty = rat(clock)
	}
	answer = Answer{Limit: b.capacity, Window: b.Span()}

	filled := add(empty, quo(rat(int64(n)), b.rate)) // when it would be empty with n permits more
	latest := add(rat(clock), quo(rat(int64(b.capacity)), b.rate))
	if less(latest, filled) {
		due = ceil(sub(filled, latest)) + clock - now
	}
	answer.Allowed = due <= longest
	if !answer.Allowed {
		answer.RetryAfter = micros(due)
	} else if !peek {
		empty = filled
	}
	answer.Remaining = int(max(floor(mul(sub(latest, empty), b.rate)), 0))
	if less(rat(clock), empty) {
		answer.ResetAfter = micros(ceil(sub(empty, rat(now))))
	}
	if !peek && (answer.Allowed || repaired) {
		b.empty, b.drained = empty, clock
		b.change()
	}
	return answer, due
}

// Reset implements [Model].
func (b *LeakyBucket) Reset() {
	b.empty = nil
	b.change()
}

// Unused implements [Model].
func (b *LeakyBucket) Unused(now int64) bool {
	return b.empty == nil || now >= b.drained && !less(rat(now), b.empty)
}

// Max implements [Model].
func (b *LeakyBucket) Max() int { return b.capacity }

// Span implements [Model].
func (b *LeakyBucket) Span() time.Duration {
	return micros(ceil(quo(rat(int64(b.capacity)), b.rate)))
}

package model

import (
	"math/big"
	"time"
)

// A LeakyBucket starts empty and drains count per period, continuously. n
// permits are poured in when they fit under the capacity.
//
// It decides as a [TokenBucket] does, but is written differently on purpose: its state
// is a level that was measured at an instant. A clock that is set back undoes the
// draining since that instant. The level rises to the capacity at most, and is then
// measured again.
type LeakyBucket struct {
	capacity int
	rate     *big.Rat // permits that drain in a microsecond
	level    *big.Rat // measured at the instant at; nil: never used
	at       int64
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
	capacity := rat(int64(b.capacity))
	level := b.levelAt(now)
	repaired := less(capacity, level)
	if repaired {
		level = capacity
	}
	answer := Answer{Limit: b.capacity, Window: b.Span()}

	poured := add(level, rat(int64(n)))
	if less(capacity, poured) {
		answer.RetryAfter = b.drains(sub(poured, capacity))
	} else {
		answer.Allowed = true
		level = poured
	}
	answer.Remaining = int(floor(sub(capacity, level)))
	answer.ResetAfter = b.drains(level)
	if !peek && (answer.Allowed || repaired) {
		b.level, b.at = level, now
	}
	return answer
}

// levelAt is the level at now, at least 0. It is above the capacity if the clock was set
// back far enough.
func (b *LeakyBucket) levelAt(now int64) *big.Rat {
	if b.level == nil {
		return rat(0)
	}
	level := sub(b.level, mul(rat(now-b.at), b.rate))
	if level.Sign() < 0 {
		return rat(0)
	}
	return level
}

// drains is the time in which amount drains.
func (b *LeakyBucket) drains(amount *big.Rat) time.Duration {
	return micros(ceil(quo(amount, b.rate)))
}

// Reset implements [Model].
func (b *LeakyBucket) Reset() { b.level = nil }

// Unused implements [Model].
func (b *LeakyBucket) Unused(now int64) bool { return b.levelAt(now).Sign() == 0 }

// Max implements [Model].
func (b *LeakyBucket) Max() int { return b.capacity }

// Span implements [Model].
func (b *LeakyBucket) Span() time.Duration { return b.drains(rat(int64(b.capacity))) }

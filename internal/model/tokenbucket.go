package model

import (
	"math/big"
	"time"
)

// A TokenBucket starts with burst tokens and gains count per period,
// continuously and never beyond burst. A call for n permits is allowed when there are n
// tokens.
//
// Its state is the instant at which it is full again: the tokens missing at now are those
// that arrive from now until then. When the clock is set back so far that more than burst
// tokens would be missing, that instant moves so that exactly burst are.
type TokenBucket struct {
	burst    int
	perToken *big.Rat // microseconds that one token takes
	fullTime *big.Rat // microseconds that burst tokens take
	fullAt   *big.Rat // nil: never used
}

// NewTokenBucket returns the model of an unused key.
func NewTokenBucket(count int, period time.Duration, burst int) *TokenBucket {
	checkPositive("count", count)
	checkPositive("period", period)
	checkPositive("burst", burst)
	perToken := quo(ratMicros(period), rat(int64(count)))
	return &TokenBucket{burst: burst, perToken: perToken, fullTime: mul(perToken, rat(int64(burst)))}
}

// Take implements [Model].
func (b *TokenBucket) Take(now int64, n int, peek bool) Answer {
	checkPermits(n, b.burst)
	due := b.due(now)
	repaired := less(b.fullTime, due)
	if repaired {
		due = b.fullTime
	}
	tokens := sub(rat(int64(b.burst)), quo(due, b.perToken))
	answer := Answer{Limit: b.burst, Window: b.Span()}

	short := sub(rat(int64(n)), tokens)
	if short.Sign() > 0 {
		answer.RetryAfter = micros(ceil(mul(short, b.perToken)))
	} else {
		answer.Allowed = true
		tokens = sub(tokens, rat(int64(n)))
		due = add(due, mul(rat(int64(n)), b.perToken))
	}
	answer.Remaining = int(floor(tokens))
	answer.ResetAfter = micros(ceil(due))
	if !peek && (answer.Allowed || repaired) {
		b.fullAt = add(rat(now), due)
	}
	return answer
}

// due is how many microseconds after now the bucket is full, at least 0.
func (b *TokenBucket) due(now int64) *big.Rat {
	if b.fullAt == nil || less(b.fullAt, rat(now)) {
		return rat(0)
	}
	return sub(b.fullAt, rat(now))
}

// Reset implements [Model].
func (b *TokenBucket) Reset() { b.fullAt = nil }

// Unused implements [Model].
func (b *TokenBucket) Unused(now int64) bool { return b.due(now).Sign() == 0 }

// Max implements [Model].
func (b *TokenBucket) Max() int { return b.burst }

// Span implements [Model].
func (b *TokenBucket) Span() time.Duration { return micros(ceil(b.fullTime)) }

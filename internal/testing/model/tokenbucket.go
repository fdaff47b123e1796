package model

import (
	"math/big"
	"time"
)

// A TokenBucket starts with burst tokens and gains count per period,
// continuously and never beyond burst. A call for n permits is allowed when there are n
// tokens.
//
// Its state is the tokens at an instant. When the clock is set back to a time earlier
// than that instant, the state counts as of now. By the caller's clock, the call is
// decided at the state's instant instead, and every time in the answer is longer by the
// caller's lag.
type TokenBucket struct {
	CallersClock bool
	ExactReturns bool // see GiveBack

	burst    int
	perToken *big.Rat // microseconds that one token takes
	tokens   *big.Rat // below 0 while permits are reserved; nil: never used
	at       int64
	changes
}

// NewTokenBucket returns the model of an unused key.
func NewTokenBucket(count int, period time.Duration, burst int) *TokenBucket {
	checkPositive("count", count)
	checkPositive("period", period)
	checkPositive("burst", burst)
	return &TokenBucket{burst: burst, perToken: quo(ratMicros(period), rat(int64(count)))}
}

// Take implements [Model].
func (b *TokenBucket) Take(now int64, n int, peek bool) Answer {
	checkPermits(n, b.burst)
	return b.decide(now, n, peek, false)
}

// decide is Take. If charge is true, the permits are taken whether they are there or not.
func (b *TokenBucket) decide(now int64, n int, peek, charge bool) Answer {
	answer, _ := b.take(now, n, peek, longest(charge))
	return answer
}

// Reserve implements [Reserver].
func (b *TokenBucket) Reserve(now int64, n int, longest int64) (answer Answer, due int64, cancel func()) {
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
func (b *TokenBucket) take(now int64, n int, peek bool, longest int64) (answer Answer, due int64) {
	burst := rat(int64(b.burst))
	present, repaired := presentAt(now, b.at, b.CallersClock)
	if b.tokens == nil {
		present, repaired = now, false
	}
	tokens := b.tokensAt(present)
	answer = Answer{Limit: b.burst, Window: b.Span()}

	if short := sub(rat(int64(n)), tokens); short.Sign() > 0 {
		due = ceil(mul(short, b.perToken)) + present - now
	}
	answer.Allowed = due <= longest
	if !answer.Allowed {
		answer.RetryAfter = micros(due)
	} else if !peek {
		tokens = sub(tokens, rat(int64(n)))
	}
	answer.Remaining = int(max(floor(tokens), 0))
	if less(tokens, burst) {
		answer.ResetAfter = micros(ceil(mul(sub(burst, tokens), b.perToken)) + present - now)
	}
	if !peek && (answer.Allowed || repaired) {
		b.tokens, b.at = tokens, present
		b.change()
	}
	return answer, due
}

// presentAt is the instant at which a call is decided whose clock reads now, and whether
// the state's own instant becomes now.
func presentAt(now, state int64, callersClock bool) (present int64, repaired bool) {
	switch {
	case now >= state:
		return now, false
	case callersClock:
		return state, false
	}
	return now, true
}

func (b *TokenBucket) tokensAt(now int64) *big.Rat {
	burst := rat(int64(b.burst))
	if b.tokens == nil {
		return burst
	}
	tokens := add(b.tokens, quo(rat(max(now-b.at, 0)), b.perToken))
	if less(burst, tokens) {
		return burst
	}
	return tokens
}

// Reset implements [Model].
func (b *TokenBucket) Reset() {
	b.tokens = nil
	b.change()
}

// Unused implements [Model].
func (b *TokenBucket) Unused(now int64) bool { return !less(b.tokensAt(now), rat(int64(b.burst))) }

// Max implements [Model].
func (b *TokenBucket) Max() int { return b.burst }

// Span implements [Model].
func (b *TokenBucket) Span() time.Duration {
	return micros(ceil(mul(b.perToken, rat(int64(b.burst)))))
}

package ratelimit

import "context"

// Look answers what [TryAcquireAll] of these claims would answer now, and takes nothing. Nothing is written, to Redis
// or to a limiter in memory, and somebody else may take the permits next.
//
//	look, err := ratelimit.Look(ctx, ClaimOf(minute, "user:42", 5), ClaimOf(day, "user:42", 5))
//
// Allowed and RetryAfter are those of a call for the claims' permits; Remaining and ResetAfter are as of now. There
// are no Holds and no Tickets. Decorators do what they do for [Limiter.Peek]; a [Shadow] asks no trial. The errors
// are those of TryAcquireAll. Keys in several slots need a Look for each slot. It is one script, and is not merged
// with other calls.
func Look(ctx context.Context, claims ...Claim) (AllResult, error) {
	return decideAll(ctx, call{op: look}, claims)
}

// look says whether n permits are there, and takes nothing.
var look = &operation{
	call: callPeek,
	unable: func(l any, _ *call, claim *Claim) error {
		if _, ok := l.(*All); ok && claim.settle {
			return cannot(l, "settle")
		}
		if _, ok := l.(looker); !ok && claim.n > 1 {
			return cannot(l, "look for several permits")
		}
		return nil
	},
	check: checkTake,
	decide: func(ctx context.Context, l any, _ *call, claim *Claim) (o outcome) {
		o.result, o.err = lookBy(ctx, l.(peeker), claim)
		return o
	},
	forMemory: func(n int) int { return n },
}

// A looker answers what it would answer to a call for n permits of key.
type looker interface {
	peekN(ctx context.Context, key string, n int) (Result, error)
}

// A peeker is a Limiter or a Holder.
type peeker interface {
	Peek(ctx context.Context, key string) (Result, error)
}

// lookBy looks whether l, a Limiter or a Holder, has the permits of a claim.
func lookBy(ctx context.Context, l peeker, claim *Claim) (Result, error) {
	if looks, ok := l.(looker); ok {
		return looks.peekN(ctx, claim.key, claim.n)
	}
	if claim.n < 1 {
		return Result{}, errTooFew(claim.n)
	}
	return l.Peek(ctx, claim.key)
}

// Package ratelimit limits rates across processes: each limiter keeps its state
// in Redis, and one Lua script per decision reads and writes it there, so that
// concurrent callers in any number of processes never get more than the rule
// allows.
//
//	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
//	limiter, err := ratelimit.NewTokenBucket(client, ratelimit.PerSecond(10), 20)
//	...
//	result, err := limiter.TryAcquire(ctx, "user:42")
//	switch {
//	case err != nil: // no decision: Redis is down, say
//	case !result.Allowed: // come back in result.RetryAfter
//	}
//
// # Which limiter do I want?
//
//	                  admits                                  for
//	TokenBucket       burst + rate × t in any time t          most things: bursts, then a steady rate
//	LeakyBucket       capacity + rate × t, the mirror image   filling up something that drains
//	FixedWindow       limit per window, up to twice that      quotas per hour or day; the cheapest
//	                  across a boundary
//	SlidingWindow     limit in any interval of a window       a limit that must hold at all times, at
//	                  (Hash and List a little less)           any limit
//	SlidingLog        every rule, in any interval, exactly    several rules at once, or exactness
//
// A decision costs Redis a few microseconds and the state a hundred bytes; the
// windows and the log take more, as their docs say. When in doubt, take the
// token bucket.
//
// # What holds for all of them
//
// A decision is atomic, and a denial changes nothing (but repairs what a stepped
// clock or a changed configuration has left). A call is executed at most
// once, also when its reply is lost: go-redis is kept from sending it again. The
// server's clock decides, to the microsecond; a clock that steps back never
// grants more, nor makes anybody wait for it to come back. Numbers are whole, so
// that rates such as 7 per minute neither leak nor lose a permit. Every key
// expires by itself. One decision touches one key, named prefix:algorithm:key,
// which is safe on a cluster. A changed configuration goes on from what the old one
// had counted. That also means that two rules of one algorithm which are to hold at
// the same time need prefixes of their own, see [WithPrefix].
//
// An error means that there is no answer; the permits may have been taken where a
// reply was lost. What that means for the request is the caller's choice, which
// [NewFallback] takes in one line.
//
// # Speed
//
// Calls of a limiter that arrive while others are on their way go together, in
// the next execution: a call by itself goes at once, many share the cost of one.
// [WithoutMerging] turns that off, and an AutoPipeliner given as the client
// merges in its own way instead. [NewDenyCache] answers denials from memory for
// as long as they cannot change.
package ratelimit

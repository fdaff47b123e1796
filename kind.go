package ratelimit

import "github.com/tryacquire/ratelimit/internal/limiterkind"

func init() {
	limiterkind.Of = func(limiter any) limiterkind.Kind {
		k := kindOf(limiter)
		return limiterkind.Kind{Absent: k.absent, Bucket: k.bucket}
	}
	limiterkind.CheckClaims = func(claims any) error { return checkClaims(claims.([]Claim)) }
}

// A kind says what a limiter is. This is the one place that asks: a type of a user's that embeds a
// limiter of this package has its methods too, but may do more in them, and so is a type of its own.
type kind struct {
	absent bool   // no limiter, or a nil pointer to one of this package
	core   *core  // of one that decides on Redis; nil also if its constructor did not make it
	most   int    // permits that one call can get; 0: not known
	inside any    // what a decorator asks; nil also of a Choice, which asks another one for each call
	group  *group // of an All on Redis
	bucket bool   // permits come back one by one; not known of what is inside a decorator
	role   role
}

// unmade reports whether its constructor did not make it.
func (k kind) unmade() bool { return k.absent || k.role == onRedis && k.core == nil }

// A role is what a limiter does when it is called.
type role int

const (
	alien     role = iota // a type of a user's
	onRedis               // one limiter on Redis
	inMemory              // one that needs no Redis
	several               // an All
	decorator             // around others
)

// kindOf looks at l. A nil pointer of a user's type is not noticed: that would take reflection.
func kindOf(l any) kind {
	switch l := l.(type) {
	case nil:
		return kind{absent: true}
	case *FixedWindow:
		if l != nil {
			return kindOnRedis(&l.core)
		}
	case *CalendarWindow:
		if l != nil {
			return kindOnRedis(&l.core)
		}
	case *SlidingWindow:
		if l != nil {
			return kindOnRedis(&l.core)
		}
	case *SlidingLog:
		if l != nil {
			return kindOnRedis(&l.core)
		}
	case *TokenBucket:
		if l != nil {
			return kindOnRedis(&l.core)
		}
	case *LeakyBucket:
		if l != nil {
			return kindOnRedis(&l.core)
		}
	case *LocalTokenBucket:
		k := kind{absent: l == nil, role: inMemory, bucket: true}
		if l != nil {
			k.most = l.ceiling()
		}
		return k
	case constant, constantHolds:
		return kind{role: inMemory}
	case *All:
		k := kind{absent: l == nil, role: several, most: l.ceiling()}
		if l != nil {
			k.group = l.group
		}
		return k
	case *InFlight:
		if l != nil {
			return kindOnRedis(&l.core)
		}
	case *HoldFallback:
		k := kind{absent: l == nil, role: decorator}
		if l != nil {
			k.inside, k.most = l.primary, l.settings.mostOf()
		}
		return k
	case *HoldChoice:
		return kind{absent: l == nil, role: decorator}
	case *LocalInFlight:
		k := kind{absent: l == nil, role: inMemory}
		if l != nil {
			k.most = l.limit
		}
		return k
	case *Choice:
		return kind{absent: l == nil, role: decorator}
	case *Fallback:
		k := kind{absent: l == nil, role: decorator}
		if l != nil {
			k.inside, k.most = l.primary, l.most
		}
		return k
	case *DenyCache:
		if l != nil {
			return kindAround(l.limiter)
		}
	case *Shadow:
		if l != nil {
			return kindAround(l.enforced)
		}
	default:
		return kind{}
	}
	return kind{absent: true, role: decorator}
}

func kindOnRedis(c *core) kind {
	if !c.made() {
		return kind{role: onRedis}
	}
	return kind{role: onRedis, core: c, most: c.most, bucket: c.bucket}
}

func kindAround(inside any) kind {
	return kind{role: decorator, inside: inside, most: kindOf(inside).most}
}

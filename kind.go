package ratelimit

import "github.com/tryacquire/ratelimit/internal/identity"

// A kind says what a limiter is. Each type says it of itself; this is the one place that asks.
type kind struct {
	self   any    // the limiter
	absent bool   // no limiter, or a nil pointer
	core   *core  // of one that decides on Redis; nil also if its constructor did not make it
	most   int    // permits that one call can get; 0: not known
	inside any    // what a decorator asks; nil also of a Choice, which asks another one for each call
	client Client // of one that decides on Redis, or of an All; nil if there is none
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

// kindOf looks at l. A type of a user's that embeds a limiter of this package has its methods too, but may do more in
// them, and so is a type of its own.
func kindOf(l any) kind {
	if identity.IsNil(l) {
		return kind{absent: true}
	}
	ours, ok := l.(interface{ kind() kind })
	if !ok {
		return kind{}
	}
	if k := ours.kind(); k.self == l {
		return k
	}
	return kind{}
}

// kindOnRedis is the kind of self, which embeds c.
func kindOnRedis(self any, c *core) kind {
	if !c.made() {
		return kind{self: self, role: onRedis}
	}
	return kind{self: self, role: onRedis, core: c, most: c.most, client: c.exec.Client, bucket: c.isBucket()}
}

// kindAround is the kind of a decorator around a limiter.
func kindAround(self, inside any) kind {
	return kind{self: self, role: decorator, inside: inside, most: kindOf(inside).most}
}

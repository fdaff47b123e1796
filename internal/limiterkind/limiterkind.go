// Package limiterkind lets the packages beside ratelimit ask what only that package knows of its
// limiters, without a public name for it. Package ratelimit sets the functions.
package limiterkind

// A Kind is what ratelimit's one table of limiters says of one.
type Kind struct {
	Absent bool // nil, or a nil pointer to a type of package ratelimit
	Bucket bool // permits come back one by one
}

// Of looks at a limiter or holder. A nil pointer of a user's type is not noticed.
var Of func(limiter any) Kind

// CheckClaims returns the error that TryAcquireAll returns for these claims, a []ratelimit.Claim,
// before it asks Redis. Limiters that can decide together once can always do so, whatever the keys
// are, except for ErrCrossSlot.
var CheckClaims func(claims any) error

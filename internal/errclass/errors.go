package errclass

import "errors"

// The errors that package ratelimit exports, where they are documented.
var (
	ErrInvalidConfig  = errors.New("ratelimit: invalid configuration")
	ErrInvalidKey     = errors.New("ratelimit: invalid key")
	ErrInvalidPermits = errors.New("ratelimit: invalid number of permits")
	ErrExceedsLimit   = errors.New("ratelimit: more permits than the limit")
	ErrCrossSlot      = errors.New("ratelimit: keys in several slots")
	ErrTooMuchDebt    = errors.New("ratelimit: too much debt")
	ErrTooManyTickets = errors.New("ratelimit: too many tickets")
	ErrIDReused       = errors.New("ratelimit: the id stands for another call")
	ErrSettled        = errors.New("ratelimit: already settled")
	ErrDenied         = errors.New("ratelimit: denied")
	ErrWaitTooLong    = errors.New("ratelimit: the wait is too long")
	ErrCorruptState   = errors.New("ratelimit: corrupt state")
	ErrLeaseLost      = errors.New("ratelimit: the lease is lost")
	ErrOverBudget     = errors.New("ratelimit: over budget")
	ErrBreakerOpen    = errors.New("ratelimit: the breaker is open")
)

// The errors of key functions that are about the client, which package httplimit exports.
var (
	ErrNoKey  = errors.New("httplimit: the request has no key")
	ErrBadKey = errors.New("httplimit: the request's key is malformed")
)

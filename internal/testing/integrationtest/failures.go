package integrationtest

import (
	"context"
	"errors"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/httplimit"
)

// The codes of errors, which are gRPC's and connect's.
const (
	invalidArgument   = 3
	resourceExhausted = 8
	internal          = 13
	unavailable       = 14
)

// A Failure is an error of a key function or a limiter, with the code and the text that the client
// gets.
type Failure struct {
	Err  error
	Code uint32
	Text string
}

// IsOutage reports whether a limit that is open in outages lets the call pass.
func (f Failure) IsOutage() bool { return f.Code == unavailable }

// Failures are the errors of key functions and limiters.
func Failures() []Failure {
	const (
		noKey     = "the call lacks what it is limited by"
		tooMuch   = "the call takes more than the rate limit can ever allow"
		mistake   = "the rate limit is set up wrongly"
		undecided = "the rate limit could not be decided"
	)
	return []Failure{
		{httplimit.ErrNoKey, invalidArgument, noKey},
		{httplimit.ErrBadKey, invalidArgument, noKey},
		{ratelimit.ErrExceedsLimit, invalidArgument, tooMuch},
		{ratelimit.ErrInvalidConfig, internal, mistake},
		{ratelimit.ErrInvalidKey, internal, mistake},
		{ratelimit.ErrInvalidPermits, internal, mistake},
		{ratelimit.ErrCrossSlot, internal, mistake},
		{ratelimit.ErrCorruptState, internal, undecided},
		{ratelimit.ErrWaitTooLong, resourceExhausted, "the limit is used up"},
		{context.Canceled, unavailable, undecided},         // not the call's own
		{context.DeadlineExceeded, unavailable, undecided}, // Redis was too slow, for example
		{errors.New("dial"), unavailable, undecided},
	}
}

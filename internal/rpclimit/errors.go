package rpclimit

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/tryacquire/ratelimit/internal/deadline"
	"github.com/tryacquire/ratelimit/internal/errclass"
	"github.com/tryacquire/ratelimit/internal/integration"
)

// A Code is a status code of gRPC, which has the same number in Connect.
type Code uint32

const (
	canceled          Code = 1
	invalidArgument   Code = 3
	deadlineExceeded  Code = 4
	resourceExhausted Code = 8
	internal          Code = 13
	unavailable       Code = 14
)

// TextUndecided is the message for clients where Redis or the network was at fault.
const TextUndecided = "the rate limit could not be decided"

// CodeOf returns the code and the message for clients of a call for which there is no decision. The
// message says nothing of err.
func CodeOf(ctx context.Context, err error) (Code, string) {
	switch errclass.Of(err).Class {
	case errclass.Mistake:
		return internal, "the rate limit is set up wrongly"
	case errclass.Damaged:
		return internal, TextUndecided
	case errclass.NoKey:
		return invalidArgument, "the call lacks what it is limited by"
	case errclass.TooMuch:
		return invalidArgument, "the call takes more than the rate limit can ever allow"
	case errclass.Decision:
		return resourceExhausted, "the limit is used up"
	}
	switch end := deadline.Ended(ctx); {
	case errors.Is(end, context.DeadlineExceeded):
		return deadlineExceeded, end.Error()
	case end != nil:
		return canceled, end.Error()
	}
	return unavailable, TextUndecided
}

// RetryDelayOf is the delay of the RetryInfo in the status of err, for which there is no decision: 0 for none.
func RetryDelayOf(code Code, err error) time.Duration {
	if code != unavailable {
		return 0
	}
	return integration.RetryAfter(err)
}

// IsOutage reports whether there is no decision because of Redis or the network. A call without a
// key never counts as an outage, whatever the key function returned.
func IsOutage(ctx context.Context, err error) bool {
	return errclass.Is(err, errclass.Outage) && deadline.Ended(ctx) == nil && !integration.IsKeyError(err)
}

// A Wrapped is the error behind one for clients. errors.Is and errors.As find it in this process, but
// never io.EOF, which the error may be when Redis closes a connection: handlers and callers would
// take io.EOF for the end of a stream.
type Wrapped struct{ Err error }

func (w Wrapped) Is(target error) bool { return target != io.EOF && errors.Is(w.Err, target) }
func (w Wrapped) As(target any) bool   { return errors.As(w.Err, target) }

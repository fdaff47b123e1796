package integration

import (
	"errors"
	"slices"

	"github.com/tryacquire/ratelimit"
)

// A Cause is why there is no decision.
type Cause int

const (
	Outage  Cause = iota // anything else: Redis is down, for example
	Mistake              // of the service's
	NoKey                // the caller lacks what it is limited by
	TooMuch              // it asks for more than the limiter can ever allow
)

// CauseOf says what err, of a key function or of a limiter, means.
func CauseOf(err error) Cause {
	is := func(sentinels ...error) bool {
		return slices.ContainsFunc(sentinels, func(s error) bool { return errors.Is(err, s) })
	}
	switch {
	case is(ratelimit.ErrInvalidConfig, ratelimit.ErrInvalidKey, ratelimit.ErrInvalidPermits, ratelimit.ErrCrossSlot):
		return Mistake
	case is(ErrNoKey, ErrBadKey):
		return NoKey
	case is(ratelimit.ErrExceedsLimit):
		return TooMuch
	}
	return Outage
}

package integration

import (
	"math/rand/v2"
	"time"

	"github.com/tryacquire/ratelimit"
)

// A Spread makes the RetryAfter of denials longer by a random time up to Most, so that clients that were denied at the
// same time do not come back at the same time.
type Spread struct {
	Most time.Duration // 0: none
	Draw func(most time.Duration) time.Duration
}

// NewSpread draws from the process's random source.
func NewSpread(most time.Duration) Spread {
	return Spread{most, func(most time.Duration) time.Duration { return rand.N(most + 1) }}
}

// Of is the denial that the client is told.
func (s Spread) Of(r ratelimit.Result) ratelimit.Result {
	if s.Most > 0 && !r.Allowed {
		r.RetryAfter += s.Draw(s.Most)
		r.ResetAfter = max(r.ResetAfter, r.RetryAfter)
	}
	return r
}

// Package pauses has the arguments and the replies of the script of pauses.
package pauses

import (
	"time"

	"github.com/tryacquire/ratelimit/internal/decision"
	"github.com/tryacquire/ratelimit/internal/exact"
)

// The words of the reply, after decision.WordAllowed.
const (
	wordHolds = 1 // what holds calls back
	wordLeft  = 2 // microseconds until a denied call is allowed at the latest
)

// oneFirst is the wordHolds of a pause that is over, while one call goes first. During a pause it is 1, else 0.
const oneFirst = 2

// An Explainer explains replies. Lease is how long others wait for the call that goes first; 0: all go at once.
type Explainer struct{ Lease time.Duration }

// Explain is that of a decision.Explainer. While one call goes first, that is the rule, with one permit. Otherwise no
// rule governs.
func (e Explainer) Explain(words []int64, _, taken int64, allowed bool) decision.Result {
	r := decision.Result{Allowed: allowed}
	left := exact.Duration(words[wordLeft])
	if !allowed {
		r.RetryAfter, r.ResetAfter = left, left
	}
	if words[wordHolds] != oneFirst {
		return r
	}
	r.Limit, r.Window = 1, e.Lease
	switch {
	case !allowed:
	case taken == 0: // a look
		r.Remaining = 1
	default:
		r.ResetAfter = left
	}
	return r
}

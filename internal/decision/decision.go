// Package decision has the answer to a call for the packages below ratelimit.
package decision

import "time"

// A Result has the fields of ratelimit.Result, and converts to it: ratelimit.Result(r). They are explained there.
type Result struct {
	Allowed    bool
	Limit      int
	Window     time.Duration
	Remaining  int
	RetryAfter time.Duration
	ResetAfter time.Duration
	Fallback   bool
	ByShare    bool
	Leased     bool
}

// WordAllowed is the position, in every algorithm's reply to a run of equal requests,
// of the number of requests that were allowed: the first ones of the run.
const WordAllowed = 0

// An Explainer knows what the words of an algorithm's reply mean.
type Explainer interface {
	// Explain is the result of a request for n permits in a run of equal requests. taken: the
	// run's permits so far, with this request's.
	Explain(words []int64, n, taken int64, allowed bool) Result
}

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
}

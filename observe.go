package ratelimit

import (
	"context"
	"time"
)

// An Observer gets an [Observation] of each call, see [WithObserver].
type Observer func(ctx context.Context, o Observation)

// WithObserver calls the observers, in their order, once for each call of the limiter: for metrics, logs and lists
// of the keys that are denied most (package observe, module otellimit). It is an option of all limiters but
// [AllowAll] and [DenyAll], and of the decorators that answer calls themselves: a [DenyCache] reports denials from
// memory, a [Fallback] the calls for which it asked its secondary. Give all of them the same observers, but a
// secondary none, or its calls count twice. docs/observing.md says who reports what of waits, of several limits
// and in outages.
//
// An observer runs in the caller's goroutine before the call returns, with the caller's context, and in many
// goroutines at once. So it must be quick and safe for concurrent use. It may call limiters. Its panic does not
// affect the call; the first one goes to [log/slog]'s default logger. An observed call reads the clock twice and
// allocates nothing, beside what the observers do.
func WithObserver(observers ...Observer) Option {
	return limiterOption("WithObserver", func(s *settings) {
		if len(observers) == 0 {
			s.refuse("WithObserver: there is no function; leave the option out to observe nothing")
		}
		for i, o := range observers {
			if o == nil {
				s.refuse("WithObserver: function %d is nil; leave it out", i+1)
			}
		}
		s.observers = observers
	})
}

// An Observation describes one call, for observers. A field that does not apply to
// the call is zero.
//
// A call for three permits of a token bucket that Redis allowed together with eleven other
// calls, after 300 µs in a queue, is
//
//	Limiter: "api", Call: callAcquire, Outcome: OutcomeAllowed, Source: SourceRedis,
//	Key: "user:42", N: 3, Taken: 3, Result: {Allowed: true, Limit: 20, …},
//	Latency: 900µs, Waited: 300µs, Batch: 12
type Observation struct {
	Limiter string // the limiter's name; there are as many as the program gives, so it can be a label of a metric
	Call    Call
	Outcome Outcome
	Source  Source
	Key     string // for logs and counts of bounded size, never a label of a metric; if it is invalid, of any length
	N       int    // the permits asked for; of a "settle", what the work has cost
	Taken   int    // the permits that the call took
	Before  int    // the permits that were left before, if the call took or charged some
	Result  Result // what the limiter answered, zero if it failed, but not of a "settle" with ErrLeaseLost, which charges
	Err     error  // that the caller got; a *WaitError for a "reserve" or "wait" that is denied
	Reason  error  // why a Fallback asked its secondary: the primary's error, ErrOverBudget or ErrBreakerOpen

	Repeated bool // the answer is that of an earlier call with the id, see TryAcquireOnce and Claim.As; nothing was taken

	Latency time.Duration // how long the call took

	// Waited is the part of Latency in which the call was not under way: a merged call waits until its batch is sent,
	// a "wait" until its permits are due or its last attempt is under way. Of a "reserve", whose caller does the
	// waiting, it is the time until the permits are due, which is no part of Latency.
	Waited time.Duration

	Batch int // the calls that were sent together with this one, itself included; 0 if none was sent

	// Breaker is the state of a [Fallback]'s breaker after the call. For "breaker" it is the new state, and From the
	// state before.
	Breaker, From BreakerState

	// Held is, for an [InFlight], how many permits of all keys this process holds after the call, and HeldChange how
	// many more than before. For a gauge, sum HeldChange; Held can arrive out of order.
	Held, HeldChange int
}

// A Call says what was called:
//
//	"acquire"   TryAcquire, TryAcquireN, All, TryAcquireAll, TryAcquireAcrossSlots
//	"up to"     TryAcquireUpTo
//	"reserve"   Reserve
//	"wait"      Wait, WaitN and WaitAll
//	"estimate"  Estimate, also as a claim
//	"hold"      TryAcquire, TryAcquireN and Do of an InFlight, also as a claim, and WaitAll
//	"charge"    Charge
//	"credit"    Credit; N permits were given back
//	"settle"    Ticket.Settle
//	"cancel"    Reservation.Cancel
//	"extend"    Hold.Extend
//	"release"   Hold.Release
//	"peek"      Peek, Look
//	"reset"     Reset
//	"pause"     Pause
//	"resume"    Resume
//	"breaker"   nothing: the state of a breaker has changed
//	"lease"     nothing: a [Leased] asked Redis for a slice of N permits and has got Taken, beside those of a call that waits
//	"return"    nothing: a Leased has given back N unspent permits
type Call string

const (
	callAcquire  Call = "acquire"
	callUpTo     Call = "up to"
	callReserve  Call = "reserve"
	callWait     Call = "wait"
	callEstimate Call = "estimate"
	callHold     Call = "hold"
	callCharge   Call = "charge"
	callCredit   Call = "credit"
	callSettle   Call = "settle"
	callCancel   Call = "cancel"
	callExtend   Call = "extend"
	callRelease  Call = "release"
	callPeek     Call = "peek"
	callReset    Call = "reset"
	callPause    Call = "pause"
	callResume   Call = "resume"
	callBreaker  Call = "breaker"
	callLease    Call = "lease"
	callReturn   Call = "return"
)

// takes reports whether the call is allowed or denied. The others are done, or fail.
func (c Call) takes() bool {
	switch c {
	case callAcquire, callUpTo, callReserve, callWait, callEstimate, callHold:
		return true
	}
	return false
}

// An Outcome is how a call ended.
type Outcome int

const (
	// OutcomeAllowed: the permits were taken. Only the calls from "acquire" to
	// "hold" are allowed or denied.
	OutcomeAllowed Outcome = iota + 1
	// OutcomeDenied: this limiter denied the call.
	OutcomeDenied
	// OutcomeUntaken: this limiter had enough permits, but another limiter denied the same
	// call, so the permits were not taken, or were given back.
	OutcomeUntaken
	// OutcomeDone: a call that is never denied, such as Peek or Charge, returned no error.
	OutcomeDone
	// OutcomeFailed: the caller got an error.
	OutcomeFailed
	// OutcomeCanceled: the caller's context was cancelled before there was an answer. It says
	// nothing about Redis. A context whose deadline has passed is OutcomeFailed.
	OutcomeCanceled
)

// String is "allowed", "denied", "untaken", "done", "failed" or "canceled".
func (o Outcome) String() string {
	return named(int(o), "outcome", "allowed", "denied", "untaken", "done", "failed", "canceled")
}

// A Source says what answered a call, or failed to answer it. It is 0 if nobody was asked, because of a caller's mistake
// or because the context had ended.
type Source int

const (
	// SourceRedis: Redis.
	SourceRedis Source = iota + 1
	// SourceMemory: the memory of a [DenyCache].
	SourceMemory
	// SourceFallback: the secondary of a [Fallback].
	SourceFallback
	// SourceLocal: a limiter in this process.
	SourceLocal
	// SourceLease: permits that a [Leased] has taken before, or a denial by it.
	SourceLease
)

// String is "none", "redis", "memory", "fallback", "local" or "lease".
func (s Source) String() string {
	return named(int(s)+1, "source", "none", "redis", "memory", "fallback", "local", "lease")
}

// named is the name of value i, from 1.
func named(i int, what string, names ...string) string {
	if i < 1 || i > len(names) {
		return "unknown " + what
	}
	return names[i-1]
}

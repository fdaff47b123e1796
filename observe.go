package ratelimit

import (
	"context"
	"time"
)

// An Observer gets an [Observation] of each call, see [WithObserver].
type Observer func(ctx context.Context, o Observation)

// WithObserver calls the observers, in their order, once for each call of the limiter: for
// metrics, logs and lists of the keys that are denied most (package observe, module
// otellimit). It is an option of all limiters on Redis, of those in memory ([LocalTokenBucket],
// [LocalInFlight]), of the decorators that answer calls themselves ([DenyCache], [Fallback],
// [HoldFallback]). Give all of them the same observers.
//
// # Who reports
//
// The limiter or decorator that answers a call reports it, so that each call is reported
// once:
//
//   - A limiter reports the calls that reach it, with every outcome. [AllowAll] and
//     [DenyAll] report nothing.
//   - A DenyCache reports only the denials from memory ([SourceMemory]). The limiter under it
//     reports the others.
//   - A Fallback reports only the calls for which it asked its secondary ([SourceFallback]),
//     and those whose caller left before the primary answered. The primary reports the calls
//     that it answered, and its failures: a call that failed in the primary and was then
//     allowed by the secondary is reported as failed by the primary, and as allowed by the
//     Fallback. Under [WithBudget] the primary also reports calls that no caller waits for any
//     more, when they end.
//   - A secondary with observers of its own also reports the calls that it gets. Give it no
//     observers, because the calls would count twice.
//   - [All], [TryAcquireAll] and [TryAcquireAcrossSlots] report one call for each limiter
//     that has observers, with its own Result, and with [OutcomeUntaken] if this limiter had
//     the permits and another one denied the call. Claims of one limiter for one key are one
//     call. Claims that cannot be decided together are not reported.
//   - With a [Choice], the picked limiter reports; with a [Shadow], both limiters do.
//   - Wait is reported as one call, a "wait", however often it asks: an attempt that is
//     denied is no denial while its caller waits. If the wait ends without permits, the
//     limiters that denied its last attempt report that. The integrations report a request
//     that may wait as one call too. Failures of a primary are reported each.
//   - [InFlight.Do] is reported as its parts: a "hold", a "extend" for each
//     extension, and a "release".
//
// Calls that fail before anything is asked are reported too ([SourceNone]), such as one with
// an empty key. What the package does in the background, such as giving back the permits of a
// caller that has left, is not reported; nor is Preload.
//
// # What an observer may do
//
// An observer runs in the caller's goroutine before the call returns, with the caller's
// context, and in many goroutines at once. So it must be quick and safe for concurrent use.
// It may call limiters. Only changes of a breaker's state are reported one by one and in
// order; they come in any goroutine, without the context of a caller.
//
// A panic of an observer does not affect the call: the answer is returned as if the observer
// had returned, and the other observers are called. The first panic of each limiter's
// observers goes to [log/slog]'s default logger, with its stack.
//
// An observed call reads the clock twice and allocates nothing, beside what the observers
// do. Without this option nothing is read or allocated.
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
	// Limiter is the limiter's name, see [WithName]. There are as many names as the program
	// gives, so it can be a label of a metric.
	Limiter string

	Call    Call
	Outcome Outcome
	Source  Source

	// Key is the key of the call, empty for "breaker". It is for logs, and for counts of
	// bounded size such as observe.Top. Never make it a label of a metric: each user would
	// be a time series. It may be secret, and if the call failed with ErrInvalidKey it may
	// have any length.
	Key string

	// N is the number of permits asked for; of a "settle", what the work has cost.
	N int

	// Taken is the number of permits that the call took: N if it was allowed, and what there
	// was for a "up to".
	Taken int

	// Result is what the limiter answered, and the zero value if it failed.
	Result Result

	// Err is the error that the caller got. For a "reserve" or "wait" that is denied
	// it is a *[WaitError].
	Err error

	// Reason is why a [Fallback] asked its secondary: the primary's error, ErrOverBudget or
	// ErrBreakerOpen.
	Reason error

	// Latency is how long the call took.
	Latency time.Duration

	// Waited is the part of Latency in which the call was not under way. A merged call waits in
	// this process until its batch is sent. A "wait" waits until its permits are due; on a
	// limiter that is asked again and again, until its last attempt is under way. The caller of
	// a "reserve" does the waiting: there, it is the time until the permits are due, which
	// is no part of Latency.
	Waited time.Duration

	// Batch is the number of calls that were sent together with this one, this one included:
	// 1 for a call that was sent on its own, 0 if none was sent.
	Batch int

	// Breaker is the state of a [Fallback]'s breaker after the call, and BreakerClosed where
	// there is none. For "breaker" it is the new state and From the state before.
	Breaker, From BreakerState

	// Held is, for an [InFlight], how many permits of all keys this process holds through
	// the limiter after the call, and HeldChange how many more than before. A hold counts
	// from when TryAcquire returns it until Release is called or its lease is known to be
	// lost. For a gauge, sum HeldChange; Held can arrive out of order.
	Held, HeldChange int
}

// A Call says what was called:
//
//	"acquire"   TryAcquire, TryAcquireN, All, TryAcquireAll, TryAcquireAcrossSlots
//	"up to"     TryAcquireUpTo
//	"reserve"   Reserve
//	"wait"      Wait and WaitN
//	"estimate"  Estimate, also as a claim
//	"hold"      TryAcquire, TryAcquireN and Do of an InFlight, also as a claim
//	"charge"    Charge
//	"settle"    Ticket.Settle
//	"cancel"    Reservation.Cancel
//	"extend"    Hold.Extend
//	"release"   Hold.Release
//	"peek"      Peek, Look
//	"reset"     Reset
//	"breaker"   nothing: the state of a breaker has changed
type Call string

const (
	callAcquire  Call = "acquire"
	callUpTo     Call = "up to"
	callReserve  Call = "reserve"
	callWait     Call = "wait"
	callEstimate Call = "estimate"
	callHold     Call = "hold"
	callCharge   Call = "charge"
	callSettle   Call = "settle"
	callCancel   Call = "cancel"
	callExtend   Call = "extend"
	callRelease  Call = "release"
	callPeek     Call = "peek"
	callReset    Call = "reset"
	callBreaker  Call = "breaker"
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

// A Source says what answered a call, or failed to answer it.
type Source int

const (
	// SourceNone: nobody was asked, because of a caller's mistake or because the context had
	// ended.
	SourceNone Source = iota
	// SourceRedis: Redis.
	SourceRedis
	// SourceMemory: the memory of a [DenyCache].
	SourceMemory
	// SourceFallback: the secondary of a [Fallback].
	SourceFallback
	// SourceLocal: a limiter in this process.
	SourceLocal
)

// String is "none", "redis", "memory", "fallback" or "local".
func (s Source) String() string {
	return named(int(s)+1, "source", "none", "redis", "memory", "fallback", "local")
}

// named is the name of value i, from 1.
func named(i int, what string, names ...string) string {
	if i < 1 || i > len(names) {
		return "unknown " + what
	}
	return names[i-1]
}

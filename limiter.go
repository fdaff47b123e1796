package ratelimit

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// A Limiter decides whether a key may take permits now.
//
// Every limiter of this package, and every decorator around one, is a Limiter.
// Limiters are immutable and safe for concurrent use; two processes that build
// the same limiter on one Redis share one quota for each key.
//
// An error means that there is no decision: the Result is then the zero value, whose
// Allowed is false. If a reply was lost, or the context ended while the call was in
// flight, the permits may have been taken all the same, once. A denial is a Result,
// not an error; use [Result.Err] where an error is more convenient.
type Limiter interface {
	// TryAcquire takes one permit from key, if one is available now.
	// It is TryAcquireN(ctx, key, 1).
	TryAcquire(ctx context.Context, key string) (Result, error)

	// TryAcquireN takes n permits from key, all or none. A denied call takes
	// nothing. It returns ErrInvalidKey for a key that is empty or has more than
	// 4,096 bytes, ErrInvalidPermits for n below 1, and ErrExceedsLimit when n is
	// more than the limiter can ever allow, all three without asking Redis.
	TryAcquireN(ctx context.Context, key string, n int) (Result, error)

	// Peek returns the state now, and takes and changes nothing: Remaining is the number of permits left, ResetAfter
	// the time until the full limit is available, and Allowed and RetryAfter are those of a call for one permit. Its
	// errors are those of TryAcquire.
	Peek(ctx context.Context, key string) (Result, error)

	// Reset deletes the key's state: the full limit is available again. If it
	// returns an error, the state may have been deleted all the same, except after
	// ErrInvalidKey.
	Reset(ctx context.Context, key string) error
}

// A Result is one decision. Durations count from the instant of the decision,
// so that only the clock that decided matters.
//
// After a call for three permits of a full token bucket, of 10 per second with a
// burst of 20, it is
//
//	Allowed: true, Limit: 20, Window: 2s, Remaining: 17, RetryAfter: 0, ResetAfter: 300ms
type Result struct {
	Allowed bool // the permits were taken

	// Limit is the limit, burst or capacity of the rule that governs this answer, at least 1. It is 0 where no rule
	// governs: in answers of AllowAll and DenyAll, and where a Fallback's secondary can never allow so many permits.
	Limit int

	// Window is that rule's window, 0 where Limit is 0; for a bucket, the time to refill or drain completely.
	Window time.Duration

	Remaining int // the permits left after this decision, 0 to Limit

	// RetryAfter is 0 when the call is allowed, except for a call that took only a part. Otherwise it is the time until
	// the same call would be allowed, if no other call takes permits: a retry a microsecond earlier (for a fixed
	// window, a millisecond) is denied.
	RetryAfter time.Duration

	ResetAfter time.Duration // the time until the full limit is available again, as precise as RetryAfter
	Fallback   bool          // the answer is that of a [Fallback]'s secondary, because the primary could not decide
	ByShare    bool          // denied because others have had less, while the limit has room; only of a [FairTokenBucket]

	// Leased: a [Leased] has answered from the permits of this process. Remaining is how many of these are left. If the
	// call is denied, other processes may hold permits of the key unspent, Limit − Remaining at most.
	Leased bool
}

// Err returns nil when the call was allowed, else a *[DeniedError], which
// errors.Is(err, ErrDenied) matches.
func (r Result) Err() error {
	if r.Allowed {
		return nil
	}
	return &DeniedError{Result: r}
}

// Unlimited reports whether the call was allowed because there is no limit, as by
// [AllowAll]. Limit, Window and Remaining are then 0 and say nothing: leave them out of
// headers and metrics. It is false for a denial, and for the Result that comes with an
// error.
func (r Result) Unlimited() bool { return r.Allowed && r.Limit == 0 }

// A Rule allows at most Limit permits in any interval of one Window. Limit is 1 to 10^12, or 10^9 where an int has 32
// bits; Window is a whole number of microseconds, from 1ms to 71 years.
type Rule struct {
	Limit  int
	Window time.Duration
}

// A Client is the part of a Redis client that a limiter needs. *redis.Client,
// *redis.ClusterClient, *redis.Ring and, from go-redis v9.22 on,
// *redis.AutoPipeliner implement it. Waiting calls are merged, and Preload reaches all
// nodes, only with the first three, and not with types that embed one of them. Package
// otherclient makes such a client of other libraries' clients. Any
// other client must not retry a command whose NoRetry method returns true.
type Client interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

var (
	_ Client = (*redis.Client)(nil)
	_ Client = (*redis.ClusterClient)(nil)
	_ Client = (*redis.Ring)(nil)
	_ Client = (*redis.AutoPipeliner)(nil)
)

// Must returns v and panics when err is not nil. It is for limiters, and breakers, that
// are built from constants when a program starts:
//
//	var limiter = ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(10), 20))
func Must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

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
// An error means that there is no answer: the Result is then the zero value, which
// is not allowed. Where a reply was lost, or the context ended on its way, the
// permits may have been taken all the same, once. A denial is a Result, not an
// error; use [Result.Err] where an error is more convenient.
type Limiter interface {
	// TryAcquire takes one permit from key, if it can be had now.
	// It is TryAcquireN(ctx, key, 1).
	TryAcquire(ctx context.Context, key string) (Result, error)

	// TryAcquireN takes n permits from key, all or none. A denied call changes
	// nothing. It fails with ErrInvalidKey for an empty key, ErrInvalidPermits
	// for n below 1, and ErrExceedsLimit when n is more than the limiter can
	// ever grant, all three without asking Redis.
	TryAcquireN(ctx context.Context, key string, n int) (Result, error)

	// Peek tells what TryAcquire would answer now, and changes nothing: on an
	// unused limiter of 10 it answers Allowed with 9 Remaining.
	Peek(ctx context.Context, key string) (Result, error)

	// Reset forgets key, as if it had never been used.
	Reset(ctx context.Context, key string) error
}

// A Result is one decision. Durations count from the instant of the decision,
// so that no clock but the deciding one matters.
//
// For a token bucket of 10 per second with a burst of 20 that a call of three
// permits found full, it reads
//
//	Allowed: true, Limit: 20, Window: 2s, Remaining: 17, RetryAfter: 0, ResetAfter: 300ms
type Result struct {
	// Allowed reports whether the permits were granted.
	Allowed bool

	// Limit is the limit, burst or capacity of the rule that governs this
	// answer. A sliding log with several rules names the one with the least
	// left when it grants, and the one that blocks longest when it denies.
	Limit int

	// Window is that rule's window; for a bucket, the time to refill or drain
	// completely, rounded up to a microsecond.
	Window time.Duration

	// Remaining is the number of permits left after this decision, 0 to Limit.
	Remaining int

	// RetryAfter is 0 when allowed. Otherwise it is when the same call would be
	// granted if nobody else takes any: asked a microsecond earlier (a fixed
	// window: a millisecond) the answer would still be no. Where grants are counted
	// by sub-windows or at a resolution, it can be longer than Window by one of them.
	RetryAfter time.Duration

	// ResetAfter is the time until the key is as new; the same holds for it.
	ResetAfter time.Duration

	// Fallback reports whether the answer came from the secondary of a
	// [Fallback], because the primary could not decide.
	Fallback bool
}

// Err returns nil when the permits were granted, else a *[DeniedError], for
// which errors.Is(err, ErrDenied) holds.
func (r Result) Err() error {
	if r.Allowed {
		return nil
	}
	return &DeniedError{Result: r}
}

// A Rate is Count permits per Period: 1 to 1,000,000,000 of them, in a whole number of
// microseconds from 1ms to 71 years.
type Rate struct {
	Count  int
	Period time.Duration
}

// PerSecond is n permits per second.
func PerSecond(n int) Rate { return Rate{n, time.Second} }

// PerMinute is n permits per minute.
func PerMinute(n int) Rate { return Rate{n, time.Minute} }

// PerHour is n permits per hour.
func PerHour(n int) Rate { return Rate{n, time.Hour} }

// Per is n permits per d.
func Per(n int, d time.Duration) Rate { return Rate{n, d} }

// A Rule allows at most Limit permits in any interval of one Window: 1 to
// 1,000,000,000 of them, in a whole number of microseconds from 1ms to 71 years.
type Rule struct {
	Limit  int
	Window time.Duration
}

// Client is what a limiter needs of a Redis client. *redis.Client,
// *redis.ClusterClient, *redis.Ring and *redis.AutoPipeliner have it. Of the first
// three, not of types that embed them, waiting calls go together, and Preload
// reaches all nodes. Another client must send a command that says NoRetry at most
// once.
type Client interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

var (
	_ Client = (*redis.Client)(nil)
	_ Client = (*redis.ClusterClient)(nil)
	_ Client = (*redis.Ring)(nil)
	_ Client = (*redis.AutoPipeliner)(nil)
)

// Must returns l and panics when err is not nil. It is for limiters that are
// built from constants when a program starts:
//
//	var limiter = ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(10), 20))
func Must[L Limiter](l L, err error) L {
	if err != nil {
		panic(err)
	}
	return l
}

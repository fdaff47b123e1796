package integration

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/deadline"
	"github.com/tryacquire/ratelimit/internal/waiting"
)

// LeastWait is the shortest wait that a middleware takes.
const LeastWait = time.Millisecond

// UntilDeadline, as the longest wait, waits for as long as the context allows.
const UntilDeadline = time.Duration(math.MaxInt64)

// Acquire takes n permits, now or in less than the longest wait; 0 does not wait. It asks before
// it waits: a call that need not wait costs what TryAcquireN costs, and a denial has the limiter's
// whole answer.
func Acquire(ctx context.Context, limiter ratelimit.Limiter, key string, n int, longest time.Duration) (ratelimit.Result, error) {
	return AcquireReady(ctx, limiter, key, n, longest, func() bool { return true })
}

// AcquireReady is Acquire for a call that has something to do before it waits: ready does it, and its
// time counts towards the wait. If ready returns false, the call is not made to wait, and its denial
// stands.
func AcquireReady(ctx context.Context, limiter ratelimit.Limiter, key string, n int, longest time.Duration, ready func() bool) (ratelimit.Result, error) {
	if longest == 0 {
		return limiter.TryAcquireN(ctx, key, n)
	}
	begun := time.Now()
	call, attempt := waiting.Begin(ctx, false)
	first, err := limiter.TryAcquireN(attempt, key, n)
	if err != nil || first.Allowed || first.RetryAfter >= longest || IsOutageDenial(first) || !ready() {
		call.End(nil)
		return first, err
	}
	call.Again() // WaitN is what is observed
	bounded := ctx
	if longest != UntilDeadline {
		var cancel context.CancelFunc
		bounded, cancel = context.WithDeadline(ctx, begun.Add(longest))
		defer cancel()
	}
	result, err := ratelimit.WaitN(bounded, limiter, key, n)
	var late *ratelimit.WaitError
	switch {
	case errors.As(err, &late): // others have come first
		first.RetryAfter = max(first.RetryAfter, late.Wait)
		first.ResetAfter = max(first.ResetAfter, first.RetryAfter)
		return first, nil
	case err != nil && deadline.Ended(bounded) != nil && deadline.Ended(ctx) == nil: // the wait is over, which is no outage
		return first, nil
	}
	return result, err
}

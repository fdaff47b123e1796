package ratelimit

import (
	"context"

	"github.com/tryacquire/ratelimit/internal/redisexec"
)

// A PartialTaker takes as many permits as are left. Every limiter of this package that
// decides on Redis on its own is a PartialTaker, and so are [LocalTokenBucket] and the decorators,
// which ask the limiter inside them.
type PartialTaker interface {
	// TryAcquireUpTo takes up to n permits from key: as many as are left. n may exceed the
	// limit. taken is how many were taken.
	//
	// Allowed reports whether at least one permit was taken. Limit, Window, Remaining and
	// ResetAfter are those of a call for as many permits as were taken. If fewer than n were
	// taken, RetryAfter is the time until one more is available, even if Allowed is true;
	// otherwise it is 0.
	//
	// Redis executes the call at most once, and the call is merged with others, see
	// [WithoutMerging]. It costs Redis as much as TryAcquire; with the storage ZSet, as much as TryAcquireN for the
	// permits that are taken. Its errors are those of TryAcquire, and ErrInvalidPermits for
	// n below 1.
	TryAcquireUpTo(ctx context.Context, key string, n int) (taken int, r Result, err error)
}

var (
	_ PartialTaker = (*FixedWindow)(nil)
	_ PartialTaker = (*CalendarWindow)(nil)
	_ PartialTaker = (*SlidingWindow)(nil)
	_ PartialTaker = (*SlidingLog)(nil)
	_ PartialTaker = (*TokenBucket)(nil)
	_ PartialTaker = (*LeakyBucket)(nil)
)

// TryAcquireUpTo takes up to n permits from key, see [PartialTaker].
func (c *core) TryAcquireUpTo(ctx context.Context, key string, n int) (taken int, r Result, err error) {
	if c == nil {
		return 0, Result{}, errUnmade
	}
	began, o := c.begin(), Observation{Call: CallUpTo, Key: key, N: n}
	if o.Err = c.check(ctx, key, min(n, c.most)); o.Err != nil {
		c.refused(ctx, began, o)
		return 0, Result{}, o.Err
	}
	var sent *redisexec.Batch
	o.Taken, o.Result, sent, o.Err = c.takeUpTo(ctx, key, n)
	c.decided(ctx, began, o, sent)
	return o.Taken, o.Result, o.Err
}

// takeUpTo makes n requests for one permit each: as many are allowed as fit.
func (c *core) takeUpTo(ctx context.Context, key string, n int) (taken int, r Result, sent *redisexec.Batch, err error) {
	n = min(n, c.most+1) // one request that is denied says when it fits
	reply, err := c.operate(ctx, key, redisexec.Operation{Op: redisexec.Take, N: 1, Times: n})
	if err != nil {
		return 0, Result{}, reply.Batch, c.failed(ctx, key, err)
	}
	defer reply.Done()
	words := reply.Words // of a run, in which the requests from Index on are these
	taken = int(min(max(words[wordAllowed]-reply.Index, 0), int64(n)))
	r = c.inRun(words, 1, reply.Index+int64(max(taken-1, 0)))
	if taken < n {
		r.RetryAfter = c.inRun(words, 1, words[wordAllowed]).RetryAfter
	}
	return taken, r, reply.Batch, nil
}

package ratelimit

import (
	"context"

	"github.com/tryacquire/ratelimit/internal/decision"
	"github.com/tryacquire/ratelimit/internal/redisexec"
)

// A partialTaker takes as many permits as are left, see [TokenBucket.TryAcquireUpTo].
type partialTaker interface {
	TryAcquireUpTo(ctx context.Context, key string, n int) (taken int, r Result, err error)
}

// upTo takes as many of n permits as are left.
var upTo = &operation{
	call: callUpTo,
	unable: func(l any, _ *call, _ *Claim) error {
		if _, ok := l.(partialTaker); !ok {
			return cannot(l, "take a part of what is asked for")
		}
		return nil
	},
	check: func(ctx context.Context, c *core, _ *call, claim *Claim) error {
		return c.checkUpTo(ctx, claim.key, claim.n)
	},
	decide: func(ctx context.Context, l any, _ *call, claim *Claim) (o outcome) {
		o.taken, o.result, o.err = l.(partialTaker).TryAcquireUpTo(ctx, claim.key, claim.n)
		return o
	},
	forMemory: func(int) int { return 1 },
}

// TryAcquireUpTo takes as many permits of key as are left, up to n. Allowed says whether it took any, and RetryAfter
// when one more is there if it took fewer than n. Its errors are those of TryAcquireN, but never ErrExceedsLimit.
func (c *limiterCore) TryAcquireUpTo(ctx context.Context, key string, n int) (taken int, r Result, err error) {
	o := Observation{Call: callUpTo, Key: key, N: n}
	o.Err = c.checkUpTo(ctx, key, n)
	c.watch.observed(ctx, &o, func() sending { return c.takeUpTo(ctx, &o) })
	return o.Taken, o.Result, o.Err
}

// checkUpTo is check for a call that may take less than n.
func (c *core) checkUpTo(ctx context.Context, key string, n int) error {
	return c.check(ctx, key, min(n, max(c.most, 1)))
}

// takeUpTo makes n requests for one permit each: as many are allowed as fit.
func (c *limiterCore) takeUpTo(ctx context.Context, o *Observation) sending {
	n := min(o.N, c.most+1) // one request that is denied says when it fits
	reply, err := c.operate(ctx, o.Key, redisexec.Operation{Op: redisexec.Take, N: 1, Times: n})
	if err != nil {
		o.Err = c.failed(ctx, o.Key, err)
		return reply.Batch
	}
	words := reply.Words // of a run, in which the requests from Index on are these
	o.Taken = int(min(max(words[decision.WordAllowed]-reply.Index, 0), int64(n)))
	o.Result = c.inRun(words, 1, reply.Index+int64(max(o.Taken-1, 0)))
	if o.Taken < n {
		o.Result.RetryAfter = c.inRun(words, 1, words[decision.WordAllowed]).RetryAfter
	}
	reply.Done()
	return reply.Batch
}

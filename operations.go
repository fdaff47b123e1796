package ratelimit

import (
	"context"
	"time"
)

// The operations of the decorators: each goes through the policies to the limiter that decides,
// see policy.go. A limiter that cannot do what is asked for returns an error that wraps
// ErrInvalidConfig and says so.

// through decides an operation of one limiter through the policies around it.
func through(ctx context.Context, l Limiter, op Call, key string, n int, longest time.Duration) outcome {
	c := callOn(l, op, key, n)
	c.longest, c.timing = longest, realTime
	if op == CallEstimate {
		c.op, c.claims[0].settle = CallAcquire, true
	}
	return c.decide(ctx)
}

// callOn is a call of one claim.
func callOn(l any, op Call, key string, n int) *call {
	c := &struct {
		call
		space [1]Claim
	}{call: call{op: op}, space: [1]Claim{claimOn(l, key, n)}}
	c.claims = c.space[:]
	return &c.call
}

func upToThrough(ctx context.Context, l Limiter, key string, n int) (taken int, r Result, err error) {
	o := through(ctx, l, CallUpTo, key, n, 0)
	return o.taken, o.result, o.err
}

func estimateThrough(ctx context.Context, l Limiter, key string, n int) (*Ticket, Result, error) {
	o := through(ctx, l, CallEstimate, key, n, 0)
	return o.ticket, o.result, o.err
}

func chargeThrough(ctx context.Context, l Limiter, key string, n int) (Result, error) {
	o := through(ctx, l, CallCharge, key, n, 0)
	return o.result, o.err
}

func reserveThrough(ctx context.Context, l Limiter, key string, n int, maxWait time.Duration) (*Reservation, error) {
	o := through(ctx, l, CallReserve, key, n, maxWait)
	return o.reservation, o.err
}

// TryAcquireUpTo takes up to n permits of key from the primary, or in an outage from the
// secondary, see [TokenBucket.TryAcquireUpTo].
func (f *Fallback) TryAcquireUpTo(ctx context.Context, key string, n int) (taken int, r Result, err error) {
	return upToThrough(ctx, f, key, n)
}

// Estimate takes n permits of key from the primary, or in an outage from the secondary, see
// [Settler]. A Ticket settles where its estimate was taken. An estimate that the primary takes
// after the budget is over is given back.
func (f *Fallback) Estimate(ctx context.Context, key string, n int) (*Ticket, Result, error) {
	return estimateThrough(ctx, f, key, n)
}

// Charge charges n permits of key to the primary, or in an outage to the secondary, see [Settler].
func (f *Fallback) Charge(ctx context.Context, key string, n int) (Result, error) {
	return chargeThrough(ctx, f, key, n)
}

// Reserve reserves n permits of key from the primary, or in an outage from the secondary, see
// [TokenBucket.Reserve].
func (f *Fallback) Reserve(ctx context.Context, key string, n int, maxWait time.Duration) (*Reservation, error) {
	return reserveThrough(ctx, f, key, n, maxWait)
}

// Claim is a claim for n permits of key, for [TryAcquireAll].
func (f *Fallback) Claim(key string, n int) Claim { return claimOn(f, key, n) }

// TryAcquireUpTo takes up to n permits of key from the limiter, unless memory denies the call, see
// [TokenBucket.TryAcquireUpTo].
func (c *DenyCache) TryAcquireUpTo(ctx context.Context, key string, n int) (taken int, r Result, err error) {
	return upToThrough(ctx, c, key, n)
}

// Estimate takes n permits of key from the limiter, unless memory denies the call, see [Settler].
// The Ticket removes the key's denials when it gives permits back.
func (c *DenyCache) Estimate(ctx context.Context, key string, n int) (*Ticket, Result, error) {
	return estimateThrough(ctx, c, key, n)
}

// Charge charges n permits of key to the limiter, see [Settler].
func (c *DenyCache) Charge(ctx context.Context, key string, n int) (Result, error) {
	return chargeThrough(ctx, c, key, n)
}

// Reserve reserves n permits of key from the limiter, see [TokenBucket.Reserve].
func (c *DenyCache) Reserve(ctx context.Context, key string, n int, maxWait time.Duration) (*Reservation, error) {
	return reserveThrough(ctx, c, key, n, maxWait)
}

// Claim is a claim for n permits of key, for [TryAcquireAll].
func (c *DenyCache) Claim(key string, n int) Claim { return claimOn(c, key, n) }

// TryAcquireUpTo takes up to n permits of key from the picked limiter, see [TokenBucket.TryAcquireUpTo].
func (c *Choice) TryAcquireUpTo(ctx context.Context, key string, n int) (taken int, r Result, err error) {
	return upToThrough(ctx, c, key, n)
}

// Estimate takes n permits of key from the picked limiter, see [Settler].
func (c *Choice) Estimate(ctx context.Context, key string, n int) (*Ticket, Result, error) {
	return estimateThrough(ctx, c, key, n)
}

// Charge charges n permits of key to the picked limiter, see [Settler].
func (c *Choice) Charge(ctx context.Context, key string, n int) (Result, error) {
	return chargeThrough(ctx, c, key, n)
}

// Reserve reserves n permits of key from the picked limiter, see [TokenBucket.Reserve].
func (c *Choice) Reserve(ctx context.Context, key string, n int, maxWait time.Duration) (*Reservation, error) {
	return reserveThrough(ctx, c, key, n, maxWait)
}

// Claim is a claim for n permits of key, for [TryAcquireAll].
func (c *Choice) Claim(key string, n int) Claim { return claimOn(c, key, n) }

// TryAcquireUpTo takes up to n permits of key from the enforced limiter, see [TokenBucket.TryAcquireUpTo].
func (s *Shadow) TryAcquireUpTo(ctx context.Context, key string, n int) (taken int, r Result, err error) {
	return upToThrough(ctx, s, key, n)
}

// Estimate takes n permits of key from the enforced limiter, see [Settler]. The trial is asked for
// an estimate too, and gets the settlement.
func (s *Shadow) Estimate(ctx context.Context, key string, n int) (*Ticket, Result, error) {
	return estimateThrough(ctx, s, key, n)
}

// Charge charges n permits of key to the enforced limiter, see [Settler].
func (s *Shadow) Charge(ctx context.Context, key string, n int) (Result, error) {
	return chargeThrough(ctx, s, key, n)
}

// Reserve reserves n permits of key from the enforced limiter, see [TokenBucket.Reserve].
func (s *Shadow) Reserve(ctx context.Context, key string, n int, maxWait time.Duration) (*Reservation, error) {
	return reserveThrough(ctx, s, key, n, maxWait)
}

// Claim is a claim for n permits of key, for [TryAcquireAll].
func (s *Shadow) Claim(key string, n int) Claim { return claimOn(s, key, n) }

var (
	_ Settler = (*Fallback)(nil)
	_ Settler = (*DenyCache)(nil)
	_ Settler = (*Choice)(nil)
	_ Settler = (*Shadow)(nil)

	_ partialTaker = (*Fallback)(nil)
	_ partialTaker = (*DenyCache)(nil)
	_ partialTaker = (*Choice)(nil)
	_ partialTaker = (*Shadow)(nil)
)

package ratelimit

import (
	"context"
	"sync"
	"time"
)

// An operation is what a call does to a key. Each is a variable in the file of its methods: acquire here, look in
// look.go, upTo in upto.go, estimate and charge in settle.go, reserve in reserve.go, hold in holder.go.
type operation struct {
	call Call // as what it is observed

	// unable is the error of l, a Limiter or a Holder without policies, that cannot do it; nil if it can.
	unable func(l any, claim *Claim) error

	// check is the error that c returns before it asks Redis; nil if there is none.
	check func(ctx context.Context, c *core, call *call, claim *Claim) error

	// decide has l, a Limiter or a Holder that can do it, decide the one claim of a call.
	decide func(ctx context.Context, l any, call *call, claim *Claim) outcome

	// forMemory is for how many of n permits a denial is asked for that memory may have; nil: a denial says nothing.
	forMemory func(n int) int
}

// acquire takes n permits. A claim of it may be an estimate or a hold instead, see [call.opOf].
var acquire = &operation{
	call:  callAcquire,
	check: checkTake,
	decide: func(ctx context.Context, l any, _ *call, claim *Claim) (o outcome) {
		o.result, o.err = l.(Limiter).TryAcquireN(ctx, claim.key, claim.n)
		return o
	},
	forMemory: func(n int) int { return n },
}

func checkTake(ctx context.Context, c *core, _ *call, claim *Claim) error {
	return c.check(ctx, claim.key, claim.n)
}

// A call is an operation by one limiter, or by several, all or nothing.
type call struct {
	op      *operation // acquire or look, of one or more claims; of one also upTo, charge and reserve
	claims  []Claim
	split   bool          // where no script reaches all keys, it is one script for each, see TryAcquireAcrossSlots
	group   *group        // of the claims, if it is known
	whole   bool          // only the Result of the claim that governs is asked for
	longest time.Duration // of a reserve
	timing  timing        // of a reserve
	picked  any           // what the Choice in the DenyCache of the one claim has picked; nil: nothing yet
}

// A callSpace is a call with room for its claims.
type callSpace struct {
	call
	space [maxGroup]Claim
}

// calls are those that are over. No call is used after it was decided: what goes on in the background has claims of its own.
var calls = sync.Pool{New: func() any { return new(callSpace) }}

// newCall returns a call without claims, of which done must be called when it is decided.
func newCall(op *operation) *callSpace {
	c := calls.Get().(*callSpace)
	c.op, c.claims = op, c.space[:0]
	return c
}

// done makes c one that can be used again.
func (c *callSpace) done() {
	clear(c.space[:len(c.claims)])
	c.call = call{}
	calls.Put(c)
}

// one reports whether the call is about one claim only.
func (c *call) one() bool { return len(c.claims) == 1 }

// opOf is what the call does with claim i.
func (c *call) opOf(i int) *operation {
	if c.op != acquire {
		return c.op
	}
	return c.claims[i].op()
}

// op is what a call that takes permits does with the claim.
func (c *Claim) op() *operation {
	switch {
	case c.holds():
		return hold
	case c.settle:
		return estimate
	}
	return acquire
}

// opOr is op, or look.
func (c *Claim) opOr(looks bool) *operation {
	if looks {
		return look
	}
	return c.op()
}

// operate decides an operation on one claim of l. want has what else the operation asks for.
func operate(ctx context.Context, l any, op *operation, key string, n int, want call) outcome {
	c := newCall(op)
	c.longest, c.timing, c.picked = want.longest, want.timing, want.picked
	claim := Claim{key: key, n: n}
	if op == estimate {
		c.op, claim.settle = acquire, true
	}
	claim.by(l)
	c.claims = append(c.claims, claim)
	o := c.decide(ctx)
	c.done()
	return o
}

// policied has the operations of a limiter with a policy around it, which embeds it. Each goes through the policies to the
// limiter that decides, see policy.go.
type policied struct {
	by policy // nil: it was not made
}

// operate decides an operation through the policies.
func (p *policied) operate(ctx context.Context, op *operation, key string, n int) outcome {
	if p.by == nil {
		return failedWith(errUnmade)
	}
	return operate(ctx, p.by, op, key, n, call{})
}

// TryAcquire takes one permit of key. It is TryAcquireN(ctx, key, 1).
func (p *policied) TryAcquire(ctx context.Context, key string) (Result, error) {
	o := p.operate(ctx, acquire, key, 1)
	return o.result, o.err
}

// TryAcquireN takes n permits of key, all or none, as the type's documentation says.
func (p *policied) TryAcquireN(ctx context.Context, key string, n int) (Result, error) {
	o := p.operate(ctx, acquire, key, n)
	return o.result, o.err
}

// Peek returns the state of key, and takes nothing. Which limiter is asked is as with TryAcquire.
func (p *policied) Peek(ctx context.Context, key string) (Result, error) {
	o := p.operate(ctx, look, key, 1)
	return o.result, o.err
}

// TryAcquireUpTo takes up to n permits of key, see [TokenBucket.TryAcquireUpTo].
func (p *policied) TryAcquireUpTo(ctx context.Context, key string, n int) (taken int, r Result, err error) {
	o := p.operate(ctx, upTo, key, n)
	return o.taken, o.result, o.err
}

// Estimate takes n permits of key. The Ticket settles them where they were taken, see [Settler].
func (p *policied) Estimate(ctx context.Context, key string, n int) (*Ticket, Result, error) {
	o := p.operate(ctx, estimate, key, n)
	return o.ticket, o.result, o.err
}

// Charge charges n permits of key, see [Settler].
func (p *policied) Charge(ctx context.Context, key string, n int) (Result, error) {
	o := p.operate(ctx, charge, key, n)
	return o.result, o.err
}

// Reserve reserves n permits of key, see [TokenBucket.Reserve].
func (p *policied) Reserve(ctx context.Context, key string, n int, maxWait time.Duration) (*Reservation, error) {
	if p.by == nil {
		return nil, errUnmade
	}
	o := operate(ctx, p.by, reserve, key, n, call{longest: maxWait, timing: realTime})
	return o.reservation, o.err
}

// policiedHolds has the operations of a Holder with a policy around it.
type policiedHolds struct {
	by policy // nil: it was not made
}

// TryAcquire takes one permit of key, if one is free now. It is TryAcquireN(ctx, key, 1).
func (p *policiedHolds) TryAcquire(ctx context.Context, key string) (*Hold, Result, error) {
	return p.TryAcquireN(ctx, key, 1)
}

// TryAcquireN takes n permits of key, all or none, as the type's documentation says.
func (p *policiedHolds) TryAcquireN(ctx context.Context, key string, n int) (*Hold, Result, error) {
	o := (*policied)(p).operate(ctx, acquire, key, n)
	return o.hold, o.result, o.err
}

// Peek returns how many permits of key are free, and takes nothing.
func (p *policiedHolds) Peek(ctx context.Context, key string) (Result, error) {
	o := (*policied)(p).operate(ctx, look, key, 1)
	return o.result, o.err
}

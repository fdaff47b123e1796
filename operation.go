package ratelimit

import (
	"context"
	"sync"
	"time"
)

// An operation is what a call does to a key. Each is a variable in the file of its methods: acquire here, look in
// look.go, upTo in upto.go, estimate, charge and credit in settle.go, reserve in reserve.go, hold in inflight.go.
type operation struct {
	call Call // as what it is observed

	// unable is the error of l, a Limiter or a Holder without policies, that cannot do it; nil if it can.
	unable func(l any, call *call, claim *Claim) error

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
	op       *operation // acquire or look, of one or more claims; of one also upTo, charge and reserve
	claims   []Claim
	split    bool          // where no script reaches all keys, it is one script for each, see TryAcquireAcrossSlots
	group    *group        // of the claims, if it is known
	whole    bool          // only the Result of the claim that governs is asked for
	once     *once         // the id under which permits are taken; nil: none
	longest  time.Duration // of a reserve
	timing   timing        // of a reserve
	fits     bool          // of a reserve: of no more permits than the limiter can have at once
	orAtOnce bool          // of a reserve: a limiter that cannot reserve takes the permits at once, or denies them
	picked   any           // what the Choice in the DenyCache of the one claim has picked; nil: nothing yet
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
	c.longest, c.fits, c.timing, c.picked = want.longest, want.fits, want.timing, want.picked
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

// TryAcquireN takes n permits of key, all or none.
func (p *policied) TryAcquireN(ctx context.Context, key string, n int) (Result, error) {
	o := p.operate(ctx, acquire, key, n)
	return o.result, o.err
}

// Peek returns the state of key, and takes nothing, see [Limiter].
func (p *policied) Peek(ctx context.Context, key string) (Result, error) {
	o := p.operate(ctx, look, key, 1)
	return o.result, o.err
}

// TryAcquireUpTo takes up to n permits of key, see [TokenBucket.TryAcquireUpTo].
func (p *policied) TryAcquireUpTo(ctx context.Context, key string, n int) (taken int, r Result, err error) {
	o := p.operate(ctx, upTo, key, n)
	return o.taken, o.result, o.err
}

// Estimate takes n permits of key, see [Settler].
func (p *policied) Estimate(ctx context.Context, key string, n int) (*Ticket, Result, error) {
	o := p.operate(ctx, estimate, key, n)
	return o.ticket, o.result, o.err
}

// Charge charges n permits of key, see [Settler].
func (p *policied) Charge(ctx context.Context, key string, n int) (Result, error) {
	o := p.operate(ctx, charge, key, n)
	return o.result, o.err
}

// Credit gives n permits of key back, see [Settler].
func (p *policied) Credit(ctx context.Context, key string, n int) (given int, err error) {
	o := p.operate(ctx, credit, key, n)
	return o.taken, o.err
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

// TryAcquireN takes n permits of key, all or none, for one Hold.
func (p *policiedHolds) TryAcquireN(ctx context.Context, key string, n int) (*Hold, Result, error) {
	o := (*policied)(p).operate(ctx, acquire, key, n)
	return o.hold, o.result, o.err
}

// Peek returns how many permits of key are free, and takes nothing.
func (p *policiedHolds) Peek(ctx context.Context, key string) (Result, error) {
	o := (*policied)(p).operate(ctx, look, key, 1)
	return o.result, o.err
}

// mistake is the error that the call gets before Redis is asked, whatever Redis would answer: most are the caller's
// mistakes. A Fallback whose primary is not asked, because of its breaker or its budget, asks this first. So a
// mistake is not answered by a secondary that does not notice it.
func (c *call) mistake(ctx context.Context) error {
	inside, _, err := c.within(func(p picker, at int) (any, error) { return p.of(ctx, c.claims[at].key) })
	switch {
	case err != nil:
		return err
	case inside != nil:
		return inside.mistake(ctx)
	}
	return c.mistakeOfLimiters(ctx)
}

// mistakeOfLimiters is mistake for a call without policies.
func (c *call) mistakeOfLimiters(ctx context.Context) error {
	if err := c.remembered(); err != nil {
		return err
	}
	if c.one() {
		return c.mistakeOfOne(ctx)
	}
	return c.mistakeTogether(ctx)
}

// mistakeOfOne is that of a call of one limiter.
func (c *call) mistakeOfOne(ctx context.Context) error {
	if err := c.unable(); err != nil {
		return err
	}
	claim := &c.claims[0]
	if claim.limiter != nil {
		return c.opOf(0).check(ctx, claim.limiter, c, claim)
	}
	if kindOf(claim.outer).unmade() {
		return errUnmade
	}
	switch l := claim.outer.(type) {
	case *All:
		several := call{op: c.op, claims: l.claims(nil, claim.key, claim.n)}
		return several.mistake(ctx)
	case decidesTogether:
		if c.op == acquire || c.op == look {
			return l.check(ctx, claim.key, claim.n)
		}
	}
	return nil
}

// mistakeTogether is that of a call of several limiters.
func (c *call) mistakeTogether(ctx context.Context) error {
	var onRedis []Claim
	memory := 0
	for _, claim := range c.claims {
		switch l := claim.outer.(type) {
		case *constant, *constantHolds:
			if err := checkLocal(ctx, claim.key, claim.n); err != nil {
				return err
			}
		case nil:
			onRedis = append(onRedis, claim)
		case decidesTogether:
			memory++
			if err := l.check(ctx, claim.key, claim.n); err != nil {
				return err
			}
		default:
			return errAlone(l)
		}
	}
	switch {
	case len(onRedis) == 0:
		return nil
	case memory > 0 && !c.split:
		return errMixed
	}
	return checkOnRedis(ctx, onRedis, c.split)
}

// unable is the error of a limiter that cannot do what the call asks of it, nil if it can.
func (c *call) unable() error {
	claim := &c.claims[0]
	l := claim.decider()
	switch l.(type) {
	case Holder:
		if c.op != acquire && c.op != look || claim.settle {
			return invalidConfig("permits of %s are held, and given back by their Hold; they have no cost to settle, and are not reserved", claim.title())
		}
	case Limiter:
	default:
		return errUnmade
	}
	if op := c.opOf(0); op.unable != nil {
		return op.unable(l, c, claim)
	}
	return nil
}

// cannot is the error for a limiter that cannot do what the call asks for.
func cannot(l any, what string) error {
	remedy := "give a limiter on Redis, or a LocalTokenBucket"
	if _, ok := l.(*All); ok {
		remedy = "give the claims of its limiters (Claims) to TryAcquireAll, with Claim.Estimate where the cost is settled; " +
			"a policy then goes around each limiter, and its claims are those of the policy"
	}
	return invalidConfig("a %T cannot %s; %s", l, what, remedy)
}

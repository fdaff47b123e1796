package ratelimit

import "context"

// mistake is the error that the call gets before Redis is asked, whatever Redis would answer: most are the caller's
// mistakes. A Fallback whose primary is not asked, because of its breaker or its budget, asks this first. So a
// mistake is not answered by a secondary that does not notice it.
func (c *call) mistake(ctx context.Context) error {
	inside, _, err := c.within(func(p picker, at int) (any, error) { return p.pickFor(ctx, c.claims[at].key) })
	switch {
	case err != nil:
		return err
	case inside != nil:
		return inside.mistake(ctx)
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
		return claim.limiter.mistake(ctx, c, claim)
	}
	switch l := claim.outer.(type) {
	case *All:
		several := call{op: c.op, claims: l.claims(nil, claim.key, claim.n)}
		return several.mistake(ctx)
	case decidesTogether:
		if c.op == CallAcquire || c.op == CallPeek {
			return l.precheck(ctx, claim.key, claim.n)
		}
	}
	return nil
}

// mistake is that of a call of c.
func (c *core) mistake(ctx context.Context, op *call, claim *Claim) error {
	switch op.op {
	case CallUpTo:
		return c.checkUpTo(ctx, claim.key, claim.n)
	case CallCharge:
		return c.checkCharge(ctx, claim.key, claim.n)
	case CallReserve:
		return c.checkReserve(ctx, claim.key, claim.n, op.longest)
	}
	return c.check(ctx, claim.key, claim.n)
}

// mistakeTogether is that of a call of several limiters.
func (c *call) mistakeTogether(ctx context.Context) error {
	var onRedis []Claim
	memory := 0
	for _, claim := range c.claims {
		switch l := claim.outer.(type) {
		case constant, constantHolds:
			if err := checkLocal(ctx, claim.key, claim.n); err != nil {
				return err
			}
		case nil:
			onRedis = append(onRedis, claim)
		case decidesTogether:
			memory++
			if err := l.precheck(ctx, claim.key, claim.n); err != nil {
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
	switch l := claim.decider().(type) {
	case Holder:
		if c.op != CallAcquire && c.op != CallPeek || claim.settle {
			return invalidConfig("permits of %s are held, and given back by their Hold; they have no cost to settle, and are not reserved", claim.title())
		}
	case Limiter:
		return unableTo(c.opOf(0), l, claim)
	default:
		return errUnmade
	}
	return nil
}

func unableTo(op Call, l Limiter, claim *Claim) error {
	switch op {
	case CallUpTo:
		if _, ok := l.(partialTaker); !ok {
			return cannot(l, "take a part of what is asked for")
		}
	case CallEstimate, CallCharge:
		if _, ok := l.(Settler); !ok {
			return cannot(l, "settle")
		}
	case CallReserve:
		if !promises(l) {
			return errNoReserve
		}
	case CallPeek:
		if _, ok := l.(*All); ok && claim.settle {
			return cannot(l, "settle")
		}
		if _, ok := l.(looker); !ok && claim.n > 1 {
			return cannot(l, "look for several permits")
		}
	}
	return nil
}

// promises reports whether l may promise permits that are not there yet.
func promises(l Limiter) bool {
	if c, ok := l.(*core); ok {
		return c.waits != nil
	}
	_, ok := l.(promiser)
	return ok && kindOf(l).role != alien // which may do more in its TryAcquireN
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

// errNoReserve says that the limiter that would decide promises no permits.
var errNoReserve = invalidConfig("the limiter cannot reserve; give a token or leaky bucket, or use Wait, which also asks again")

package ratelimit

import "context"

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
			return l.precheck(ctx, claim.key, claim.n)
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
		return op.unable(l, claim)
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

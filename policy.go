package ratelimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"github.com/tryacquire/ratelimit/internal/limitername"
)

// A policy wraps the decision of a call, which is a list of claims: DenyCache, Fallback, Choice,
// Shadow, Leased. Every operation of a limiter goes through it, so that no policy has a method of its own
// for each.
//
// The claims of a call may have different policies around them. They are taken off one kind after
// the other, from the outside, until the limiters are left that decide. One kind at a time wraps the
// call for all claims that have it outermost, so that one call asks Redis once, whoever has a budget.
type policy interface {
	// rank says which kind comes first where claims have several kinds outermost: the lower.
	rank() int

	// around decides c. Those claims in own have a policy of this kind outermost, which around takes
	// off with [Claim.by] before it has c decided. When it has returned, c is used for another call.
	around(ctx context.Context, c *call, own claimSet) outcome
}

// An outagePolicy is a Fallback, of limiters or of holders.
type outagePolicy interface {
	policy
	sides() (primary, secondary any)
}

// A picker is a Choice, of limiters or of holders.
type picker interface {
	policy
	of(ctx context.Context, key string) (any, error) // what is picked
}

// A divider is a policy that makes one claim, or two, of one.
type divider interface {
	policy
	divide(to []Claim, c *call, claim Claim) ([]Claim, error) // adds them
}

// The ranks. A denial from memory needs no Redis, and so comes before an outage. The rest of the order is that
// which docs/composing.md advises.
const (
	rankChoice = iota
	rankShadow
	rankDenyCache
	rankFallback
	rankBans // the limiters decide together with the pauses
	rankLeased
)

// An outcome is the answer to a call.
type outcome struct {
	result      Result // of the claim that governs
	err         error  // there is no decision
	taken       int    // by a callUpTo
	ticket      *Ticket
	hold        *Hold
	reservation *Reservation
	bucket      bool         // see PartResult
	parts       []PartResult // of several claims; with them they have the tickets and the holds
	joined      claimSet     // claims that count together with another one: their answers are about the sum
}

// failedWith is the outcome of a call without a decision.
func failedWith(err error) outcome { return outcome{err: err} }

// part is the answer to claim i.
func (o *outcome) part(i int) *Result {
	if o.parts == nil {
		return &o.result
	}
	return &o.parts[i].Result
}

// ticketOf is where the ticket of claim i is.
func (o *outcome) ticketOf(i int) *Ticket {
	if o.parts == nil {
		return o.ticket
	}
	return o.parts[i].Ticket
}

// all is the outcome as an AllResult.
func (o *outcome) all(c *call) (AllResult, error) {
	if o.err != nil {
		return AllResult{}, o.err
	}
	if o.parts == nil {
		o.parts = []PartResult{{Result: o.result, Ticket: o.ticket, Hold: o.hold, bucket: o.bucket}}
	}
	for i, claim := range c.claims {
		name := cmp.Or(claim.name, o.parts[i].Name)
		if name == "" && claim.limiter != nil {
			name = claim.limiter.name
		}
		o.parts[i].Name, o.parts[i].Key = cmp.Or(name, limitername.Default), claim.key
	}
	return AllResult{Result: o.result, Parts: o.parts, Repeated: o.repeated()}, nil
}

// repeated reports whether the answer is that of an earlier call with the id.
func (o *outcome) repeated() bool {
	return slices.ContainsFunc(o.parts, func(p PartResult) bool { return p.repeated || p.Hold != nil && p.Hold.again })
}

// hearersOf is who hears of what is given back of claim i, nil if nothing can be.
func (o *outcome) hearersOf(i int) **hearers {
	if ticket := o.ticketOf(i); ticket != nil {
		return &ticket.hearers
	}
	if o.reservation != nil {
		return &o.reservation.hearers
	}
	return nil
}

// undo gives back what a call has taken whose caller has left. Permits taken without a ticket stay taken.
func (o *outcome) undo(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTime)
	defer cancel()
	defer func() { _ = recover() }() // of the client's hooks; nobody waits for this call
	if o.ticket != nil {
		_ = o.ticket.Settle(ctx, 0)
	}
	o.hold.undo(ctx)
	if o.reservation != nil {
		_ = o.reservation.giveBack(ctx)
	}
	for _, p := range o.parts {
		if p.Ticket != nil {
			_ = p.Ticket.Settle(ctx, 0)
		}
		p.Hold.undo(ctx)
	}
}

// A claimSet is a set of claims by their places in a call, of which it has at most maxGroup.
type claimSet uint8

func (s claimSet) has(i int) bool { return s>>i&1 == 1 }

// all is the set of n claims.
func all(n int) claimSet { return 1<<n - 1 }

// first is the first claim of the set.
func (s claimSet) first() int { return bits.TrailingZeros8(uint8(s)) }

// by makes c a claim on l, which is a Limiter or a Holder.
func (c *Claim) by(l any) {
	c.limiter, c.outer = nil, l
	switch k := kindOf(l); {
	case k.core != nil:
		c.limiter, c.outer = k.core, nil
	case k.absent:
		c.outer = nil
		return
	}
	if _, picks := l.(picker); c.name == "" && !picks { // the name is that of the picked limiter
		if named, ok := l.(interface{ Name() string }); ok {
			c.name = named.Name()
		}
	}
}

// claimOn is a claim on l.
func claimOn(l any, key string, n int) Claim {
	c := Claim{key: key, n: n}
	c.by(l)
	return c
}

// outermost returns the kind of policy that comes first, nil if none is left, and the claims that have it outermost.
func (c *call) outermost() (next policy, own claimSet) {
	for i := range c.claims {
		p, ok := c.claims[i].outer.(policy)
		switch {
		case !ok:
		case next == nil || p.rank() < next.rank():
			next, own = p, 1<<i
		case p.rank() == next.rank():
			own |= 1 << i
		}
	}
	return next, own
}

// decide takes off the policies that come first, or has the limiters decide.
func (c *call) decide(ctx context.Context) outcome {
	next, own := c.outermost()
	switch {
	case next != nil:
		return next.around(ctx, c, own)
	case c.once != nil:
		if err := c.remembered(); err != nil {
			return failedWith(err)
		}
		if c.one() && c.claims[0].limiter != nil {
			return c.decideOnRedis(ctx, c.claims)
		}
	}
	if c.one() {
		return c.decideOne(ctx)
	}
	return c.decideTogether(ctx)
}

// decideOne has the one limiter decide.
func (c *call) decideOne(ctx context.Context) outcome {
	if err := c.unable(); err != nil {
		return failedWith(err)
	}
	claim := &c.claims[0]
	o := c.opOf(0).decide(ctx, claim.decider(), c, claim)
	o.bucket = claim.isBucket()
	return o
}

// decider is what decides the claim once its policies are taken off, a Limiter or a Holder; nil if it was not made.
func (c *Claim) decider() any {
	switch {
	case c.limiter == nil && kindOf(c.outer).absent:
		return nil
	case c.limiter == nil:
		return c.outer
	}
	return c.limiter.decider
}

func (c *Claim) isBucket() bool {
	if c.limiter != nil {
		return c.limiter.isBucket()
	}
	return kindOf(c.outer).bucket
}

// decideTogether has several limiters decide, all or nothing: all on Redis, or all in memory.
// AllowAll and DenyAll may stand beside either.
func (c *call) decideTogether(ctx context.Context) outcome {
	var elsewhere, memory claimSet // the claims that are not on Redis, and those of them on limiters in memory
	for i := range c.claims {
		claim := &c.claims[i]
		switch l := claim.outer.(type) {
		case nil:
			if claim.limiter == nil {
				return failedWith(errUnmade)
			}
			continue
		case *constant, *constantHolds:
		case decidesTogether:
			memory |= 1 << i
		default:
			return failedWith(errAlone(l))
		}
		elsewhere |= 1 << i
	}
	if elsewhere == 0 {
		return c.decideOnRedis(ctx, c.claims)
	}
	var rest []Claim
	var places [maxGroup]int
	parts := make([]PartResult, len(c.claims))
	for i := range c.claims {
		claim := &c.claims[i]
		if !isConstant(claim.outer) {
			places[len(rest)] = i
			rest = append(rest, *claim)
			continue
		}
		o := c.opOf(i).decide(ctx, claim.outer, c, claim)
		if o.err != nil {
			return o
		}
		if parts[i] = (PartResult{Result: o.result, Hold: o.hold, Ticket: o.ticket}); !o.result.Allowed {
			return c.denied(i, o.result)
		}
	}
	var o outcome
	switch {
	case len(rest) == 0:
	case memory == 0:
		o = c.decideOnRedis(ctx, rest)
	case bits.OnesCount8(uint8(memory)) == len(rest):
		o = outcomeOf(decideInMemory(ctx, rest, c.op == look))
	case !c.split:
		o = failedWith(errMixed)
	default:
		o = outcomeOf(decideMixed(ctx, rest, c.op == look))
	}
	if o.err != nil {
		var slots *slotErrors
		if errors.As(o.err, &slots) {
			slots.failed = slots.failed.at(places)
		}
		return o
	}
	for i, p := range o.parts {
		parts[places[i]] = p
	}
	o = outcome{parts: parts, joined: joinedOf(c.claims)}
	for i, p := range parts {
		if i == 0 {
			o.result = p.Result
		} else {
			o.result = governs(o.result, p.Result)
		}
	}
	return o
}

// outcomeOf is the outcome of a decision about several claims.
func outcomeOf(r AllResult, err error) outcome {
	return outcome{result: r.Result, parts: r.Parts, err: err}
}

// joinedOf is the claims of one key of one limiter. The policies have been taken off.
func joinedOf(claims []Claim) (all claimSet) {
	for i, a := range claims {
		for j, b := range claims[:i] {
			same := a.limiter == nil && b.limiter == nil && a.outer == b.outer // in memory
			if a.limiter != nil && b.limiter != nil {
				same = a.limiter.head == b.limiter.head
			}
			if a.key == b.key && same {
				all |= 1<<i | 1<<j
			}
		}
	}
	return all
}

// at is the set with each place replaced.
func (s claimSet) at(places [maxGroup]int) (to claimSet) {
	for i, place := range places {
		if s.has(i) {
			to |= 1 << place
		}
	}
	return to
}

// denied is the denial of a call by claim i alone, before the others were asked.
func (c *call) denied(i int, r Result) outcome {
	if c.one() {
		return outcome{result: r}
	}
	parts := make([]PartResult, len(c.claims))
	for j := range parts {
		parts[j].Unknown = j != i
	}
	parts[i].Result = r
	return outcome{result: r, parts: parts}
}

// errMixed is the refusal of limiters of which some decide on Redis and some in memory.
var errMixed = invalidConfig("some of the limiters decide on Redis and some in memory, so that nothing decides them together; " +
	"as secondaries of one call, give limiters in memory to all of them, or limiters on one other client to all of them")

// errAlone is the error for a limiter that decides only on its own, or was not made.
func errAlone(l any) error {
	switch k := kindOf(l); {
	case k.unmade():
		return errUnmade
	case k.role == several:
		return invalidConfig("a *ratelimit.All is several limiters; claim each of them, as its method Claims does")
	}
	return invalidConfig("a %T decides on its own, and cannot take its permits together with others", l)
}

// check returns the error that the call would get for its limiters whatever their keys hold, as far
// as that is known: a Choice may pick any limiter.
func (c *call) check() error {
	inside, secondaries, err := c.within(func(p picker, _ int) (any, error) {
		if kindOf(p).absent {
			return nil, errUnmade
		}
		return nil, nil
	})
	switch {
	case err != nil:
		return err
	case inside == nil:
		return c.mistakeOfLimiters(context.Background())
	}
	if err := inside.check(); err != nil || secondaries == nil {
		return err
	}
	if err := secondaries.check(); err != nil {
		return fmt.Errorf("%w (the secondaries of a call that an outage meets)", err)
	}
	return nil
}

// within takes off the call's outermost policies. inside is the call without them; it is nil if there are none.
// secondaries is the call that decides in an outage; it is nil if a claim has no secondary, so that the outage is an
// error. pick says which limiter a Choice has for the claim at an index; if that is nil, the claim is left out.
func (c *call) within(pick func(p picker, at int) (any, error)) (inside, secondaries *call, err error) {
	next, own := c.outermost()
	if next == nil {
		return nil, nil, nil
	}
	inside, secondaries = new(call), new(call)
	*inside, *secondaries = *c, *c
	inside.claims, secondaries.claims = nil, nil
	for i, claim := range c.claims {
		if !own.has(i) {
			inside.claims = append(inside.claims, claim)
			continue
		}
		switch p := claim.outer.(type) {
		case picker:
			picked, err := pick(p, i)
			if err != nil {
				return nil, nil, err
			}
			if picked != nil {
				inside.add(claim, picked)
			}
		case outagePolicy:
			primary, secondary := p.sides()
			inside.add(claim, primary)
			secondaries.add(claim, secondary)
		case divider:
			if inside.claims, err = p.divide(inside.claims, c, claim); err != nil {
				return nil, nil, err
			}
		default:
			k := kindOf(p)
			if k.absent || k.inside == nil {
				return nil, nil, errUnmade
			}
			inside.add(claim, k.inside)
		}
	}
	if len(secondaries.claims) < len(c.claims) {
		secondaries = nil
	}
	return inside, secondaries, nil
}

// add adds a claim that l decides.
func (c *call) add(claim Claim, l any) {
	claim.by(l)
	c.claims = append(c.claims, claim)
}

// A hearer must hear of permits that are given back: the memory of a [DenyCache] forgets the key's denials, the trial
// of a [Shadow] gives back as much, a secondary that follows its primary begins an outage with them.
type hearer interface {
	// givesBack is called before permits of key that a call took are given back or charged: actual stays of n. done
	// is called after it, with its error.
	givesBack(ctx context.Context, key string, n, actual int) (done func(error))
}

// hearers are all that hear of what a claim takes and gives back, at once or late, by the caller or by the library for
// one who left. A policy that remembers denials adds itself to the claim before the call is decided; so also what no
// caller gets to know of is heard. A trial and a secondary add themselves to the ticket or the reservation. It is a list,
// of which the end is shared; nil is nobody.
type hearers struct {
	hearer
	others *hearers
}

// and is h, and x.
func (h *hearers) and(x hearer) *hearers { return &hearers{x, h} }

// beside is h, and x, of which nothing is allocated if it is alone.
func (h *hearers) beside(x *hearers) *hearers {
	if h == nil {
		return x
	}
	return h.and(x.hearer)
}

// with is h, and all others.
func (h *hearers) with(others *hearers) *hearers {
	if h == nil {
		return others
	}
	for ; others != nil; others = others.others {
		h = h.and(others.hearer)
	}
	return h
}

// givesBack is that of all of them.
func (h *hearers) givesBack(ctx context.Context, key string, n, actual int) (done func(error)) {
	if h == nil {
		return func(error) {}
	}
	last, others := h.hearer.givesBack(ctx, key, n, actual), h.others.givesBack(ctx, key, n, actual)
	return func(err error) {
		others(err)
		last(err)
	}
}

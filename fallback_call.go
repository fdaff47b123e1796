package ratelimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tryacquire/ratelimit/internal/deadline"
	"github.com/tryacquire/ratelimit/internal/errclass"
)

// An outagePolicy is a Fallback, of limiters or of holders.
type outagePolicy interface {
	policy
	outage() (settings *Fallback, primary, secondary any) // settings is nil if it was not made
}

func (f *Fallback) rank() int { return rankFallback }

func (f *Fallback) outage() (settings *Fallback, primary, secondary any) {
	if f == nil || f.primary == nil {
		return nil, nil, nil
	}
	return f, f.primary, f.secondary
}

func (f *Fallback) around(ctx context.Context, c *call, own claimSet) outcome {
	return withinOutages(ctx, c, own)
}

// A joint is the Fallback of one call: the smallest budget and the breakers of all Fallbacks
// around its claims. Its primary is the call by their primaries, its secondary the call by their
// secondaries, both all or nothing.
type joint struct {
	Fallback
	call  *call    // as the caller made it
	own   claimSet // the claims with a Fallback
	space [maxGroup]*Fallback

	inner call // by the primaries
	out   outcome
	outer call // by the secondaries
	sec   outcome
	asked claimSet // those by their secondaries
	why   error    // for which the secondaries are asked

	partly outcome // by the secondaries of the claims whose servers failed, and the primaries of the others

	tooMuch int      // the claim of more permits than its secondary can ever allow
	one     [2]Claim // of inner and outer, if they have one
}

func withinOutages(ctx context.Context, c *call, own claimSet) outcome {
	j := &joint{call: c, own: own, inner: *c, outer: *c}
	if c.one() {
		j.one[0], j.one[1] = c.claims[0], c.claims[0]
		j.inner.claims, j.outer.claims = j.one[:1:1], j.one[1:]
	} else {
		n := len(c.claims)
		both := make([]Claim, 2*n)
		j.inner.claims, j.outer.claims = both[:n:n], both[n:]
		copy(j.inner.claims, c.claims)
		copy(j.outer.claims, c.claims)
	}
	var guards breakers
	observed := false
	for i := range c.claims {
		if !own.has(i) {
			continue
		}
		f, primary, secondary := c.claims[i].outer.(outagePolicy).outage()
		if f == nil {
			return failedWith(errUnmade)
		}
		j.space[i] = f
		j.inner.claims[i].by(primary)
		j.outer.claims[i].by(secondary)
		observed = observed || f.watch != nil
		if f.budget > 0 && (j.budget == 0 || f.budget < j.budget) {
			j.budget, j.bound = f.budget, f.bound
		}
		if f.breaker != nil {
			guards = guards.with(f.breaker.(*Breaker)) // only a joint has several
		}
	}
	switch len(guards) {
	case 0:
	case 1:
		j.breaker = guards[0]
	default:
		j.breaker = guards
	}
	j.primary, j.secondary = (*jointPrimary)(j), (*jointSecondary)(j)
	q := question{key: c.claims[own.first()].key, joint: j}
	if observed {
		q.began = time.Now()
	}
	r, err := j.decide(ctx, q)
	switch {
	case err != nil:
		return failedWith(err)
	case j.asked == 0:
		return j.out
	}
	o := j.sec
	o.result = r
	for i := range o.parts {
		if j.asked.has(i) {
			o.parts[i].Result.Fallback = true
		}
	}
	return o
}

// primaries is the call as the caller made it, by the primaries.
func (j *joint) primaries() *call {
	c := *j.call
	c.claims = slices.Clone(c.claims)
	for i, f := range j.space {
		if f != nil {
			_, primary, _ := c.claims[i].outer.(outagePolicy).outage()
			c.claims[i].by(primary)
		}
	}
	return &c
}

// report reports to each Fallback around a claim what became of that claim.
func (j *joint) report(ctx context.Context, began time.Time, o Observation) {
	answered := o.Err == nil
	for i, claim := range j.call.claims {
		f := j.space[i]
		if f == nil || f.watch == nil || answered && j.sec.parts != nil && j.sec.parts[i].Unknown { // nobody asked it
			continue
		}
		o.Call, o.Key, o.N = j.call.opOf(i), claim.key, claim.n
		if answered && j.sec.parts != nil {
			allowed := o.Result.Allowed
			p := o
			if p.Result = j.sec.parts[i].Result; !allowed && p.Result.Allowed {
				p.Outcome = OutcomeUntaken
			}
			p.Result.Fallback = j.asked.has(i)
			f.watched(ctx, began, p)
			continue
		}
		if o.Call == CallUpTo {
			o.Taken = j.sec.taken
		}
		f.watched(ctx, began, o)
	}
}

// note passes the primaries' answers on. Permits that are promised for later are used in an outage
// that begins before: the secondary begins it without them.
func (j *joint) note(ctx context.Context) {
	if r := j.out.reservation; r != nil && r.delay > 0 {
		f := j.space[0]
		if local, ok := f.secondary.(*LocalTokenBucket); ok && !f.follows {
			local.owe(r.key, r.n)
		}
	}
	for i, f := range j.space {
		if f == nil || !f.follows || j.out.parts != nil && j.out.parts[i].Unknown {
			continue
		}
		key, r := j.call.claims[i].key, *j.out.part(i)
		local := follower(ctx, f.secondary, key)
		if local == nil {
			continue
		}
		local.note(key, r)
		if hearers := j.out.hearersOf(i); hearers != nil {
			*hearers = (*hearers).and(&lastAnswer{local, r.Limit})
		}
	}
}

// late gives back what the primaries have taken for a caller that has left.
func (j *joint) late(ctx context.Context) {
	if j.out.err == nil {
		j.out.undo(ctx)
	}
	if j.partly.err == nil {
		j.partly.undo(ctx)
	}
}

// jointPrimary is the primary of a joint.
type jointPrimary joint

func (p *jointPrimary) TryAcquire(ctx context.Context, key string) (Result, error) {
	return p.TryAcquireN(ctx, key, 1)
}

// TryAcquireN decides the call by the primaries. If some of several servers failed, it also decides it by the secondaries
// of their claims, beside the primaries of the others, so that this is within the same budget. The breakers hear of
// the failure.
func (p *jointPrimary) TryAcquireN(ctx context.Context, _ string, _ int) (Result, error) {
	p.out = p.inner.decide(ctx)
	if failed := failedSlots(p.out.err); p.call.split && failed != 0 && deadline.Ended(ctx) == nil && !lapsed(ctx) {
		p.partly = (*joint)(p).decidePartly(ctx, failed)
	}
	return p.out.result, p.out.err
}

// failedSlots is the claims of a split call whose servers failed, none if err says nothing of that.
func failedSlots(err error) claimSet {
	var slots *slotErrors
	if errors.As(err, &slots) && errclass.Is(err, errclass.Outage) {
		return slots.failed
	}
	return 0
}

// lapsed reports whether the budget of the attempt that ctx belongs to is over, so that all secondaries decide.
func lapsed(ctx context.Context) bool {
	a, ok := ctx.(*attempt)
	return ok && a.settled.Load()
}

// decidePartly decides the call by the secondaries of the failed claims, and the primaries of the others.
func (j *joint) decidePartly(ctx context.Context, failed claimSet) outcome {
	c := j.primaries()
	for i := range c.claims {
		switch claim := &j.call.claims[i]; {
		case !failed.has(i):
		case j.own.has(i):
			_, _, secondary := claim.outer.(outagePolicy).outage()
			c.claims[i].by(secondary)
		case !isConstant(claim.outer):
			return failedWith(errNoSecondary(claim))
		}
	}
	return c.decide(ctx)
}

func (p *jointPrimary) Peek(ctx context.Context, key string) (Result, error) {
	return p.TryAcquireN(ctx, key, 1)
}
func (p *jointPrimary) Reset(context.Context, string) error { return errUnmade }

// jointSecondary is the secondary of a joint.
type jointSecondary joint

func (s *jointSecondary) TryAcquire(ctx context.Context, key string) (Result, error) {
	return s.TryAcquireN(ctx, key, 1)
}

// TryAcquireN decides the call by the secondaries. A claim without a Fallback has none, and the call
// gets no decision.
func (s *jointSecondary) TryAcquireN(ctx context.Context, _ string, _ int) (Result, error) {
	if failed := failedSlots(s.why); s.call.split && failed != 0 && !errclass.Is(s.partly.err, errclass.Outage) {
		s.asked, s.sec = s.own&failed, s.partly
		return s.sec.result, s.sec.err
	}
	s.asked = s.own
	for i := range s.call.claims {
		if claim := &s.call.claims[i]; !s.own.has(i) && !isConstant(claim.outer) {
			return Result{}, errNoSecondary(claim)
		}
	}
	s.sec = s.outer.decide(ctx)
	return s.sec.result, s.sec.err
}

// Peek says how the secondary stands that can never allow its claim.
func (s *jointSecondary) Peek(ctx context.Context, _ string) (Result, error) {
	at := s.asked.first()
	for i, claim := range s.outer.claims {
		if most := claim.most(); s.asked.has(i) && most > 0 && claim.n > most {
			at = i
			break
		}
	}
	s.tooMuch = at
	claims := [1]Claim{s.outer.claims[at]}
	claims[0].n = 1 // a look for more than it can ever allow is an error
	look := call{op: CallPeek, claims: claims[:]}
	o := look.decide(ctx)
	if o.err != nil {
		o.result = Result{Limit: claims[0].most()}
	}
	return o.result, nil
}

func (s *jointSecondary) Reset(context.Context, string) error { return errUnmade }

// breakers are several breakers, around the claims of one call. A call asks the primaries only if
// all allow it. They are asked in the order in which they were made, so that two calls do not keep
// each other from probing.
type breakers []*Breaker

// with has one more, unless it is among them.
func (all breakers) with(b *Breaker) breakers {
	at, found := slices.BinarySearchFunc(all, b, func(a, b *Breaker) int { return cmp.Compare(a.made, b.made) })
	if !found {
		all = slices.Insert(all, at, b)
	}
	return all
}

func (all breakers) begin() func(error) {
	done := make([]func(error), 0, len(all))
	end := func(verdict error) {
		for i, d := range done {
			all[i].end(d, verdict)
		}
	}
	for _, b := range all {
		d := b.begin()
		if d == nil {
			end(errNeutral)
			return nil
		}
		done = append(done, d)
	}
	return end
}

func (all breakers) end(done func(error), verdict error) { done(verdict) }

// State is that of the breaker that keeps calls from the primary longest.
func (all breakers) State() BreakerState {
	s := BreakerClosed
	for _, b := range all {
		s = max(s, b.State())
	}
	return s
}

func (all breakers) untilProbe() time.Duration {
	var longest time.Duration
	for _, b := range all {
		longest = max(longest, b.untilProbe())
	}
	return longest
}

// errNoSecondary says why an outage is an error.
func errNoSecondary(c *Claim) error {
	return fmt.Errorf("%s has no policy for outages; put a Fallback around it", c.title())
}

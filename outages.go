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
	"github.com/tryacquire/ratelimit/internal/guard"
	"github.com/tryacquire/ratelimit/internal/limitername"
	"github.com/tryacquire/ratelimit/internal/redisclient"
)

// outages is the policy of a Fallback, of limiters or of holders, which embeds it.
type outages struct {
	primary, secondary any
	most               int // permits that one call can get from the primary; 0: not known
	guard              guard.Guard
	follows            bool   // the secondary may be one that notes the primary's answers, see [localFor]
	name               string // of what is observed
	watch              *watch // nil: nobody observes
}

// build makes the policy around a primary.
func (f *outages) build(by constructors, primary, secondary any, opts []PolicyOption) error {
	s, err := collect(by, opts)
	if err != nil {
		return err
	}
	if s.breaker != nil && hasBreaker(primary, s.breaker) {
		return invalidConfig("%s: the primary already has the breaker of WithBreaker; give it to one of the two only", by)
	}
	f.primary, f.secondary, f.most = primary, secondary, kindOf(primary).most
	f.name = cmp.Or(s.name, limitername.Of(primary))
	f.watch = s.watch(f.name)
	if f.follows, err = mayFollow(secondary); err != nil {
		return err
	}
	if s.breaker != nil {
		f.guard.Breakers = guard.Breakers{s.breaker.begun()}
		s.breaker.reportTo(f.watch)
	}
	if f.guard.Budget = s.budget; s.budget > 0 {
		f.guard.Bound = guard.BoundOf(clientOf(primary))
	}
	return nil
}

func (f *outages) kind(self any) kind {
	return kind{self: self, role: decorator, inside: f.primary, most: f.most}
}

// Name returns the name of WithName, and without it the primary's: clients and observers know the limit by it, whoever
// answers.
func (f *outages) Name() string { return f.name }

func (f *outages) outage() *outages { return f }

func (f *outages) sides() (primary, secondary any) { return f.primary, f.secondary }

func (f *outages) rank() int { return rankFallback }

// around decides a call by the primaries of its claims, or in an outage by their secondaries.
func (*outages) around(ctx context.Context, c *call, own claimSet) outcome {
	g := newGuarded(c, own)
	if key := c.claims[own.first()].key; checkKey(key) != nil {
		err := checkKey(key)
		g.report(ctx, Observation{Err: err})
		return failedWith(err)
	}
	err := g.guard.Do(ctx, g)
	if err == nil {
		g.note(ctx)
		return g.out
	}
	left, gone := err.(*guard.Left)
	switch {
	case gone:
		return g.gone(ctx, left.End)
	case !errclass.Is(err, errclass.Outage):
		return failedWith(err)
	case !guard.NotAnswered(err):
		if end := deadline.Ended(ctx); end != nil {
			if !errors.Is(err, end) {
				err = fmt.Errorf("%w; %w", err, end)
			}
			return failedWith(err)
		}
	}
	return g.askSecondaries(ctx, err)
}

// A guarded is a call with Fallbacks around its claims: the smallest of their budgets and all of their breakers count. It
// is decided by the primaries, or in an outage by the secondaries, all or nothing.
type guarded struct {
	guard    *guard.Guard
	call     call               // as the caller made it
	own      claimSet           // the claims with a Fallback
	outages  [maxGroup]*outages // of the claims
	observed bool               // by one of them
	began    time.Time          // if it is observed

	inner  call    // by the primaries
	out    outcome // of it
	partly outcome // by the secondaries of the claims whose servers failed, and the primaries of the others

	asked claimSet // those by their secondaries
	sec   outcome  // of the secondaries

	space [2]Claim // of call and inner, if they have one
}

func newGuarded(c *call, own claimSet) *guarded {
	g := &guarded{call: *c, own: own, inner: *c}
	if n := len(c.claims); n == 1 {
		g.call.claims, g.inner.claims = g.space[:1:1], g.space[1:]
	} else {
		both := make([]Claim, 2*n)
		g.call.claims, g.inner.claims = both[:n:n], both[n:]
	}
	copy(g.call.claims, c.claims)
	copy(g.inner.claims, c.claims)
	for i := range c.claims {
		if !own.has(i) {
			continue
		}
		f := c.claims[i].outer.(interface{ outage() *outages }).outage()
		g.outages[i] = f
		g.inner.claims[i].by(f.primary)
		g.observed = g.observed || f.watch != nil
		if g.guard == nil {
			g.guard = &f.guard
		} else {
			g.guard = both(g.guard, &f.guard)
		}
	}
	if g.observed {
		g.began = time.Now()
	}
	return g
}

// both is what two guards are together.
func both(a, b *guard.Guard) *guard.Guard {
	all := *a
	if b.Budget > 0 && (all.Budget == 0 || b.Budget < all.Budget) {
		all.Budget, all.Bound = b.Budget, b.Bound
	}
	all.Breakers = slices.Clone(all.Breakers)
	for _, breaker := range b.Breakers {
		all.Breakers = all.Breakers.With(breaker)
	}
	return &all
}

// Ask decides the call by the primaries. If some of several servers failed, it also decides it by the secondaries
// of their claims, beside the primaries of the others, so that this is within the same budget. The breakers hear of
// the failure.
func (g *guarded) Ask(ctx context.Context) error {
	g.out = g.inner.decide(ctx)
	if failed := g.failedSlots(g.out.err); failed != 0 && deadline.Ended(ctx) == nil && !guard.Lapsed(ctx) {
		g.partly = g.decideBy(ctx, failed)
	}
	return g.out.err
}

// GiveBack gives back what the primaries have taken for a caller that has left.
func (g *guarded) GiveBack(ctx context.Context) {
	if g.out.err == nil {
		g.out.undo(ctx)
	}
	if g.partly.err == nil {
		g.partly.undo(ctx)
	}
}

// failedSlots is the claims of a split call whose servers failed, none if err says nothing of that.
func (g *guarded) failedSlots(err error) claimSet {
	if !g.call.split || !errclass.Is(err, errclass.Outage) {
		return 0
	}
	var slots *slotErrors
	if errors.As(err, &slots) {
		return slots.failed
	}
	return 0
}

// by is the call by the secondaries of these claims, and the primaries of the others.
func (g *guarded) by(secondaries claimSet) *call {
	c := g.call
	c.claims = slices.Clone(c.claims)
	for i, f := range g.outages {
		switch {
		case f == nil:
		case secondaries.has(i):
			c.claims[i].by(f.secondary)
		default:
			c.claims[i].by(f.primary)
		}
	}
	return &c
}

// decideBy decides the call by the secondaries of these claims, and the primaries of the others. A claim without a
// Fallback has no secondary, and the call gets no decision.
func (g *guarded) decideBy(ctx context.Context, secondaries claimSet) outcome {
	for i := range g.call.claims {
		if claim := &g.call.claims[i]; secondaries.has(i) && !g.own.has(i) && !isConstant(claim.outer) {
			return failedWith(fmt.Errorf("%s has no policy for outages; put a Fallback around it", claim.title()))
		}
	}
	c := g.by(secondaries)
	c.orAtOnce, c.fits = true, true // what a secondary can never have at once, the primary may have
	if c.once != nil {
		c.once = &once{id: c.once.id, ttl: c.once.ttl, lenient: true}
	}
	return c.decide(ctx)
}

// askSecondaries returns the secondaries' answer. why is the reason that the primaries did not decide.
func (g *guarded) askSecondaries(ctx context.Context, why error) outcome {
	if end := deadline.Ended(ctx); end != nil {
		return g.gone(ctx, end)
	}
	if guard.NotAnswered(why) {
		if err := g.by(0).mistake(ctx); err != nil {
			if !errors.Is(err, errNoReserve) { // the caller asks otherwise
				g.report(ctx, Observation{Err: err})
			}
			return failedWith(err)
		}
	}
	if failed := g.failedSlots(why); failed != 0 && !errclass.Is(g.partly.err, errclass.Outage) {
		g.asked, g.sec = g.own&failed, g.partly
	} else {
		g.asked, g.sec = g.own, g.decideBy(ctx, all(len(g.call.claims)))
	}
	if errors.Is(g.sec.err, ErrExceedsLimit) {
		g.sec = g.denyUntilPrimary(ctx)
	}
	key := shortKey(g.call.claims[g.own.first()].key)
	switch err := g.sec.err; {
	case err == nil:
		g.sec.result.Fallback = true
		if g.sec.reservation != nil {
			g.sec.reservation.result.Fallback = true
		}
		for i := range g.sec.parts {
			if g.asked.has(i) {
				g.sec.parts[i].Result.Fallback = true
			}
		}
	case errors.Is(err, ErrInvalidConfig): // of the secondary; why there is no decision is the primary's outage
		g.sec = failedWith(fmt.Errorf("ratelimit: fallback for %s: primary: %w; secondary: %v", key, why, err))
	case errclass.IsMistake(err): // the call's own; a primary may have returned the same
		g.sec = failedWith(err)
	case errors.Is(err, ErrWaitTooLong): // a denial
	default:
		g.sec = failedWith(fmt.Errorf("ratelimit: fallback for %s: primary: %w; secondary: %w", key, why, err))
	}
	g.report(ctx, Observation{Source: SourceFallback, Result: g.sec.result, Err: g.sec.err, Reason: why})
	return g.sec
}

// denyUntilPrimary is the denial of a call for which a secondary returned ErrExceedsLimit. The primary may allow as many
// permits, so the call is worth a retry when the primary is asked again. The rest says how the secondary stands.
func (g *guarded) denyUntilPrimary(ctx context.Context) outcome {
	c := g.by(g.asked)
	at := g.asked.first()
	for i, claim := range c.claims {
		if most := claim.most(); g.asked.has(i) && most > 0 && claim.n > most {
			at = i
			break
		}
	}
	claim := c.claims[at]
	claim.n = 1 // a look for more than it can ever allow is an error
	o := (&call{op: look, claims: []Claim{claim}}).decide(ctx)
	if o.err != nil {
		o.result = Result{Limit: claim.most()}
	}
	o.result.Allowed = false
	o.result.RetryAfter = cmp.Or(g.guard.Breakers.UntilProbe(), retryWithoutBreaker)
	if g.call.op == reserve {
		return g.call.reservedAtOnce(o)
	}
	return g.call.denied(at, o.result)
}

// retryWithoutBreaker is the RetryAfter of denyUntilPrimary without a breaker, when every
// call asks the primary. It is that of DenyAll.
const retryWithoutBreaker = time.Second

// gone is the outcome of a call whose context ended before anybody answered.
func (g *guarded) gone(ctx context.Context, end error) outcome {
	err := fmt.Errorf("ratelimit: fallback for %s: %w", shortKey(g.call.claims[g.own.first()].key), end)
	g.report(ctx, Observation{Err: err})
	return failedWith(err)
}

// report reports to each Fallback around a claim what became of that claim.
func (g *guarded) report(ctx context.Context, o Observation) {
	if !g.observed {
		return
	}
	answered := o.Err == nil
	for i, claim := range g.call.claims {
		f := g.outages[i]
		if f == nil || f.watch == nil || answered && g.sec.parts != nil && g.sec.parts[i].Unknown { // nobody asked it
			continue
		}
		p := o
		p.Call, p.Key, p.N = g.call.opOf(i).call, claim.key, claim.n
		if answered && g.sec.parts != nil {
			if p.Result = g.sec.parts[i].Result; !o.Result.Allowed && p.Result.Allowed {
				p.Outcome = OutcomeUntaken
			}
		} else if p.Call == callUpTo {
			p.Taken = g.sec.taken
		}
		f.report(ctx, g.began, p)
	}
}

// report reports a call that the primary did not answer.
func (f *outages) report(ctx context.Context, began time.Time, o Observation) {
	if len(f.guard.Breakers) > 0 {
		o.Breaker = BreakerState(f.guard.Breakers.State())
	}
	f.watch.end(ctx, began, o)
}

// note passes the primaries' answers on. Permits that are promised for later are used in an outage
// that begins before: the secondary begins it without them.
func (g *guarded) note(ctx context.Context) {
	if r := g.out.reservation; r != nil && r.delay > 0 {
		if local := localFor(ctx, g.outages[0].secondary, r.key); local != nil && !local.follow {
			local.buckets.Owe(r.key, r.n)
		}
	}
	if g.out.repeated() { // it is an answer of before
		return
	}
	for i := range g.call.claims {
		f := g.outages[i]
		if f == nil || !f.follows || g.out.parts != nil && g.out.parts[i].Unknown {
			continue
		}
		key, r := g.call.claims[i].key, *g.out.part(i)
		local := localFor(ctx, f.secondary, key)
		if local == nil || !local.follow {
			continue
		}
		switch {
		case checkKey(key) != nil:
		case g.call.op == credit:
			local.buckets.NoteChange(key, g.out.taken, f.most)
		default:
			local.buckets.Note(key, r.Remaining, r.Limit)
		}
		if hearers := g.out.hearersOf(i); hearers != nil {
			*hearers = (*hearers).and(&lastAnswer{local, r.Limit})
		}
	}
}

// clientOf is the client of limiter, nil if it has none, or another one for each call, or if the client
// cannot be compared.
func clientOf(limiter any) any {
	k := kindOf(limiter)
	if k.inside != nil {
		return clientOf(k.inside)
	}
	if redisclient.Of(k.client) == nil {
		return nil
	}
	return k.client
}

// hasBreaker reports whether a call of l may ask b.
func hasBreaker(l any, b *Breaker) bool {
	if p, ok := l.(interface{ outage() *outages }); ok && slices.Contains(p.outage().guard.Breakers, b.begun()) {
		return true
	}
	inner := kindOf(l).inside
	return inner != nil && hasBreaker(inner, b)
}

// mayFollow reports whether secondary may be a bucket with WithLastAnswers, or have one inside. The error is that of one
// that would hear no answers.
func mayFollow(secondary any) (bool, error) {
	switch l := secondary.(type) {
	case *LocalTokenBucket:
		return l.follow, nil
	case *Choice:
		return true, nil
	case *Fallback:
		return mayFollow(l.secondary)
	case *All:
		for _, c := range l.memory {
			if follows, err := mayFollow(c.outer); follows || err != nil {
				return false, invalidConfig("NewFallback: WithLastAnswers in an All that is the secondary hears no answers; " +
					"put a Fallback around each limiter, and claim them together with TryAcquireAll")
			}
		}
	}
	return false, nil
}

// localFor is the bucket in this process that decides for key in an outage, nil if there is none.
func localFor(ctx context.Context, secondary any, key string) *LocalTokenBucket {
	switch l := secondary.(type) {
	case *LocalTokenBucket:
		return l
	case *Choice:
		if picked, err := l.of(ctx, key); err == nil {
			return localFor(ctx, picked, key)
		}
	case *Fallback:
		return localFor(ctx, l.secondary, key)
	}
	return nil
}

// A lastAnswer hears of what comes back to the primary after its answer, of a limit of so many.
type lastAnswer struct {
	local *LocalTokenBucket
	limit int
}

// givesBack notes what has come back. After an error it notes nothing, unless more was used: an outage may have begun.
func (a *lastAnswer) givesBack(_ context.Context, key string, n, actual int) (done func(error)) {
	return func(err error) {
		if err == nil || actual > n {
			a.local.buckets.NoteChange(key, n-actual, a.limit)
		}
	}
}

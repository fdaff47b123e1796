package ratelimit

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/tryacquire/ratelimit/internal/decision"
	"github.com/tryacquire/ratelimit/internal/redisexec"
)

// A Settler takes an estimate first and settles the true cost afterwards, for work whose
// cost is known only when it is done: the tokens of a language model, the bytes of an
// answer. Every limiter of this package that decides on Redis on its own is a Settler, and so are
// [LocalTokenBucket] and the decorators, which ask the limiter inside them. To decide an estimate together with other
// limits, use [Claim.Estimate].
type Settler interface {
	// Estimate takes n permits from key, or none, as TryAcquireN does, with its errors.
	// If the call is allowed, the Ticket settles what the work has really cost; if it is
	// denied, the Ticket is nil. If the work may cost more than the limit, estimate at
	// most the limit: Settle charges the rest. The call is merged with others, see
	// [WithoutMerging]; so is Settle.
	//
	// If a ticket is never settled, because the process has ended or the reply was lost,
	// its n permits stay taken, as those of any other allowed call: the limit becomes
	// available again with time.
	Estimate(ctx context.Context, key string, n int) (*Ticket, Result, error)

	// Charge takes n permits from key, even if fewer are left. The missing permits are a
	// debt: no call is allowed before it is repaid, and RetryAfter and ResetAfter include
	// it. A bucket repays its debt at its rate; a sliding window or a log repays it when
	// the permits leave the window. A fixed or calendar window forgets its debt when the
	// window ends.
	//
	// Allowed is true, Remaining is 0 while there is a debt. n is 1 to 1,000,000,000; with
	// the storage ZSet 1 to 10,000, and no more than 20,000 permits can count at a time.
	// ErrTooMuchDebt means that nothing was charged: n is above its bound, a bucket would
	// take more than 71 years to repay its debt, or more than 4,000,000,000 permits would
	// count in a window. The numbers of some buckets' states end before 71 years, but at no
	// debt below 15 times the capacity. The other errors are those of TryAcquire, and
	// ErrInvalidPermits for n below 1. The call is merged with others, see [WithoutMerging];
	// one that is refused fails no other.
	Charge(ctx context.Context, key string, n int) (Result, error)
}

// estimate takes n permits, and remembers where.
var estimate = &operation{
	call:   callEstimate,
	unable: unableToSettle,
	check:  checkTake,
	decide: func(ctx context.Context, l any, _ *call, claim *Claim) (o outcome) {
		o.ticket, o.result, o.err = l.(Settler).Estimate(ctx, claim.key, claim.n)
		if o.ticket != nil {
			o.ticket.hearers = o.ticket.hearers.with(claim.hearers)
		}
		return o
	},
}

// charge takes n permits, even if fewer are left. It is never denied.
var charge = &operation{
	call:   callCharge,
	unable: unableToSettle,
	check: func(ctx context.Context, c *core, _ *call, claim *Claim) error {
		return c.decider.(charger).checkCharge(ctx, claim.key, claim.n)
	},
	decide: func(ctx context.Context, l any, _ *call, claim *Claim) (o outcome) {
		o.result, o.err = l.(Settler).Charge(ctx, claim.key, claim.n)
		return o
	},
}

func unableToSettle(l any, _ *Claim) error {
	if _, ok := l.(Settler); !ok {
		return cannot(l, "settle")
	}
	return nil
}

// WithExactReturns lets a [Ticket] give a bucket only the permits that cannot have been
// refilled while the ticket was held. Of n permits held for h, these are n − rate × h, rounded
// down to the units in which the bucket counts; with WithRefillEvery, n less what the steps in
// h have brought. If a limiter of another rate has written the state, nothing is given back.
//
// The permits used then never exceed the bucket's bound in any interval, if a ticket's use
// counts at the instant of its estimate, all limiters of the key have this rate, and the
// clock does not step back while the ticket is held. Without this option everything is given
// back, which can exceed the bound, see [Ticket.Settle]. Choose the option if the bound
// matters more than the permits that are not given back, and if tickets are held for much
// less time than a refill takes.
func WithExactReturns() Option {
	return limiterOption("WithExactReturns", func(s *settings) {
		s.exactly = true
	})
}

// A Ticket stands for the permits that an estimate took, and settles them once. It is safe
// for concurrent use.
type Ticket struct {
	from         settles
	key          string
	n            int
	where, which int64 // see the block giveback of the scripts
	hearers      *hearers
	settled      atomic.Bool
}

// An origin is what permits were taken from that can be given back.
type origin interface {
	// observers are those of the limiter, nil if there are none.
	observers() *watch

	// about wraps err, the reason why nothing can be done with permits of key.
	about(key string, err error) error
}

// settles is an origin of estimates.
type settles interface {
	origin

	// checkSettle returns an error if a ticket of key cannot be settled by so many permits more than it has.
	checkSettle(ctx context.Context, key string, more int) error

	// settle gives back or charges what the observed call's N differs from the ticket's permits.
	settle(ctx context.Context, t *Ticket, o *Observation) sending
}

// Estimate takes n permits from key, see [Settler].
func (c *limiterCore) Estimate(ctx context.Context, key string, n int) (*Ticket, Result, error) {
	o := Observation{Call: callEstimate, Key: key, N: n}
	o.Err = c.check(ctx, key, n)
	var t *Ticket
	c.watch.observed(ctx, &o, func() (sent sending) {
		t, sent = c.estimate(ctx, &o)
		return sent
	})
	return t, o.Result, o.Err
}

func (c *limiterCore) estimate(ctx context.Context, o *Observation) (*Ticket, sending) {
	reply, err := c.operate(ctx, o.Key, redisexec.Operation{Op: redisexec.Estimate, N: o.N, Times: 1})
	if err != nil {
		o.Err = c.failed(ctx, o.Key, err)
		return nil, reply.Batch
	}
	defer reply.Done()
	o.Result = c.inRun(reply.Words[:c.exec.Words], int64(o.N), reply.Index)
	if !o.Result.Allowed {
		return nil, reply.Batch
	}
	return c.newTicket(o.Key, o.N, reply.Index, reply.Words), reply.Batch
}

// A charger is a limiterCore, or has one.
type charger interface {
	estimate(ctx context.Context, o *Observation) (*Ticket, sending)
	newTicket(key string, n int, i int64, words []int64) *Ticket
	checkCharge(ctx context.Context, key string, n int) error
}

// newTicket is the ticket of estimate i, from 0, of a run of equal estimates of n permits. The
// last two words are the ticket of the last one that was allowed.
func (c *limiterCore) newTicket(key string, n int, i int64, words []int64) *Ticket {
	own := c.exec.Words
	t := &Ticket{from: c, key: key, n: n, where: words[own], which: words[own+1]}
	if c.which != nil {
		since := words[decision.WordAllowed] - i // so many were allowed from this one on
		t.which = c.which(t.which, int64(n)*since)
	}
	return t
}

// Charge takes n permits from key, see [Settler].
func (c *limiterCore) Charge(ctx context.Context, key string, n int) (Result, error) {
	o := Observation{Call: callCharge, Key: key, N: n}
	o.Err = c.checkCharge(ctx, key, n)
	c.watch.observed(ctx, &o, func() sending { return c.charge(ctx, n, &o) })
	return o.Result, o.Err
}

func (c *limiterCore) charge(ctx context.Context, n int, o *Observation) sending {
	reply, err := c.operate(ctx, o.Key, redisexec.Operation{Op: redisexec.Charge, N: n, Times: 1})
	if err != nil {
		o.Err = c.failed(ctx, o.Key, err)
		return reply.Batch
	}
	defer reply.Done()
	if reply.Index >= reply.Words[decision.WordAllowed] { // what a state can hold does not fit
		o.Err = c.failed(ctx, o.Key, ErrTooMuchDebt)
		return reply.Batch
	}
	o.Result = c.inRun(reply.Words, int64(n), reply.Index)
	o.Result.Remaining = max(o.Result.Remaining, 0)
	return reply.Batch
}

func (c *limiterCore) checkCharge(ctx context.Context, key string, n int) error {
	if err := c.check(ctx, key, 1); err != nil {
		return err
	}
	return c.checkCost(n)
}

func (c *limiterCore) checkCost(n int) error {
	switch {
	case n < 1:
		return errTooFew(n)
	case n > c.mostCharge:
		return fmt.Errorf("%w: %d permits at once of %s, which charges %d at most; charge them in parts", ErrTooMuchDebt, n, c.title, c.mostCharge)
	}
	return nil
}

// Settle replaces the ticket's estimate by what the work has really cost: actual permits, 0
// or more. If the estimate was too high, it gives the difference back. If it was too low, it
// charges the difference as [Settler.Charge] does, however much that is.
//
// A ticket is settled at most once. After an error the difference may have been settled or
// not, and later calls return ErrSettled. There are three exceptions, after which the ticket
// can still be settled: ErrInvalidPermits (actual is below 0), ErrTooMuchDebt for a charge
// that no limiter of this kind takes, and a context that had ended before the call.
//
// What is given back depends on the limiter:
//
//   - A bucket takes back everything, but never more than fills it. It may have refilled the
//     same permits while the ticket was held, so that more than burst + rate × t are used in an
//     interval t. This needs an interval that begins while tickets of the key are held, and a
//     bucket that is full at some time while they are held. Let h be how long, without a break,
//     tickets had been held when the interval began. It then has at most rate × h permits more,
//     and at most as many more as are given back in it of earlier estimates. With
//     [WithExactReturns] no interval has more, and less is given back. While permits are
//     promised to callers that [Wait], nothing is given back, because the next caller would get
//     the same instants as these callers.
//   - A fixed or calendar window takes permits back while the window from which they were
//     taken lasts. After its end nothing is given back, and nothing needs to be.
//   - Sliding windows and logs remove the permits as if they had never been taken. Hash,
//     List and a log rewrite the later totals of the key's state, about 2 µs of Redis's time
//     each; so if 512 or more sub-windows or entries came later, nothing is given back, and the
//     estimate counts until it leaves the windows. Permits of one instant share an entry, and
//     with [WithResolution] or in a sub-window those of a longer time do: where more than 512
//     calls of a key may come while a ticket is held, choose it so that fewer entries do.
//
// Nothing is given back where the permits are not found: the server's clock has stepped back
// and moved them, or another limiter has changed the length of a fixed window. A Reset gives
// back the permits of all tickets of its key: settle a ticket before the Reset, or not at
// all, because a bucket does not notice the Reset. A sliding window or log can mistake
// permits of other calls for the ticket's, if they were taken in the same sub-window or at
// the same instant after a Reset, or after the clock stepped back. A calendar window can do so
// if a limiter of another calendar on the key has begun the count again in between.
//
// With [WithClock], the instant of what is given back stays in the state for as long as the
// clocks may be apart. Otherwise a clock that is behind could use a window twice. Until the
// next call that is allowed, the ResetAfter of a sliding window or a log can be that of permits
// that were given back, and if other permits are left, the key can stay for as long.
//
// A fixed or calendar window whose permits are all given back is forgotten. If the server's
// clock then steps back over the start of an aligned or calendar window, the window before it
// begins again.
func (t *Ticket) Settle(ctx context.Context, actual int) error {
	if t == nil || t.from == nil {
		return invalidConfig("there is no ticket; Estimate returns one when it is allowed")
	}
	o := Observation{Call: callSettle, Key: t.key, N: actual}
	o.Err = t.check(ctx, actual)
	t.from.observers().observed(ctx, &o, func() sending { return t.settle(ctx, &o) })
	return o.Err
}

// check returns an error if the ticket cannot be settled. Otherwise it counts as settled.
func (t *Ticket) check(ctx context.Context, actual int) error {
	if actual < 0 {
		return fmt.Errorf("%w: %d were used; settle 0 or more", ErrInvalidPermits, actual)
	}
	if err := t.from.checkSettle(ctx, t.key, actual-t.n); err != nil {
		return err
	}
	if t.settled.Swap(true) {
		return t.from.about(t.key, ErrSettled)
	}
	return nil
}

// settle settles a ticket that has been checked.
func (t *Ticket) settle(ctx context.Context, o *Observation) sending {
	if o.N == t.n {
		return redisexec.Unsent
	}
	done := t.hearers.givesBack(ctx, t.key, t.n, o.N)
	defer func() { done(o.Err) }()
	return t.from.settle(ctx, t, o)
}

func (c *limiterCore) checkSettle(ctx context.Context, key string, more int) error {
	if err := c.check(ctx, key, 1); err != nil || more <= 0 {
		return err
	}
	return c.checkCost(more)
}

func (c *limiterCore) settle(ctx context.Context, t *Ticket, o *Observation) sending {
	if o.N > t.n {
		return c.charge(ctx, o.N-t.n, o)
	}
	reply, err := c.operate(ctx, t.key, redisexec.Operation{
		Op: redisexec.GiveBack, N: t.n - o.N, Times: 1, Detail: &redisexec.Detail{Where: t.where, Which: t.which},
	})
	if err != nil {
		o.Err = c.failed(ctx, t.key, err)
	} else {
		reply.Done()
	}
	return reply.Batch
}

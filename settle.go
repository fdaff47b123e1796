package ratelimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tryacquire/ratelimit/internal/decision"
	"github.com/tryacquire/ratelimit/internal/exact"
	"github.com/tryacquire/ratelimit/internal/redisexec"
)

// A Settler takes an estimate first and settles the true cost afterwards, for work whose cost is known only when
// it is done: the tokens of a language model, the bytes of an answer (docs/llm.md). Every limiter of this package
// is one, but [All]: use [Claim.Estimate] there.
type Settler interface {
	// Estimate takes n permits from key, or none, as TryAcquireN does, with its errors. The Ticket settles what
	// the work has really cost, where they were taken; it is nil if the call is denied. Estimate at most the limit:
	// Settle charges the rest.
	//
	// The permits of a ticket that is never settled stay taken, as those of any other allowed call, unless the limiter was built
	// with [WithTicketLease].
	Estimate(ctx context.Context, key string, n int) (*Ticket, Result, error)

	// Charge takes n permits from key, even if fewer are left. Allowed is true, and Remaining 0 while permits are
	// missing. No call is allowed before this debt is repaid: by a bucket's rate, by permits that leave a sliding
	// window or log, or by the end of a fixed or calendar window.
	//
	// ErrTooMuchDebt means that nothing was charged: n is above the bound of a [Rule]'s Limit, a bucket would take
	// more than 71 years to repay, or more than 4 × 10^12 permits would count in a window. A fixed window of at most
	// 10^9 permits, and the storage ZSet, have lower bounds (docs/choosing.md, "Bounds"). The other errors are those
	// of TryAcquire, and ErrInvalidPermits for n below 1.
	Charge(ctx context.Context, key string, n int) (Result, error)

	// Credit gives n permits of key back without a ticket, such as for goodwill, and returns how many of them were
	// missing: a bucket is never more than full, and a window's count never below 0. In any interval the limiter allows
	// at most what its rule allows, and as many permits more as were credited during the interval.
	//
	// A bucket takes no credit while permits are promised to callers that [Wait], or are out in slices of a [Leased]. A
	// fixed or calendar window takes it for its present window. Sliding windows, logs and fair token buckets take none,
	// because it is not known which of their permits come back: the error wraps ErrInvalidConfig, and the Ticket of an
	// Estimate is the remedy. The other errors are those of TryAcquire, and ErrInvalidPermits for n below 1. After an
	// error the permits may have been given back, once.
	Credit(ctx context.Context, key string, n int) (given int, err error)
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

// credit gives back permits for which there is no ticket.
var credit = &operation{
	call:   callCredit,
	unable: unableToSettle,
	check: func(ctx context.Context, c *core, _ *call, claim *Claim) error {
		return c.decider.(charger).checkCredit(ctx, claim.key, claim.n)
	},
	decide: func(ctx context.Context, l any, _ *call, claim *Claim) (o outcome) {
		done := claim.hearers.givesBack(ctx, claim.key, claim.n, 0)
		o.taken, o.err = l.(Settler).Credit(ctx, claim.key, claim.n)
		done(o.err)
		return o
	},
}

func unableToSettle(l any, _ *call, _ *Claim) error {
	if _, ok := l.(Settler); !ok {
		return cannot(l, "settle")
	}
	return nil
}

// WithExactReturns lets a [Ticket] give a bucket only permits that cannot have been refilled while the ticket was
// held: of n permits held for h, n − rate × h. No interval then has more than the bucket's bound, and less is
// given back. Without the option everything is given back, see docs/llm.md, "What Settle gives back".
func WithExactReturns() Option {
	return limiterOption("WithExactReturns", func(s *settings) {
		s.exactly = true
	})
}

// A Ticket stands for the permits that an estimate took, and settles them once. It is safe
// for concurrent use.
type Ticket struct {
	from    settles
	key     string
	hearers *hearers
	settled atomic.Bool

	mu           sync.Mutex // guards what follows, and is held while Redis is asked: a settlement has to know what More took
	n            int
	where, which int64        // see the block giveback of the scripts
	more         []*Ticket    // what More took, of a ticket without a lease, or of other entries of a log
	lease        *ticketState // nil: none

	// until is when its window is over, by this process's clock, which does not step back; zero: it is of no window, or by a
	// caller's clock. When the server's clock steps back, a window that is over can begin again, with another count.
	until time.Time
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

	// Estimate takes what a ticket without a lease needs beyond its estimate.
	Estimate(ctx context.Context, key string, n int) (*Ticket, Result, error)
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
	if c.tickets != nil {
		return c.begin(ctx, o)
	}
	return c.estimateOpen(ctx, o)
}

// estimateOpen is estimate without a lease.
func (c *limiterCore) estimateOpen(ctx context.Context, o *Observation) (*Ticket, sending) {
	sent := time.Now()
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
	t := c.newTicket(o.Key, o.N, reply.Index, reply.Words)
	t.endsWith(sent, o.Result)
	return t, reply.Batch
}

// A charger is a limiterCore, or has one.
type charger interface {
	estimate(ctx context.Context, o *Observation) (*Ticket, sending)
	estimateOpen(ctx context.Context, o *Observation) (*Ticket, sending)
	unbegun(key string) *Ticket
	newTicket(key string, n int, i int64, words []int64) *Ticket
	checkCharge(ctx context.Context, key string, n int) error
	checkCredit(ctx context.Context, key string, n int) error
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

// endsWith notes when the window ends of permits that were asked for at sent.
func (t *Ticket) endsWith(sent time.Time, r Result) {
	if c, ok := t.from.(*limiterCore); ok && c.window {
		t.until = sent.Add(r.ResetAfter)
	}
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
	c.charged(ctx, reply.Words, n, reply.Index, o)
	return reply.Batch
}

// charged reads the words of a run of charges of n permits, of which this call is the i-th, from 0.
func (c *limiterCore) charged(ctx context.Context, words []int64, n int, i int64, o *Observation) {
	if i >= words[decision.WordAllowed] { // what a state can hold does not fit
		o.Err = c.failed(ctx, o.Key, ErrTooMuchDebt)
		return
	}
	o.Result = c.inRun(words, int64(n), i)
	o.Result.Remaining = max(o.Result.Remaining, 0)
	o.Before = max(c.explain(words, int64(n), i*int64(n), true).Remaining, 0)
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

// Credit gives n permits of key back without a ticket, see [Settler].
func (c *limiterCore) Credit(ctx context.Context, key string, n int) (given int, err error) {
	o := Observation{Call: callCredit, Key: key, N: n}
	o.Err = c.checkCredit(ctx, key, n)
	c.watch.observed(ctx, &o, func() (sent sending) {
		reply, err := c.operate(ctx, key, redisexec.Operation{
			Op: redisexec.GiveBack, N: min(n, exact.Permits), Times: 1, Detail: &redisexec.Detail{Where: redisexec.Nowhere},
		})
		if err != nil {
			o.Err = c.failed(ctx, key, err)
		} else {
			given = int(reply.Words[0])
			o.N = given
			reply.Done()
		}
		return reply.Batch
	})
	return given, o.Err
}

func (c *limiterCore) checkCredit(ctx context.Context, key string, n int) error {
	if err := c.check(ctx, key, 1); err != nil {
		return err
	}
	switch {
	case n < 1:
		return errTooFew(n)
	case !c.credits:
		return invalidConfig("the %s takes no credit; take permits that may come back with Estimate, and give them back with the Ticket", c.title)
	}
	return nil
}

// Settle replaces the ticket's estimate by what the work has really cost: actual permits, 0 or more. It gives the
// difference back, or charges it as [Settler.Charge] does, however much that is.
//
// A ticket is settled at most once. After an error the difference may have been settled or not, and later calls
// return ErrSettled. After three errors the ticket can still be settled: ErrInvalidPermits (actual is below 0),
// ErrTooMuchDebt for a charge that no limiter of this kind takes, and that of a context that had ended before the
// call.
//
// A bucket takes everything back, but never more than fills it, and nothing while permits are promised to callers
// that [Wait]. A fixed or calendar window takes permits back until it ends. Sliding windows and logs forget the
// permits, unless 512 or more sub-windows or entries came later: then nothing is given back. A Reset gives back
// the permits of all tickets of its key, so settle before it, or not at all. By how much returns to a bucket can
// exceed its bound, and what clocks that step back do, is in docs/llm.md, "What Settle gives back".
func (t *Ticket) Settle(ctx context.Context, actual int) error {
	if !t.made() {
		return errNoTicket
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	o := Observation{Call: callSettle, Key: t.key, N: actual}
	o.Err = t.check(ctx, actual)
	t.from.observers().observed(ctx, &o, func() sending {
		sent := t.settle(ctx, &o)
		o.Err = cmp.Or(o.Err, t.late(actual))
		return sent
	})
	return o.Err
}

var errNoTicket = invalidConfig("there is no ticket; Estimate returns one when it is allowed")

func (t *Ticket) made() bool { return t != nil && t.from != nil }

// whole is taken, for those who do not have the lock.
func (t *Ticket) whole() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.taken()
}

// taken is how many permits the ticket has.
func (t *Ticket) taken() int {
	n := t.n
	for _, part := range t.more {
		n += part.n
	}
	return n
}

// check returns an error if the ticket cannot be settled. Otherwise it counts as settled.
func (t *Ticket) check(ctx context.Context, actual int) error {
	if actual < 0 {
		return fmt.Errorf("%w: %d were used; settle 0 or more", ErrInvalidPermits, actual)
	}
	more := actual - t.taken()
	if t.lease != nil { // it may be late
		more = actual
	}
	if err := t.from.checkSettle(ctx, t.key, more); err != nil {
		return err
	}
	if t.settled.Swap(true) {
		return t.from.about(t.key, ErrSettled)
	}
	return nil
}

// settle settles a ticket that has been checked.
func (t *Ticket) settle(ctx context.Context, o *Observation) sending {
	n := t.taken()
	if o.N == n && t.lease == nil {
		return redisexec.Unsent
	}
	done := t.hearers.givesBack(ctx, t.key, n, o.N)
	defer func() { done(o.Err) }()
	if t.more != nil {
		return t.settleParts(ctx, o, n-o.N)
	}
	return t.from.settle(ctx, t, o)
}

func (c *limiterCore) checkSettle(ctx context.Context, key string, more int) error {
	if err := c.check(ctx, key, 1); err != nil || more <= 0 {
		return err
	}
	return c.checkCost(more)
}

// kept is how many permits stay taken if so many were used: all if their window is over. A ticket whose lease may have ended
// has perhaps been given back, and is then charged by what was used.
func (t *Ticket) kept(used int) int {
	if t.until.IsZero() || time.Now().Before(t.until) || t.lease != nil && time.Since(t.lease.since) >= t.lease.lease {
		return used
	}
	return max(used, t.n)
}

func (c *limiterCore) settle(ctx context.Context, t *Ticket, o *Observation) sending {
	kept := t.kept(o.N)
	if t.lease == nil && kept == t.n {
		return redisexec.Unsent
	}
	reply, err := c.operate(ctx, t.key, c.settlement(t, kept))
	c.settled(ctx, t, o, reply, err)
	reply.Done()
	return reply.Batch
}

// settlement is the operation that settles t by what was used.
func (c *limiterCore) settlement(t *Ticket, used int) redisexec.Operation {
	switch {
	case t.lease != nil:
		return t.leased(redisexec.Settle, max(used-t.lease.gone, 0))
	case used > t.n:
		return redisexec.Operation{Op: redisexec.Charge, N: used - t.n, Times: 1}
	}
	return redisexec.Operation{
		Op: redisexec.GiveBack, N: t.n - used, Times: 1, Detail: &redisexec.Detail{Where: t.where, Which: t.which},
	}
}

// settled reads the reply to the settlement of t, whose observation is o.
func (c *limiterCore) settled(ctx context.Context, t *Ticket, o *Observation, reply redisexec.Reply, err error) {
	switch {
	case err != nil:
		o.Err = c.failed(ctx, t.key, err)
	case t.lease != nil:
		c.settledLeased(ctx, t, o, reply.Words)
	case o.N > t.n:
		c.charged(ctx, reply.Words, o.N-t.n, reply.Index, o)
	}
}

// settleParts settles what a ticket without a lease has taken in parts: the last ones first. back is how many permits come back.
func (t *Ticket) settleParts(ctx context.Context, o *Observation, back int) (sent sending) {
	parts := append([]*Ticket{t}, t.more...)
	t.more = nil
	var errs []error
	lost := false
	for i := len(parts) - 1; i >= 0 && (back != 0 || t.lease != nil); i-- {
		part := parts[i]
		less := min(back, part.n) // below 0: it is charged
		back -= less
		one := Observation{Call: o.Call, Key: o.Key, N: part.n - less}
		sent = part.from.settle(ctx, part, &one)
		errs = append(errs, one.Err)
		lost = lost || part.lease != nil && part.lease.lost
	}
	if t.lease != nil {
		t.lease.lost = lost
	}
	o.Err = errors.Join(errs...)
	return sent
}

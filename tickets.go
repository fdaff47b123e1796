package ratelimit

import (
	"context"
	"time"

	"github.com/tryacquire/ratelimit/internal/redisexec"
)

// WithTicketLease gives every [Ticket] a lease: what its estimate took comes back when the lease ends, unless the ticket was
// settled or extended. So a process that dies loses nothing for longer, also of the budget of a month.
//
// The first call of the key after the end, a Peek too, gives the permits back as a settlement by 0 does; until then they count as
// taken. One call gives back at most 100 tickets. RetryAfter says when tickets that end make room, or, where more than 256 have to
// end, when the 256th does. A key has at most 10,000 tickets that are not settled; another Estimate returns ErrTooManyTickets.
//
// lease is 1ms to 71 years, by the server's clock. It should be many times as long as a call to Redis, and [Ticket.Do] extends
// it while work runs. Limiters of one name share their state with and without this option, but only those with it give tickets
// back, and only their Reset deletes the tickets. Redis keeps a sorted set beside the key, some 100 bytes for each ticket. Each
// call costs Redis a command more.
//
// The constructors refuse it together with [WithClock], and of buckets that refill in steps or whose state is more than one number
// (see [NewTokenBucket]).
func WithTicketLease(lease time.Duration) Option {
	return limiterOption("WithTicketLease", func(s *settings) {
		if err := checkSpan("WithTicketLease: the lease", lease); err != nil {
			s.fail(err)
		}
		s.ticketLease = lease
	})
}

// More takes n further permits for the ticket, all or none, where its estimate was taken: while an answer streams, a denial says
// that it has to be cut. Settle then settles all of them. It begins a lease again, also if it is denied; ErrLeaseLost means that
// the lease had ended, and nothing was taken. The other errors are those of [Settler]'s Estimate, and ErrSettled. It passes by the
// policies around the limiter: in an outage of that limiter it returns an error.
func (t *Ticket) More(ctx context.Context, n int) (Result, error) {
	if !t.made() {
		return Result{}, errNoTicket
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.checkMore(ctx); err != nil {
		return Result{}, err
	}
	if t.lease == nil {
		part, r, err := t.from.Estimate(ctx, t.key, n)
		if part != nil {
			t.more = append(t.more, part)
		}
		return r, err
	}
	c := t.from.(*limiterCore)
	o := Observation{Call: callEstimate, Key: t.key, N: n}
	o.Err = c.check(ctx, t.key, n)
	c.watch.observed(ctx, &o, func() sending { return c.takeMore(ctx, t, &o) })
	return o.Result, o.Err
}

func (c *limiterCore) takeMore(ctx context.Context, t *Ticket, o *Observation) sending {
	reply, err := c.operate(ctx, t.key, t.leased(redisexec.More, o.N))
	if err != nil {
		o.Err = c.failed(ctx, t.key, err)
		return reply.Batch
	}
	defer reply.Done()
	if reply.Words[0] == 0 {
		t.lease.lost, o.Err = true, c.about(t.key, ErrLeaseLost)
		return reply.Batch
	}
	words := reply.Words[1:]
	if o.Result = c.inRun(words[:c.exec.Words], int64(o.N), 0); !o.Result.Allowed {
		return reply.Batch
	}
	where, which := words[c.exec.Words], words[c.exec.Words+1]
	if where != t.where || which != t.which { // the window of the permits before is over
		t.lease.gone = t.n
	}
	t.n, t.where, t.which = t.n+o.N, where, which
	return reply.Batch
}

// Do runs work, and then settles the ticket by what used says, even if work panics or ctx has ended; then it waits for a second
// at most. While work runs, it extends the lease, first when a third of it is over. If the lease is lost, work goes on, and the
// settlement charges what was used. The error joins that of work with that of [Ticket.Settle].
func (t *Ticket) Do(ctx context.Context, work func(ctx context.Context) error, used func() int) error {
	switch {
	case !t.made():
		return errNoTicket
	case work == nil:
		return errNoWork
	case used == nil:
		return invalidConfig("Do: used is nil; return the ticket's permits if the estimate is the cost")
	}
	one := AllResult{Result: Result{Allowed: true}, Parts: []PartResult{{Ticket: t}}}
	return one.Do(ctx, work, func(PartResult) int { return used() })
}

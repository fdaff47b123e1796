package ratelimit

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/tryacquire/ratelimit/internal/algorithms"
	"github.com/tryacquire/ratelimit/internal/decision"
	"github.com/tryacquire/ratelimit/internal/exact"
	"github.com/tryacquire/ratelimit/internal/redisexec"
	"github.com/tryacquire/ratelimit/internal/scripts"
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
// back, and only their Reset deletes the tickets. Redis keeps a sorted set beside the key, some 100 bytes for each ticket.
//
// The constructors refuse it together with [WithClock], of the storages Hash and ZSet, and of buckets that refill in steps or whose
// state is more than one number (see [NewTokenBucket]).
func WithTicketLease(lease time.Duration) Option {
	return limiterOption("WithTicketLease", func(s *settings) {
		if err := checkSpan("WithTicketLease: the lease", lease); err != nil {
			s.fail(err)
		}
		s.ticketLease = lease
	})
}

// A ticketLease is the lease of a limiter's tickets.
type ticketLease struct {
	lease  time.Duration
	prefix string // of their specs: how they are given back, and the lease in microseconds
}

// How a ticket is given back, see the block begin of tickets.lua.
const (
	byPlace   = "0/" // the words of the ticket say where
	byInstant = "1/" // the instant, for exact returns
	byNumber  = "2/" // all of them, if no slices are out
	byEntry   = "3/" // the words, and what a ticket takes more is a part of its own if it is of another entry
)

const idLength = 16 // digits of five bits

// withTickets is the algorithm of a limiter whose tickets have a lease, if the settings ask for that.
func (a algorithm) withTickets(s *settings) (algorithm, error) {
	if s.ticketLease == 0 {
		return a, nil
	}
	if s.clock != nil {
		return a, invalidConfig("WithTicketLease: leases end by the server's clock; leave WithClock out")
	}
	of := scripts.WithTickets(a.scripts.Name)
	if of == nil {
		if a.scripts.Name != "bucket" && a.scripts.Name != "steppedbucket" {
			return a, invalidConfig("WithTicketLease: the storages Hash and ZSet have no tickets with a lease; " +
				"use the storage List, which counts as Hash does, or NewSlidingLog with one rule, which is exact as ZSet is")
		}
		return a, invalidConfig("WithTicketLease: the bucket refills in steps, or one number does not hold its state; " +
			"use a smaller burst, or a rate of fewer permits in a shorter period, and leave WithRefillEvery out")
	}
	how := byPlace
	switch {
	case a.id == algorithms.SlidingLog || a.id == algorithms.SlidingWindowList:
		how = byEntry
	case a.scripts.Name != "bucket":
	case s.exactly:
		how = byInstant
	default:
		how = byNumber
	}
	a.tickets = &ticketLease{s.ticketLease, how + strconv.FormatInt(s.ticketLease.Microseconds(), 10) + "/"}
	a.explainer = ticketed{a.explainer, a.words()}
	a.scripts, a.unpack, a.inWords = of, nil, nil
	a.cost.Key, a.cost.Back = a.cost.Key+2, a.cost.Back+4
	return a, nil
}

// ticketed explains words of which one more says when tickets that end make room.
type ticketed struct {
	decision.Explainer
	soon int // its position
}

// Explain is that of a decision.Explainer.
func (e ticketed) Explain(words []int64, n, taken int64, allowed bool) decision.Result {
	r := e.Explainer.Explain(words[:e.soon], n, taken, allowed)
	if soon := words[e.soon]; !allowed && soon > 0 {
		r.RetryAfter = min(r.RetryAfter, exact.Duration(soon))
	}
	return r
}

// A ticketState is what a ticket with a lease has in Redis.
type ticketState struct {
	*ticketLease
	spec  string    // as the scripts read it: how it is given back, its lease and its id
	since time.Time // when the call was sent that began the lease
	gone  int       // of its permits, those of a window that is over
	lost  bool      // it was given back
}

// unbegun is a ticket of key that has no permits yet, nil if tickets have no lease.
func (c *limiterCore) unbegun(key string) *Ticket {
	if c.tickets == nil {
		return nil
	}
	s := &ticketState{ticketLease: c.tickets, spec: c.tickets.prefix + rand.Text()[:idLength], since: time.Now()}
	return &Ticket{from: c, key: key, lease: s}
}

// began makes t the ticket of n permits whose words end with where they are. ok is false if there are too many tickets.
func (t *Ticket) began(n int, words []int64) (ok bool) {
	t.n, t.where, t.which = n, words[len(words)-2], words[len(words)-1]
	return t.which != tooMany
}

// name is what operations.lua reads of the ticket: how it is given back, and its name in Redis.
func (t *Ticket) name() string {
	to := make([]byte, 0, 80)
	to = append(append(to, t.lease.spec[0]), '/')
	to = append(strconv.AppendInt(to, int64(t.n-t.lease.gone), 10), '/')
	to = append(strconv.AppendInt(to, t.where, 10), '/')
	to = append(strconv.AppendInt(to, t.which, 10), '/')
	return string(append(to, t.lease.spec[2:]...))
}

// leased is an operation on a ticket.
func (t *Ticket) leased(op redisexec.Op, n int) redisexec.Operation {
	name := t.lease.spec
	if op != redisexec.Begin {
		name = t.name()
	}
	return redisexec.Operation{Op: op, N: n, Times: 1, Detail: &redisexec.Detail{Ticket: name}}
}

// tooMany is the second word of a ticket of which there are too many.
const tooMany = -1

// begin is an estimate with a lease.
func (c *limiterCore) begin(ctx context.Context, o *Observation) (*Ticket, sending) {
	t := c.unbegun(o.Key)
	reply, err := c.operate(ctx, o.Key, t.leased(redisexec.Begin, o.N))
	if err != nil {
		o.Err = c.failed(ctx, o.Key, err)
		return nil, reply.Batch
	}
	defer reply.Done()
	if !t.began(o.N, reply.Words) {
		o.Err = c.failed(ctx, o.Key, ErrTooManyTickets)
		return nil, reply.Batch
	}
	if o.Result = c.inRun(reply.Words[:c.exec.Words], int64(o.N), 0); !o.Result.Allowed {
		return nil, reply.Batch
	}
	t.endsWith(t.lease.since, o.Result)
	return t, reply.Batch
}

// settledLeased is settled for a ticket with a lease. All that was used is charged if the ticket was given back.
func (c *limiterCore) settledLeased(ctx context.Context, t *Ticket, o *Observation, words []int64) {
	became := words[0]
	t.lease.lost = became == redisexec.LateCharged || became == redisexec.LateUnused
	switch became {
	case redisexec.LateCharged:
		c.charged(ctx, words[1:], max(o.N-t.lease.gone, 0), 0, o)
	case redisexec.Charged:
		c.charged(ctx, words[1:], o.N-t.n, 0, o)
	}
}

// late is the error of a settlement after the ticket had been given back, nil if it was in time.
func (t *Ticket) late(actual int) error {
	if t.lease == nil || !t.lease.lost {
		return nil
	}
	return t.from.about(t.key, fmt.Errorf("%w: the estimate had been given back, and %d permits were charged", ErrLeaseLost, actual))
}

// leases reports whether there is a ticket with a lease.
func (t *Ticket) leases() bool { return t != nil && t.lease != nil }

// More takes n further permits for the ticket, all or none, where its estimate was taken: while an answer streams, a denial says
// that it has to be cut. Settle then settles all of them. It begins a lease again, also if it is denied; ErrLeaseLost means that
// the lease had ended, and nothing was taken. The other errors are those of [Settler]'s Estimate, ErrExceedsLimit for more than 10^12
// permits of a ticket, and ErrSettled. It passes by the policies around the limiter: in an outage of that limiter it returns an error.
func (t *Ticket) More(ctx context.Context, n int) (Result, error) {
	if !t.made() {
		return Result{}, errNoTicket
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	err := t.checkMore(ctx)
	if err == nil && n > exact.Permits-t.taken() { // in Redis's Lua, a number of 15 digits would not be the name's
		err = t.from.about(t.key, errFullTicket)
	}
	if err != nil {
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

var errFullTicket = fmt.Errorf("%w: a ticket has %d permits at most; settle it, and estimate again", ErrExceedsLimit, exact.Permits)

// last is the part of the ticket that was taken last, itself if there is no other.
func (t *Ticket) last() *Ticket {
	if len(t.more) > 0 {
		return t.more[len(t.more)-1]
	}
	return t
}

func (c *limiterCore) takeMore(ctx context.Context, t *Ticket, o *Observation) sending {
	sent := time.Now()
	last := t.last()
	if last != t { // the lease is that of all parts
		if sent := c.renew(ctx, t, t.more[:len(t.more)-1], o); o.Err != nil {
			return sent
		}
	}
	reply, err := c.operate(ctx, t.key, last.leased(redisexec.More, o.N))
	if err != nil {
		o.Err = c.failed(ctx, t.key, err)
		return reply.Batch
	}
	defer reply.Done()
	if reply.Words[0] == 0 {
		t.lease.lost, o.Err = true, c.about(t.key, ErrLeaseLost)
		return reply.Batch
	}
	t.lease.since = sent
	words := reply.Words[1:]
	where, which := words[c.exec.Words], words[c.exec.Words+1]
	if which == tooMany {
		o.Err = c.failed(ctx, o.Key, ErrTooManyTickets)
		return reply.Batch
	}
	if o.Result = c.inRun(words[:c.exec.Words], int64(o.N), 0); !o.Result.Allowed {
		return reply.Batch
	}
	switch another := where != last.where || which != last.which; {
	case another && t.lease.prefix[:2] == byEntry: // the permits before stay where they are
		part := *t.lease
		t.more = append(t.more, &Ticket{from: c, key: t.key, n: o.N, where: where, which: which, lease: &part})
		return reply.Batch
	case another: // the window of the permits before is over
		last.lease.gone = last.n
	}
	last.n, last.where, last.which = last.n+o.N, where, which
	last.endsWith(sent, o.Result)
	return reply.Batch
}

// Extend begins the ticket's lease again, from now. ErrLeaseLost means that the lease had ended, and that the permits were given
// back; Settle then charges what was used. A lease that has ended can be extended until the next call of the key. Without a lease
// ([WithTicketLease]), Extend does nothing.
func (t *Ticket) Extend(ctx context.Context) error {
	if !t.made() {
		return errNoTicket
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lease == nil {
		return nil
	}
	o := Observation{Call: callExtend, Key: t.key, N: t.n}
	o.Err = t.checkMore(ctx)
	t.from.observers().observed(ctx, &o, func() sending { return t.from.(*limiterCore).renew(ctx, t, t.more, &o) })
	return o.Err
}

// checkMore returns an error if nothing can be done with the ticket but to settle it.
func (t *Ticket) checkMore(ctx context.Context) error {
	switch err := ctx.Err(); {
	case err != nil:
		return t.from.about(t.key, err)
	case t.settled.Load():
		return t.from.about(t.key, ErrSettled)
	case t.lease != nil && t.lease.lost:
		return t.from.about(t.key, ErrLeaseLost)
	}
	return nil
}

// renew begins the lease of a ticket and of these further parts of it again.
func (c *limiterCore) renew(ctx context.Context, t *Ticket, more []*Ticket, o *Observation) (batch sending) {
	sent := time.Now()
	for _, part := range append([]*Ticket{t}, more...) {
		reply, err := c.operate(ctx, t.key, part.leased(redisexec.Renew, 1))
		batch = reply.Batch
		if err != nil {
			o.Err = c.failed(ctx, t.key, err)
			return batch
		}
		lost := reply.Words[0] == 0
		reply.Done()
		if lost {
			t.lease.lost, o.Err = true, c.about(t.key, ErrLeaseLost)
			return batch
		}
	}
	t.lease.since = sent
	return batch
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

// leases reports whether there is a ticket with a lease.
func (r AllResult) leases() bool {
	return slices.ContainsFunc(r.Parts, func(p PartResult) bool { return p.Ticket.leases() })
}

// keepTickets extends the leases of tickets until stop is called.
func (r AllResult) keepTickets(ctx context.Context) (stop func()) {
	if !r.leases() {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // work may need its permits after ctx has ended
	var each sync.WaitGroup
	for _, p := range r.Parts {
		if p.Ticket.leases() {
			each.Go(func() { p.Ticket.keep(ctx) })
		}
	}
	return func() {
		cancel()
		each.Wait()
	}
}

// keep extends the lease until ctx ends. The settlement reports what is wrong.
func (t *Ticket) keep(ctx context.Context) {
	_ = keepLease(ctx, t.lease.lease, t.lease.lease/3-t.spent(), t.Extend)
}

// spent is how much of the lease may be over.
func (t *Ticket) spent() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Since(t.lease.since)
}

package ratelimit

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit/internal/await"
	"github.com/tryacquire/ratelimit/internal/redisexec"
)

// Finish ends a call whose work is done: it settles the Ticket of each part by what used says the work has cost, and
// releases all Holds, at the same time. If used is nil, estimates are the costs. It does nothing after a denial, and
// does its work even if ctx has ended; then it waits for a second at most. The error joins those of [Ticket.Settle] and
// [Hold.Release].
func (r AllResult) Finish(ctx context.Context, used func(PartResult) int) error {
	settled, released := r.finish(ctx, used, r.holds(nil))
	return errors.Join(settled, released)
}

// holds is the Holds of all parts, each once: claims of one key have one Hold together.
func (r AllResult) holds(to []*Hold) []*Hold {
	for _, p := range r.Parts {
		if p.Hold != nil && !slices.Contains(to, p.Hold) {
			to = append(to, p.Hold)
		}
	}
	return to
}

// finish returns the errors of the settlements and of the releases.
func (r AllResult) finish(ctx context.Context, used func(PartResult) int, holds []*Hold) (settled, released error) {
	if ctx.Err() != nil {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTime)
		defer cancel()
		ctx = bounded
	}
	if len(holds) == 1 && used == nil && !r.leases() {
		return nil, await.Safely(func() error { return holds[0].Release(ctx) })
	}
	all := make([]*ending, 0, len(r.Parts)+len(holds))
	defer func() { settled, released = finishAll(ctx, all) }()
	for _, p := range slices.Backward(r.Parts) {
		if p.Ticket == nil || used == nil && !p.Ticket.leases() {
			continue
		}
		defer func() { // in the order of the parts, even if one panics
			e := &ending{ticket: p.Ticket}
			if used != nil {
				e.o.N = used(p)
			} else {
				e.o.N = p.Ticket.whole()
			}
			all = append(all, e)
		}()
	}
	for _, h := range holds {
		all = append(all, &ending{hold: h})
	}
	return nil, nil
}

// An ending is a settlement or a release, one of those that end a call.
type ending struct {
	ticket *Ticket
	hold   *Hold // if ticket is nil
	err    error

	// Of one that begin has begun.
	from  *core
	ask   redisexec.Operation
	o     Observation // its N is what the work has cost
	began time.Time
	heard func(error) // by the hearers of the ticket
}

// finishAll does all endings at the same time, and in one execution those that one script can end.
func finishAll(ctx context.Context, all []*ending) (settled, released error) {
	var together []*ending
	var each sync.WaitGroup
	for _, e := range all {
		if len(all) == 1 || len(together) == maxGroup || !e.begin(ctx) {
			each.Go(func() { e.alone(ctx) })
		} else {
			together = append(together, e)
		}
	}
	for _, e := range endTogether(ctx, together) {
		each.Go(func() { e.askAlone(ctx) })
	}
	each.Wait()
	var tickets, holds []error
	for _, e := range all {
		if e.ticket != nil {
			tickets = append(tickets, e.err)
		} else {
			holds = append(holds, e.err)
		}
	}
	return errors.Join(tickets...), errors.Join(holds...)
}

// alone does an ending that has not begun.
func (e *ending) alone(ctx context.Context) {
	e.err = await.Safely(func() error {
		if e.ticket != nil {
			return e.ticket.Settle(ctx, e.o.N)
		}
		return e.hold.Release(ctx)
	})
}

// begin does what comes before Redis is asked. It reports whether one operation on Redis is then left, and answered has to
// be called. Otherwise alone does it all: there is nothing to do, an error, or more than one operation.
func (e *ending) begin(ctx context.Context) bool {
	if h := e.hold; h != nil {
		f, ok := h.from.(*InFlight)
		if !ok || h.named { // somebody else may have a lease of this id by now
			return false
		}
		if gone, _ := h.leaves(); gone {
			return false
		}
		e.from, e.ask = &f.core, h.operation(redisexec.Release)
		e.o = Observation{Call: callRelease, Key: h.key, N: h.n}
		e.began = f.watch.begin()
		return true
	}
	t, n := e.ticket, e.o.N
	if !t.made() {
		return false
	}
	c, ok := t.from.(*limiterCore)
	if !ok || !t.mu.TryLock() {
		return false
	}
	kept := t.kept(n)
	if t.more != nil || t.lease == nil && kept == t.n || t.check(ctx, n) != nil {
		t.mu.Unlock()
		return false
	}
	e.from = &c.core
	e.o = Observation{Call: callSettle, Key: t.key, N: n}
	e.began = c.watch.begin()
	e.heard = t.hearers.givesBack(ctx, t.key, t.n, n)
	e.ask = c.settlement(t, kept)
	return true
}

// answered is the end of what begin has begun.
func (e *ending) answered(ctx context.Context, reply redisexec.Reply, err error) {
	if t := e.ticket; t != nil {
		defer t.mu.Unlock()
		t.from.(*limiterCore).settled(ctx, t, &e.o, reply, err)
		e.heard(e.o.Err)
		e.o.Err = cmp.Or(e.o.Err, t.late(e.o.N))
	} else {
		if err == nil {
			e.hold.freed()
		} else {
			e.o.Err = e.hold.from.(*InFlight).unreleased(ctx, e.hold, err, true)
		}
		e.hold.uncount(&e.o)
	}
	e.err = e.o.Err
	if w := e.from.watch; w != nil {
		e.o.sent(e.began, reply.Batch)
		w.ends(ctx, e.began, &e.o)
	}
}

// askAlone does what begin has begun by an execution of its own.
func (e *ending) askAlone(ctx context.Context) {
	var reply redisexec.Reply
	err := await.Safely(func() (err error) {
		reply, err = e.from.operate(ctx, e.o.Key, e.ask)
		return err
	})
	e.answered(ctx, reply, err)
	reply.Done()
}

// endTogether has one script do what has begun. It returns what is still to be done: what the script could not do, or
// all if there is no such script.
func endTogether(ctx context.Context, all []*ending) (left []*ending) {
	g, request := packEndings(all)
	if g == nil {
		return all
	}
	var reply redisexec.Reply
	err := await.Safely(func() (err error) {
		o := redisexec.Operation{Op: redisexec.Finish, N: 1, Times: 1, Detail: &redisexec.Detail{}}
		if by := g.finishing(all[0].from.clock); by.merger != nil {
			reply, err = by.merger.Operate(ctx, request, o)
		} else {
			reply, err = by.exec.Ask(ctx, request, o)
		}
		return err
	})
	defer reply.Done()
	switch {
	case redisexec.ForbidsAKey(err), redis.HasErrorPrefix(err, "CROSSSLOT"): // nothing was done
		return all
	case err != nil:
		for _, e := range all {
			e.answered(ctx, redisexec.Reply{Batch: reply.Batch}, err)
		}
		return nil
	}
	return g.ended(ctx, all, reply)
}

// packEndings returns the group of what has begun, if one script can do all, and the request to it.
func packEndings(all []*ending) (g *group, request string) {
	if len(all) < 2 {
		return nil, ""
	}
	claims := make([]Claim, len(all))
	for i, e := range all {
		claims[i] = Claim{limiter: e.from, key: e.o.Key, n: 1, settle: e.ticket != nil}
	}
	g, err := groupOf(claims)
	if err != nil || g.checkSlots(claims) != nil {
		return nil, ""
	}
	var parts [maxGroup]redisexec.Part
	for i, at := range g.nested {
		parts[i] = redisexec.Part{Head: all[at].from.head, Key: all[at].o.Key, Ends: &all[at].ask}
	}
	return g, redisexec.Pack(parts[:len(all)])
}

// ended reads the reply, and returns what the script could not do.
func (g *group) ended(ctx context.Context, all []*ending, reply redisexec.Reply) (left []*ending) {
	redisexec.Finished(reply.Words, func(i int, words []int64) {
		e := all[g.nested[i]]
		if len(words) == 0 {
			left = append(left, e)
			return
		}
		e.answered(ctx, redisexec.Reply{Words: words, Batch: reply.Batch}, e.from.exec.CheckWords(e.ask.Op, words))
	})
	return left
}

// finishing is g for the end of calls.
func (g *group) finishing(clock *callerClock) *group {
	return g.by(&g.ends, clock, func(exec *redisexec.Executor) {
		exec.Many, exec.ManyOfSeveral = g.scripts.Finish, g.scripts.FinishOfSeveral
		exec.Operations, exec.OperationsOfSeveral = exec.Many, exec.ManyOfSeveral
	})
}

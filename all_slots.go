package ratelimit

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tryacquire/ratelimit/internal/await"
	"github.com/tryacquire/ratelimit/internal/identity"
)

// TryAcquireAcrossSlots is [TryAcquireAll] for keys that are in several slots of a Cluster, or on several shards of a
// Ring. It is not atomic: it takes the permits of all claims at the same time, with one script each, and if one claim
// is denied it gives the permits of the others back. Where one script can decide, it calls TryAcquireAll.
//
// No limit is ever exceeded. A denied call takes two round trips, between which other calls may be denied because the
// permits have not come back yet. If the second fails, the permits stay taken. RetryAfter is the longest of the
// denials; a call at that time may be denied once more. docs/cluster.md has the comparison.
//
// In the parts of a denied call, Remaining includes the permits that are given back. After an error, the permits of
// the other claims are given back, in the background if ctx ends; those of the claim that failed may stay taken. The
// errors are those of TryAcquireAll, without ErrCrossSlot; claims that cannot work, or that are of several clients,
// are refused before anything is sent.
func TryAcquireAcrossSlots(ctx context.Context, claims ...Claim) (AllResult, error) {
	return decideAll(ctx, call{op: acquire, split: true}, claims)
}

// acrossSlots decides claims of c on limiters on Redis.
func acrossSlots(ctx context.Context, c *call, claims []Claim) (AllResult, error) {
	var all [maxGroup]Claim
	joined, places, err := joinClaims(all[:0], claims)
	if err != nil {
		return AllResult{}, err
	}
	began := time.Now()
	for _, c := range joined {
		if err := c.limiter.check(ctx, c.key, c.n); err != nil {
			reportRefused(ctx, began, joined, err)
			return AllResult{}, err
		}
		if !identity.Same(c.limiter.exec.Client, joined[0].limiter.exec.Client) {
			return AllResult{}, errClients(joined[0].limiter, c.limiter)
		}
	}
	if err := checkStored(joined); err != nil {
		reportRefused(ctx, began, joined, err)
		return AllResult{}, err
	}
	if g, err := groupOf(joined); err == nil && g.checkSlots(joined) == nil {
		parts := make([]PartResult, len(joined))
		r, err := g.decide(ctx, c, joined, parts)
		if !errors.Is(err, ErrCrossSlot) { // which a client of another type gets from a Cluster: nothing was taken
			return AllResult{Result: r, Parts: spread(parts, places)}, err
		}
	}
	for i := range joined {
		if joined[i].as != nil {
			err := errSplitID(&joined[i])
			reportRefused(ctx, began, joined, err)
			return AllResult{}, err
		}
	}
	return takeApart(ctx, began, claims, joined, places)
}

// takeApart takes the permits of all joined claims at the same time, by a script each, and gives them back if one is
// denied. Claim i is a part of the joined one at places[i], or at i if places is nil.
func takeApart(ctx context.Context, began time.Time, claims, joined []Claim, places []int) (AllResult, error) {
	taken := make([]slotAnswer, len(joined))
	var asked sync.WaitGroup
	for i, c := range joined[1:] {
		asked.Go(func() { taken[i+1].take(ctx, c) })
	}
	taken[0].take(ctx, joined[0])
	asked.Wait()
	var err error
	var whole Result
	var failed claimSet
	for i, t := range taken {
		switch {
		case t.err != nil:
			err = t.err
			failed |= 1 << i
		case i == 0:
			whole = t.result
		default:
			whole = governs(whole, t.result)
		}
	}
	if err != nil || !whole.Allowed {
		giveBackAll(ctx, taken)
		for i := range taken {
			taken[i].given(joined[i].n)
		}
	}
	for i, c := range joined {
		o := Observation{Call: c.op().call, Source: SourceRedis, Batch: 1, Result: taken[i].result, Err: taken[i].err}
		c.report(ctx, began, o, err == nil && whole.Allowed)
	}
	if err != nil {
		return AllResult{}, &slotErrors{err, failed.of(places)}
	}
	r := AllResult{Result: whole, Parts: make([]PartResult, len(claims))}
	for i, c := range claims {
		place := i
		if places != nil {
			place = places[i]
		}
		r.Parts[i] = PartResult{Name: c.limiter.name, Key: c.key, Result: taken[place].result, Hold: taken[place].hold, bucket: c.limiter.isBucket()}
		if c.settle && whole.Allowed {
			r.Parts[i].Ticket = taken[place].ticket
		}
	}
	return r, nil
}

// errSplitID: what was there before the call must not be given back if another claim is denied.
func errSplitID(c *Claim) error {
	return invalidConfig("the claim of %s has an id (Claim.As), and no one script decides it together with the others; claim it in a call of its own", c.title())
}

// slotErrors is the error of a call that asked several servers, of which some failed.
type slotErrors struct {
	error
	failed claimSet
}

// Unwrap returns the error of one of the servers.
func (e *slotErrors) Unwrap() error { return e.error }

// of is the claims that have become those in s, as joinClaims says.
func (s claimSet) of(places []int) (claims claimSet) {
	if places == nil {
		return s
	}
	for i, place := range places {
		if s.has(place) {
			claims |= 1 << i
		}
	}
	return claims
}

// reportRefused reports a call that failed before Redis was asked, to every limiter.
func reportRefused(ctx context.Context, began time.Time, claims []Claim, err error) {
	for _, c := range claims {
		c.report(ctx, began, Observation{Call: c.op().call, Err: err}, false)
	}
}

// A slotAnswer is the answer to one claim, before it is known whether all are allowed.
type slotAnswer struct {
	ticket *Ticket
	hold   *Hold // of permits in flight
	result Result
	err    error
	bucket bool
}

// take takes the permits. A panic of the client or the clock is an error, because nobody
// could recover it.
func (a *slotAnswer) take(ctx context.Context, c Claim) {
	returned := false
	defer func() {
		if !returned {
			*a = slotAnswer{err: c.limiter.failed(ctx, c.key, await.Unfinished(recover()))}
		}
	}()
	a.bucket = c.limiter.isBucket()
	o := Observation{Key: c.key, N: c.n}
	if f, ok := c.limiter.decider.(*InFlight); ok {
		a.hold, _ = f.take(ctx, &o, nil)
		a.result, a.err = o.Result, o.Err
	} else {
		estimate := c.limiter.decider.(charger).estimateOpen
		if c.settle {
			estimate = c.limiter.decider.(charger).estimate
		}
		a.ticket, _ = estimate(ctx, &o)
		if a.result, a.err = o.Result, o.Err; a.ticket != nil {
			a.ticket.hearers = c.hearers
		}
	}
	returned = true
}

// giveBackAll gives all permits back, and waits for that until ctx ends.
func giveBackAll(ctx context.Context, taken []slotAnswer) {
	var each sync.WaitGroup
	for _, a := range taken {
		if a.hold != nil || a.ticket != nil {
			each.Go(func() { a.giveBack(ctx) })
		}
	}
	if ctx.Done() == nil {
		each.Wait()
		return
	}
	all := make(chan struct{})
	go func() {
		each.Wait()
		close(all)
	}()
	select {
	case <-all:
	case <-ctx.Done():
	}
}

// giveBack gives the permits back, even if ctx has ended. If it fails, they stay taken.
func (a slotAnswer) giveBack(ctx context.Context) {
	defer func() { _ = recover() }() // of the client's hooks
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTime)
	defer cancel()
	if a.hold != nil {
		_, _ = a.hold.release(ctx)
		return
	}
	if a.bucket && a.ticket.lease == nil {
		a.ticket.which = returnExactly
	}
	_ = a.ticket.settle(ctx, &Observation{Key: a.ticket.key})
}

// given makes the answer one of n permits that are given back.
func (a *slotAnswer) given(n int) {
	if a.hold != nil || a.ticket != nil {
		a.result.Remaining = min(a.result.Remaining+n, a.result.Limit)
	}
	a.hold, a.ticket = nil, nil
}

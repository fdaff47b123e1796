package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/tryacquire/ratelimit/internal/exact"
	"github.com/tryacquire/ratelimit/internal/identity"
	"github.com/tryacquire/ratelimit/internal/waiting"
)

// Wait waits until l allows one permit of key, and takes it. It is WaitN(ctx, l, key, 1).
func Wait(ctx context.Context, l Limiter, key string) (Result, error) {
	return realWaiter.wait(ctx, l, key, 1)
}

// WaitN waits until l allows n permits of key, and takes them.
//
// Where a [TokenBucket], [LeakyBucket] or [LocalTokenBucket] decides, also behind decorators, it makes one
// reservation and sleeps until that is due: callers are served in the order in which Redis decides. If ctx ends, the
// permits are given back as by [Reservation.Cancel]. On any other limiter, types of your own included, it asks again
// after RetryAfter and a random delay of up to a tenth of it, in no order. docs/waiting.md compares them.
//
// The Result is that of the allowed call. If the limiter cannot allow n permits before the deadline of ctx, WaitN
// returns at once, with a *[WaitError], which matches ErrWaitTooLong. If ctx ends, the error wraps the error of ctx.
// Other errors are those of TryAcquireN; an outage ends the wait. With an error the caller has no permits, but some
// may have been taken.
func WaitN(ctx context.Context, l Limiter, key string, n int) (Result, error) {
	return realWaiter.wait(ctx, l, key, n)
}

// WaitAll waits until the permits of all claims are there, and takes them all, as [TryAcquireAll] does: to wait for a place.
//
//	r, err := ratelimit.WaitAll(ctx, ratelimit.ClaimHold(reports, tenant, 1))
//
// Callers of one process who claim the same keys of the same limiters, permits in flight among them, are served in the
// order in which they came. A place that is released in this process goes to the first of them at once. Nobody hears of
// releases elsewhere, so the first asks again after 10 ms, and less and less often, at most after 0.3 s, also when a lease
// ends. Among processes there is no order, and TryAcquire does not wait in the line. Claims of limiters alone have no order:
// they ask again after RetryAfter, see [WaitN].
//
// The AllResult is that of the allowed call. If ctx ends, the error wraps the error of ctx; if a limiter, rather than
// permits in flight, denies the call until the deadline of ctx, it is a *[WaitError], at once. The other errors are those of
// TryAcquireAll; an outage ends the wait. With an error the caller has no permits.
func WaitAll(ctx context.Context, claims ...Claim) (AllResult, error) {
	return realWaiter.all(ctx, claims)
}

func (w waiter) all(ctx context.Context, claims []Claim) (r AllResult, err error) {
	wait, attempt := waiting.Begin(ctx, true)
	asked := false
	ask := func() (done bool, d waiting.Denial) {
		asked = true
		if r, err = TryAcquireAll(attempt, claims...); err != nil || r.Allowed {
			return true, d
		}
		if d = denialOf(claims, r); d.Least > 0 && d.Least >= w.left(ctx) {
			r, err = AllResult{}, &WaitError{Key: claims[0].key, Wait: d.Least}
			wait.End(err)
			return true, d
		}
		return false, d
	}
	line := lineOf(claims)
	if waiting.InFlight.AtOnce(wait, line, ask) {
		return r, err
	}
	if end := waiting.InFlight.InTurn(ctx, wait, line, ask); end != nil {
		if !asked { // the limiters report that ctx has ended, and Redis is not asked
			wait.Again()
			return TryAcquireAll(attempt, claims...)
		}
		err := fmt.Errorf("ratelimit: waiting for %s: %w", shortKey(claims[0].key), end)
		wait.End(err)
		return AllResult{}, err
	}
	return r, err
}

// denialOf says when the claims are worth asking again.
func denialOf(claims []Claim, r AllResult) (d waiting.Denial) {
	places := false
	for i, p := range r.Parts {
		if !p.Unknown && !p.Result.Allowed {
			d.Add(p.Result.RetryAfter, claims[i].holds())
			places = places || claims[i].holds()
		}
	}
	if !places {
		d.Least = max(d.Least, r.RetryAfter)
	}
	return d
}

// lineOf is the line of those who claim the same keys of the same limiters, and one of its own if no permits in flight are
// among them.
func lineOf(claims []Claim) any {
	type claimed struct {
		limiter *core
		outer   any
		key     string
	}
	var line [maxGroup]claimed
	places := false
	for i, c := range claims {
		if i == maxGroup || !identity.Comparable(c.outer) {
			return new(int)
		}
		places = places || c.holds()
		line[i] = claimed{c.limiter, c.outer, c.key}
	}
	if !places {
		return new(int)
	}
	return line
}

// A waiter waits by a clock, and draws the random part of its pauses.
type waiter struct {
	timing
	jitter func(most time.Duration) time.Duration // 0 to most
}

var realWaiter = waiter{realTime, func(most time.Duration) time.Duration { return rand.N(most + 1) }}

func (w waiter) wait(ctx context.Context, l Limiter, key string, n int) (Result, error) {
	if kindOf(l).absent {
		return Result{}, invalidConfig("WaitN: the limiter is nil")
	}
	b, around := bucketIn(l, nil)
	if b == nil {
		return w.poll(ctx, l, key, n, reserves(l))
	}
	o := Observation{Call: callWait, Key: key, N: n}
	o.Err = b.check(ctx, key, n)
	b.watch.observed(ctx, &o, func() (sent sending) {
		var r *Reservation
		if r, sent, o.Err = b.reserve(ctx, key, reserving{n: n, longest: w.left(ctx), timing: w.timing, around: around}); o.Err != nil {
			return sent
		}
		from := w.now()
		if o.Err = r.Wait(ctx); o.Err == nil {
			o.Result = r.result
		}
		o.Waited = w.now().Sub(from)
		return sent
	})
	return o.Result, o.Err
}

// bucketIn is the bucket on Redis that a wait for l reserves from, and those around it that hear of
// what is given back. It is nil if there is none. It does not ask for Reserver: a type that
// embeds a bucket has its methods too.
func bucketIn(l Limiter, around *hearers) (*bucketCore, *hearers) {
	if cache, ok := l.(*DenyCache); ok {
		// A denial from memory says only that n permits do not fit now.
		return bucketIn(cache.limiter, around.and(cache))
	}
	c := kindOf(l).core
	if c == nil {
		return nil, nil
	}
	b, _ := c.decider.(*bucketCore)
	return b, around
}

// reserve reserves through the policies of l, and sleeps. The error is errNoReserve if the limiter that would decide
// promises nothing.
func (w waiter) reserve(ctx, attempt context.Context, l Limiter, key string, n int) (Result, error) {
	o := operate(attempt, l, reserve, key, n, call{longest: w.left(ctx), timing: w.timing, fits: true})
	if o.err == nil {
		o.err = o.reservation.Wait(ctx)
	}
	if o.err != nil {
		return Result{}, o.err
	}
	return o.result, nil
}

// left is how long it is until the context's deadline.
func (w waiter) left(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return max(deadline.Sub(w.now()), 0)
	}
	return exact.Duration(exact.Micros)
}

// reserves reports whether a reservation is worth a try: what decides at the time of the call may be a bucket.
func reserves(l Limiter) bool {
	switch l.(type) {
	case policy, *LocalTokenBucket:
		return true
	}
	return false
}

// poll asks until l allows the call, or promises the permits.
func (w waiter) poll(ctx context.Context, l Limiter, key string, n int, reserves bool) (Result, error) {
	wait, attempt := waiting.Begin(ctx, true)
	for {
		wait.Again()
		var denied *WaitError
		if reserves {
			r, err := w.reserve(ctx, attempt, l, key, n)
			switch {
			case errors.Is(err, errNoReserve):
				wait.Again()
			case !errors.As(err, &denied):
				wait.End(err)
				return r, err
			}
		}
		if denied == nil {
			r, err := l.TryAcquireN(attempt, key, n)
			if err != nil || r.Allowed {
				return r, err
			}
			denied = &WaitError{Key: key, Wait: r.RetryAfter}
		}
		left := w.left(ctx)
		if denied.Wait >= left { // always, if the limiter can promise permits
			wait.End(denied)
			return Result{}, denied
		}
		if err := w.sleep(ctx, waiting.Pause(denied.Wait, left, w.jitter)); err != nil {
			err = fmt.Errorf("ratelimit: waiting for %s: %w", shortKey(key), err)
			wait.End(err)
			return Result{}, err
		}
	}
}

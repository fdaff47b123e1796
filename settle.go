package ratelimit

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
)

// A Settler takes an estimate first and settles the true cost afterwards, for work whose
// cost is known only when it is done: the tokens of a language model, the bytes of an
// answer. Every limiter on Redis of this package is one; [SettlerOf] makes one of a
// [DenyCache].
type Settler interface {
	// Estimate takes n permits from key, or none, as TryAcquireN does, with its errors.
	// If it is allowed, the Ticket settles what the work has really cost; if it is denied,
	// the Ticket is nil. For work that may cost more than the limit, estimate the limit at
	// most: Settle charges the rest. The call is not merged with others.
	//
	// A ticket that is never settled, because the process has ended or the reply was lost,
	// stays charged with n permits. Nothing has to expire: time heals it, as it does for
	// any other call.
	Estimate(ctx context.Context, key string, n int) (*Ticket, Result, error)

	// Charge takes n permits from key, whether they are there or not. What is missing is
	// a debt: no call is allowed before it is repaid, and RetryAfter and ResetAfter
	// include it. A bucket repays its debt at its rate; a sliding window or a log when the
	// permits leave the window. A fixed window forgets its debt when it ends.
	//
	// Allowed is true, Remaining is 0 while there is a debt. n is 1 to 1,000,000,000; with
	// the storage ZSet 1 to 10,000, and no more than 20,000 permits can count at a time.
	// ErrTooMuchDebt means that nothing was charged: n is more than that, a bucket would
	// take more than 71 years to repay its debt (or the numbers of its state would not be
	// exact), or more than 4,000,000,000 permits would count in a window. The other errors
	// are those of TryAcquire.
	Charge(ctx context.Context, key string, n int) (Result, error)
}

var (
	_ Settler = (*FixedWindow)(nil)
	_ Settler = (*SlidingWindow)(nil)
	_ Settler = (*SlidingLog)(nil)
	_ Settler = (*TokenBucket)(nil)
	_ Settler = (*LeakyBucket)(nil)
)

// WithExactReturns makes a bucket give back only what cannot have been refilled while it
// was held: of n permits held for h, n − rate × h, rounded down to what the bucket counts
// in (with WithRefillEvery, less the most that so many steps can bring), and nothing if a
// limiter of another rate has written the state. With it, what is used never exceeds the
// bucket's bound in any interval, if a ticket's use counts at the instant of its estimate,
// all limiters of the key have this rate, and the clock does not step back while the ticket
// is held. Without it everything is given back, which can exceed the bound, see
// [Ticket.Settle]. Choose it where the bound matters more than the permits, and estimates
// are held for much less than a refill takes.
func WithExactReturns() BucketOption {
	return bucketOnly{func(s *settings) {
		s.once("WithExactReturns")
		s.exactly = true
	}}
}

// A Ticket is permits that were taken by an estimate, to be settled once. It is safe for
// concurrent use.
type Ticket struct {
	core         *core
	key          string
	n            int
	where, which int64 // see scripts/giveback.lua
	caches       []*DenyCache
	settled      atomic.Bool
}

// Estimate takes n permits from key, see [Settler].
func (c *core) Estimate(ctx context.Context, key string, n int) (*Ticket, Result, error) {
	if err := c.check(ctx, key, n); err != nil {
		return nil, Result{}, err
	}
	own := c.exec.Words
	words, err := c.exec.Ask(ctx, c.scripts.more(c.clock != nil).estimate, c.prefix+key, strconv.Itoa(n), own+ticketWords)
	if err != nil {
		return nil, Result{}, c.failed(ctx, key, err)
	}
	r := c.inRun(words[:own], int64(n), 0)
	if !r.Allowed {
		return nil, r, nil
	}
	return c.newTicket(key, n, words[own:]), r, nil
}

// ticketWords is how many words say where permits are.
const ticketWords = 2

// newTicket is the ticket of n permits that were taken, of which words say where they are.
func (c *core) newTicket(key string, n int, words []int64) *Ticket {
	t := &Ticket{core: c, key: key, n: n, where: words[0], which: words[1]}
	if c.which != nil {
		t.which = c.which(t.which, int64(n))
	}
	return t
}

// Charge takes n permits from key, see [Settler].
func (c *core) Charge(ctx context.Context, key string, n int) (Result, error) {
	if err := c.check(ctx, key, 1); err != nil {
		return Result{}, err
	}
	if err := c.checkCharge(n); err != nil {
		return Result{}, err
	}
	words, err := c.exec.Ask(ctx, c.scripts.more(c.clock != nil).charge, c.prefix+key, strconv.Itoa(n), c.exec.Words)
	if err != nil {
		return Result{}, c.failed(ctx, key, err)
	}
	r := c.inRun(words, int64(n), 0)
	r.Remaining = max(r.Remaining, 0)
	return r, nil
}

func (c *core) checkCharge(n int) error {
	switch {
	case n < 1:
		return errTooFew(n)
	case n > c.mostCharge:
		return fmt.Errorf("%w: %d permits at once of %s, which charges %d at most; charge them in parts", ErrTooMuchDebt, n, c.title, c.mostCharge)
	}
	return nil
}

// Settle replaces the ticket's estimate by what the work has really cost: actual permits, 0
// or more. It gives back what the estimate was too much, and charges what it was too
// little, as [Settler.Charge] does, however much that is.
//
// A ticket is settled once, at most once if the reply is lost: after any error, the estimate
// stays charged, and with it perhaps what it was too little, or perhaps less what it was
// too much. Later calls return ErrSettled. Only after ErrInvalidPermits (actual is below
// 0), ErrTooMuchDebt for a charge that no limiter of this kind takes, and for a context
// that has ended before the call, is the ticket unsettled still.
//
// What is given back depends on the limiter:
//
//   - A bucket takes back everything, at most until it is full. What the ticket has held
//     may have been refilled meanwhile. So an interval that begins while tickets of the
//     key are held can exceed the bucket's bound: by at most what is given back in it of
//     earlier estimates, and by at most rate × the time for which one ticket or another
//     has then been held without a break. An interval that begins while none is held keeps
//     the bound, and so does any interval if the bucket is never full meanwhile.
//     [WithExactReturns] never exceeds it, and gives back less. While permits are promised to
//     those who [Wait], nothing is given back: the next caller would be due when they are.
//   - A fixed window takes back permits of the window that they were taken from. Once it
//     is over, nothing is given back, and nothing needs to be.
//   - Sliding windows and logs forget the permits where they stand: it is as if they had
//     never been taken. Hash, List and a log rewrite the later totals of the key's state; if
//     8,192 sub-windows or entries or more came later, nothing is given back.
//
// Where the permits are not found, nothing is given back: because the server's clock has
// stepped back and moved them, or in a fixed window whose length another limiter has
// changed. A Reset gives back the permits of all tickets of its key: settle before it, or
// not at all, because a bucket does not notice it. Sliding windows and logs take permits
// that others have taken in the same sub-window, or at the same instant, for the ticket's,
// if they took them since a Reset or since the clock stepped back.
func (t *Ticket) Settle(ctx context.Context, actual int) error {
	if t == nil || t.core == nil {
		return invalidConfig("there is no ticket; Estimate returns one when it is allowed")
	}
	c := t.core
	if err := c.check(ctx, t.key, 1); err != nil {
		return err
	}
	if actual < 0 {
		return fmt.Errorf("%w: %d were used; settle 0 or more", ErrInvalidPermits, actual)
	}
	if actual > t.n {
		if err := c.checkCharge(actual - t.n); err != nil {
			return err
		}
	}
	if t.settled.Swap(true) {
		return fmt.Errorf("ratelimit: %s, key %s: %w", c.title, shortKey(t.key), ErrSettled)
	}
	switch {
	case actual > t.n:
		_, err := c.Charge(ctx, t.key, actual-t.n)
		return err
	case actual < t.n:
		for _, cache := range t.caches {
			defer cache.table.returnPermits(t.key)()
		}
		request := fmt.Sprintf("%d/%d/%d", t.n-actual, t.where, t.which)
		if _, err := c.exec.Ask(ctx, c.scripts.more(c.clock != nil).giveBack, c.prefix+t.key, request, 1); err != nil {
			return c.failed(ctx, t.key, err)
		}
	}
	return nil
}

// SettlerOf returns what estimates, charges and settles with l, which is a limiter on Redis
// or a [DenyCache] around one. Through a cache, an estimate is denied from memory as
// TryAcquireN is, and a settlement that gives permits back removes the key's denials. So a
// service that has a cache settles through it:
//
//	cache, err := ratelimit.NewDenyCache(bucket)
//	...
//	settler, err := ratelimit.SettlerOf(cache)
//
// Any other limiter is refused with an error that wraps ErrInvalidConfig. A [Fallback]
// cannot settle, because its secondary may have decided: estimate with its primary.
func SettlerOf(l Limiter) (Settler, error) {
	if isNil(l) {
		return nil, invalidConfig("SettlerOf: the limiter is nil")
	}
	if c, ok := l.(*DenyCache); ok {
		if c.limiter == nil {
			return nil, errUnmade
		}
		inner, err := SettlerOf(c.limiter)
		if err != nil {
			return nil, err
		}
		return &cachedSettler{c, inner}, nil
	}
	if s, ok := l.(Settler); ok {
		return s, nil
	}
	return nil, invalidConfig("SettlerOf: a %T cannot settle; give a limiter on Redis, or a DenyCache around one", l)
}

// cachedSettler is a Settler behind a DenyCache.
type cachedSettler struct {
	cache *DenyCache
	inner Settler
}

func (s *cachedSettler) Estimate(ctx context.Context, key string, n int) (t *Ticket, r Result, err error) {
	if n < 1 {
		return nil, Result{}, errTooFew(n)
	}
	r, err = s.cache.deny(ctx, key, n, func() (Result, error) {
		var r Result
		t, r, err = s.inner.Estimate(ctx, key, n)
		return r, err
	})
	if t != nil {
		t.caches = append(t.caches, s.cache)
	}
	return t, r, err
}

func (s *cachedSettler) Charge(ctx context.Context, key string, n int) (Result, error) {
	return s.inner.Charge(ctx, key, n)
}

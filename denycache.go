package ratelimit

import (
	"context"
	"math"
	"time"
)

// A DenyCache is a [Limiter] that answers from memory what can only be denied.
//
// A denial of n permits with a retry-after of T stands for T: until then the
// limiter under the cache need not be asked about that key again, neither for n
// permits nor for more. Of fewer it says nothing, and those are asked. Grants
// never come from memory; they and errors pass through unchanged.
//
// # Never a false denial
//
// T is counted from before the request was sent, which is before it was decided,
// on the monotonic clock of this process: setting the wall clock has no effect.
// A call that memory denies would have been denied by the limiter too, as long as
//
//   - permits come back only through this cache. Its Reset forgets the key, and a
//     denial that was on its way meanwhile is not remembered. A Reset in another
//     process, one that failed and takes effect later, a raised limit, or state
//     that Redis lost, is seen only when the remembered denial ends;
//   - the deciding clock runs no faster than this process's. One that is set
//     forward, goes on while this machine is suspended, or is the caller's own
//     ([WithClock]) and set by a test or coarser than a microsecond, is again seen
//     when the remembered denial ends.
//
// [WithMaxDenial] bounds how long that takes. Answers of a [Fallback]'s secondary
// are not remembered; a DenyCache around a Fallback repeats what the primary said.
//
// # What a denial from memory says
//
// Limit and Window are those of the remembered denial. RetryAfter and ResetAfter
// are its own, counted down; they lag behind the limiter's by the time that the
// request took to be decided, and never say more than the truth about RetryAfter.
// For more permits than were denied RetryAfter is a lower bound: not before then,
// though perhaps later; whoever asks then gets the exact answer. Remaining is as
// it was at the denial. For a denial of one permit it stays 0; of more, a bucket
// may have refilled a little since, or smaller calls have taken some.
//
// When the context has ended the limiter is asked, so that the error is its own.
//
// # Cost
//
// A denial from memory takes some 60 ns, and some 200 for a key that is not in
// the processor's caches. It takes no lock, allocates nothing, and does not slow
// down with the number of cores that ask. Any other call costs some 80 ns on top
// of the limiter's own time, and one that has its denial remembered some 300 ns
// and at most two allocations.
//
// Memory is bounded by [WithDenyCacheSize]: 16 bytes for each key from the
// start, and 80 and the key itself while a denial is remembered. Where there is
// no room, denials that have ended give way, then others in turn, which costs a
// question and never an error. Keys of more than 256 bytes are always asked.
type DenyCache struct {
	limiter Limiter
	table   *denyTable
}

var _ Limiter = (*DenyCache)(nil)

const (
	defaultDenyCacheSize = 65_536
	maxDenyCacheSize     = 1 << 26
	maxDenyCacheKey      = 256
)

// NewDenyCache puts a cache of denials before l. It may be any limiter whose
// denials stand until their RetryAfter and hold for more permits too, as those of
// this package do. It fails with ErrInvalidConfig for a nil limiter, and for an
// option that is impossible or given twice.
func NewDenyCache(l Limiter, opts ...DenyCacheOption) (*DenyCache, error) {
	s := denyCacheSettings{size: defaultDenyCacheSize, max: math.MaxInt64}
	if isNil(l) {
		s.refuse("NewDenyCache: the limiter is nil")
	}
	for i, o := range opts {
		if o == nil {
			s.refuse("NewDenyCache: option %d is nil", i+1)
			break
		}
		o.setDenyCache(&s)
	}
	if s.err != nil {
		return nil, s.err
	}
	c := &DenyCache{limiter: l, table: newDenyTable(s.size, s.max)}
	c.table.noteDecided(ceilingOf(l))
	return c, nil
}

func (c *DenyCache) ceiling() int { return ceilingOf(c.limiter) }

// A DenyCacheOption is [WithDenyCacheSize] or [WithMaxDenial].
type DenyCacheOption interface{ setDenyCache(*denyCacheSettings) }

// WithDenyCacheSize makes room for the denials of so many keys, 65,536 if not
// given, at most 2^26, rounded up to a power of two from 4. Size it for the keys
// that are denied at one time, not for all that there are.
func WithDenyCacheSize(keys int) DenyCacheOption {
	return denyCacheOption(func(s *denyCacheSettings) {
		if keys < 1 || keys > maxDenyCacheSize {
			s.refuse("WithDenyCacheSize: %d is not between 1 and %d", keys, maxDenyCacheSize)
		}
		s.once("WithDenyCacheSize")
		s.size = keys
	})
}

// WithMaxDenial asks the limiter again when a denial is d old, even if its
// retry-after is longer; without it, only the retry-after counts. It is how late
// a limit raised while the program runs, or a Reset by another process, can be
// seen, at the price of one question in d for each denied key. The RetryAfter
// that is answered is not shortened by it.
func WithMaxDenial(d time.Duration) DenyCacheOption {
	return denyCacheOption(func(s *denyCacheSettings) {
		if d < time.Millisecond {
			s.refuse("WithMaxDenial: %v is not from 1ms up", d)
		}
		s.once("WithMaxDenial")
		s.max = d
	})
}

type denyCacheSettings struct {
	settings
	size int
	max  time.Duration
}

type denyCacheOption func(*denyCacheSettings)

func (f denyCacheOption) setDenyCache(s *denyCacheSettings) { f(s) }

// TryAcquire is TryAcquireN(ctx, key, 1).
func (c *DenyCache) TryAcquire(ctx context.Context, key string) (Result, error) {
	return c.decide(ctx, key, 1, false)
}

// TryAcquireN denies n permits from memory when so many or fewer were denied to
// key and cannot be had yet, and else asks the limiter, whose errors it returns.
//
// More permits than the limiter can decide on stay ErrExceedsLimit and do not
// become a wait. What it can is known of this package's own limiters; of any
// other, more permits than it was ever seen to decide on are asked.
func (c *DenyCache) TryAcquireN(ctx context.Context, key string, n int) (Result, error) {
	return c.decide(ctx, key, n, false)
}

// Peek denies from memory when one permit was denied to key and cannot be had
// yet, and else asks the limiter. What it learns serves TryAcquire too.
func (c *DenyCache) Peek(ctx context.Context, key string) (Result, error) {
	return c.decide(ctx, key, 1, true)
}

// Reset resets key and forgets its denials, even if it fails: key may then have been
// reset all the same.
func (c *DenyCache) Reset(ctx context.Context, key string) error {
	if c == nil || c.limiter == nil {
		return errUnmade
	}
	defer c.table.returnPermits(key)()
	return c.limiter.Reset(ctx, key)
}

// decide answers from memory or asks.
func (c *DenyCache) decide(ctx context.Context, key string, n int, peek bool) (Result, error) {
	if c == nil || c.limiter == nil {
		return Result{}, errUnmade
	}
	if len(key) > maxDenyCacheKey {
		return c.ask(ctx, key, n, peek)
	}
	hash := c.table.hash(key)
	if r, ok := c.table.lookup(hash, key, n); ok && ctx.Err() == nil {
		return r, nil
	}
	sending := c.table.beforeSending(hash)
	r, err := c.ask(ctx, key, n, peek)
	if err != nil || r.Fallback { // a secondary's denial binds the primary to nothing
		return r, err
	}
	c.table.noteDecided(n)
	if !r.Allowed {
		c.table.remember(hash, key, n, r, sending)
	}
	return r, nil
}

func (c *DenyCache) ask(ctx context.Context, key string, n int, peek bool) (Result, error) {
	if peek {
		return c.limiter.Peek(ctx, key)
	}
	return c.limiter.TryAcquireN(ctx, key, n)
}

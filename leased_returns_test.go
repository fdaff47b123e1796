package ratelimit_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/ratelimittest"
)

// emptied is a bucket of 1,000 a second of which nothing is left on Redis, while a slice of it is out.
func emptied(t *testing.T, e *ratelimittest.Env) (*ratelimit.TokenBucket, *ratelimit.Leased, *ratelimit.DenyCache) {
	b, l := leasedBucket(e)
	cache := ratelimit.Must(ratelimit.NewDenyCache(l))
	must(t)(b.TryAcquireN(ctx, "k", 500)) // of a bucket that is nearly full, nothing comes back
	heat(t, e, l, "k", b)
	synctest.Wait()
	_, _, err := b.TryAcquireUpTo(ctx, "k", 1000)
	require.NoError(t, err)
	return b, l, cache
}

func estimateOfKey(t *testing.T, l ratelimit.Settler, key string, n int) (*ratelimit.Ticket, ratelimit.Result) {
	ticket, r, err := l.Estimate(ctx, key, n)
	require.NoError(t, err)
	return ticket, r
}

// underWay begins a call, and returns when Redis has executed what it sends. The replies arrive when arrive is called, which
// returns when the call has.
func underWay(e *ratelimittest.Env, call func()) (arrive func()) {
	var sending atomic.Bool
	arrives, over := make(chan struct{}), make(chan struct{})
	e.Client().AddHook(onCommand(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		late := sending.Load()
		err := next(ctx, cmd)
		if late && err == nil {
			<-arrives
		}
		return err
	}))
	sending.Store(true)
	go func() { call(); close(over) }()
	synctest.Wait()
	sending.Store(false)
	return func() { close(arrives); <-over }
}

// TestADenialBySlicesAndOneByRedis are about different calls: what is left of slices is for those that take n, and all others
// ask Redis.
func TestADenialBySlicesAndOneByRedis(t *testing.T) {
	inBubble(t, func(t *testing.T, e *ratelimittest.Env) {
		_, _, cache := emptied(t, e)
		_, r := estimateOfKey(t, cache, "k", 2)
		require.False(t, r.Allowed)
		r = must(t)(cache.TryAcquireN(ctx, "k", 2))
		require.True(t, r.Allowed && r.Leased, "%+v: the slice has permits, whatever Redis denies", r)
	})
	inBubble(t, func(t *testing.T, e *ratelimittest.Env) {
		b, l := leasedBucket(e)
		cache := ratelimit.Must(ratelimit.NewDenyCache(l))
		must(t)(b.TryAcquireN(ctx, "k", 500))
		heat(t, e, l, "k", b)
		var r ratelimit.Result
		for r = must(t)(cache.TryAcquire(ctx, "k")); r.Allowed; {
			r = must(t)(cache.TryAcquire(ctx, "k"))
		}
		require.True(t, r.Leased, "%+v", r)
		require.Positive(t, must(t)(b.Peek(ctx, "k")).Remaining)
		ticket, r := estimateOfKey(t, cache, "k", 1)
		require.True(t, r.Allowed, "%+v: this process waits before it asks for a slice, and Redis has permits", r)
		require.NoError(t, ticket.Settle(ctx, 1))
		require.True(t, must(t)(cache.Peek(ctx, "k")).Allowed)
	})
}

// TestWhatSlicesGiveBackIsHeard by every cache around them, whichever way the call came that brings it.
func TestWhatSlicesGiveBackIsHeard(t *testing.T) {
	denied := func(t *testing.T, n int, caches ...*ratelimit.DenyCache) {
		for _, c := range caches {
			_, r := estimateOfKey(t, c, "k", n)
			require.GreaterOrEqual(t, r.RetryAfter, time.Duration(n-10)*time.Millisecond)
		}
	}
	allowed := func(t *testing.T, b *ratelimit.TokenBucket, n int, caches ...*ratelimit.DenyCache) {
		synctest.Wait()
		require.GreaterOrEqual(t, must(t)(b.Peek(ctx, "k")).Remaining, n)
		for _, c := range caches {
			require.GreaterOrEqual(t, must(t)(c.Peek(ctx, "k")).Remaining, n)
			all, err := ratelimit.Look(ctx, ratelimit.ClaimOf(c, "k", n))
			require.NoError(t, err)
			require.True(t, all.Allowed, "%+v", all)
		}
	}
	t.Run("by Close", func(t *testing.T) {
		inBubble(t, func(t *testing.T, e *ratelimittest.Env) {
			b, l, cache := emptied(t, e)
			other := ratelimit.Must(ratelimit.NewDenyCache(ratelimit.Must(ratelimit.NewFallback(l, ratelimit.DenyAll()))))
			denied(t, 40, cache, other)
			require.NoError(t, l.Close(ctx))
			allowed(t, b, 40, cache, other)
		})
	})
	t.Run("with the next slice", func(t *testing.T) {
		inBubble(t, func(t *testing.T, e *ratelimittest.Env) {
			b, l, cache := emptied(t, e)
			e.Advance(260 * time.Millisecond) // the slice is over
			_, _, err := b.TryAcquireUpTo(ctx, "k", 1000)
			require.NoError(t, err)
			denied(t, 12, cache)
			must(t)(l.TryAcquire(ctx, "k"))
			allowed(t, b, 12, cache)
		})
	})
	t.Run("of a flight that comes late", func(t *testing.T) {
		inBubble(t, func(t *testing.T, e *ratelimittest.Env) {
			b, l, cache := emptied(t, e)
			e.Advance(400 * time.Millisecond)
			arrive := underWay(e, func() { _, _ = l.TryAcquire(ctx, "k") })
			_, _, err := b.TryAcquireUpTo(ctx, "k", 1000)
			require.NoError(t, err)
			denied(t, 40, cache)
			soon, cancel := context.WithTimeout(ctx, time.Millisecond)
			defer cancel()
			require.NoError(t, l.Close(soon))
			arrive()
			allowed(t, b, 40, cache)
		})
	})
}

// TestALeasedHearsWhatComesBack through it: a denial that it remembers ends then.
func TestALeasedHearsWhatComesBack(t *testing.T) {
	for _, test := range []struct {
		name string
		back func(t *testing.T, l *ratelimit.Leased) (undo func() error)
	}{
		{"a settlement", func(t *testing.T, l *ratelimit.Leased) func() error {
			ticket, r := estimateOfKey(t, l, "k", 10)
			require.True(t, r.Allowed)
			return func() error { return ticket.Settle(ctx, 7) }
		}},
		{"of several claims", func(t *testing.T, l *ratelimit.Leased) func() error {
			all, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(l, "k", 10).Estimate(), ratelimit.ClaimOf(ratelimit.AllowAll(), "k", 1))
			require.NoError(t, err)
			return func() error { return all.Parts[0].Ticket.Settle(ctx, 7) }
		}},
		{"a reservation", func(t *testing.T, l *ratelimit.Leased) func() error {
			must(t)(l.TryAcquireN(ctx, "k", 8))
			r, err := l.Reserve(ctx, "k", 3, time.Hour)
			require.NoError(t, err)
			return func() error { return r.Cancel(ctx) }
		}},
		{"a credit", func(t *testing.T, l *ratelimit.Leased) func() error {
			must(t)(l.TryAcquireN(ctx, "k", 10))
			return func() error {
				_, err := l.Credit(ctx, "k", 3)
				return err
			}
		}},
		{"a reset", func(t *testing.T, l *ratelimit.Leased) func() error {
			must(t)(l.TryAcquireN(ctx, "k", 10))
			return func() error { return l.Reset(ctx, "k") }
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *ratelimittest.Env) {
				l := ratelimit.Must(ratelimit.NewLeased(ratelimit.Must(ratelimit.NewTokenBucket(e.Client(), ratelimit.PerHour(10), 10))))
				undo := test.back(t, l)
				for !must(t)(l.TryAcquireN(ctx, "k", 2)).Leased {
				}
				require.NoError(t, undo())
				r := must(t)(l.TryAcquireN(ctx, "k", 2))
				require.True(t, r.Allowed, "%+v", r)
			})
		})
		t.Run(test.name+", while a call is denied", func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *ratelimittest.Env) {
				l := ratelimit.Must(ratelimit.NewLeased(ratelimit.Must(ratelimit.NewTokenBucket(e.Client(), ratelimit.PerHour(10), 10))))
				undo := test.back(t, l)
				must(t)(l.TryAcquireN(ctx, "k", 10))
				var late ratelimit.Result
				arrive := underWay(e, func() { late, _ = l.TryAcquireN(ctx, "k", 2) })
				require.NoError(t, undo())
				arrive()
				require.False(t, late.Allowed)
				r := must(t)(l.TryAcquireN(ctx, "k", 2))
				require.True(t, r.Allowed, "%+v", r)
			})
		})
	}
}

// TestOnceThroughALeased: an id takes its permits once, also of a key that has a slice.
func TestOnceThroughALeased(t *testing.T) {
	inBubble(t, func(t *testing.T, e *ratelimittest.Env) {
		b, l := leasedBucket(e)
		heat(t, e, l, "k")
		once := func() ratelimit.AllResult {
			r, err := ratelimit.TryAcquireOnce(ctx, "job", time.Hour, ratelimit.ClaimOf(l, "k", 3))
			require.NoError(t, err)
			return r
		}
		left := must(t)(b.Peek(ctx, "k")).Remaining
		require.False(t, once().Repeated)
		require.True(t, once().Repeated)
		require.Equal(t, left-3, must(t)(b.Peek(ctx, "k")).Remaining)
	})
}

package faulttest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
)

// usedQuotas are quotas that callers wait for and settle: what they use keeps the bound of
// the limiter alone, in each stretch of time without a kill or a step of the clock.
func usedQuotas() []quota {
	bucket := func(use func(*ratelimit.TokenBucket) ratelimit.Limiter, o ...ratelimit.Option) func(ratelimit.Client, int, time.Duration, ...ratelimit.Option) (ratelimit.Limiter, error) {
		return func(c ratelimit.Client, limit int, window time.Duration, opts ...ratelimit.Option) (ratelimit.Limiter, error) {
			l, err := ratelimit.NewTokenBucket(c, ratelimit.Per(limit, window), limit, append(o, opts...)...)
			return use(l), err
		}
	}
	return []quota{
		{"TokenBucket that callers wait for", perRate, bucket(func(l *ratelimit.TokenBucket) ratelimit.Limiter { return waitedFor{l} })},
		{"TokenBucket that is settled", perRate, bucket(func(l *ratelimit.TokenBucket) ratelimit.Limiter { return settled{l, l} }, ratelimit.WithExactReturns())},
		{"SlidingWindow ZSet that is settled", anyWindow, func(c ratelimit.Client, limit int, window time.Duration, opts ...ratelimit.Option) (ratelimit.Limiter, error) {
			l, err := ratelimit.NewSlidingWindow(c, limit, window, append(opts, ratelimit.WithStorage(ratelimit.StorageZSet))...)
			return settled{l, l}, err
		}},
		{"SlidingLog that is settled", anyWindow, func(c ratelimit.Client, limit int, window time.Duration, opts ...ratelimit.Option) (ratelimit.Limiter, error) {
			l, err := ratelimit.NewSlidingLog(c, []ratelimit.Rule{{Limit: limit, Window: window}}, opts...)
			return settled{l, l}, err
		}},
	}
}

// waitedFor waits a little for its permits, and counts as allowed when they may be used.
type waitedFor struct{ *ratelimit.TokenBucket }

func (w waitedFor) TryAcquireN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	r, err := w.Reserve(ctx, key, n, 50*time.Millisecond)
	var long *ratelimit.WaitError
	if errors.As(err, &long) {
		return ratelimit.Result{RetryAfter: long.Wait}, nil
	}
	if err == nil {
		err = r.Wait(ctx)
	}
	return ratelimit.Result{Allowed: err == nil}, err
}

// settled estimates two permits too many, and gives them back.
type settled struct {
	ratelimit.Limiter
	settler ratelimit.Settler
}

func (s settled) TryAcquireN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	ticket, r, err := s.settler.Estimate(ctx, key, n+2)
	if ticket != nil {
		_ = ticket.Settle(ctx, n) // if it fails, the estimate stays charged
	}
	return r, err
}

// holders hold permits of an InFlight while the server is maltreated. Their lease is longer
// than any hold and any fault, so that there are never more than the limit, but for what a
// kill forgets and a step of the clock ends: such an epoch is spoilt from then on, and
// another begins.
type holders struct {
	limiters []*ratelimit.InFlight
	epoch    atomic.Pointer[epoch]
	wg       sync.WaitGroup
	taken    atomic.Int64
	most     atomic.Int64 // at a time, in an epoch that was not spoilt
}

type epoch struct {
	key     string
	holding atomic.Int64
	spoilt  atomic.Bool
}

const soakHolders = 3

// startHolders lets workers take and release permits, each with the gate open.
func (s *soak) startHolders() {
	s.holders = &holders{}
	s.holders.begin()
	for i, c := range s.clients {
		l, err := ratelimit.NewInFlight(c, soakHolders, time.Minute, s.opts[i]...)
		require.NoError(s.t, err)
		s.holders.limiters = append(s.holders.limiters, l)
	}
	for w := range 2 * soakHolders {
		rng := rand.New(rand.NewPCG(uint64(w), 2))
		l := s.holders.limiters[w%len(s.holders.limiters)]
		s.holders.wg.Go(func() {
			for {
				select {
				case <-s.load.quit:
					return
				case <-time.After(time.Duration(rng.IntN(int(4 * time.Millisecond)))):
				}
				s.load.gate.RLock()
				s.holders.hold(l, time.Duration(rng.IntN(int(4*time.Millisecond))))
				s.load.gate.RUnlock()
			}
		})
	}
}

func (h *holders) hold(l *ratelimit.InFlight, d time.Duration) {
	e := h.epoch.Load()
	hold, _, err := l.TryAcquire(ctx, e.key)
	if err != nil || hold == nil {
		return
	}
	h.taken.Add(1)
	if n := e.holding.Add(1); !e.spoilt.Load() {
		for most := h.most.Load(); n > most && !h.most.CompareAndSwap(most, n); most = h.most.Load() {
		}
	}
	time.Sleep(d)
	e.holding.Add(-1)
	_ = hold.Release(ctx) // if it fails, the place is taken until the lease ends
}

// begin begins an epoch: after a kill or a step, and where releases that failed have left
// places taken.
func (h *holders) begin() {
	h.epoch.Store(&epoch{key: fmt.Sprint("holders ", time.Now().UnixNano())})
}

// spoil is called before a kill or a step.
func (h *holders) spoil() { h.epoch.Load().spoilt.Store(true) }

func (h *holders) judge(t *testing.T) {
	require.LessOrEqual(t, h.most.Load(), int64(soakHolders), "holders at a time")
}

// soakSliced is a bucket of which each client has slices, for a tenth of a second: 500 a second.
const soakSliced = 200

// slicedQuota is that bucket.
func slicedQuota() []quota {
	return []quota{{"TokenBucket with slices", perRate, func(c ratelimit.Client, limit int, window time.Duration, opts ...ratelimit.Option) (ratelimit.Limiter, error) {
		l, err := ratelimit.NewTokenBucket(c, ratelimit.Per(limit, window), limit, opts...)
		if err != nil {
			return nil, err
		}
		return ratelimit.NewLeased(l)
	}}}
}

// openSliced begins with another key: slices that were taken before a kill or a step of the clock may be spent after it, beside
// what the server then knows.
func (s *soak) openSliced() {
	a := openAccounts(s.t, slicedQuota(), fmt.Sprint("sliced ", time.Now().UnixNano()), soakSliced, 2*soakShort, s.clients, s.opts...)[0]
	s.short[len(s.short)-1] = a
	s.sliced.Store(a)
}

// startSlices lets the clients spend slices late. All take one when the bucket is full, nobody calls until it is full again and
// the slices are over, and then all ask for more than there is. A slice that lived longer would come on top of a full bucket.
func (s *soak) startSlices() {
	const cycle, full, burst = 760 * time.Millisecond, 400 * time.Millisecond, 600
	for i := range s.clients {
		s.holders.wg.Go(func() {
			for {
				now := time.Duration(time.Now().UnixNano()) % cycle
				at, calls := cycle-now, burst // at the next cycle's begin
				if now < full {
					at, calls = full-now, 3
				}
				select {
				case <-s.load.quit:
					return
				case <-time.After(at):
				}
				for range calls {
					s.load.gate.RLock()
					a := s.sliced.Load()
					_ = a.ask(ctx, &s.load.tally, a.by[i], 1)
					s.load.gate.RUnlock()
				}
			}
		})
	}
}

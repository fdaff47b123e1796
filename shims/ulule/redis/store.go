// Package redis is a store for github.com/ulule/limiter/v3 whose decisions are made by
// [ratelimit.FixedWindow]. The limiter, its rates ("5-M"), its contexts and its middlewares stay
// those of ulule/limiter. A service changes one import to use the store, and changes it back to
// return:
//
//	import sredis "github.com/tryacquire/ratelimit/shims/ulule/redis"
//
// It counts in keys of its own: while old and new instances run side by side, a key may get up to
// twice its limit. The README of this module has what else differs.
package redis

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/ulule/limiter/v3"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/recent"
)

// Name is the name of the store's limiters. A limiter of package ratelimit with this name and the
// store's prefix goes on from what the store has counted:
//
//	ratelimit.NewFixedWindow(client, 5, time.Minute,
//		ratelimit.WithName(redis.Name), ratelimit.WithPrefix(limiter.DefaultPrefix))
const Name = "ulule"

// maxRates is how many rates a store keeps a limiter for: a limiter of ulule/limiter has one rate.
const maxRates = 1024

// A Store is a limiter.Store.
type Store struct {
	windows *recent.Cache[rate, *ratelimit.FixedWindow]
}

var _ limiter.Store = (*Store)(nil)

type rate struct {
	limit  int64
	period time.Duration
}

// NewStore returns a store with the prefix of ulule/limiter. client is a *redis.Client,
// *redis.ClusterClient, *redis.Ring or redis.UniversalClient. Redis is not asked.
func NewStore(client ratelimit.Client) (limiter.Store, error) {
	return NewStoreWithOptions(client, limiter.StoreOptions{})
}

// NewStoreWithOptions returns a store whose keys begin with the prefix of the options, or with that
// of ulule/limiter if they have none. Their other fields are for other stores.
func NewStoreWithOptions(client ratelimit.Client, options limiter.StoreOptions) (limiter.Store, error) {
	prefix := options.Prefix
	if prefix == "" {
		prefix = limiter.DefaultPrefix
	}
	window := func(r rate) (*ratelimit.FixedWindow, error) {
		return ratelimit.NewFixedWindow(client, int(min(r.limit, math.MaxInt)), r.period,
			ratelimit.WithName(Name), ratelimit.WithPrefix(prefix))
	}
	if _, err := window(rate{1, time.Second}); err != nil {
		return nil, fmt.Errorf("ulule: the store: %w", err)
	}
	return &Store{recent.New(maxRates, window)}, nil
}

// Get takes one permit. The context is Reached if there was none.
func (s *Store) Get(ctx context.Context, key string, rate limiter.Rate) (limiter.Context, error) {
	return s.Increment(ctx, key, 1, rate)
}

// Increment takes count permits, or as many as are left: the context is then Reached. With a count
// of 0 it is Peek.
func (s *Store) Increment(ctx context.Context, key string, count int64, rate limiter.Rate) (limiter.Context, error) {
	if count == 0 {
		return s.Peek(ctx, key, rate)
	}
	window, err := s.window(rate)
	if err != nil {
		return limiter.Context{}, err
	}
	if rate.Limit < 1 {
		return closed(rate), nil
	}
	taken, r, err := window.TryAcquireUpTo(ctx, keyOf(key), int(max(min(count, math.MaxInt), math.MinInt)))
	if err != nil {
		return limiter.Context{}, err
	}
	return contextOf(rate, r, int64(taken) < count), nil
}

// Peek takes nothing. The context is Reached if Get would be.
func (s *Store) Peek(ctx context.Context, key string, rate limiter.Rate) (limiter.Context, error) {
	window, err := s.window(rate)
	if err != nil {
		return limiter.Context{}, err
	}
	if rate.Limit < 1 {
		return closed(rate), nil
	}
	r, err := window.Peek(ctx, keyOf(key))
	if err != nil {
		return limiter.Context{}, err
	}
	return contextOf(rate, r, !r.Allowed), nil
}

// Reset deletes what key has used.
func (s *Store) Reset(ctx context.Context, key string, rate limiter.Rate) (limiter.Context, error) {
	window, err := s.window(rate)
	if err != nil {
		return limiter.Context{}, err
	}
	if rate.Limit < 1 {
		return closed(rate), nil
	}
	if err := window.Reset(ctx, keyOf(key)); err != nil {
		return limiter.Context{}, err
	}
	return contextOf(rate, ratelimit.Result{Remaining: int(rate.Limit)}, false), nil
}

// keyOf is key, or one that is not empty: ulule/limiter takes an empty key, as gin's ClientIP on a Unix socket, and its
// middlewares panic on an error. The keys of nothing but zero bytes each get one more, so that no two keys become one.
func keyOf(key string) string {
	if strings.Trim(key, "\x00") == "" {
		return key + "\x00"
	}
	return key
}

// window is the limiter of a rate. That of a limit below 1 is not used.
func (s *Store) window(r limiter.Rate) (*ratelimit.FixedWindow, error) {
	window, err := s.windows.Get(rate{max(r.Limit, 1), r.Period})
	if err != nil {
		return nil, fmt.Errorf("ulule: %d per %v: %w", r.Limit, r.Period, err)
	}
	return window, nil
}

// closed is the context of a limit below 1, which denies everything.
func closed(r limiter.Rate) limiter.Context { return contextOf(r, ratelimit.Result{}, true) }

// contextOf is an answer. Reset is a Unix time by this host's clock, as ulule/limiter has it: the
// end of the window, or of one that would begin now.
func contextOf(rate limiter.Rate, r ratelimit.Result, reached bool) limiter.Context {
	left := r.ResetAfter
	if left == 0 {
		left = rate.Period
	}
	return limiter.Context{
		Limit:     rate.Limit,
		Remaining: int64(r.Remaining),
		Reset:     time.Now().Add(left).Unix(),
		Reached:   reached,
	}
}

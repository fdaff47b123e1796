package ratelimit_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/exact"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
)

// TestTheLargestLimit: a limit and a call at the bound are counted to the permit, beyond it they are errors.
func TestTheLargestLimit(t *testing.T) {
	raceflag.SkipSequential(t)
	const most = exact.Permits
	fixed := func(o ...ratelimit.Option) func(c ratelimit.Client, limit int) (settling, error) {
		return func(c ratelimit.Client, limit int) (settling, error) {
			return ratelimit.NewFixedWindow(c, limit, 24*time.Hour, o...)
		}
	}
	sliding := func(s ratelimit.Storage) func(c ratelimit.Client, limit int) (settling, error) {
		return func(c ratelimit.Client, limit int) (settling, error) {
			return ratelimit.NewSlidingWindow(c, limit, 24*time.Hour, ratelimit.WithStorage(s))
		}
	}
	for name, build := range map[string]func(c ratelimit.Client, limit int) (settling, error){
		"FixedWindow":         fixed(),
		"FixedWindow aligned": fixed(ratelimit.WithAlignment(0)),
		"CalendarWindow": func(c ratelimit.Client, limit int) (settling, error) {
			return ratelimit.NewCalendarWindow(c, limit, ratelimit.Monthly(1, time.UTC))
		},
		"Hash": sliding(ratelimit.StorageHash),
		"List": sliding(ratelimit.StorageList),
		"SlidingLog": func(c ratelimit.Client, limit int) (settling, error) {
			return ratelimit.NewSlidingLog(c, []ratelimit.Rule{{limit, 24 * time.Hour}})
		},
		"SlidingLog of two rules": func(c ratelimit.Client, limit int) (settling, error) {
			return ratelimit.NewSlidingLog(c, []ratelimit.Rule{{limit - 1, time.Hour}, {limit, 24 * time.Hour}})
		},
		"TokenBucket": func(c ratelimit.Client, limit int) (settling, error) {
			return ratelimit.NewTokenBucket(c, ratelimit.Per(limit, 30*24*time.Hour), limit)
		},
		"TokenBucket, one number": func(c ratelimit.Client, limit int) (settling, error) {
			return ratelimit.NewTokenBucket(c, ratelimit.Per(limit, time.Second), limit)
		},
		"TokenBucket in steps": func(c ratelimit.Client, limit int) (settling, error) {
			return ratelimit.NewTokenBucket(c, ratelimit.Per(limit, time.Hour), limit, ratelimit.WithRefillEvery(time.Minute))
		},
		"LeakyBucket": func(c ratelimit.Client, limit int) (settling, error) {
			return ratelimit.NewLeakyBucket(c, ratelimit.Per(limit, 24*time.Hour), limit)
		},
	} {
		_, err := build(limitertest.Offline(t), most+1)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig, name)
		require.ErrorContains(t, err, fmt.Sprintf("%d; it must be at most %d; count in a larger unit", most+1, most), name)
		for server, open := range map[string]func(testing.TB) *limitertest.Stage{"miniredis": limitertest.OnMiniredis, "Redis": limitertest.OnHeldRedis} {
			t.Run(name+"/"+server, func(t *testing.T) {
				s := open(t)
				l, err := build(s.Client, most)
				require.NoError(t, err)
				left := func(key string, want int) {
					t.Helper()
					require.Equal(t, want, must(t)(l.Peek(ctx, key)).Remaining)
				}
				own := most // of the rule that has fewest left
				if strings.HasSuffix(name, "two rules") {
					own--
				}
				r := must(t)(l.TryAcquireN(ctx, "k", own-2))
				require.True(t, r.Allowed)
				require.Equal(t, 2, r.Remaining)
				require.Equal(t, 1, must(t)(l.TryAcquire(ctx, "k")).Remaining)
				taken, r, err := l.TryAcquireUpTo(ctx, "k", most)
				require.NoError(t, err)
				require.Equal(t, 1, taken)
				require.Zero(t, r.Remaining)
				r = must(t)(l.TryAcquireN(ctx, "k", own))
				require.False(t, r.Allowed)
				require.Positive(t, r.RetryAfter)
				s.Advance(r.RetryAfter)
				if r = must(t)(l.TryAcquireN(ctx, "k", own)); !r.Allowed { // of two rules, the one that blocks longest is named
					t.Fatal(r)
				}

				ticket, _, err := l.Estimate(ctx, "settled", own)
				require.NoError(t, err)
				require.NoError(t, ticket.Settle(ctx, 1))
				left("settled", own-1)
				require.True(t, must(t)(l.Charge(ctx, "settled", most)).Allowed)
				left("settled", 0)
				_, err = l.Charge(ctx, "settled", most+1)
				require.ErrorIs(t, err, ratelimit.ErrTooMuchDebt)
				_, err = l.TryAcquireN(ctx, "k", most+1)
				require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
			})
		}
	}
}

// TestAWindowOfFewPermitsKeepsTheCountOfALargeOne, which is too large for the state of a small window. It also keeps it when
// the key has lost its TTL and gets a new one.
func TestAWindowOfFewPermitsKeepsTheCountOfALargeOne(t *testing.T) {
	for server, open := range map[string]func(testing.TB) *limitertest.Stage{"miniredis": limitertest.OnMiniredis, "Redis": limitertest.OnHeldRedis} {
		t.Run(server, func(t *testing.T) {
			s := open(t)
			large := ratelimit.Must(ratelimit.NewFixedWindow(s.Client, exact.Permits, time.Hour))
			small := ratelimit.Must(ratelimit.NewFixedWindow(s.Client, exact.Counted, time.Hour))
			require.Equal(t, 1, must(t)(large.TryAcquireN(ctx, "k", exact.Permits-1)).Remaining)
			key := s.Admin.Keys(ctx, "*").Val()[0]
			require.NoError(t, s.Admin.Persist(ctx, key).Err())
			r := must(t)(small.TryAcquire(ctx, "k"))
			require.Equal(t, ratelimit.Result{Limit: exact.Counted, Window: time.Hour, RetryAfter: time.Hour, ResetAfter: time.Hour}, r)
			require.Equal(t, time.Hour, s.Admin.PTTL(ctx, key).Val())
			require.Equal(t, 1, must(t)(large.Peek(ctx, "k")).Remaining)
			_, err := small.Charge(ctx, "k", 1)
			require.ErrorIs(t, err, ratelimit.ErrTooMuchDebt)
			s.Advance(time.Hour)
			require.Equal(t, exact.Counted-1, must(t)(small.TryAcquire(ctx, "k")).Remaining)
			require.Equal(t, exact.Permits-2, must(t)(large.TryAcquire(ctx, "k")).Remaining)
		})
	}
}

// TestALogOfMorePermitsThanNumbersHold: a short rule has taken them within the window of a long one, which keeps them.
func TestALogOfMorePermitsThanNumbersHold(t *testing.T) {
	for _, storage := range []ratelimit.Storage{ratelimit.StorageHash, ratelimit.StorageList} {
		t.Run(storage.String(), func(t *testing.T) {
			s := limitertest.OnMiniredis(t)
			build := func(window time.Duration) *ratelimit.SlidingWindow {
				return ratelimit.Must(ratelimit.NewSlidingWindow(s.Client, exact.Permits, window, ratelimit.WithStorage(storage)))
			}
			short, long := build(time.Second), build(time.Hour)
			must(t)(long.TryAcquire(ctx, "k"))
			must(t)(short.TryAcquire(ctx, "k"))
			key := s.Admin.Keys(ctx, "*").Val()[0]
			nearly := strconv.FormatInt(exact.Bound-10, 10)
			if storage == ratelimit.StorageList {
				require.NoError(t, s.Admin.LSet(ctx, key, -1, nearly).Err())
			} else {
				require.NoError(t, s.Admin.HSet(ctx, key, "total", nearly).Err())
			}
			for range 3 {
				s.Advance(2 * time.Minute) // sub-windows of the long rule take 90 s
				require.True(t, must(t)(short.TryAcquireN(ctx, "k", 20)).Allowed)
			}
		})
	}
}

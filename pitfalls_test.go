package ratelimit_test

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// The faults of other libraries, one test each, numbered as in the list they
// were collected in. Most run over every variant on every stage.

// 1: a counter whose TTL was set in a second step, or only by the first call,
// blocks for ever once that is lost.
func TestPitfall1LostTTLDoesNotBlockForEver(t *testing.T) {
	limitertest.Each(t, func(t *testing.T, s *limitertest.Stage, v limitertest.Variant, l ratelimit.Limiter) {
		must(t)(l.TryAcquireN(ctx, v.Of("k"), 3))
		require.True(t, s.Admin.Persist(ctx, v.Key).Val())
		denied := must(t)(l.TryAcquire(ctx, v.Of("k")))
		require.False(t, denied.Allowed)
		require.LessOrEqual(t, denied.RetryAfter, v.Retry)
		s.Advance(denied.RetryAfter)
		require.True(t, must(t)(l.TryAcquire(ctx, v.Of("k"))).Allowed)
		require.Positive(t, s.Admin.PTTL(ctx, v.Key).Val())
	})
}

// 2: an expiry computed as capacity/rate is a fraction or zero, and fails after
// the call was charged.
func TestPitfall2ShortLivedStateExpiresToo(t *testing.T) {
	limitertest.Everywhere(t, func(t *testing.T, s *limitertest.Stage) {
		for i, rate := range []ratelimit.Rate{ratelimit.Per(1000, time.Millisecond), ratelimit.Per(999_983, 7*time.Millisecond), ratelimit.PerSecond(7)} {
			l := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, rate, 1, s.Opts...))
			key := fmt.Sprint("k", i)
			require.True(t, must(t)(l.TryAcquire(ctx, key)).Allowed)
			ttl := s.Admin.PTTL(ctx, "ratelimit:default:tokenbucket{"+key+"}").Val()
			require.NotEqual(t, time.Duration(-1), ttl, "no TTL")
			require.LessOrEqual(t, ttl, time.Second+s.MaxSkew)
		}
	})
}

// 3: by a clock of whole seconds, a second's permits come at each tick; a host
// whose clock is slow rewinds the state.
func TestPitfall3PermitsComeOneByOneAndByOneClock(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	l := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(10), 5))
	for range 5 {
		require.True(t, must(t)(l.TryAcquire(ctx, "k")).Allowed)
	}
	allowed := 0
	for range 1000 { // a second, by the millisecond
		s.Advance(time.Millisecond)
		if must(t)(l.TryAcquire(ctx, "k")).Allowed {
			allowed++
			require.Zero(t, s.Now.Sub(limitertest.Start)%(100*time.Millisecond), "one each 100ms")
		}
	}
	require.Equal(t, 10, allowed)

	// Forty calls while the clock keeps stepping back.
	allowed = 0
	for range 40 {
		s.Advance(-time.Second)
		if must(t)(l.TryAcquire(ctx, "rewound")).Allowed {
			allowed++
		}
	}
	require.Positive(t, allowed)
	require.LessOrEqual(t, allowed, 5, "a burst of five, whatever the clock does")
}

// 4: a window, limit or rate of zero or less lets everything through, or panics.
func TestPitfall4NothingBelowOneIsAccepted(t *testing.T) {
	for _, n := range []int{0, -1} {
		d := time.Duration(n) * time.Second
		for _, build := range []func() error{
			func() error { _, err := ratelimit.NewFixedWindow(limitertest.Offline(t), n, time.Second); return err },
			func() error { _, err := ratelimit.NewFixedWindow(limitertest.Offline(t), 1, d); return err },
			func() error { _, err := ratelimit.NewSlidingWindow(limitertest.Offline(t), n, time.Second); return err },
			func() error { _, err := ratelimit.NewSlidingWindow(limitertest.Offline(t), 1, d); return err },
			func() error {
				_, err := ratelimit.NewSlidingLog(limitertest.Offline(t), []ratelimit.Rule{{n, time.Second}})
				return err
			},
			func() error {
				_, err := ratelimit.NewSlidingLog(limitertest.Offline(t), []ratelimit.Rule{{1, d}})
				return err
			},
			func() error {
				_, err := ratelimit.NewTokenBucket(limitertest.Offline(t), ratelimit.PerSecond(n), 1)
				return err
			},
			func() error {
				_, err := ratelimit.NewTokenBucket(limitertest.Offline(t), ratelimit.Per(1, d), 1)
				return err
			},
			func() error {
				_, err := ratelimit.NewTokenBucket(limitertest.Offline(t), ratelimit.PerSecond(1), n)
				return err
			},
			func() error {
				_, err := ratelimit.NewLeakyBucket(limitertest.Offline(t), ratelimit.PerSecond(1), n)
				return err
			},
		} {
			require.ErrorIs(t, build(), ratelimit.ErrInvalidConfig)
		}
	}
}

// 5: a sub-window dropped as it begins to leave shortens the window: 3 at 0.999 s
// and 3 more at 5.000 s passed a rule of 3 per 5 s.
func TestPitfall5SubWindowsStayUntilTheirLastInstant(t *testing.T) {
	for _, storage := range []ratelimit.Storage{ratelimit.StorageHash, ratelimit.StorageList} {
		s := limitertest.OnMiniredis(t)
		l := ratelimit.Must(ratelimit.NewSlidingWindow(s.Client, 3, 5*time.Second, ratelimit.WithStorage(storage), ratelimit.WithSubWindows(5)))
		s.Advance(999 * time.Millisecond)
		require.True(t, must(t)(l.TryAcquireN(ctx, "k", 3)).Allowed)
		s.Advance(5*time.Second - 999*time.Millisecond)
		require.False(t, must(t)(l.TryAcquire(ctx, "k")).Allowed, "at 5.000s")
		s.Advance(time.Second - 2*time.Microsecond)
		require.False(t, must(t)(l.TryAcquire(ctx, "k")).Allowed, "at 5.999998s")
		s.Advance(time.Microsecond)
		require.True(t, must(t)(l.TryAcquireN(ctx, "k", 3)).Allowed, "at 5.999999s, five seconds after its last instant")
	}
}

// 6: a list from which one expired count is dropped in a call, or the wrong one,
// denies by stale counts or fails.
func TestPitfall6AllThatExpiredIsDroppedAtOnce(t *testing.T) {
	limitertest.Each(t, func(t *testing.T, s *limitertest.Stage, v limitertest.Variant, l ratelimit.Limiter) {
		if v.Name == "FixedWindow" || v.Name == "FixedWindow aligned" {
			t.Skip("it has one count")
		}
		for range 3 {
			require.True(t, must(t)(l.TryAcquire(ctx, v.Of("k"))).Allowed)
			s.Advance(v.Resets[0] / 6)
		}
		s.Advance(10 * time.Second)
		require.Equal(t, 0, must(t)(l.TryAcquireN(ctx, v.Of("k"), 3)).Remaining)
		require.False(t, must(t)(l.TryAcquire(ctx, v.Of("k"))).Allowed)
	})
}

// 7: denied calls that consume, are logged, or extend the TTL.
func TestPitfall7DeniedCallsDelayNoOthers(t *testing.T) {
	limitertest.Each(t, func(t *testing.T, s *limitertest.Stage, v limitertest.Variant, l ratelimit.Limiter) {
		must(t)(l.TryAcquireN(ctx, v.Of("k"), 3))
		wait := must(t)(l.TryAcquire(ctx, v.Of("k"))).RetryAfter
		for range 20 {
			s.Advance(wait / 25 / time.Millisecond * time.Millisecond)
			require.False(t, must(t)(l.TryAcquireN(ctx, v.Of("k"), 2)).Allowed)
		}
		s.Advance(wait - 20*(wait/25/time.Millisecond*time.Millisecond))
		require.True(t, must(t)(l.TryAcquire(ctx, v.Of("k"))).Allowed)
	})

	// Nor are sibling rules charged.
	s := limitertest.OnMiniredis(t)
	l := ratelimit.Must(ratelimit.NewSlidingLog(s.Client, []ratelimit.Rule{{1, time.Second}, {3, time.Minute}}))
	for range 3 {
		require.True(t, must(t)(l.TryAcquire(ctx, "k")).Allowed)
		for range 10 {
			require.False(t, must(t)(l.TryAcquire(ctx, "k")).Allowed)
		}
		s.Advance(time.Second)
	}
}

// 8: more than the limit gets a retry-after that never comes true.
func TestPitfall8MoreThanTheLimitIsAnError(t *testing.T) {
	limitertest.Each(t, func(t *testing.T, s *limitertest.Stage, v limitertest.Variant, l ratelimit.Limiter) {
		_, err := l.TryAcquireN(ctx, v.Of("k"), 4)
		require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
		require.Zero(t, s.Admin.Exists(ctx, v.Key).Val())
	})
}

// 9: a negative number adds permits; a rejected one drives the balance down.
func TestPitfall9NegativePermitsChangeNothing(t *testing.T) {
	limitertest.Each(t, func(t *testing.T, s *limitertest.Stage, v limitertest.Variant, l ratelimit.Limiter) {
		must(t)(l.TryAcquireN(ctx, v.Of("k"), 3))
		_, err := l.TryAcquireN(ctx, v.Of("k"), -3)
		require.ErrorIs(t, err, ratelimit.ErrInvalidPermits)
		require.False(t, must(t)(l.TryAcquire(ctx, v.Of("k"))).Allowed)
		require.NoError(t, v.Forget(l, "k"))
		require.True(t, must(t)(l.TryAcquireN(ctx, v.Of("k"), 3)).Allowed)
	})
}

// 10: by float seconds the first call of ten leaves eight.
func TestPitfall10FirstCallOfTenLeavesNine(t *testing.T) {
	limitertest.Everywhere(t, func(t *testing.T, s *limitertest.Stage) {
		for _, period := range []time.Duration{time.Second, time.Minute, time.Hour, 24 * time.Hour, 7 * time.Second} {
			l := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.Per(10, period), 10, s.Opts...))
			for left := 9; left >= 0; left-- {
				require.Equal(t, left, must(t)(l.TryAcquire(ctx, period.String())).Remaining)
			}
			require.Equal(t, period/10, must(t)(l.TryAcquire(ctx, period.String())).RetryAfter)
		}
	})
}

// 11: a part of the permits taken as a fraction and reported as an integer.
func TestPitfall11NothingIsTakenInPart(t *testing.T) {
	limitertest.Everywhere(t, func(t *testing.T, s *limitertest.Stage) {
		l := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(3), 3, s.Opts...))
		must(t)(l.TryAcquireN(ctx, "k", 3))
		s.Advance(500 * time.Millisecond) // one and a half are back
		require.Equal(t, ratelimit.Result{Limit: 3, Window: time.Second, Remaining: 1, RetryAfter: 166_667 * time.Microsecond,
			ResetAfter: 500 * time.Millisecond}, must(t)(l.TryAcquireN(ctx, "k", 2)))
		require.Equal(t, ratelimit.Result{Allowed: true, Limit: 3, Window: time.Second, Remaining: 0,
			ResetAfter: 833_334 * time.Microsecond}, must(t)(l.TryAcquire(ctx, "k")))
	})
}

// 12: replicas allow too much behind a process-wide mutex; compare-and-set gives up
// under contention.
func TestPitfall12ContentionNeitherAllowsTooMuchNorFails(t *testing.T) {
	limitertest.Each(t, func(t *testing.T, s *limitertest.Stage, v limitertest.Variant, l ratelimit.Limiter) {
		replicas := []ratelimit.Limiter{l}
		for range 3 {
			replica, err := v.Build(s.Client, s.Opts...)
			require.NoError(t, err)
			replicas = append(replicas, replica)
		}
		var allowed atomic.Int64
		var wg sync.WaitGroup
		for i := range 60 {
			wg.Go(func() {
				r, err := replicas[i%len(replicas)].TryAcquire(ctx, v.Of("k"))
				if err != nil {
					t.Error(err)
				} else if r.Allowed {
					allowed.Add(1)
				}
				runtime.Gosched()
			})
		}
		wg.Wait()
		require.Equal(t, int64(3), allowed.Load())
	})
}

// 13: a peek that creates the window, or that looks like a denial.
func TestPitfall13PeekCreatesNoWindow(t *testing.T) {
	limitertest.Each(t, func(t *testing.T, s *limitertest.Stage, v limitertest.Variant, l ratelimit.Limiter) {
		require.True(t, must(t)(l.Peek(ctx, v.Of("k"))).Allowed)
		s.Advance(600 * time.Millisecond)
		r := must(t)(l.TryAcquire(ctx, v.Of("k")))
		require.Equal(t, 2, r.Remaining)
		if v.Name == "FixedWindow" {
			require.Equal(t, time.Second, r.ResetAfter, "the window opens with the permit")
		}
		must(t)(l.TryAcquireN(ctx, v.Of("k"), 2))
		require.False(t, must(t)(l.Peek(ctx, v.Of("k"))).Allowed)
	})
}

// 14: a remaining below zero, a retry-after that is always the whole window.
func TestPitfall14FieldsStayInTheirRange(t *testing.T) {
	limitertest.Each(t, func(t *testing.T, s *limitertest.Stage, v limitertest.Variant, l ratelimit.Limiter) {
		last := time.Hour
		must(t)(l.TryAcquireN(ctx, v.Of("k"), 3))
		for range 5 {
			r := must(t)(l.TryAcquireN(ctx, v.Of("k"), 3))
			require.False(t, r.Allowed)
			require.GreaterOrEqual(t, r.Remaining, 0)
			require.Less(t, r.RetryAfter, last, "it counts down")
			last = r.RetryAfter
			s.Advance(100 * time.Millisecond)
		}
	})
}

// 15: state written before the check: a first call that is denied leaves a key
// without a TTL.
func TestPitfall15DeniedFirstCallLeavesNoKey(t *testing.T) {
	limitertest.Each(t, func(t *testing.T, s *limitertest.Stage, v limitertest.Variant, l ratelimit.Limiter) {
		must(t)(l.TryAcquireN(ctx, v.Of("k"), 2))
		require.False(t, must(t)(l.TryAcquireN(ctx, v.Of("k"), 3)).Allowed)
		require.Positive(t, s.Admin.PTTL(ctx, v.Key).Val())
		_, err := l.TryAcquireN(ctx, "never used", 4)
		require.Error(t, err)
		require.Equal(t, int64(1), s.Admin.Exists(ctx, v.Key).Val())
		require.Len(t, s.Admin.Keys(ctx, "*never used*").Val(), 0)
	})
}

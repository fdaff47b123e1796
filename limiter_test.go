package ratelimit_test

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/keyname"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

func TestPermitsAreTakenThenDeniedThenComeBack(t *testing.T) {
	limitertest.Each(t, func(t *testing.T, s *limitertest.Stage, v limitertest.Variant, l ratelimit.Limiter) {
		window := v.Window
		for i, reset := range v.Resets {
			want := ratelimit.Result{Allowed: true, Limit: v.Limit, Window: window, Remaining: 3 - i}
			if i > 0 {
				want.ResetAfter = v.Resets[i-1]
			}
			require.Equal(t, want, must(t)(l.Peek(ctx, v.Of("k"))), "peek before call %d", i+1)
			want.Remaining, want.ResetAfter = 2-i, reset
			require.Equal(t, want, must(t)(l.TryAcquire(ctx, v.Of("k"))), "call %d", i+1)
		}
		denied := ratelimit.Result{Limit: v.Limit, Window: window, RetryAfter: v.Retry, ResetAfter: v.Resets[2], ByShare: v.ByShare(1, 0)}
		require.Equal(t, denied, must(t)(l.Peek(ctx, v.Of("k"))), "peek before the denial")
		for range 3 {
			require.Equal(t, denied, must(t)(l.TryAcquire(ctx, v.Of("k"))), "denial")
		}

		s.Advance(v.Retry - v.Grain)
		denied.RetryAfter = v.Grain
		denied.ResetAfter -= v.Retry - v.Grain
		require.Equal(t, denied, must(t)(l.TryAcquire(ctx, v.Of("k"))), "just before RetryAfter")
		s.Advance(v.Grain)
		require.True(t, must(t)(l.TryAcquire(ctx, v.Of("k"))).Allowed, "at RetryAfter")
	})
}

func TestTheFullLimitIsAvailableAtResetAfter(t *testing.T) {
	limitertest.Each(t, func(t *testing.T, s *limitertest.Stage, v limitertest.Variant, l ratelimit.Limiter) {
		first := must(t)(l.TryAcquire(ctx, v.Of("k")))
		s.Advance(first.ResetAfter)
		if v.Name == "FixedWindow aligned" { // the next window is a whole one
			first.ResetAfter = time.Second
		}
		if v.Name == "CalendarWindow" { // the next day is a whole one
			first.ResetAfter = v.Window
		}
		if strings.HasPrefix(v.Name, "SlidingWindow") || v.Name == "SlidingLog with a resolution" {
			s.Advance(first.Window*2 - first.ResetAfter) // to the beginning of a sub-window again
		}
		require.Equal(t, first, must(t)(l.TryAcquire(ctx, v.Of("k"))))
	})
}

func TestSeveralPermitsAllOrNone(t *testing.T) {
	limitertest.Each(t, func(t *testing.T, s *limitertest.Stage, v limitertest.Variant, l ratelimit.Limiter) {
		r := must(t)(l.TryAcquireN(ctx, v.Of("k"), 2))
		require.Equal(t, ratelimit.Result{Allowed: true, Limit: v.Limit, Window: v.Window, Remaining: 1, ResetAfter: v.Resets[1]}, r)
		r = must(t)(l.TryAcquireN(ctx, v.Of("k"), 2))
		require.Equal(t, ratelimit.Result{Limit: v.Limit, Window: v.Window, Remaining: 1, RetryAfter: v.Retry, ResetAfter: v.Resets[1], ByShare: v.ByShare(2, 1)}, r)
		require.Equal(t, v.Resets[2], must(t)(l.TryAcquire(ctx, v.Of("k"))).ResetAfter, "one is left")

		require.NoError(t, v.Forget(l, "k"))
		r = must(t)(l.TryAcquireN(ctx, v.Of("k"), 3))
		require.Equal(t, ratelimit.Result{Allowed: true, Limit: v.Limit, Window: v.Window, ResetAfter: v.Resets[2]}, r)
		wait := must(t)(l.TryAcquireN(ctx, v.Of("k"), 3)).RetryAfter
		require.Equal(t, v.Resets[2], wait, "all three must come back")
		s.Advance(wait - v.Grain)
		require.False(t, must(t)(l.TryAcquireN(ctx, v.Of("k"), 3)).Allowed)
		s.Advance(v.Grain)
		require.True(t, must(t)(l.TryAcquireN(ctx, v.Of("k"), 3)).Allowed)
	})
}

func TestMistakesOfTheCallerAreErrorsWithoutAskingRedis(t *testing.T) {
	for _, v := range limitertest.Variants() {
		t.Run(v.Name, func(t *testing.T) {
			l, err := v.Build(limitertest.Offline(t))
			require.NoError(t, err, "a limiter needs no Redis to be built")
			for _, n := range []int{0, -1, math.MinInt / 2} {
				r, err := l.TryAcquireN(ctx, v.Of("k"), n)
				require.ErrorIs(t, err, ratelimit.ErrInvalidPermits)
				require.ErrorContains(t, err, fmt.Sprint(n))
				require.Zero(t, r)
			}
			for _, n := range []int{4, math.MaxInt/2 + 1} {
				r, err := l.TryAcquireN(ctx, v.Of("k"), n)
				require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
				require.ErrorContains(t, err, fmt.Sprint(n))
				require.Zero(t, r)
			}
			_, err = l.TryAcquire(ctx, "")
			require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
			_, err = l.Peek(ctx, "")
			require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
			require.ErrorIs(t, l.Reset(ctx, ""), ratelimit.ErrInvalidKey)
		})
	}
}

func TestPeekChangesNothing(t *testing.T) {
	limitertest.Each(t, func(t *testing.T, s *limitertest.Stage, v limitertest.Variant, l ratelimit.Limiter) {
		require.True(t, must(t)(l.Peek(ctx, v.Of("k"))).Allowed)
		require.Zero(t, s.Admin.Exists(ctx, v.Key).Val())
		must(t)(l.TryAcquireN(ctx, v.Of("k"), 2))
		before := s.Look(t, v.Key)
		for range 3 {
			require.Equal(t, 1, must(t)(l.Peek(ctx, v.Of("k"))).Remaining)
		}
		require.Equal(t, before, s.Look(t, v.Key))
	})
}

func TestResetDeletesTheState(t *testing.T) {
	limitertest.Each(t, func(t *testing.T, s *limitertest.Stage, v limitertest.Variant, l ratelimit.Limiter) {
		require.NoError(t, v.Forget(l, "k"), "a key that was never used")
		first := must(t)(l.TryAcquire(ctx, v.Of("k")))
		must(t)(l.TryAcquireN(ctx, v.Of("k"), 2))
		require.False(t, must(t)(l.TryAcquire(ctx, v.Of("k"))).Allowed)
		require.NoError(t, v.Forget(l, "k"))
		require.Zero(t, s.Admin.Exists(ctx, v.Key).Val())
		require.Equal(t, first, must(t)(l.TryAcquire(ctx, v.Of("k"))))
	})
}

func TestEveryKeyExpiresWithinASecondOfItsUse(t *testing.T) {
	limitertest.Each(t, func(t *testing.T, s *limitertest.Stage, v limitertest.Variant, l ratelimit.Limiter) {
		for range 3 {
			r := must(t)(l.TryAcquire(ctx, v.Of("k")))
			ttl := s.Admin.PTTL(ctx, v.Key).Val()
			require.LessOrEqual(t, ttl, max(r.ResetAfter, v.Lives)+time.Second+s.MaxSkew, "state outlives its use")
			require.Greater(t, ttl, r.ResetAfter-time.Second/10, "state is forgotten while it matters")
		}
	})
}

func TestDenialChangesNothing(t *testing.T) {
	limitertest.Each(t, func(t *testing.T, s *limitertest.Stage, v limitertest.Variant, l ratelimit.Limiter) {
		must(t)(l.TryAcquireN(ctx, v.Of("k"), 2))
		s.Advance(10 * time.Millisecond)
		before := s.Look(t, v.Key)
		ttl := s.Admin.PTTL(ctx, v.Key).Val()
		var denied ratelimit.Result
		for range 5 {
			denied = must(t)(l.TryAcquireN(ctx, v.Of("k"), 3))
			require.False(t, denied.Allowed)
		}
		require.Equal(t, before, s.Look(t, v.Key))
		// A clock that is slower than the server's gets back what is left by it, and
		// what the scripts add to each TTL.
		const margin = 102 * time.Millisecond
		require.LessOrEqual(t, s.Admin.PTTL(ctx, v.Key).Val(), max(ttl, denied.ResetAfter+margin))
	})
}

func TestADenialGivesALostTTLBack(t *testing.T) {
	limitertest.Each(t, func(t *testing.T, s *limitertest.Stage, v limitertest.Variant, l ratelimit.Limiter) {
		must(t)(l.TryAcquireN(ctx, v.Of("k"), 3))
		before := s.Look(t, v.Key)
		require.True(t, s.Admin.Persist(ctx, v.Key).Val())
		denied := must(t)(l.TryAcquire(ctx, v.Of("k")))
		require.False(t, denied.Allowed)
		require.Equal(t, before, s.Look(t, v.Key))
		ttl := s.Admin.PTTL(ctx, v.Key).Val()
		require.Greater(t, ttl, denied.ResetAfter-time.Second/10)
		require.LessOrEqual(t, ttl, max(denied.ResetAfter, v.Lives)+time.Second+s.MaxSkew)
	})
}

func TestAKeyWithoutTTLGetsOne(t *testing.T) {
	limitertest.Each(t, func(t *testing.T, s *limitertest.Stage, v limitertest.Variant, l ratelimit.Limiter) {
		must(t)(l.TryAcquire(ctx, v.Of("k")))
		require.True(t, s.Admin.Persist(ctx, v.Key).Val())
		r := must(t)(l.TryAcquire(ctx, v.Of("k")))
		require.True(t, r.Allowed)
		require.Equal(t, 1, r.Remaining)
		require.Positive(t, s.Admin.PTTL(ctx, v.Key).Val())
	})
}

func TestLimitersOfOneNameShareAQuota(t *testing.T) {
	limitertest.Each(t, func(t *testing.T, s *limitertest.Stage, v limitertest.Variant, l ratelimit.Limiter) {
		twin, err := v.Build(s.Client, s.Opts...)
		require.NoError(t, err)
		require.Equal(t, 2, must(t)(l.TryAcquire(ctx, v.Of("k"))).Remaining)
		require.Equal(t, 1, must(t)(twin.TryAcquire(ctx, v.Of("k"))).Remaining)
		require.Equal(t, 0, must(t)(l.TryAcquire(ctx, v.Of("k"))).Remaining)
		require.False(t, must(t)(twin.TryAcquire(ctx, v.Of("k"))).Allowed)

		other, err := v.Build(s.Client, append(s.Opts, ratelimit.WithPrefix("other"))...)
		require.NoError(t, err)
		require.Equal(t, 2, must(t)(other.TryAcquire(ctx, v.Of("k"))).Remaining, "another prefix is another key")
		require.Equal(t, int64(1), s.Admin.Exists(ctx, "other"+strings.TrimPrefix(v.Key, "ratelimit")).Val())
	})
}

func TestAlgorithmsNeverMeetInAKey(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	seen := map[keyname.Head]string{}
	for _, v := range limitertest.Variants() {
		algorithm, _, _ := strings.Cut(v.Name, " ")
		if strings.HasPrefix(v.Name, "SlidingWindow") { // storages do not meet either
			algorithm = v.Key
		}
		if other, ok := seen[v.Head()]; ok {
			require.Equal(t, other, algorithm)
			continue
		}
		seen[v.Head()] = algorithm
		l, err := v.Build(s.Client)
		require.NoError(t, err)
		require.Equal(t, 2, must(t)(l.TryAcquire(ctx, v.Of("k"))).Remaining)
		require.Equal(t, int64(1), s.Admin.Exists(ctx, v.Key).Val(), v.Key)
	}
}

func TestConcurrentCallersGetExactlyTheLimit(t *testing.T) {
	limitertest.Each(t, func(t *testing.T, s *limitertest.Stage, v limitertest.Variant, l ratelimit.Limiter) {
		const callers, calls, keys = 40, 5, 3
		var allowed [keys]atomic.Int64
		var seen sync.Map
		var wg sync.WaitGroup
		for i := range callers {
			wg.Go(func() {
				for j := range calls {
					key := (i + j) % keys
					r, err := l.TryAcquire(ctx, v.Of(fmt.Sprint("k", key)))
					if err != nil {
						t.Error(err)
					} else if r.Allowed {
						allowed[key].Add(1)
						if _, twice := seen.LoadOrStore([2]int{key, r.Remaining}, true); twice {
							t.Errorf("two allowed calls of key %d left %d", key, r.Remaining)
						}
					}
				}
			})
		}
		wg.Wait()
		for key := range allowed {
			require.Equal(t, int64(3), allowed[key].Load(), "key %d", key)
		}
	})
}

func TestACallWithAnEndedContextIsNotSent(t *testing.T) {
	for _, v := range limitertest.Variants() {
		l, err := v.Build(limitertest.Offline(t))
		require.NoError(t, err)
		cancelled, cancel := context.WithCancel(ctx)
		cancel()
		r, err := l.TryAcquire(cancelled, v.Of("k"))
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorContains(t, err, strconv.Quote(v.Of("k")))
		require.Zero(t, r)
		_, err = l.Peek(cancelled, v.Of("k"))
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, l.Reset(cancelled, v.Of("k")), context.Canceled)
	}
}

func TestAWrongTypeIsAnErrorThatResetRepairs(t *testing.T) {
	limitertest.Each(t, func(t *testing.T, s *limitertest.Stage, v limitertest.Variant, l ratelimit.Limiter) {
		require.NoError(t, s.Admin.PFAdd(ctx, v.Key, "x").Err())
		if s.Admin.Type(ctx, v.Key).Val() == "string" { // a HyperLogLog is a string in Redis
			require.NoError(t, s.Admin.Del(ctx, v.Key).Err())
			require.NoError(t, s.Admin.SAdd(ctx, v.Key, "x").Err())
		}
		for range 2 {
			r, err := l.TryAcquire(ctx, v.Of("k"))
			require.Error(t, err)
			require.Zero(t, r)
			require.True(t, redis.HasErrorPrefix(err, "WRONGTYPE"), "%v", err)
			require.ErrorIs(t, err, ratelimit.ErrCorruptState)
			require.ErrorContains(t, err, strconv.Quote(v.Of("k")))
			require.ErrorContains(t, err, strings.ToLower(v.Name[1:4]), "it names the limiter")
			_, err = l.Peek(ctx, v.Of("k"))
			require.True(t, redis.HasErrorPrefix(err, "WRONGTYPE"), "%v", err)
			require.ErrorIs(t, err, ratelimit.ErrCorruptState)
		}
		require.NoError(t, v.Forget(l, "k"))
		require.Equal(t, 2, must(t)(l.TryAcquire(ctx, v.Of("k"))).Remaining)
	})
}

func TestACorruptStateIsAnErrorThatResetRepairs(t *testing.T) {
	limitertest.Each(t, func(t *testing.T, s *limitertest.Stage, v limitertest.Variant, l ratelimit.Limiter) {
		if v.Corrupt == nil {
			t.Skip("every sorted set is a state")
		}
		require.NoError(t, v.Corrupt(s.Admin, v.Key))
		before := s.Look(t, v.Key)
		for range 2 {
			r, err := l.TryAcquire(ctx, v.Of("k"))
			require.ErrorIs(t, err, ratelimit.ErrCorruptState)
			require.ErrorContains(t, err, strconv.Quote(v.Of("k")))
			require.Zero(t, r)
			_, err = l.Peek(ctx, v.Of("k"))
			require.ErrorIs(t, err, ratelimit.ErrCorruptState)
		}
		require.Equal(t, before, s.Look(t, v.Key))
		require.NoError(t, v.Forget(l, "k"))
		require.Equal(t, 2, must(t)(l.TryAcquire(ctx, v.Of("k"))).Remaining)
	})
}

func TestABadKeyDoesNotHarmTheKeysDecidedWithIt(t *testing.T) {
	limitertest.Each(t, func(t *testing.T, s *limitertest.Stage, v limitertest.Variant, l ratelimit.Limiter) {
		require.NoError(t, s.Admin.SAdd(ctx, v.Key, "x").Err())
		var wg sync.WaitGroup
		for i := range 60 {
			wg.Go(func() {
				if i%2 == 0 {
					_, err := l.TryAcquire(ctx, v.Of("k"))
					if !redis.HasErrorPrefix(err, "WRONGTYPE") {
						t.Errorf("the bad key answered %v", err)
					}
					return
				}
				r, err := l.TryAcquire(ctx, v.Of(fmt.Sprint("good", i)))
				if err != nil || r.Remaining != 2 {
					t.Errorf("a good key answered %+v, %v", r, err)
				}
			})
		}
		wg.Wait()
	})
}

func TestAnyKeyWorks(t *testing.T) {
	keys := []string{" ", "a b", "user:{42}:x", "\x00\xff\r\n", "日本", "*", "1x1,2x2", "{", "}", "}x{", "{}x", "a}b"}
	limitertest.Each(t, func(t *testing.T, s *limitertest.Stage, v limitertest.Variant, l ratelimit.Limiter) {
		for _, key := range append(keys, strings.Repeat("k", 4096-len(v.Ending("")))) {
			s.Wipe(t)
			key = v.Ending(key)
			require.Equal(t, 2, must(t)(l.TryAcquire(ctx, key)).Remaining)
			require.Equal(t, 0, must(t)(l.TryAcquireN(ctx, key, 2)).Remaining)
			require.Equal(t, int64(1), s.Admin.Exists(ctx, v.Head().Of(key)).Val(), key)
		}
	})
}

func TestPreload(t *testing.T) {
	limitertest.Everywhere(t, func(t *testing.T, s *limitertest.Stage) {
		for _, v := range limitertest.Variants() {
			l, err := v.Build(s.Client, s.Opts...)
			require.NoError(t, err)
			require.NoError(t, ratelimit.Preload(ctx, ratelimit.ClaimOf(l, v.Of("k"), 1)), v.Name)
		}
	})
	l := ratelimit.Must(ratelimit.NewTokenBucket(redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1}), ratelimit.PerSecond(1), 1))
	require.ErrorContains(t, ratelimit.Preload(ctx, ratelimit.ClaimOf(l, "k", 1)), "ratelimit: preload: dial tcp")
}

func TestZeroValueIsAnError(t *testing.T) {
	for _, l := range []ratelimit.Limiter{
		&ratelimit.FixedWindow{}, &ratelimit.SlidingWindow{}, &ratelimit.SlidingLog{}, &ratelimit.TokenBucket{}, &ratelimit.LeakyBucket{},
		&ratelimit.DenyCache{}, &ratelimit.Fallback{}, &ratelimit.LocalTokenBucket{},
		ratelimit.Must(ratelimit.NewDenyCache(&ratelimit.TokenBucket{})), ratelimit.Must(ratelimit.NewFallback(&ratelimit.TokenBucket{}, ratelimit.AllowAll())),
		ratelimit.Must(ratelimit.NewDenyCache(&ratelimit.LocalTokenBucket{})), ratelimit.Must(ratelimit.NewFallback(&ratelimit.LocalTokenBucket{}, ratelimit.AllowAll())),
	} {
		_, err := l.TryAcquire(ctx, "k")
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
		require.ErrorContains(t, err, "was not made by its constructor")
		_, err = l.Peek(ctx, "k")
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
		require.ErrorIs(t, l.Reset(ctx, "k"), ratelimit.ErrInvalidConfig)
	}
	for _, l := range []ratelimit.Limiter{&ratelimit.FixedWindow{}, &ratelimit.SlidingWindow{}, &ratelimit.SlidingLog{}, &ratelimit.TokenBucket{}, &ratelimit.LeakyBucket{}} {
		require.ErrorIs(t, ratelimit.Preload(ctx, ratelimit.ClaimOf(l, "k", 1)), ratelimit.ErrInvalidConfig)
	}
}

// TestDenialsOfALoweredLimitRefillNothing: while a new configuration is rolled out,
// both are in use.
func TestDenialsOfALoweredLimitRefillNothing(t *testing.T) {
	for name, build := range map[string]func(c ratelimit.Client, limit int, window time.Duration, o ...ratelimit.Option) (*ratelimit.FixedWindow, error){
		"dated by its TTL": ratelimit.NewFixedWindow,
		"aligned": func(c ratelimit.Client, limit int, window time.Duration, o ...ratelimit.Option) (*ratelimit.FixedWindow, error) {
			return ratelimit.NewFixedWindow(c, limit, window, append(o, ratelimit.WithAlignment(0))...)
		},
	} {
		for _, merging := range [][]ratelimit.Option{nil, {ratelimit.WithoutMerging()}} {
			t.Run(name, func(t *testing.T) {
				s := limitertest.OnMiniredis(t)
				was := ratelimit.Must(build(s.Client, 100, time.Minute, merging...))
				gate := limitertest.NewGate(s.Client.(*redis.Client))
				is := ratelimit.Must(build(s.Client, 10, 30*time.Second, merging...))
				allowed := 0
				for range 5 {
					for must(t)(was.TryAcquire(ctx, "k")).Allowed {
						allowed++
					}
					for range 3 {
						if merging == nil {
							for _, r := range gate.Together(t, is, "k") {
								require.NoError(t, r.Err)
								require.Equal(t, 0, r.Remaining)
							}
						}
						require.Equal(t, 0, must(t)(is.TryAcquire(ctx, "k")).Remaining)
					}
				}
				require.Equal(t, 100, allowed)
			})
		}
	}
}

// TestALongerWindowHoldsEvenIfNoCallIsAllowed: the shorter one's TTL would let
// Redis forget what the longer one's denials were promised by.
func TestALongerWindowHoldsEvenIfNoCallIsAllowed(t *testing.T) {
	for name, build := range map[string]func(c ratelimit.Client, window time.Duration) ratelimit.Limiter{
		"TokenBucket stepped": func(c ratelimit.Client, w time.Duration) ratelimit.Limiter {
			return ratelimit.Must(ratelimit.NewTokenBucket(c, ratelimit.PerSecond(1), 3, ratelimit.WithRefillEvery(w)))
		},
	} {
		for _, merged := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, merged %v", name, merged), func(t *testing.T) {
				s := limitertest.OnMiniredis(t)
				short := build(s.Client, time.Second)
				for must(t)(short.TryAcquire(ctx, "k")).Remaining > 0 {
					s.Advance(50 * time.Millisecond)
				}
				for range 3 { // of several rules
					s.Advance(150 * time.Millisecond)
					must(t)(short.TryAcquire(ctx, "k"))
				}
				long := build(s.Client, 10*time.Second)
				gate := limitertest.NewGate(s.Client.(*redis.Client))
				denied := func() (first ratelimit.Result) {
					first = must(t)(long.TryAcquire(ctx, "k"))
					if merged {
						for _, r := range gate.Together(t, long, "k") {
							require.NoError(t, r.Err)
							require.Equal(t, first, r.Result)
						}
					}
					require.False(t, first.Allowed)
					return first
				}
				first := denied()
				if name != "TokenBucket stepped" { // which goes on by the steps of the writer
					require.Greater(t, first.RetryAfter, 4*time.Second)
				}
				const grain = time.Microsecond
				s.Advance(first.RetryAfter - grain)
				require.Equal(t, grain, denied().RetryAfter)
				s.Advance(grain)
				require.True(t, must(t)(long.TryAcquire(ctx, "k")).Allowed)
			})
		}
	}
}

func TestRates(t *testing.T) {
	require.Equal(t, ratelimit.Rate{5, time.Second}, ratelimit.PerSecond(5))
	require.Equal(t, ratelimit.Rate{5, time.Minute}, ratelimit.PerMinute(5))
	require.Equal(t, ratelimit.Rate{5, time.Hour}, ratelimit.PerHour(5))
	require.Equal(t, ratelimit.Rate{5, 90 * time.Second}, ratelimit.Per(5, 90*time.Second))
	require.Equal(t, []string{"List", "Hash", "ZSet", "unknown storage"}, []string{ratelimit.StorageList.String(), ratelimit.StorageHash.String(), ratelimit.StorageZSet.String(), ratelimit.Storage(9).String()})
}

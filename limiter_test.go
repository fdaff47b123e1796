package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/model"
)

func must(t testing.TB) func(Result, error) Result {
	return func(r Result, err error) Result {
		t.Helper()
		require.NoError(t, err)
		return r
	}
}

func TestGrantsThenDeniesThenRecovers(t *testing.T) {
	each(t, func(t *testing.T, s *stage, v variant, l Limiter) {
		window := time.Second
		for i, reset := range v.resets {
			want := Result{Allowed: true, Limit: 3, Window: window, Remaining: 2 - i, ResetAfter: reset}
			require.Equal(t, want, must(t)(l.Peek(ctx, "k")), "peek before grant %d", i+1)
			require.Equal(t, want, must(t)(l.TryAcquire(ctx, "k")), "grant %d", i+1)
		}
		denied := Result{Limit: 3, Window: window, RetryAfter: v.retry, ResetAfter: v.resets[2]}
		require.Equal(t, denied, must(t)(l.Peek(ctx, "k")), "peek before the denial")
		for range 3 {
			require.Equal(t, denied, must(t)(l.TryAcquire(ctx, "k")), "denial")
		}

		s.advance(v.retry - v.grain)
		denied.RetryAfter = v.grain
		denied.ResetAfter -= v.retry - v.grain
		require.Equal(t, denied, must(t)(l.TryAcquire(ctx, "k")), "just before RetryAfter")
		s.advance(v.grain)
		require.True(t, must(t)(l.TryAcquire(ctx, "k")).Allowed, "at RetryAfter")
	})
}

func TestIsAsNewAtResetAfter(t *testing.T) {
	each(t, func(t *testing.T, s *stage, v variant, l Limiter) {
		first := must(t)(l.TryAcquire(ctx, "k"))
		s.advance(first.ResetAfter)
		if v.name == "FixedWindow aligned" { // the next window is a whole one
			first.ResetAfter = time.Second
		}
		if strings.HasPrefix(v.name, "SlidingWindow") || v.name == "SlidingLog with a resolution" {
			s.advance(first.Window*2 - first.ResetAfter) // to the beginning of a sub-window again
		}
		require.Equal(t, first, must(t)(l.TryAcquire(ctx, "k")))
	})
}

func TestSeveralPermitsAllOrNone(t *testing.T) {
	each(t, func(t *testing.T, s *stage, v variant, l Limiter) {
		r := must(t)(l.TryAcquireN(ctx, "k", 2))
		require.Equal(t, Result{Allowed: true, Limit: 3, Window: time.Second, Remaining: 1, ResetAfter: v.resets[1]}, r)
		r = must(t)(l.TryAcquireN(ctx, "k", 2))
		require.Equal(t, Result{Limit: 3, Window: time.Second, Remaining: 1, RetryAfter: v.retry, ResetAfter: v.resets[1]}, r)
		require.Equal(t, v.resets[2], must(t)(l.TryAcquire(ctx, "k")).ResetAfter, "one is left")

		require.NoError(t, l.Reset(ctx, "k"))
		r = must(t)(l.TryAcquireN(ctx, "k", 3))
		require.Equal(t, Result{Allowed: true, Limit: 3, Window: time.Second, ResetAfter: v.resets[2]}, r)
		wait := must(t)(l.TryAcquireN(ctx, "k", 3)).RetryAfter
		require.Equal(t, v.resets[2], wait, "all three must come back")
		s.advance(wait - v.grain)
		require.False(t, must(t)(l.TryAcquireN(ctx, "k", 3)).Allowed)
		s.advance(v.grain)
		require.True(t, must(t)(l.TryAcquireN(ctx, "k", 3)).Allowed)
	})
}

func TestCallersMistakesAreToldWithoutRedis(t *testing.T) {
	for _, v := range variants() {
		t.Run(v.name, func(t *testing.T) {
			l, err := v.build(offline{t})
			require.NoError(t, err, "a limiter needs no Redis to be built")
			for _, n := range []int{0, -1, -1 << 62} {
				r, err := l.TryAcquireN(ctx, "k", n)
				require.ErrorIs(t, err, ErrInvalidPermits)
				require.ErrorContains(t, err, fmt.Sprint(n))
				require.Zero(t, r)
			}
			for _, n := range []int{4, 1 << 62} {
				r, err := l.TryAcquireN(ctx, "k", n)
				require.ErrorIs(t, err, ErrExceedsLimit)
				require.ErrorContains(t, err, fmt.Sprint(n))
				require.Zero(t, r)
			}
			_, err = l.TryAcquire(ctx, "")
			require.ErrorIs(t, err, ErrInvalidKey)
			_, err = l.Peek(ctx, "")
			require.ErrorIs(t, err, ErrInvalidKey)
			require.ErrorIs(t, l.Reset(ctx, ""), ErrInvalidKey)
		})
	}
}

func TestPeekLeavesNoTrace(t *testing.T) {
	each(t, func(t *testing.T, s *stage, v variant, l Limiter) {
		require.True(t, must(t)(l.Peek(ctx, "k")).Allowed)
		require.Zero(t, s.admin.Exists(ctx, v.key).Val())
		must(t)(l.TryAcquireN(ctx, "k", 2))
		before := s.look(t, v.key)
		for range 3 {
			require.Zero(t, must(t)(l.Peek(ctx, "k")).Remaining)
		}
		require.Equal(t, before, s.look(t, v.key))
	})
}

// look is what Redis holds under a key, with its TTL.
func (s *stage) look(t testing.TB, key string) string {
	var value any
	var err error
	kind := s.admin.Type(ctx, key).Val()
	switch kind {
	case "string":
		value, err = s.admin.Get(ctx, key).Result()
	case "list":
		value, err = s.admin.LRange(ctx, key, 0, -1).Result()
	case "hash":
		value, err = s.admin.HGetAll(ctx, key).Result()
	case "zset":
		value, err = s.admin.ZRangeWithScores(ctx, key, 0, -1).Result()
	}
	require.NoError(t, err)
	expiry := "expires"
	if s.admin.PTTL(ctx, key).Val() <= 0 {
		expiry = "does not expire"
	}
	return fmt.Sprint(kind, " ", value, " ", expiry)
}

func TestResetForgets(t *testing.T) {
	each(t, func(t *testing.T, s *stage, v variant, l Limiter) {
		require.NoError(t, l.Reset(ctx, "k"), "a key that was never used")
		first := must(t)(l.TryAcquire(ctx, "k"))
		must(t)(l.TryAcquireN(ctx, "k", 2))
		require.False(t, must(t)(l.TryAcquire(ctx, "k")).Allowed)
		require.NoError(t, l.Reset(ctx, "k"))
		require.Zero(t, s.admin.Exists(ctx, v.key).Val())
		require.Equal(t, first, must(t)(l.TryAcquire(ctx, "k")))
	})
}

func TestEveryKeyExpiresSoonAfterItsUse(t *testing.T) {
	each(t, func(t *testing.T, s *stage, v variant, l Limiter) {
		for range 3 {
			r := must(t)(l.TryAcquire(ctx, "k"))
			ttl := s.admin.PTTL(ctx, v.key).Val()
			require.LessOrEqual(t, ttl, r.ResetAfter+time.Second, "state outlives its use")
			require.Greater(t, ttl, r.ResetAfter-time.Second/10, "state is forgotten while it matters")
		}
	})
}

func TestDenialChangesNothing(t *testing.T) {
	each(t, func(t *testing.T, s *stage, v variant, l Limiter) {
		must(t)(l.TryAcquireN(ctx, "k", 2))
		s.advance(10 * time.Millisecond)
		before := s.look(t, v.key)
		ttl := s.admin.PTTL(ctx, v.key).Val()
		for range 5 {
			require.False(t, must(t)(l.TryAcquireN(ctx, "k", 3)).Allowed)
		}
		require.Equal(t, before, s.look(t, v.key))
		require.LessOrEqual(t, s.admin.PTTL(ctx, v.key).Val(), ttl)
	})
}

func TestKeyWithoutTTLIsRepaired(t *testing.T) {
	each(t, func(t *testing.T, s *stage, v variant, l Limiter) {
		must(t)(l.TryAcquire(ctx, "k"))
		require.True(t, s.admin.Persist(ctx, v.key).Val())
		r := must(t)(l.TryAcquire(ctx, "k"))
		require.True(t, r.Allowed)
		require.Equal(t, 1, r.Remaining)
		require.Positive(t, s.admin.PTTL(ctx, v.key).Val())
	})
}

func TestTwoLimitersShareAQuota(t *testing.T) {
	each(t, func(t *testing.T, s *stage, v variant, l Limiter) {
		twin, err := v.build(s.client, s.opts...)
		require.NoError(t, err)
		require.Equal(t, 2, must(t)(l.TryAcquire(ctx, "k")).Remaining)
		require.Equal(t, 1, must(t)(twin.TryAcquire(ctx, "k")).Remaining)
		require.Equal(t, 0, must(t)(l.TryAcquire(ctx, "k")).Remaining)
		require.False(t, must(t)(twin.TryAcquire(ctx, "k")).Allowed)

		other, err := v.build(s.client, append(s.opts, WithPrefix("other"))...)
		require.NoError(t, err)
		require.Equal(t, 2, must(t)(other.TryAcquire(ctx, "k")).Remaining, "another prefix is another key")
		require.Equal(t, int64(1), s.admin.Exists(ctx, "other"+strings.TrimPrefix(v.key, "ratelimit")).Val())
	})
}

func TestAlgorithmsNeverMeetInAKey(t *testing.T) {
	s := onMini(t)
	seen := map[string]string{}
	for _, v := range variants() {
		algorithm, _, _ := strings.Cut(v.name, " ")
		if strings.HasPrefix(v.name, "SlidingWindow") { // storages do not meet either
			algorithm = v.key
		}
		if other, ok := seen[v.key]; ok {
			require.Equal(t, other, algorithm)
			continue
		}
		seen[v.key] = algorithm
		l, err := v.build(s.client)
		require.NoError(t, err)
		require.Equal(t, 2, must(t)(l.TryAcquire(ctx, "k")).Remaining)
		require.Equal(t, int64(1), s.admin.Exists(ctx, v.key).Val(), v.key)
	}
}

func TestConcurrentCallersGetExactlyTheLimit(t *testing.T) {
	each(t, func(t *testing.T, s *stage, v variant, l Limiter) {
		const callers, calls, keys = 40, 5, 3
		var granted [keys]atomic.Int64
		var seen sync.Map
		var wg sync.WaitGroup
		for i := range callers {
			wg.Go(func() {
				for j := range calls {
					key := (i + j) % keys
					r, err := l.TryAcquire(ctx, fmt.Sprint("k", key))
					if err != nil {
						t.Error(err)
					} else if r.Allowed {
						granted[key].Add(1)
						if _, twice := seen.LoadOrStore([2]int{key, r.Remaining}, true); twice {
							t.Errorf("two grants of key %d left %d", key, r.Remaining)
						}
					}
				}
			})
		}
		wg.Wait()
		for key := range granted {
			require.Equal(t, int64(3), granted[key].Load(), "key %d", key)
		}
	})
}

func TestEndedContextIsNotSent(t *testing.T) {
	for _, v := range variants() {
		l, err := v.build(offline{t})
		require.NoError(t, err)
		cancelled, cancel := context.WithCancel(ctx)
		cancel()
		r, err := l.TryAcquire(cancelled, "k")
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorContains(t, err, `"k"`)
		require.Zero(t, r)
		_, err = l.Peek(cancelled, "k")
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, l.Reset(cancelled, "k"), context.Canceled)
	}
}

func TestWrongTypeIsAnErrorThatResetMends(t *testing.T) {
	each(t, func(t *testing.T, s *stage, v variant, l Limiter) {
		require.NoError(t, s.admin.PFAdd(ctx, v.key, "x").Err())
		if s.admin.Type(ctx, v.key).Val() == "string" { // a HyperLogLog is a string in Redis
			require.NoError(t, s.admin.Del(ctx, v.key).Err())
			require.NoError(t, s.admin.SAdd(ctx, v.key, "x").Err())
		}
		for range 2 {
			r, err := l.TryAcquire(ctx, "k")
			require.Error(t, err)
			require.Zero(t, r)
			require.True(t, redis.HasErrorPrefix(err, "WRONGTYPE"), "%v", err)
			require.ErrorIs(t, err, ErrCorruptState)
			require.ErrorContains(t, err, `"k"`)
			require.ErrorContains(t, err, strings.ToLower(v.name[1:4]), "it names the limiter")
			_, err = l.Peek(ctx, "k")
			require.True(t, redis.HasErrorPrefix(err, "WRONGTYPE"), "%v", err)
			require.ErrorIs(t, err, ErrCorruptState)
		}
		require.NoError(t, l.Reset(ctx, "k"))
		require.Equal(t, 2, must(t)(l.TryAcquire(ctx, "k")).Remaining)
	})
}

func TestCorruptStateIsAnErrorThatResetMends(t *testing.T) {
	each(t, func(t *testing.T, s *stage, v variant, l Limiter) {
		if v.corrupt == nil {
			t.Skip("every sorted set is a state")
		}
		require.NoError(t, v.corrupt(s.admin, v.key))
		before := s.look(t, v.key)
		for range 2 {
			r, err := l.TryAcquire(ctx, "k")
			require.ErrorIs(t, err, ErrCorruptState)
			require.ErrorContains(t, err, `"k"`)
			require.Zero(t, r)
			_, err = l.Peek(ctx, "k")
			require.ErrorIs(t, err, ErrCorruptState)
		}
		require.Equal(t, before, s.look(t, v.key))
		require.NoError(t, l.Reset(ctx, "k"))
		require.Equal(t, 2, must(t)(l.TryAcquire(ctx, "k")).Remaining)
	})
}

// TestCorruptInstantOfABucket: what has the shape of a state at a rate of one
// permit in so many microseconds, which is read without taking it apart.
func TestCorruptInstantOfABucket(t *testing.T) {
	s := onMini(t)
	l := Must(NewTokenBucket(s.client, PerSecond(10), 3, WithoutMerging()))
	together := Must(NewTokenBucket(s.client, PerSecond(10), 3))
	const name = "ratelimit:default:tokenbucket:k"
	for _, instant := range []string{"abcdefghijklmnop", "nan             ", "-nan            ", "-000000000000001", "1763670000 00000", "                ", "             inf", "            1e99"} {
		require.NoError(t, s.admin.Set(ctx, name, instant+"/100000", time.Minute).Err())
		before := s.look(t, name)
		_, err := l.TryAcquire(ctx, "k")
		require.ErrorIs(t, err, ErrCorruptState, "%q", instant)
		_, err = l.Peek(ctx, "k")
		require.ErrorIs(t, err, ErrCorruptState, "%q", instant)
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if _, err := together.TryAcquire(ctx, "k"); !errors.Is(err, ErrCorruptState) {
					t.Errorf("%q: %v", instant, err)
				}
			})
		}
		wg.Wait()
		require.Equal(t, before, s.look(t, name))
	}
}

func TestOneBadKeyDoesNotHarmItsCompanions(t *testing.T) {
	each(t, func(t *testing.T, s *stage, v variant, l Limiter) {
		require.NoError(t, s.admin.SAdd(ctx, v.key, "x").Err())
		var wg sync.WaitGroup
		for i := range 60 {
			wg.Go(func() {
				if i%2 == 0 {
					_, err := l.TryAcquire(ctx, "k")
					if !redis.HasErrorPrefix(err, "WRONGTYPE") {
						t.Errorf("the bad key answered %v", err)
					}
					return
				}
				r, err := l.TryAcquire(ctx, fmt.Sprint("good", i))
				if err != nil || r.Remaining != 2 {
					t.Errorf("a good key answered %+v, %v", r, err)
				}
			})
		}
		wg.Wait()
	})
}

func TestAnyKeyWorks(t *testing.T) {
	keys := []string{" ", "a b", "user:{42}:x", "\x00\xff\r\n", "日本", strings.Repeat("k", 1<<20), "*", "1x1,2x2"}
	each(t, func(t *testing.T, s *stage, v variant, l Limiter) {
		for _, key := range keys {
			require.Equal(t, 2, must(t)(l.TryAcquire(ctx, key)).Remaining)
			require.Equal(t, 0, must(t)(l.TryAcquireN(ctx, key, 2)).Remaining)
			require.Equal(t, int64(1), s.admin.Exists(ctx, strings.TrimSuffix(v.key, "k")+key).Val())
		}
	})
}

func TestDeniedErr(t *testing.T) {
	require.NoError(t, Result{Allowed: true}.Err())
	err := Result{RetryAfter: 1500 * time.Millisecond}.Err()
	require.ErrorIs(t, err, ErrDenied)
	var denied *DeniedError
	require.ErrorAs(t, err, &denied)
	require.Equal(t, 1500*time.Millisecond, denied.Result.RetryAfter)
	require.Equal(t, "ratelimit: denied, retry after 1.5s", err.Error())
	require.Equal(t, `ratelimit: "k" denied, retry after 1.5s`, (&DeniedError{Key: "k", Result: denied.Result}).Error())
	require.Contains(t, (&DeniedError{Key: strings.Repeat("k", 500)}).Error(), "… (500 bytes)")
	require.NotErrorIs(t, err, errors.ErrUnsupported)
}

func TestPreload(t *testing.T) {
	everywhere(t, func(t *testing.T, s *stage) {
		for _, v := range variants() {
			l, err := v.build(s.client, s.opts...)
			require.NoError(t, err)
			require.NoError(t, l.(interface{ Preload(context.Context) error }).Preload(ctx), v.name)
		}
	})
	l := Must(NewTokenBucket(redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1}), PerSecond(1), 1))
	require.ErrorContains(t, l.Preload(ctx), "token bucket \"default\": preload")
}

func TestMust(t *testing.T) {
	require.Panics(t, func() { Must(NewTokenBucket(nil, PerSecond(1), 1)) })
	require.NotNil(t, Must(NewTokenBucket(offline{t}, PerSecond(1), 1)))
}

func TestZeroValueIsAnError(t *testing.T) {
	for _, l := range []Limiter{
		FixedWindow{}, &SlidingWindow{}, &SlidingLog{}, &TokenBucket{}, LeakyBucket{},
		&DenyCache{}, (*DenyCache)(nil), &Fallback{}, (*Fallback)(nil), &LocalTokenBucket{}, (*LocalTokenBucket)(nil),
		Must(NewDenyCache(&TokenBucket{})), Must(NewFallback(&TokenBucket{}, AllowAll())),
		Must(NewDenyCache(&LocalTokenBucket{})), Must(NewFallback(&LocalTokenBucket{}, AllowAll())),
	} {
		_, err := l.TryAcquire(ctx, "k")
		require.ErrorIs(t, err, ErrInvalidConfig)
		require.ErrorContains(t, err, "was not made by its constructor")
		_, err = l.Peek(ctx, "k")
		require.ErrorIs(t, err, ErrInvalidConfig)
		require.ErrorIs(t, l.Reset(ctx, "k"), ErrInvalidConfig)
	}
	for _, l := range []limiterWithPreload{FixedWindow{}, &SlidingWindow{}, &SlidingLog{}, &TokenBucket{}, LeakyBucket{}} {
		require.ErrorIs(t, l.Preload(ctx), ErrInvalidConfig)
	}
}

// TestDenialsOfALoweredLimitRefillNothing: while a new configuration is rolled out,
// both are in use.
func TestDenialsOfALoweredLimitRefillNothing(t *testing.T) {
	for name, build := range map[string]func(c Client, limit int, window time.Duration, o ...FixedWindowOption) (*FixedWindow, error){
		"dated by its TTL": NewFixedWindow,
		"aligned": func(c Client, limit int, window time.Duration, o ...FixedWindowOption) (*FixedWindow, error) {
			return NewFixedWindow(c, limit, window, append(o, WithAlignment(0))...)
		},
	} {
		for _, merging := range [][]FixedWindowOption{nil, {WithoutMerging()}} {
			t.Run(name, func(t *testing.T) {
				s := onMini(t)
				was := Must(build(s.client, 100, time.Minute, merging...))
				is := Must(build(s.client, 10, 30*time.Second, merging...))
				granted := 0
				for range 5 {
					for must(t)(was.TryAcquire(ctx, "k")).Allowed {
						granted++
					}
					for range 3 {
						_, errs := together(t, is, "k", "k", "k")
						require.NoError(t, errors.Join(errs...))
						require.Equal(t, 0, must(t)(is.TryAcquire(ctx, "k")).Remaining)
					}
				}
				require.Equal(t, 100, granted)
			})
		}
	}
}

// TestTotalsOfALogStayExact: after 2^52 permits all that counts begins anew.
func TestTotalsOfALogStayExact(t *testing.T) {
	const window = time.Hour
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	for name, build := range map[string]func(c Client, o ...Option) Limiter{
		"SlidingLog": func(c Client, o ...Option) Limiter {
			return Must(NewSlidingLog(c, []Rule{{5, window}}, widen[SlidingLogOption](o)...))
		},
		"SlidingLog, rules": func(c Client, o ...Option) Limiter {
			return Must(NewSlidingLog(c, []Rule{{5, window}, {6, 2 * window}}, widen[SlidingLogOption](o)...))
		},
		"Hash": func(c Client, o ...Option) Limiter {
			return Must(NewSlidingWindow(c, 5, window, append(widen[SlidingWindowOption](o), WithSubWindows(3600))...))
		},
	} {
		for _, merging := range [][]Option{nil, {WithoutMerging()}} {
			t.Run(name, func(t *testing.T) {
				s := onMini(t)
				h := &hand{at: start}
				l := build(s.client, append(merging, WithClock(h.now))...)
				for i := range 3 {
					h.set(at(i))
					require.Equal(t, 4-i, must(t)(l.TryAcquire(ctx, "k")).Remaining)
				}
				key := coreOf(t, l).prefix + "k"
				grow := func(total string) string { // as if 2^52 had been granted long ago
					n, err := strconv.ParseInt(total, 10, 64)
					require.NoError(t, err)
					return strconv.FormatInt(n+1<<52, 10)
				}
				if s.admin.Type(ctx, key).Val() == "list" {
					for i, v := range s.admin.LRange(ctx, key, 0, -1).Val() {
						if i%2 == 1 {
							require.NoError(t, s.admin.LSet(ctx, key, int64(i), grow(v)).Err())
						}
					}
				} else {
					for field, v := range s.admin.HGetAll(ctx, key).Val() {
						instant, total, between := strings.Cut(v, "/")
						switch {
						case between:
							v = instant + "/" + grow(total)
						case field == "total" || field == "base":
							v = grow(v)
						}
						require.NoError(t, s.admin.HSet(ctx, key, field, v).Err())
					}
				}
				r := must(t)(l.Peek(ctx, "k"))
				require.Equal(t, 1, r.Remaining)
				for i := 3; i < 5; i++ {
					h.set(at(i))
					require.Equal(t, 4-i, must(t)(l.TryAcquire(ctx, "k")).Remaining)
				}
				r = must(t)(l.TryAcquire(ctx, "k"))
				require.False(t, r.Allowed)
				grain := time.Duration(0)
				if name == "Hash" {
					grain = time.Second - time.Microsecond
				}
				require.Equal(t, window-time.Second+grain, r.RetryAfter, "what was granted before counts from the fourth on")
				if name == "SlidingLog, rules" {
					return
				}
				h.set(at(4).Add(r.RetryAfter - time.Microsecond))
				require.False(t, must(t)(l.TryAcquire(ctx, "k")).Allowed)
				h.set(at(4).Add(r.RetryAfter))
				require.Equal(t, 3, must(t)(l.TryAcquire(ctx, "k")).Remaining)
			})
		}
	}
}

// TestALongerWindowHoldsAlsoIfNobodyIsGranted: the shorter one's TTL would let
// Redis forget what the longer one's denials were promised by.
func TestALongerWindowHoldsAlsoIfNobodyIsGranted(t *testing.T) {
	for name, build := range map[string]func(c Client, window time.Duration) Limiter{
		"FixedWindow": func(c Client, w time.Duration) Limiter { return Must(NewFixedWindow(c, 3, w)) },
		"FixedWindow aligned": func(c Client, w time.Duration) Limiter {
			return Must(NewFixedWindow(c, 3, w, WithAlignment(0)))
		},
		"TokenBucket stepped": func(c Client, w time.Duration) Limiter {
			return Must(NewTokenBucket(c, PerSecond(1), 3, WithRefillEvery(w)))
		},
		"Hash":       func(c Client, w time.Duration) Limiter { return Must(NewSlidingWindow(c, 3, w)) },
		"List":       func(c Client, w time.Duration) Limiter { return Must(NewSlidingWindow(c, 3, w, WithStorage(List))) },
		"ZSet":       func(c Client, w time.Duration) Limiter { return Must(NewSlidingWindow(c, 3, w, WithStorage(ZSet))) },
		"SlidingLog": func(c Client, w time.Duration) Limiter { return Must(NewSlidingLog(c, []Rule{{3, w}})) },
		"SlidingLog, rules": func(c Client, w time.Duration) Limiter {
			return Must(NewSlidingLog(c, []Rule{{2, w / 2}, {3, w}}))
		},
	} {
		for _, merged := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, merged %v", name, merged), func(t *testing.T) {
				s := onMini(t)
				short := build(s.client, time.Second)
				for s.now = start; must(t)(short.TryAcquire(ctx, "k")).Remaining > 0; {
					s.advance(50 * time.Millisecond)
				}
				for range 3 { // of several rules
					s.advance(150 * time.Millisecond)
					must(t)(short.TryAcquire(ctx, "k"))
				}
				long := build(s.client, 10*time.Second)
				ask := func() Result {
					if !merged {
						return must(t)(long.TryAcquire(ctx, "k"))
					}
					return fly(t, coreOf(t, long), []model.Step{{N: 1}, {N: 1}}, []string{"k", "k"})[0]
				}
				first := ask()
				require.False(t, first.Allowed)
				require.Greater(t, first.RetryAfter, 4*time.Second)
				grain := time.Microsecond
				if name == "FixedWindow" {
					grain = time.Millisecond
				}
				s.advance(first.RetryAfter - grain)
				last := ask()
				require.False(t, last.Allowed)
				require.Equal(t, grain, last.RetryAfter)
				s.advance(grain)
				require.True(t, ask().Allowed)
			})
		}
	}
}

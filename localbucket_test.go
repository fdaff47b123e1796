package ratelimit_test

import (
	"context"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/exact"
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
)

// A dial is a clock that a test sets.
type dial struct{ micros atomic.Int64 }

func (d *dial) now() time.Time { return time.UnixMicro(1_763_670_000_000_000 + d.micros.Load()) }

func newTestLocal(t testing.TB, rate ratelimit.Rate, burst int, opts ...ratelimit.Option) (*ratelimit.LocalTokenBucket, *dial) {
	t.Helper()
	d := new(dial)
	l, err := ratelimit.NewLocalTokenBucket(rate, burst, append(opts, ratelimit.WithClock(d.now))...)
	require.NoError(t, err)
	return l, d
}

// requireLocalErrors checks the errors that every limiter in this process returns.
func requireLocalErrors(t *testing.T, l ratelimit.Limiter, ended context.Context) {
	t.Helper()
	ctx := t.Context()
	for name, c := range map[string]struct {
		do   func() (ratelimit.Result, error)
		want error
	}{
		"TryAcquire, empty key":       {func() (ratelimit.Result, error) { return l.TryAcquire(ctx, "") }, ratelimit.ErrInvalidKey},
		"TryAcquireN, empty key":      {func() (ratelimit.Result, error) { return l.TryAcquireN(ctx, "", math.MaxInt) }, ratelimit.ErrInvalidKey},
		"Peek, empty key":             {func() (ratelimit.Result, error) { return l.Peek(ctx, "") }, ratelimit.ErrInvalidKey},
		"Reset, empty key":            {func() (ratelimit.Result, error) { return ratelimit.Result{}, l.Reset(ctx, "") }, ratelimit.ErrInvalidKey},
		"TryAcquireN, none":           {func() (ratelimit.Result, error) { return l.TryAcquireN(ctx, "k", 0) }, ratelimit.ErrInvalidPermits},
		"TryAcquireN, less than none": {func() (ratelimit.Result, error) { return l.TryAcquireN(ctx, "k", math.MinInt) }, ratelimit.ErrInvalidPermits},
		"TryAcquire, ended context":   {func() (ratelimit.Result, error) { return l.TryAcquire(ended, "k") }, context.Canceled},
		"Peek, ended context":         {func() (ratelimit.Result, error) { return l.Peek(ended, "k") }, context.Canceled},
		"Reset, ended context":        {func() (ratelimit.Result, error) { return ratelimit.Result{}, l.Reset(ended, "k") }, context.Canceled},
	} {
		r, err := c.do()
		require.Zero(t, r, name)
		require.ErrorIs(t, err, c.want, name)
		require.True(t, strings.HasPrefix(fmt.Sprint(err), "ratelimit: "), name)
	}
}

func TestLocalTokenBucketSteps(t *testing.T) {
	type step struct {
		at   int64 // microseconds
		key  string
		n    int // 0: peek, -1: reset
		want ratelimit.Result
	}
	res := func(allowed bool, limit int, window time.Duration, remaining int, retry, reset time.Duration) ratelimit.Result {
		return ratelimit.Result{Allowed: allowed, Limit: limit, Window: window, Remaining: remaining, RetryAfter: retry, ResetAfter: reset}
	}
	const us = time.Microsecond
	for _, c := range []struct {
		name  string
		rate  ratelimit.Rate
		burst int
		steps []step
	}{
		{"ten per second, burst 20", ratelimit.PerSecond(10), 20, []step{
			{0, "a", 0, res(true, 20, 2*time.Second, 20, 0, 0)},
			{0, "a", 3, res(true, 20, 2*time.Second, 17, 0, 300*milli)},
			{0, "a", 0, res(true, 20, 2*time.Second, 17, 0, 300*milli)},
			{50_000, "a", 17, res(true, 20, 2*time.Second, 0, 0, 1950*milli)},
			{50_000, "a", 1, res(false, 20, 2*time.Second, 0, 50*milli, 1950*milli)},
			{50_000, "b", 1, res(true, 20, 2*time.Second, 19, 0, 100*milli)},
			{99_999, "a", 1, res(false, 20, 2*time.Second, 0, us, 1950*milli-49_999*us)},
			{99_999, "a", 0, res(false, 20, 2*time.Second, 0, us, 1950*milli-49_999*us)},
			{100_000, "a", 1, res(true, 20, 2*time.Second, 0, 0, 2*time.Second)},
			{100_000, "a", 20, res(false, 20, 2*time.Second, 0, 2*time.Second, 2*time.Second)},
			{2_099_999, "a", 20, res(false, 20, 2*time.Second, 19, us, us)},
			{2_100_000, "a", 20, res(true, 20, 2*time.Second, 0, 0, 2*time.Second)},
			{2_100_000, "a", -1, ratelimit.Result{}},
			{2_100_000, "a", 20, res(true, 20, 2*time.Second, 0, 0, 2*time.Second)},
			{99_000_000, "a", 1, res(true, 20, 2*time.Second, 19, 0, 100*milli)},
		}},
		{"three per second do not divide a microsecond", ratelimit.PerSecond(3), 1, []step{
			{0, "a", 1, res(true, 1, 333_334*us, 0, 0, 333_334*us)},
			{333_333, "a", 1, res(false, 1, 333_334*us, 0, us, us)},
			{333_334, "a", 1, res(true, 1, 333_334*us, 0, 0, 333_334*us)},
			// A third of two microseconds is over from the first permit.
			{333_334 + 333_332, "a", 0, res(false, 1, 333_334*us, 0, 2*us, 2*us)},
		}},
		{"the slowest rate", ratelimit.Per(1, 24*time.Hour), 1, []step{
			{0, "a", 1, res(true, 1, 24*time.Hour, 0, 0, 24*time.Hour)},
			{1, "a", 1, res(false, 1, 24*time.Hour, 0, 24*time.Hour-us, 24*time.Hour-us)},
		}},
		{"more than one a microsecond", ratelimit.Per(7_000_000, time.Second), 100, []step{
			{0, "a", 100, res(true, 100, 15*us, 0, 0, 15*us)},
			{0, "a", 1, res(false, 100, 15*us, 0, us, 15*us)},
			{1, "a", 8, res(false, 100, 15*us, 7, us, 14*us)},
			{2, "a", 8, res(true, 100, 15*us, 6, 0, 14*us)},
		}},
		{"a clock that is set back", ratelimit.PerSecond(1), 3, []step{
			{3_600_000_000, "a", 2, res(true, 3, 3*time.Second, 1, 0, 2*time.Second)},
			// Time stands still until the clock has caught up.
			{3_599_000_000, "a", 2, res(false, 3, 3*time.Second, 1, 2*time.Second, 3*time.Second)},
			{3_599_000_000, "a", 0, res(true, 3, 3*time.Second, 1, 0, 3*time.Second)},
			{3_599_000_000, "a", 1, res(true, 3, 3*time.Second, 0, 0, 4*time.Second)},
			{3_600_999_999, "a", 1, res(false, 3, 3*time.Second, 0, us, 2*time.Second+us)},
			{3_601_000_000, "a", 1, res(true, 3, 3*time.Second, 0, 0, 3*time.Second)},
			// Another key's bucket was full before.
			{0, "b", 3, res(true, 3, 3*time.Second, 0, 0, 3*time.Second)},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, clock := newTestLocal(t, c.rate, c.burst)
			for i, s := range c.steps {
				clock.micros.Store(s.at)
				var r ratelimit.Result
				var err error
				switch s.n {
				case -1:
					err = l.Reset(t.Context(), s.key)
				case 0:
					r, err = l.Peek(t.Context(), s.key)
				default:
					r, err = l.TryAcquireN(t.Context(), s.key, s.n)
				}
				require.NoError(t, err, "step %d", i)
				require.Equal(t, s.want, r, "step %d", i)
				l.Keys()
			}
		})
	}
}

func TestLocalTokenBucketErrors(t *testing.T) {
	l, _ := newTestLocal(t, ratelimit.PerSecond(1), 3)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	requireLocalErrors(t, l, ended)
	r, err := l.TryAcquireN(t.Context(), "k", 4)
	require.Zero(t, r)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	require.EqualError(t, err, "ratelimit: more permits than the limit: 4 permits of a local token bucket, which allows 3 at most")
	require.Zero(t, l.Keys(), "nothing is kept of it")
}

func TestLocalTokenBucketPeekAndDenialKeepNoKey(t *testing.T) {
	l, _ := newTestLocal(t, ratelimit.PerSecond(1), 3)
	for range 10 {
		r, err := l.Peek(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, ratelimit.Result{Allowed: true, Limit: 3, Window: 3 * time.Second, Remaining: 3}, r)
	}
	require.Zero(t, l.Keys())
	require.NoError(t, l.Reset(t.Context(), "k"))
}

func TestLocalTokenBucketConfigErrors(t *testing.T) {
	for _, c := range []struct {
		name  string
		rate  ratelimit.Rate
		burst int
		opts  []ratelimit.Option
		want  string // part of the message
	}{
		{"no rate", ratelimit.PerSecond(0), 1, nil, "Count is 0"},
		{"a negative rate", ratelimit.PerSecond(-1), 1, nil, "Count is -1"},
		{"no period", ratelimit.Per(1, 0), 1, nil, "Period is 0s"},
		{"too short a period", ratelimit.Per(1, time.Microsecond), 1, nil, "Period is 1µs"},
		{"no burst", ratelimit.PerSecond(1), 0, nil, "burst is 0"},
		{"too slow a refill", ratelimit.PerHour(1), 625_500, nil, "lower the burst to at most 625499"},
		{"a skew", ratelimit.PerSecond(1), 1, []ratelimit.Option{ratelimit.WithMaxSkew(1)}, "NewLocalTokenBucket: WithMaxSkew is not one of its options"},
		{"no keys", ratelimit.PerSecond(1), 1, []ratelimit.Option{ratelimit.WithMaxKeys(0)}, "WithMaxKeys: 0 is not between 1 and 67108864; leave the option out for 65536"},
		{"keys twice", ratelimit.PerSecond(1), 1, []ratelimit.Option{ratelimit.WithMaxKeys(1), ratelimit.WithMaxKeys(1)}, "WithMaxKeys is given twice"},
		{"no clock", ratelimit.PerSecond(1), 1, []ratelimit.Option{ratelimit.WithClock(nil)}, "WithClock: the clock is nil"},
		{"a nil option", ratelimit.PerSecond(1), 1, []ratelimit.Option{nil}, "option 1 is nil"},
		{"a prefix", ratelimit.PerSecond(1), 1, []ratelimit.Option{ratelimit.WithPrefix("x")}, "NewLocalTokenBucket: WithPrefix is not one of its options"},
		{"another limiter's option", ratelimit.PerSecond(1), 1, []ratelimit.Option{ratelimit.WithSubWindows(3)}, "NewLocalTokenBucket: WithSubWindows is not one of its options"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, err := ratelimit.NewLocalTokenBucket(c.rate, c.burst, c.opts...)
			require.Nil(t, l)
			require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
			require.ErrorContains(t, err, c.want)
		})
	}
}

// The reference is a bucket of fractions, from which every field of the result
// follows without rounding but the last.
func TestLocalTokenBucketAgainstFractions(t *testing.T) {
	raceflag.SkipSequential(t)
	for _, c := range []struct {
		rate  ratelimit.Rate
		burst int
	}{
		{ratelimit.PerSecond(3), 5}, {ratelimit.PerMinute(7), 2}, {ratelimit.PerSecond(10), 20}, {ratelimit.Per(9_999_991, time.Second), 40},
		{ratelimit.Per(11, 13*time.Millisecond), 17}, {ratelimit.PerHour(1), 3},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			seed := uint64(time.Now().UnixNano())
			t.Logf("seed %d", seed)
			rnd := rand.New(rand.NewPCG(seed, 0))
			l, clock := newTestLocal(t, c.rate, c.burst)
			perMicro := big.NewRat(int64(c.rate.Count), c.rate.Period.Microseconds())
			full := big.NewRat(int64(c.burst), 1)
			wait := func(permits *big.Rat) time.Duration { // rounded up to a microsecond
				q := new(big.Rat).Quo(permits, perMicro)
				up := new(big.Int).Add(q.Num(), new(big.Int).Sub(q.Denom(), big.NewInt(1)))
				return exact.Duration(up.Div(up, q.Denom()).Int64())
			}
			level, last := new(big.Rat).Set(full), int64(0)
			next := int64(-1)
			for range 5000 {
				now := last
				switch rnd.IntN(4) {
				case 0:
				case 1: // around the instant of the next allowed call
					if next >= last {
						now = max(last, next-1+rnd.Int64N(3))
					}
				default:
					now += rnd.Int64N(int64(wait(full)/time.Microsecond)/4 + 2)
				}
				level.Add(level, new(big.Rat).Mul(perMicro, big.NewRat(now-last, 1)))
				if level.Cmp(full) > 0 {
					level.Set(full)
				}
				last = now
				clock.micros.Store(now)

				n := 1 + rnd.IntN(c.burst)
				want := ratelimit.Result{Limit: c.burst, Window: wait(full)}
				after := new(big.Rat).Sub(level, big.NewRat(int64(n), 1))
				if after.Sign() >= 0 {
					want.Allowed = true
					level = after
				} else {
					want.RetryAfter = wait(new(big.Rat).Neg(after))
					next = now + want.RetryAfter.Microseconds()
				}
				want.Remaining = int(new(big.Int).Quo(level.Num(), level.Denom()).Int64())
				want.ResetAfter = wait(new(big.Rat).Sub(full, level))
				got, err := l.TryAcquireN(t.Context(), "k", n)
				require.NoError(t, err)
				require.Equal(t, want, got)
			}
		})
	}
}

// Uneven rates neither leak nor lose a permit over a million decisions.
func TestLocalTokenBucketKeepsTheRate(t *testing.T) {
	raceflag.SkipSequential(t)
	for _, rate := range []ratelimit.Rate{ratelimit.PerSecond(3), ratelimit.PerMinute(7), ratelimit.Per(7_000_001, 13*time.Second)} {
		const burst = 2
		l, clock := newTestLocal(t, rate, burst)
		rnd := rand.New(rand.NewPCG(1, 2))
		period := rate.Period.Microseconds()
		var now, allowed int64
		for range 1_000_000 {
			now += rnd.Int64N(period/int64(rate.Count) + 1) // about twice as often as it refills
			clock.micros.Store(now)
			r, err := l.TryAcquire(t.Context(), "k")
			require.NoError(t, err)
			if r.Allowed {
				allowed++
			}
		}
		// The bucket is never full for long, so that all that came in went out.
		most := burst + now*int64(rate.Count)/period
		require.LessOrEqual(t, allowed, most, "%v", rate)
		require.GreaterOrEqual(t, allowed, most-burst, "%v", rate)
	}
}

func TestLocalTokenBucketConcurrently(t *testing.T) {
	before := runtime.NumGoroutine()
	l, _ := newTestLocal(t, ratelimit.PerSecond(1), 100)
	var allowed [10]atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for i := range 1000 {
				r, err := l.TryAcquire(context.Background(), fmt.Sprint("k", i%10))
				if err != nil {
					t.Error(err)
				}
				if r.Allowed {
					allowed[i%10].Add(1)
				}
			}
		})
	}
	wg.Wait()
	for i := range allowed {
		require.EqualValues(t, 100, allowed[i].Load())
	}
	require.Equal(t, 10, l.Keys())
	settled(t, before)
}

// By the process's own clock, whose readings many goroutines take at once.
func TestLocalTokenBucketByTheRealClock(t *testing.T) {
	l, err := ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1000), 10)
	require.NoError(t, err)
	var allowed atomic.Int64
	start := time.Now()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for time.Since(start) < 100*milli {
				if r, err := l.TryAcquire(context.Background(), "k"); err != nil {
					t.Error(err)
				} else if r.Allowed {
					allowed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	most := 10 + time.Since(start).Microseconds()/1000 + 1
	require.LessOrEqual(t, allowed.Load(), most)
	require.Greater(t, allowed.Load(), int64(10))
}

func TestLocalTokenBucketKeepsSoManyKeys(t *testing.T) {
	for keys, opts := range map[int][]ratelimit.Option{512: {ratelimit.WithMaxKeys(512)}, 65_536: nil} {
		l, _ := newTestLocal(t, ratelimit.PerSecond(1), 1, opts...)
		for i := range 3 * keys {
			_, err := l.TryAcquire(t.Context(), fmt.Sprint(i))
			require.NoError(t, err)
		}
		require.Equal(t, keys, l.Keys())
	}
}

func TestLocalTokenBucketAllocatesForNewKeysOnly(t *testing.T) {
	l, err := ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1), 1000)
	require.NoError(t, err)
	ctx := t.Context()
	require.Zero(t, testing.AllocsPerRun(500, func() {
		_, err := l.TryAcquire(ctx, "k")
		require.NoError(t, err)
	}))
}

func TestLocalTokenBucketAsSecondary(t *testing.T) {
	local, _ := newTestLocal(t, ratelimit.PerSecond(1), 2)
	f := newTestFallback(t, always(ratelimit.Result{}, errDown), local)
	for _, allowed := range []bool{true, true, false} {
		r, err := f.TryAcquire(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, allowed, r.Allowed)
		require.True(t, r.Fallback)
	}
	r, err := f.TryAcquireN(t.Context(), "k", 3)
	require.NoError(t, err)
	require.Equal(t, ratelimit.Result{Limit: 2, Window: 2 * time.Second, RetryAfter: time.Second, ResetAfter: 2 * time.Second, Fallback: true}, r,
		"the primary may allow three")
	require.ErrorIs(t, f.Reset(t.Context(), "k"), errDown)
	r, err = f.Peek(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, 2, r.Remaining, "and yet the secondary has forgotten")
}

func BenchmarkLocalTokenBucket(b *testing.B) {
	for _, keys := range []int{1, 10_000, 1_000_000} {
		b.Run(fmt.Sprintf("Keys%d", keys), func(b *testing.B) {
			l, err := ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(100), 100)
			require.NoError(b, err)
			names := make([]string, keys)
			for i := range names {
				names[i] = fmt.Sprint("user:", i)
			}
			b.ReportAllocs()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				rnd := rand.New(rand.NewPCG(rand.Uint64(), 0))
				for pb.Next() {
					_, _ = l.TryAcquire(context.Background(), names[rnd.IntN(keys)])
				}
			})
		})
	}
}

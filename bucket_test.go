package ratelimit_test

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
)

// bucketKey is where a token bucket without a name keeps the state of "k".
const bucketKey = "ratelimit:default:tokenbucket{k}"

// readers are token buckets that read each other's states: even, in steps, too large for
// one number, of the slowest and of the fastest rate.
func readers(t *testing.T, s *limitertest.Stage) []ratelimit.Limiter {
	var all []ratelimit.Limiter
	for _, b := range []struct {
		rate  ratelimit.Rate
		burst int
		every time.Duration
	}{
		{ratelimit.PerMinute(7), 5, 0},
		{ratelimit.PerMinute(7), 5, 10 * time.Second},
		{ratelimit.Per(77_777, 24*time.Hour), 77_777, 0},
		{ratelimit.Per(1, 365*24*time.Hour), 1, 0},
		{ratelimit.Per(1_000_000_000, time.Millisecond), 1_000_000_000, 0},
	} {
		var opts []ratelimit.Option
		opts = append(opts, s.Opts...)
		if b.every > 0 {
			opts = append(opts, ratelimit.WithRefillEvery(b.every))
		}
		all = append(all, ratelimit.Must(ratelimit.NewTokenBucket(s.Client, b.rate, b.burst, opts...)))
	}
	return all
}

// requireSound requires what holds for every Result.
func requireSound(t *testing.T, r ratelimit.Result, about string) {
	t.Helper()
	require.GreaterOrEqual(t, r.Remaining, 0, about)
	require.LessOrEqual(t, r.Remaining, r.Limit, about)
	require.Equal(t, r.Allowed, r.RetryAfter == 0, about)
	require.GreaterOrEqual(t, r.RetryAfter, time.Duration(0), about)
	require.GreaterOrEqual(t, r.ResetAfter, r.RetryAfter, about)
}

// TestBucketsRefuseNumbersThatNoBucketWrites: they are corrupt, whichever number of the
// state it is and whichever bucket reads it. Redis must not compute with them for ever.
func TestBucketsRefuseNumbersThatNoBucketWrites(t *testing.T) {
	raceflag.SkipSequential(t)
	for _, stage := range []func(testing.TB) *limitertest.Stage{limitertest.OnMiniredis, limitertest.OnRedis} {
		s := stage(t)
		for i, l := range readers(t, s) {
			s.Wipe(t)
			must(t)(l.TryAcquire(ctx, "k"))
			state := s.Admin.Get(ctx, bucketKey).Val()
			for at, c := range state { // the first digit of each number
				if at > 0 && state[at-1] >= '0' || c < '0' || c > '9' {
					continue
				}
				rest := strings.TrimLeft(state[at:], "0123456789")
				for _, number := range []string{strings.Repeat("9", 17), strings.Repeat("9", 99), strings.Repeat("9", 400), "nan", "inf", "1e99"} {
					corrupt := state[:at] + number + rest
					for j, reader := range readers(t, s) {
						require.NoError(t, s.Admin.Set(ctx, bucketKey, corrupt, time.Minute).Err())
						_, err := reader.Peek(ctx, "k")
						require.ErrorIs(t, err, ratelimit.ErrCorruptState, "%d reads %q of %d", j, corrupt, i)
						_, err = reader.TryAcquire(ctx, "k")
						require.ErrorIs(t, err, ratelimit.ErrCorruptState, "%d reads %q of %d", j, corrupt, i)
						require.Equal(t, corrupt, s.Admin.Get(ctx, bucketKey).Val())
					}
				}
			}
		}
	}
}

// TestBucketsReadStatesWithAWrongByte: what a bucket makes of them is ErrCorruptState or
// a result that keeps its bounds.
func TestBucketsReadStatesWithAWrongByte(t *testing.T) {
	raceflag.SkipSequential(t)
	for _, stage := range []func(testing.TB) *limitertest.Stage{limitertest.OnMiniredis, limitertest.OnRedis} {
		s := stage(t)
		all := readers(t, s)
		for i, l := range all {
			s.Wipe(t)
			must(t)(l.TryAcquire(ctx, "k"))
			state := s.Admin.Get(ctx, bucketKey).Val()
			for at := range state {
				for _, wrong := range "09/+-e" {
					corrupt := state[:at] + string(wrong) + state[at+1:]
					for _, reader := range []ratelimit.Limiter{l, all[(i+at+int(wrong))%len(all)]} {
						require.NoError(t, s.Admin.Set(ctx, bucketKey, corrupt, time.Minute).Err())
						for _, call := range []func() (ratelimit.Result, error){
							func() (ratelimit.Result, error) { return reader.Peek(ctx, "k") },
							func() (ratelimit.Result, error) { return reader.TryAcquire(ctx, "k") },
						} {
							if r, err := call(); err != nil {
								require.ErrorIs(t, err, ratelimit.ErrCorruptState, "%q", corrupt)
							} else {
								requireSound(t, r, corrupt)
							}
						}
					}
				}
			}
		}
	}
}

// TestBucketReadsOfFarMoreThanItHolds: another rule's bucket is short of 10^9 permits, of
// which one takes this bucket a year.
func TestBucketReadsOfFarMoreThanItHolds(t *testing.T) {
	for _, stage := range []func(testing.TB) *limitertest.Stage{limitertest.OnMiniredis, limitertest.OnRedis} {
		s := stage(t)
		opts := slices.Clone(s.Opts)
		large := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerHour(1_000_000), 1_000_000_000, opts...))
		small := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.Per(1, 365*24*time.Hour), 1, opts...))
		s.Wipe(t)
		must(t)(large.TryAcquireN(ctx, "k", 1_000_000_000))
		// It fits when the large bucket is full again.
		want := ratelimit.Result{Limit: 1, Window: 365 * 24 * time.Hour, RetryAfter: 1000 * time.Hour, ResetAfter: 1000 * time.Hour}
		require.Equal(t, want, must(t)(small.Peek(ctx, "k")))
		require.Equal(t, want, must(t)(small.TryAcquire(ctx, "k")))
		results, errs := ratelimit.Together(t, small, "k", "k")
		require.Equal(t, []error{nil, nil}, errs)
		require.Equal(t, []ratelimit.Result{want, want}, results)
	}
}

// TestFasterOfTwoNearlyEqualRates: what the two leave missing of 900 million permits
// differs by a hundred-millionth of a permit. RetryAfter is exact all the same.
func TestFasterOfTwoNearlyEqualRates(t *testing.T) {
	server := miniredis.RunT(t)
	server.ClockTTL(true)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	const burst = 900_000_000
	faster := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(1000), burst))
	slower := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.Per(99_999_999, 100_000*time.Second), burst))
	now := limitertest.Start
	server.SetTime(now)
	must(t)(faster.TryAcquireN(ctx, "k", burst))
	require.Equal(t, time.Millisecond, must(t)(slower.TryAcquire(ctx, "k")).RetryAfter)
	server.SetTime(now.Add(time.Millisecond - time.Microsecond))
	require.Equal(t, time.Microsecond, must(t)(slower.TryAcquire(ctx, "k")).RetryAfter)
	server.SetTime(now.Add(time.Millisecond))
	require.True(t, must(t)(slower.TryAcquire(ctx, "k")).Allowed)
}

// TestLocalTokenBucketByAClockThatJumps: times beyond those that a Duration holds are its
// longest, and never negative.
func TestLocalTokenBucketByAClockThatJumps(t *testing.T) {
	var now time.Time
	l := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1), 5,
		ratelimit.WithClock(func() time.Time { return now }), ratelimit.WithMaxKeys(2)))
	start := limitertest.Start
	jumps := []time.Time{start, {}, time.Unix(0, 0), time.Unix(9e12, 0), time.Unix(-9e12, 0), time.Unix(1<<62, 0), time.Unix(-1<<62, 0)}
	for _, from := range jumps {
		for _, to := range jumps {
			for _, key := range []string{"a", "b", "c"} {
				now = from
				requireSound(t, must(t)(l.TryAcquireN(ctx, key, 3)), from.String())
				now = to
				requireSound(t, must(t)(l.TryAcquireN(ctx, key, 3)), from.String()+" to "+to.String())
			}
		}
	}
	now = time.Time{} // as the clock of a test may begin
	l = ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1), 1, ratelimit.WithClock(func() time.Time { return now })))
	require.True(t, must(t)(l.TryAcquire(ctx, "a")).Allowed)
	require.Equal(t, time.Second, must(t)(l.TryAcquire(ctx, "a")).RetryAfter)
	now = now.Add(time.Second)
	require.True(t, must(t)(l.TryAcquire(ctx, "a")).Allowed)
	now = time.Unix(9e11, 0) // and back
	require.True(t, must(t)(l.TryAcquire(ctx, "a")).Allowed)
	now = time.Time{}
	require.Equal(t, time.Duration(1<<63-1).Truncate(time.Microsecond), must(t)(l.TryAcquire(ctx, "a")).RetryAfter)
}

// TestEveryRateThatAPersonWouldName: every count and burst up to 10^8 per whole number of
// milliseconds up to a year, unless the bucket takes more than 71 years to refill. Then
// the error names a burst and a rate that are accepted.
func TestEveryRateThatAPersonWouldName(t *testing.T) {
	raceflag.SkipSequential(t)
	const day = 24 * time.Hour
	client := limitertest.Offline(t)
	build := func(rate ratelimit.Rate, burst int) error {
		_, err := ratelimit.NewTokenBucket(client, rate, burst)
		_, same := ratelimit.NewLeakyBucket(client, rate, burst)
		require.Equal(t, err == nil, same == nil)
		_, same = ratelimit.NewLocalTokenBucket(rate, burst)
		require.Equal(t, err, same)
		return err
	}
	for _, rate := range []ratelimit.Rate{
		ratelimit.Per(77_777, day), ratelimit.Per(2_999, 30*day), ratelimit.Per(1_000_003, day),
		ratelimit.Per(100_000_000, 365*day), ratelimit.Per(99_999_999, 365*day-time.Millisecond), ratelimit.Per(100_000_000, time.Millisecond),
	} {
		require.NoError(t, build(rate, rate.Count), rate)
		require.NoError(t, build(rate, 1), rate)
	}
	for count := 1; count <= 10_000; count++ {
		require.NoError(t, build(ratelimit.Per(count, 30*day), count))
	}
	rng := model.Seeded(limitertest.Seed(t))
	refused := 0
	remedy := regexp.MustCompile(`lower the burst to at most (\d+)(?:, or raise the rate to at least (\d+) per (\S+))?$`)
	for range 2_000 {
		rate := ratelimit.Per(1+rng.IntN(1<<(1+rng.IntN(26))), time.Duration(1+rng.Int64N(int64(365*day/time.Millisecond)))*time.Millisecond)
		burst := 1 + rng.IntN(1e8)
		err := build(rate, burst)
		if err == nil {
			continue
		}
		refused++
		says := remedy.FindStringSubmatch(err.Error())
		require.NotNil(t, says, err)
		largest, _ := strconv.Atoi(says[1])
		require.NoError(t, build(rate, largest), err)
		require.Error(t, build(rate, largest+1), err)
		if says[2] != "" {
			lowest, _ := strconv.Atoi(says[2])
			require.Equal(t, fmt.Sprint(rate.Period), says[3])
			require.NoError(t, build(ratelimit.Per(lowest, rate.Period), burst), err)
			require.Error(t, build(ratelimit.Per(lowest-1, rate.Period), burst), err)
		}
	}
	require.Positive(t, refused)
}

// TestChangedBucketBlocksNoLongerThanTheRule, though its clock steps back too.
func TestChangedBucketBlocksNoLongerThanTheRule(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	steps := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(2), 5, ratelimit.WithRefillEvery(500*time.Millisecond)))
	flow := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(2), 5))
	for _, change := range [][2]ratelimit.Limiter{{steps, flow}, {flow, steps}} {
		s.Wipe(t)
		must(t)(change[0].TryAcquireN(ctx, "k", 5))
		s.Advance(-time.Hour)
		denied := must(t)(change[1].TryAcquire(ctx, "k"))
		require.False(t, denied.Allowed)
		require.LessOrEqual(t, denied.RetryAfter, 2500*time.Millisecond)
		s.Advance(denied.RetryAfter)
		require.True(t, must(t)(change[1].TryAcquire(ctx, "k")).Allowed)
	}
}

// TestCorruptInstantOfABucket: what has the shape of a state at a rate of one
// permit in so many microseconds, which is read without taking it apart.
func TestCorruptInstantOfABucket(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	l := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(10), 3, ratelimit.WithoutMerging()))
	together := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(10), 3))
	const name = "ratelimit:default:tokenbucket{k}"
	for _, instant := range []string{"abcdefghijklmnop", "nan             ", "-nan            ", "-000000000000001", "1763670000 00000", "                ", "             inf", "            1e99"} {
		require.NoError(t, s.Admin.Set(ctx, name, instant+"/100000", time.Minute).Err())
		before := s.Look(t, name)
		_, err := l.TryAcquire(ctx, "k")
		require.ErrorIs(t, err, ratelimit.ErrCorruptState, "%q", instant)
		_, err = l.Peek(ctx, "k")
		require.ErrorIs(t, err, ratelimit.ErrCorruptState, "%q", instant)
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if _, err := together.TryAcquire(ctx, "k"); !errors.Is(err, ratelimit.ErrCorruptState) {
					t.Errorf("%q: %v", instant, err)
				}
			})
		}
		wg.Wait()
		require.Equal(t, before, s.Look(t, name))
	}
}

package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/exact"
	"github.com/tryacquire/ratelimit/internal/testing/fakes"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
)

// shapers are the buckets of 3 a second and 3 at once.
func shapers(s *limitertest.Stage) map[string]ratelimit.Reserver {
	rate, o := ratelimit.PerSecond(3), s.Opts
	return map[string]ratelimit.Reserver{
		"TokenBucket":         ratelimit.Must(ratelimit.NewTokenBucket(s.Client, rate, 3, o...)),
		"TokenBucket stepped": ratelimit.Must(ratelimit.NewTokenBucket(s.Client, rate, 3, append(o, ratelimit.WithRefillEvery(time.Second))...)),
		"LeakyBucket":         ratelimit.Must(ratelimit.NewLeakyBucket(s.Client, rate, 3, o...)),
	}
}

var shaperKeys = map[string]string{"TokenBucket": bucketKey, "TokenBucket stepped": bucketKey, "LeakyBucket": "ratelimit:default:leakybucket{k}"}

// still is a clock by which no time passes between a reply and Delay.
func still() time.Time { return limitertest.Start }

// eachShaper runs a test for every bucket on every stage, with no key and at Start.
func eachShaper(t *testing.T, test func(t *testing.T, s *limitertest.Stage, l ratelimit.Reserver, name string)) {
	limitertest.Everywhere(t, func(t *testing.T, s *limitertest.Stage) {
		for name, l := range shapers(s) {
			t.Run(name, func(t *testing.T) {
				s.Wipe(t)
				test(t, s, l, name)
			})
		}
	})
}

// reserve is a reservation that must be made.
func reserve(t *testing.T, l ratelimit.Reserver, n int, maxWait time.Duration) *ratelimit.Reservation {
	t.Helper()
	r, err := ratelimit.ReserveBy(still, l, "k", n, maxWait)
	require.NoError(t, err)
	return r
}

func TestReservationsAreDueInTurn(t *testing.T) {
	const us = time.Microsecond
	eachShaper(t, func(t *testing.T, s *limitertest.Stage, l ratelimit.Reserver, name string) {
		due, resets := []time.Duration{333_334 * us, 666_667 * us, time.Second, 1_333_334 * us}, []time.Duration{1_333_334 * us, 1_666_667 * us, 2 * time.Second, 2_333_334 * us}
		retry := 1_666_667 * us
		if name == "TokenBucket stepped" {
			due, resets = []time.Duration{time.Second, time.Second, time.Second, 2 * time.Second}, []time.Duration{2 * time.Second, 2 * time.Second, 2 * time.Second, 3 * time.Second}
			retry = 2 * time.Second
		}
		first := reserve(t, l, 3, 0)
		require.Zero(t, first.Delay())
		require.Equal(t, ratelimit.Result{Allowed: true, Limit: 3, Window: time.Second, ResetAfter: time.Second}, first.Result())
		for i, want := range due {
			before := s.Look(t, shaperKeys[name])
			_, err := l.Reserve(ctx, "k", 1, want-us)
			require.Equal(t, &ratelimit.WaitError{Key: "k", Wait: want}, waitError(t, err))
			require.EqualError(t, err, fmt.Sprintf(`ratelimit: "k" would have to wait %v, which is too long`, want))
			require.Equal(t, before, s.Look(t, shaperKeys[name]), "nothing was taken")
			r := reserve(t, l, 1, want)
			require.Equal(t, want, r.Delay())
			require.Equal(t, ratelimit.Result{Allowed: true, Limit: 3, Window: time.Second, ResetAfter: resets[i]}, r.Result())
		}
		denied := ratelimit.Result{Limit: 3, Window: time.Second, RetryAfter: retry, ResetAfter: resets[3]}
		require.Equal(t, denied, must(t)(l.TryAcquire(ctx, "k")), "nobody overtakes a waiting caller")
		require.Equal(t, denied, must(t)(l.Peek(ctx, "k")))
		s.Advance(retry - us)
		require.Equal(t, us, must(t)(l.TryAcquire(ctx, "k")).RetryAfter)
		s.Advance(us)
		require.True(t, must(t)(l.TryAcquire(ctx, "k")).Allowed)
	})
}

func TestCancelGivesBackWhenNobodyIsBehind(t *testing.T) {
	eachShaper(t, func(t *testing.T, s *limitertest.Stage, l ratelimit.Reserver, name string) {
		look := func() string { return s.Look(t, shaperKeys[name]) }
		only := reserve(t, l, 2, 0)
		require.NoError(t, only.GiveBack(ctx))
		require.Equal(t, "none does not expire", look())

		reserve(t, l, 3, 0)
		a := look()
		first := reserve(t, l, 1, time.Hour)
		ab := look()
		second := reserve(t, l, 1, time.Hour)
		abc := look()
		text := func(look string) string { return strings.Fields(look)[1] }
		require.NoError(t, first.Cancel(ctx))
		waiting := strings.Replace(abc, text(abc), text(abc)+";"+text(ab)+"|"+text(a)+";", 1)
		require.Equal(t, waiting, look(), "the second stands behind the first")
		must(t)(l.TryAcquire(ctx, "k"))
		require.Equal(t, waiting, look(), "a denial writes nothing")
		third := reserve(t, l, 1, time.Hour)
		s.Advance(100 * time.Millisecond)
		require.NoError(t, third.Cancel(ctx))
		require.Equal(t, waiting, look(), "the second still stands behind the first")
		require.NoError(t, second.Cancel(ctx))
		require.Equal(t, a, look(), "both are back")
		require.NoError(t, second.Cancel(ctx), "again")
		require.NoError(t, first.Cancel(ctx), "again")
		require.Equal(t, a, look())
		fourth := reserve(t, l, 1, time.Hour)
		must(t)(l.TryAcquire(ctx, "k"))
		require.NoError(t, fourth.Cancel(ctx), "a denial takes nothing")
		require.Equal(t, a, look())

		fifth := reserve(t, l, 1, time.Hour)
		require.NoError(t, l.Reset(ctx, "k"))
		require.NoError(t, fifth.Cancel(ctx))
		require.Equal(t, "none does not expire", look())
	})
}

// TestAllWaitersLeave: 500 callers wait for a shaper of 50 a second, and all of them leave, in any
// order. No turn is lost: the next caller is due as if they had not come.
func TestAllWaitersLeave(t *testing.T) {
	raceflag.SkipSequential(t)
	const waiters = 500
	s := limitertest.OnMiniredis(t)
	rng := rand.New(rand.NewPCG(1, 2))
	for name, order := range map[string][]int{
		"the first leaves first": first(waiters),
		"the last leaves first":  reversed(first(waiters)),
		"in any order":           rng.Perm(waiters),
	} {
		for _, opts := range [][]ratelimit.Option{nil, {ratelimit.WithRefillEvery(20 * time.Millisecond)}} {
			s.Wipe(t)
			l := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(50), 1, opts...))
			require.True(t, must(t)(l.TryAcquire(ctx, "k")).Allowed)
			var waiting []*ratelimit.Reservation
			for i := range waiters {
				r := reserve(t, l, 1, time.Minute)
				require.Equal(t, time.Duration(i+1)*20*time.Millisecond, r.Delay())
				waiting = append(waiting, r)
			}
			longest := 0
			for _, i := range order {
				require.NoError(t, waiting[i].Cancel(ctx))
				longest = max(longest, len(s.Admin.Get(ctx, bucketKey).Val()))
			}
			require.Equal(t, 20*time.Millisecond, reserve(t, l, 1, time.Minute).Delay(), name)
			require.NotContains(t, s.Admin.Get(ctx, bucketKey).Val(), ";", name)
			require.Less(t, longest, 16_200, name)
			t.Logf("%s: the state has at most %d bytes", name, longest)
		}
	}
}

// TestCancelsThatWaitAreForgotten: once their permits have been restored anyway, and when a key has too
// many of them. Then the permits are lost to callers, as if nobody had cancelled.
func TestCancelsThatWaitAreForgotten(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	l := ratelimit.Must(ratelimit.NewLeakyBucket(s.Client, ratelimit.PerSecond(1), 1))
	state := func() string { return s.Admin.Get(ctx, shaperKeys["LeakyBucket"]).Val() }
	waitingCancels := func() int { return strings.Count(state(), "|") }
	reserve(t, l, 1, 0)
	left := reserve(t, l, 1, time.Hour)
	reserve(t, l, 1, time.Hour)
	require.NoError(t, left.Cancel(ctx))
	s.Advance(2*time.Second - time.Microsecond)
	reserve(t, l, 1, time.Hour)
	require.Equal(t, 1, waitingCancels())
	s.Advance(time.Microsecond)
	reserve(t, l, 1, time.Hour)
	require.Equal(t, 0, waitingCancels(), "the permit is restored at the end of its turn")

	s.Wipe(t)
	reserve(t, l, 1, 0)
	var waiting []*ratelimit.Reservation
	for range 600 {
		waiting = append(waiting, reserve(t, l, 1, time.Hour))
	}
	for i := 0; i < 600; i += 2 {
		require.NoError(t, waiting[i].Cancel(ctx))
	}
	most := waitingCancels()
	require.Greater(t, most, 100)
	require.Less(t, len(state()), 16_200)
	for i := 599; i > 0; i -= 2 {
		require.NoError(t, waiting[i].Cancel(ctx))
	}
	// The earliest were forgotten. Those behind them all come back.
	require.Equal(t, time.Duration(600-2*most)*time.Second, reserve(t, l, 1, time.Hour).Delay())
}

func first(n int) []int {
	var all []int
	for i := range n {
		all = append(all, i)
	}
	return all
}

func reversed(all []int) []int {
	slices.Reverse(all)
	return all
}

// TestStateOfAPromise: it ends with the time until which permits are promised, and others
// pass that on.
func TestStateOfAPromise(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	byCaller := limitertest.OnClock(s.Client, s.Admin)
	for _, row := range []struct {
		on             *limitertest.Stage
		name           string
		none, promised string
	}{
		{s, "TokenBucket", "1763670000000000/3000000/1000000/3", "1763670000000000/4000000/1000000/3!333334"},
		{s, "LeakyBucket", "1763670000000000/3000000/1000000/3", "1763670000000000/4000000/1000000/3!333334"},
		{s, "TokenBucket stepped", "1763670000000000/3+0/1000000/3/1000000", "1763670000000000/4+0/1000000/3/1000000!1000000"},
		{byCaller, "TokenBucket", "1763670000000000/3000000/1000000/3@", "1763670000000000/4000000/1000000/3@!333334"},
		{byCaller, "TokenBucket stepped", "1763670000000000/3+0/1000000/3/1000000@", "1763670000000000/4+0/1000000/3/1000000@!1000000"},
	} {
		s.Wipe(t)
		byCaller.Move(limitertest.Start)
		l := shapers(row.on)[row.name]
		state := func() string { return s.Admin.Get(ctx, shaperKeys[row.name]).Val() }
		reserve(t, l, 3, 0)
		require.Equal(t, row.none, state(), row.name)
		reserve(t, l, 1, time.Hour)
		require.Equal(t, row.promised, state(), row.name)
		must(t)(l.TryAcquire(ctx, "k"))
		require.Equal(t, row.promised, state(), "%s: a denial writes nothing", row.name)
		s.Advance(2 * time.Second)
		byCaller.Move(limitertest.Start.Add(2 * time.Second))
		must(t)(l.TryAcquire(ctx, "k"))
		require.NotContains(t, state(), "!", "%s: the promise is over", row.name)
	}

	// A faster bucket restores nothing of what is promised: 333,334 µs at 10 a second.
	s.Wipe(t)
	slow := shapers(s)["TokenBucket"]
	fast := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(10), 8))
	reserve(t, slow, 3, 0)
	reserve(t, slow, 1, time.Hour)
	s.Advance(100 * time.Millisecond)
	// At 333,334 µs 3 permits less 2 units are missing, of which it restores 2.33334 until then.
	require.Equal(t, 2, must(t)(fast.Peek(ctx, "k")).Remaining)
	require.True(t, must(t)(fast.TryAcquire(ctx, "k")).Allowed)
	require.Equal(t, "1763670000100000/633334/100000/1!233334", s.Admin.Get(ctx, bucketKey).Val())

	// Its own reservation is due before what the slower one has promised.
	s.Wipe(t)
	slow = ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(1), 1))
	reserve(t, slow, 1, 0)
	reserve(t, slow, 1, time.Hour)
	require.Equal(t, 400*time.Millisecond, reserve(t, fast, 1, time.Hour).Delay())
	require.Equal(t, "1763670000000000/1200000/100000/1!1000000", s.Admin.Get(ctx, bucketKey).Val())

	// The key lives as long as a promise that another rule has made, however soon the writer is full.
	s.Wipe(t)
	steps := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(100), 1, ratelimit.WithRefillEvery(3*time.Second)))
	reserve(t, steps, 1, 0)
	require.Equal(t, 3*time.Second, reserve(t, steps, 1, time.Hour).Delay())
	s.Advance(500 * time.Millisecond)
	even := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(100), 10))
	require.True(t, must(t)(even.TryAcquire(ctx, "k")).Allowed)
	require.Equal(t, "1763670000500000/10000/10000/1!2500000", s.Admin.Get(ctx, bucketKey).Val())
	require.GreaterOrEqual(t, s.Admin.PTTL(ctx, bucketKey).Val(), 2500*time.Millisecond)
	require.LessOrEqual(t, s.Admin.PTTL(ctx, bucketKey).Val(), 2520*time.Millisecond)

	// A server's clock that reads the promise of a caller's clock that is ahead.
	s.Wipe(t)
	ahead := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(3), 3,
		ratelimit.WithClock(func() time.Time { return limitertest.Start.Add(100 * time.Millisecond) })))
	reserve(t, ahead, 3, 0)
	reserve(t, ahead, 1, time.Hour)
	require.Equal(t, "1763670000100000/4000000/1000000/3@!333334", s.Admin.Get(ctx, bucketKey).Val())
	exact := shapers(s)["TokenBucket"]
	require.Equal(t, 766_667*time.Microsecond, must(t)(exact.Peek(ctx, "k")).RetryAfter)
	require.Equal(t, 766_667*time.Microsecond, must(t)(exact.TryAcquire(ctx, "k")).RetryAfter)
	require.Equal(t, 766_667*time.Microsecond, reserve(t, exact, 1, time.Hour).Delay())
	require.Equal(t, "1763670000100000/5000000/1000000/3@!666667", s.Admin.Get(ctx, bucketKey).Val())
}

// TestCancelKeepsTheTTL: the key expires when it would have without the reservation.
func TestCancelKeepsTheTTL(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	l := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(1), 10))
	must(t)(l.TryAcquireN(ctx, "k", 10))
	whole := s.Admin.PTTL(ctx, bucketKey).Val()
	s.Advance(2 * time.Second)
	r := reserve(t, l, 10, time.Hour)
	require.Greater(t, s.Admin.PTTL(ctx, bucketKey).Val(), whole)
	s.Advance(3 * time.Second)
	require.NoError(t, r.Cancel(ctx))
	require.Equal(t, whole-5*time.Second, s.Admin.PTTL(ctx, bucketKey).Val())

	r = reserve(t, l, 10, time.Hour) // by then the state before it has expired
	s.Advance(6 * time.Second)
	require.NoError(t, r.Cancel(ctx))
	require.Zero(t, s.Admin.Exists(ctx, bucketKey).Val())

	must(t)(l.TryAcquireN(ctx, "k", 10))
	require.NoError(t, s.Admin.Persist(ctx, bucketKey).Err())
	r = reserve(t, l, 10, time.Hour)
	require.NoError(t, s.Admin.Persist(ctx, bucketKey).Err())
	require.NoError(t, r.Cancel(ctx))
	require.Positive(t, s.Admin.PTTL(ctx, bucketKey).Val(), "a lost TTL")
	require.Equal(t, 10*time.Second, must(t)(l.Peek(ctx, "k")).ResetAfter)
}

func TestMistakesOfThoseWhoReserve(t *testing.T) {
	ended, cancel := context.WithCancel(ctx)
	cancel()
	for _, l := range []ratelimit.Reserver{
		ratelimit.Must(ratelimit.NewTokenBucket(limitertest.Offline(t), ratelimit.PerSecond(1), 3)),
		ratelimit.Must(ratelimit.NewLeakyBucket(limitertest.Offline(t), ratelimit.PerSecond(1), 3)),
	} {
		for _, row := range []struct {
			ctx     context.Context
			key     string
			n       int
			maxWait time.Duration
			want    error
		}{
			{ctx, "", 1, time.Hour, ratelimit.ErrInvalidKey},
			{ctx, "k", 0, time.Hour, ratelimit.ErrInvalidPermits},
			{ctx, "k", exact.Permits + 1, time.Hour, ratelimit.ErrTooMuchDebt},
			{ctx, "k", 1, -1, ratelimit.ErrInvalidConfig},
			{ended, "k", 1, time.Hour, context.Canceled},
		} {
			r, err := l.Reserve(row.ctx, row.key, row.n, row.maxWait)
			require.ErrorIs(t, err, row.want)
			require.Nil(t, r)
		}
		_, err := l.Reserve(ctx, "k", 1, -time.Second)
		require.EqualError(t, err, "ratelimit: invalid configuration: the longest wait of a reservation is -1s; it must be at least 0")
	}
	for _, l := range []ratelimit.Reserver{&ratelimit.TokenBucket{}, &ratelimit.LeakyBucket{}} {
		_, err := l.Reserve(ctx, "k", 1, 0)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
	}
}

// TestOnlyBucketsReserve: on another limiter Reserve does not compile.
func TestOnlyBucketsReserve(t *testing.T) {
	for _, v := range limitertest.Variants() {
		l, err := v.Build(limitertest.Offline(t))
		require.NoError(t, err)
		_, ok := l.(ratelimit.Reserver)
		_, token := l.(*ratelimit.TokenBucket)
		_, leaky := l.(*ratelimit.LeakyBucket)
		require.Equal(t, token || leaky, ok, v.Name)
	}
}

// TestReservationsBeyondOneNumber: what is owed is more than an even bucket counts in one
// number, so that the other script of a bucket decides.
func TestReservationsBeyondOneNumber(t *testing.T) {
	for _, stage := range []func(testing.TB) *limitertest.Stage{limitertest.OnMiniredis, limitertest.OnRedis} {
		s := stage(t)
		s.Wipe(t)
		rate := ratelimit.Per(999_983, 24*time.Hour)
		l := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, rate, 50_000, s.Opts...))
		full := time.Duration(4_320_073_442) * time.Microsecond // 50,000 permits, rounded up
		require.Equal(t, full, must(t)(l.Peek(ctx, "k")).Window)
		require.Zero(t, reserve(t, l, 50_000, time.Hour).Delay())
		_, err := l.Reserve(ctx, "k", 50_000, full-time.Microsecond)
		require.Equal(t, full, waitError(t, err).Wait)
		r := reserve(t, l, 50_000, full)
		require.Equal(t, full, r.Delay())
		require.Equal(t, ratelimit.Result{Allowed: true, Limit: 50_000, Window: full, ResetAfter: 2*full - time.Microsecond}, r.Result())
		require.Equal(t, 2*full-time.Microsecond, must(t)(l.TryAcquireN(ctx, "k", 50_000)).RetryAfter)
		_, err = l.Reserve(ctx, "k", 50_000, time.Second)
		require.Equal(t, 2*full-time.Microsecond, waitError(t, err).Wait)
		require.NoError(t, r.Cancel(ctx))
		require.Equal(t, full, must(t)(l.TryAcquireN(ctx, "k", 50_000)).RetryAfter)
	}
}

// TestAWaitBehindADebtBeyondOneNumber: whoever would not wait gets to know how long it would
// take, even behind a debt of more units than a number holds.
func TestAWaitBehindADebtBeyondOneNumber(t *testing.T) {
	const burst, count, month = 1683, 2999, 30 * 24 * time.Hour // 1683 permits are nearly 2^52 units
	limitertest.Everywhere(t, func(t *testing.T, s *limitertest.Stage) {
		l := ratelimit.Must(ratelimit.NewLeakyBucket(s.Client, ratelimit.Per(count, month), burst, s.Opts...))
		for debt := range 4 {
			units := int64(debt*burst) * month.Microseconds()
			due := time.Duration((units+count-1)/count) * time.Microsecond
			require.Equal(t, due, reserve(t, l, burst, due).Delay())
			units += month.Microseconds()
			due = time.Duration((units+count-1)/count) * time.Microsecond
			for _, short := range []time.Duration{0, time.Microsecond, due - time.Microsecond} {
				_, err := l.Reserve(ctx, "k", 1, short)
				require.Equal(t, &ratelimit.WaitError{Key: "k", Wait: due}, waitError(t, err))
			}
		}
	})
}

// TestMergedCallsBesideAPromise: many calls in one execution are decided as one by one.
func TestMergedCallsBesideAPromise(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	for name, l := range shapers(s) {
		s.Wipe(t)
		reserve(t, l, 3, 0)
		last := reserve(t, l, 2, time.Hour)
		denied := must(t)(l.Peek(ctx, "k"))
		require.False(t, denied.Allowed)
		results, errs := ratelimit.Together(t, l, "k", "k")
		require.Equal(t, []error{nil, nil}, errs)
		require.Equal(t, []ratelimit.Result{denied, denied}, results, name)
		require.Contains(t, s.Admin.Get(ctx, shaperKeys[name]).Val(), "!")
		s.Advance(denied.RetryAfter)
		results, errs = ratelimit.Together(t, l, "k", "k", "k")
		require.Equal(t, []error{nil, nil, nil}, errs)
		allowed := 0
		for _, r := range results {
			if r.Allowed {
				allowed++
			}
		}
		require.Equal(t, 1, allowed, name)
		require.NoError(t, last.Cancel(ctx))
	}
}

// TestAllBesideAPromise: of several limiters a bucket with promised permits answers as alone.
func TestAllBesideAPromise(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	for name, l := range shapers(s) {
		s.Wipe(t)
		reserve(t, l, 3, 0)
		reserve(t, l, 2, time.Hour)
		promised := s.Admin.Get(ctx, shaperKeys[name]).Val()
		require.Contains(t, promised, "!")
		gate := ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 5, time.Hour, append(s.Opts, ratelimit.WithName("gate"))...))
		all := ratelimit.Must(ratelimit.NewAll(l.(ratelimit.Limiter), gate))
		denied := must(t)(l.(ratelimit.Limiter).Peek(ctx, "k"))
		r, err := ratelimit.TryAcquireAll(ctx, all.Claims("k", 1)...)
		require.NoError(t, err)
		require.Equal(t, denied, r.Parts[0].Result, name)
		require.Equal(t, promised, s.Admin.Get(ctx, shaperKeys[name]).Val())
		s.Advance(denied.RetryAfter - time.Microsecond)
		require.False(t, must(t)(all.TryAcquire(ctx, "k")).Allowed, name)
		s.Advance(time.Microsecond)
		require.True(t, must(t)(all.TryAcquire(ctx, "k")).Allowed, name)
		require.Equal(t, 4, must(t)(gate.Peek(ctx, "k")).Remaining)
	}
}

func TestReservationsOfACorruptState(t *testing.T) {
	eachShaper(t, func(t *testing.T, s *limitertest.Stage, l ratelimit.Reserver, name string) {
		r := reserve(t, l, 1, 0)
		state := s.Admin.Get(ctx, shaperKeys[name]).Val()
		for _, corrupt := range []string{"full", "", state + "!", state + "!99999999999999999", state + "!nan", state + "!1!1"} {
			require.NoError(t, s.Admin.Set(ctx, shaperKeys[name], corrupt, time.Minute).Err())
			_, err := l.Reserve(ctx, "k", 1, time.Hour)
			if corrupt == state+"!" { // no number: nothing is promised
				require.NoError(t, err)
				continue
			}
			require.ErrorIs(t, err, ratelimit.ErrCorruptState, "%q", corrupt)
			require.NoError(t, r.GiveBack(ctx))
			require.Equal(t, corrupt, s.Admin.Get(ctx, shaperKeys[name]).Val())
		}
		require.NoError(t, s.Admin.Del(ctx, shaperKeys[name]).Err())
		require.NoError(t, s.Admin.LPush(ctx, shaperKeys[name], "x").Err())
		_, err := l.Reserve(ctx, "k", 1, time.Hour)
		require.ErrorIs(t, err, ratelimit.ErrCorruptState)
	})
}

// TestACallerWhoLeavesReservesNothing: the reservation is made after its context has ended,
// and is cancelled then.
func TestACallerWhoLeavesReservesNothing(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	within, cancel := context.WithCancel(ctx)
	undone, executed := make(chan struct{}), 0
	l := ratelimit.Must(ratelimit.NewTokenBucket(fakes.Losing(s.Client, func(redis.Cmder) error {
		switch executed++; executed {
		case 1:
			cancel()
		case 2:
			close(undone)
		}
		return nil
	}), ratelimit.PerSecond(1), 1))
	require.NoError(t, ratelimit.Preload(ctx, ratelimit.ClaimOf(ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(1), 1)), "k", 1)))
	r, err := l.Reserve(within, "k", 1, time.Hour)
	require.ErrorIs(t, err, context.Canceled)
	require.Nil(t, r)
	<-undone
	require.Zero(t, s.Admin.Exists(ctx, bucketKey).Val())
}

// TestLostRepliesOfReservations: the permits are taken once, and the caller gets an error.
func TestLostRepliesOfReservations(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	lost := errors.New("lost")
	var reply error
	l := ratelimit.Must(ratelimit.NewTokenBucket(fakes.Losing(s.Client, func(redis.Cmder) error { return reply }), ratelimit.PerSecond(1), 3))
	require.NoError(t, ratelimit.Preload(ctx, ratelimit.ClaimOf(l, "k", 1)))
	reply = lost
	_, err := l.Reserve(ctx, "k", 1, time.Hour)
	require.ErrorIs(t, err, lost)
	require.ErrorContains(t, err, `token bucket "default", key "k"`)
	reply = nil
	require.Equal(t, 2, must(t)(l.Peek(ctx, "k")).Remaining)

	r := reserve(t, l, 1, time.Hour)
	reply = lost
	require.ErrorIs(t, r.GiveBack(ctx), lost)
	reply = nil
	require.Equal(t, 2, must(t)(l.Peek(ctx, "k")).Remaining, "given back")
	require.NoError(t, r.GiveBack(ctx), "it does not ask again")
	require.Equal(t, 2, must(t)(l.Peek(ctx, "k")).Remaining, "once")
}

// TestACancelIsSentOnce: the reply to a cancel was lost. Within a step, and behind a caller's clock
// that is ahead, the next call brings the key to the same text, whose permits are its own.
func TestACancelIsSentOnce(t *testing.T) {
	limitertest.Everywhere(t, func(t *testing.T, s *limitertest.Stage) {
		lost := errors.New("lost")
		var reply error
		client := fakes.Losing(s.Client, func(redis.Cmder) error { return reply })
		clock := func(at time.Time) ratelimit.Option {
			return ratelimit.WithClock(func() time.Time { return at })
		}
		stepped, ahead := ratelimit.WithRefillEvery(time.Minute), ratelimit.Must(ratelimit.NewTokenBucket(
			s.Client, ratelimit.PerMinute(1), 3, clock(limitertest.Start.Add(time.Second))))
		for name, l := range map[string]*ratelimit.TokenBucket{
			"stepped": ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerMinute(1), 3, append(s.Opts, stepped)...)),
			"behind":  ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerMinute(1), 3, clock(limitertest.Start))),
		} {
			s.Wipe(t)
			require.NoError(t, ratelimit.Preload(ctx, ratelimit.ClaimOf(l, "k", 1)))
			if name == "behind" {
				must(t)(ahead.TryAcquire(ctx, "k"))
			} else {
				must(t)(l.TryAcquire(ctx, "k"))
			}
			s.Advance(time.Millisecond)
			r := reserve(t, l, 1, time.Hour)
			reply = lost
			require.ErrorIs(t, r.GiveBack(ctx), lost, name)
			reply = nil
			require.Equal(t, 2, must(t)(l.Peek(ctx, "k")).Remaining, "given back all the same")
			require.Equal(t, 1, must(t)(l.TryAcquire(ctx, "k")).Remaining)
			require.NoError(t, r.GiveBack(ctx))
			require.Equal(t, 1, must(t)(l.Peek(ctx, "k")).Remaining, "%s: another call's permit", name)
		}
	})
}

// TestACancelWaitsWithinAMicrosecond: a rule restores hundreds of permits in a microsecond. A reservation
// at the microsecond of a cancel that waits keeps it, because nothing has been restored yet.
func TestACancelWaitsWithinAMicrosecond(t *testing.T) {
	limitertest.Everywhere(t, func(t *testing.T, s *limitertest.Stage) {
		rate, o := ratelimit.Per(999_983, time.Millisecond), s.Opts
		for key, l := range map[string]ratelimit.Reserver{
			bucketKey:                          ratelimit.Must(ratelimit.NewTokenBucket(s.Client, rate, 5, o...)),
			"ratelimit:default:leakybucket{k}": ratelimit.Must(ratelimit.NewLeakyBucket(s.Client, rate, 5, o...)),
		} {
			s.Wipe(t)
			state := func() string { return s.Admin.Get(ctx, key).Val() }
			must(t)(l.TryAcquireN(ctx, "k", 5))
			before := state()
			require.Contains(t, before, "1763670000000000/5000/1000/999983")
			a, b := reserve(t, l, 1, time.Hour), reserve(t, l, 1, time.Hour)
			require.NoError(t, a.GiveBack(ctx))
			c := reserve(t, l, 1, time.Hour)
			require.Contains(t, state(), "/8000/1000/999983")
			require.Contains(t, state(), ";", "the cancel of a waits")
			require.NoError(t, c.GiveBack(ctx))
			require.NoError(t, b.GiveBack(ctx))
			require.Equal(t, before, state(), key)
		}
	})
}

// TestACancelOfAStateThatOthersWroteAgain: the server's clock was set back, and at the microsecond at which
// a reservation was made, another call writes what that wrote. The state cannot tell the two apart,
// so a cancel of the first gives back permits of the second: at most as many as it had reserved.
func TestACancelOfAStateThatOthersWroteAgain(t *testing.T) {
	const permit = time.Microsecond // the time that one takes
	s := limitertest.OnMiniredis(t)
	rate := ratelimit.Per(1000, time.Millisecond)
	for name, l := range map[string]ratelimit.Reserver{
		bucketKey:                          ratelimit.Must(ratelimit.NewTokenBucket(s.Client, rate, 5)),
		"ratelimit:default:leakybucket{k}": ratelimit.Must(ratelimit.NewLeakyBucket(s.Client, rate, 5)),
	} {
		for _, row := range []struct {
			name          string
			first, n      int           // taken before the reservation, and reserved
			due           time.Duration // of the reservation
			wrote         string
			back          time.Duration // by how much the clock is set back
			others        int           // reserved afterwards, at the same microsecond
			before, after time.Duration // the time until the bucket is full, before and after the cancel
		}{
			{"due at once", 0, 5, 0, "1763670000000000/5/1/1", 5 * permit, 5, 5 * permit, 0},
			{"a part", 2, 3, 0, "1763670000000000/5/1/1", 3 * permit, 3, 5 * permit, 2 * permit},
			{"due later", 5, 2, 2 * permit, "1763670000000000/7/1/1!2", 3 * permit, 3, 7 * permit, 5 * permit},
		} {
			s.Wipe(t)
			about := name + ": " + row.name
			state := func() string { return s.Admin.Get(ctx, name).Val() }
			if row.first > 0 {
				must(t)(l.TryAcquireN(ctx, "k", row.first))
			}
			r := reserve(t, l, row.n, time.Hour)
			require.Equal(t, row.due, r.Delay(), about)
			require.Equal(t, row.wrote, state(), about)
			s.Advance(-row.back)
			require.False(t, must(t)(l.TryAcquire(ctx, "k")).Allowed, about) // the state's instant becomes now
			require.NotEqual(t, row.wrote, state(), about)
			s.Advance(row.back)
			other := reserve(t, l, row.others, time.Hour)
			require.Equal(t, row.wrote, state(), about)
			require.Equal(t, row.before, must(t)(l.Peek(ctx, "k")).ResetAfter, about)
			require.NoError(t, r.GiveBack(ctx))
			require.Equal(t, row.after, must(t)(l.Peek(ctx, "k")).ResetAfter, about)
			require.NoError(t, other.GiveBack(ctx))
			require.Equal(t, row.after, must(t)(l.Peek(ctx, "k")).ResetAfter, "%s: once", about)
		}
	}
}

// TestReservationsNeedNoLoadedScript: NOSCRIPT means that nothing was executed.
func TestReservationsNeedNoLoadedScript(t *testing.T) {
	s := limitertest.OnRedis(t)
	for _, l := range shapers(s) {
		s.Wipe(t)
		require.NoError(t, s.Admin.ScriptFlush(ctx).Err())
		r := reserve(t, l, 3, time.Hour)
		require.NoError(t, s.Admin.ScriptFlush(ctx).Err())
		require.NoError(t, r.GiveBack(ctx))
		require.Equal(t, 3, must(t)(l.Peek(ctx, "k")).Remaining)
	}
}

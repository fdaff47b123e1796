package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/exact"
	"github.com/tryacquire/ratelimit/internal/testing/fakes"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// allowedBy and deniedBy make a Result of its numbers.
func allowedBy(limit int, window time.Duration, remaining int, resetAfter time.Duration) ratelimit.Result {
	return ratelimit.Result{Allowed: true, Limit: limit, Window: window, Remaining: remaining, ResetAfter: resetAfter}
}

// isBucket reports whether the permits of l come back one by one.
func isBucket(l ratelimit.Limiter) bool {
	switch l.(type) {
	case *ratelimit.TokenBucket, *ratelimit.LeakyBucket:
		return true
	}
	return false
}

func deniedBy(limit int, window time.Duration, remaining int, retryAfter, resetAfter time.Duration) ratelimit.Result {
	return ratelimit.Result{Limit: limit, Window: window, Remaining: remaining, RetryAfter: retryAfter, ResetAfter: resetAfter}
}

func TestAllTakesFromEveryLimiterOrFromNone(t *testing.T) {
	for name, stage := range map[string]func(testing.TB) *limitertest.Stage{"miniredis": limitertest.OnMiniredis, "Redis": limitertest.OnHeldRedis} {
		t.Run(name, func(t *testing.T) {
			s := stage(t)
			second := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(2), 2, ratelimit.WithName("second")))
			hour := ratelimit.Must(ratelimit.NewSlidingWindow(s.Client, 3, time.Hour, ratelimit.WithName("hour"), ratelimit.WithStorage(ratelimit.StorageZSet)))
			all := ratelimit.Must(ratelimit.NewAll(second, hour))
			claim := func(n int) ratelimit.AllResult {
				r, err := ratelimit.TryAcquireAll(ctx, all.Claims("k", n)...)
				require.NoError(t, err)
				return r
			}

			require.Equal(t, allowedBy(2, time.Second, 2, 0), must(t)(all.Peek(ctx, "k")))
			require.Empty(t, s.Admin.Keys(ctx, "*").Val())
			require.Equal(t, allowedBy(2, time.Second, 0, time.Hour), must(t)(all.TryAcquireN(ctx, "k", 2)))
			// Both deny two more, the window for longer.
			require.Equal(t, ratelimit.AllResult{
				Result: deniedBy(3, time.Hour, 1, time.Hour, time.Hour),
				Parts: []ratelimit.PartResult{
					ratelimit.OfBucket(true, ratelimit.PartResult{Name: "second", Key: "k", Result: deniedBy(2, time.Second, 0, time.Second, time.Second)}),
					{Name: "hour", Key: "k", Result: deniedBy(3, time.Hour, 1, time.Hour, time.Hour)},
				},
			}, claim(2))
			// The bucket denies one more, and the window keeps its permit.
			denied := claim(1)
			require.Equal(t, ratelimit.AllResult{
				Result: deniedBy(2, time.Second, 0, 500*time.Millisecond, time.Hour),
				Parts: []ratelimit.PartResult{
					ratelimit.OfBucket(true, ratelimit.PartResult{Name: "second", Key: "k", Result: deniedBy(2, time.Second, 0, 500*time.Millisecond, time.Second)}),
					{Name: "hour", Key: "k", Result: allowedBy(3, time.Hour, 1, time.Hour)},
				},
			}, denied)
			require.ErrorIs(t, denied.Err(), ratelimit.ErrDenied)

			s.Advance(500*time.Millisecond - time.Microsecond)
			require.Equal(t, deniedBy(2, time.Second, 0, time.Microsecond, time.Hour-500*time.Millisecond+time.Microsecond), must(t)(all.TryAcquire(ctx, "k")))
			s.Advance(time.Microsecond)
			require.Equal(t, allowedBy(2, time.Second, 0, time.Hour), must(t)(all.TryAcquire(ctx, "k")))
			require.Equal(t, deniedBy(2, time.Second, 0, 500*time.Millisecond, time.Second), must(t)(second.Peek(ctx, "k")))
			require.Equal(t, deniedBy(3, time.Hour, 0, time.Hour-500*time.Millisecond, time.Hour), must(t)(hour.Peek(ctx, "k")))
			require.NoError(t, all.Reset(ctx, "k"))
			require.Empty(t, s.Admin.Keys(ctx, "*").Val())
		})
	}
}

// Claims have keys and numbers of permits of their own; those of one limiter for one key
// count together.
func TestClaimsOfOneLimiterAndKeyCountTogether(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	l := ratelimit.Must(ratelimit.NewSlidingLog(s.Client, []ratelimit.Rule{{Limit: 5, Window: time.Minute}}))
	other := ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 2, time.Minute))
	take := func(claims ...ratelimit.Claim) []int {
		r, err := ratelimit.TryAcquireAll(ctx, claims...)
		require.NoError(t, err)
		var left []int
		for _, p := range r.Parts {
			left = append(left, p.Result.Remaining)
		}
		if !r.Allowed {
			left = append(left, -1)
		}
		return left
	}
	require.Equal(t, []int{2, 4, 1, 2}, take(ratelimit.ClaimOf(l, "a", 1), ratelimit.ClaimOf(l, "b", 1), ratelimit.ClaimOf(other, "a", 1), ratelimit.ClaimOf(l, "a", 2)))
	require.Equal(t, []int{2, 4, 1, 2, -1}, take(ratelimit.ClaimOf(l, "a", 1), ratelimit.ClaimOf(l, "b", 1), ratelimit.ClaimOf(other, "a", 1), ratelimit.ClaimOf(l, "a", 3)))
	require.Equal(t, []int{0, 3, 0, 0}, take(ratelimit.ClaimOf(l, "a", 1), ratelimit.ClaimOf(l, "b", 1), ratelimit.ClaimOf(other, "a", 1), ratelimit.ClaimOf(l, "a", 1)))
}

func TestClaimsThatCannotWork(t *testing.T) {
	c := limitertest.Offline(t)
	bucket := ratelimit.Must(ratelimit.NewTokenBucket(c, ratelimit.PerSecond(1), 2))
	window := ratelimit.Must(ratelimit.NewFixedWindow(c, 5, time.Second))
	twin := ratelimit.Must(ratelimit.NewTokenBucket(c, ratelimit.PerSecond(2), 2))
	elsewhere := ratelimit.Must(ratelimit.NewFixedWindow(redis.NewClient(&redis.Options{Addr: "localhost:1"}), 5, time.Second))
	byCaller := ratelimit.Must(ratelimit.NewFixedWindow(c, 5, time.Second, ratelimit.WithClock(time.Now)))
	local := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1), 1))
	var nine []ratelimit.Claim
	var nineLimiters []ratelimit.Limiter
	for i := range 9 {
		l := ratelimit.Must(ratelimit.NewFixedWindow(c, 5, time.Second, ratelimit.WithName(fmt.Sprint("n", i))))
		nine, nineLimiters = append(nine, ratelimit.ClaimOf(l, "k", 1)), append(nineLimiters, l)
	}
	for _, row := range []struct {
		claims []ratelimit.Claim
		is     error
		says   string
	}{
		{nil, ratelimit.ErrInvalidConfig, "there is no claim"},
		{[]ratelimit.Claim{{}}, ratelimit.ErrInvalidConfig, "not made by its constructor"},
		{[]ratelimit.Claim{ratelimit.ClaimOf(bucket, "k", 1), ratelimit.ClaimOf(window, "", 1)}, ratelimit.ErrInvalidKey, "empty"},
		{[]ratelimit.Claim{ratelimit.ClaimOf(bucket, "k", 1), ratelimit.ClaimOf(window, "k", 0)}, ratelimit.ErrInvalidPermits, "0; ask for at least 1"},
		{[]ratelimit.Claim{ratelimit.ClaimOf(bucket, "k", 3), ratelimit.ClaimOf(window, "k", 1)}, ratelimit.ErrExceedsLimit, `3 permits of token bucket "default", which allows 2`},
		{[]ratelimit.Claim{ratelimit.ClaimOf(bucket, "k", 2), ratelimit.ClaimOf(window, "k", 1), ratelimit.ClaimOf(bucket, "k", 1)}, ratelimit.ErrExceedsLimit, "3 permits of token bucket"},
		{[]ratelimit.Claim{ratelimit.ClaimOf(bucket, "k", 1), ratelimit.ClaimOf(bucket, "k", -1)}, ratelimit.ErrInvalidPermits, "-1"},
		{[]ratelimit.Claim{ratelimit.ClaimOf(bucket, "k", -1), ratelimit.ClaimOf(bucket, "k", 2)}, ratelimit.ErrInvalidPermits, "-1"},
		{[]ratelimit.Claim{ratelimit.ClaimOf(bucket, "k", 0), ratelimit.ClaimOf(bucket, "k", 1)}, ratelimit.ErrInvalidPermits, "0"},
		{[]ratelimit.Claim{ratelimit.ClaimOf(bucket, "k", exact.Permits), ratelimit.ClaimOf(bucket, "k", exact.Permits), ratelimit.ClaimOf(bucket, "k", 1)}, ratelimit.ErrExceedsLimit, fmt.Sprint(2 * exact.Permits)},
		{[]ratelimit.Claim{ratelimit.ClaimOf(bucket, "k", 1), ratelimit.ClaimOf(bucket, "k", math.MaxInt/2+1)}, ratelimit.ErrExceedsLimit, fmt.Sprint(math.MaxInt/2 + 1)},
		{[]ratelimit.Claim{ratelimit.ClaimOf(bucket, "k", 1), ratelimit.ClaimOf(twin, "k", 1)}, ratelimit.ErrInvalidConfig, `two limiters are the token bucket "default" and claim the same key`},
		{[]ratelimit.Claim{ratelimit.ClaimOf(bucket, "k", 1), ratelimit.ClaimOf(elsewhere, "k", 1)}, ratelimit.ErrInvalidConfig, "different clients"},
		{[]ratelimit.Claim{ratelimit.ClaimOf(bucket, "k", 1), ratelimit.ClaimOf(byCaller, "k", 1)}, ratelimit.ErrInvalidConfig, "only one has WithClock"},
		{nine, ratelimit.ErrInvalidConfig, "9 limiters are too many for one script"},
	} {
		for _, ask := range []func(context.Context, ...ratelimit.Claim) (ratelimit.AllResult, error){ratelimit.TryAcquireAll, ratelimit.Look} {
			r, err := ask(ctx, row.claims...)
			require.ErrorIs(t, err, row.is)
			require.ErrorContains(t, err, row.says)
			require.Zero(t, r)
			require.EqualError(t, ratelimit.CheckClaims(row.claims...), err.Error())
		}
	}
	require.NoError(t, ratelimit.CheckClaims(ratelimit.ClaimOf(bucket, "k", 2), ratelimit.ClaimOf(window, "other", 1)))
	for _, row := range []struct {
		limiters []ratelimit.Limiter
		says     string
	}{
		{nil, "there is no limiter"},
		{[]ratelimit.Limiter{bucket, nil}, "limiter 2 is a <nil>, which does not decide on Redis"},
		{[]ratelimit.Limiter{(*ratelimit.TokenBucket)(nil)}, "limiter 1 is a *ratelimit.TokenBucket that its constructor did not make"},
		{[]ratelimit.Limiter{&ratelimit.TokenBucket{}}, "limiter 1 is a *ratelimit.TokenBucket that its constructor did not make"},
		{[]ratelimit.Limiter{local, bucket}, "limiter 1 is a *ratelimit.LocalTokenBucket, which does not decide on Redis"},
		{[]ratelimit.Limiter{bucket, ratelimit.AllowAll()}, "which does not decide on Redis"},
		{[]ratelimit.Limiter{ratelimit.Must(ratelimit.NewDenyCache(bucket))}, "put it around what NewAll returns"},
		{[]ratelimit.Limiter{ratelimit.Must(ratelimit.NewFallback(bucket, local))}, "put it around what NewAll returns"},
		{[]ratelimit.Limiter{ratelimit.Must(ratelimit.NewAll(bucket))}, "give its limiters one by one"},
		{[]ratelimit.Limiter{bucket, window, twin}, `limiters 1 and 3 are both the token bucket "default"`},
		{[]ratelimit.Limiter{bucket, elsewhere}, "different clients"},
		{nineLimiters, "9 limiters are too many for one script"},
	} {
		all, err := ratelimit.NewAll(row.limiters...)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
		require.ErrorContains(t, err, row.says)
		require.Nil(t, all)
	}
	for _, all := range []*ratelimit.All{nil, {}} {
		_, err := all.TryAcquire(ctx, "k")
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
		_, err = all.Peek(ctx, "k")
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
		require.ErrorIs(t, all.Reset(ctx, "k"), ratelimit.ErrInvalidConfig)
		require.ErrorIs(t, ratelimit.Preload(ctx, ratelimit.ClaimOf(all, "k", 1)), ratelimit.ErrInvalidConfig)
		_, err = ratelimit.TryAcquireAll(ctx, all.Claims("k", 1)...)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	_, err := ratelimit.TryAcquireAll(ended, ratelimit.ClaimOf(bucket, "k", 1), ratelimit.ClaimOf(window, "k", 1))
	require.ErrorIs(t, err, context.Canceled)
}

// A client that cannot be compared is another one each time, and so is one that only holds
// such a value.
func TestClientsThatCannotBeCompared(t *testing.T) {
	inner := limitertest.Offline(t)
	for _, c := range []ratelimit.Client{tagged{inner, []string{"a"}}, wrapped{tagged{inner, nil}}} {
		bucket := ratelimit.Must(ratelimit.NewTokenBucket(c, ratelimit.PerSecond(1), 2))
		window := ratelimit.Must(ratelimit.NewFixedWindow(c, 5, time.Second))
		_, err := ratelimit.NewAll(bucket, window)
		require.ErrorContains(t, err, "different clients")
		_, err = ratelimit.TryAcquireAcrossSlots(ctx, ratelimit.ClaimOf(bucket, "a", 1), ratelimit.ClaimOf(window, "b", 1))
		require.ErrorContains(t, err, "different clients")
	}
	same := wrapped{inner}
	_, err := ratelimit.NewAll(
		ratelimit.Must(ratelimit.NewTokenBucket(same, ratelimit.PerSecond(1), 2)), ratelimit.Must(ratelimit.NewFixedWindow(same, 5, time.Second)))
	require.NoError(t, err)
}

type tagged struct {
	ratelimit.Client
	tags []string
}

type wrapped struct{ ratelimit.Client }

// Up to eight limiters of any algorithm decide together, by both clocks, and a ninth is refused.
func TestTheLargestScriptsOfSeveralLimitersRun(t *testing.T) {
	raceflag.SkipSequential(t)
	s := limitertest.OnRedis(t)
	for _, v := range limitertest.Variants() {
		if v.Name == "TokenBucket in an All" {
			continue
		}
		for _, clock := range [][]ratelimit.Option{nil, {ratelimit.WithClock(func() time.Time { return limitertest.Start })}} {
			s.Wipe(t)
			var limiters []ratelimit.Limiter
			for i := range 9 {
				l, err := v.Build(s.Client, append(clock, ratelimit.WithName(fmt.Sprint("n", i)))...)
				require.NoError(t, err)
				limiters = append(limiters, l)
				all, err := ratelimit.NewAll(limiters...)
				if i == 8 {
					require.EqualError(t, err, "ratelimit: invalid configuration: 9 limiters are too many for one script, which holds at most 8 (NewAll)")
					break
				}
				require.NoError(t, err, "%d of %s", i+1, v.Name)
				require.NoError(t, ratelimit.Preload(ctx, ratelimit.ClaimOf(all, v.Of("k"), 1)), "%d of %s", i+1, v.Name)
				require.Equal(t, 2, must(t)(all.TryAcquire(ctx, v.Of(fmt.Sprint(i)))).Remaining, v.Name)
			}
		}
	}
}

// Eight limiters of several kinds decide together, with estimates and without: all take their
// permits or none. Many of these groups need more local variables than a function has.
func TestEightOfAnyKindsDecideTogether(t *testing.T) {
	raceflag.Skip(t)
	variants := map[string]limitertest.Variant{}
	for _, v := range limitertest.Variants() {
		variants[v.Name] = v
	}
	for server, stage := range map[string]func(testing.TB) *limitertest.Stage{"miniredis": limitertest.OnMiniredis, "Redis": limitertest.OnRedis} {
		t.Run(server, func(t *testing.T) {
			s := stage(t)
			for _, clock := range [][]ratelimit.Option{s.Opts, {ratelimit.WithClock(func() time.Time { return limitertest.Start })}} {
				for _, group := range []map[string]int{
					{"TokenBucket stepped": 1, "SlidingWindow ZSet": 7},
					{"TokenBucket": 3, "TokenBucket stepped": 1, "SlidingWindow ZSet": 4},
					{"TokenBucket stepped": 2, "SlidingWindow List": 3},
					{"SlidingWindow Hash": 4, "FixedWindow": 1},
					{"TokenBucket stepped": 7},
					{"SlidingLog": 3, "SlidingWindow Hash": 3, "SlidingWindow List": 2},
					{"FairTokenBucket": 8},
					{"FairTokenBucket": 3, "TokenBucket": 2, "SlidingWindow Hash": 3},
				} {
					for _, estimate := range []bool{false, true} {
						s.Wipe(t)
						var claims []ratelimit.Claim
						var limiters []ratelimit.Limiter
						var keys []limitertest.Keys
						lastKey := ""
						for _, name := range slices.Sorted(maps.Keys(group)) {
							v, ok := variants[name]
							require.True(t, ok, name)
							for range group[name] {
								l, err := v.Build(s.Client, append(clock, ratelimit.WithName(fmt.Sprint("n", len(claims))))...)
								require.NoError(t, err)
								c := ratelimit.ClaimOf(l, v.Of("k"), 1)
								if estimate {
									c = c.Estimate()
								}
								lastKey = strings.Replace(v.Key, "default", fmt.Sprint("n", len(claims)), 1)
								limiters, claims, keys = append(limiters, l), append(claims, c), append(keys, v.Keys)
							}
						}
						last := limiters[len(limiters)-1]
						require.True(t, must(t)(last.TryAcquire(ctx, keys[len(keys)-1].Of("k"))).Allowed)
						for call := range 3 {
							r, err := ratelimit.TryAcquireAll(ctx, claims...)
							require.NoError(t, err, "%v", group)
							require.Equal(t, call < 2, r.Allowed, "%v", group)
							for i, part := range r.Parts {
								require.Equal(t, i < len(claims)-1 || call < 2, part.Result.Allowed)
								require.Equal(t, estimate && call < 2, part.Ticket != nil)
							}
							if part := r.Parts[0]; part.Ticket != nil {
								require.NoError(t, part.Ticket.Settle(ctx, 0), "%v", group)
							}
						}
						for i, l := range limiters {
							left := 1
							switch {
							case i == len(limiters)-1:
								left = 0
							case i == 0 && estimate:
								left = 3
							}
							require.Equal(t, left, must(t)(l.Peek(ctx, keys[i].Of("k"))).Remaining, "%v: %d, estimates %t", group, i, estimate)
						}

						// The last limiter finds its key corrupt: nothing is taken from the others.
						require.NoError(t, s.Admin.Del(ctx, lastKey).Err())
						require.NoError(t, s.Admin.SAdd(ctx, lastKey, "x").Err())
						r, err := ratelimit.TryAcquireAll(ctx, claims...)
						require.ErrorIs(t, err, ratelimit.ErrCorruptState, "%v", group)
						require.Zero(t, r)
						_, err = ratelimit.Look(ctx, claims...)
						require.ErrorIs(t, err, ratelimit.ErrCorruptState, "%v", group)
						var others []ratelimit.Claim
						for i, l := range limiters {
							others = append(others, ratelimit.ClaimOf(l, keys[i].Of("other"), 1))
						}
						if !estimate {
							answers, failed := ratelimit.AllMerged(t, [][]ratelimit.Claim{others, claims, others})
							require.Equal(t, []bool{false, true, false}, failed, "%v", group)
							require.True(t, answers[0].Allowed && answers[2].Allowed, "%v", group)
						}
						require.Equal(t, map[bool]int{false: 1, true: 3}[estimate], must(t)(limiters[0].Peek(ctx, keys[0].Of("k"))).Remaining)
					}
				}
			}
		})
	}
}

// One call stores at most 10,000 permits, in all its limiters together, each of which is a
// member of a sorted set. Other limiters count them, however many there are.
func TestOneCallStoresAtMostSoManyPermits(t *testing.T) {
	s := limitertest.OnRedis(t)
	window := func(name string, storage ratelimit.Storage) *ratelimit.SlidingWindow {
		return ratelimit.Must(ratelimit.NewSlidingWindow(s.Client, 10_000, time.Hour, append(s.Opts, ratelimit.WithStorage(storage), ratelimit.WithName(name))...))
	}
	a, b, hash := window("a", ratelimit.StorageZSet), window("b", ratelimit.StorageZSet), window("hash", ratelimit.StorageHash)
	flights := ratelimit.Must(ratelimit.NewInFlight(s.Client, 1000, time.Minute, s.Opts...))
	const message = "ratelimit: more permits than the limit: 10001 permits in one call of limiters that store each of them (the storage ZSet, in flight), " +
		"which are 10000 together at most; take fewer in a call, or use the storage List or Hash, or a sliding log"
	for _, claims := range [][]ratelimit.Claim{
		{ratelimit.ClaimOf(a, "k", 5000), ratelimit.ClaimOf(b, "k", 5001)},
		{ratelimit.ClaimOf(a, "k", 5000), ratelimit.ClaimOf(a, "other", 5001)},
		{ratelimit.ClaimOf(a, "k", 4000), ratelimit.ClaimOf(hash, "k", 10_000), ratelimit.ClaimOf(a, "k", 1000), ratelimit.ClaimOf(b, "k", 5001)},
		{ratelimit.ClaimOf(a, "k", 9500), ratelimit.ClaimHold(flights, "k", 501)},
		{ratelimit.ClaimOf(a, "k", 5000), ratelimit.ClaimOf(b, "k", 5001).Estimate()},
	} {
		for _, ask := range []func(context.Context, ...ratelimit.Claim) (ratelimit.AllResult, error){
			ratelimit.TryAcquireAll, ratelimit.Look, ratelimit.TryAcquireAcrossSlots,
		} {
			r, err := ask(ctx, claims...)
			require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
			require.EqualError(t, err, message)
			require.Zero(t, r)
		}
		require.EqualError(t, ratelimit.CheckClaims(claims...), message)
	}
	require.Empty(t, s.Admin.Keys(ctx, "*").Val(), "nothing was sent")

	both := ratelimit.Must(ratelimit.NewAll(a, b, hash))
	_, err := both.TryAcquireN(ctx, "k", 5001)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	cached := ratelimit.Must(ratelimit.NewFallback(both, ratelimit.DenyAll()))
	_, err = cached.TryAcquireN(ctx, "k", 5001)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	require.Equal(t, 5000, must(t)(both.TryAcquireN(ctx, "k", 5000)).Remaining)
	r, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(a, "k", 5000), ratelimit.ClaimOf(hash, "k", 5000), ratelimit.ClaimOf(b, "k", 5000))
	require.NoError(t, err)
	require.True(t, r.Allowed)
	require.Equal(t, 10_000, must(t)(a.TryAcquireN(ctx, "alone", 10_000)).Limit)
}

// A key that cannot be read leaves the others as they were, and so does one that cannot
// be written.
func TestAllLeavesTheOthersAloneIfOneFails(t *testing.T) {
	for name, stage := range map[string]func(testing.TB) *limitertest.Stage{"miniredis": limitertest.OnMiniredis, "Redis": limitertest.OnRedis} {
		t.Run(name, func(t *testing.T) {
			s := stage(t)
			var limiters []ratelimit.Limiter
			var keys []string
			for _, v := range limitertest.Variants() {
				switch v.Name {
				case "FixedWindow", "SlidingWindow Hash", "SlidingLog", "TokenBucket":
					l, err := v.Build(s.Client, s.Opts...)
					require.NoError(t, err)
					limiters, keys = append(limiters, l), append(keys, v.Key)
				}
			}
			all := ratelimit.Must(ratelimit.NewAll(limiters...))
			for _, corrupt := range keys {
				s.Wipe(t)
				must(t)(all.TryAcquire(ctx, "k"))
				require.NoError(t, s.Admin.Del(ctx, corrupt).Err())
				require.NoError(t, s.Admin.SAdd(ctx, corrupt, "x").Err())
				before := map[string]string{}
				for _, key := range keys {
					before[key] = s.Admin.Dump(ctx, key).Val()
				}
				for range 2 {
					_, err := all.TryAcquire(ctx, "k")
					require.ErrorIs(t, err, ratelimit.ErrCorruptState, corrupt)
					require.ErrorContains(t, err, `fixed window "default", key "k"; `)
				}
				_, err := all.Peek(ctx, "k")
				require.ErrorIs(t, err, ratelimit.ErrCorruptState, corrupt)
				for _, key := range keys {
					require.Equal(t, before[key], s.Admin.Dump(ctx, key).Val(), "%s, with a corrupt %s", key, corrupt)
				}
				// Calls that are merged with it do not suffer.
				require.Equal(t, 2, must(t)(all.TryAcquire(ctx, "other")).Remaining)
			}
		})
	}
}

// By callers' clocks, keys live longer by the largest WithMaxSkew of the limiters.
func TestAllKeepsKeysForTheLargestSkew(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	clock := ratelimit.WithClock(func() time.Time { return s.Now })
	narrow := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerMinute(1), 1, clock, ratelimit.WithName("narrow")))
	wide := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerMinute(1), 1, clock, ratelimit.WithMaxSkew(time.Hour), ratelimit.WithName("wide")))
	lives := func(name string) time.Duration {
		ttl, err := s.Admin.PTTL(ctx, "ratelimit:"+name+":tokenbucket{k}").Result()
		require.NoError(t, err)
		return ttl
	}
	require.True(t, must(t)(wide.TryAcquire(ctx, "k")).Allowed)
	want := lives("wide")
	require.Greater(t, want, time.Hour+time.Minute)
	for _, limiters := range [][]ratelimit.Limiter{{narrow, wide}, {wide, narrow}} {
		s.Wipe(t)
		require.True(t, must(t)(ratelimit.Must(ratelimit.NewAll(limiters...)).TryAcquire(ctx, "k")).Allowed)
		require.Equal(t, want, lives("wide"))
		require.Equal(t, want, lives("narrow"))
	}
}

// Many callers of several limiters with one key in common: never more than the limits.
func TestMergedClaimsNeverExceedALimit(t *testing.T) {
	s := redistest.Shared(t)
	client := s.Client(t)
	for _, merging := range [][]ratelimit.Option{nil, {ratelimit.WithoutMerging()}} {
		require.NoError(t, client.FlushAll(ctx).Err())
		perUser := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerHour(1), 3, append(merging, ratelimit.WithName("user"))...))
		global := ratelimit.Must(ratelimit.NewSlidingWindow(client, 100, time.Hour, append(merging, ratelimit.WithName("global"))...))
		var allowed, byUser [50]atomic.Int64
		var callers sync.WaitGroup
		for caller := range 64 {
			callers.Go(func() {
				for i := range 10 {
					user := (caller*7 + i) % 50
					r, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(perUser, fmt.Sprint(user), 1), ratelimit.ClaimOf(global, "all", 1))
					if err != nil {
						t.Error(err)
						return
					}
					if r.Allowed {
						allowed[0].Add(1)
						byUser[user].Add(1)
					}
				}
			})
		}
		callers.Wait()
		require.EqualValues(t, 100, allowed[0].Load())
		for user := range byUser {
			r := must(t)(perUser.Peek(ctx, fmt.Sprint(user)))
			require.EqualValues(t, 3-byUser[user].Load(), r.Remaining, "user %d paid for what was allowed", user)
		}
	}
}

// Of calls that are sent together only those for a corrupt key fail, unless it is the key
// that all have in common.
func TestMergedClaimsOfACorruptKey(t *testing.T) {
	client := redistest.Shared(t).Client(t)
	for _, corrupt := range []string{"ratelimit:user:tokenbucket{7}", "ratelimit:global:slidingwindow-list{all}"} {
		require.NoError(t, client.FlushAll(ctx).Err())
		require.NoError(t, client.SAdd(ctx, corrupt, "x").Err())
		perUser := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerHour(1), 50, ratelimit.WithName("user")))
		global := ratelimit.Must(ratelimit.NewSlidingWindow(client, 10_000, time.Hour, ratelimit.WithName("global")))
		common := strings.HasSuffix(corrupt, "{all}")
		var callers sync.WaitGroup
		for range 64 {
			callers.Go(func() {
				for user := range 16 {
					r, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(perUser, fmt.Sprint(user), 1), ratelimit.ClaimOf(global, "all", 1))
					if corrupted := common || user == 7; corrupted != errors.Is(err, ratelimit.ErrCorruptState) || !corrupted && err != nil {
						t.Errorf("user %d: %+v, %v", user, r, err)
						return
					}
				}
			})
		}
		callers.Wait()
		for user := range 16 {
			r, err := perUser.Peek(ctx, fmt.Sprint(user))
			switch {
			case common:
				require.Equal(t, 50, r.Remaining)
			case user == 7:
				require.ErrorIs(t, err, ratelimit.ErrCorruptState)
			default:
				require.Zero(t, r.Remaining)
			}
		}
		if !common {
			require.Equal(t, 10_000-15*50, must(t)(global.Peek(ctx, "all")).Remaining)
		}
	}
}

// On a Cluster and a Ring keys whose names have no common hash tag are refused before
// anything is sent.
func TestAllInOneSlot(t *testing.T) {
	cluster := redistest.StartCluster(t)
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": redistest.Shared(t).Addr()}})
	defer ring.Close()
	for name, client := range map[string]ratelimit.Client{"Cluster": cluster.Client(t), "Ring": ring} {
		t.Run(name, func(t *testing.T) {
			bucket := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerHour(1), 20, ratelimit.WithPrefix("slots")))
			window := ratelimit.Must(ratelimit.NewFixedWindow(client, 30, time.Hour, ratelimit.WithPrefix("slots")))
			for _, keys := range [][2]string{{"a", "b"}, {"{a}", "{b}"}, {"{a}", "a:x"}, {"a", "{}a"}, {"a{", "a"}, {"a}", "}a"}, {"}", "{"}} {
				_, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(bucket, keys[0], 1), ratelimit.ClaimOf(window, keys[1], 1))
				require.ErrorIs(t, err, ratelimit.ErrCrossSlot, keys)
				require.EqualError(t, ratelimit.CheckClaims(ratelimit.ClaimOf(bucket, keys[0], 1), ratelimit.ClaimOf(window, keys[1], 1)), err.Error())
				require.ErrorContains(t, err, "give the keys one hash tag")
			}
			for _, key := range []string{"a", "b"} { // one key is in one slot
				r, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(bucket, key, 1))
				require.NoError(t, err)
				require.Equal(t, 19, r.Remaining)
			}
			both := ratelimit.Must(ratelimit.NewAll(bucket, window))
			for _, key := range []string{"user:42", "{user:43}", "{user:44}:x", "{}x", "{", "}", "}{", "}x{y}", "a}b", "a{b", ";", ":"} {
				require.Equal(t, 19, must(t)(both.TryAcquire(ctx, key)).Remaining, key)
				require.Equal(t, 19, must(t)(bucket.Peek(ctx, key)).Remaining, key)
				require.Equal(t, 29, must(t)(window.Peek(ctx, key)).Remaining, key)
				require.Equal(t, 19, must(t)(both.Peek(ctx, key)).Remaining, key)
				require.NoError(t, both.Reset(ctx, key))
			}
			for _, keys := range [][2]string{{"user:7", "{user:7}:x"}, {"x{user:8}", "user:8"}, {"{}a", "{}b"}, {"}a", "}b"}, {"}a", ";"}, {"{}", "{{}"}, {"a}b", "a"}} {
				_, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(bucket, keys[0], 1), ratelimit.ClaimOf(window, keys[1], 1))
				require.NoError(t, err, keys)
				require.Equal(t, 29, must(t)(window.Peek(ctx, keys[1])).Remaining, keys)
				require.NoError(t, bucket.Reset(ctx, keys[0]))
				require.NoError(t, window.Reset(ctx, keys[1]))
			}
			running := ratelimit.Must(ratelimit.NewInFlight(client, 2, time.Minute, ratelimit.WithPrefix("slots")))
			held, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimHold(running, "user:9", 1), ratelimit.ClaimOf(window, "user:9", 1), ratelimit.ClaimOf(bucket, "{user:9}", 1).Estimate())
			require.NoError(t, err)
			require.True(t, held.Allowed)
			require.Equal(t, 1, must(t)(running.Peek(ctx, "user:9")).Remaining)
			require.NoError(t, held.Finish(ctx, nil))
			require.Equal(t, 2, must(t)(running.Peek(ctx, "user:9")).Remaining)
			var callers sync.WaitGroup
			for caller := range 32 {
				callers.Go(func() {
					for i := range 8 {
						user := fmt.Sprint((caller + i) % 8)
						if _, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(bucket, user, 1), ratelimit.ClaimOf(window, "x{"+user+"}", 1)); err != nil {
							t.Error(err)
						}
					}
				})
			}
			callers.Wait()
			for tag := range 8 { // 32 calls for each, of which 20 are allowed
				require.Zero(t, must(t)(bucket.Peek(ctx, fmt.Sprint(tag))).Remaining)
				require.Equal(t, 10, must(t)(window.Peek(ctx, fmt.Sprintf("x{%d}", tag))).Remaining)
			}
		})
	}
	t.Run("a node of a cluster", func(t *testing.T) {
		node := cluster.Masters()[0].Client(t)
		bucket := ratelimit.Must(ratelimit.NewTokenBucket(node, ratelimit.PerHour(1), 20))
		window := ratelimit.Must(ratelimit.NewFixedWindow(node, 30, time.Hour))
		_, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(bucket, "a", 1), ratelimit.ClaimOf(window, "b", 1))
		require.ErrorIs(t, err, ratelimit.ErrCrossSlot)
	})
}

// A lost reply charges once, and a script that Redis has lost is sent along.
func TestAllIsSentAtMostOnce(t *testing.T) {
	s := redistest.Shared(t)
	client := s.Client(t)
	require.NoError(t, client.FlushAll(ctx).Err())
	bucket := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerHour(1), 5))
	window := ratelimit.Must(ratelimit.NewFixedWindow(client, 5, time.Hour))
	all := ratelimit.Must(ratelimit.NewAll(bucket, window))
	require.Equal(t, 4, must(t)(all.TryAcquire(ctx, "k")).Remaining)
	require.NoError(t, client.ScriptFlush(ctx).Err())
	require.Equal(t, 3, must(t)(all.TryAcquire(ctx, "k")).Remaining)
	require.NoError(t, client.ScriptFlush(ctx).Err())
	require.Equal(t, 3, must(t)(all.Peek(ctx, "k")).Remaining)

	lossy := fakes.Losing(client, func(redis.Cmder) error { return errLost })
	bucket = ratelimit.Must(ratelimit.NewTokenBucket(lossy, ratelimit.PerHour(1), 5))
	window = ratelimit.Must(ratelimit.NewFixedWindow(lossy, 5, time.Hour))
	_, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(bucket, "k", 1), ratelimit.ClaimOf(window, "k", 1))
	require.ErrorIs(t, err, errLost)
	require.Equal(t, 2, must(t)(all.Peek(ctx, "k")).Remaining)
}

var errLost = errors.New("the reply was lost")

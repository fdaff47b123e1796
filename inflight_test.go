package ratelimit_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

const inFlightKey = "ratelimit:default:inflight{k}"

// inFlightStages are where the tests of InFlight run. With callers' clocks leases end later
// by twice MaxSkew.
func inFlightStages(t *testing.T, test func(t *testing.T, s *limitertest.Stage)) {
	for name, on := range map[string]func(testing.TB) *limitertest.Stage{
		"miniredis": limitertest.OnMiniredis,
		"miniredis, caller's clock": func(t testing.TB) *limitertest.Stage {
			s := limitertest.OnMiniredis(t)
			return limitertest.OnClock(s.Client, s.Admin)
		},
		"Redis":                 limitertest.OnHeldRedis,
		"Redis, caller's clock": limitertest.OnRedis,
		"Redis Ring":            limitertest.Stages()["Redis Ring"],
	} {
		t.Run(name, func(t *testing.T) { test(t, on(t)) })
	}
}

func newInFlight(t testing.TB, s *limitertest.Stage, limit int, lease time.Duration, opts ...ratelimit.Option) *ratelimit.InFlight {
	t.Helper()
	f, err := ratelimit.NewInFlight(s.Client, limit, lease, append(opts, s.Opts...)...)
	require.NoError(t, err)
	return f
}

// take asks for n permits.
func take(t testing.TB, f *ratelimit.InFlight, n int) (*ratelimit.Hold, ratelimit.Result) {
	t.Helper()
	hold, r, err := f.TryAcquireN(ctx, "k", n)
	require.NoError(t, err)
	require.Equal(t, r.Allowed, hold != nil)
	return hold, r
}

func TestInFlightCountsPermitsUntilTheirLeasesEnd(t *testing.T) {
	inFlightStages(t, func(t *testing.T, s *limitertest.Stage) {
		const lease, µs = 10 * time.Second, time.Microsecond
		late := 2 * s.MaxSkew // so much later leases end
		f := newInFlight(t, s, 3, lease)
		peek := func(want ratelimit.Result) {
			t.Helper()
			before := s.Look(t, inFlightKey)
			require.Equal(t, want, must(t)(f.Peek(ctx, "k")))
			require.Equal(t, before, s.Look(t, inFlightKey))
		}
		peek(ratelimit.Result{Allowed: true, Limit: 3, Window: lease, Remaining: 3})

		first, r := take(t, f, 1)
		require.Equal(t, ratelimit.Result{Allowed: true, Limit: 3, Window: lease, Remaining: 2, ResetAfter: lease + late}, r)
		s.Advance(time.Second)
		second, r := take(t, f, 2)
		require.Equal(t, ratelimit.Result{Allowed: true, Limit: 3, Window: lease, ResetAfter: lease + late}, r)
		s.Advance(time.Second)

		// A denial says when enough leases have ended, and writes nothing.
		before := s.Look(t, inFlightKey)
		_, r = take(t, f, 1)
		require.Equal(t, ratelimit.Result{Limit: 3, Window: lease, RetryAfter: 8*time.Second + late, ResetAfter: 9*time.Second + late}, r)
		peek(r)
		_, r = take(t, f, 2)
		require.Equal(t, 9*time.Second+late, r.RetryAfter)
		require.Equal(t, before, s.Look(t, inFlightKey))

		// Both sides of the instant.
		s.Advance(8*time.Second + late - µs)
		_, r = take(t, f, 1)
		require.Equal(t, ratelimit.Result{Limit: 3, Window: lease, RetryAfter: µs, ResetAfter: time.Second + µs}, r)
		s.Advance(µs)
		peek(ratelimit.Result{Allowed: true, Limit: 3, Window: lease, Remaining: 1, ResetAfter: time.Second})

		// A lease that has ended is the hold's still, for as long as nobody needs its place.
		require.NoError(t, first.Extend(ctx))
		peek(ratelimit.Result{Limit: 3, Window: lease, RetryAfter: time.Second, ResetAfter: lease + late})
		s.Advance(time.Second)
		third, r := take(t, f, 2)
		require.Equal(t, ratelimit.Result{Allowed: true, Limit: 3, Window: lease, ResetAfter: lease + late}, r)
		require.ErrorIs(t, second.Extend(ctx), ratelimit.ErrLeaseLost)
		require.ErrorContains(t, second.Extend(ctx), `ratelimit: in-flight limiter "default", key "k": ratelimit: the lease is lost`)
		require.Zero(t, second.Left())
		require.NoError(t, second.Release(ctx), "what is lost")

		// A hold that is released twice gives back its own permits only.
		require.NoError(t, third.Release(ctx))
		peek(ratelimit.Result{Allowed: true, Limit: 3, Window: lease, Remaining: 2, ResetAfter: 9*time.Second + late})
		require.NoError(t, third.Release(ctx))
		require.NoError(t, ratelimit.HoldOf(f, "k", third.ID(), 2).Release(ctx))
		peek(ratelimit.Result{Allowed: true, Limit: 3, Window: lease, Remaining: 2, ResetAfter: 9*time.Second + late})
		require.NoError(t, first.Release(ctx))
		require.Zero(t, s.Admin.Exists(ctx, inFlightKey).Val())

		_, _ = take(t, f, 3)
		require.NoError(t, f.Reset(ctx, "k"))
		peek(ratelimit.Result{Allowed: true, Limit: 3, Window: lease, Remaining: 3})
	})
}

func TestTheSameHoldCountsOnce(t *testing.T) {
	inFlightStages(t, func(t *testing.T, s *limitertest.Stage) {
		f := newInFlight(t, s, 2, time.Second)
		hold := ratelimit.HoldOf(f, "k", "ID", 2)
		ends := (time.Second + 2*s.MaxSkew).Microseconds()
		for range 2 {
			words, err := hold.Take(ctx)
			require.NoError(t, err)
			require.Equal(t, []int64{1, 2, 0, ends}, words)
		}
		require.EqualValues(t, 2, s.Admin.ZCard(ctx, inFlightKey).Val())
		words, err := ratelimit.HoldOf(f, "k", "OTHER", 1).Take(ctx)
		require.NoError(t, err)
		require.Equal(t, []int64{0, 2, ends, ends}, words)
	})
}

// Every key expires a moment after its last lease, and one that has lost its TTL gets it
// from the next call, a denied one too.
func TestKeysOfInFlightExpire(t *testing.T) {
	inFlightStages(t, func(t *testing.T, s *limitertest.Stage) {
		f := newInFlight(t, s, 1, 10*time.Second)
		ttl := func(from, to time.Duration) {
			t.Helper()
			got := s.Admin.PTTL(ctx, inFlightKey).Val()
			require.GreaterOrEqual(t, got, from+s.MaxSkew)
			require.LessOrEqual(t, got, to+s.MaxSkew+951*time.Millisecond)
		}
		hold, _ := take(t, f, 1)
		ttl(10*time.Second, 10*time.Second)
		require.NoError(t, s.Admin.Persist(ctx, inFlightKey).Err())
		require.NoError(t, hold.Extend(ctx))
		ttl(10*time.Second, 10*time.Second+s.MaxSkew)
		require.NoError(t, s.Admin.Persist(ctx, inFlightKey).Err())
		s.Advance(4 * time.Second)
		_, r := take(t, f, 1)
		require.False(t, r.Allowed)
		ttl(6*time.Second, 6*time.Second+s.MaxSkew)

		// A key that has lost its TTL gets one that is enough for all leases.
		long, short := newInFlight(t, s, 5, time.Minute), newInFlight(t, s, 5, 20*time.Second)
		longest, _ := take(t, long, 1)
		require.NoError(t, s.Admin.Persist(ctx, inFlightKey).Err())
		other, _ := take(t, short, 1)
		ttl(time.Minute, time.Minute+s.MaxSkew)
		require.NoError(t, s.Admin.Persist(ctx, inFlightKey).Err())
		require.NoError(t, other.Extend(ctx))
		ttl(time.Minute, time.Minute+s.MaxSkew)

		// When the longest lease is released, the key ends with the last one of the others.
		require.NoError(t, longest.Release(ctx))
		_, _ = take(t, short, 1)
		ttl(20*time.Second, 20*time.Second+s.MaxSkew)
		longest, _ = take(t, long, 1)
		require.NoError(t, other.Extend(ctx))
		ttl(time.Minute, time.Minute+s.MaxSkew)
		require.NoError(t, longest.Release(ctx))
		require.NoError(t, other.Extend(ctx))
		ttl(20*time.Second, 20*time.Second+s.MaxSkew)
	})
}

// Limiters of other limits and leases share a key, while a change is rolled out.
func TestLimitersOfOtherRulesShareHolds(t *testing.T) {
	inFlightStages(t, func(t *testing.T, s *limitertest.Stage) {
		late := 2 * s.MaxSkew
		const brief, lease = 20 * time.Second, time.Minute
		large, small := newInFlight(t, s, 4, lease), newInFlight(t, s, 2, brief)
		short, r := take(t, small, 2)
		require.Equal(t, ratelimit.Result{Allowed: true, Limit: 2, Window: brief, ResetAfter: brief + late}, r)
		long, r := take(t, large, 1)
		require.Equal(t, ratelimit.Result{Allowed: true, Limit: 4, Window: lease, Remaining: 1, ResetAfter: lease + late}, r)
		_, r = take(t, small, 1)
		require.Equal(t, ratelimit.Result{Limit: 2, Window: brief, RetryAfter: brief + late, ResetAfter: lease + late}, r)
		require.GreaterOrEqual(t, s.Admin.PTTL(ctx, inFlightKey).Val(), lease)
		s.Advance(brief + late)
		again, r := take(t, small, 1)
		require.Equal(t, ratelimit.Result{Allowed: true, Limit: 2, Window: brief, ResetAfter: lease - brief}, r)
		require.ErrorIs(t, short.Extend(ctx), ratelimit.ErrLeaseLost)
		require.NoError(t, again.Extend(ctx))
		require.GreaterOrEqual(t, s.Admin.PTTL(ctx, inFlightKey).Val(), lease-brief-s.MaxSkew, "nobody shortens what a long lease needs")
		require.NoError(t, long.Extend(ctx))
	})
}

// The server's clock steps back by an hour: leases end no later than they would from now.
func TestInFlightAfterTheServersClockStepsBack(t *testing.T) {
	for name, on := range map[string]func(testing.TB) *limitertest.Stage{"miniredis": limitertest.OnMiniredis, "Redis": limitertest.OnHeldRedis} {
		t.Run(name, func(t *testing.T) {
			s := on(t)
			const lease = 10 * time.Second
			f := newInFlight(t, s, 2, lease)
			first, _ := take(t, f, 1)
			_, _ = take(t, f, 1)
			s.Advance(-time.Hour)
			require.NoError(t, s.Admin.Persist(ctx, inFlightKey).Err())
			_, r := take(t, f, 1)
			require.Equal(t, ratelimit.Result{Limit: 2, Window: lease, RetryAfter: lease, ResetAfter: lease}, r)
			require.Positive(t, s.Admin.PTTL(ctx, inFlightKey).Val())
			s.Advance(lease - time.Microsecond)
			_, r = take(t, f, 1)
			require.Equal(t, ratelimit.Result{Limit: 2, Window: lease, RetryAfter: time.Microsecond, ResetAfter: time.Microsecond}, r)
			require.NoError(t, first.Extend(ctx))
			s.Advance(time.Microsecond)
			_, r = take(t, f, 1)
			require.Equal(t, ratelimit.Result{Allowed: true, Limit: 2, Window: lease, ResetAfter: lease}, r)
		})
	}
}

// Processes with and without WithClock share a key. The clocks of the callers may be
// MaxSkew from the server's, in either direction.
func TestInFlightByTheServersAndACallersClock(t *testing.T) {
	const lease, skew, µs = 10 * time.Second, 2 * time.Second, time.Microsecond
	for name, on := range map[string]func(testing.TB) *limitertest.Stage{"miniredis": limitertest.OnMiniredis, "Redis": limitertest.OnHeldRedis} {
		t.Run(name, func(t *testing.T) {
			s := on(t)
			by := s.Now
			f := newInFlight(t, s, 1, lease)
			caller := newInFlight(t, s, 1, lease, ratelimit.WithClock(func() time.Time { return by }), ratelimit.WithMaxSkew(skew))

			// A caller that is ahead ends no lease of the server's clock early.
			_, _ = take(t, f, 1)
			by = s.Now.Add(lease + skew - µs)
			_, r := take(t, caller, 1)
			require.Equal(t, ratelimit.Result{Limit: 1, Window: lease, RetryAfter: µs, ResetAfter: µs}, r)
			by = by.Add(µs)
			_, r = take(t, caller, 1)
			require.True(t, r.Allowed)

			// Nor does a server's clock one of a caller that is behind.
			s.Wipe(t)
			by = s.Now.Add(-skew)
			_, _ = take(t, caller, 1)
			s.Advance(lease - µs)
			_, r = take(t, f, 1)
			require.Equal(t, ratelimit.Result{Limit: 1, Window: lease, RetryAfter: µs, ResetAfter: µs}, r)
			s.Advance(µs)
			_, r = take(t, f, 1)
			require.True(t, r.Allowed)

			// A caller that is ahead is no server's clock that stepped back.
			s.Wipe(t)
			by = s.Now.Add(skew)
			_, _ = take(t, caller, 1)
			_, r = take(t, f, 1)
			require.Equal(t, lease+2*skew, r.RetryAfter)
		})
	}
}

// An extension that was sent earlier and arrives later does not take away what a later one
// has promised.
func TestALateExtensionShortensNoLease(t *testing.T) {
	s := limitertest.OnRedis(t)
	f := newInFlight(t, s, 1, 10*time.Second)
	hold, _ := take(t, f, 1)
	s.Advance(5 * time.Second)
	require.NoError(t, hold.Extend(ctx))
	s.Advance(-2 * time.Second)
	require.NoError(t, hold.Extend(ctx))
	require.EqualValues(t, limitertest.Start.Add(16*time.Second).UnixMicro(), s.Admin.ZScore(ctx, inFlightKey, "1/"+hold.ID()+"/10000000@1000").Val())
}

func TestInFlightReportsWhatIsNoState(t *testing.T) {
	inFlightStages(t, func(t *testing.T, s *limitertest.Stage) {
		f := newInFlight(t, s, 2, time.Minute)
		hold, _ := take(t, f, 1)
		for name, set := range map[string]func() error{
			"string":   func() error { return s.Admin.Set(ctx, inFlightKey, "2", 0).Err() },
			"list":     func() error { return s.Admin.RPush(ctx, inFlightKey, "2").Err() },
			"board":    func() error { return s.Admin.ZAdd(ctx, inFlightKey, redis.Z{Score: 1, Member: "alice"}).Err() },
			"infinite": func() error { return s.Admin.ZAdd(ctx, inFlightKey, redis.Z{Score: 9e300, Member: "1/A/x"}).Err() },
		} {
			require.NoError(t, s.Admin.Del(ctx, inFlightKey).Err())
			require.NoError(t, set())
			before := s.Look(t, inFlightKey)
			corrupt := func(err error) {
				t.Helper()
				require.ErrorIs(t, err, ratelimit.ErrCorruptState, name)
				require.ErrorContains(t, err, `ratelimit: in-flight limiter "default", key "k": `)
			}
			_, r, err := f.TryAcquire(ctx, "k")
			corrupt(err)
			require.Zero(t, r)
			_, err = f.Peek(ctx, "k")
			corrupt(err)
			if name == "string" || name == "list" {
				corrupt(hold.Extend(ctx))
				corrupt(hold.Release(ctx))
				hold = ratelimit.HoldOf(f, "k", hold.ID(), 1)
			}
			require.Equal(t, before, s.Look(t, inFlightKey), name)
		}
		require.NoError(t, f.Reset(ctx, "k"))
		_, r := take(t, f, 2)
		require.True(t, r.Allowed)
	})
}

func TestInFlightRefusesWhatCannotWork(t *testing.T) {
	c := limitertest.Offline(t)
	for _, test := range []struct {
		limit int
		lease time.Duration
		opts  []ratelimit.Option
		says  string
	}{
		{0, time.Second, nil, "the limit is 0; it must be between 1 and 100000"},
		{100_001, time.Second, nil, "the limit is 100001; it must be between 1 and 100000"},
		{1, 999 * time.Microsecond, nil, "the lease is 999µs; it must be at least 1ms"},
		{1, time.Second + 1, nil, "the lease is 1.000000001s; it must be a whole number of microseconds"},
		{1, time.Second, []ratelimit.Option{nil}, "option 1 is nil"},
		{1, time.Second, []ratelimit.Option{ratelimit.WithName("inflight")}, `WithName: "inflight" holds "inflight", the id of an algorithm`},
		{5, time.Second, []ratelimit.Option{ratelimit.WithHeadroom(2)}, "NewInFlight: WithHeadroom is not one of its options"},
		{1, time.Second, []ratelimit.Option{ratelimit.WithMaxSkew(time.Second)}, "WithMaxSkew: the server's clock decides"},
	} {
		f, err := ratelimit.NewInFlight(c, test.limit, test.lease, test.opts...)
		require.Nil(t, f)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
		require.ErrorContains(t, err, test.says)
	}
	_, err := ratelimit.NewInFlight((*redis.Client)(nil), 1, time.Second)
	require.ErrorContains(t, err, "the client is nil")

	f := ratelimit.Must(ratelimit.NewInFlight(c, 5, time.Second))
	large := ratelimit.Must(ratelimit.NewInFlight(c, 100_000, time.Second))
	acquire := func(f *ratelimit.InFlight, key string, n int) error {
		hold, r, err := f.TryAcquireN(ctx, key, n)
		require.Nil(t, hold)
		require.Zero(t, r)
		return err
	}
	require.ErrorIs(t, acquire(f, "", 1), ratelimit.ErrInvalidKey)
	require.ErrorIs(t, acquire(f, strings.Repeat("k", 4097), 1), ratelimit.ErrInvalidKey)
	require.ErrorIs(t, acquire(f, "k", 0), ratelimit.ErrInvalidPermits)
	require.ErrorIs(t, acquire(f, "k", 6), ratelimit.ErrExceedsLimit)
	require.ErrorIs(t, acquire(large, "k", 1001), ratelimit.ErrExceedsLimit)
	require.ErrorIs(t, f.Reset(ctx, ""), ratelimit.ErrInvalidKey)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	_, err = f.Peek(ended, "k")
	require.ErrorIs(t, err, context.Canceled)
	late := ratelimit.Must(ratelimit.NewInFlight(c, 1, time.Second, ratelimit.WithClock(func() time.Time { return time.Time{} })))
	require.ErrorIs(t, acquire(late, "k", 1), ratelimit.ErrInvalidConfig)

	unmade := new(ratelimit.InFlight)
	require.ErrorIs(t, acquire(unmade, "k", 1), ratelimit.ErrInvalidConfig)
	_, err = unmade.Peek(ctx, "k")
	require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
	require.ErrorIs(t, unmade.Reset(ctx, "k"), ratelimit.ErrInvalidConfig)
	require.ErrorIs(t, ratelimit.Preload(ctx, ratelimit.ClaimHold(unmade, "k", 1)), ratelimit.ErrInvalidConfig)
	require.ErrorIs(t, unmade.Do(ctx, "k", func(context.Context) error { return nil }), ratelimit.ErrInvalidConfig)
	for _, none := range []*ratelimit.Hold{nil, {}} {
		require.NoError(t, none.Release(ctx))
		require.ErrorIs(t, none.Extend(ctx), ratelimit.ErrLeaseLost)
		require.Zero(t, none.Left())
	}
}

// A denial can become false at any moment, so that a DenyCache around an InFlight must not
// compile.
func TestInFlightIsNoLimiter(t *testing.T) {
	_, ok := any((*ratelimit.InFlight)(nil)).(ratelimit.Limiter)
	require.False(t, ok)
}

// Random calls of several limiters for one key agree with the model, to the microsecond.
func TestInFlightDecidesAsItsModel(t *testing.T) {
	for name, on := range map[string]func(testing.TB) *limitertest.Stage{
		"miniredis": limitertest.OnMiniredis, "Redis": limitertest.OnHeldRedis,
		"Redis, caller's clock": limitertest.OnRedis,
	} {
		t.Run(name, func(t *testing.T) {
			rng := model.Seeded(limitertest.Seed(t))
			s := on(t)
			for range limitertest.Rounds(50, 4) {
				s.Wipe(t)
				var key model.InFlight
				limits, spans := []int{2, 5, 9}, []time.Duration{30 * time.Second, 31 * time.Second, 50 * time.Second}
				var limiters []*ratelimit.InFlight
				var calls []model.Call
				for i := range limits {
					limiters = append(limiters, newInFlight(t, s, limits[i], spans[i]))
					calls = append(calls, model.Call{Limit: limits[i], Lease: spans[i].Microseconds(), Spare: s.MaxSkew.Microseconds(), ByCaller: s.MaxSkew > 0})
				}
				type known struct {
					by, n int
					*ratelimit.Hold
				}
				var holds []known
				for range 100 {
					if s.MaxSkew == 0 || rng.IntN(3) == 0 { // Redis's own clock goes on, and ends keys
						s.Advance(time.Duration(rng.IntN(20_000_000)) * time.Microsecond)
					}
					i := rng.IntN(len(limiters))
					if s.MaxSkew > 0 {
						i = len(limiters) - 1
					}
					c := calls[i]
					c.Server, c.Now = s.Now.UnixMicro(), s.Now.UnixMicro()
					if s.MaxSkew > 0 {
						c.Server = limitertest.Start.UnixMicro()
					}
					switch op := rng.IntN(8); {
					case op < 4 || len(holds) == 0:
						n := 1 + rng.IntN(limits[i])
						hold, r, err := limiters[i].TryAcquireN(ctx, "k", n)
						require.NoError(t, err)
						id := "denied"
						if hold != nil {
							id = hold.ID()
							holds = append(holds, known{i, n, hold})
						}
						require.Equal(t, resultOf(c, spans[i], key.Acquire(c, id, n)), r)
					case op == 4:
						require.Equal(t, resultOf(c, spans[i], key.Peek(c)), must(t)(limiters[i].Peek(ctx, "k")))
					default:
						j := rng.IntN(len(holds))
						h := holds[j]
						if op == 5 {
							key.Release(c.Server, h.ID())
							require.NoError(t, h.Release(ctx))
							holds = append(holds[:j], holds[j+1:]...)
							continue
						}
						own := calls[h.by]
						own.Server, own.Now = c.Server, c.Now
						want, err := key.Extend(own, h.ID(), h.n), h.Extend(ctx)
						require.Equal(t, !want, errors.Is(err, ratelimit.ErrLeaseLost), "%v", err)
					}
				}
			}
		})
	}
}

func resultOf(c model.Call, lease time.Duration, h model.Held) ratelimit.Result {
	micros := func(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
	return ratelimit.Result{
		Allowed: h.Allowed, Limit: c.Limit, Window: lease, Remaining: max(c.Limit-h.Used, 0),
		RetryAfter: micros(h.Wait), ResetAfter: micros(h.Reset),
	}
}

// Acquire, extend, look and release on the client kinds that route a key.
func TestInFlightOnACluster(t *testing.T) {
	cluster := redistest.StartCluster(t)
	f, err := ratelimit.NewInFlight(cluster.Client(t), 2, time.Minute)
	require.NoError(t, err)
	require.NoError(t, ratelimit.Preload(ctx, ratelimit.ClaimHold(f, "k", 1)))
	for _, key := range []string{"a", "b", "{user:42}"} { // of several masters
		hold, r, err := f.TryAcquireN(ctx, key, 2)
		require.NoError(t, err)
		require.True(t, r.Allowed)
		require.NoError(t, hold.Extend(ctx))
		require.Zero(t, must(t)(f.Peek(ctx, key)).Remaining)
		require.NoError(t, hold.Release(ctx))
		require.Equal(t, 2, must(t)(f.Peek(ctx, key)).Remaining)
		require.NoError(t, f.Reset(ctx, key))
	}
}

// TestAStepOfTheClockMakesNoLeaseLonger: of leases of two lengths, the one that ends last tells
// nothing about the others.
func TestAStepOfTheClockMakesNoLeaseLonger(t *testing.T) {
	for name, on := range map[string]func(testing.TB) *limitertest.Stage{"miniredis": limitertest.OnMiniredis, "Redis": limitertest.OnHeldRedis} {
		for about, before := range map[string]time.Duration{"the long lease is new": 0, "the long lease is old": 20 * time.Minute} {
			t.Run(name+", "+about, func(t *testing.T) {
				s := on(t)
				long, short := newInFlight(t, s, 2, time.Hour), newInFlight(t, s, 2, time.Second)
				_, _ = take(t, long, 1)
				s.Advance(before)
				_, _ = take(t, short, 1)
				s.Advance(-10 * time.Minute)
				reset := min(time.Hour, 70*time.Minute-before)
				for _, f := range []*ratelimit.InFlight{short, long} {
					_, r := take(t, f, 1)
					require.Equal(t, ratelimit.Result{Limit: 2, Window: r.Window, RetryAfter: time.Second, ResetAfter: reset}, r)
					_, r = take(t, f, 2)
					require.Equal(t, ratelimit.Result{Limit: 2, Window: r.Window, RetryAfter: reset, ResetAfter: reset}, r)
				}
				s.Advance(time.Second - time.Microsecond)
				_, r := take(t, long, 1)
				require.Equal(t, time.Microsecond, r.RetryAfter)
				s.Advance(time.Microsecond)
				_, r = take(t, long, 1)
				require.Equal(t, ratelimit.Result{Allowed: true, Limit: 2, Window: time.Hour, ResetAfter: time.Hour}, r)
			})
		}
	}
}

// lateHolds is a client whose command for a hold times out, as go-redis's does at the deadline of the context, and is executed
// after the next release, which came on another connection.
type lateHolds struct {
	*redis.Client
	late     bool
	pending  []any
	released chan int64 // how many permits each release found
}

func (c *lateHolds) Process(ctx context.Context, cmd redis.Cmder) error {
	if c.late && cmd.Name() == "evalsha" {
		c.late, c.pending = false, append([]any(nil), cmd.Args()...)
		cmd.SetErr(os.ErrDeadlineExceeded)
		return cmd.Err()
	}
	err := c.Client.Process(ctx, cmd)
	if cmd.Name() == "zrem" {
		removed := cmd.(*redis.IntCmd).Val()
		if c.pending != nil {
			c.Client.Do(context.Background(), c.pending...)
			c.pending = nil
		}
		c.released <- removed
	}
	return err
}

func TestAHoldThatIsExecutedAfterItsReleaseIsReleased(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	client := &lateHolds{Client: s.Client.(*redis.Client), released: make(chan int64, 10)}
	f := ratelimit.Must(ratelimit.NewInFlight(client, 3, time.Minute))
	hold, _, err := f.TryAcquire(ctx, "k") // the script is there now
	require.NoError(t, err)
	require.NoError(t, hold.Release(ctx))
	found := func() int64 {
		select {
		case n := <-client.released:
			return n
		case <-time.After(10 * time.Second):
			t.Fatal("there was no further release")
			return 0
		}
	}
	require.EqualValues(t, 1, found())
	client.late = true
	_, _, err = f.TryAcquireN(ctx, "k", 2)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.EqualValues(t, 0, found())
	require.EqualValues(t, 2, found())
	require.Equal(t, 3, must(t)(f.Peek(ctx, "k")).Remaining)
}

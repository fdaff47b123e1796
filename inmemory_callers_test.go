package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// inMemory is the limiters in memory of a service, and what its callers have taken.
type inMemory struct {
	users, addresses *ratelimit.LocalTokenBucket
	plans            *ratelimit.Choice // of users, by key
	both             *ratelimit.All
	running          *ratelimit.LocalInFlight
	keys             []string

	taken, addressed, held map[string]*atomic.Int64 // of users, of addresses, and of running at this moment
}

// TestLimitersInMemoryByManyCallers: 64 callers make calls of all kinds to few keys. While the clock stands still, each
// key lacks exactly what its callers have taken. While it goes on, they take no more than the rule; of what runs, no
// more than the limit at any moment.
func TestLimitersInMemoryByManyCallers(t *testing.T) {
	const callers, burst, running = 64, 400, 20
	for name, step := range map[string]int64{"the clock stands still": 0, "the clock goes on": 50} {
		t.Run(name, func(t *testing.T) {
			for round := range limitertest.Rounds(200, 3) {
				seed := limitertest.Seed(t) + uint64(round)
				var passed atomic.Int64
				clock := ratelimit.WithClock(func() time.Time { return limitertest.Start.Add(time.Duration(passed.Load()) * time.Microsecond) })
				m := &inMemory{keys: []string{"a", "b", "c"}}
				rate := ratelimit.PerSecond(1000)
				m.users = ratelimit.Must(ratelimit.NewLocalTokenBucket(rate, burst, clock, ratelimit.WithName("users")))
				m.addresses = ratelimit.Must(ratelimit.NewLocalTokenBucket(rate, burst, clock, ratelimit.WithName("addresses")))
				m.running = ratelimit.Must(ratelimit.NewLocalInFlight(running))
				m.both = ratelimit.Must(ratelimit.NewAll(m.addresses, m.users))
				m.plans = ratelimit.Must(ratelimit.NewChoice(func(_ context.Context, key string) (ratelimit.Limiter, error) {
					return m.users.With(rate, burst/(1+len(key)%2))
				}))
				ledger := func() map[string]*atomic.Int64 {
					all := map[string]*atomic.Int64{}
					for _, key := range m.keys {
						all[key] = new(atomic.Int64)
					}
					return all
				}
				m.taken, m.addressed, m.held = ledger(), ledger(), ledger()
				var wg sync.WaitGroup
				for caller := range callers {
					rng := rand.New(rand.NewPCG(seed, uint64(caller)))
					wg.Go(func() {
						for range 60 {
							if err := m.call(rng, running); err != nil {
								t.Error(err)
								return
							}
							passed.Add(rng.Int64N(step + 1))
						}
					})
				}
				wg.Wait()
				for _, key := range m.keys {
					for l, taken := range map[*ratelimit.LocalTokenBucket]int64{m.users: m.taken[key].Load(), m.addresses: m.addressed[key].Load()} {
						left := must(t)(l.Peek(ctx, key)).Remaining
						if step == 0 {
							require.EqualValues(t, max(0, burst-taken), left, "%s of %s", key, l.Name())
						} else {
							require.LessOrEqual(t, taken, burst+passed.Load()/1000, "%s of %s", key, l.Name())
						}
					}
					require.Equal(t, running, must(t)(m.running.Peek(ctx, key)).Remaining, key)
				}
			}
		})
	}
}

// call makes a random call, and counts what it takes.
func (m *inMemory) call(rng *rand.Rand, running int) error {
	key, n := m.keys[rng.IntN(len(m.keys))], 1+rng.IntN(4)
	took := func(r ratelimit.Result, n int) {
		if r.Allowed {
			m.taken[key].Add(int64(n))
		}
	}
	switch rng.IntN(10) {
	case 0:
		r, err := m.users.TryAcquireN(ctx, key, n)
		took(r, n)
		return err
	case 1:
		r, err := m.plans.TryAcquireN(ctx, key, n)
		took(r, n)
		return err
	case 2:
		taken, r, err := m.plans.TryAcquireUpTo(ctx, key, n)
		if r.Allowed != (taken > 0) {
			return fmt.Errorf("%d taken: %+v", taken, r)
		}
		m.taken[key].Add(int64(taken))
		return err
	case 3:
		ticket, r, err := m.users.Estimate(ctx, key, n)
		if took(r, n); ticket != nil {
			actual := rng.IntN(n + 1)
			m.taken[key].Add(int64(actual - n))
			err = ticket.Settle(ctx, actual)
		}
		return err
	case 4:
		reservation, err := m.users.Reserve(ctx, key, n, 0)
		if errors.Is(err, ratelimit.ErrWaitTooLong) {
			return nil
		}
		took(reservation.Result(), n)
		return err
	case 5:
		r, err := m.both.TryAcquireN(ctx, key, n)
		if took(r, n); r.Allowed {
			m.addressed[key].Add(int64(n))
		}
		return err
	case 6:
		_, err := ratelimit.Look(ctx, ratelimit.ClaimHold(m.running, key, n), ratelimit.ClaimOf(m.plans, key, n), ratelimit.ClaimOf(m.addresses, key, n))
		return err
	default:
		estimates := rng.IntN(2) == 0
		user := ratelimit.ClaimOf(m.plans, key, n)
		if estimates {
			user = user.Estimate()
		}
		claims := []ratelimit.Claim{user, ratelimit.ClaimOf(m.addresses, key, n), ratelimit.ClaimHold(m.running, key, n)}
		rng.Shuffle(len(claims), func(i, j int) { claims[i], claims[j] = claims[j], claims[i] })
		all, err := ratelimit.TryAcquireAll(ctx, claims...)
		if err != nil {
			return err
		}
		if denied := slices.ContainsFunc(all.Parts, func(p ratelimit.PartResult) bool { return !p.Result.Allowed }); denied == all.Allowed {
			return fmt.Errorf("not all or nothing: %+v", all)
		}
		if !all.Allowed {
			return nil
		}
		if now := m.held[key].Add(int64(n)); now > int64(running) {
			return fmt.Errorf("%d of %d run", now, running)
		}
		took(all.Result, n)
		m.addressed[key].Add(int64(n))
		m.held[key].Add(-int64(n))
		return all.Finish(ctx, func(ratelimit.PartResult) int {
			m.taken[key].Add(-int64(n))
			return 0
		})
	}
}

// TestAClockStepsBackWithinACall: the limits of a call are taken from at the instants at which they had their permits.
func TestAClockStepsBackWithinACall(t *testing.T) {
	var readings []time.Time
	clock := ratelimit.WithClock(func() time.Time {
		now := readings[0]
		readings = readings[1:]
		return now
	})
	still := ratelimit.WithClock(func() time.Time { return limitertest.Start })
	beside := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1), 10, still))
	l := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1), 1, clock))
	readings = []time.Time{limitertest.Start}
	require.True(t, must(t)(l.TryAcquire(ctx, "k")).Allowed)
	readings = []time.Time{limitertest.Start.Add(time.Second), limitertest.Start}
	r := acquire(t, ratelimit.ClaimOf(beside, "k", 1), ratelimit.ClaimOf(l, "k", 1))
	require.Equal(t, []bool{true, true, true}, []bool{r.Allowed, r.Parts[0].Result.Allowed, r.Parts[1].Result.Allowed})
}

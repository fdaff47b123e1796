package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
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

// eachSettling is limitertest.Each for what settles: every variant but several limiters in
// one.
func eachSettling(t *testing.T, test func(t *testing.T, s *limitertest.Stage, v limitertest.Variant, l settling)) {
	limitertest.Each(t, func(t *testing.T, s *limitertest.Stage, v limitertest.Variant, l ratelimit.Limiter) {
		own, ok := l.(settling)
		if !ok || strings.HasSuffix(v.Name, " in an All") { // which no decorator makes settle, see TestOnlyWhatSettlesSettlesThroughADecorator
			return
		}
		test(t, s, v, own)
	})
}

func TestAnEstimateIsSettledBelowIt(t *testing.T) {
	eachSettling(t, func(t *testing.T, s *limitertest.Stage, v limitertest.Variant, l settling) {
		ticket, r, err := l.Estimate(ctx, v.Of("k"), 2)
		require.NoError(t, err)
		require.Equal(t, ratelimit.Result{Allowed: true, Limit: v.Limit, Window: v.Window, Remaining: 1, ResetAfter: v.Resets[1]}, r)
		none, r, err := l.Estimate(ctx, v.Of("k"), 2)
		require.NoError(t, err)
		require.Nil(t, none, "denied")
		require.Equal(t, ratelimit.Result{Limit: v.Limit, Window: v.Window, Remaining: 1, RetryAfter: v.Retry, ResetAfter: v.Resets[1], ByShare: v.ByShare(2, 1)}, r)

		require.NoError(t, ticket.Settle(ctx, 1))
		require.Equal(t, ratelimit.Result{Allowed: true, Limit: v.Limit, Window: v.Window, Remaining: 2, ResetAfter: v.Resets[0]}, must(t)(l.Peek(ctx, v.Of("k"))))
		require.ErrorIs(t, ticket.Settle(ctx, 0), ratelimit.ErrSettled)
		require.Equal(t, 2, must(t)(l.Peek(ctx, v.Of("k"))).Remaining, "settled once")
		require.True(t, must(t)(l.TryAcquireN(ctx, v.Of("k"), 2)).Allowed)
		require.Equal(t, ratelimit.Result{Limit: v.Limit, Window: v.Window, RetryAfter: v.Retry, ResetAfter: v.Resets[2], ByShare: v.ByShare(1, 0)}, must(t)(l.TryAcquire(ctx, v.Of("k"))))
	})
}

// TestGivingBackMovesNoClockBack: a caller whose clock is ahead begins what comes after the
// window that another one has used up, and gives all of it back, again and again. The other
// one gets what the rule allows up to the clock that is ahead, once.
func TestGivingBackMovesNoClockBack(t *testing.T) {
	raceflag.Skip(t)
	limitertest.Everywhere(t, func(t *testing.T, s *limitertest.Stage) {
		calendar := func(c ratelimit.Client, limit int, _ time.Duration, opts ...ratelimit.Option) (ratelimit.Limiter, error) {
			return ratelimit.NewCalendarWindow(c, limit, ratelimit.Daily(time.UTC), opts...)
		}
		for _, k := range append(limitertest.Kinds(), limitertest.Kind{Name: "CalendarWindow", Build: calendar}) {
			for skew, most := range map[time.Duration]int{6 * time.Minute: 11, 10 * time.Hour: 20} {
				s.Wipe(t)
				now := time.Date(2026, 11, 18, 20, 0, 0, 0, time.UTC)
				at := func(ahead time.Duration) settling {
					l, err := k.Build(s.Client, 10, time.Hour, ratelimit.WithMaxSkew(skew), ratelimit.WithClock(func() time.Time { return now.Add(ahead) }))
					require.NoError(t, err)
					return l.(settling)
				}
				ahead, behind := at(skew), at(0)
				got := 0
				for round := range 8 {
					for must(t)(behind.TryAcquire(ctx, k.Of("k"))).Allowed {
						got++
					}
					var tickets [2]*ratelimit.Ticket
					for i := range tickets {
						var err error
						tickets[i], _, err = ahead.Estimate(ctx, k.Of("k"), 1+i)
						require.NoError(t, err)
					}
					for i := range tickets {
						if ticket := tickets[(i+round)%2]; ticket != nil { // the later one first, every other time
							require.NoError(t, ticket.Settle(ctx, 0))
						}
					}
				}
				require.LessOrEqual(t, got, most, "%s, clocks %v apart", k.Name, skew)
				require.GreaterOrEqual(t, got, most/10*10, "%s, clocks %v apart", k.Name, skew)
				denied := must(t)(behind.TryAcquire(ctx, k.Of("k")))
				require.False(t, denied.Allowed)
				now = now.Add(denied.RetryAfter)
				require.True(t, must(t)(behind.TryAcquire(ctx, k.Of("k"))).Allowed, "%s, clocks %v apart: what was given back counts for nothing", k.Name, skew)
			}
		}
	})
}

func TestAnEstimateThatIsGivenBackIsAsIfNeverTaken(t *testing.T) {
	eachSettling(t, func(t *testing.T, s *limitertest.Stage, v limitertest.Variant, l settling) {
		unused := must(t)(l.Peek(ctx, v.Of("k")))
		ticket, _, err := l.Estimate(ctx, v.Of("k"), 3)
		require.NoError(t, err)
		require.NoError(t, ticket.Settle(ctx, 0))
		require.Equal(t, unused, must(t)(l.Peek(ctx, v.Of("k"))))
		// A full bucket stays for as long as the skew, so that no clock goes back in time; by
		// callers' clocks, so does everything else.
		require.LessOrEqual(t, s.Admin.PTTL(ctx, v.Key).Val(), max(901*time.Millisecond, v.Lives+time.Second)+s.MaxSkew)
		if !strings.Contains(v.Name, "Bucket") && s.MaxSkew == 0 {
			require.Zero(t, s.Admin.Exists(ctx, v.Key).Val())
		}
		require.Equal(t, 2, must(t)(l.TryAcquire(ctx, v.Of("k"))).Remaining)
	})
}

// TestWhatIsGivenBackInAnyOrderLeavesNoKey: when two estimates have been given back, the later one
// first or last, the key stays for no longer than the callers' clocks may be apart.
func TestWhatIsGivenBackInAnyOrderLeavesNoKey(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	for _, k := range limitertest.Kinds() {
		if k.Tenants { // which count for three epochs, with permits or without
			continue
		}
		for _, order := range [][2]int{{0, 1}, {1, 0}} {
			s.Wipe(t)
			l, err := k.Build(s.Client, 10, time.Hour, ratelimit.WithClock(func() time.Time { return s.Now }))
			require.NoError(t, err)
			var tickets [2]*ratelimit.Ticket
			for i := range tickets {
				s.Advance(10 * time.Minute)
				tickets[i], _, err = l.(settling).Estimate(ctx, k.Of("k"), 2)
				require.NoError(t, err)
			}
			for _, i := range order {
				require.NoError(t, tickets[i].Settle(ctx, 0))
			}
			for _, key := range s.Admin.Keys(ctx, "*").Val() {
				require.LessOrEqual(t, s.Admin.PTTL(ctx, key).Val(), 1902*time.Millisecond, "%s, %v", k.Name, order)
			}
		}
	}
}

// TestAReturnAfterTheClockSteppedBack: the server's clock steps back into the slot of an
// earlier entry, to which the later ones move; a ticket's permits are found among them.
func TestAReturnAfterTheClockSteppedBack(t *testing.T) {
	const window = 2 * time.Minute
	s := limitertest.OnMiniredis(t)
	for name, l := range map[string]settling{
		"log":  ratelimit.Must(ratelimit.NewSlidingLog(s.Client, []ratelimit.Rule{{Limit: 100, Window: window}}, ratelimit.WithResolution(window/10))),
		"Hash": ratelimit.Must(ratelimit.NewSlidingWindow(s.Client, 100, window, ratelimit.WithSubWindows(10), ratelimit.WithStorage(ratelimit.StorageHash))),
		"List": ratelimit.Must(ratelimit.NewSlidingWindow(s.Client, 100, window, ratelimit.WithSubWindows(10))),
	} {
		s.Wipe(t)
		must(t)(l.TryAcquire(ctx, "k"))
		s.Advance(window / 10)
		must(t)(l.TryAcquire(ctx, "k"))
		s.Advance(-window / 10)
		ticket, r, err := l.Estimate(ctx, "k", 98)
		require.NoError(t, err)
		require.True(t, r.Allowed)
		require.NoError(t, ticket.Settle(ctx, 25))
		require.Equal(t, 73, must(t)(l.Peek(ctx, "k")).Remaining, name)
	}
}

func TestAnEstimateIsSettledAboveIt(t *testing.T) {
	eachSettling(t, func(t *testing.T, s *limitertest.Stage, v limitertest.Variant, l settling) {
		ticket, _, err := l.Estimate(ctx, v.Of("k"), 3)
		require.NoError(t, err)
		require.NoError(t, ticket.Settle(ctx, 10), "more than three times the limit")
		r := must(t)(l.TryAcquire(ctx, v.Of("k")))
		require.False(t, r.Allowed)
		require.Zero(t, r.Remaining)
		require.Equal(t, r.RetryAfter > time.Second, strings.Contains(v.Name, "Bucket") ||
			strings.Contains(v.Name, "Window") && !strings.Contains(v.Name, "ZSet") && !strings.HasPrefix(v.Name, "Fixed") && v.Name != "CalendarWindow" ||
			strings.Contains(v.Name, "resolution"), "%v", r.RetryAfter)

		left := s.Admin.PTTL(ctx, v.Key).Val() // by the server's clock, which may run while the test's stands still
		needed := r.ResetAfter
		require.GreaterOrEqual(t, left, needed-time.Second/2, "the state outlives the debt")
		require.LessOrEqual(t, left, max(needed, v.Lives+needed-v.Resets[2])+time.Second+s.MaxSkew, "and not by more than a second")

		s.Advance(r.RetryAfter - v.Grain)
		require.False(t, must(t)(l.TryAcquire(ctx, v.Of("k"))).Allowed, "the debt is not repaid yet")
		s.Advance(v.Grain)
		require.True(t, must(t)(l.TryAcquire(ctx, v.Of("k"))).Allowed)
	})
}

func TestAChargeIsTakenWhateverIsLeft(t *testing.T) {
	eachSettling(t, func(t *testing.T, s *limitertest.Stage, v limitertest.Variant, l settling) {
		charge := l.Charge
		require.Equal(t, ratelimit.Result{Allowed: true, Limit: v.Limit, Window: v.Window, Remaining: 1, ResetAfter: v.Resets[1]}, must(t)(charge(ctx, v.Of("k"), 2)))
		require.Equal(t, ratelimit.Result{Allowed: true, Limit: v.Limit, Window: v.Window, ResetAfter: v.Resets[2]}, must(t)(charge(ctx, v.Of("k"), 1)))
		r := must(t)(charge(ctx, v.Of("k"), 6))
		switch v.Name {
		case "TokenBucket", "LeakyBucket", "TokenBucket stepped", "TokenBucket with headroom", "FairTokenBucket", "FairTokenBucket of weight 2":
			require.Equal(t, ratelimit.Result{Allowed: true, Limit: v.Limit, Window: v.Window, ResetAfter: 3 * time.Second}, r)
			r = must(t)(l.TryAcquireN(ctx, v.Of("k"), 3))
			require.Equal(t, ratelimit.Result{Limit: v.Limit, Window: v.Window, RetryAfter: 3 * time.Second, ResetAfter: 3 * time.Second}, r)
		default:
			require.Equal(t, ratelimit.Result{Allowed: true, Limit: v.Limit, Window: v.Window, ResetAfter: v.Resets[2]}, r)
			r = must(t)(l.TryAcquireN(ctx, v.Of("k"), 3))
			require.Equal(t, ratelimit.Result{Limit: v.Limit, Window: v.Window, RetryAfter: v.Resets[2], ResetAfter: v.Resets[2]}, r)
		}
		s.Advance(r.RetryAfter - v.Grain)
		require.False(t, must(t)(l.TryAcquireN(ctx, v.Of("k"), 3)).Allowed)
		s.Advance(v.Grain)
		require.True(t, must(t)(l.TryAcquireN(ctx, v.Of("k"), 3)).Allowed)
	})
}

func TestMistakesOfSettlingAreErrorsWithoutAskingRedis(t *testing.T) {
	for _, v := range limitertest.Variants() {
		t.Run(v.Name, func(t *testing.T) {
			built, err := v.Build(limitertest.Offline(t))
			require.NoError(t, err)
			l, ok := built.(settling)
			if !ok {
				t.Skip("several limiters do not settle")
			}
			for _, n := range []int{0, -1} {
				_, _, err = l.Estimate(ctx, v.Of("k"), n)
				require.ErrorIs(t, err, ratelimit.ErrInvalidPermits)
				_, err = l.Charge(ctx, v.Of("k"), n)
				require.ErrorIs(t, err, ratelimit.ErrInvalidPermits)
				_, _, err = l.TryAcquireUpTo(ctx, v.Of("k"), n)
				require.ErrorIs(t, err, ratelimit.ErrInvalidPermits)
			}
			_, _, err = l.Estimate(ctx, v.Of("k"), 4)
			require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
			most := exact.Permits
			switch v.Name {
			case "FixedWindow":
				most = exact.Counted
			case "SlidingWindow ZSet":
				most = 10_000
			case "FairTokenBucket", "FairTokenBucket of weight 2":
				most = 100_000_000
			}
			_, err = l.Charge(ctx, v.Of("k"), most+1)
			require.ErrorIs(t, err, ratelimit.ErrTooMuchDebt)
			require.ErrorContains(t, err, fmt.Sprint(most+1))
			require.ErrorContains(t, err, fmt.Sprint(most, " at most"))
			for _, key := range []string{"", strings.Repeat("k", 4097)} {
				_, _, err = l.Estimate(ctx, key, 1)
				require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
				_, err = l.Charge(ctx, key, 1)
				require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
				_, _, err = l.TryAcquireUpTo(ctx, key, 1)
				require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
			}
			ended, cancel := context.WithCancel(ctx)
			cancel()
			_, _, err = l.Estimate(ended, v.Of("k"), 1)
			require.ErrorIs(t, err, context.Canceled)
			_, err = l.Charge(ended, v.Of("k"), 1)
			require.ErrorIs(t, err, context.Canceled)
			_, _, err = l.TryAcquireUpTo(ended, v.Of("k"), 1)
			require.ErrorIs(t, err, context.Canceled)
		})
	}
	for _, ticket := range []*ratelimit.Ticket{nil, {}} {
		require.ErrorIs(t, ticket.Settle(ctx, 1), ratelimit.ErrInvalidConfig)
	}
	for _, l := range []settling{&ratelimit.TokenBucket{}, &ratelimit.SlidingLog{}} {
		_, _, err := l.Estimate(ctx, "k", 1)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
		_, err = l.Charge(ctx, "k", 1)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
		_, _, err = l.TryAcquireUpTo(ctx, "k", 1)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
	}
}

func TestATicketStaysUnsettledAfterAMistake(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	l := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(3), 3))
	ticket, _, err := l.Estimate(ctx, "k", 3)
	require.NoError(t, err)
	require.ErrorIs(t, ticket.Settle(ctx, -1), ratelimit.ErrInvalidPermits)
	require.ErrorIs(t, ticket.Settle(ctx, exact.Permits+4), ratelimit.ErrTooMuchDebt)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	require.ErrorIs(t, ticket.Settle(ended, 1), context.Canceled)
	require.NoError(t, ticket.Settle(ctx, 1))
	require.Equal(t, 2, must(t)(l.Peek(ctx, "k")).Remaining)
}

// TestTheLargestDebt: on both sides of what the state of a key holds.
func TestTheLargestDebt(t *testing.T) {
	raceflag.SkipSequential(t)
	const us = time.Microsecond
	longest := time.Duration(1<<51) * us // 71 years
	clients := limitertest.OnMiniredis(t)
	for _, test := range []struct {
		name  string
		build func() settling
		most  int64 // permits of debt, and of what is in the bucket
	}{
		{"by the time to repay it", func() settling { // a permit in 2^41 µs
			return ratelimit.Must(ratelimit.NewTokenBucket(clients.Client, ratelimit.Per(1, longest/1024), 3))
		}, 1024},
		{"in steps", func() settling {
			return ratelimit.Must(ratelimit.NewTokenBucket(clients.Client, ratelimit.Per(1, longest/1024), 3, ratelimit.WithRefillEvery(time.Second)))
		}, 1023}, // steps are rounded up
		{"by exact numbers", func() settling { // 2^40 units a permit, 3 a microsecond
			return ratelimit.Must(ratelimit.NewTokenBucket(clients.Client, ratelimit.Per(3, time.Duration(1<<40)*us), 3))
		}, 4095},
		{"fixed window", func() settling {
			return ratelimit.Must(ratelimit.NewFixedWindow(clients.Client, 3, time.Hour))
		}, exact.CountedDebt - 1}, // and the window's length
		{"aligned", func() settling {
			return ratelimit.Must(ratelimit.NewFixedWindow(clients.Client, 3, time.Hour, ratelimit.WithAlignment(0)))
		}, exact.Debt},
		{"fixed window of a large limit", func() settling {
			return ratelimit.Must(ratelimit.NewFixedWindow(clients.Client, exact.Permits, time.Hour))
		}, exact.Debt},
		{"calendar window", func() settling {
			return ratelimit.Must(ratelimit.NewCalendarWindow(clients.Client, 3, ratelimit.Monthly(1, time.UTC)))
		}, exact.Debt},
		{"Hash", func() settling {
			return ratelimit.Must(ratelimit.NewSlidingWindow(clients.Client, 3, time.Hour, ratelimit.WithStorage(ratelimit.StorageHash)))
		}, exact.Debt},
		{"List", func() settling { return ratelimit.Must(ratelimit.NewSlidingWindow(clients.Client, 3, time.Hour)) }, exact.Debt},
		{"log of two rules", func() settling {
			return ratelimit.Must(ratelimit.NewSlidingLog(clients.Client, []ratelimit.Rule{{Limit: 3, Window: time.Hour}, {Limit: 5, Window: 2 * time.Hour}}))
		}, exact.Debt},
		{"ZSet", func() settling {
			return ratelimit.Must(ratelimit.NewSlidingWindow(clients.Client, 3, time.Hour, ratelimit.WithStorage(ratelimit.StorageZSet)))
		}, 20_000},
	} {
		t.Run(test.name, func(t *testing.T) {
			clients.Wipe(t)
			l := test.build()
			for left := test.most; left > 0; {
				n := min(left, exact.Permits)
				switch test.name {
				case "fixed window":
					n = min(left, exact.Counted)
				case "ZSet":
					n = min(left, 10_000)
				}
				must(t)(l.Charge(ctx, "k", int(n)))
				left -= n
			}
			key := clients.Admin.Keys(ctx, "*").Val()[0]
			before := clients.Look(t, key)
			r, err := l.Charge(ctx, "k", 1)
			require.ErrorIs(t, err, ratelimit.ErrTooMuchDebt)
			require.ErrorContains(t, err, `"k"`)
			require.Zero(t, r)
			require.Equal(t, before, clients.Look(t, key), "nothing was charged")
			r = must(t)(l.TryAcquire(ctx, "k"))
			require.False(t, r.Allowed)
			require.Zero(t, r.Remaining)
			require.Positive(t, r.RetryAfter)
			if r.RetryAfter < 10_000*time.Hour { // beyond it the clock is
				clients.Advance(r.RetryAfter - time.Millisecond)
				require.False(t, must(t)(l.TryAcquire(ctx, "k")).Allowed)
				clients.Advance(time.Millisecond)
				require.True(t, must(t)(l.TryAcquire(ctx, "k")).Allowed)
			}
		})
	}
}

// TestAReturnIsNotOfALaterWindow: permits of a fixed window go back into the same one only,
// on both sides of its end.
func TestAReturnIsNotOfALaterWindow(t *testing.T) {
	for _, name := range []string{"FixedWindow", "FixedWindow aligned"} {
		for _, v := range limitertest.Variants() {
			if v.Name != name {
				continue
			}
			for stage, set := range map[string]func(testing.TB) *limitertest.Stage{"miniredis": limitertest.OnMiniredis, "Redis": limitertest.OnHeldRedis} {
				t.Run(name+", "+stage, func(t *testing.T) {
					s := set(t)
					built, err := v.Build(s.Client, s.Opts...)
					require.NoError(t, err)
					l := built.(settling)
					estimate := func() *ratelimit.Ticket {
						ticket, r, err := l.Estimate(ctx, "k", 3)
						require.NoError(t, err)
						require.True(t, r.Allowed)
						return ticket
					}
					early, late := estimate(), (*ratelimit.Ticket)(nil)
					s.Advance(v.Retry - v.Grain)
					require.NoError(t, early.Settle(ctx, 1))
					require.Equal(t, 2, must(t)(l.Peek(ctx, "k")).Remaining, "in its last instant")
					s.Advance(v.Grain)
					late = estimate()
					s.Advance(time.Second)
					must(t)(l.TryAcquireN(ctx, "k", 3))
					require.NoError(t, late.Settle(ctx, 0))
					require.Equal(t, 0, must(t)(l.Peek(ctx, "k")).Remaining, "the next window has begun")
				})
			}
		}
	}
}

// TestAReturnWhileTheClockGoesOn: on a busy machine the clock goes on by milliseconds between
// two commands of a script. The window of the permits is found all the same.
func TestAReturnWhileTheClockGoesOn(t *testing.T) {
	server := redistest.Start(t, redistest.Faketime())
	l := ratelimit.Must(ratelimit.NewFixedWindow(server.Client(t), 100, 365*24*time.Hour))
	server.RushClock(20_000) // 20 ms in a microsecond
	for range 50 {
		ticket, _, err := l.Estimate(ctx, "k", 2)
		require.NoError(t, err)
		require.NoError(t, ticket.Settle(ctx, 1))
	}
	require.Equal(t, 50, must(t)(l.Peek(ctx, "k")).Remaining)
}

// TestExactReturnsSayWhatWasRefilled: on both sides of the instant at which the bucket has
// refilled what the ticket held.
func TestExactReturnsSayWhatWasRefilled(t *testing.T) {
	for _, test := range []struct {
		name      string
		exact     bool
		held      time.Duration
		remaining int
	}{
		{"full", false, 0, 10},
		{"full after a hold", false, 500 * time.Millisecond, 10},
		{"exact at once", true, 0, 10},
		{"exact after a permit's time", true, 100 * time.Millisecond, 10}, // nine, and the one that was refilled
		{"exact just before all of it", true, 999_999 * time.Microsecond, 10},
		{"exact after all of it", true, time.Second, 10},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := limitertest.OnMiniredis(t)
			var opts []ratelimit.Option
			if test.exact {
				opts = append(opts, ratelimit.WithExactReturns())
			}
			l := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(10), 10, opts...))
			ticket, _, err := l.Estimate(ctx, "k", 10)
			require.NoError(t, err)
			s.Advance(test.held)
			require.NoError(t, ticket.Settle(ctx, 0))
			require.Equal(t, test.remaining, must(t)(l.Peek(ctx, "k")).Remaining)
		})
	}
	// The bucket has refilled what the ticket holds, and others have taken it.
	for exact, want := range map[bool]int{false: 10, true: 6} {
		s := limitertest.OnMiniredis(t)
		var opts []ratelimit.Option
		if exact {
			opts = append(opts, ratelimit.WithExactReturns())
		}
		l := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(10), 10, opts...))
		ticket, _, err := l.Estimate(ctx, "k", 10)
		require.NoError(t, err)
		s.Advance(400 * time.Millisecond)
		require.True(t, must(t)(l.TryAcquireN(ctx, "k", 4)).Allowed)
		require.NoError(t, ticket.Settle(ctx, 0))
		require.Equal(t, want, must(t)(l.Peek(ctx, "k")).Remaining, "exact: %v", exact)
	}
}

// TestSettlingBetweenOthers: an entry in the middle, at the beginning and at the end of a
// log goes, and the others stay.
func TestSettlingBetweenOthers(t *testing.T) {
	for _, k := range limitertest.Kinds() {
		if strings.HasPrefix(k.Name, "Fixed") || strings.Contains(k.Name, "Bucket") {
			continue
		}
		for place := range 3 {
			t.Run(fmt.Sprint(k.Name, ", ", place), func(t *testing.T) {
				s := limitertest.OnMiniredis(t)
				built, err := k.Build(s.Client, 10, 10*time.Second)
				require.NoError(t, err)
				l := built.(settling)
				var tickets []*ratelimit.Ticket
				for range 3 {
					ticket, _, err := l.Estimate(ctx, "k", 3)
					require.NoError(t, err)
					tickets = append(tickets, ticket)
					s.Advance(time.Second)
				}
				size := func() int64 {
					key := s.Admin.Keys(ctx, "*").Val()[0]
					return s.Admin.HLen(ctx, key).Val() + s.Admin.LLen(ctx, key).Val() + s.Admin.ZCard(ctx, key).Val()
				}
				before := size()
				require.NoError(t, tickets[place].Settle(ctx, 2))
				require.Equal(t, 2, must(t)(l.Peek(ctx, "k")).Remaining)
				if !strings.Contains(k.Name, "ZSet") {
					require.Equal(t, before, size())
				}
				before = size()
				another, _, err := l.Estimate(ctx, "k", 2)
				require.NoError(t, err)
				require.NoError(t, another.Settle(ctx, 0), "an entry without permits goes")
				require.Equal(t, before, size())
				require.Equal(t, 2, must(t)(l.Peek(ctx, "k")).Remaining)
				for i := range tickets {
					if i != place {
						require.NoError(t, tickets[i].Settle(ctx, 0))
					}
				}
				require.Equal(t, 8, must(t)(l.Peek(ctx, "k")).Remaining)
				r := must(t)(l.TryAcquireN(ctx, "k", 10))
				require.False(t, r.Allowed)
				s.Advance(r.RetryAfter - time.Microsecond)
				require.False(t, must(t)(l.TryAcquireN(ctx, "k", 10)).Allowed)
				s.Advance(time.Microsecond)
				require.True(t, must(t)(l.TryAcquireN(ctx, "k", 10)).Allowed)
			})
		}
	}
}

// TestALogTakesBackWhatIsNotTooLongAgo: if 512 entries or more have followed, nothing is
// given back.
func TestALogTakesBackWhatIsNotTooLongAgo(t *testing.T) {
	const slot = 1000 // microseconds
	for storage, follow := range map[ratelimit.Storage]func(admin redis.UniversalClient, key string, first int64, entries int){
		ratelimit.StorageList: func(admin redis.UniversalClient, key string, first int64, entries int) {
			var more []any
			for i := 1; i <= entries; i++ {
				more = append(more, first+int64(i)*slot, 5+i)
			}
			require.NoError(t, admin.RPush(ctx, key, more...).Err())
		},
		ratelimit.StorageHash: func(admin redis.UniversalClient, key string, first int64, entries int) {
			fields := []any{"instant", first + int64(entries)*slot, "total", 5 + entries, "last", 1 + entries}
			for i := range entries {
				fields = append(fields, 1+i, fmt.Sprintf("%d/%d", first+int64(i)*slot, 5+i))
			}
			require.NoError(t, admin.HSet(ctx, key, fields...).Err())
		},
	} {
		for entries, back := range map[int]int{511: 5, 512: 0} {
			t.Run(fmt.Sprint(storage, entries), func(t *testing.T) {
				s := limitertest.OnRedis(t)
				l := ratelimit.Must(ratelimit.NewSlidingWindow(s.Client, 1_000_000, 100*time.Second, append(s.Opts, ratelimit.WithSubWindows(100_000), ratelimit.WithStorage(storage))...))
				ticket, _, err := l.Estimate(ctx, "k", 5)
				require.NoError(t, err)
				follow(s.Admin, s.Admin.Keys(ctx, "*").Val()[0], s.Now.UnixMicro()/slot*slot+slot-1, entries)
				s.Advance(time.Duration(entries) * time.Millisecond)
				require.Equal(t, 1_000_000-entries-5, must(t)(l.Peek(ctx, "k")).Remaining)
				require.NoError(t, ticket.Settle(ctx, 0))
				require.Equal(t, 1_000_000-entries-5+back, must(t)(l.Peek(ctx, "k")).Remaining)
				s.Advance(100*time.Second - time.Duration(entries)*time.Millisecond + time.Millisecond)
				require.Equal(t, 1_000_000-entries, must(t)(l.Peek(ctx, "k")).Remaining, "the estimate has left")
			})
		}
	}
}

// TestALostReplyLeavesTheEstimateCharged: an estimate, a charge and a partial call whose
// reply is lost are charged once, and a settlement is not repeated.
func TestALostReplyLeavesTheEstimateCharged(t *testing.T) {
	for _, v := range limitertest.Variants() {
		t.Run(v.Name, func(t *testing.T) {
			s := limitertest.OnMiniredis(t)
			lose, sent := false, 0
			client := fakes.Losing(s.Client, func(cmd redis.Cmder) error {
				if fakes.IsScript(cmd) {
					sent++
				}
				if lose {
					return io.ErrUnexpectedEOF
				}
				return nil
			})
			built, err := v.Build(client)
			require.NoError(t, err)
			l, ok := built.(settling)
			if !ok {
				t.Skip("several limiters do not settle")
			}
			remaining := func() int {
				t.Helper()
				lose = false
				r := must(t)(l.Peek(ctx, v.Of("k")))
				sent = 0
				return r.Remaining
			}
			for _, call := range []func() (any, error){
				func() (any, error) {
					ticket, r, err := l.Estimate(ctx, v.Of("k"), 2)
					return []any{ticket == nil, r}, err
				},
				func() (any, error) { r, err := l.Charge(ctx, v.Of("k"), 2); return []any{true, r}, err },
				func() (any, error) { n, r, err := l.TryAcquireUpTo(ctx, v.Of("k"), 2); return []any{n == 0, r}, err },
			} {
				require.NoError(t, v.Forget(l, "k"))
				_, err := call() // loads the script
				require.NoError(t, err)
				require.NoError(t, v.Forget(l, "k"))
				remaining()
				lose = true
				got, err := call()
				require.ErrorIs(t, err, io.ErrUnexpectedEOF)
				require.Equal(t, []any{true, ratelimit.Result{}}, got)
				require.Equal(t, 1, sent)
				require.Equal(t, 1, remaining(), "charged once")
			}
			for _, settle := range []struct{ actual, remaining int }{{1, 2}, {3, 0}} {
				require.NoError(t, v.Forget(l, "k"))
				ticket, _, err := l.Estimate(ctx, v.Of("k"), 2)
				require.NoError(t, err)
				another, _, err := l.Estimate(ctx, v.Of("other"), 2)
				require.NoError(t, err)
				require.NoError(t, another.Settle(ctx, settle.actual)) // loads the script
				remaining()
				lose = true
				err = ticket.Settle(ctx, settle.actual)
				require.ErrorIs(t, err, io.ErrUnexpectedEOF)
				require.ErrorContains(t, err, fmt.Sprintf("%s, key %q", v.Title(), v.Of("k")))
				require.ErrorIs(t, ticket.Settle(ctx, settle.actual), ratelimit.ErrSettled)
				require.Equal(t, 1, sent, "not repeated")
				require.Equal(t, settle.remaining, remaining(), "it was made, once")
			}
		})
	}
}

// TestSettlingNoticesWhatIsNoState: of another limiter's value or of another type.
func TestSettlingNoticesWhatIsNoState(t *testing.T) {
	eachSettling(t, func(t *testing.T, s *limitertest.Stage, v limitertest.Variant, l settling) {
		ticket, _, err := l.Estimate(ctx, v.Of("k"), 1)
		require.NoError(t, err)
		for _, corrupt := range []func(redis.UniversalClient, string) error{
			v.Corrupt,
			func(c redis.UniversalClient, key string) error { return c.SAdd(ctx, key, "x").Err() },
		} {
			if corrupt == nil {
				continue
			}
			require.NoError(t, s.Admin.Del(ctx, v.Key).Err())
			require.NoError(t, corrupt(s.Admin, v.Key))
			before := s.Admin.Dump(ctx, v.Key).Val()
			_, _, err = l.Estimate(ctx, v.Of("k"), 1)
			require.ErrorIs(t, err, ratelimit.ErrCorruptState)
			_, err = l.Charge(ctx, v.Of("k"), 1)
			require.ErrorIs(t, err, ratelimit.ErrCorruptState)
			_, _, err = l.TryAcquireUpTo(ctx, v.Of("k"), 1)
			require.ErrorIs(t, err, ratelimit.ErrCorruptState)
			require.Equal(t, before, s.Admin.Dump(ctx, v.Key).Val(), "unchanged")
		}
		require.ErrorIs(t, ticket.Settle(ctx, 0), ratelimit.ErrCorruptState)
	})
}

// TestATicketIsSettledOnceByMany: of many callers at once, one settles.
func TestATicketIsSettledOnceByMany(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	l := ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 100, time.Hour))
	ticket, _, err := l.Estimate(ctx, "k", 50)
	require.NoError(t, err)
	var settled, refused atomic.Int64
	var done sync.WaitGroup
	for range 20 {
		done.Go(func() {
			switch err := ticket.Settle(ctx, 49); {
			case err == nil:
				settled.Add(1)
			case errors.Is(err, ratelimit.ErrSettled):
				refused.Add(1)
			}
		})
	}
	done.Wait()
	require.Equal(t, []int64{1, 19}, []int64{settled.Load(), refused.Load()})
	require.Equal(t, 51, must(t)(l.Peek(ctx, "k")).Remaining)
}

// TestExactReturnsAfterTheClockSteppedBack: how much was refilled is then not known.
func TestExactReturnsAfterTheClockSteppedBack(t *testing.T) {
	for name, opts := range map[string][]ratelimit.Option{
		"even": {ratelimit.WithExactReturns()}, "stepped": {ratelimit.WithExactReturns(), ratelimit.WithRefillEvery(time.Second)},
	} {
		for back, want := range map[time.Duration]int{0: 10, time.Microsecond: 0, time.Hour: 0} {
			t.Run(fmt.Sprint(name, ", ", back), func(t *testing.T) {
				s := limitertest.OnMiniredis(t)
				l := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(10), 10, opts...))
				ticket, _, err := l.Estimate(ctx, "k", 10)
				require.NoError(t, err)
				s.Advance(-back)
				require.NoError(t, ticket.Settle(ctx, 0))
				require.Equal(t, want, must(t)(l.Peek(ctx, "k")).Remaining)
			})
		}
	}
}

// TestExactReturnsUnderAnotherRate: another rule's permits came at another rate.
func TestExactReturnsUnderAnotherRate(t *testing.T) {
	for _, opts := range [][]ratelimit.Option{{}, {ratelimit.WithRefillEvery(100 * time.Millisecond)}} {
		s := limitertest.OnMiniredis(t)
		l := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(10), 10, append(opts, ratelimit.WithExactReturns())...))
		other := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(20), 10))
		ticket, _, err := l.Estimate(ctx, "k", 5)
		require.NoError(t, err)
		must(t)(other.TryAcquire(ctx, "k"))
		require.NoError(t, ticket.Settle(ctx, 0))
		require.Equal(t, 4, must(t)(l.Peek(ctx, "k")).Remaining)
	}
}

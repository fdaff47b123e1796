package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/exact"
	"github.com/tryacquire/ratelimit/internal/testing/fakes"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
	"github.com/tryacquire/ratelimit/observe"
	"github.com/tryacquire/ratelimit/ratelimittest"
)

const ticketLease = 10 * time.Second

// ticketed are the limiters whose tickets can have a lease, each with a limit of 10 that does not come back on its own within
// some minutes.
var ticketed = map[string]func(c ratelimit.Client, opts ...ratelimit.Option) (settling, error){
	"token bucket": func(c ratelimit.Client, opts ...ratelimit.Option) (settling, error) {
		return ratelimit.NewTokenBucket(c, ratelimit.Per(1, time.Hour), 10, opts...)
	},
	"leaky bucket": func(c ratelimit.Client, opts ...ratelimit.Option) (settling, error) {
		return ratelimit.NewLeakyBucket(c, ratelimit.Per(1, time.Hour), 10, opts...)
	},
	"fixed window": func(c ratelimit.Client, opts ...ratelimit.Option) (settling, error) {
		return ratelimit.NewFixedWindow(c, 10, time.Hour, opts...)
	},
	"aligned window": func(c ratelimit.Client, opts ...ratelimit.Option) (settling, error) {
		return ratelimit.NewFixedWindow(c, 10, 24*time.Hour, append(opts, ratelimit.WithAlignment(0))...)
	},
	"sliding window": func(c ratelimit.Client, opts ...ratelimit.Option) (settling, error) {
		return ratelimit.NewSlidingWindow(c, 10, time.Hour, opts...)
	},
	"sliding log": func(c ratelimit.Client, opts ...ratelimit.Option) (settling, error) {
		return ratelimit.NewSlidingLog(c, []ratelimit.Rule{{Limit: 10, Window: time.Hour}, {Limit: 20, Window: 2 * time.Hour}}, opts...)
	},
	"calendar window": func(c ratelimit.Client, opts ...ratelimit.Option) (settling, error) {
		return ratelimit.NewCalendarWindow(c, 10, ratelimit.Monthly(1, time.UTC), opts...)
	},
}

// eachTicketed runs test with each of them, on miniredis and on a real server.
func eachTicketed(t *testing.T, test func(t *testing.T, s *limitertest.Stage, l settling)) {
	for server, open := range onceStages {
		t.Run(server, func(t *testing.T) {
			s := open(t)
			for name, build := range ticketed {
				t.Run(name, func(t *testing.T) {
					s.Wipe(t)
					l, err := build(s.Client, append([]ratelimit.Option{ratelimit.WithTicketLease(ticketLease)}, s.Opts...)...)
					require.NoError(t, err)
					test(t, s, l)
				})
			}
		})
	}
}

func estimated(t *testing.T, l settling, n int) *ratelimit.Ticket {
	t.Helper()
	ticket, r, err := l.Estimate(ctx, "k", n)
	require.NoError(t, err)
	require.True(t, r.Allowed)
	require.NotNil(t, ticket)
	return ticket
}

// left is what a Peek says is left.
func left(t *testing.T, l settling) int {
	t.Helper()
	return must(t)(l.Peek(ctx, "k")).Remaining
}

// TestATicketFreesItself at the end of its lease, to the microsecond of the RetryAfter that a denial says.
func TestATicketFreesItself(t *testing.T) {
	eachTicketed(t, func(t *testing.T, s *limitertest.Stage, l settling) {
		estimated(t, l, 6)
		s.Advance(4 * time.Second)
		estimated(t, l, 3)
		denied := must(t)(l.TryAcquireN(ctx, "k", 5))
		require.False(t, denied.Allowed)
		require.Equal(t, 6*time.Second, denied.RetryAfter, "the first lease ends")
		require.Equal(t, denied.RetryAfter, must(t)(look(l, 5)).RetryAfter)
		none, denied, err := l.Estimate(ctx, "k", 9)
		require.NoError(t, err)
		require.Nil(t, none)
		require.Equal(t, ticketLease, denied.RetryAfter, "both leases end")

		s.Advance(6*time.Second - time.Microsecond)
		require.False(t, must(t)(l.TryAcquireN(ctx, "k", 5)).Allowed)
		s.Advance(time.Microsecond)
		require.True(t, must(t)(l.TryAcquireN(ctx, "k", 5)).Allowed)
		require.Equal(t, 2, left(t, l))
		s.Advance(4 * time.Second)
		require.Equal(t, 5, left(t, l), "the second lease has ended")
		require.Len(t, s.Admin.Keys(ctx, "*").Val(), 1, "no ticket is left")
	})
}

func look(l settling, n int) (ratelimit.Result, error) {
	all, err := ratelimit.Look(ctx, ratelimit.ClaimOf(l, "k", n))
	return all.Result, err
}

// TestExactReturnsOfATicket: of n permits whose lease was h, n − rate × h come back at its end, whenever that is noticed.
func TestExactReturnsOfATicket(t *testing.T) {
	for server, open := range onceStages {
		t.Run(server, func(t *testing.T) {
			s := open(t)
			l, err := ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(1), 100, append(s.Opts, ratelimit.WithExactReturns(), ratelimit.WithTicketLease(ticketLease))...)
			require.NoError(t, err)
			require.True(t, must(t)(l.TryAcquireN(ctx, "k", 50)).Allowed)
			estimated(t, l, 30)
			denied := must(t)(l.TryAcquireN(ctx, "k", 50))
			require.Equal(t, ticketLease, denied.RetryAfter, "10 were refilled and 20 came back")
			s.Advance(ticketLease)
			require.Equal(t, 50, left(t, l))

			estimated(t, l, 30)
			s.Advance(ticketLease + 5*time.Second)
			require.Equal(t, 55, left(t, l), "5 were refilled since")
		})
	}
}

func TestATicketIsSettledInTime(t *testing.T) {
	eachTicketed(t, func(t *testing.T, s *limitertest.Stage, l settling) {
		for actual, want := range []int{10, 9, 8, 7, 6} {
			require.NoError(t, l.Reset(ctx, "k"))
			ticket := estimated(t, l, 2)
			require.Equal(t, 8, left(t, l))
			s.Advance(time.Second)
			require.NoError(t, ticket.Settle(ctx, actual))
			require.Equal(t, want, left(t, l), "%d of 2 used", actual)
			require.ErrorIs(t, ticket.Settle(ctx, 0), ratelimit.ErrSettled)
			require.ErrorIs(t, ticket.Extend(ctx), ratelimit.ErrSettled)
			_, err := ticket.More(ctx, 1)
			require.ErrorIs(t, err, ratelimit.ErrSettled)
			s.Advance(time.Minute)
			require.Equal(t, want, left(t, l), "the lease is over, and gives nothing back")
		}
		require.ErrorIs(t, estimated(t, l, 1).Settle(ctx, -1), ratelimit.ErrInvalidPermits)
	})
}

// TestALateSettlementCharges what was used, and says so.
func TestALateSettlementCharges(t *testing.T) {
	eachTicketed(t, func(t *testing.T, s *limitertest.Stage, l settling) {
		late, unused := estimated(t, l, 4), estimated(t, l, 2)
		s.Advance(ticketLease)
		require.Equal(t, 10, left(t, l))
		err := late.Settle(ctx, 3)
		require.ErrorIs(t, err, ratelimit.ErrLeaseLost)
		require.ErrorContains(t, err, "the estimate had been given back, and 3 permits were charged")
		require.Equal(t, 7, left(t, l))
		require.ErrorIs(t, late.Settle(ctx, 3), ratelimit.ErrSettled)
		require.ErrorIs(t, unused.Settle(ctx, 0), ratelimit.ErrLeaseLost)
		require.Equal(t, 7, left(t, l))

		kept := estimated(t, l, 4) // nobody asks between the lease's end and the settlement
		s.Advance(time.Minute)
		require.NoError(t, kept.Settle(ctx, 3))
		require.Equal(t, 4, left(t, l))
	})
}

// TestALateSettlementIsObserved: with its error and with what it charged, also as a crossing.
func TestALateSettlementIsObserved(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	var seen []ratelimit.Observation
	var crossed []int
	crossings, err := observe.Crossings(func(_ context.Context, percent int, _ ratelimit.Observation) { crossed = append(crossed, percent) }, 80)
	require.NoError(t, err)
	l, err := ratelimit.NewFixedWindow(s.Client, 10, time.Hour, append(s.Opts, ratelimit.WithTicketLease(ticketLease),
		ratelimit.WithObserver(func(ctx context.Context, o ratelimit.Observation) {
			crossings(ctx, o)
			if o.Call == "settle" {
				seen = append(seen, o)
			}
		}))...)
	require.NoError(t, err)
	late, unused := estimated(t, l, 4), estimated(t, l, 2)
	s.Advance(ticketLease)
	require.Equal(t, 10, left(t, l))
	lateErr, unusedErr := late.Settle(ctx, 9), unused.Settle(ctx, 0)
	require.Len(t, seen, 2)
	require.ErrorIs(t, lateErr, ratelimit.ErrLeaseLost)
	require.Equal(t, lateErr, seen[0].Err)
	require.Equal(t, ratelimit.OutcomeFailed, seen[0].Outcome)
	require.Equal(t, 9, seen[0].N)
	require.Equal(t, 10, seen[0].Before)
	require.Equal(t, 1, seen[0].Result.Remaining)
	require.Equal(t, []int{80}, crossed)
	require.ErrorIs(t, unusedErr, ratelimit.ErrLeaseLost)
	require.Equal(t, unusedErr, seen[1].Err)
	require.Zero(t, seen[1].Result)
}

func TestATicketIsExtended(t *testing.T) {
	eachTicketed(t, func(t *testing.T, s *limitertest.Stage, l settling) {
		ticket := estimated(t, l, 4)
		for range 5 {
			s.Advance(ticketLease - time.Microsecond)
			require.NoError(t, ticket.Extend(ctx))
			require.Equal(t, 6, left(t, l))
		}
		s.Advance(ticketLease)
		require.NoError(t, ticket.Extend(ctx), "nobody has needed the permits")
		require.Equal(t, 6, left(t, l))
		s.Advance(ticketLease)
		require.Equal(t, 10, left(t, l))
		require.ErrorIs(t, ticket.Extend(ctx), ratelimit.ErrLeaseLost)
		_, err := ticket.More(ctx, 1)
		require.ErrorIs(t, err, ratelimit.ErrLeaseLost)
		require.Equal(t, 10, left(t, l))
	})
}

func TestATicketTakesMore(t *testing.T) {
	eachTicketed(t, func(t *testing.T, s *limitertest.Stage, l settling) {
		ticket := estimated(t, l, 2)
		s.Advance(9 * time.Second)
		r, err := ticket.More(ctx, 5)
		require.NoError(t, err)
		require.True(t, r.Allowed)
		require.Equal(t, 3, r.Remaining)
		r, err = ticket.More(ctx, 4)
		require.NoError(t, err)
		require.False(t, r.Allowed, "the stream is cut")
		require.Equal(t, ticketLease, r.RetryAfter)
		s.Advance(9 * time.Second)
		require.Equal(t, 3, left(t, l), "the lease has begun again")
		_, err = ticket.More(ctx, 11)
		require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
		_, err = ticket.More(ctx, 0)
		require.ErrorIs(t, err, ratelimit.ErrInvalidPermits)
		require.NoError(t, ticket.Settle(ctx, 3))
		require.Equal(t, 7, left(t, l))

		ticket = estimated(t, l, 2)
		_, err = ticket.More(ctx, 1)
		require.NoError(t, err)
		s.Advance(ticketLease)
		require.Equal(t, 7, left(t, l), "all of it comes back")
	})
}

// TestMoreThanAWindow: what a ticket took of a window that is over stays there.
func TestMoreThanAWindow(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	l, err := ratelimit.NewFixedWindow(s.Client, 10, 15*time.Second, append(s.Opts, ratelimit.WithTicketLease(ticketLease))...)
	require.NoError(t, err)
	for used, want := range map[int]int{4: 10, 5: 9, 6: 8, 8: 6} { // 4 are of the first window, 2 of the second
		require.NoError(t, l.Reset(ctx, "k"))
		ticket := estimated(t, l, 4)
		s.Advance(9 * time.Second)
		require.NoError(t, ticket.Extend(ctx))
		s.Advance(7 * time.Second)
		require.Equal(t, 10, left(t, l))
		r, err := ticket.More(ctx, 2)
		require.NoError(t, err)
		require.Equal(t, 8, r.Remaining)
		require.NoError(t, ticket.Settle(ctx, used))
		require.Equal(t, want, left(t, l), "%d used", used)
	}
}

// TestMoreThanATicketHolds: a bucket refills again and again while the ticket goes on.
func TestMoreThanATicketHolds(t *testing.T) {
	for name, opts := range map[string][]ratelimit.Option{"with a lease": {ratelimit.WithTicketLease(time.Hour)}, "without": nil} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *ratelimittest.Env) {
				const most = exact.Permits
				l := ratelimit.Must(ratelimit.NewTokenBucket(e.Client(), ratelimit.PerSecond(most/10), most/10, opts...))
				ticket, _ := estimateOfKey(t, l, "k", most/10)
				for range 9 {
					e.Advance(time.Second)
					require.True(t, must(t)(ticket.More(ctx, most/10)).Allowed)
				}
				e.Advance(time.Second)
				for _, n := range []int{1, most} {
					_, err := ticket.More(ctx, n)
					require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
				}
				_, err := ticket.More(ctx, 0)
				require.ErrorIs(t, err, ratelimit.ErrInvalidPermits)
				require.Equal(t, most/10, must(t)(l.Peek(ctx, "k")).Remaining, "nothing was taken")
				require.NoError(t, ticket.Settle(ctx, most))
				require.Equal(t, most/10, must(t)(l.Peek(ctx, "k")).Remaining)
			})
		})
	}
}

// TestTooManyTickets is an error of its own, alone and together with others, and no other call meets it.
func TestTooManyTickets(t *testing.T) {
	for server, open := range onceStages {
		t.Run(server, func(t *testing.T) {
			s := open(t)
			l, err := ratelimit.NewFixedWindow(s.Client, 1_000_000, time.Hour, append(s.Opts, ratelimit.WithTicketLease(ticketLease))...)
			require.NoError(t, err)
			first := estimated(t, l, 1)
			fillTickets(t, s, 9_998)
			last := estimated(t, l, 1)
			_, _, err = l.Estimate(ctx, "k", 1)
			require.ErrorIs(t, err, ratelimit.ErrTooManyTickets)
			require.NotErrorIs(t, err, ratelimit.ErrDenied)
			before := left(t, l)
			other := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(1), 10, s.Opts...))
			_, err = ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(other, "k", 1), ratelimit.ClaimOf(l, "k", 1).Estimate())
			require.ErrorIs(t, err, ratelimit.ErrTooManyTickets)
			require.Equal(t, before, left(t, l))
			require.Equal(t, 10, must(t)(other.Peek(ctx, "k")).Remaining, "nothing was taken")

			var each sync.WaitGroup
			errs := make([]error, 60)
			for i := range errs {
				each.Go(func() {
					switch i % 3 {
					case 0:
						_, _, errs[i] = l.Estimate(ctx, "k", 1)
					case 1:
						_, errs[i] = l.TryAcquire(ctx, "k")
					default:
						_, errs[i] = l.Charge(ctx, "k", 1)
					}
				})
			}
			each.Wait()
			for i, err := range errs {
				if i%3 == 0 {
					require.ErrorIs(t, err, ratelimit.ErrTooManyTickets)
				} else {
					require.NoError(t, err)
				}
			}
			r, err := last.More(ctx, 1)
			require.NoError(t, err)
			require.True(t, r.Allowed, "no ticket is added")
			require.NoError(t, first.Settle(ctx, 0))
			estimated(t, l, 1)
		})
	}
}

// fillTickets adds tickets for one permit each, with the name that a ticket has in Redis.
func fillTickets(t *testing.T, s *limitertest.Stage, n int) {
	t.Helper()
	keys := s.Admin.Keys(ctx, "*/tickets*").Val()
	require.Len(t, keys, 1)
	ticket := s.Admin.ZRangeWithScores(ctx, keys[0], 0, 0).Val()[0]
	pipe := s.Admin.Pipeline()
	for i := range n {
		ticket.Member = fmt.Sprintf("%v%d", ticket.Member, i)
		pipe.ZAdd(ctx, keys[0], ticket)
		ticket.Member = ticket.Member.(string)[:len(ticket.Member.(string))-len(fmt.Sprint(i))]
	}
	_, err := pipe.Exec(ctx)
	require.NoError(t, err)
}

// TestDoSettlesATicket whatever branch returns, and extends it while work runs.
func TestDoSettlesATicket(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	const lease = 300 * time.Millisecond
	l, err := ratelimit.NewFixedWindow(s.Client, 10, time.Hour, append(s.Opts, ratelimit.WithTicketLease(lease))...)
	require.NoError(t, err)
	used := func() int { return 2 }
	failed := errors.New("failed")
	ended, cancel := context.WithCancel(ctx)
	for name, work := range map[string]func(context.Context) error{
		"returns": func(context.Context) error { return nil },
		"fails":   func(context.Context) error { return failed },
		"panics":  func(context.Context) error { panic(failed) },
		"cancels": func(ctx context.Context) error { cancel(); return ctx.Err() },
	} {
		require.NoError(t, l.Reset(ctx, "k"))
		var got error
		func() {
			defer func() {
				if p := recover(); p != nil {
					got = p.(error)
				}
			}()
			within := ctx
			if name == "cancels" {
				within = ended
			}
			got = estimated(t, l, 5).Do(within, work, used)
		}()
		if want := map[string]error{"fails": failed, "panics": failed, "cancels": context.Canceled}[name]; want != nil {
			require.ErrorIs(t, got, want, name)
		} else {
			require.NoError(t, got, name)
		}
		require.Equal(t, 8, left(t, l), name)
	}
	require.NoError(t, l.Reset(ctx, "k"))
	require.ErrorIs(t, estimated(t, l, 5).Do(ctx, nil, used), ratelimit.ErrInvalidConfig)
	require.ErrorIs(t, estimated(t, l, 5).Do(ctx, func(context.Context) error { return nil }, nil), ratelimit.ErrInvalidConfig)
	require.ErrorIs(t, (*ratelimit.Ticket)(nil).Do(ctx, func(context.Context) error { return nil }, used), ratelimit.ErrInvalidConfig)
}

// TestDoKeepsTheLeases of all claims: each is extended when a third of it is over, the first time too if Do began late, and
// again soon after a try that failed.
func TestDoKeepsTheLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := ratelimittest.New(t)
		start := time.Now()
		var mu sync.Mutex
		extended := map[string][]string{}
		observer := ratelimit.WithObserver(func(_ context.Context, o ratelimit.Observation) {
			if o.Call == "extend" {
				mu.Lock()
				defer mu.Unlock()
				at := time.Since(start).String()
				if o.Err != nil {
					at += " failed"
				}
				extended[o.Limiter] = append(extended[o.Limiter], at)
			}
		})
		month := ratelimit.Must(ratelimit.NewCalendarWindow(env.Client(), 10, ratelimit.Monthly(1, time.UTC),
			ratelimit.WithName("month"), ratelimit.WithTicketLease(36*time.Second), observer))
		bucket := ratelimit.Must(ratelimit.NewTokenBucket(env.Client(), ratelimit.Per(1, 24*time.Hour), 10,
			ratelimit.WithName("bucket"), ratelimit.WithTicketLease(12*time.Second), observer))
		places := ratelimit.Must(ratelimit.NewInFlight(env.Client(), 1, 24*time.Second, ratelimit.WithName("places"), observer))
		all, err := ratelimit.TryAcquireAll(t.Context(), ratelimit.ClaimOf(month, "k", 5).Estimate(),
			ratelimit.ClaimOf(bucket, "k", 5).Estimate(), ratelimit.ClaimHold(places, "k", 1))
		require.NoError(t, err)
		require.True(t, all.Allowed)
		time.Sleep(11 * time.Second)
		err = all.Do(t.Context(), func(ctx context.Context) error {
			for range 8 {
				time.Sleep(5 * time.Second)
				require.NoError(t, ctx.Err())
				require.Equal(t, 5, left(t, month))
				require.Equal(t, 5, left(t, bucket))
				require.Zero(t, must(t)(places.Peek(ctx, "k")).Remaining)
			}
			time.Sleep(1500 * time.Millisecond)
			env.Down()
			time.Sleep(5 * time.Second)
			env.Up()
			time.Sleep(3 * time.Second)
			return nil
		}, func(ratelimit.PartResult) int { return 2 })
		require.NoError(t, err, "no lease was lost")
		require.Equal(t, map[string][]string{
			"month":  {"12s", "24s", "36s", "48s", "1m0s"},
			"bucket": {"11s", "15s", "19s", "23s", "27s", "31s", "35s", "39s", "43s", "47s", "51s", "55s failed", "56s failed", "57s failed", "58s"},
			"places": {"11s", "19s", "27s", "35s", "43s", "51s", "59s"},
		}, extended)
		require.Equal(t, 8, left(t, month))
		require.Equal(t, 8, left(t, bucket))
		require.Equal(t, 1, must(t)(places.Peek(t.Context(), "k")).Remaining)
	})
}

// TestMergedTicketsAddUp: callers of many goroutines estimate, take more, extend, settle and forget tickets of a few keys, alone
// and together with another limiter. After the leases each account is what was used, to the permit.
func TestMergedTicketsAddUp(t *testing.T) {
	s := limitertest.OnRedis(t)
	s.Opts = nil // the server's clock
	const limit, lease = 60_000, 2 * time.Second
	opts := []ratelimit.Option{ratelimit.WithTicketLease(lease), ratelimit.WithName("merged tickets")}
	month := ratelimit.Must(ratelimit.NewCalendarWindow(s.Client, limit, ratelimit.Monthly(1, time.UTC), opts...))
	bucket := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.Per(1, time.Hour), limit, opts...))
	var each sync.WaitGroup
	var used [3]atomic.Int64
	var forgotten atomic.Int64
	for i := range 64 {
		each.Go(func() {
			rng := model.Seeded(uint64(i))
			for range 20 {
				key := rng.IntN(len(used))
				name := fmt.Sprintf("key %d", key)
				n, actual := 1+rng.IntN(100), rng.IntN(200)
				all, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(month, name, n).Estimate(), ratelimit.ClaimOf(bucket, name, n).Estimate())
				if !assert.NoError(t, err) || !assert.True(t, all.Allowed) {
					return
				}
				if rng.IntN(3) == 0 {
					for _, p := range all.Parts {
						_, err := p.Ticket.More(ctx, 1+rng.IntN(30))
						assert.NoError(t, err)
					}
				}
				if rng.IntN(3) == 0 {
					for _, p := range all.Parts {
						assert.NoError(t, p.Ticket.Extend(ctx))
					}
				}
				if rng.IntN(10) == 0 {
					forgotten.Add(1)
					continue // the process died
				}
				assert.NoError(t, all.Finish(ctx, func(ratelimit.PartResult) int { return actual }))
				if rng.IntN(2) == 0 {
					_, err := month.TryAcquireN(ctx, name, 3)
					assert.NoError(t, err)
					_, err = bucket.Charge(ctx, name, 3)
					assert.NoError(t, err)
					actual += 3
				}
				used[key].Add(int64(actual))
			}
		})
	}
	each.Wait()
	require.Positive(t, forgotten.Load())
	accounted := func() bool {
		for key := range used {
			name := fmt.Sprintf("key %d", key)
			want := limit - int(used[key].Load())
			if must(t)(month.Peek(ctx, name)).Remaining != want || must(t)(bucket.Peek(ctx, name)).Remaining != want {
				return false
			}
		}
		return true
	}
	require.False(t, accounted(), "the forgotten tickets count")
	require.Eventually(t, accounted, 10*lease, lease/4)
}

// TestTicketsAndIDsOnACluster: keys of all nodes, whose tickets and ids lie in their slots; each caller takes more, extends and
// settles, some too late, and each id takes once.
func TestTicketsAndIDsOnACluster(t *testing.T) {
	client := redistest.StartCluster(t).Client(t)
	const keys, callers, limit = 12, 48, 10_000
	month := ratelimit.Must(ratelimit.NewCalendarWindow(client, limit, ratelimit.Monthly(1, time.UTC), ratelimit.WithTicketLease(time.Hour)))
	bucket := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.Per(1, time.Hour), limit, ratelimit.WithTicketLease(time.Hour)))
	ids := ratelimit.Must(ratelimit.NewFixedWindow(client, limit, time.Hour))
	log := ratelimit.Must(ratelimit.NewSlidingLog(client, []ratelimit.Rule{{Limit: limit, Window: time.Hour}}))
	var each sync.WaitGroup
	var taken atomic.Int64
	for i := range callers {
		each.Go(func() {
			key := fmt.Sprint("tenant ", i%keys)
			all, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(month, key, 20).Estimate(), ratelimit.ClaimOf(bucket, key, 20).Estimate())
			if !assert.NoError(t, err) || !assert.True(t, all.Allowed) {
				return
			}
			one, _, err := month.Estimate(ctx, key, 9)
			assert.NoError(t, err)
			_, err = all.Parts[1].Ticket.More(ctx, 5)
			assert.NoError(t, err)
			assert.NoError(t, all.Parts[0].Ticket.Extend(ctx))
			assert.NoError(t, all.Finish(ctx, func(ratelimit.PartResult) int { return 7 }))
			assert.NoError(t, one.Settle(ctx, 10))

			once, err := ratelimit.TryAcquireOnce(ctx, "job", time.Hour, ratelimit.ClaimOf(ids, key, 3), ratelimit.ClaimOf(log, key, 3))
			assert.NoError(t, err)
			assert.Equal(t, limit-3, once.Remaining)
			if !once.Repeated {
				taken.Add(1)
			}
		})
	}
	each.Wait()
	require.EqualValues(t, keys, taken.Load(), "one caller of each id")
	for i := range keys {
		key := fmt.Sprint("tenant ", i)
		require.Equal(t, limit-callers/keys*17, must(t)(month.Peek(ctx, key)).Remaining)
		require.Equal(t, limit-callers/keys*7, must(t)(bucket.Peek(ctx, key)).Remaining)
		require.Equal(t, limit-3, must(t)(ids.Peek(ctx, key)).Remaining)
		require.Equal(t, limit-3, must(t)(log.Peek(ctx, key)).Remaining)
	}
	short := ratelimit.Must(ratelimit.NewCalendarWindow(client, limit, ratelimit.Monthly(1, time.UTC), ratelimit.WithName("short"), ratelimit.WithTicketLease(time.Millisecond)))
	late, _, err := short.Estimate(ctx, "k", 5)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return must(t)(short.Peek(ctx, "k")).Remaining == limit }, 10*time.Second, time.Millisecond)
	require.ErrorIs(t, late.Settle(ctx, 4), ratelimit.ErrLeaseLost)
	require.Equal(t, limit-4, must(t)(short.Peek(ctx, "k")).Remaining)
	_, err = ratelimit.TryAcquireOnce(ctx, "job", time.Hour, ratelimit.ClaimOf(ids, "a", 1), ratelimit.ClaimOf(log, "b", 1))
	require.ErrorIs(t, err, ratelimit.ErrCrossSlot)
	_, err = ratelimit.TryAcquireOnce(ctx, "job", time.Hour, ratelimit.ClaimOf(ids, "tenant 0", 4), ratelimit.ClaimOf(log, "tenant 0", 3))
	require.ErrorIs(t, err, ratelimit.ErrIDReused)
	require.Equal(t, limit-3, must(t)(ids.Peek(ctx, "tenant 0")).Remaining)
}

// TestALostReplyOfATicket: an estimate whose reply is lost comes back at the end of its lease, More as well, and a settlement is
// executed once.
func TestALostReplyOfATicket(t *testing.T) {
	eachTicketed(t, func(t *testing.T, s *limitertest.Stage, _ settling) {
		lose := false
		lost := errors.New("lost")
		client := fakes.Losing(s.Admin.(*redis.Client), func(cmd redis.Cmder) error {
			if lose && fakes.IsScript(cmd) {
				return lost
			}
			return nil
		})
		name := t.Name()[strings.LastIndex(t.Name(), "/")+1:]
		l, err := ticketed[strings.ReplaceAll(name, "_", " ")](client, append(s.Opts, ratelimit.WithTicketLease(ticketLease))...)
		require.NoError(t, err)
		_, _, _ = l.Estimate(ctx, "other", 1) // loads the script
		losing := func(call func() error) {
			lose = true
			require.ErrorIs(t, call(), lost)
			lose = false
		}
		losing(func() error { _, _, err := l.Estimate(ctx, "k", 4); return err })
		require.Equal(t, 6, left(t, l))
		s.Advance(ticketLease)
		require.Equal(t, 10, left(t, l))

		ticket := estimated(t, l, 2)
		losing(func() error { _, err := ticket.More(ctx, 3); return err })
		require.Equal(t, 5, left(t, l))
		require.ErrorIs(t, ticket.Settle(ctx, 4), ratelimit.ErrLeaseLost, "its name is not known")
		require.Equal(t, 1, left(t, l))
		s.Advance(ticketLease)
		require.Equal(t, 6, left(t, l), "what was used")

		ticket = estimated(t, l, 2)
		losing(func() error { return ticket.Settle(ctx, 1) })
		require.ErrorIs(t, ticket.Settle(ctx, 1), ratelimit.ErrSettled)
		require.Equal(t, 5, left(t, l))
		s.Advance(ticketLease)
		require.Equal(t, 5, left(t, l))
	})
}

// TestLeasesOfOneExecution: each ticket has the lease of its own limiter, and its key lives as long, in whatever order an execution
// decides them.
func TestLeasesOfOneExecution(t *testing.T) {
	bucket := func(c ratelimit.Client, opts ...ratelimit.Option) (ratelimit.Limiter, error) {
		return ratelimit.NewTokenBucket(c, ratelimit.PerSecond(1), 10, opts...)
	}
	exact := func(c ratelimit.Client, opts ...ratelimit.Option) (ratelimit.Limiter, error) {
		return bucket(c, append(opts, ratelimit.WithExactReturns())...)
	}
	month := func(c ratelimit.Client, opts ...ratelimit.Option) (ratelimit.Limiter, error) {
		return ratelimit.NewCalendarWindow(c, 10, ratelimit.Monthly(1, time.UTC), opts...)
	}
	// One and the next have the lease in common, or the instant and the number behind it, or one of them.
	tickets := []struct {
		build func(ratelimit.Client, ...ratelimit.Option) (ratelimit.Limiter, error)
		which string
		lease time.Duration
	}{{bucket, "0", time.Minute}, {bucket, "0", time.Hour}, {bucket, "0", time.Minute}, {bucket, "0", 2 * time.Hour},
		{exact, "1", 2 * time.Hour}, {bucket, "0", 2 * time.Hour}, {month, "0", 2 * time.Hour}, {bucket, "0", 2 * time.Hour}}
	for server, open := range onceStages {
		t.Run(server, func(t *testing.T) {
			s := open(t)
			var claims []ratelimit.Claim
			for i, of := range tickets {
				l, err := of.build(s.Client, append(s.Opts, ratelimit.WithTicketLease(of.lease), ratelimit.WithName(fmt.Sprint(i)))...)
				require.NoError(t, err)
				claims = append(claims, ratelimit.ClaimOf(l, "k", 1).Estimate())
			}
			all, err := ratelimit.TryAcquireAll(ctx, claims...)
			require.NoError(t, err)
			require.True(t, all.Allowed)
			var now int64
			for i, of := range tickets {
				key := s.Admin.Keys(ctx, fmt.Sprintf("*:%d:*tickets*", i)).Val()[0]
				ticket := s.Admin.ZRangeWithScores(ctx, key, 0, -1).Val()[0]
				if i == 0 {
					now = int64(ticket.Score) - of.lease.Microseconds()
				}
				require.Equal(t, now+of.lease.Microseconds(), int64(ticket.Score), key)
				where, kept := now, of.lease
				if i == 6 {
					at := time.UnixMicro(now).UTC()
					end := time.Date(at.Year(), at.Month()+1, 1, 0, 0, 0, 0, time.UTC)
					where, kept = end.UnixMicro(), max(of.lease, end.Sub(at))
				}
				require.Regexp(t, fmt.Sprintf(`^1/%d/%s/%d/\w{16}$`, where, of.which, of.lease.Microseconds()), ticket.Member)
				require.InDelta(t, (kept + 954*time.Millisecond).Seconds(), s.Admin.PTTL(ctx, key).Val().Seconds(), 10, key)
			}
		})
	}
}

// TestTenThousandTicketsEnd: each call gives back a hundred, and the rest counts as taken.
func TestTenThousandTicketsEnd(t *testing.T) {
	for server, open := range onceStages {
		t.Run(server, func(t *testing.T) {
			s := open(t)
			l, err := ratelimit.NewFixedWindow(s.Client, 1_000, time.Hour, append(s.Opts, ratelimit.WithTicketLease(ticketLease))...)
			require.NoError(t, err)
			estimated(t, l, 1)
			fillTickets(t, s, 998)
			r := must(t)(l.TryAcquireN(ctx, "k", 999))
			require.True(t, r.Allowed, "the window counts one of them")
			require.NoError(t, l.Reset(ctx, "k"))
			require.Empty(t, s.Admin.Keys(ctx, "*").Val(), "and its tickets")

			for range 250 {
				estimated(t, l, 4)
			}
			s.Advance(ticketLease - time.Microsecond)
			denied := must(t)(l.TryAcquire(ctx, "k"))
			require.Equal(t, time.Microsecond, denied.RetryAfter)
			s.Advance(time.Microsecond)
			require.Equal(t, 400, left(t, l))
			require.Equal(t, 800, left(t, l))
			require.Equal(t, 1_000, left(t, l))
		})
	}
}

// TestARetryAfterOfManyTickets is exact if at most 256 have to end, and else when the 256th does.
func TestARetryAfterOfManyTickets(t *testing.T) {
	s := limitertest.OnHeldRedis(t)
	l, err := ratelimit.NewTokenBucket(s.Client, ratelimit.Per(1, 24*time.Hour), 300, append(s.Opts, ratelimit.WithTicketLease(time.Minute))...)
	require.NoError(t, err)
	for range 300 {
		estimated(t, l, 1)
		s.Advance(time.Millisecond)
	}
	ends := func(ticket int) time.Duration { return time.Minute - time.Duration(300-ticket+1)*time.Millisecond }
	for n, last := range map[int]int{1: 1, 16: 16, 17: 17, 200: 200, 256: 256, 257: 256, 300: 256} {
		require.Equal(t, ends(last), must(t)(l.TryAcquireN(ctx, "k", n)).RetryAfter, "%d", n)
	}
}

// TestTicketsAfterAClockStep: no lease ends later than one that begins now.
func TestTicketsAfterAClockStep(t *testing.T) {
	eachTicketed(t, func(t *testing.T, s *limitertest.Stage, l settling) {
		if strings.Contains(t.Name(), "window") || strings.Contains(t.Name(), "log") {
			t.Skip("the window goes on for longer, or begins again, and entries of a log have moved")
		}
		estimated(t, l, 10)
		s.Advance(-time.Hour)
		require.Equal(t, ticketLease, must(t)(l.TryAcquire(ctx, "k")).RetryAfter)
		s.Advance(ticketLease - time.Microsecond)
		require.False(t, must(t)(l.TryAcquire(ctx, "k")).Allowed)
		s.Advance(time.Microsecond)
		require.True(t, must(t)(l.TryAcquire(ctx, "k")).Allowed)
	})
}

// TestATicketBesideAPlainLimiter: its permits are taken for a limiter without the option, which gives nothing back.
func TestATicketBesideAPlainLimiter(t *testing.T) {
	eachTicketed(t, func(t *testing.T, s *limitertest.Stage, l settling) {
		name := t.Name()[strings.LastIndex(t.Name(), "/")+1:]
		plain, err := ticketed[strings.ReplaceAll(name, "_", " ")](s.Client, s.Opts...)
		require.NoError(t, err)
		estimated(t, l, 8)
		s.Advance(time.Second)
		require.Equal(t, 2, left(t, plain))
		s.Advance(ticketLease)
		require.False(t, must(t)(plain.TryAcquireN(ctx, "k", 3)).Allowed)
		require.Equal(t, 10, left(t, l))
		require.True(t, must(t)(plain.TryAcquireN(ctx, "k", 10)).Allowed)
	})
}

func TestWhatTicketsWithALeaseDoNotGoWith(t *testing.T) {
	c := fakes.Offline(t)
	lease := ratelimit.WithTicketLease(time.Second)
	clock := ratelimit.WithClock(time.Now)
	for problem, make := range map[string]func() error{
		"WithTicketLease: leases end by the server's clock; leave WithClock out": func() error {
			_, err := ratelimit.NewFixedWindow(c, 1, time.Second, lease, clock)
			return err
		},
		"WithTicketLease: the lease is 1µs; it must be at least 1ms": func() error {
			_, err := ratelimit.NewFixedWindow(c, 1, time.Second, ratelimit.WithTicketLease(time.Microsecond))
			return err
		},
		"WithTicketLease: the bucket refills in steps, or one number does not hold its state; " +
			"use a smaller burst, or a rate of fewer permits in a shorter period, and leave WithRefillEvery out": func() error {
			_, err := ratelimit.NewTokenBucket(c, ratelimit.PerSecond(1), 1, lease, ratelimit.WithRefillEvery(time.Second))
			return err
		},
		"WithTicketLease: the storages Hash and ZSet have no tickets with a lease; use the storage List, which counts as Hash does, or NewSlidingLog with one rule, which is exact as ZSet is": func() error {
			_, err := ratelimit.NewSlidingWindow(c, 1, time.Second, lease, ratelimit.WithStorage(ratelimit.StorageHash))
			return err
		},
		"NewFairTokenBucket: WithTicketLease is not one of its options": func() error {
			_, err := ratelimit.NewFairTokenBucket(c, ratelimit.PerSecond(8), 8, lease)
			return err
		},
	} {
		err := make()
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
		require.ErrorContains(t, err, problem)
	}
}

// TestMoreWithoutALease takes another part, which is settled first.
func TestMoreWithoutALease(t *testing.T) {
	eachSettling(t, func(t *testing.T, s *limitertest.Stage, v limitertest.Variant, l settling) {
		estimated := func() *ratelimit.Ticket {
			ticket, _, err := l.Estimate(ctx, v.Of("k"), 1)
			require.NoError(t, err)
			return ticket
		}
		left := func() int { return must(t)(l.Peek(ctx, v.Of("k"))).Remaining }
		ticket := estimated()
		require.NoError(t, ticket.Extend(ctx), "there is no lease")
		r, err := ticket.More(ctx, 1)
		require.NoError(t, err)
		require.True(t, r.Allowed)
		require.Equal(t, 1, r.Remaining)
		r, err = ticket.More(ctx, 2)
		require.NoError(t, err)
		require.False(t, r.Allowed)
		require.NoError(t, ticket.Settle(ctx, 1))
		require.Equal(t, 2, left())
		require.ErrorIs(t, ticket.Settle(ctx, 1), ratelimit.ErrSettled)
		_, err = ticket.More(ctx, 1)
		require.ErrorIs(t, err, ratelimit.ErrSettled)

		ticket = estimated()
		_, err = ticket.More(ctx, 1)
		require.NoError(t, err)
		require.NoError(t, ticket.Settle(ctx, 0))
		require.Equal(t, 2, left())
		ticket = estimated()
		_, err = ticket.More(ctx, 1)
		require.NoError(t, err)
		require.NoError(t, ticket.Settle(ctx, 3))
		require.Equal(t, 0, left())
	})
}

// TestReservationsBesideTickets: a bucket promises permits beside tickets, and leases slices.
func TestReservationsBesideTickets(t *testing.T) {
	for server, open := range onceStages {
		t.Run(server, func(t *testing.T) {
			s := open(t)
			l, err := ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(1), 10, append(s.Opts, ratelimit.WithTicketLease(ticketLease))...)
			require.NoError(t, err)
			ticket := estimated(t, l, 8)
			r, err := l.Reserve(ctx, "k", 2, time.Minute)
			require.NoError(t, err)
			require.Zero(t, r.Delay())
			_, err = l.Reserve(ctx, "k", 3, time.Second)
			require.ErrorIs(t, err, ratelimit.ErrWaitTooLong)
			later, err := l.Reserve(ctx, "k", 3, time.Hour)
			require.NoError(t, err)
			require.InDelta(t, 3*time.Second, later.Delay(), float64(time.Second))
			require.Equal(t, ratelimit.Result{Limit: 10, Window: ticketLease, RetryAfter: 4 * time.Second, ResetAfter: 13 * time.Second}, must(t)(l.TryAcquire(ctx, "k")))
			require.NoError(t, later.Cancel(ctx))
			require.NoError(t, ticket.Settle(ctx, 8))
			require.Equal(t, time.Second, must(t)(l.TryAcquire(ctx, "k")).RetryAfter)
		})
	}
}

// TestFinishWithoutCosts: the estimates are the costs, also of tickets that would free themselves.
func TestFinishWithoutCosts(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	l, err := ratelimit.NewFixedWindow(s.Client, 10, time.Hour, append(s.Opts, ratelimit.WithTicketLease(ticketLease))...)
	require.NoError(t, err)
	running := ratelimit.Must(ratelimit.NewInFlight(s.Client, 2, time.Hour, s.Opts...))
	all, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(l, "k", 4).Estimate(), ratelimit.ClaimHold(running, "k", 1))
	require.NoError(t, err)
	require.True(t, all.Allowed)
	_, err = all.Parts[0].Ticket.More(ctx, 1)
	require.NoError(t, err)
	require.NoError(t, all.Finish(ctx, nil))
	s.Advance(ticketLease)
	require.Equal(t, 5, left(t, l))
	require.Equal(t, 2, must(t)(running.Peek(ctx, "k")).Remaining)
}

// TestATicketOfAWindowThatIsOver makes no room in the next one.
func TestATicketOfAWindowThatIsOver(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	l, err := ratelimit.NewFixedWindow(s.Client, 10, 15*time.Second, append(s.Opts, ratelimit.WithAlignment(0), ratelimit.WithTicketLease(ticketLease))...)
	require.NoError(t, err)
	s.Move(s.Now.Truncate(15 * time.Second).Add(29 * time.Second))
	estimated(t, l, 5)
	s.Advance(2 * time.Second)
	require.True(t, must(t)(l.TryAcquireN(ctx, "k", 10)).Allowed)
	require.Equal(t, 14*time.Second, must(t)(l.TryAcquire(ctx, "k")).RetryAfter, "the window's end, not the lease's")
}

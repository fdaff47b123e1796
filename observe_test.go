package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/exact"
	"github.com/tryacquire/ratelimit/internal/testing/fakes"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// A recorder is an observer that keeps what it gets.
type recorder struct {
	mu  sync.Mutex // guards all
	all []ratelimit.Observation
}

func (r *recorder) observe(_ context.Context, o ratelimit.Observation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, o)
}

func (r *recorder) option() ratelimit.Option { return ratelimit.WithObserver(r.observe) }

// took returns what came since the last call, without how long the calls took, which is
// checked to be positive, and without what was left before (package observe tests that of what can owe permits).
func (r *recorder) took(t *testing.T) []ratelimit.Observation {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.all
	r.all = nil
	for i := range all {
		if all[i].Call != "breaker" {
			require.Positive(t, all[i].Latency, "%v", all[i].Call)
		}
		if all[i].Taken > 0 && all[i].Result.Remaining > 0 {
			require.Equal(t, all[i].Result.Remaining+all[i].Taken, all[i].Before, "%v", all[i].Call)
		}
		all[i].Latency, all[i].Before = 0, 0
	}
	return all
}

// saw is what a limiter on Redis reports of a call that was sent on its own.
func saw(call ratelimit.Call, outcome ratelimit.Outcome, n, taken int, r ratelimit.Result, err error) ratelimit.Observation {
	return ratelimit.Observation{
		Limiter: "api", Call: call, Outcome: outcome, Source: ratelimit.SourceRedis, Key: "k", N: n, Taken: taken, Result: r, Err: err, Batch: 1,
	}
}

// unasked is saw of a call about which nobody was asked.
func unasked(call ratelimit.Call, n int, err error) ratelimit.Observation {
	o := saw(call, ratelimit.OutcomeFailed, n, 0, ratelimit.Result{}, err)
	o.Source, o.Batch = ratelimit.Source(0), 0
	if errors.Is(err, context.Canceled) {
		o.Outcome = ratelimit.OutcomeCanceled
	}
	return o
}

// aRedisLimiter is what every limiter on Redis can do.
type aRedisLimiter interface {
	ratelimit.Limiter
	ratelimit.PartialTaker
	ratelimit.Settler
}

// observed is a limiter of each kind, of three permits, that reports to rec.
func observed(client ratelimit.Client, rec *recorder, opts ...ratelimit.Option) map[string]aRedisLimiter {
	o := append([]ratelimit.Option{ratelimit.WithName("api"), rec.option()}, opts...)
	return map[string]aRedisLimiter{
		"fixed window":    ratelimit.Must(ratelimit.NewFixedWindow(client, 3, time.Hour, o...)),
		"calendar window": ratelimit.Must(ratelimit.NewCalendarWindow(client, 3, ratelimit.Daily(time.UTC), o...)),
		"hash":            ratelimit.Must(ratelimit.NewSlidingWindow(client, 3, time.Hour, append(o, ratelimit.WithStorage(ratelimit.StorageHash))...)),
		"list":            ratelimit.Must(ratelimit.NewSlidingWindow(client, 3, time.Hour, o...)),
		"zset":            ratelimit.Must(ratelimit.NewSlidingWindow(client, 3, time.Hour, append(o, ratelimit.WithStorage(ratelimit.StorageZSet))...)),
		"log":             ratelimit.Must(ratelimit.NewSlidingLog(client, []ratelimit.Rule{{Limit: 3, Window: time.Hour}}, o...)),
		"token bucket":    ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerHour(1), 3, o...)),
		"leaky bucket":    ratelimit.Must(ratelimit.NewLeakyBucket(client, ratelimit.PerHour(1), 3, o...)),
	}
}

func TestEveryCallIsObservedOnce(t *testing.T) {
	over, cancel := context.WithCancel(ctx)
	cancel()
	leaving, leave := context.WithCancel(ctx) // can end, and does not
	defer leave()
	for _, opts := range [][]ratelimit.Option{nil, {ratelimit.WithoutMerging()}} {
		s := limitertest.OnMiniredis(t)
		rec := &recorder{}
		for name, l := range observed(s.Client, rec, opts...) {
			t.Run(fmt.Sprint(name, ", options: ", len(opts)), func(t *testing.T) {
				want := func(all ...ratelimit.Observation) {
					t.Helper()
					require.Equal(t, all, rec.took(t))
				}
				for _, n := range []int{2, 1, 1} {
					r, err := l.TryAcquireN(leaving, "k", n)
					require.NoError(t, err)
					if r.Allowed {
						want(saw("acquire", ratelimit.OutcomeAllowed, n, n, r, nil))
					} else {
						want(saw("acquire", ratelimit.OutcomeDenied, n, 0, r, nil))
					}
				}
				r := must(t)(l.Peek(ctx, "k"))
				require.False(t, r.Allowed)
				want(saw("peek", ratelimit.OutcomeDone, 1, 0, r, nil))
				require.NoError(t, l.Reset(ctx, "k"))
				want(saw("reset", ratelimit.OutcomeDone, 0, 0, ratelimit.Result{}, nil))

				taken, r, err := l.TryAcquireUpTo(ctx, "k", 5)
				require.NoError(t, err)
				require.Equal(t, 3, taken)
				want(saw("up to", ratelimit.OutcomeAllowed, 5, 3, r, nil))
				_, r, err = l.TryAcquireUpTo(ctx, "k", 5)
				require.NoError(t, err)
				want(saw("up to", ratelimit.OutcomeDenied, 5, 0, r, nil))
				_, _, err = l.TryAcquireUpTo(ctx, "k", 0)
				want(unasked("up to", 0, err))

				_, r, err = l.Estimate(ctx, "k", 1)
				require.NoError(t, err)
				want(saw("estimate", ratelimit.OutcomeDenied, 1, 0, r, nil))
				require.NoError(t, l.Reset(ctx, "k"))
				rec.took(t)
				var tickets []*ratelimit.Ticket
				for range 3 {
					ticket, r, err := l.Estimate(ctx, "k", 1)
					require.NoError(t, err)
					want(saw("estimate", ratelimit.OutcomeAllowed, 1, 1, r, nil))
					tickets = append(tickets, ticket)
				}
				require.NoError(t, tickets[0].Settle(ctx, 0))
				want(saw("settle", ratelimit.OutcomeDone, 0, 0, ratelimit.Result{}, nil))
				require.NoError(t, tickets[1].Settle(ctx, 1))
				nothing := saw("settle", ratelimit.OutcomeDone, 1, 0, ratelimit.Result{}, nil)
				nothing.Source, nothing.Batch = ratelimit.Source(0), 0
				want(nothing)
				require.NoError(t, tickets[2].Settle(ctx, 3))
				got := rec.took(t)
				require.Len(t, got, 1)
				require.True(t, got[0].Result.Allowed, "that of the charge")
				require.Equal(t, saw("settle", ratelimit.OutcomeDone, 3, 0, got[0].Result, nil), got[0])
				err = tickets[2].Settle(ctx, 3)
				require.ErrorIs(t, err, ratelimit.ErrSettled)
				want(unasked("settle", 3, err))

				r, err = l.Charge(ctx, "k", 2)
				require.NoError(t, err)
				want(saw("charge", ratelimit.OutcomeDone, 2, 2, r, nil))
				_, err = l.Charge(ctx, "k", 2*exact.Permits)
				require.ErrorIs(t, err, ratelimit.ErrTooMuchDebt)
				want(unasked("charge", 2*exact.Permits, err))

				require.NoError(t, l.Reset(ctx, "k"))
				rec.took(t)
				_, err = l.TryAcquireN(ctx, "k", 4)
				require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
				want(unasked("acquire", 4, err))
				_, err = l.TryAcquire(ctx, "")
				none := unasked("acquire", 1, err)
				none.Key = ""
				want(none)
				_, err = l.TryAcquire(over, "k")
				require.ErrorIs(t, err, context.Canceled)
				want(unasked("acquire", 1, err))
				_, err = l.Peek(over, "k")
				want(unasked("peek", 1, err))
				err = l.Reset(over, "k")
				want(unasked("reset", 0, err))
			})
		}
	}
}

func TestFailuresAreObserved(t *testing.T) {
	rec := &recorder{}
	down := errors.New("connection refused")
	for name, l := range observed(fakes.Failing(down), rec) {
		_, err := l.TryAcquireN(ctx, "k", 2)
		_, err2 := l.Peek(ctx, "k")
		err3 := l.Reset(ctx, "k")
		_, _, err4 := l.TryAcquireUpTo(ctx, "k", 2)
		_, _, err5 := l.Estimate(ctx, "k", 2)
		_, err6 := l.Charge(ctx, "k", 2)
		fail := func(call ratelimit.Call, n int, err error) ratelimit.Observation {
			require.ErrorIs(t, err, down)
			return saw(call, ratelimit.OutcomeFailed, n, 0, ratelimit.Result{}, err)
		}
		require.Equal(t, []ratelimit.Observation{
			fail("acquire", 2, err), fail("peek", 1, err2), fail("reset", 0, err3),
			fail("up to", 2, err4), fail("estimate", 2, err5), fail("charge", 2, err6),
		}, rec.took(t), name)
	}
}

func TestReservationsAndWaitsAreObserved(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	rec := &recorder{}
	for name, l := range observed(s.Client, rec) {
		b, ok := l.(ratelimit.Reserver)
		if !ok {
			continue
		}
		t.Run(name, func(t *testing.T) {
			s.Wipe(t)
			first, err := b.Reserve(ctx, "k", 3, 0)
			require.NoError(t, err)
			require.Equal(t, []ratelimit.Observation{saw("reserve", ratelimit.OutcomeAllowed, 3, 3, first.Result(), nil)}, rec.took(t))
			second, err := b.Reserve(ctx, "k", 2, 2*time.Hour)
			require.NoError(t, err)
			later := saw("reserve", ratelimit.OutcomeAllowed, 2, 2, second.Result(), nil)
			later.Waited = 2 * time.Hour
			require.Equal(t, []ratelimit.Observation{later}, rec.took(t))
			_, err = b.Reserve(ctx, "k", 1, time.Hour)
			require.ErrorIs(t, err, ratelimit.ErrWaitTooLong)
			require.Equal(t, []ratelimit.Observation{saw("reserve", ratelimit.OutcomeDenied, 1, 0, ratelimit.Result{}, err)}, rec.took(t))
			_, err = b.Reserve(ctx, "k", 1, -1)
			require.Equal(t, []ratelimit.Observation{unasked("reserve", 1, err)}, rec.took(t))
			require.NoError(t, second.Cancel(ctx))
			require.Equal(t, []ratelimit.Observation{saw("cancel", ratelimit.OutcomeDone, 2, 0, ratelimit.Result{}, nil)}, rec.took(t))
			require.NoError(t, second.Cancel(ctx), "does nothing")
			require.Empty(t, rec.took(t))

			soon, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			cached := ratelimit.Must(ratelimit.NewDenyCache(b, rec.option()))
			for _, through := range []ratelimit.Limiter{b, cached} {
				_, err = ratelimit.WaitN(soon, through, "k", 1)
				require.ErrorIs(t, err, ratelimit.ErrWaitTooLong)
				require.Equal(t, []ratelimit.Observation{saw("wait", ratelimit.OutcomeDenied, 1, 0, ratelimit.Result{}, err)}, rec.took(t))
				_, err = ratelimit.WaitN(soon, through, "k", 4)
				require.Equal(t, []ratelimit.Observation{unasked("wait", 4, err)}, rec.took(t))
			}
			require.NoError(t, b.Reset(ctx, "k"))
			rec.took(t)
			r := must(t)(ratelimit.WaitN(soon, cached, "k", 3))
			got := rec.took(t)
			require.Less(t, got[0].Waited, time.Minute)
			got[0].Waited = 0
			require.Equal(t, []ratelimit.Observation{saw("wait", ratelimit.OutcomeAllowed, 3, 3, r, nil)}, got)
		})
	}
}

// Where there is nothing to reserve, a wait is one call too.
func TestAPolledWaitIsObservedAsOneCall(t *testing.T) {
	rec := &recorder{}
	l := observed(limitertest.OnMiniredis(t).Client, rec)["fixed window"]
	soon, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	first := must(t)(ratelimit.WaitN(soon, l, "k", 3))
	_, err := ratelimit.WaitN(soon, l, "k", 3)
	require.ErrorIs(t, err, ratelimit.ErrWaitTooLong)
	got := rec.took(t)
	require.Len(t, got, 2)
	require.Equal(t, saw("wait", ratelimit.OutcomeAllowed, 3, 3, first, nil), got[0])
	require.Equal(t, saw("wait", ratelimit.OutcomeDenied, 3, 0, got[1].Result, err), got[1])
}

func TestHoldsAreObserved(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	rec := &recorder{}
	f := ratelimit.Must(ratelimit.NewInFlight(s.Client, 3, time.Minute, ratelimit.WithName("api"), rec.option()))
	want := func(held, change int, o ratelimit.Observation) {
		t.Helper()
		o.Held, o.HeldChange = held, change
		require.Equal(t, []ratelimit.Observation{o}, rec.took(t))
	}
	two, r, err := f.TryAcquireN(ctx, "k", 2)
	require.NoError(t, err)
	want(2, 2, saw("hold", ratelimit.OutcomeAllowed, 2, 2, r, nil))
	_, r, err = f.TryAcquireN(ctx, "k", 2)
	require.NoError(t, err)
	want(2, 0, saw("hold", ratelimit.OutcomeDenied, 2, 0, r, nil))
	_, _, err = f.TryAcquireN(ctx, "k", 4)
	want(2, 0, unasked("hold", 4, err))
	one, r, err := f.TryAcquire(ctx, "k")
	require.NoError(t, err)
	want(3, 1, saw("hold", ratelimit.OutcomeAllowed, 1, 1, r, nil))
	r = must(t)(f.Peek(ctx, "k"))
	want(3, 0, saw("peek", ratelimit.OutcomeDone, 1, 0, r, nil))
	require.NoError(t, two.Extend(ctx))
	want(3, 0, saw("extend", ratelimit.OutcomeDone, 2, 0, ratelimit.Result{}, nil))
	require.NoError(t, two.Release(ctx))
	want(1, -2, saw("release", ratelimit.OutcomeDone, 2, 0, ratelimit.Result{}, nil))
	require.NoError(t, two.Release(ctx), "does nothing")
	require.Empty(t, rec.took(t))
	err = two.Extend(ctx)
	require.ErrorIs(t, err, ratelimit.ErrLeaseLost)
	want(1, 0, unasked("extend", 2, err))
	require.NoError(t, f.Reset(ctx, "k"))
	rec.took(t)
	err = one.Extend(ctx)
	require.ErrorIs(t, err, ratelimit.ErrLeaseLost)
	want(0, -1, saw("extend", ratelimit.OutcomeFailed, 1, 0, ratelimit.Result{}, err))
	require.NoError(t, one.Release(ctx))
	require.Empty(t, rec.took(t), "a lease that is lost needs no release")

	require.NoError(t, f.Do(ctx, "k", func(context.Context) error { return nil }))
	got := rec.took(t)
	require.Len(t, got, 2)
	require.Equal(t, []any{ratelimit.Call("hold"), 1, ratelimit.Call("release"), 0}, []any{got[0].Call, got[0].Held, got[1].Call, got[1].Held})

	down := ratelimit.Must(ratelimit.NewInFlight(fakes.Failing(redis.ErrClosed), 3, time.Minute, ratelimit.WithName("api"), rec.option()))
	_, _, err = down.TryAcquire(ctx, "k")
	want(0, 0, saw("hold", ratelimit.OutcomeFailed, 1, 0, ratelimit.Result{}, err))
}

func TestTogetherEachLimiterReports(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	rec := &recorder{}
	named := func(name string) []ratelimit.Option {
		return []ratelimit.Option{ratelimit.WithName(name), rec.option()}
	}
	small := ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 1, time.Hour, named("small")...))
	large := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerHour(1), 5, named("large")...))
	silent := ratelimit.Must(ratelimit.NewSlidingLog(s.Client, []ratelimit.Rule{{Limit: 9, Window: time.Hour}}, ratelimit.WithName("silent")))
	flights := ratelimit.Must(ratelimit.NewInFlight(s.Client, 5, time.Minute, named("flights")...))
	of := func(name string, o ratelimit.Observation) ratelimit.Observation {
		o.Limiter = name
		return o
	}
	both := ratelimit.Must(ratelimit.NewAll(small, large, silent))
	_ = must(t)(both.TryAcquire(ctx, "k"))
	got := rec.took(t)
	require.Len(t, got, 2)
	require.Equal(t, of("small", saw("acquire", ratelimit.OutcomeAllowed, 1, 1, got[0].Result, nil)), got[0])
	require.Equal(t, of("large", saw("acquire", ratelimit.OutcomeAllowed, 1, 1, got[1].Result, nil)), got[1])
	require.Equal(t, []int{0, 4}, []int{got[0].Result.Remaining, got[1].Result.Remaining})

	r, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(small, "k", 1), ratelimit.ClaimOf(large, "k", 1), ratelimit.ClaimOf(large, "k", 1), ratelimit.ClaimHold(flights, "k", 1))
	require.NoError(t, err)
	require.False(t, r.Allowed)
	require.Equal(t, []ratelimit.Observation{
		of("small", saw("acquire", ratelimit.OutcomeDenied, 1, 0, r.Parts[0].Result, nil)),
		of("large", saw("acquire", ratelimit.OutcomeUntaken, 2, 0, r.Parts[1].Result, nil)),
		of("flights", saw("hold", ratelimit.OutcomeUntaken, 1, 0, r.Parts[3].Result, nil)),
	}, rec.took(t))

	r, err = ratelimit.TryAcquireAll(ctx, ratelimit.ClaimHold(flights, "k", 2), ratelimit.ClaimOf(large, "k", 3).Estimate())
	require.NoError(t, err)
	held := of("flights", saw("hold", ratelimit.OutcomeAllowed, 2, 2, r.Parts[0].Result, nil))
	held.Held, held.HeldChange = 2, 2
	require.Equal(t, []ratelimit.Observation{
		held, of("large", saw("estimate", ratelimit.OutcomeAllowed, 3, 3, r.Parts[1].Result, nil)),
	}, rec.took(t))
	require.NoError(t, r.Finish(ctx, nil))
	released := of("flights", saw("release", ratelimit.OutcomeDone, 2, 0, ratelimit.Result{}, nil))
	released.HeldChange = -2
	require.Equal(t, []ratelimit.Observation{released}, rec.took(t))

	r, err = ratelimit.Look(ctx, ratelimit.ClaimOf(small, "k", 1), ratelimit.ClaimOf(large, "k", 1))
	require.NoError(t, err)
	require.Equal(t, []ratelimit.Observation{
		of("small", saw("peek", ratelimit.OutcomeDone, 1, 0, r.Parts[0].Result, nil)),
		of("large", saw("peek", ratelimit.OutcomeDone, 1, 0, r.Parts[1].Result, nil)),
	}, rec.took(t))

	_, err = both.TryAcquireN(ctx, "k", 2)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	require.Equal(t, []ratelimit.Observation{
		of("small", unasked("acquire", 2, err)), of("large", unasked("acquire", 2, err)),
	}, waitedNothing(rec.took(t)))
	over, cancel := context.WithCancel(ctx)
	cancel()
	_, err = both.TryAcquire(over, "k")
	require.Equal(t, []ratelimit.Observation{
		of("small", unasked("acquire", 1, err)), of("large", unasked("acquire", 1, err)),
	}, waitedNothing(rec.took(t)))

	down := ratelimit.Must(ratelimit.NewFixedWindow(fakes.Failing(redis.ErrClosed), 1, time.Hour, named("down")...))
	_, err = ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(down, "k", 1))
	require.Equal(t, []ratelimit.Observation{of("down", saw("acquire", ratelimit.OutcomeFailed, 1, 0, ratelimit.Result{}, err))}, rec.took(t))
}

// waitedNothing is observations of calls that were never sent, without the moment that it
// took to find out.
func waitedNothing(all []ratelimit.Observation) []ratelimit.Observation {
	for i := range all {
		all[i].Waited = 0
	}
	return all
}

// The keys may be on several shards of a Ring, so each limiter is asked on its own.
func TestAcrossSlotsEachLimiterReports(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	ring := ringOf(t, s.Client.(*redis.Client).Options().Addr)
	rec := &recorder{}
	var claims []ratelimit.Claim
	for i := range 5 {
		l := ratelimit.Must(ratelimit.NewSlidingWindow(ring, 2-i/4, time.Hour, ratelimit.WithName(fmt.Sprint("window-", i)), rec.option()))
		claims = append(claims, ratelimit.ClaimOf(l, fmt.Sprint("k", i), 1))
	}
	flights := ratelimit.Must(ratelimit.NewInFlight(ring, 5, time.Minute, ratelimit.WithName("flights"), rec.option()))
	claims = append(claims, ratelimit.ClaimHold(flights, "k5", 1))
	for _, allowed := range []bool{true, false} {
		r, err := ratelimit.TryAcquireAcrossSlots(ctx, claims...)
		require.NoError(t, err)
		require.Equal(t, allowed, r.Allowed)
		var want []ratelimit.Observation
		for i, part := range r.Parts {
			o := saw("acquire", ratelimit.OutcomeAllowed, 1, 1, part.Result, nil)
			o.Limiter, o.Key = part.Name, part.Key
			if i == 5 {
				o.Call = "hold"
				if o.Held = 1; allowed {
					o.HeldChange = 1
				}
			}
			if !allowed {
				o.Outcome, o.Taken = ratelimit.OutcomeUntaken, 0
				if i == 4 {
					o.Outcome = ratelimit.OutcomeDenied
				}
			}
			want = append(want, o)
		}
		require.Equal(t, want, rec.took(t))
	}
	claims[0] = ratelimit.ClaimOf(ratelimit.Must(ratelimit.NewSlidingWindow(fakes.Failing(redis.ErrClosed), 2, time.Hour)), "k", 1)
	_, err := ratelimit.TryAcquireAcrossSlots(ctx, claims...)
	require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
	require.Empty(t, rec.took(t), "limiters that cannot be put together")
}

type crossSlot struct{ error }

func (crossSlot) RedisError() {}

// A call that is made once more, slot by slot, is reported once.
func TestAcrossSlotsOfAnotherClientReportsOnce(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	rec := &recorder{}
	client := fakes.Before(s.Client, func(_ context.Context, cmd redis.Cmder) error {
		if args := cmd.Args(); len(args) > 2 && args[2] != 1 && args[2] != "1" && fakes.IsScript(cmd) { // several keys
			return crossSlot{errors.New("CROSSSLOT Keys in request don't hash to the same slot")}
		}
		return nil
	})
	first := ratelimit.Must(ratelimit.NewFixedWindow(client, 2, time.Hour, ratelimit.WithName("first"), rec.option()))
	second := ratelimit.Must(ratelimit.NewFixedWindow(client, 2, time.Hour, ratelimit.WithName("second"), rec.option()))
	claims := []ratelimit.Claim{ratelimit.ClaimOf(first, "k", 1), ratelimit.ClaimOf(second, "k", 1)}
	r, err := ratelimit.TryAcquireAcrossSlots(ctx, claims...)
	require.NoError(t, err)
	var want []ratelimit.Observation
	for _, part := range r.Parts {
		o := saw("acquire", ratelimit.OutcomeAllowed, 1, 1, part.Result, nil)
		o.Limiter = part.Name
		want = append(want, o)
	}
	require.Equal(t, want, rec.took(t))

	_, err = ratelimit.TryAcquireAll(ctx, claims...)
	require.ErrorIs(t, err, ratelimit.ErrCrossSlot)
	require.Len(t, rec.took(t), 2, "which is not made once more")
}

func TestADenyCacheReportsWhatItDenies(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	rec := &recorder{}
	inner := ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 2, time.Hour, ratelimit.WithName("api"), rec.option()))
	memory := func(call ratelimit.Call, outcome ratelimit.Outcome, n int, r ratelimit.Result) ratelimit.Observation {
		o := saw(call, outcome, n, 0, r, nil)
		o.Source, o.Batch = ratelimit.SourceMemory, 0
		return o
	}
	cache := ratelimit.Must(ratelimit.NewDenyCache(inner, rec.option()))
	choice := ratelimit.Must(ratelimit.NewChoice(func(_ context.Context, key string) (ratelimit.Limiter, error) {
		if key == "nobody" {
			return nil, nil
		}
		return inner, nil
	}))
	around := ratelimit.Must(ratelimit.NewDenyCache(choice, rec.option()))
	other := ratelimit.Must(ratelimit.NewDenyCache(inner, rec.option(), ratelimit.WithName("other")))
	for name, c := range map[string]*ratelimit.DenyCache{"api": cache, "picked": around, "other": other} {
		require.NoError(t, c.Reset(ctx, "k"))
		require.Equal(t, []ratelimit.Observation{saw("reset", ratelimit.OutcomeDone, 0, 0, ratelimit.Result{}, nil)}, rec.took(t))
		r := must(t)(c.TryAcquireN(ctx, "k", 2))
		require.Equal(t, []ratelimit.Observation{saw("acquire", ratelimit.OutcomeAllowed, 2, 2, r, nil)}, rec.took(t))
		r = must(t)(c.TryAcquire(ctx, "k"))
		require.Equal(t, []ratelimit.Observation{saw("acquire", ratelimit.OutcomeDenied, 1, 0, r, nil)}, rec.took(t))

		first, second := must(t)(c.TryAcquireN(ctx, "k", 2)), must(t)(c.Peek(ctx, "k"))
		want := []ratelimit.Observation{
			memory("acquire", ratelimit.OutcomeDenied, 2, first), memory("peek", ratelimit.OutcomeDone, 1, second),
		}
		if name == "other" {
			want[0].Limiter, want[1].Limiter = "other", "other"
		}
		require.Equal(t, want, rec.took(t))
		_, err := c.TryAcquire(ctx, "")
		o := unasked("acquire", 1, err)
		o.Key = ""
		if o.Limiter = name; name == "picked" {
			o.Limiter = "default" // nobody was picked
		}
		require.Equal(t, []ratelimit.Observation{o}, rec.took(t))
	}
	_, err := around.Peek(ctx, "nobody")
	none := unasked("peek", 1, err)
	none.Limiter, none.Key = "default", "nobody"
	require.Equal(t, []ratelimit.Observation{none}, rec.took(t))

	_, r, err := cache.Estimate(ctx, "k", 1)
	require.NoError(t, err)
	require.Equal(t, []ratelimit.Observation{memory("estimate", ratelimit.OutcomeDenied, 1, r)}, rec.took(t))
	_, r, err = cache.TryAcquireUpTo(ctx, "k", 7)
	require.NoError(t, err)
	require.Equal(t, []ratelimit.Observation{memory("up to", ratelimit.OutcomeDenied, 7, r)}, rec.took(t))
	_, _, err = cache.TryAcquireUpTo(ctx, "k", 0)
	require.Equal(t, []ratelimit.Observation{unasked("up to", 0, err)}, rec.took(t))
	_, _, err = cache.Estimate(ctx, "k", 0)
	require.Equal(t, []ratelimit.Observation{unasked("estimate", 0, err)}, rec.took(t))
}

// One call that the primary fails and the secondary answers is both.
func TestPrimaryAndFallbackReport(t *testing.T) {
	rec := &recorder{}
	down := errors.New("connection refused")
	primary := ratelimit.Must(ratelimit.NewTokenBucket(fakes.Failing(down), ratelimit.PerSecond(1), 5, ratelimit.WithName("api"), rec.option()))
	cached := ratelimit.Must(ratelimit.NewDenyCache(primary, rec.option()))
	f := ratelimit.Must(ratelimit.NewFallback(cached, ratelimit.DenyAll(), rec.option(),
		ratelimit.WithBreaker(&ratelimit.Breaker{Failures: 1, ProbeEvery: time.Hour})))
	r := must(t)(f.TryAcquireN(ctx, "k", 2))
	got := rec.took(t)
	require.Len(t, got, 3)
	failed := saw("acquire", ratelimit.OutcomeFailed, 2, 0, ratelimit.Result{}, got[0].Err)
	require.ErrorIs(t, got[0].Err, down)
	opened := ratelimit.Observation{
		Limiter: "api", Call: "breaker", Outcome: ratelimit.OutcomeDone, From: ratelimit.BreakerClosed, Breaker: ratelimit.BreakerOpen,
	}
	answered := saw("acquire", ratelimit.OutcomeDenied, 2, 0, r, nil)
	answered.Source, answered.Batch, answered.Reason, answered.Breaker = ratelimit.SourceFallback, 0, got[0].Err, ratelimit.BreakerOpen
	require.Equal(t, []ratelimit.Observation{failed, opened, answered}, got)

	r = must(t)(f.TryAcquireN(ctx, "k", 2))
	answered.Result, answered.Reason = r, ratelimit.ErrBreakerOpen
	require.Equal(t, []ratelimit.Observation{answered}, rec.took(t), "the primary was not asked")

	over, cancel := context.WithCancel(ctx)
	cancel()
	_, err := f.Peek(over, "k")
	gone := unasked("peek", 1, err)
	gone.Breaker = ratelimit.BreakerOpen
	require.Equal(t, []ratelimit.Observation{gone}, rec.took(t))
	_, err = f.TryAcquire(ctx, "")
	gone = unasked("acquire", 1, err)
	gone.Key, gone.Breaker = "", ratelimit.BreakerOpen
	require.Equal(t, []ratelimit.Observation{gone}, rec.took(t))
	err = f.Reset(ctx, "")
	gone.Call, gone.N, gone.Err = "reset", 0, err
	require.Equal(t, []ratelimit.Observation{gone}, rec.took(t))
	err = cached.Reset(ctx, "")
	gone.Err, gone.Breaker = err, ratelimit.BreakerClosed
	require.Equal(t, []ratelimit.Observation{gone}, rec.took(t))
}

func TestALocalBucketReports(t *testing.T) {
	rec := &recorder{}
	clock := limitertest.NewClock()
	l := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerHour(1), 2, ratelimit.WithName("api"), rec.option(), ratelimit.WithClock(clock.Now)))
	local := func(call ratelimit.Call, outcome ratelimit.Outcome, n, taken int, r ratelimit.Result) ratelimit.Observation {
		o := saw(call, outcome, n, taken, r, nil)
		o.Source, o.Batch = ratelimit.SourceLocal, 0
		return o
	}
	allowed, denied, seen := must(t)(l.TryAcquireN(ctx, "k", 2)), must(t)(l.TryAcquire(ctx, "k")), must(t)(l.Peek(ctx, "k"))
	require.NoError(t, l.Reset(ctx, "k"))
	_, err := l.TryAcquireN(ctx, "k", 3)
	require.Equal(t, []ratelimit.Observation{
		local("acquire", ratelimit.OutcomeAllowed, 2, 2, allowed),
		local("acquire", ratelimit.OutcomeDenied, 1, 0, denied),
		local("peek", ratelimit.OutcomeDone, 1, 0, seen),
		local("reset", ratelimit.OutcomeDone, 0, 0, ratelimit.Result{}),
		unasked("acquire", 3, err),
	}, rec.took(t))
	unnamed := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerHour(1), 2, rec.option()))
	_ = must(t)(unnamed.TryAcquire(ctx, "k"))
	require.Equal(t, "default", rec.took(t)[0].Limiter)
}

func TestDecoratorsHaveTheNameOfTheLimiterInside(t *testing.T) {
	client := fakes.Failing(redis.ErrClosed)
	bucket := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(1), 5, ratelimit.WithName("bucket")))
	window := ratelimit.Must(ratelimit.NewFixedWindow(client, 5, time.Second, ratelimit.WithName("window")))
	local := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1), 5, ratelimit.WithName("local")))
	shadow := ratelimit.Must(ratelimit.NewShadow(window, bucket, func(ratelimit.Trial) {}))
	choice := ratelimit.Must(ratelimit.NewChoice(func(context.Context, string) (ratelimit.Limiter, error) { return bucket, nil }))
	for _, test := range []struct {
		inside ratelimit.Limiter
		want   string
		opts   []ratelimit.PolicyOption
	}{
		{bucket, "bucket", nil},
		{ratelimit.Must(ratelimit.NewAll(bucket, window)), "bucket+window", nil},
		{local, "local", nil},
		{ratelimit.Must(ratelimit.NewDenyCache(bucket)), "bucket", nil},
		{ratelimit.Must(ratelimit.NewDenyCache(bucket, ratelimit.WithName("cache"))), "cache", nil},
		{ratelimit.Must(ratelimit.NewLeased(bucket)), "bucket", nil},
		{ratelimit.Must(ratelimit.NewLeased(bucket, ratelimit.WithName("leased"))), "leased", nil},
		{ratelimit.Must(ratelimit.NewFallback(window, local)), "window", nil},
		{shadow, "window", nil},
		{choice, "default", nil},
		{ratelimit.AllowAll(), "default", nil},
		{struct{ *ratelimit.TokenBucket }{bucket}, "bucket", nil},
		{bucket, "mine", []ratelimit.PolicyOption{ratelimit.WithName("mine")}},
	} {
		rec := &recorder{}
		f := ratelimit.Must(ratelimit.NewFallback(test.inside, ratelimit.AllowAll(), append(test.opts, rec.option())...))
		_, err := f.TryAcquire(ctx, "")
		require.Error(t, err)
		require.Equal(t, test.want, rec.took(t)[0].Limiter, "%T", test.inside)
	}
}

func TestObserversAreCalledInTheirOrderWithTheCallersContext(t *testing.T) {
	type ctxKey struct{}
	caller := context.WithValue(ctx, ctxKey{}, "caller")
	var order []string
	note := func(name string) ratelimit.Observer {
		return func(ctx context.Context, _ ratelimit.Observation) {
			order = append(order, fmt.Sprint(name, " ", ctx.Value(ctxKey{})))
		}
	}
	s := limitertest.OnMiniredis(t)
	l := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(1), 5, ratelimit.WithObserver(note("first"), note("second"))))
	_ = must(t)(l.TryAcquire(caller, "k"))
	require.Equal(t, []string{"first caller", "second caller"}, order)
}

func TestErrorsOfWithObserver(t *testing.T) {
	one := func(context.Context, ratelimit.Observation) {}
	for _, test := range []struct {
		opts []ratelimit.Option
		want string
	}{
		{[]ratelimit.Option{ratelimit.WithObserver()}, "WithObserver: there is no function; leave the option out to observe nothing"},
		{[]ratelimit.Option{ratelimit.WithObserver(one, nil)}, "WithObserver: function 2 is nil; leave it out"},
		{[]ratelimit.Option{ratelimit.WithObserver(one), ratelimit.WithObserver(one)}, "WithObserver is given twice"},
	} {
		_, err := ratelimit.NewTokenBucket(fakes.Failing(nil), ratelimit.PerSecond(1), 5, test.opts...)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
		require.ErrorContains(t, err, test.want)
	}
	_, err := ratelimit.NewDenyCache(ratelimit.AllowAll(), ratelimit.WithName("a:b"))
	require.ErrorContains(t, err, `WithName: "a:b" holds a colon`)
}

func TestNamesOfWhatIsObserved(t *testing.T) {
	var outcomes, sources []string
	for o := range ratelimit.OutcomeCanceled + 2 {
		outcomes = append(outcomes, o.String())
	}
	for s := range ratelimit.SourceLease + 2 {
		sources = append(sources, s.String())
	}
	require.Equal(t, []string{"unknown outcome", "allowed", "denied", "untaken", "done", "failed", "canceled", "unknown outcome"}, outcomes)
	require.Equal(t, []string{"none", "redis", "memory", "fallback", "local", "lease", "unknown source"}, sources)
}

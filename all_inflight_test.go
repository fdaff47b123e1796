package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/fakes"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
	"github.com/tryacquire/ratelimit/ratelimittest"
)

// Requests, tokens and concurrency: what is denied by one is taken from none.
func TestAllWithPermitsInFlight(t *testing.T) {
	for name, stage := range map[string]func(testing.TB) *limitertest.Stage{"miniredis": limitertest.OnMiniredis, "Redis": limitertest.OnHeldRedis} {
		t.Run(name, func(t *testing.T) {
			s := stage(t)
			now := ratelimit.WithClock(func() time.Time { return s.Now })
			for _, clock := range [][]ratelimit.Option{nil, {now}} {
				s.Wipe(t)
				requests := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(1), 3, clock...))
				tokens := ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 1000, time.Minute, clock...))
				running := ratelimit.Must(ratelimit.NewInFlight(s.Client, 2, 10*time.Second, clock...))
				ends := 10 * time.Second
				if clock != nil {
					ends += 2 * time.Second // the clocks may differ by 1 s, in both directions
				}
				call := func(n int) ratelimit.AllResult {
					r, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(requests, "k", 1), ratelimit.ClaimHold(running, "k", 1), ratelimit.ClaimOf(tokens, "k", n))
					require.NoError(t, err)
					return r
				}
				first := call(400)
				require.Equal(t, ratelimit.AllResult{
					Result: allowedBy(2, 10*time.Second, 1, time.Minute),
					Parts: []ratelimit.PartResult{
						ratelimit.OfBucket(true, ratelimit.PartResult{Name: "default", Key: "k", Result: allowedBy(3, 3*time.Second, 2, time.Second)}),
						{Name: "default", Key: "k", Result: allowedBy(2, 10*time.Second, 1, ends), Hold: first.Parts[1].Hold},
						{Name: "default", Key: "k", Result: allowedBy(1000, time.Minute, 600, time.Minute)},
					},
				}, first)
				require.Positive(t, first.Parts[1].Hold.Left())
				require.NoError(t, first.Parts[1].Hold.Extend(ctx))

				denied := call(601) // by the tokens: no hold
				require.False(t, denied.Allowed)
				require.Nil(t, denied.Parts[1].Hold)
				require.Equal(t, []bool{true, true, false}, verdicts(denied))
				require.Equal(t, 1, must(t)(running.Peek(ctx, "k")).Remaining)
				require.NoError(t, denied.Finish(ctx, nil), "there is nothing to release")

				second := call(1)
				require.True(t, second.Allowed)
				denied = call(1) // by the holds: no tokens
				require.Equal(t, []bool{true, false, true}, verdicts(denied))
				require.Equal(t, deniedBy(2, 10*time.Second, 0, ends, ends), denied.Parts[1].Result)
				require.Equal(t, 599, must(t)(tokens.Peek(ctx, "k")).Remaining)
				require.Equal(t, 1, must(t)(requests.Peek(ctx, "k")).Remaining)
				peeked, err := ratelimit.Look(ctx, ratelimit.ClaimOf(requests, "k", 1), ratelimit.ClaimHold(running, "k", 1), ratelimit.ClaimOf(tokens, "k", 1))
				require.NoError(t, err)
				require.Equal(t, denied, peeked)

				require.NoError(t, first.Finish(ctx, nil))
				require.NoError(t, first.Finish(ctx, nil))
				require.Zero(t, first.Parts[1].Hold.Left())
				third := call(1)
				require.True(t, third.Allowed)
				require.NoError(t, errors.Join(second.Finish(ctx, nil), third.Finish(ctx, nil)))
				require.Equal(t, 2, must(t)(running.Peek(ctx, "k")).Remaining)

				// Claims for one key are one hold.
				both, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimHold(running, "k", 1), ratelimit.ClaimHold(running, "k", 1))
				require.NoError(t, err)
				require.Same(t, both.Parts[0].Hold, both.Parts[1].Hold)
				require.Zero(t, must(t)(running.Peek(ctx, "k")).Remaining)
				require.NoError(t, both.Finish(ctx, nil))
				require.Equal(t, 2, must(t)(running.Peek(ctx, "k")).Remaining)
			}
		})
	}
}

func verdicts(r ratelimit.AllResult) []bool {
	var all []bool
	for _, p := range r.Parts {
		all = append(all, p.Result.Allowed)
	}
	return all
}

// The largest script with permits in flight runs, beside any other limiter.
func TestTheLargestScriptsWithPermitsInFlightRun(t *testing.T) {
	raceflag.Skip(t)
	s := limitertest.OnRedis(t)
	for _, clock := range [][]ratelimit.Option{nil, {ratelimit.WithClock(time.Now)}} {
		for _, v := range limitertest.Variants() {
			s.Wipe(t)
			l, err := v.Build(s.Client, clock...)
			require.NoError(t, err)
			if _, several := l.(*ratelimit.All); several {
				continue
			}
			claims := []ratelimit.Claim{ratelimit.ClaimOf(l, v.Of("k"), 1)}
			for i := range 9 {
				f := ratelimit.Must(ratelimit.NewInFlight(s.Client, 2, time.Minute, append([]ratelimit.Option{ratelimit.WithName(fmt.Sprint("n", i))}, clock...)...))
				claims = append(claims, ratelimit.ClaimHold(f, v.Of("k"), 1))
				r, err := ratelimit.TryAcquireAll(ctx, claims...)
				if i == 7 {
					require.EqualError(t, err, "ratelimit: invalid configuration: 9 limiters are too many for one script, which holds at most 8")
					break
				}
				require.NoError(t, err, "%s and %d in flight", v.Name, i+1)
				require.NoError(t, r.Finish(ctx, nil))
				require.NoError(t, v.Forget(l, "k"))
			}
		}
	}
}

// After a lost reply, and when the caller has left, permits in flight are given back.
func TestAllGivesBackPermitsInFlightThatNobodyGot(t *testing.T) {
	client := redistest.Shared(t).Client(t)
	require.NoError(t, client.FlushAll(ctx).Err())
	lossy := fakes.Losing(client, func(cmd redis.Cmder) error {
		if fakes.IsScript(cmd) {
			return errLost
		}
		return nil
	})
	bucket := ratelimit.Must(ratelimit.NewTokenBucket(lossy, ratelimit.PerHour(1), 5))
	running := ratelimit.Must(ratelimit.NewInFlight(lossy, 2, time.Hour))
	seen := ratelimit.Must(ratelimit.NewInFlight(client, 2, time.Hour))
	cancellable, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, ctx := range []context.Context{ctx, cancellable} {
		r, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(bucket, "k", 1), ratelimit.ClaimHold(running, "k", 1))
		require.ErrorIs(t, err, errLost)
		require.Zero(t, r)
		require.Eventually(t, func() bool { return must(t)(seen.Peek(ctx, "k")).Remaining == 2 }, 10*time.Second, time.Millisecond)
	}
	require.Equal(t, 3, must(t)(ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerHour(1), 5)).Peek(ctx, "k")).Remaining)
}

// TestAllDoesItsWork: Do keeps the holds of all limiters, and releases them.
func TestAllDoesItsWork(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	window := ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 2, time.Hour))
	tenant := ratelimit.Must(ratelimit.NewInFlight(s.Client, 2, time.Hour, ratelimit.WithName("tenant")))
	all := ratelimit.Must(ratelimit.NewInFlight(s.Client, 9, time.Hour, ratelimit.WithName("all")))
	call := func() ratelimit.AllResult {
		r, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimHold(tenant, "k", 1), ratelimit.ClaimOf(window, "k", 1), ratelimit.ClaimHold(all, "all", 1))
		require.NoError(t, err)
		return r
	}
	free := func() []int {
		return []int{must(t)(tenant.Peek(ctx, "k")).Remaining, must(t)(all.Peek(ctx, "all")).Remaining}
	}
	failure := errors.New("of the work")
	r := call()
	require.ErrorIs(t, r.Do(ctx, nil, nil), ratelimit.ErrInvalidConfig)
	require.Equal(t, failure, r.Do(ctx, func(context.Context) error {
		require.Equal(t, []int{1, 8}, free())
		return failure
	}, nil))
	require.Equal(t, []int{2, 9}, free())
	require.PanicsWithValue(t, "boom", func() { _ = call().Do(ctx, func(context.Context) error { panic("boom") }, nil) })
	require.Equal(t, []int{2, 9}, free())

	work := func(context.Context) error { t.Error("it ran"); return nil }
	require.ErrorIs(t, call().Do(ctx, work, nil), ratelimit.ErrDenied)
	require.ErrorIs(t, r.Do(ctx, work, nil), ratelimit.ErrLeaseLost, "it was released")

	other := ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 2, time.Hour, ratelimit.WithName("other")))
	r, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(other, "k", 1))
	require.NoError(t, err)
	require.Equal(t, failure, r.Do(ctx, func(context.Context) error { return failure }, nil), "nothing is held")
}

// TestAllDoesItsWorkWithTwoClaimsOfAKey: they have one Hold together, which is not lost when it is
// released.
func TestAllDoesItsWorkWithTwoClaimsOfAKey(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	f := ratelimit.Must(ratelimit.NewInFlight(s.Client, 5, time.Hour))
	r, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimHold(f, "k", 1), ratelimit.ClaimHold(f, "other", 1), ratelimit.ClaimHold(f, "k", 2))
	require.NoError(t, err)
	require.NoError(t, r.Do(ctx, func(context.Context) error {
		require.Equal(t, 2, must(t)(f.Peek(ctx, "k")).Remaining)
		require.Equal(t, 4, must(t)(f.Peek(ctx, "other")).Remaining)
		return nil
	}, nil))
	require.Equal(t, 5, must(t)(f.Peek(ctx, "k")).Remaining)
	require.Equal(t, 5, must(t)(f.Peek(ctx, "other")).Remaining)
}

// TestAllReleasesEveryHoldIfALeaseIsOver before the work: the work does not run, and the other
// places are free at once, not only when their leases end.
func TestAllReleasesEveryHoldIfALeaseIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := ratelimittest.New(t)
		short := ratelimit.Must(ratelimit.NewInFlight(env.Client(), 1, time.Second, ratelimit.WithName("short")))
		long := ratelimit.Must(ratelimit.NewInFlight(env.Client(), 1, time.Hour, ratelimit.WithName("long")))
		for _, claims := range [][]ratelimit.Claim{
			{ratelimit.ClaimHold(short, "k", 1), ratelimit.ClaimHold(long, "k", 1)},
			{ratelimit.ClaimHold(long, "k", 1), ratelimit.ClaimHold(short, "k", 1)},
		} {
			r, err := ratelimit.TryAcquireAll(ctx, claims...)
			require.NoError(t, err)
			require.True(t, r.Allowed)
			env.Advance(time.Second)
			err = r.Do(ctx, func(context.Context) error { t.Error("it ran"); return nil }, nil)
			require.ErrorIs(t, err, ratelimit.ErrLeaseLost)
			require.Equal(t, 1, must(t)(short.Peek(ctx, "k")).Remaining)
			require.Equal(t, 1, must(t)(long.Peek(ctx, "k")).Remaining)
		}
	})
}

func TestAcrossSlotsWithPermitsInFlight(t *testing.T) {
	shared := redistest.Shared(t)
	ring := ringOf(t, shared.Addr())
	require.NoError(t, shared.Client(t).FlushAll(ctx).Err())
	running := ratelimit.Must(ratelimit.NewInFlight(ring, 2, time.Hour))
	window := ratelimit.Must(ratelimit.NewFixedWindow(ring, 1, time.Hour))
	r, err := ratelimit.TryAcquireAcrossSlots(ctx, ratelimit.ClaimHold(running, "a", 1), ratelimit.ClaimOf(window, "b", 1))
	require.NoError(t, err)
	require.True(t, r.Allowed)
	denied, err := ratelimit.TryAcquireAcrossSlots(ctx, ratelimit.ClaimHold(running, "a", 1), ratelimit.ClaimOf(window, "b", 1))
	require.NoError(t, err)
	require.Equal(t, []bool{true, false}, verdicts(denied))
	require.Nil(t, denied.Parts[0].Hold)
	require.Equal(t, 1, denied.Parts[0].Result.Remaining)
	require.Equal(t, 1, must(t)(running.Peek(ctx, "a")).Remaining)
	require.NoError(t, r.Finish(ctx, nil))
	require.Equal(t, 2, must(t)(running.Peek(ctx, "a")).Remaining)
}

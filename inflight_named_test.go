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
	"github.com/tryacquire/ratelimit/internal/testing/fakes"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// holdAs holds n permits of k under an id.
func holdAs(t testing.TB, h ratelimit.Holder, id string, n int) (ratelimit.AllResult, *ratelimit.Hold) {
	t.Helper()
	r, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimHold(h, "k", n).As(id))
	require.NoError(t, err)
	require.Equal(t, r.Allowed, r.Parts[0].Hold != nil)
	return r, r.Parts[0].Hold
}

// TestTheSameHoldByItsID: a repeated call takes no place, and begins the lease again.
func TestTheSameHoldByItsID(t *testing.T) {
	inFlightStages(t, func(t *testing.T, s *limitertest.Stage) {
		late := 2 * s.MaxSkew
		f := newInFlight(t, s, 3, 10*time.Second)
		other := newInFlight(t, s, 3, 10*time.Second) // of another process
		first, hold := holdAs(t, f, "job 1", 2)
		require.False(t, first.Repeated)
		require.Equal(t, 1, first.Remaining)
		s.Advance(4 * time.Second)
		found, _ := holdAs(t, other, "job 1", 2)
		require.True(t, found.Repeated)
		require.Equal(t, ratelimit.Result{Allowed: true, Limit: 3, Window: 10 * time.Second, Remaining: 1, ResetAfter: 10*time.Second + late}, found.Result)
		require.EqualValues(t, 2, s.Admin.ZCard(ctx, inFlightKey).Val())

		_, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimHold(f, "k", 1).As("job 1"))
		require.ErrorIs(t, err, ratelimit.ErrIDReused)
		require.ErrorContains(t, err, "its hold has another number of permits; ask for as many, or take another id")
		_, err = ratelimit.TryAcquireAll(ctx, ratelimit.ClaimHold(f, "k", 3).As("job 1"))
		require.ErrorIs(t, err, ratelimit.ErrIDReused)
		require.EqualValues(t, 2, s.Admin.ZCard(ctx, inFlightKey).Val(), "nothing was taken")

		// The limit holds for others, and the hold is found where no place is free.
		_, one := holdAs(t, f, "job 2", 1)
		require.NotNil(t, one)
		denied, _ := holdAs(t, f, "job 3", 1)
		require.False(t, denied.Allowed)
		require.Equal(t, 10*time.Second+late, denied.RetryAfter)
		again, taken := holdAs(t, other, "job 1", 2)
		require.True(t, again.Repeated)
		require.Equal(t, 0, again.Remaining)

		// The process that has taken it over extends it, and whoever releases it ends it for all.
		s.Advance(9 * time.Second)
		require.NoError(t, taken.Extend(ctx))
		require.NoError(t, taken.Release(ctx))
		require.ErrorIs(t, hold.Extend(ctx), ratelimit.ErrLeaseLost)
		require.NoError(t, one.Release(ctx))
		require.Zero(t, s.Admin.Exists(ctx, inFlightKey).Val(), "the key goes with its last hold")
	})
}

// TestAnIDWhoseLeaseHasEnded is that of a new hold, if there is a place.
func TestAnIDWhoseLeaseHasEnded(t *testing.T) {
	inFlightStages(t, func(t *testing.T, s *limitertest.Stage) {
		f := newInFlight(t, s, 5, 10*time.Second)
		_, _ = holdAs(t, f, "job", 5)
		s.Advance(10*time.Second + 2*s.MaxSkew - time.Microsecond)
		r, _ := holdAs(t, f, "job", 5)
		require.True(t, r.Repeated)
		s.Advance(10*time.Second + 2*s.MaxSkew)
		r, _ = holdAs(t, f, "job", 2)
		require.True(t, r.Allowed)
		require.False(t, r.Repeated)
		require.Equal(t, 3, r.Remaining)
		_, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimHold(f, "k", 5).As("job"))
		require.ErrorIs(t, err, ratelimit.ErrIDReused, "what is left of the hold that has ended is not counted")
		_, _ = take(t, f, 3)
		s.Advance(10*time.Second + 2*s.MaxSkew)
		_, _ = take(t, f, 4)
		r, _ = holdAs(t, f, "job", 2)
		require.False(t, r.Allowed, "others have its place")
		require.False(t, r.Repeated)
	})
}

// TestAHoldUnderAnIDIsNotGivenBack: a lost reply, and a caller that leaves, leave it to the call that repeats it.
func TestAHoldUnderAnIDIsNotGivenBack(t *testing.T) {
	for name, open := range onceStages {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			var lose atomic.Bool
			lossy := fakes.Losing(s.Client, func(redis.Cmder) error {
				if lose.Load() {
					return io.ErrUnexpectedEOF
				}
				return nil
			})
			f := ratelimit.Must(ratelimit.NewInFlight(lossy, 2, time.Minute))
			window := ratelimit.Must(ratelimit.NewFixedWindow(lossy, 100, time.Minute))
			for i, claims := range [][]ratelimit.Claim{
				{ratelimit.ClaimHold(f, "k", 1).As("alone")},
				{ratelimit.ClaimOf(window, "k", 1), ratelimit.ClaimHold(f, "k", 1).As("together")},
			} {
				_, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimHold(f, "other", 1), ratelimit.ClaimOf(window, "other", 1)) // the scripts are known
				require.NoError(t, err)
				lose.Store(true)
				_, err = ratelimit.TryAcquireAll(ctx, claims...)
				require.ErrorIs(t, err, io.ErrUnexpectedEOF)
				lose.Store(false)
				r, err := ratelimit.TryAcquireAll(ctx, claims...)
				require.NoError(t, err)
				require.True(t, r.Repeated)
				hold := r.Parts[len(claims)-1].Hold
				require.NoError(t, hold.Extend(ctx))
				require.EqualValues(t, i+1, s.Admin.ZCard(ctx, inFlightKey).Val())

				lose.Store(true)
				require.ErrorIs(t, hold.Release(ctx), io.ErrUnexpectedEOF)
				lose.Store(false)
				r, err = ratelimit.TryAcquireAll(ctx, claims...)
				require.NoError(t, err)
				require.False(t, r.Repeated, "it was released, once")
			}
		})
	}
}

// TestManyCallersOfOneHold, in batches and alone: of ten ids one place each is taken, whoever asks how often.
func TestManyCallersOfOneHold(t *testing.T) {
	s := limitertest.OnHeldRedis(t)
	f := ratelimit.Must(ratelimit.NewInFlight(s.Client, 10, time.Minute))
	window := ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 10_000, time.Hour))
	var wg sync.WaitGroup
	var took, denied atomic.Int64
	for i := range 128 {
		wg.Go(func() {
			for j := range 10 {
				claims := []ratelimit.Claim{ratelimit.ClaimHold(f, "k", 1).As(fmt.Sprint("id", j)), ratelimit.ClaimOf(window, "k", 1)}
				r, err := ratelimit.TryAcquireAll(ctx, claims[:1+i%2]...)
				switch {
				case err != nil || !r.Allowed:
					if denied.Add(1) == 1 {
						t.Log(r, err)
					}
				case !r.Repeated:
					took.Add(1)
				}
			}
		})
	}
	wg.Wait()
	require.Zero(t, denied.Load())
	require.EqualValues(t, 10, took.Load())
	require.EqualValues(t, 10, s.Admin.ZCard(ctx, inFlightKey).Val())
	require.Equal(t, 10_000-640, must(t)(window.Peek(ctx, "k")).Remaining, "the other claims take theirs each time")
}

// TestAHoldIsHandedOver: nobody releases it by mistake, and each process counts what it has.
func TestAHoldIsHandedOver(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	one, two := &recorder{}, &recorder{}
	f := newInFlight(t, s, 2, time.Minute, ratelimit.WithObserver(one.observe))
	worker := newInFlight(t, s, 2, time.Minute, ratelimit.WithObserver(two.observe))
	_, hold := holdAs(t, f, "job", 1)
	require.NoError(t, hold.HandOver(ctx))
	require.NoError(t, hold.Release(ctx), "a deferred one")
	require.ErrorIs(t, hold.Extend(ctx), ratelimit.ErrLeaseLost)
	require.ErrorIs(t, hold.HandOver(ctx), ratelimit.ErrLeaseLost)
	require.Zero(t, hold.Left())
	require.EqualValues(t, 1, s.Admin.ZCard(ctx, inFlightKey).Val())
	changes := func(r *recorder) (calls []string) {
		for _, o := range r.took(t) {
			calls = append(calls, fmt.Sprint(o.Call, " ", o.Taken, o.HeldChange, o.Held, o.Repeated))
		}
		return calls
	}
	require.Equal(t, []string{"hold 1 1 1 false", "release 0 -1 0 false", "extend 0 0 0 false"}, changes(one))
	r, _ := holdAs(t, worker, "job", 1)
	require.True(t, r.Repeated)
	require.NoError(t, r.Do(ctx, func(context.Context) error { return nil }, nil))
	require.Equal(t, []string{"hold 0 1 1 true", "release 0 -1 0 false"}, changes(two))
	require.Zero(t, s.Admin.Exists(ctx, inFlightKey).Val())

	plain, _ := take(t, f, 1)
	require.ErrorContains(t, plain.HandOver(ctx), "the hold has no id by which another process could claim it; take it with Claim.As")
	require.ErrorIs(t, plain.HandOver(ctx), ratelimit.ErrInvalidConfig)
	require.ErrorIs(t, (*ratelimit.Hold)(nil).HandOver(ctx), ratelimit.ErrLeaseLost)
}

// TestAHoldUnderAnIDIsNotReleasedAfterItsLease: another process may have the id by then.
func TestAHoldUnderAnIDIsNotReleasedAfterItsLease(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	f := newInFlight(t, s, 1, 50*time.Millisecond)
	_, hold := holdAs(t, f, "job", 1)
	require.Eventually(t, func() bool { return hold.Left() == 0 }, 10*time.Second, time.Millisecond)
	r, _ := holdAs(t, f, "job", 1) // the server's clock stands still
	require.True(t, r.Repeated)
	require.NoError(t, hold.Release(ctx))
	require.EqualValues(t, 1, s.Admin.ZCard(ctx, inFlightKey).Val())
}

// TestPoliciesAroundAHoldUnderAnID: it is repeated by whoever decides.
func TestPoliciesAroundAHoldUnderAnID(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	f := ratelimit.Must(ratelimit.NewInFlight(s.Client, 2, time.Minute))
	local := ratelimit.Must(ratelimit.NewLocalInFlight(2))
	outage := ratelimit.Must(ratelimit.NewHoldFallback(f, local, ratelimit.WithBudget(time.Minute)))
	choice := ratelimit.Must(ratelimit.NewHoldChoice(func(context.Context, string) (ratelimit.Holder, error) { return outage, nil }))
	for _, down := range []bool{false, true} {
		if down {
			require.NoError(t, s.Client.(*redis.Client).Close())
		}
		r, hold := holdAs(t, choice, "job", 2)
		require.Equal(t, []bool{true, down, false}, []bool{r.Allowed, r.Fallback, r.Repeated})
		r, again := holdAs(t, choice, "job", 2)
		require.Equal(t, []bool{true, down, true}, []bool{r.Allowed, r.Fallback, r.Repeated})
		require.Equal(t, 0, r.Remaining)
		r, _ = holdAs(t, choice, "other", 1)
		require.Equal(t, []bool{false, down, false}, []bool{r.Allowed, r.Fallback, r.Repeated})
		_, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimHold(choice, "k", 1).As("job"))
		require.ErrorIs(t, err, ratelimit.ErrIDReused)
		require.NoError(t, hold.Release(ctx))
		require.NoError(t, again.Release(ctx), "what is released")
		r, hold = holdAs(t, choice, "other", 2)
		require.False(t, r.Repeated)
		require.True(t, r.Allowed)
		require.NoError(t, hold.Release(ctx))
	}
	for h, allowed := range map[ratelimit.Holder]bool{ratelimit.AllowHolds(): true, ratelimit.DenyHolds(): false} {
		r, _ := holdAs(t, h, "job", 1)
		require.Equal(t, allowed, r.Allowed)
		require.False(t, r.Repeated)
	}
}

// TestAnAbandonedHoldUnderAnIDStays: the call may have been repeated.
func TestAnAbandonedHoldUnderAnIDStays(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	open := make(chan struct{})
	slow := fakes.Before(s.Client, func(context.Context, redis.Cmder) error { <-open; return nil })
	rec := &recorder{}
	f := ratelimit.Must(ratelimit.NewInFlight(slow, 2, time.Minute, ratelimit.WithObserver(rec.observe)))
	outage := ratelimit.Must(ratelimit.NewHoldFallback(f, ratelimit.DenyHolds(), ratelimit.WithBudget(time.Millisecond)))
	r, _ := holdAs(t, outage, "job", 1)
	require.True(t, r.Fallback)
	close(open)
	sum := func() (held, seen int) {
		rec.mu.Lock()
		defer rec.mu.Unlock()
		for _, o := range rec.all {
			held += o.HeldChange
		}
		return held, len(rec.all)
	}
	require.Eventually(t, func() bool { held, seen := sum(); return seen >= 2 && held == 0 }, 10*time.Second, time.Millisecond)
	require.EqualValues(t, 1, s.Admin.ZCard(ctx, inFlightKey).Val())
}

func TestMistakesOfAHoldUnderAnID(t *testing.T) {
	c := limitertest.Offline(t)
	f := ratelimit.Must(ratelimit.NewInFlight(c, 5, time.Minute))
	l := ratelimit.Must(ratelimit.NewTokenBucket(c, ratelimit.PerHour(1), 5))
	local := ratelimit.Must(ratelimit.NewLocalInFlight(5))
	for _, test := range []struct {
		claims []ratelimit.Claim
		is     error
		says   string
		late   bool // CheckClaims does not see it
	}{
		{[]ratelimit.Claim{ratelimit.ClaimHold(f, "k", 1).As("")}, ratelimit.ErrInvalidKey, "the id of Claim.As has 0 bytes; it must have 1 to 4096", false},
		{[]ratelimit.Claim{ratelimit.ClaimHold(f, "k", 1).As(strings.Repeat("i", 4097))}, ratelimit.ErrInvalidKey, "has 4097 bytes", false},
		{[]ratelimit.Claim{ratelimit.ClaimOf(l, "k", 1).As("id")}, ratelimit.ErrInvalidConfig, "are not held; TryAcquireOnce takes permits once for an id", false},
		{[]ratelimit.Claim{ratelimit.ClaimHold(f, "k", 1).As("id"), ratelimit.ClaimHold(f, "k", 1)}, ratelimit.ErrInvalidConfig, "one of them has an id (Claim.As)", false},
		{[]ratelimit.Claim{ratelimit.ClaimHold(local, "k", 1).As("id"), ratelimit.ClaimHold(local, "k", 1)}, ratelimit.ErrInvalidConfig, "one of them has an id (Claim.As)", true},
		{[]ratelimit.Claim{ratelimit.ClaimHold(embedded{f}, "k", 1).As("id")}, ratelimit.ErrInvalidConfig, "cannot hold permits under an id", false},
		{[]ratelimit.Claim{ratelimit.ClaimHold(f, "k", 6).As("id")}, ratelimit.ErrExceedsLimit, "6 permits", false},
	} {
		r, err := ratelimit.TryAcquireAll(ctx, test.claims...)
		require.ErrorIs(t, err, test.is)
		require.ErrorContains(t, err, test.says)
		require.Zero(t, r)
		if !test.late {
			require.ErrorIs(t, ratelimit.CheckClaims(test.claims...), test.is)
		}
	}
}

// embedded is a Holder of a user's.
type embedded struct{ ratelimit.Holder }

// TestAnIDAcrossSlots is refused where no one script decides: what was there before must not be given back.
func TestAnIDAcrossSlots(t *testing.T) {
	s := limitertest.Stages()["Redis Ring"](t)
	f := newInFlight(t, s, 1, time.Minute)
	_, err := ratelimit.TryAcquireAcrossSlots(ctx, ratelimit.ClaimHold(f, "k", 1).As("id"), ratelimit.ClaimHold(f, "l", 1).As("id"))
	require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
	require.ErrorContains(t, err, "claim it in a call of its own")
	r, err := ratelimit.TryAcquireAcrossSlots(ctx, ratelimit.ClaimHold(f, "k", 1).As("id"))
	require.NoError(t, err)
	require.True(t, r.Allowed)
}

// TestIDsOfHoldsInThisProcess: they share places over limits that change, and come back once.
func TestIDsOfHoldsInThisProcess(t *testing.T) {
	f := ratelimit.Must(ratelimit.NewLocalInFlight(3))
	wider := ratelimit.Must(f.With(4))
	_, hold := holdAs(t, f, "job", 3)
	r, _ := holdAs(t, wider, "job", 3)
	require.True(t, r.Repeated)
	require.Equal(t, 1, r.Remaining)
	require.NoError(t, hold.HandOver(ctx))
	require.Equal(t, 1, must(t)(wider.Peek(ctx, "k")).Remaining)
	r, hold = holdAs(t, f, "job", 3)
	require.True(t, r.Repeated)
	require.NoError(t, hold.Release(ctx))
	require.Equal(t, 3, must(t)(f.Peek(ctx, "k")).Remaining)
	_, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimHold(f, "k", 3).As("a"), ratelimit.ClaimHold(f, "l", 1).As("a"))
	require.NoError(t, err)
	_, err = ratelimit.TryAcquireAll(ctx, ratelimit.ClaimHold(f, "k", 3).As("a"), ratelimit.ClaimHold(f, "l", 2).As("a"))
	require.True(t, errors.Is(err, ratelimit.ErrIDReused))
	require.Equal(t, 2, must(t)(f.Peek(ctx, "l")).Remaining, "nothing was taken")
}

package ratelimit_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/ratelimittest"
)

// TestReleaseAs: a hold is given back by its id, in any process and once; what is not there takes nothing.
func TestReleaseAs(t *testing.T) {
	inFlightStages(t, func(t *testing.T, s *limitertest.Stage) {
		late := 2 * s.MaxSkew
		f := newInFlight(t, s, 3, 10*time.Second)
		other := newInFlight(t, s, 3, 10*time.Second) // of another process
		for _, id := range []string{"job 1", "job 2"} {
			require.NoError(t, other.ReleaseAs(ctx, "k", 1, id), "which is not there")
		}
		require.Zero(t, s.Admin.Exists(ctx, inFlightKey).Val(), "nothing was taken")

		_, hold := holdAs(t, f, "job 1", 2)
		_, _ = holdAs(t, f, "job 2", 1)
		r, err := f.Peek(ctx, "k")
		require.NoError(t, err)
		require.Equal(t, ratelimit.Result{Limit: 3, Window: 10 * time.Second, RetryAfter: 10*time.Second + late, ResetAfter: 10*time.Second + late}, r)

		require.NoError(t, other.ReleaseAs(ctx, "k", 1, "job 3"))
		require.NoError(t, other.ReleaseAs(ctx, "other key", 2, "job 1"))
		require.EqualValues(t, 3, s.Admin.ZCard(ctx, inFlightKey).Val(), "another id, another key")
		require.NoError(t, other.ReleaseAs(ctx, "k", 2, "job 1"))
		require.NoError(t, other.ReleaseAs(ctx, "k", 2, "job 1"), "once")
		require.EqualValues(t, 1, s.Admin.ZCard(ctx, inFlightKey).Val())
		require.ErrorIs(t, hold.Extend(ctx), ratelimit.ErrLeaseLost)

		r, err = f.Peek(ctx, "k")
		require.NoError(t, err)
		require.Equal(t, 2, r.Remaining)
		again, _ := holdAs(t, f, "job 1", 2)
		require.False(t, again.Repeated, "it is a new hold")
		require.Equal(t, 0, again.Remaining)
	})
}

func TestReleaseAsOfWhatCannotBe(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	f := newInFlight(t, s, 3, 10*time.Second)
	require.ErrorIs(t, f.ReleaseAs(ctx, "", 1, "job"), ratelimit.ErrInvalidKey)
	require.ErrorIs(t, f.ReleaseAs(ctx, "k", 1, ""), ratelimit.ErrInvalidKey)
	require.ErrorIs(t, f.ReleaseAs(ctx, "k", 1, strings.Repeat("x", 4097)), ratelimit.ErrInvalidKey)
	require.ErrorIs(t, f.ReleaseAs(ctx, "k", 4, "job"), ratelimit.ErrExceedsLimit)
	require.ErrorIs(t, (&ratelimit.InFlight{}).ReleaseAs(ctx, "k", 1, "job"), ratelimit.ErrInvalidConfig)
}

// TestReleaseAsIsReported: the release is observed, and a caller that waits in this process gets the place at once.
func TestReleaseAsIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := &recorder{}
		f, err := ratelimit.NewInFlight(ratelimittest.New(t).Client(), 1, time.Hour, rec.option())
		require.NoError(t, err)
		_, hold := holdAs(t, f, "job", 1)
		require.NoError(t, hold.HandOver(ctx))
		got := errors.New("it still waits")
		go func() { _, got = ratelimit.WaitAll(ctx, ratelimit.ClaimHold(f, "k", 1)) }()
		synctest.Wait()
		began := time.Now()
		require.NoError(t, f.ReleaseAs(ctx, "k", 1, "job"))
		require.ErrorIs(t, f.ReleaseAs(ctx, "k", 1, ""), ratelimit.ErrInvalidKey)
		synctest.Wait()
		require.NoError(t, got)
		require.Zero(t, time.Since(began))
		var seen []string
		rec.mu.Lock()
		defer rec.mu.Unlock()
		for _, o := range rec.all {
			if o.Call == "release" || o.Outcome == ratelimit.OutcomeAllowed {
				seen = append(seen, fmt.Sprintf("%s %s %d: %s %+d", o.Call, o.Key, o.N, o.Outcome, o.HeldChange))
			}
		}
		slices.Sort(seen) // the waiter is served at the same time
		require.Equal(t, []string{"hold k 1: allowed +1", "hold k 1: allowed +1", "release k 1: done +0", "release k 1: done -1", "release k 1: failed +0"}, seen)
	})
}

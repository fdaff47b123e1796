package ratelimit

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/merge"
	"github.com/tryacquire/ratelimit/internal/testing/fakes"
)

// reserveTogether makes four calls for a key of a bucket of one permit a minute and a burst of one,
// in one batch: three reservations, of which the caller of the second leaves while the batch is in
// flight, and one that may wait for a second only. It returns the reservations, the errors, and what
// the key holds in the end.
func reserveTogether(t *testing.T, lost error) (reserved [4]*Reservation, errs [4]error, state string) {
	s := onMini(t)
	l := Must(NewTokenBucket(s.client, PerMinute(1), 1))
	require.NoError(t, Preload(context.Background(), ClaimOf(l, "k", 1)))
	outside := fakes.NewRelay(s.client)
	defer outside.Stop()
	synctest.Test(t, func(t *testing.T) {
		batch := make(chan struct{})
		c, open := fakes.Gate(onceOpen(outside, batch, lost), merge.FewCalls)
		exec := *l.core.exec
		exec.Client = c
		l.core.exec, l.core.merger = &exec, merge.New(&exec, l.core.head.Of)
		for range merge.FewCalls {
			go func() { _, _ = l.TryAcquire(context.Background(), "other") }()
		}
		synctest.Wait()
		leaving, leave := context.WithCancel(context.Background())
		defer leave()
		for i, ctx := range []context.Context{context.Background(), leaving, context.Background(), context.Background()} {
			longest := time.Hour
			if i == 3 {
				longest = time.Second
			}
			go func() { reserved[i], errs[i] = l.Reserve(ctx, "k", 1, longest) }()
			synctest.Wait()
		}
		open()
		synctest.Wait()
		leave()
		synctest.Wait()
		close(batch)
		synctest.Wait()
		want := merge.FewCalls + 1
		if lost == nil {
			want++ // the cancel of who has left
		}
		require.Equal(t, want, c.Count())
	})
	return reserved, errs, s.admin.Get(context.Background(), l.core.head.Of("k")).Val()
}

// TestReservationsInOneBatch are each as if made on its own. That of a caller who has left is
// cancelled on its own, and the cancel waits for the one that has reserved behind it.
func TestReservationsInOneBatch(t *testing.T) {
	reserved, errs, state := reserveTogether(t, nil)
	require.NoError(t, errs[0])
	require.ErrorIs(t, errs[1], context.Canceled)
	require.NoError(t, errs[2])
	var tooLong *WaitError
	require.ErrorAs(t, errs[3], &tooLong)
	require.Equal(t, 3*time.Minute, tooLong.Wait)
	require.Equal(t, time.Duration(0), reserved[0].delay)
	require.Equal(t, 2*time.Minute, reserved[2].delay)
	require.Equal(t, Result{Allowed: true, Limit: 1, Window: time.Minute, ResetAfter: 3 * time.Minute}, reserved[2].Result())
	wrote, before := reserved[2].from.(*redisReservation).texts()
	second, first := reserved[0].from.(*redisReservation).texts()
	require.Equal(t, wrote+";"+before+"|"+second+";", state)
	require.Empty(t, first)
	require.Equal(t, second[:16], before[:16])
	require.NotEqual(t, second, before, "what the second reservation wrote")
}

// TestALostBatchOfReservations: each caller gets the error, and nothing is sent again.
func TestALostBatchOfReservations(t *testing.T) {
	lost := errors.New("the reply was lost")
	reserved, errs, state := reserveTogether(t, lost)
	require.ErrorIs(t, errs[0], lost)
	require.ErrorIs(t, errs[1], context.Canceled)
	require.ErrorIs(t, errs[2], lost)
	require.ErrorIs(t, errs[3], lost)
	require.Equal(t, [4]*Reservation{}, reserved)
	require.NotEmpty(t, state, "taken, once")
}

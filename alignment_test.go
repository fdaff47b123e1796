package ratelimit

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestChangedAlignmentGrantsNothingAnew(t *testing.T) {
	everywhere(t, func(t *testing.T, s *stage) {
		require.NoError(t, wipe(s))
		build := func(offset time.Duration) Limiter {
			l, err := NewFixedWindow(s.client, 3, time.Minute, append(widen[FixedWindowOption](s.opts), WithAlignment(offset))...)
			require.NoError(t, err)
			return l
		}
		now := time.Duration(start.UnixMicro()) * time.Microsecond % time.Minute
		old := build(now - 30*time.Second) // half of its window is over
		must(t)(old.TryAcquireN(ctx, "k", 3))
		changed := build(now - 15*time.Second)
		r := must(t)(changed.TryAcquire(ctx, "k"))
		require.Equal(t, Result{Limit: 3, Window: time.Minute, RetryAfter: 30 * time.Second, ResetAfter: 30 * time.Second}, r,
			"the window that is used up lasts to its end")
		s.advance(30 * time.Second)
		r = must(t)(changed.TryAcquireN(ctx, "k", 3))
		require.Equal(t, Result{Allowed: true, Limit: 3, Window: time.Minute, ResetAfter: 15 * time.Second}, r)
	})
}

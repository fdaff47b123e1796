package ratelimit

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAllowAllAndDenyAll(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		name string
		l    Limiter
		want Result
	}{
		{"AllowAll", AllowAll(), Result{Allowed: true, Limit: 2147483647, Window: time.Second, Remaining: 2147483647}},
		{"DenyAll", DenyAll(), Result{Limit: 1, Window: time.Second, RetryAfter: time.Second, ResetAfter: time.Second}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for range 3 {
				r, err := c.l.TryAcquire(t.Context(), "k")
				require.NoError(t, err)
				require.Equal(t, c.want, r)
				r, err = c.l.TryAcquireN(t.Context(), "k", math.MaxInt)
				require.NoError(t, err)
				require.Equal(t, c.want, r)
				r, err = c.l.Peek(t.Context(), "k")
				require.NoError(t, err)
				require.Equal(t, c.want, r)
				require.NoError(t, c.l.Reset(t.Context(), "k"))
			}
			requireLocalErrors(t, c.l, ended)
		})
	}
}

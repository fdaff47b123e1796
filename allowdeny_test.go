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
		{"AllowAll", AllowAll(), Result{Allowed: true}},
		{"DenyAll", DenyAll(), Result{RetryAfter: time.Second, ResetAfter: time.Second}},
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

func TestUnlimited(t *testing.T) {
	for name, l := range map[string]Limiter{
		"AllowAll":                          AllowAll(),
		"AllowAll in an outage":             newTestFallback(t, always(Result{}, errDown), AllowAll()),
		"AllowAll at the end of a chain":    newTestFallback(t, always(Result{}, errDown), newTestFallback(t, always(Result{}, errDown), AllowAll())),
		"AllowAll of a DenyCache":           Must(NewDenyCache(AllowAll())),
		"AllowAll in an outage, remembered": Must(NewDenyCache(newTestFallback(t, always(Result{}, errDown), AllowAll()))),
	} {
		for _, ask := range []func() (Result, error){
			func() (Result, error) { return l.TryAcquire(t.Context(), "k") },
			func() (Result, error) { return l.TryAcquireN(t.Context(), "k", math.MaxInt) },
			func() (Result, error) { return l.Peek(t.Context(), "k") },
		} {
			r, err := ask()
			require.NoError(t, err, name)
			require.True(t, r.Unlimited(), name)
			r.Fallback = false
			require.Equal(t, Result{Allowed: true}, r, name)
		}
	}

	require.False(t, must(t)(DenyAll().TryAcquire(t.Context(), "k")).Unlimited(), "a denial is not unlimited")
	require.False(t, byPrimary.Unlimited())
	require.False(t, bySecondary.Unlimited())
	r, err := AllowAll().TryAcquire(t.Context(), "")
	require.Error(t, err)
	require.False(t, r.Unlimited(), "no decision")

	local := Must(NewLocalTokenBucket(PerSecond(1), 1))
	require.False(t, must(t)(local.TryAcquire(t.Context(), "k")).Unlimited(), "the last permit")
	require.False(t, must(t)(local.TryAcquire(t.Context(), "k")).Unlimited(), "a denial")
}

// A DenyCache around DenyAll repeats its denials: of a limit of 0 there is nothing to
// compare a number of permits with.
func TestDenyAllInADenyCache(t *testing.T) {
	l := &scriptedLimiter{answer: func() (Result, error) { return DenyAll().TryAcquire(ctx, "k") }}
	c, now := newTestDenyCache(t, l)
	for _, n := range []int{1, 2} {
		require.Equal(t, Result{RetryAfter: time.Second, ResetAfter: time.Second}, must(t)(c.TryAcquireN(t.Context(), "k", n)))
	}
	*now += 100 * milli
	want := Result{RetryAfter: 900 * milli, ResetAfter: 900 * milli}
	require.Equal(t, want, must(t)(c.TryAcquire(t.Context(), "k")))
	require.Equal(t, []string{"1 of k", "2 of k"}, l.asked)
}

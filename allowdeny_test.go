package ratelimit_test

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

func TestAllowAllAndDenyAll(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		name string
		l    ratelimit.Limiter
		want ratelimit.Result
	}{
		{"AllowAll", ratelimit.AllowAll(), ratelimit.Result{Allowed: true}},
		{"DenyAll", ratelimit.DenyAll(), ratelimit.Result{RetryAfter: time.Second, ResetAfter: time.Second}},
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
	for name, l := range map[string]ratelimit.Limiter{
		"AllowAll":                          ratelimit.AllowAll(),
		"AllowAll in an outage":             newTestFallback(t, always(ratelimit.Result{}, errDown), ratelimit.AllowAll()),
		"AllowAll at the end of a chain":    newTestFallback(t, always(ratelimit.Result{}, errDown), newTestFallback(t, always(ratelimit.Result{}, errDown), ratelimit.AllowAll())),
		"AllowAll of a DenyCache":           ratelimit.Must(ratelimit.NewDenyCache(ratelimit.AllowAll())),
		"AllowAll in an outage, remembered": ratelimit.Must(ratelimit.NewDenyCache(newTestFallback(t, always(ratelimit.Result{}, errDown), ratelimit.AllowAll()))),
	} {
		for _, ask := range []func() (ratelimit.Result, error){
			func() (ratelimit.Result, error) { return l.TryAcquire(t.Context(), "k") },
			func() (ratelimit.Result, error) { return l.TryAcquireN(t.Context(), "k", math.MaxInt) },
			func() (ratelimit.Result, error) { return l.Peek(t.Context(), "k") },
		} {
			r, err := ask()
			require.NoError(t, err, name)
			require.True(t, r.Unlimited(), name)
			r.Fallback = false
			require.Equal(t, ratelimit.Result{Allowed: true}, r, name)
		}
	}

	require.False(t, must(t)(ratelimit.DenyAll().TryAcquire(t.Context(), "k")).Unlimited(), "a denial is not unlimited")
	require.False(t, byPrimary.Unlimited())
	require.False(t, bySecondary.Unlimited())
	r, err := ratelimit.AllowAll().TryAcquire(t.Context(), "")
	require.Error(t, err)
	require.False(t, r.Unlimited(), "no decision")

	local := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1), 1))
	require.False(t, must(t)(local.TryAcquire(t.Context(), "k")).Unlimited(), "the last permit")
	require.False(t, must(t)(local.TryAcquire(t.Context(), "k")).Unlimited(), "a denial")
}

// A DenyCache around DenyAll repeats its denials: of a limit of 0 there is nothing to
// compare a number of permits with.
func TestDenyAllInADenyCache(t *testing.T) {
	l := &limitertest.Stub{Result: must(t)(ratelimit.DenyAll().TryAcquire(ctx, "k"))}
	c, now := newTestDenyCache(t, l)
	for _, n := range []int{1, 2} {
		require.Equal(t, ratelimit.Result{RetryAfter: time.Second, ResetAfter: time.Second}, must(t)(c.TryAcquireN(t.Context(), "k", n)))
	}
	*now += 100 * milli
	want := ratelimit.Result{RetryAfter: 900 * milli, ResetAfter: 900 * milli}
	require.Equal(t, want, must(t)(c.TryAcquire(t.Context(), "k")))
	require.Equal(t, []string{"k 1", "k 2"}, l.Asked())
}

package ratelimit_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// anyKey is a user's limiter, which takes every key.
var anyKey = &limitertest.Stub{Result: ratelimit.Result{Allowed: true}}

// TestKeysHaveAtMost4096Bytes: in every limiter and every decorator, whatever is under
// it, and Redis is not asked.
func TestKeysHaveAtMost4096Bytes(t *testing.T) {
	const says = "ratelimit: invalid key: it has %d bytes and may have at most 4096; use a hash of long keys"
	refuse := func(t *testing.T, l ratelimit.Limiter, key string) {
		t.Helper()
		want := fmt.Sprintf(says, len(key))
		for _, n := range []int{1, 2, 0, 1 << 30} {
			r, err := l.TryAcquireN(ctx, key, n)
			require.Zero(t, r)
			require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
			require.EqualError(t, err, want)
		}
		r, err := l.TryAcquire(ctx, key)
		require.Zero(t, r)
		require.EqualError(t, err, want)
		r, err = l.Peek(ctx, key)
		require.Zero(t, r)
		require.EqualError(t, err, want)
		require.EqualError(t, l.Reset(ctx, key), want)
	}
	accept := func(t *testing.T, l ratelimit.Limiter, of limitertest.Keys) {
		t.Helper()
		for _, key := range []string{strings.Repeat("k", 4096), strings.Repeat("é", 2048)} {
			key = of.Ending(key[len(of.Ending("")):])
			_, err := l.TryAcquire(ctx, key)
			require.NoError(t, err)
			_, err = l.Peek(ctx, key)
			require.NoError(t, err)
			require.NoError(t, l.Reset(ctx, key))
		}
		refuse(t, l, strings.Repeat("k", 4097))
		refuse(t, l, strings.Repeat("é", 2049))
		refuse(t, l, strings.Repeat("k", 1<<20))
		_, err := l.TryAcquire(ctx, "")
		require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
		require.EqualError(t, err, "ratelimit: invalid key: it is empty")
		require.EqualError(t, l.Reset(ctx, ""), "ratelimit: invalid key: it is empty")
	}

	// A client that fails the test when it is asked shows that Redis is not.
	for _, v := range limitertest.Variants() {
		t.Run(v.Name+", offline", func(t *testing.T) {
			l, err := v.Build(limitertest.Offline(t))
			require.NoError(t, err)
			for _, l := range []ratelimit.Limiter{
				l, ratelimit.Must(ratelimit.NewDenyCache(l)), ratelimit.Must(ratelimit.NewFallback(l, ratelimit.AllowAll())),
			} {
				refuse(t, l, strings.Repeat("k", 4097))
			}
		})
	}
	s := limitertest.OnMiniredis(t)
	for _, v := range limitertest.Variants() {
		t.Run(v.Name, func(t *testing.T) {
			l, err := v.Build(s.Client)
			require.NoError(t, err)
			accept(t, l, v.Keys)
		})
	}

	local := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1), 5))
	for name, l := range map[string]ratelimit.Limiter{
		"LocalTokenBucket": local,
		"Pause":            ratelimit.Must(ratelimit.NewPause(s.Client)),
		"Bans": ratelimit.Must(ratelimit.NewBans(ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(100), 100)), ratelimit.Must(ratelimit.NewPause(s.Client)),
			[]time.Duration{time.Second}, time.Hour)),
		"AllowAll":                  ratelimit.AllowAll(),
		"DenyAll":                   ratelimit.DenyAll(),
		"DenyCache":                 ratelimit.Must(ratelimit.NewDenyCache(local)),
		"Leased":                    ratelimit.Must(ratelimit.NewLeased(ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(1), 5, ratelimit.WithName("leased"))))),
		"DenyCache of a user's":     ratelimit.Must(ratelimit.NewDenyCache(anyKey)),
		"Fallback":                  ratelimit.Must(ratelimit.NewFallback(local, ratelimit.AllowAll())),
		"Fallback of a user's":      ratelimit.Must(ratelimit.NewFallback(anyKey, anyKey)),
		"DenyCache of a Fallback":   ratelimit.Must(ratelimit.NewDenyCache(ratelimit.Must(ratelimit.NewFallback(anyKey, anyKey)))),
		"Fallback on another limit": ratelimit.Must(ratelimit.NewFallback(unreachable{}, local)),
	} {
		t.Run(name, func(t *testing.T) {
			if name == "Fallback on another limit" {
				refuse(t, l, strings.Repeat("k", 4097))
				return
			}
			accept(t, l, limitertest.Keys{})
		})
	}
}

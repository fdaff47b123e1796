package ratelimit

import (
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/script"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// TestAScriptThatRedisCannotCompileIsNoOutage, however the script is sent: a Fallback returns the
// error, and its breaker stays closed.
func TestAScriptThatRedisCannotCompileIsNoOutage(t *testing.T) {
	for name, open := range map[string]func(testing.TB) *redis.Client{
		"miniredis": func(t testing.TB) *redis.Client {
			client := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
			t.Cleanup(func() { _ = client.Close() })
			return client
		},
		"Redis": func(t testing.TB) *redis.Client { return redistest.Shared(t).Client(t) },
	} {
		t.Run(name, func(t *testing.T) {
			client := open(t)
			w := Must(NewFixedWindow(client, 2, time.Minute, WithName("uncompiled")))
			broken := script.New("local end = 1")
			w.core.exec.One, w.core.exec.Peek, w.core.exec.Many = broken, broken, broken
			b := &Breaker{Failures: 1}
			f := Must(NewFallback(w, AllowAll(), WithBreaker(b)))
			ctx := t.Context()
			check := func(r Result, err error) {
				t.Helper()
				require.ErrorIs(t, err, ErrInvalidConfig)
				require.ErrorAs(t, err, new(redis.Error))
				require.ErrorContains(t, err, "Error compiling script")
				require.Equal(t, Result{}, r)
				require.Equal(t, BreakerClosed, b.State())
			}
			check(f.TryAcquire(ctx, "k"))
			check(f.Peek(ctx, "k"))
			check(Result{}, Preload(ctx, ClaimOf(w, "k", 1)))
			require.Empty(t, client.Keys(ctx, "ratelimit:uncompiled:*").Val())
		})
	}
}

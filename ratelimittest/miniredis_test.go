package ratelimittest_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/ratelimittest"
)

// TestTheServerHasNoAddress: a test that asks for it fails, and the message says what to use. go-redis would take an empty
// one for localhost:6379, where a developer may have a Redis.
func TestTheServerHasNoAddress(t *testing.T) {
	for method, ask := range map[string]func(*ratelimittest.Env) string{
		"Addr": func(e *ratelimittest.Env) string { return e.Miniredis().Addr() },
		"Host": func(e *ratelimittest.Env) string { return e.Miniredis().Host() },
		"Port": func(e *ratelimittest.Env) string { return e.Miniredis().Port() },
	} {
		require.Equal(t, "ratelimittest: Miniredis()."+method+": the server listens on no address; use Client(), or a client with Options() or Dial",
			failureOf(t, func(t testing.TB) { ask(ratelimittest.New(t)) }))
	}
}

package ratelimittest

import (
	"testing"

	"github.com/alicebob/miniredis/v2"
)

// Miniredis is the server of an [Env], with all methods of miniredis. It listens on no address:
// Addr, Host and Port fail the test, and say what to use instead.
type Miniredis struct {
	*miniredis.Miniredis
	t testing.TB
}

// Addr fails the test. An empty address would make go-redis dial localhost:6379, which may be the
// developer's own Redis.
func (m *Miniredis) Addr() string { return m.noAddress("Addr") }

// Host fails the test, as Addr does.
func (m *Miniredis) Host() string { return m.noAddress("Host") }

// Port fails the test, as Addr does.
func (m *Miniredis) Port() string { return m.noAddress("Port") }

func (m *Miniredis) noAddress(method string) string {
	m.t.Helper()
	m.t.Fatalf("ratelimittest: Miniredis().%s: the server listens on no address; use Client(), or a client with Options() or Dial", method)
	return ""
}

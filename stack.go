package ratelimit

import "runtime"

// deepen gives a new goroutine the stack of a call of go-redis at once, which is
// beyond 8 kB. It would double it step by step on the way down, and each time have
// all its frames copied: a third of what such a call takes on loopback.
//
//go:noinline
func deepen() {
	var room [12 << 10]byte
	runtime.KeepAlive(&room)
}

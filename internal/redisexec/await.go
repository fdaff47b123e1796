package redisexec

import (
	"context"
	"errors"
	"fmt"
	"runtime"
)

// await returns what f returns, or the context's error as soon as the context ends:
// while go-redis waits for a reply, it notices a deadline only if its options say so,
// and never notices a cancellation. An f that is still running then ends with the
// client's timeouts. A panic in f is returned as an error, because it would end the
// process.
func await[T any](ctx context.Context, f func() (T, error)) (T, error) {
	if ctx.Done() == nil {
		return f()
	}
	type outcome struct {
		value T
		err   error
	}
	done := make(chan outcome, 1)
	go func() {
		GrowStack()
		var o outcome
		returned := false
		defer func() {
			if !returned {
				o.err = Unfinished(recover())
			}
			done <- o
		}()
		o.value, o.err = f()
		returned = true
	}()
	select {
	case o := <-done:
		return o.value, o.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// ErrGoexit is the error of calls whose goroutine a hook of the client ended.
var ErrGoexit = errors.New("the client ended the goroutine (runtime.Goexit)")

// Unfinished is the error of calls that did not return. recovered is what recover
// returned: nil if the goroutine ended without a panic.
func Unfinished(recovered any) error {
	if recovered == nil {
		return ErrGoexit
	}
	return fmt.Errorf("the client or the clock panicked: %v", recovered)
}

// GrowStack gives a new goroutine the stack that a call of go-redis needs, more than
// 8 kB, in one step. Without it the runtime doubles the stack step by step and copies
// all frames each time, which takes 5 µs of every call.
//
//go:noinline
func GrowStack() {
	var room [12 << 10]byte
	runtime.KeepAlive(&room)
}

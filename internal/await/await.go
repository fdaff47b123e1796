// Package await lets a caller leave a call that goes on.
package await

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
)

// A Pool runs functions in goroutines of their own, so that their callers can leave. R is what they return, whose memory Done
// releases.
//
// Tasks are pooled. Their channels and goroutines are not, because those made in a
// bubble of testing/synctest can only be used there.
type Pool[R interface{ Done() }] struct{ tasks sync.Pool }

// Do returns what f returns, or the context's error as soon as the context ends:
// while go-redis waits for a reply, it notices a deadline only if its options say so,
// and never notices a cancellation. An f that is still running then ends with the
// client's timeouts; left is true, and late gets what f returns, unless late is nil. A panic in f is returned as an
// error, because it would end the process.
func (p *Pool[R]) Do(ctx context.Context, f func() (R, error), late func(R, error)) (reply R, left bool, err error) {
	if ctx.Done() == nil {
		reply, err = f()
		return reply, false, err
	}
	t := p.task()
	done := make(chan struct{})
	t.f, t.done, t.late = f, done, late
	go t.start()
	select {
	case <-done:
	case <-ctx.Done():
		count, counted := ctx.Value(leftKey{}).(func() func())
		if counted {
			t.ended = count()
		}
		if !t.over.Swap(true) {
			return reply, true, ctx.Err()
		}
		if counted { // it has returned in this moment
			t.ended()
		}
	}
	reply, err = t.reply, t.err
	t.release()
	return reply, false, err
}

type leftKey struct{}

// CountLeft returns a context in which Do calls left when it leaves an f that still runs, and
// what left returns when that f has returned.
func CountLeft(ctx context.Context, left func() (ended func())) context.Context {
	return context.WithValue(ctx, leftKey{}, left)
}

// A task is a function that runs. It and its caller set over when they no longer need the task, and whoever sets it
// second releases it.
type task[R interface{ Done() }] struct {
	pool  *Pool[R]
	start func() // run; kept, because the go statement would allocate it
	f     func() (R, error)
	done  chan struct{} // closed when f has returned, unless the caller has left
	over  atomic.Bool
	ended func() // see CountLeft; nil: nobody counts
	late  func(R, error)

	reply R
	err   error
}

func (p *Pool[R]) task() *task[R] {
	if t, ok := p.tasks.Get().(*task[R]); ok {
		return t
	}
	t := &task[R]{pool: p}
	t.start = t.run
	return t
}

func (t *task[R]) run() {
	GrowStack()
	returned := false
	defer func() {
		if !returned {
			t.err = Unfinished(recover())
		}
		done := t.done // after the swap, the task may be in use again
		if !t.over.Swap(true) {
			close(done)
			return
		}
		if t.late != nil {
			t.late(t.reply, t.err)
		}
		t.reply.Done()
		ended := t.ended
		t.release()
		if ended != nil {
			ended()
		}
	}()
	t.reply, t.err = t.f()
	returned = true
}

// release puts t into the pool. t then refers to nothing of the caller's.
func (t *task[R]) release() {
	var none R
	t.f, t.done, t.ended, t.late, t.reply, t.err = nil, nil, nil, nil, none, nil
	t.over.Store(false)
	t.pool.tasks.Put(t)
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

// Safely calls f in a goroutine in which nobody could recover a panic, and returns that as an error.
func Safely(f func() error) (err error) {
	returned := false
	defer func() {
		if !returned {
			err = Unfinished(recover())
		}
	}()
	err = f()
	returned = true
	return err
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

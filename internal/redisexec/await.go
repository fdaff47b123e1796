package redisexec

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
)

// Await returns what f returns, or the context's error as soon as the context ends:
// while go-redis waits for a reply, it notices a deadline only if its options say so,
// and never notices a cancellation. An f that is still running then ends with the
// client's timeouts. A panic in f is returned as an error, because it would end the
// process.
func Await(ctx context.Context, f func() (Reply, error)) (Reply, error) { return awaitOr(ctx, f, nil) }

// awaitOr is Await. If the context ends first, the Reply says that it is late, and late gets what f
// returns, unless late is nil.
func awaitOr(ctx context.Context, f func() (Reply, error), late func(Reply, error)) (Reply, error) {
	if ctx.Done() == nil {
		return f()
	}
	t := newTask()
	done := make(chan struct{})
	t.f, t.done, t.late = f, done, late
	go t.start()
	select {
	case <-done:
	case <-ctx.Done():
		left, counted := ctx.Value(leftKey{}).(func() func())
		if counted {
			t.ended = left()
		}
		if !t.over.Swap(true) {
			return Reply{Late: true}, ctx.Err()
		}
		if counted { // it has returned in this moment
			t.ended()
		}
	}
	reply, err := t.reply, t.err
	t.release()
	return reply, err
}

type leftKey struct{}

// CountLeft returns a context in which Await calls left when it leaves an f that still runs, and
// what left returns when that f has returned.
func CountLeft(ctx context.Context, left func() (ended func())) context.Context {
	return context.WithValue(ctx, leftKey{}, left)
}

// A task runs a function in a goroutine of its own, so that the caller can leave. Both
// set over when they no longer need the task, and whoever sets it second releases it.
//
// Tasks are pooled. Their channels and goroutines are not, because those made in a
// bubble of testing/synctest can only be used there.
type task struct {
	start func() // run; kept, because the go statement would allocate it
	f     func() (Reply, error)
	done  chan struct{} // closed when f has returned, unless the caller has left
	over  atomic.Bool
	ended func() // see CountLeft; nil: nobody counts
	late  func(Reply, error)

	reply Reply
	err   error
}

var tasks sync.Pool

func newTask() *task {
	if t, ok := tasks.Get().(*task); ok {
		return t
	}
	t := &task{}
	t.start = t.run
	return t
}

func (t *task) run() {
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
func (t *task) release() {
	t.f, t.done, t.ended, t.late, t.reply, t.err = nil, nil, nil, nil, Reply{}, nil
	t.over.Store(false)
	tasks.Put(t)
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

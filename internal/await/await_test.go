package await

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

type reply struct{ words []int64 }

func (r reply) Done() {}

func TestAReleasedTaskKeepsNothing(t *testing.T) {
	used := new(Pool[reply]).task()
	used.f, used.done = func() (reply, error) { return reply{}, nil }, make(chan struct{})
	used.reply, used.err = reply{[]int64{1}}, context.Canceled
	used.over.Store(true)
	used.release() // another call may have it from now on, but none is made here
	require.Nil(t, used.f)
	require.Nil(t, used.done)
	require.Zero(t, used.reply)
	require.NoError(t, used.err)
	require.False(t, used.over.Load())
}

// TestACallerThatLeaves gets the context's error at once, and late what comes then.
func TestACallerThatLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p Pool[reply]
		hold, counted := make(chan struct{}), 0
		ctx, cancel := context.WithCancel(CountLeft(t.Context(), func() func() {
			counted++
			return func() { counted-- }
		}))
		go func() {
			synctest.Wait()
			cancel()
		}()
		var late []int64
		r, left, err := p.Do(ctx, func() (reply, error) {
			<-hold
			return reply{[]int64{7}}, nil
		}, func(r reply, _ error) { late = r.words })
		require.Zero(t, r)
		require.True(t, left)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, 1, counted)
		close(hold)
		synctest.Wait()
		require.Equal(t, []int64{7}, late)
		require.Zero(t, counted)
	})
}

func TestAPanicIsAnError(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, left, err := new(Pool[reply]).Do(ctx, func() (reply, error) { panic("boom") }, nil)
	require.False(t, left)
	require.EqualError(t, err, "the client or the clock panicked: boom")
	require.EqualError(t, Safely(func() error { panic("boom") }), "the client or the clock panicked: boom")
	_, _, err = new(Pool[reply]).Do(ctx, func() (reply, error) {
		runtime.Goexit()
		return reply{}, nil
	}, nil)
	require.ErrorIs(t, err, ErrGoexit)
	require.NoError(t, Safely(func() error { return nil }))
	require.Error(t, Safely(func() error { return errors.New("no") }))
}

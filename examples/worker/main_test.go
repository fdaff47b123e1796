package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/ratelimittest"
)

func init() { log.SetOutput(io.Discard) }

// sent is what the workers of a test have sent, and when.
type sent struct {
	mu    sync.Mutex
	start time.Time
	lines []string
}

func (s *sent) send(_ context.Context, m message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, fmt.Sprintf("%s to %s after %v", m.text, m.to, time.Since(s.start)))
	return nil
}

// take returns what was sent since the last call.
func (s *sent) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.lines = nil }()
	return s.lines
}

// start starts two workers. stop returns when they have shut down.
func start(t *testing.T, env *ratelimittest.Env, send func(context.Context, message) error) (w *worker, stop func()) {
	limiter, err := newLimiter(env.Client())
	require.NoError(t, err)
	w = &worker{limiter: limiter, queue: make(chan message, 10), send: send}
	ctx, cancel := context.WithCancel(context.Background())
	var workers sync.WaitGroup
	for range 2 {
		workers.Go(func() { w.run(ctx) })
	}
	return w, func() {
		cancel()
		workers.Wait()
	}
}

func TestWorkersTakeTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		env := ratelimittest.New(t)
		s := &sent{start: time.Now()}
		w, stop := start(t, env, s.send)
		for i := range 3 {
			w.queue <- message{"a", fmt.Sprint(i)}
			synctest.Wait() // so that they are in order
		}
		require.Equal(t, []string{"0 to a after 0s"}, s.take())
		env.Advance(time.Second - time.Microsecond)
		require.Empty(t, s.take())
		env.Advance(time.Microsecond)
		require.Equal(t, []string{"1 to a after 1s"}, s.take())
		env.Advance(time.Second)
		require.Equal(t, []string{"2 to a after 2s"}, s.take())
		w.queue <- message{"b", "3"}
		env.Advance(0)
		require.Equal(t, []string{"3 to b after 2s"}, s.take())
		stop()
	})
}

// A worker that shuts down while it waits gives its turn back, and the message.
func TestShutdownWhileWaiting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		env := ratelimittest.New(t)
		s := &sent{start: time.Now()}
		w, stop := start(t, env, s.send)
		w.queue <- message{"a", "0"}
		synctest.Wait()
		w.queue <- message{"a", "1"}
		env.Advance(900 * time.Millisecond)
		require.Equal(t, []string{"0 to a after 0s"}, s.take())
		stop()
		require.Equal(t, 900*time.Millisecond, time.Since(s.start), "it does not wait for its turn")
		require.Equal(t, message{"a", "1"}, <-w.queue)

		limiter, err := newLimiter(env.Client()) // that of another instance
		require.NoError(t, err)
		_, err = ratelimit.Wait(t.Context(), limiter, "a")
		require.NoError(t, err)
		require.Equal(t, time.Second, time.Since(s.start), "the turn is the next one's")
	})
}

// A message that is being sent when the worker shuts down is sent.
func TestShutdownWhileSending(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		env := ratelimittest.New(t)
		var err error
		w, stop := start(t, env, func(ctx context.Context, _ message) error {
			time.Sleep(5 * time.Second)
			err = ctx.Err()
			return err
		})
		w.queue <- message{"a", "0"}
		env.Advance(time.Second)
		began := time.Now()
		stop()
		require.NoError(t, err)
		require.Equal(t, 4*time.Second, time.Since(began))
		require.Empty(t, w.queue)
	})
}

// Nothing is sent while Redis is down, and nothing is lost.
func TestOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		env := ratelimittest.New(t)
		s := &sent{start: time.Now()}
		w, stop := start(t, env, s.send)
		env.Down()
		w.queue <- message{"a", "0"}
		env.Advance(10*time.Second - time.Microsecond)
		require.Empty(t, s.take())
		env.Up()
		env.Advance(time.Microsecond)
		require.Equal(t, []string{"0 to a after 10s"}, s.take())
		stop()
	})
}

// A message that could not be sent is tried again, in its turn.
func TestFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		env := ratelimittest.New(t)
		s := &sent{start: time.Now()}
		failed := false
		w, stop := start(t, env, func(ctx context.Context, m message) error {
			if !failed {
				failed = true
				return errors.New("the receiver is busy")
			}
			return s.send(ctx, m)
		})
		w.queue <- message{"a", "0"}
		env.Advance(time.Second)
		require.Equal(t, []string{"0 to a after 1s"}, s.take())
		stop()
	})
}

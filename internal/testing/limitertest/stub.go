package limitertest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit"
)

// A Stub is a limiter that always gives one answer, and records what it was asked.
type Stub struct {
	Result ratelimit.Result
	Err    error

	mu    sync.Mutex // guards calls
	calls []string
}

// Allowing returns a Stub that allows every call.
func Allowing() *Stub {
	return &Stub{Result: ratelimit.Result{Allowed: true, Limit: 5, Window: time.Second, Remaining: 4, ResetAfter: time.Second}}
}

// Denying returns a Stub that denies every call.
func Denying(limit int, window, retry time.Duration) *Stub {
	return &Stub{Result: ratelimit.Result{Limit: limit, Window: window, RetryAfter: retry, ResetAfter: window}}
}

// TryAcquire is TryAcquireN with n = 1.
func (s *Stub) TryAcquire(ctx context.Context, key string) (ratelimit.Result, error) {
	return s.TryAcquireN(ctx, key, 1)
}

// TryAcquireN returns the one answer.
func (s *Stub) TryAcquireN(_ context.Context, key string, n int) (ratelimit.Result, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, fmt.Sprintf("%s %d", key, n))
	return s.Result, s.Err
}

// Peek returns the one answer, and is not recorded.
func (s *Stub) Peek(context.Context, string) (ratelimit.Result, error) { return s.Result, s.Err }

// Reset returns the one error, and is not recorded.
func (s *Stub) Reset(context.Context, string) error { return s.Err }

// Asked returns the calls since the last Asked, each as key and permits: "k 1".
func (s *Stub) Asked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := s.calls
	s.calls = nil
	return calls
}

// Named returns the limiter with a name, as ratelimit.WithName gives one.
func Named(name string, l ratelimit.Limiter) ratelimit.Limiter { return named{l, name} }

type named struct {
	ratelimit.Limiter
	name string
}

func (n named) Name() string { return n.name }

// A Scripted is a limiter that gives its answers one after the other.
type Scripted struct {
	Answers []ratelimit.Result
	Then    Answer // to the calls after those; nil: they are allowed

	mu    sync.Mutex // guards Answers and count
	count int
}

// An Answer answers a call, whose context it gets.
type Answer func(ctx context.Context) (ratelimit.Result, error)

// After returns a limiter that allows n calls, denies the next one, and allows all others.
func After(n int, retry time.Duration) *Scripted {
	s := &Scripted{}
	for range n {
		s.Answers = append(s.Answers, ratelimit.Result{Allowed: true, Limit: 5, Window: time.Second})
	}
	s.Answers = append(s.Answers, ratelimit.Result{Limit: 5, Window: time.Second, RetryAfter: retry})
	return s
}

// TryAcquire is TryAcquireN with n = 1.
func (s *Scripted) TryAcquire(ctx context.Context, key string) (ratelimit.Result, error) {
	return s.TryAcquireN(ctx, key, 1)
}

// TryAcquireN gives the next answer.
func (s *Scripted) TryAcquireN(ctx context.Context, _ string, _ int) (ratelimit.Result, error) {
	r, ok := s.next()
	switch {
	case ok:
		return r, nil
	case s.Then != nil:
		return s.Then(ctx)
	}
	return ratelimit.Result{Allowed: true, Limit: 1, Window: time.Second}, ctx.Err()
}

func (s *Scripted) next() (r ratelimit.Result, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	if len(s.Answers) == 0 {
		return r, false
	}
	r = s.Answers[0]
	s.Answers = s.Answers[1:]
	return r, true
}

// Peek does nothing.
func (s *Scripted) Peek(context.Context, string) (r ratelimit.Result, _ error) { return r, nil }

// Reset does nothing.
func (s *Scripted) Reset(context.Context, string) error { return nil }

// Count returns how often the limiter was asked for permits.
func (s *Scripted) Count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count
}

// Always returns the same answer to each call.
func Always(r ratelimit.Result, err error) Answer {
	return func(context.Context) (ratelimit.Result, error) { return r, err }
}

// Hang answers when the call's context ends, with the context's error.
func Hang(ctx context.Context) (r ratelimit.Result, _ error) {
	<-ctx.Done()
	return r, ctx.Err()
}

// TimeOut fails at the deadline of the call, a moment before or after its context ends, and not
// with the context's error.
func TimeOut(ctx context.Context) (r ratelimit.Result, _ error) {
	deadline, _ := ctx.Deadline()
	time.Sleep(time.Until(deadline))
	return r, errors.New("i/o timeout")
}

// Blocked returns a limiter that answers each call when its context ends, with an error that
// wraps the context's. The channel gets a value when it is asked.
func Blocked() (l *Scripted, asked <-chan struct{}) {
	calls := make(chan struct{}, 1)
	return &Scripted{Then: func(ctx context.Context) (r ratelimit.Result, _ error) {
		calls <- struct{}{}
		<-ctx.Done()
		return r, fmt.Errorf("secret: %w", ctx.Err())
	}}, calls
}

// Await returns the same answer to each call, after a value of the channel.
func Await(begun <-chan struct{}, r ratelimit.Result) Answer {
	return func(context.Context) (ratelimit.Result, error) {
		<-begun
		return r, nil
	}
}

// Down is a client whose Redis cannot be reached.
type Down struct{}

// Process fails.
func (Down) Process(context.Context, redis.Cmder) error { return errors.New("dial: secret") }

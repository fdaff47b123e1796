package ratelimittest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/tryacquire/ratelimit"
)

// A Recorder keeps the calls of the limiters that it is around, in the order in which they
// returned. It is safe for concurrent use.
//
//	var calls ratelimittest.Recorder
//	service := NewService(calls.Around("per user", limiter))
//	…
//	if got := calls.Calls(); len(got) != 1 || got[0].Key != "user:42" {
//		t.Errorf("the service made these calls:\n%s", &calls)
//	}
type Recorder struct {
	mu    sync.Mutex // guards calls
	calls []Call
}

// A Call is one call of a limiter.
type Call struct {
	Limiter string // the name that Around got, or the limiter's own
	Method  string // "TryAcquire" (for TryAcquireN too), "Peek" or "Reset"; by Observe the ratelimit.Call, such as "acquire"
	Key     string
	N       int              // permits asked for; 0 of Peek and Reset
	Result  ratelimit.Result // zero if there is an error, and of Reset
	Err     error
}

// String is the call in one line:
//
//	per user: TryAcquire("user:42", 1): denied, retry after 30s
func (c Call) String() string {
	asked := fmt.Sprintf("%q", c.Key)
	if c.N > 0 {
		asked += fmt.Sprintf(", %d", c.N)
	}
	answer := "done"
	switch {
	case c.Err != nil:
		answer = c.Err.Error()
	case c.Result == ratelimit.Result{}: // a Reset, or another call that is never denied
	case !c.Result.Allowed:
		answer = fmt.Sprintf("denied, retry after %v", c.Result.RetryAfter)
	case c.Result.Unlimited():
		answer = "allowed, no limit"
	default:
		answer = fmt.Sprintf("allowed, %d of %d left", c.Result.Remaining, c.Result.Limit)
	}
	return fmt.Sprintf("%s: %s(%s): %s", c.Limiter, c.Method, asked, answer)
}

const (
	methodTryAcquire = "TryAcquire"
	methodPeek       = "Peek"
	methodReset      = "Reset"
)

// Calls are the calls so far.
func (r *Recorder) Calls() []Call {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.calls)
}

// Clear forgets the calls so far.
func (r *Recorder) Clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = nil
}

// String has a line for each call, for the message of a test that fails.
func (r *Recorder) String() string {
	var lines []string
	for _, c := range r.Calls() {
		lines = append(lines, c.String())
	}
	return strings.Join(lines, "\n")
}

// Around returns a limiter that does what l does, and keeps its calls under name. Put it around
// the decorators: NewAll accepts only the limiters of package ratelimit, a DenyCache does not
// know the bounds of other types, and on other types [ratelimit.Wait] asks again and again where
// it would reserve on a bucket.
func (r *Recorder) Around(name string, l ratelimit.Limiter) ratelimit.Limiter {
	return &recorded{r, name, l}
}

// Observe is an observer for [ratelimit.WithObserver] that keeps the calls. So the Recorder also
// sees calls for which it cannot go around the limiter: claims of TryAcquireAll, estimates,
// reservations, permits in flight.
//
//	limiter, err := ratelimit.NewTokenBucket(client, rate, burst, ratelimit.WithObserver(calls.Observe))
func (r *Recorder) Observe(_ context.Context, o ratelimit.Observation) {
	r.add(Call{o.Limiter, string(o.Call), o.Key, o.N, o.Result, o.Err})
}

func (r *Recorder) add(c Call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, c)
}

type recorded struct {
	to      *Recorder
	name    string
	limiter ratelimit.Limiter
}

func (l *recorded) TryAcquire(ctx context.Context, key string) (ratelimit.Result, error) {
	result, err := l.limiter.TryAcquire(ctx, key)
	l.to.add(Call{l.name, methodTryAcquire, key, 1, result, err})
	return result, err
}

func (l *recorded) TryAcquireN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	result, err := l.limiter.TryAcquireN(ctx, key, n)
	l.to.add(Call{l.name, methodTryAcquire, key, n, result, err})
	return result, err
}

func (l *recorded) Peek(ctx context.Context, key string) (ratelimit.Result, error) {
	result, err := l.limiter.Peek(ctx, key)
	l.to.add(Call{l.name, methodPeek, key, 0, result, err})
	return result, err
}

func (l *recorded) Reset(ctx context.Context, key string) error {
	err := l.limiter.Reset(ctx, key)
	l.to.add(Call{Limiter: l.name, Method: methodReset, Key: key, Err: err})
	return err
}

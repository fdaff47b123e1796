package limitertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/fakes"
)

// A Stub is a limiter whose answers a test sets.
type Stub = fakes.Limiter[ratelimit.Result]

// Allowing returns a Stub that allows every call.
func Allowing() *Stub {
	return &Stub{Result: ratelimit.Result{Allowed: true, Limit: 5, Window: time.Second, Remaining: 4, ResetAfter: time.Second}}
}

// Denying returns a Stub that denies every call.
func Denying(limit int, window, retry time.Duration) *Stub {
	return &Stub{Result: ratelimit.Result{Limit: limit, Window: window, RetryAfter: retry, ResetAfter: window}}
}

// Named returns the limiter with a name, as ratelimit.WithName gives one.
func Named(name string, l ratelimit.Limiter) ratelimit.Limiter { return named{l, name} }

type named struct {
	ratelimit.Limiter
	name string
}

func (n named) Name() string { return n.name }

// An Answer answers a call, whose context it gets.
type Answer = func(ctx context.Context) (ratelimit.Result, error)

// InTurn returns a limiter that gives these results, one after the other, and then the answers of then; nil: it allows.
func InTurn(then Answer, results ...ratelimit.Result) *Stub {
	if then == nil {
		then = func(ctx context.Context) (ratelimit.Result, error) {
			return ratelimit.Result{Allowed: true, Limit: 1, Window: time.Second}, ctx.Err()
		}
	}
	return &Stub{Answer: fakes.InTurn(then, results...)}
}

// After returns a limiter that allows n calls, denies the next one, and allows all others.
func After(n int, retry time.Duration) *Stub {
	allowed := ratelimit.Result{Allowed: true, Limit: 5, Window: time.Second}
	return InTurn(nil, append(slices.Repeat([]ratelimit.Result{allowed}, n), ratelimit.Result{Limit: 5, Window: time.Second, RetryAfter: retry})...)
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
func Blocked() (l *Stub, asked <-chan struct{}) {
	calls := make(chan struct{}, 1)
	return InTurn(func(ctx context.Context) (r ratelimit.Result, _ error) {
		calls <- struct{}{}
		<-ctx.Done()
		return r, fmt.Errorf("secret: %w", ctx.Err())
	}), calls
}

// Await returns the same answer to each call, after a value of the channel.
func Await(begun <-chan struct{}, r ratelimit.Result) Answer {
	return func(context.Context) (ratelimit.Result, error) {
		<-begun
		return r, nil
	}
}

// Down returns a client whose Redis cannot be reached.
func Down() ratelimit.Client { return fakes.Failing(errors.New("dial: secret")) }

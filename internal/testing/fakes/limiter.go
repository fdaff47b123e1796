// Package fakes has what stands in for a limiter, for a client of go-redis and for its hooks in tests. It imports no
// other package of this module, so that tests inside of each can use it.
package fakes

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// A Limiter gives answers that a test sets, and records what it was asked. R is ratelimit.Result.
type Limiter[R any] struct {
	Result R // the answer to every call
	Err    error
	// Answer, if it is not nil, answers instead. A Peek has n = Peek, and a Reset n = Reset.
	Answer func(ctx context.Context, key string, n int) (R, error)

	mu    sync.Mutex // guards asked and count
	asked []call
	count int
}

// A call is of a key: for n permits, or "peek", or "reset".
type call struct {
	what, key string
	n         int
}

// These are no numbers of permits.
const (
	Peek  = 0
	Reset = -1000
)

// TryAcquire is TryAcquireN with n = 1.
func (l *Limiter[R]) TryAcquire(ctx context.Context, key string) (R, error) {
	return l.answer(ctx, call{"", key, 1})
}

// TryAcquireN gives the answer.
func (l *Limiter[R]) TryAcquireN(ctx context.Context, key string, n int) (R, error) {
	return l.answer(ctx, call{"", key, n})
}

// Peek gives the answer.
func (l *Limiter[R]) Peek(ctx context.Context, key string) (R, error) {
	return l.answer(ctx, call{"peek", key, Peek})
}

// Reset returns the error of the answer.
func (l *Limiter[R]) Reset(ctx context.Context, key string) error {
	_, err := l.answer(ctx, call{"reset", key, Reset})
	return err
}

func (l *Limiter[R]) answer(ctx context.Context, c call) (R, error) {
	l.mu.Lock()
	l.asked = append(l.asked, c)
	l.count++
	l.mu.Unlock()
	if l.Answer != nil {
		return l.Answer(ctx, c.key, c.n)
	}
	return l.Result, l.Err
}

// Asked returns the calls since the last Asked: "k 1" for a permit of the key k, "peek k", "reset k".
func (l *Limiter[R]) Asked() (calls []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.asked {
		if c.what == "" {
			calls = append(calls, fmt.Sprintf("%s %d", c.key, c.n))
		} else {
			calls = append(calls, c.what+" "+c.key)
		}
	}
	l.asked = nil
	return calls
}

// Count returns how often the limiter was asked.
func (l *Limiter[R]) Count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count
}

// InTurn returns an Answer that gives these results, one after the other, and then those of then.
func InTurn[R any](then func(ctx context.Context) (R, error), results ...R) func(ctx context.Context, key string, n int) (R, error) {
	var mu sync.Mutex // guards results
	return func(ctx context.Context, _ string, _ int) (R, error) {
		mu.Lock()
		if len(results) > 0 {
			defer mu.Unlock()
			r := results[0]
			results = results[1:]
			return r, nil
		}
		mu.Unlock()
		return then(ctx)
	}
}

// Hanging returns a limiter that answers when the context ends, with the context's error.
func Hanging[R any]() *Limiter[R] {
	return &Limiter[R]{Answer: func(ctx context.Context, _ string, _ int) (r R, _ error) {
		<-ctx.Done()
		return r, ctx.Err()
	}}
}

// After returns a limiter that answers after so long, whatever becomes of the context.
func After[R any](d time.Duration, r R) *Limiter[R] {
	return &Limiter[R]{Answer: func(context.Context, string, int) (R, error) {
		time.Sleep(d)
		return r, nil
	}}
}

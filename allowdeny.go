package ratelimit

import (
	"context"
	"fmt"
	"time"
)

// AllowAll returns a limiter that allows every call: as the secondary of a
// [Fallback] it fails open. There is no limit, and its Result says so: [Result.Unlimited]
// is true, and every number is 0:
//
//	Allowed: true, Limit: 0, Window: 0, Remaining: 0, RetryAfter: 0, ResetAfter: 0
//
// Its errors are those of other limiters: ErrInvalidKey for a key that is empty or too
// long, ErrInvalidPermits for n below 1, and the context's error if the context has
// ended. It never returns ErrExceedsLimit. Reset does nothing. A call costs a few
// nanoseconds.
func AllowAll() Limiter { return constant{Result{Allowed: true}} }

// DenyAll returns a limiter that denies every call: as the secondary of a
// [Fallback] it fails closed. No rule decides here either, so Limit, Window and Remaining
// are 0. Clients should try again soon, but not at once:
//
//	Allowed: false, Limit: 0, Window: 0, Remaining: 0, RetryAfter: 1s, ResetAfter: 1s
//
// RetryAfter does not promise that a later call is allowed. The errors are those of
// [AllowAll].
func DenyAll() Limiter {
	return constant{Result{RetryAfter: time.Second, ResetAfter: time.Second}}
}

// constant always gives the same answer.
type constant struct{ result Result }

func (c constant) TryAcquire(ctx context.Context, key string) (Result, error) {
	return c.TryAcquireN(ctx, key, 1)
}

func (c constant) TryAcquireN(ctx context.Context, key string, n int) (Result, error) {
	if err := checkLocal(ctx, key, n); err != nil {
		return Result{}, err
	}
	return c.result, nil
}

func (c constant) Peek(ctx context.Context, key string) (Result, error) {
	return c.TryAcquireN(ctx, key, 1)
}

func (c constant) Reset(ctx context.Context, key string) error {
	return checkLocal(ctx, key, 1)
}

// checkLocal returns an error for a caller's mistake, and for a context that has ended.
func checkLocal(ctx context.Context, key string, n int) error {
	if err := checkKey(key); err != nil {
		return err
	}
	if n < 1 {
		return fmt.Errorf("%w: %d; ask for at least 1", ErrInvalidPermits, n)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("ratelimit: %s: %w", shortKey(key), err)
	}
	return nil
}

package ratelimit

import (
	"context"
	"fmt"
	"time"

	"github.com/tryacquire/ratelimit/internal/exact"
	"github.com/tryacquire/ratelimit/internal/waiting"
)

// AllowAll returns a limiter that allows every call: as the secondary of a [Fallback] it fails open.
// [Result.Unlimited] is true, and every number is 0. Its errors are those of other limiters for a key, for n below
// 1 and for a context that has ended.
func AllowAll() Limiter { return allowAll }

// DenyAll returns a limiter that denies every call: as the secondary of a [Fallback] it fails closed. RetryAfter
// and ResetAfter are a second, which promises nothing; the other numbers are 0. The errors are those of
// [AllowAll].
func DenyAll() Limiter {
	return denyAll
}

// constant always gives the same answer. There are two, and two of holds.
type constant struct{ result Result }

var (
	allowAll = &constant{Result{Allowed: true}}
	denyAll  = &constant{Result{RetryAfter: time.Second, ResetAfter: time.Second}}
)

func (c *constant) kind() kind { return kind{self: c, role: inMemory} }

func (c *constant) Name() string { return defaultName }

func (c *constant) TryAcquire(ctx context.Context, key string) (Result, error) {
	return c.TryAcquireN(ctx, key, 1)
}

func (c *constant) TryAcquireN(ctx context.Context, key string, n int) (Result, error) {
	if err := checkLocal(ctx, key, n); err != nil {
		return Result{}, err
	}
	return c.result, nil
}

func (c *constant) Peek(ctx context.Context, key string) (Result, error) {
	return c.TryAcquireN(ctx, key, 1)
}

func (c *constant) peekN(ctx context.Context, key string, n int) (Result, error) {
	return c.TryAcquireN(ctx, key, n)
}

func (c *constant) Reset(ctx context.Context, key string) error {
	return checkLocal(ctx, key, 1)
}

// TryAcquireUpTo allows all of n, or denies them.
func (c *constant) TryAcquireUpTo(ctx context.Context, key string, n int) (taken int, r Result, err error) {
	r, err = c.TryAcquireN(ctx, key, n)
	if r.Allowed {
		taken = n
	}
	return taken, r, err
}

// Estimate allows n permits, or denies them. Nothing is counted, and the Ticket changes nothing.
func (c *constant) Estimate(ctx context.Context, key string, n int) (*Ticket, Result, error) {
	r, err := c.TryAcquireN(ctx, key, n)
	if err != nil || !r.Allowed {
		return nil, r, err
	}
	return &Ticket{from: uncounted{}, key: key, n: n}, r, nil
}

// Charge charges nobody.
func (c *constant) Charge(ctx context.Context, key string, n int) (Result, error) {
	return c.TryAcquireN(ctx, key, n)
}

// Credit gives nothing back: nothing is counted.
func (c *constant) Credit(ctx context.Context, key string, n int) (given int, err error) {
	_, err = c.TryAcquireN(ctx, key, n)
	return 0, err
}

// promise denies, or promises permits for now.
func (c *constant) promise(ctx context.Context, key string, of reserving) (*Reservation, error) {
	r, err := c.TryAcquireN(ctx, key, of.n)
	switch {
	case err != nil:
		return nil, err
	case !r.Allowed:
		return nil, &WaitError{Key: key, Wait: r.RetryAfter}
	}
	return usable(of.timing, key, of.n, r, of.around), nil
}

// uncounted is the origin of permits that nobody counts.
type uncounted struct{ local }

func (uncounted) settle(context.Context, *Ticket, *Observation) sending { return inProcess }

func (uncounted) Estimate(ctx context.Context, key string, n int) (*Ticket, Result, error) {
	if err := checkLocal(ctx, key, n); err != nil {
		return nil, Result{}, err
	}
	return &Ticket{from: uncounted{}, key: key, n: n}, Result{Allowed: true}, nil
}

func (uncounted) undo(context.Context, string) (sending, error) { return inProcess, nil }

func (uncounted) release(context.Context, *Hold) (sending, error) { return inProcess, nil }

// local is what origins in this process have in common.
type local struct{}

func (local) observers() *watch { return nil }

func (local) about(key string, err error) error {
	return fmt.Errorf("ratelimit: key %s: %w", shortKey(key), err)
}

func (local) checkSettle(ctx context.Context, key string, more int) error {
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("ratelimit: %s: %w", shortKey(key), ctx.Err())
	case more > exact.Permits: // it can still be settled
		return fmt.Errorf("%w: %d permits of %s", ErrTooMuchDebt, more, shortKey(key))
	}
	return nil
}

func (local) find(context.Context, *Hold) (bool, error) { return true, nil }

func (local) giveBack(context.Context, *Hold) {}

func (local) permits(string) waiting.Held { return waiting.Held{} }

// isConstant reports whether l is AllowAll or DenyAll.
func isConstant(l any) bool {
	switch l.(type) {
	case *constant, *constantHolds:
		return true
	}
	return false
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

// AllowHolds returns a Holder that allows every call: as the secondary of a [NewHoldFallback] it fails open.
// Its Result is that of [AllowAll]; its Hold is never lost.
func AllowHolds() Holder { return allowHolds }

// DenyHolds returns a Holder that denies every call, with the Result of [DenyAll].
func DenyHolds() Holder { return denyHolds }

// constantHolds always gives the same answer.
type constantHolds struct{ constant *constant }

var allowHolds, denyHolds = &constantHolds{allowAll}, &constantHolds{denyAll}

func (c *constantHolds) kind() kind { return kind{self: c, role: inMemory} }

func (c *constantHolds) Name() string { return defaultName }

func (c *constantHolds) TryAcquire(ctx context.Context, key string) (*Hold, Result, error) {
	return c.TryAcquireN(ctx, key, 1)
}

func (c *constantHolds) TryAcquireN(ctx context.Context, key string, n int) (*Hold, Result, error) {
	r, err := c.constant.TryAcquireN(ctx, key, n)
	if err != nil || !r.Allowed {
		return nil, r, err
	}
	return &Hold{from: uncounted{}, key: key, n: n}, r, nil
}

func (c *constantHolds) Peek(ctx context.Context, key string) (Result, error) {
	return c.peekN(ctx, key, 1)
}

func (c *constantHolds) peekN(ctx context.Context, key string, n int) (Result, error) {
	return c.constant.TryAcquireN(ctx, key, n)
}

package ratelimit

import (
	"context"
	"fmt"

	"github.com/tryacquire/ratelimit/internal/errclass"
)

// A Choice is a [Limiter] that picks the limiter of each call: by the customer's plan, by
// tenant, or by a setting of an administrator. To change a limit while the program runs,
// pick another limiter. Build limiters beforehand, not in pick, or take them from
// [TokenBuckets]: to build one takes longer than to pick it.
//
// Give the plans limiters of one algorithm and one name, so that they share the state of
// each key. After a change of plan, up or down, the number of permits that a customer has
// used then stays the same, even while instances of the service still pick the old limiter
// (see [WithName]). Limiters of several algorithms or names have keys of their own: after a
// change, a customer starts with an unused limit, and Reset resets the state of the picked
// limiter only.
//
// A raised limit counts from the next call on, even with a [DenyCache] around the Choice: the
// cache forgets a denial when another limiter is picked for the key than the one that denied.
// So put the DenyCache around the Choice, and a [Fallback] around both.
type Choice struct {
	pick func(ctx context.Context, key string) (Limiter, error)
}

var _ Limiter = (*Choice)(nil)

// NewChoice returns a limiter that passes each call to the limiter that pick returns. pick is
// called once for each call, with its context; once more by a [Fallback] that does not ask its primary,
// to find the caller's mistakes; and for each answer of the primary where the Choice is the
// secondary, see [WithLastAnswers]. It is called from many goroutines at once, and should be as fast as reading a map: load plans and
// settings elsewhere. For a key without a plan, return a limiter for that case, such as
// [AllowAll] or [DenyAll].
//
// If pick returns an error, the call returns one that wraps it, and nothing was asked. It is neither
// a denial nor an outage of Redis, whatever it wraps: a [Fallback] returns it and does not ask its
// secondary, because the limit of the key is not known, and a breaker does not count it. To go on
// without a database, return the limiter that was picked last, or one for this case. If pick returns
// neither a limiter nor an error, the error wraps ErrInvalidConfig. If pick is nil, NewChoice returns
// such an error.
func NewChoice(pick func(ctx context.Context, key string) (Limiter, error)) (*Choice, error) {
	if pick == nil {
		return nil, invalidConfig("NewChoice: pick is nil")
	}
	return &Choice{pick}, nil
}

// TryAcquire is TryAcquireN(ctx, key, 1).
func (c *Choice) TryAcquire(ctx context.Context, key string) (Result, error) {
	return c.TryAcquireN(ctx, key, 1)
}

// TryAcquireN returns what the picked limiter returns.
func (c *Choice) TryAcquireN(ctx context.Context, key string, n int) (Result, error) {
	l, err := c.of(ctx, key)
	if err != nil {
		return Result{}, err
	}
	return l.TryAcquireN(ctx, key, n)
}

// Peek returns what the picked limiter's Peek returns.
func (c *Choice) Peek(ctx context.Context, key string) (Result, error) {
	l, err := c.of(ctx, key)
	if err != nil {
		return Result{}, err
	}
	return l.Peek(ctx, key)
}

// Reset resets key in the picked limiter.
func (c *Choice) Reset(ctx context.Context, key string) error {
	l, err := c.of(ctx, key)
	if err != nil {
		return err
	}
	return l.Reset(ctx, key)
}

// Pick returns the limiter that a call for key with this context would ask. It is for calls
// that a Choice itself cannot make.
//
// Its errors are ErrInvalidKey, that of pick, and ErrInvalidConfig if pick returned nil.
func (c *Choice) Pick(ctx context.Context, key string) (Limiter, error) { return c.of(ctx, key) }

// Name is "default", because a Choice has no name of its own: observers and errors have that of
// the picked limiter.
func (c *Choice) Name() string {
	if c == nil || c.pick == nil {
		return ""
	}
	return defaultName
}

func (c *Choice) rank() int { return rankChoice }

func (c *Choice) around(ctx context.Context, call *call, own claimSet) outcome {
	return pickAll(ctx, call, own)
}

func (c *Choice) pickFor(ctx context.Context, key string) (any, error) { return c.of(ctx, key) }

// pickAll makes each claim of a Choice one of the limiter that it picks.
func pickAll(ctx context.Context, c *call, own claimSet) outcome {
	for i := range c.claims {
		if own.has(i) {
			picked, err := c.claims[i].outer.(picker).pickFor(ctx, c.claims[i].key)
			if err != nil {
				return failedWith(err)
			}
			c.claims[i].by(picked)
		}
	}
	return c.decide(ctx)
}

// A picker is a Choice, of limiters or of holders.
type picker interface {
	pickFor(ctx context.Context, key string) (any, error)
}

// of is the picked limiter.
func (c *Choice) of(ctx context.Context, key string) (Limiter, error) {
	if c == nil || c.pick == nil {
		return nil, errUnmade
	}
	if err := checkKey(key); err != nil {
		return nil, err
	}
	l, err := c.pick(ctx, key)
	if err != nil {
		return nil, errPick(key, err)
	}
	if kindOf(l).absent {
		return nil, fmt.Errorf("%w: NewChoice: pick returned nil for %s; return a limiter for every key, such as AllowAll() or DenyAll()",
			ErrInvalidConfig, shortKey(key))
	}
	return l, nil
}

// errPick is the error of a call whose limiter is not known, because pick returned err.
func errPick(key string, err error) error {
	return &errclass.PickError{Err: fmt.Errorf("ratelimit: the limiter of %s could not be picked: %w", shortKey(key), err)}
}

package ratelimit

import (
	"context"
	"fmt"
)

// A HoldFallback is a [Fallback] for permits that are held: it asks a secondary when its primary could not
// decide. The secondary is a [LocalInFlight], [AllowHolds], [DenyHolds], or holds on another Redis. What
// Fallback says of outages, budgets and breakers holds here too.
//
// A Hold is released where it was taken. Permits that the primary takes after the budget is over
// are given back.
type HoldFallback struct {
	primary, secondary Holder
	settings           *Fallback
}

// NewHoldFallback returns a Holder that asks primary, and secondary when primary could not decide.
// The error is nil or wraps ErrInvalidConfig, as that of [NewFallback].
func NewHoldFallback(primary, secondary Holder, opts ...PolicyOption) (*HoldFallback, error) {
	s, err := collect(newHoldFallback, opts)
	switch {
	case kindOf(primary).absent:
		return nil, errNilHolder("NewHoldFallback", "primary")
	case kindOf(secondary).absent:
		return nil, errNilHolder("NewHoldFallback", "secondary")
	case err != nil:
		return nil, err
	}
	if s.breaker != nil && hasBreaker(primary, s.breaker) {
		return nil, errTwiceGuarded("NewHoldFallback")
	}
	return &HoldFallback{primary: primary, secondary: secondary, settings: s.fallback(primary)}, nil
}

// TryAcquire takes one permit of key, if one is free now. It is TryAcquireN(ctx, key, 1).
func (f *HoldFallback) TryAcquire(ctx context.Context, key string) (*Hold, Result, error) {
	return f.TryAcquireN(ctx, key, 1)
}

// TryAcquireN takes n permits of key, all or none, from the primary, or in an outage from the secondary; the
// Result then has Fallback set. Its errors are those of [Fallback.TryAcquireN].
func (f *HoldFallback) TryAcquireN(ctx context.Context, key string, n int) (*Hold, Result, error) {
	return holdThrough(ctx, f, key, n)
}

// Peek returns what the primary has left, or the secondary where TryAcquire would ask it.
func (f *HoldFallback) Peek(ctx context.Context, key string) (Result, error) {
	return peekThrough(ctx, f, key)
}

// Claim is a claim for n permits of key, for [TryAcquireAll].
func (f *HoldFallback) Claim(key string, n int) Claim { return claimOn(f, key, n) }

// Name returns the name of WithName, and without it the primary's.
func (f *HoldFallback) Name() string {
	if f == nil || f.settings == nil {
		return ""
	}
	return f.settings.name
}

func (f *HoldFallback) rank() int { return rankFallback }

func (f *HoldFallback) outage() (settings *Fallback, primary, secondary any) {
	if f == nil || f.settings == nil {
		return nil, nil, nil
	}
	return f.settings, f.primary, f.secondary
}

func (f *HoldFallback) around(ctx context.Context, c *call, own claimSet) outcome {
	return withinOutages(ctx, c, own)
}

// mostOf is the most permits that one call gets, 0 if that is not known.
func (f *Fallback) mostOf() int {
	if f == nil {
		return 0
	}
	return f.most
}

// A HoldChoice is a [Choice] for permits that are held: it picks the Holder of each call, by the
// customer's plan. Give the plans one name, so that they share the state of each key.
type HoldChoice struct {
	pick func(ctx context.Context, key string) (Holder, error)
}

// NewHoldChoice returns a Holder that passes each call to the Holder that pick returns, see [NewChoice].
func NewHoldChoice(pick func(ctx context.Context, key string) (Holder, error)) (*HoldChoice, error) {
	if pick == nil {
		return nil, invalidConfig("NewHoldChoice: pick is nil")
	}
	return &HoldChoice{pick}, nil
}

// TryAcquire takes one permit of key, if one is free now. It is TryAcquireN(ctx, key, 1).
func (c *HoldChoice) TryAcquire(ctx context.Context, key string) (*Hold, Result, error) {
	return c.TryAcquireN(ctx, key, 1)
}

// TryAcquireN returns what the picked Holder returns.
func (c *HoldChoice) TryAcquireN(ctx context.Context, key string, n int) (*Hold, Result, error) {
	return holdThrough(ctx, c, key, n)
}

// Peek returns what the picked Holder has left.
func (c *HoldChoice) Peek(ctx context.Context, key string) (Result, error) {
	return peekThrough(ctx, c, key)
}

// Claim is a claim for n permits of key, for [TryAcquireAll].
func (c *HoldChoice) Claim(key string, n int) Claim { return claimOn(c, key, n) }

// Name is "default", see [Choice.Name].
func (c *HoldChoice) Name() string {
	if c == nil || c.pick == nil {
		return ""
	}
	return defaultName
}

func (c *HoldChoice) rank() int { return rankChoice }

func (c *HoldChoice) around(ctx context.Context, call *call, own claimSet) outcome {
	return pickAll(ctx, call, own)
}

func (c *HoldChoice) pickFor(ctx context.Context, key string) (any, error) {
	if c == nil || c.pick == nil {
		return nil, errUnmade
	}
	if err := checkKey(key); err != nil {
		return nil, err
	}
	h, err := c.pick(ctx, key)
	if err != nil {
		return nil, errPick(key, err)
	}
	if kindOf(h).absent {
		return nil, fmt.Errorf("%w: NewHoldChoice: pick returned nil for %s; return a Holder for every key, such as AllowHolds() or DenyHolds()",
			ErrInvalidConfig, shortKey(key))
	}
	return h, nil
}

// holdThrough takes permits through the policies of h.
func holdThrough(ctx context.Context, h policy, key string, n int) (*Hold, Result, error) {
	o := callOn(h, CallAcquire, key, n).decide(ctx)
	return o.hold, o.result, o.err
}

func peekThrough(ctx context.Context, h policy, key string) (Result, error) {
	o := callOn(h, CallPeek, key, 1).decide(ctx)
	return o.result, o.err
}

package ratelimit

import "context"

// A Holder holds permits while work runs: [InFlight] on Redis, [LocalInFlight] in this process, and the
// policies around them, [HoldFallback] and [HoldChoice].
type Holder interface {
	// TryAcquire takes one permit of key, if one is free now. It is TryAcquireN(ctx, key, 1).
	TryAcquire(ctx context.Context, key string) (*Hold, Result, error)

	// TryAcquireN takes n permits of key, all or none, see [InFlight.TryAcquireN]. The Hold is nil
	// if the call is denied or returns an error.
	TryAcquireN(ctx context.Context, key string, n int) (*Hold, Result, error)

	// Peek returns how many permits of key are free, and takes nothing.
	Peek(ctx context.Context, key string) (Result, error)

	// Name returns the name by which errors and observers know the holds.
	Name() string
}

// hold takes n permits that are given back by a Hold.
var hold = &operation{
	call:  callHold,
	check: checkTake,
	decide: func(ctx context.Context, l any, _ *call, claim *Claim) (o outcome) {
		o.hold, o.result, o.err = l.(Holder).TryAcquireN(ctx, claim.key, claim.n)
		return o
	},
}

// holds reports whether the permits of the claim are held.
func (c *Claim) holds() bool {
	if c.limiter != nil {
		return c.limiter.holds()
	}
	_, ok := c.outer.(Holder)
	return ok
}

// AllowHolds returns a Holder that allows every call: as the secondary of a [HoldFallback] it fails open.
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

func errNilHolder(what, name string) error {
	return invalidConfig("%s: the %s is nil; AllowHolds() allows every call, DenyHolds() denies every call", what, name)
}

package ratelimit

import "context"

// A HoldFallback is a [Fallback] for permits that are held: it asks a secondary when its primary could not
// decide. The secondary is a [LocalInFlight], [AllowHolds], [DenyHolds], or holds on another Redis. What
// Fallback says of outages, budgets and breakers holds here too.
//
// A Hold is released where it was taken. Permits that the primary takes after the budget is over
// are given back.
type HoldFallback struct {
	policiedHolds
	outages
}

func (f *HoldFallback) kind() kind { return f.outages.kind(f) }

// NewHoldFallback returns a Holder that asks primary, and secondary when primary could not decide.
// The error is nil or wraps ErrInvalidConfig, as that of [NewFallback].
func NewHoldFallback(primary, secondary Holder, opts ...PolicyOption) (*HoldFallback, error) {
	switch {
	case kindOf(primary).absent:
		return nil, errNilHolder("NewHoldFallback", "primary")
	case kindOf(secondary).absent:
		return nil, errNilHolder("NewHoldFallback", "secondary")
	}
	f := &HoldFallback{}
	f.by = f
	if err := f.build(newHoldFallback, primary, secondary, opts); err != nil {
		return nil, err
	}
	return f, nil
}

// A HoldChoice is a [Choice] for permits that are held: it picks the Holder of each call, by the
// customer's plan. Give the plans one name, so that they share the state of each key.
type HoldChoice struct {
	policiedHolds
	picks
}

func (c *HoldChoice) kind() kind { return kind{self: c, role: decorator} }

// NewHoldChoice returns a Holder that passes each call to the Holder that pick returns, see [NewChoice].
func NewHoldChoice(pick func(ctx context.Context, key string) (Holder, error)) (*HoldChoice, error) {
	if pick == nil {
		return nil, invalidConfig("NewHoldChoice: pick is nil")
	}
	c := &HoldChoice{picks: picks{
		pick:    func(ctx context.Context, key string) (any, error) { return pick(ctx, key) },
		nothing: "NewHoldChoice: pick returned nil for %s; return a Holder for every key, such as AllowHolds() or DenyHolds()",
	}}
	c.by = c
	return c, nil
}

package ratelimit

import (
	"context"
	"fmt"

	"github.com/tryacquire/ratelimit/internal/errclass"
)

// A Choice is a [Limiter] that picks the limiter of each call: by the customer's plan, by tenant, or by a setting. To
// change a limit while the program runs, pick another limiter. Build limiters beforehand, not in pick, or take them
// from [TokenBucket.With].
//
// Give the plans limiters of one algorithm and one name: they share the state of each key, so that used permits count
// after a change of plan (see [WithName]). Others have keys of their own, and Reset resets the state of the picked
// limiter only. Put a [DenyCache] around the Choice, and a [Fallback] around both; docs/plans.md says why.
type Choice struct {
	policied
	picks
}

func (c *Choice) kind() kind { return kind{self: c, role: decorator} }

// NewChoice returns a limiter that passes each call to the limiter that pick returns. pick is called once for each
// call, with its context; once more by a [Fallback] that does not ask its primary; and for each answer of the primary
// where the Choice is the secondary, see [WithLastAnswers]. It is called from many goroutines at once, and should be
// as fast as reading a map. For a key without a plan, return a limiter for that case, such as [AllowAll] or
// [DenyAll].
//
// If pick returns an error, the call returns one that wraps it, and nothing was asked. It is neither a denial nor an
// outage, whatever it wraps: a [Fallback] returns it, and a breaker does not count it. If pick is nil, or returns
// neither a limiter nor an error, the error wraps ErrInvalidConfig.
func NewChoice(pick func(ctx context.Context, key string) (Limiter, error)) (*Choice, error) {
	if pick == nil {
		return nil, invalidConfig("NewChoice: pick is nil")
	}
	c := &Choice{picks: picks{
		pick:    func(ctx context.Context, key string) (any, error) { return pick(ctx, key) },
		nothing: "NewChoice: pick returned nil for %s; return a limiter for every key, such as AllowAll() or DenyAll()",
	}}
	c.by = c
	return c, nil
}

// Reset resets key in the picked limiter.
func (c *Choice) Reset(ctx context.Context, key string) error {
	l, err := c.of(ctx, key)
	if err != nil {
		return err
	}
	return l.(Limiter).Reset(ctx, key)
}

// picks is the policy of a Choice, of limiters or of holders, which embeds it.
type picks struct {
	pick    func(ctx context.Context, key string) (any, error) // nil: it was not made
	nothing string                                             // the text of the error if it returns neither a limiter nor an error
}

// Name is "default", because a Choice has no name of its own: observers and errors have that of
// what is picked.
func (p *picks) Name() string {
	if p.pick == nil {
		return ""
	}
	return defaultName
}

func (p *picks) rank() int { return rankChoice }

// around makes each claim of a Choice one of what it picks.
func (*picks) around(ctx context.Context, c *call, own claimSet) outcome {
	for i := range c.claims {
		if own.has(i) {
			picked, err := c.claims[i].outer.(picker).of(ctx, c.claims[i].key)
			if err != nil {
				return failedWith(err)
			}
			c.claims[i].by(picked)
		}
	}
	return c.decide(ctx)
}

func (p *picks) of(ctx context.Context, key string) (any, error) {
	if p.pick == nil {
		return nil, errUnmade
	}
	if err := checkKey(key); err != nil {
		return nil, err
	}
	picked, err := p.pick(ctx, key)
	switch {
	case err != nil:
		return nil, &errclass.PickError{Err: fmt.Errorf("ratelimit: the limiter of %s could not be picked: %w", shortKey(key), err)}
	case kindOf(picked).absent:
		return nil, invalidConfig(p.nothing, shortKey(key))
	}
	return picked, nil
}

// A holdChoice is a Choice for permits that are held.
type holdChoice struct {
	policiedHolds
	picks
}

func (c *holdChoice) kind() kind { return kind{self: c, role: decorator} }

// NewHoldChoice returns a [Choice] for permits that are held: it passes each call to the Holder that pick returns, see
// [NewChoice]. Give the plans one name.
func NewHoldChoice(pick func(ctx context.Context, key string) (Holder, error)) (Holder, error) {
	if pick == nil {
		return nil, invalidConfig("NewHoldChoice: pick is nil")
	}
	c := &holdChoice{picks: picks{
		pick:    func(ctx context.Context, key string) (any, error) { return pick(ctx, key) },
		nothing: "NewHoldChoice: pick returned nil for %s; return a Holder for every key, such as AllowHolds() or DenyHolds()",
	}}
	c.by = c
	return c, nil
}

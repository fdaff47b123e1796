package rpclimit

import (
	"context"
	"time"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/identity"
	"github.com/tryacquire/ratelimit/internal/integration"
	"github.com/tryacquire/ratelimit/internal/limitername"
)

// An Option is what the functions With… return. The packages document them.
type Option[C any] struct {
	name  string
	sides Side
	set   func(*Limit[C]) error
}

// A Side is a constructor. An option is for one or several.
type Side uint8

const (
	Server Side = 1 << iota
	Client
	InTap

	everywhere = Server | Client | InTap
)

func (s Side) String() string {
	return map[Side]string{Server: "NewServer", Client: "NewClient", InTap: "NewTap"}[s]
}

// New checks what the constructors are given.
func New[C any](p *Protocol[C], side Side, limiter ratelimit.Limiter, key func(context.Context, C) (string, error), opts []Option[C]) (*Limit[C], error) {
	l := &Limit[C]{
		Protocol: p, Side: side, call: taker{limiter: limiter}, key: key, maxPushback: time.Minute, retryAfter: time.Second,
		denied: p.Denied, failed: p.Failed,
	}
	if identity.IsNil(limiter) {
		return nil, p.InvalidConfig("%v: the limiter is nil", side)
	}
	if key == nil {
		return nil, p.InvalidConfig("%v: the key function is nil; ClientIP and User return such", side)
	}
	given := map[string]bool{}
	for i, o := range opts {
		if o.set == nil {
			return nil, p.InvalidConfig("%v: option %d is empty", side, i+1)
		}
		if o.sides&side == 0 {
			return nil, p.InvalidConfig("%v: %s does not apply here; its documentation says where it does", side, o.name)
		}
		if given[o.name] {
			return nil, p.InvalidConfig("%s is given twice", o.name)
		}
		given[o.name] = true
		if err := o.set(l); err != nil {
			return nil, err
		}
	}
	if given["WithRetryAfter"] && l.inFlight == nil {
		return nil, p.InvalidConfig("WithRetryAfter: nothing limits the calls at once, and the RetryAfter of other denials is exact; leave it out")
	}
	if l.call.policy == "" {
		if l.call.policy = limitername.Of(limiter); !integration.IsPolicyName(l.call.policy) {
			return nil, p.InvalidConfig("%v: the limiter's name, %q, is no name for its policy (1 to %d printable ASCII characters); give WithPolicy",
				side, shorten(l.call.policy), integration.MostPolicyName)
		}
	}
	l.received.policy = l.call.policy + ".received"
	l.sent.policy = l.call.policy + ".sent"
	l.heldPolicy = l.call.policy + ".inflight"
	return l, nil
}

func shorten(name string) string {
	if len(name) <= integration.MostPolicyName {
		return name
	}
	return name[:integration.MostPolicyName] + "…"
}

func WithPolicy[C any](name string) Option[C] {
	return Option[C]{"WithPolicy", everywhere, func(l *Limit[C]) error {
		if !integration.IsPolicyName(name) {
			return l.InvalidConfig("WithPolicy: %q, of %d bytes, is not 1 to %d printable ASCII characters",
				shorten(name), len(name), integration.MostPolicyName)
		}
		l.call.policy = name
		return nil
	}}
}

func WithCost[C any](cost func(context.Context, C) int) Option[C] {
	return function("WithCost", cost != nil, func(l *Limit[C]) { l.cost = cost })
}

func WithSkip[C any](skip func(context.Context, C) bool) Option[C] {
	return function("WithSkip", skip != nil, func(l *Limit[C]) { l.skip = skip })
}

func WithDenialHandler[C any](denied func(context.Context, C, Decision) error) Option[C] {
	return function("WithDenialHandler", denied != nil, func(l *Limit[C]) { l.denied = denied })
}

func WithErrorHandler[C any](failed func(context.Context, C, error) error) Option[C] {
	return function("WithErrorHandler", failed != nil, func(l *Limit[C]) { l.failed = failed })
}

// function is an option that takes a function, which is not nil.
func function[C any](name string, given bool, set func(*Limit[C])) Option[C] {
	return Option[C]{name, everywhere, func(l *Limit[C]) error {
		if !given {
			return l.InvalidConfig("%s: the function is nil", name)
		}
		set(l)
		return nil
	}}
}

func WithMaxWait[C any](longest time.Duration) Option[C] {
	return Option[C]{"WithMaxWait", Server | Client, func(l *Limit[C]) error {
		if longest < integration.LeastWait {
			return l.InvalidConfig("WithMaxWait: %v is shorter than %v", longest, integration.LeastWait)
		}
		l.call.longest = longest
		return nil
	}}
}

func WithReceived[C any](limiter ratelimit.Limiter, wait time.Duration) Option[C] {
	return ofMessages("WithReceived", limiter, wait, func(l *Limit[C]) *taker { return &l.received })
}

func WithSent[C any](limiter ratelimit.Limiter, wait time.Duration) Option[C] {
	return ofMessages("WithSent", limiter, wait, func(l *Limit[C]) *taker { return &l.sent })
}

func ofMessages[C any](name string, limiter ratelimit.Limiter, wait time.Duration, of func(*Limit[C]) *taker) Option[C] {
	return Option[C]{name, Server | Client, func(l *Limit[C]) error {
		switch {
		case identity.IsNil(limiter):
			return l.InvalidConfig("%s: the limiter is nil", name)
		case wait != 0 && wait < integration.LeastWait:
			return l.InvalidConfig("%s: a wait of %v is shorter than %v; 0 denies at once", name, wait, integration.LeastWait)
		}
		*of(l) = taker{limiter: limiter, longest: wait, midway: true}
		return nil
	}}
}

func WithInFlight[C any](inFlight ratelimit.Holder) Option[C] {
	return Option[C]{"WithInFlight", Server, func(l *Limit[C]) error {
		if identity.IsNil(inFlight) {
			return l.InvalidConfig("WithInFlight: the limiter is nil")
		}
		l.inFlight = inFlight
		return nil
	}}
}

func WithRetryAfter[C any](d time.Duration) Option[C] {
	return Option[C]{"WithRetryAfter", Server, func(l *Limit[C]) error {
		if d <= 0 {
			return l.InvalidConfig("WithRetryAfter: %v is not more than 0", d)
		}
		l.retryAfter = d
		return nil
	}}
}

func WithOutageRetryAfter[C any](d time.Duration) Option[C] {
	return Option[C]{"WithOutageRetryAfter", everywhere, func(l *Limit[C]) error {
		if d < time.Millisecond {
			return l.InvalidConfig("WithOutageRetryAfter: %v is less than a millisecond; leave it out to send none", d)
		}
		l.outageRetryAfter = Decision{Result: ratelimit.Result{RetryAfter: d}}.RetryDelay()
		return nil
	}}
}

func WithRetrySpread[C any](most time.Duration) Option[C] {
	return Option[C]{"WithRetrySpread", Server, func(l *Limit[C]) error {
		if most <= 0 {
			return l.InvalidConfig("WithRetrySpread: %v is not more than 0; leave it out for an exact RetryAfter", most)
		}
		l.spread = integration.NewSpread(most)
		return nil
	}}
}

func WithMaxPushback[C any](longest time.Duration) Option[C] {
	return Option[C]{"WithMaxPushback", Server, func(l *Limit[C]) error {
		if longest < 0 || longest > 24*time.Hour {
			return l.InvalidConfig("WithMaxPushback: %v is not between 0 and 24h", longest)
		}
		l.maxPushback = longest
		return nil
	}}
}

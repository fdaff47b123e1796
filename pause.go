package ratelimit

import (
	"context"
	"strconv"
	"time"

	"github.com/tryacquire/ratelimit/internal/algorithms"
	"github.com/tryacquire/ratelimit/internal/exact"
	"github.com/tryacquire/ratelimit/internal/pauses"
	"github.com/tryacquire/ratelimit/internal/redisexec"
	"github.com/tryacquire/ratelimit/internal/scripts"
)

// A Pause is a [Limiter] that stops a key for all processes until an instant: that which an upstream's Retry-After
// names, or the end of a ban. Calls are allowed unless the key is paused, and nothing is counted. Claim it beside other
// limiters, with [NewAll] or [TryAcquireAll]: a paused key takes nothing from them.
//
//	upstream, err := ratelimit.NewPause(client, ratelimit.WithName("upstream"))
//	...
//	_, err = upstream.Pause(ctx, "api.example.com", 30*time.Second)
//
// While a key is paused, calls are denied, and RetryAfter and ResetAfter are the time until the instant, to the
// microsecond. Otherwise [Result.Unlimited] is true. Limit, Window and Remaining are 0, except while one call goes
// first (see [WithProbe]). Reset lifts a pause, and forgets the strikes of [Bans].
//
// In front of a pause, a [DenyCache] denies from memory what this process knows to be paused, also while Redis is
// down: see [Pause.Pause] and docs/pausing.md. The state is one string of some 60 bytes, which expires when it is of
// no use. A decision is O(1), and writes nothing.
type Pause struct{ pauseCore }

func (p *Pause) kind() kind { return kindOnRedis(p, &p.core) }

// pauseCore is limiterCore for pauses, which alone can be paused.
type pauseCore struct{ limiterCore }

// NewPause returns a pause. Pauses of one name share the instants of their keys. The error wraps ErrInvalidConfig.
// Redis is not asked.
func NewPause(c Client, opts ...Option) (*Pause, error) {
	s, err := collect(newPause, opts)
	if err != nil {
		return nil, err
	}
	p := &Pause{}
	if err := p.build(c, s, algorithm{
		id: algorithms.Pause, scripts: scripts.Of("pause"), most: exact.Permits,
		args: []string{strconv.FormatInt(s.probe.Microseconds(), 10)},
		cost: redisexec.Cost{Key: 6, Run: 1}, explainer: pauses.Explainer{Lease: s.probe},
	}); err != nil {
		return nil, err
	}
	p.decider = &p.pauseCore
	return p, nil
}

// WithProbe lets one call go first when a pause is over, and not all at once. The others are denied until
// [Pause.Resume] says that it has succeeded, or until the next [Pause.Pause]. If it says neither within lease, because
// its process died, another one goes. lease is how long such a call takes at most: a whole number of microseconds,
// from 1ms to 71 years. If for as long as lease nobody asks, all may go.
//
// The Result of the call that goes first has Limit 1 and Window lease, and Unlimited is false. Denials have these too,
// and RetryAfter is the time until the next one goes. Give this option to all pauses of a name.
func WithProbe(lease time.Duration) Option {
	return limiterOption("WithProbe", func(s *settings) {
		s.probe = lease
		s.fail(checkSpan("WithProbe: the lease", lease))
	})
}

// pause pauses a key for the longest of the call; resume says that a call has succeeded after it.
var (
	pause = &operation{
		call:   callPause,
		unable: unableToPause,
		check: func(ctx context.Context, c *core, call *call, claim *Claim) error {
			return c.checkPause(ctx, claim.key, call.longest)
		},
		decide: func(ctx context.Context, l any, call *call, claim *Claim) (o outcome) {
			o.result, o.err = l.(pauser).Pause(ctx, claim.key, call.longest)
			return o
		},
	}
	resume = &operation{
		call:   callResume,
		unable: unableToPause,
		check:  checkTake,
		decide: func(ctx context.Context, l any, _ *call, claim *Claim) (o outcome) {
			return failedWith(l.(pauser).Resume(ctx, claim.key))
		},
	}
)

// A pauser is a pauseCore, or a type of a user's around one.
type pauser interface {
	Pause(ctx context.Context, key string, d time.Duration) (Result, error)
	Resume(ctx context.Context, key string) error
}

func unableToPause(l any, _ *call, _ *Claim) error {
	if _, ok := l.(pauser); !ok {
		return invalidConfig("a %T cannot be paused; NewPause makes a limiter that can, to be claimed beside it", l)
	}
	return nil
}

// Pause stops key for d from now, which is 0 to 71 years, in all processes. If the key is already paused for longer,
// it stays so: the instant is only ever moved later. The Result is that of a Peek after it, and RetryAfter says for how
// long the key is paused. The errors are those of TryAcquire, and ErrInvalidConfig for such a d.
//
// If Redis cannot be reached, other processes do not know of the pause. A [DenyCache] around it, also with a [Fallback]
// in between, denies calls of this process all the same, and returns the error.
func (p *pauseCore) Pause(ctx context.Context, key string, d time.Duration) (Result, error) {
	o := Observation{Call: callPause, Key: key, N: 1}
	o.Err = p.checkPause(ctx, key, d)
	span := int64((d + time.Microsecond - 1) / time.Microsecond)
	p.watch.observed(ctx, &o, func() sending {
		return p.change(ctx, &o, redisexec.Operation{Op: redisexec.Pause, Detail: &redisexec.Detail{Where: span}})
	})
	return o.Result, o.Err
}

// Resume says that a call has succeeded after the pause of key: the calls that wait for the one that goes first, see
// [WithProbe], may follow. It changes nothing while the key is paused, and where nobody waits. The errors are those of
// TryAcquire; after one of them the others wait for the lease at most.
func (p *pauseCore) Resume(ctx context.Context, key string) error {
	o := Observation{Call: callResume, Key: key, N: 1}
	o.Err = p.check(ctx, key, 1)
	p.watch.observed(ctx, &o, func() sending {
		return p.change(ctx, &o, redisexec.Operation{Op: redisexec.Resume, Detail: &redisexec.Detail{}})
	})
	return o.Err
}

// change changes the pause of a key. The words of the reply are those of a look behind it.
func (p *pauseCore) change(ctx context.Context, o *Observation, op redisexec.Operation) sending {
	op.N, op.Times = 1, 1
	reply, err := p.operate(ctx, o.Key, op)
	if err != nil {
		o.Err = p.failed(ctx, o.Key, err)
		return reply.Batch
	}
	o.Result = p.inRun(reply.Words, 0, 0)
	reply.Done()
	return reply.Batch
}

func (c *core) checkPause(ctx context.Context, key string, d time.Duration) error {
	if d < 0 || d > exact.Duration(exact.Micros) {
		return invalidConfig("Pause: %v is not between 0 and %v", d, exact.Duration(exact.Micros))
	}
	return c.check(ctx, key, 1)
}

// Pause pauses key, see [Pause.Pause].
func (p *policied) Pause(ctx context.Context, key string, d time.Duration) (Result, error) {
	if p.by == nil {
		return Result{}, errUnmade
	}
	o := operate(ctx, p.by, pause, key, 1, call{longest: d})
	return o.result, o.err
}

// Resume says that a call has succeeded, see [Pause.Resume].
func (p *policied) Resume(ctx context.Context, key string) error {
	return p.operate(ctx, resume, key, 1).err
}

// Package rpclimit is what grpclimit and connectlimit have in common: when a call and the messages
// of its stream take their permits, and what a denial or an error means for clients. C is the
// package's Call. Both are modules of their own, so what they use of it stays compatible with their
// older releases.
package rpclimit

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/integration"
)

// A Protocol is what a package does in its own way.
type Protocol[C any] struct {
	Package string // its name, for errors

	WithMessage func(call C, message any) C

	// Denied and Failed are its DefaultDenialHandler and DefaultErrorHandler.
	Denied func(context.Context, C, Decision) error
	Failed func(context.Context, C, error) error

	// Tell returns err, the error of a call that a server denies, with the information that the
	// client may come back after delay. pushback is the value of grpc-retry-pushback-ms.
	Tell func(ctx context.Context, call C, err error, delay time.Duration, pushback string) error

	// Answer, if it is not nil, returns err, any error with which a server answers a call, as the
	// protocol needs it.
	Answer func(call C, err error) error
}

// InvalidConfig returns an error that wraps ratelimit.ErrInvalidConfig.
func (p *Protocol[C]) InvalidConfig(format string, args ...any) error {
	return fmt.Errorf("%w: %s: %s", ratelimit.ErrInvalidConfig, p.Package, fmt.Sprintf(format, args...))
}

// A Limit is that of a server, a client or a tap handle.
type Limit[C any] struct {
	*Protocol[C]
	Side Side

	call           taker // when a call starts
	received, sent taker // for each message of a stream; without a limiter, messages are free
	inFlight       ratelimit.Holder
	heldPolicy     string        // of inFlight
	retryAfter     time.Duration // of its denials

	key         func(context.Context, C) (string, error)
	cost        func(context.Context, C) int
	skip        func(context.Context, C) bool
	denied      func(context.Context, C, Decision) error
	failed      func(context.Context, C, error) error
	maxPushback time.Duration

	outageRetryAfter time.Duration // 0: none
	spread           integration.Spread
}

// A taker takes permits of one limiter, or waits for them.
type taker struct {
	limiter ratelimit.Limiter
	policy  string
	longest time.Duration // of a wait; 0 denies at once
	midway  bool          // for messages
}

// Begin takes the permits of a client's call, or of a call in a tap handle. If it returns no error,
// the call goes on, and each of its messages takes its permit by messages.
func (l *Limit[C]) Begin(ctx context.Context, call C) (messages *Messages[C], err error) {
	key, limited, err := l.keyed(ctx, call)
	if err != nil || !limited {
		return nil, err
	}
	if err = l.start(ctx, call, key); err != nil {
		return nil, err
	}
	return l.messages(call, key), nil
}

// Serve runs work if a server's call gets its permits. If the limit has WithInFlight, the call holds
// a permit of it while work runs, and the context of work is cancelled if the lease is lost.
func (l *Limit[C]) Serve(ctx context.Context, call C, work func(ctx context.Context, messages *Messages[C]) error) error {
	key, limited, err := l.keyed(ctx, call)
	switch {
	case err != nil:
		return err
	case !limited:
		return work(ctx, nil)
	}
	return l.hold(ctx, call, key, func(ctx context.Context) error {
		if err := l.start(ctx, call, key); err != nil {
			return err
		}
		return work(ctx, l.messages(call, key))
	})
}

// HasInFlight reports whether the context in Serve is another one than the call's own.
func (l *Limit[C]) HasInFlight() bool { return l.inFlight != nil }

// keyed is the key of a call. limited is false for a call that goes on without any limit, if
// there is no error.
func (l *Limit[C]) keyed(ctx context.Context, call C) (key string, limited bool, err error) {
	if l.skip != nil && l.skip(ctx, call) {
		return "", false, nil
	}
	key, err = integration.CheckKey(l.key(ctx, call))
	if err != nil {
		return "", false, l.fail(ctx, call, err, false)
	}
	return key, true, nil
}

// hold runs work while the call holds a permit of the limiter for calls at once, if there is one.
func (l *Limit[C]) hold(ctx context.Context, call C, key string, work func(context.Context) error) error {
	if l.inFlight == nil {
		return work(ctx)
	}
	ran := false
	var result error
	held, answer, err := l.inFlight.TryAcquire(ctx, key)
	if err == nil && !answer.Allowed {
		d := Decision{Policy: l.heldPolicy, InFlight: true, Result: answer}
		d.Result.RetryAfter = l.retryAfter
		return l.deny(ctx, call, d, false)
	}
	if err == nil {
		err = held.Do(ctx, func(ctx context.Context) error {
			ran = true
			result = work(ctx)
			return nil
		})
	}
	if ran { // a lease that was lost has cancelled the handler's context; what that made of it counts
		return result
	}
	if err = l.fail(ctx, call, err, false); err == nil {
		return work(ctx)
	}
	return err
}

// start takes the permits of a call.
func (l *Limit[C]) start(ctx context.Context, call C, key string) error {
	cost := 1
	if l.cost != nil {
		if cost = l.cost(ctx, call); cost == 0 {
			return nil
		}
	}
	return l.take(ctx, call, key, l.call, cost)
}

// take returns nil if the call goes on.
func (l *Limit[C]) take(ctx context.Context, call C, key string, t taker, n int) error {
	result, err := integration.Acquire(ctx, t.limiter, key, n, t.longest)
	switch {
	case err != nil:
		return l.fail(ctx, call, err, t.midway)
	case !result.Allowed:
		return l.deny(ctx, call, Decision{Policy: t.policy, Result: result}, t.midway)
	}
	return nil
}

const neverRetry = "-1"

// deny returns the error of a denied call. The error of a server says when to retry; on a client,
// the context may be that of a call which this process serves. A stream that is denied midway must
// not be retried: the client would send all its messages again, and take all their permits.
func (l *Limit[C]) deny(ctx context.Context, call C, d Decision, midway bool) error {
	d.Result = l.spread.Of(d.Result)
	err := l.denied(ctx, call, d)
	if err == nil {
		err = l.Denied(ctx, call, d)
	}
	return l.answer(call, l.tell(ctx, call, err, d.RetryDelay(), midway))
}

// fail returns the error of a call for which there is no decision, or nil if the call goes on.
func (l *Limit[C]) fail(ctx context.Context, call C, err error, midway bool) error {
	code, _ := CodeOf(ctx, err)
	if l.outageRetryAfter > 0 {
		err = integration.Later(err, l.outageRetryAfter)
	}
	if err = l.failed(ctx, call, err); err == nil {
		return nil
	}
	if l.outageRetryAfter > 0 && code == unavailable {
		err = l.tell(ctx, call, err, l.outageRetryAfter, midway)
	}
	return l.answer(call, err)
}

func (l *Limit[C]) answer(call C, err error) error {
	if l.Side != Server || l.Answer == nil {
		return err
	}
	return l.Answer(call, err)
}

// tell adds to the error of a server's call when to retry.
func (l *Limit[C]) tell(ctx context.Context, call C, err error, delay time.Duration, midway bool) error {
	if l.Side != Server {
		return err
	}
	pushback := neverRetry
	if !midway {
		pushback = l.pushback(ctx, delay)
	}
	return l.Tell(ctx, call, err, delay, pushback)
}

// pushback says when a client's retry policy may retry, or that it must not where no retry can
// help.
func (l *Limit[C]) pushback(ctx context.Context, delay time.Duration) string {
	deadline, ok := ctx.Deadline()
	if delay > l.maxPushback || ok && time.Until(deadline) <= delay {
		return neverRetry
	}
	return strconv.FormatInt(delay.Milliseconds(), 10)
}

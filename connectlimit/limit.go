package connectlimit

import (
	"context"
	"errors"
	"time"

	"github.com/tryacquire/ratelimit"
)

// A limit is what servers, clients and tap handles share.
type limit struct {
	side           sides
	call           taker // when a call starts
	received, sent taker // for each message of a stream; without a limiter, messages are free
	inFlight       *ratelimit.InFlight
	heldPolicy     string        // of inFlight
	retryAfter     time.Duration // of its denials

	key         KeyFunc
	cost        func(context.Context, Call) int
	skip        func(context.Context, Call) bool
	denied      func(context.Context, Call, Decision) error
	failed      func(context.Context, Call, error) error
	maxPushback time.Duration
}

// A taker takes permits of one limiter, or waits for them.
type taker struct {
	limiter ratelimit.Limiter
	policy  string
	wait    time.Duration // 0: deny at once
	midway  bool          // for messages
}

func (t *taker) of(option string, limiter ratelimit.Limiter, wait time.Duration) error {
	switch {
	case isNil(limiter):
		return invalidConfig("%s: the limiter is nil", option)
	case wait != 0 && wait < leastWait:
		return invalidConfig("%s: a wait of %v is shorter than %v; 0 denies at once", option, wait, leastWait)
	}
	t.limiter, t.wait, t.midway = limiter, wait, true
	return nil
}

// keyed is the key of a call. limited is false for a call that goes on without any limit, if
// there is no error.
func (l *limit) keyed(ctx context.Context, call Call) (key string, limited bool, err error) {
	switch {
	case call.Spec.IsClient && l.side == server:
		return "", false, DefaultErrorHandler(ctx, call, errOnClient)
	case !call.Spec.IsClient && l.side == client:
		return "", false, DefaultErrorHandler(ctx, call, errOnHandler)
	}
	if l.skip != nil && l.skip(ctx, call) {
		return "", false, nil
	}
	key, err = keyOf(ctx, l.key, call)
	if err != nil {
		return "", false, l.failed(ctx, call, err)
	}
	return key, true, nil
}

// start takes the permits of a call.
func (l *limit) start(ctx context.Context, call Call, key string) error {
	cost := 1
	if l.cost != nil {
		if cost = l.cost(ctx, call); cost == 0 {
			return nil
		}
	}
	return l.take(ctx, call, key, l.call, cost)
}

// take returns nil if the call goes on.
func (l *limit) take(ctx context.Context, call Call, key string, t taker, n int) error {
	result, err := t.take(ctx, key, n)
	switch {
	case err != nil:
		return l.failed(ctx, call, err)
	case !result.Allowed:
		return l.deny(ctx, call, Decision{Policy: t.policy, Result: result}, t.midway)
	}
	return nil
}

// deny returns the error of a denied call. A server's tells the client when to retry. A stream
// that is denied midway must not be retried: it would begin anew, and take all its permits again.
func (l *limit) deny(ctx context.Context, call Call, d Decision, midway bool) error {
	err := l.denied(ctx, call, d)
	if err == nil {
		err = DefaultDenialHandler(ctx, call, d)
	}
	if l.side == server {
		err = l.pushedBack(ctx, call, err, d.RetryDelay(), midway)
	}
	return err
}

// take asks once, and waits only if that is denied: a call that need not wait costs what
// TryAcquireN costs, and a denial has the limiter's whole answer.
func (t taker) take(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	if t.wait == 0 {
		return t.limiter.TryAcquireN(ctx, key, n)
	}
	begun := time.Now()
	result, err := t.limiter.TryAcquireN(ctx, key, n)
	if err != nil || result.Allowed || result.RetryAfter >= t.wait || isOutage(result) {
		return result, err
	}
	bounded := ctx
	if t.wait != UntilDeadline {
		var cancel context.CancelFunc
		bounded, cancel = context.WithDeadline(ctx, begun.Add(t.wait))
		defer cancel()
	}
	waited, err := ratelimit.WaitN(bounded, t.limiter, key, n)
	var tooLong *ratelimit.WaitError
	switch {
	case errors.As(err, &tooLong):
		result.RetryAfter = max(result.RetryAfter, tooLong.Wait)
		result.ResetAfter = max(result.ResetAfter, result.RetryAfter)
		return result, nil
	case err != nil && endOf(bounded) != nil && endOf(ctx) == nil: // others were faster until the wait was over
		return result, nil
	}
	return waited, err
}

// isOutage reports whether a denial is a Fallback's, because of an outage.
func isOutage(r ratelimit.Result) bool { return !r.Allowed && r.Fallback && r.Limit == 0 }

// endOf returns why ctx ended, or nil. It also compares the deadline with the clock: a client of
// Redis that sets the deadline on its connection may return a timeout a moment before ctx.Err does,
// which is no outage.
func endOf(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if d, ok := ctx.Deadline(); ok && !time.Now().Before(d) {
		return context.DeadlineExceeded
	}
	return nil
}

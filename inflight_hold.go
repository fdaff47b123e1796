package ratelimit

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tryacquire/ratelimit/internal/redisexec"
)

// A Hold has permits of an [InFlight] until it is released or its lease ends. It is safe for
// concurrent use. A nil Hold, which a denied call returns, has no permits.
type Hold struct {
	limiter *InFlight
	local   localHold // where the permits are if limiter is nil
	key, id string
	n       int

	uncounted atomic.Bool // see uncount

	mu       sync.Mutex // guards what follows; not held while Redis is asked
	until    time.Time  // when the lease may have ended, with a monotonic reading
	lost     bool       // Redis has reported it
	released bool       // by the caller
	gone     bool       // Redis no longer has it
}

// newHold is a hold whose permits are not taken yet.
func newHold(f *InFlight, key string, n int) *Hold {
	return &Hold{limiter: f, key: key, id: rand.Text(), n: n}
}

// believe starts the lease of permits that were asked for at sent.
func (h *Hold) believe(sent time.Time) { h.until = h.limiter.believed(sent) }

func (h *Hold) made() bool { return h != nil && (h.limiter != nil || h.local != nil) }

// Left is the time for which the lease certainly still lasts, by the process's monotonic
// clock. It is 0 if the lease may have ended or is lost, or if the hold was released. A hold in this process
// ([LocalInFlight]) has no lease, and lasts until it is released. Check
// it before a step that must never be taken by more holds than the limit at once.
func (h *Hold) Left() time.Duration {
	if !h.made() {
		return 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.lost || h.released:
		return 0
	case h.local != nil:
		return forever
	}
	return max(time.Until(h.until), 0)
}

// Extend begins the lease again, from now. It returns an error that wraps ErrLeaseLost if the
// permits are gone: the hold was released, or Redis no longer has it. Other holds may then
// have the permits, and no later Extend brings them back. After any other error the lease
// lasts as long as before, or longer.
//
// A lease that has ended can be extended for as long as no other hold has needed its place.
func (h *Hold) Extend(ctx context.Context) error {
	switch {
	case !h.made():
		return ErrLeaseLost
	case h.local != nil:
		if h.over() {
			return h.leaseLost()
		}
		return nil
	}
	f := h.limiter
	began, o := f.begin(), Observation{Call: CallExtend, Key: h.key, N: h.n}
	if o.Err = f.check(ctx, h.key, h.n); o.Err != nil {
		f.refused(ctx, began, o)
		return o.Err
	}
	if h.over() {
		o.Err = f.core.failed(ctx, h.key, ErrLeaseLost)
		f.refused(ctx, began, o)
		return o.Err
	}
	o.Err = h.extend(ctx)
	if f.core.watch != nil {
		if h.over() {
			h.uncount(&o)
		}
		f.asked(ctx, began, o)
	}
	return o.Err
}

// over reports whether the hold is lost or was released.
func (h *Hold) over() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lost || h.released
}

// uncount takes the hold, which is over, out of those that this process has, if it is the
// first to do so.
func (h *Hold) uncount(o *Observation) {
	if !h.uncounted.Swap(true) {
		o.hold(h.limiter, -h.n)
	}
}

func (h *Hold) extend(ctx context.Context) error {
	f := h.limiter
	sent := time.Now()
	found, err := h.find(ctx)
	if err != nil {
		return f.core.failed(ctx, h.key, err)
	}
	h.mu.Lock()
	if !found {
		h.lost = true
	} else if until := f.believed(sent); until.After(h.until) {
		h.until = until
	}
	over := h.lost || h.released
	h.mu.Unlock()
	switch {
	case over:
		return f.core.failed(ctx, h.key, ErrLeaseLost)
	case h.Left() == 0:
		return f.core.failed(ctx, h.key, errLateReply)
	}
	return nil
}

// find begins the lease in Redis again, and reports whether the hold was there.
func (h *Hold) find(ctx context.Context) (bool, error) {
	c := &h.limiter.core
	reply, err := c.exec.Ask(ctx, c.head.Of(h.key), h.operation(redisexec.Extend))
	if err != nil {
		return false, err
	}
	return reply.Keep()[0] > 0, nil
}

// Release gives the permits back. Release does so even if ctx has already ended, and then
// waits for at most a second; so it can be deferred with a request's context. It may be
// called several times; once it has returned nil, further calls do not ask Redis. It also
// returns nil if the lease is lost. After an error the permits are free at the latest when
// the lease ends.
func (h *Hold) Release(ctx context.Context) error {
	switch {
	case !h.made():
		return nil
	case h.local != nil:
		h.mu.Lock()
		released := h.released
		h.released = true
		h.mu.Unlock()
		if !released {
			h.local.release(ctx, h.key, h.n)
		}
		return nil
	}
	f := h.limiter
	began, o := f.begin(), Observation{Call: CallRelease, Key: h.key, N: h.n}
	var asked bool
	if asked, o.Err = h.release(ctx); asked && f.core.watch != nil {
		h.uncount(&o)
		f.asked(ctx, began, o)
	}
	return o.Err
}

// release is Release. asked reports whether Redis was asked.
func (h *Hold) release(ctx context.Context) (asked bool, err error) {
	h.mu.Lock()
	h.released = true
	gone := h.gone || h.lost
	h.mu.Unlock()
	if gone {
		return false, nil
	}
	if ctx.Err() != nil {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTime)
		defer cancel()
		ctx = bounded
	}
	reply, err := h.limiter.core.operate(ctx, h.key, h.operation(redisexec.Release))
	if err != nil {
		if reply.Batch != nil || reply.Late { // in a batch it was sent at most once, or not at all
			go h.releaseInTime(ctx, h.limiter.core.exec.ReleaseAgain)
		}
		return true, h.limiter.core.failed(ctx, h.key, err)
	}
	reply.Done()
	h.mu.Lock()
	h.gone = true
	h.mu.Unlock()
	return true, nil
}

// giveBack takes permits out of Redis that no caller knows of, by commands of its own.
func (h *Hold) giveBack(ctx context.Context) { h.releaseInTime(ctx, h.limiter.core.exec.ReleaseLate) }

func (h *Hold) releaseInTime(ctx context.Context, release func(context.Context, string, redisexec.Operation) error) {
	defer func() { _ = recover() }() // of the client's hooks; nobody waits for this call
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTime)
	defer cancel()
	_ = release(ctx, h.limiter.core.head.Of(h.key), h.operation(redisexec.Release))
}

// operation is what is done to the permits.
func (h *Hold) operation(op redisexec.Op) redisexec.Operation {
	return redisexec.Operation{Op: op, N: h.n, Times: 1, Detail: &redisexec.Detail{ID: h.id}}
}

// Do takes one permit of key, runs work, and gives the permit back, even if ctx has ended or
// work panics. While work runs, Do extends the lease, first when a third of it is over, and
// tries again if an extension fails. Do extends the lease until work returns, even after ctx
// has ended.
//
// The context of work ends with ctx. It is cancelled with [ErrLeaseLost] as its cause, see
// [context.Cause], if the lease is lost or could not be extended in time. Others may then
// have the permit, and work should return as soon as it can.
//
// If no permit is free, work does not run, and Do returns a *[DeniedError], which
// errors.Is(err, ErrDenied) matches. If TryAcquire returns an error, work does not run, and
// Do returns that error. Otherwise Do returns what work returns, joined with an error that
// wraps ErrLeaseLost if the lease was lost before work returned. A permit that could not be
// given back within a second is free when its lease ends; Do does not report that. If the lease
// is over, Do gives the permit back in the background, and does not wait for it.
func (f *InFlight) Do(ctx context.Context, key string, work func(ctx context.Context) error) error {
	if work == nil {
		return errNoWork
	}
	hold, result, err := f.TryAcquire(ctx, key)
	if err != nil {
		return err
	}
	if !result.Allowed {
		return &DeniedError{Key: key, Result: result}
	}
	return hold.Do(ctx, work)
}

// Do runs work, and then releases the hold, even if ctx has ended or work panics. While work
// runs, it extends the lease, and cancels the context of work if the lease is lost, as
// [InFlight.Do] does, which calls TryAcquire and then this method. Use this method if you need
// the Result before work begins. It returns what InFlight.Do returns after work has run. If the
// hold is nil, was released, or its lease may have ended (see Left), work does not run, and the
// error wraps ErrLeaseLost.
func (h *Hold) Do(ctx context.Context, work func(ctx context.Context) error) error {
	if work == nil {
		return errNoWork
	}
	if !h.made() {
		return ErrLeaseLost
	}
	one := AllResult{Result: Result{Allowed: true}, Parts: []PartResult{{Hold: h}}}
	return one.Do(ctx, work)
}

// leave is Release, for a second at most, whatever has become of ctx.
func (h *Hold) leave(ctx context.Context) {
	defer func() { _ = recover() }() // of the client's hooks; in the background nobody could
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTime)
	defer cancel()
	_ = h.Release(ctx)
}

func (h *Hold) leaseLost() error {
	if h.limiter == nil {
		return fmt.Errorf("ratelimit: key %s: %w", shortKey(h.key), ErrLeaseLost)
	}
	return fmt.Errorf("ratelimit: %s, key %s: %w", h.limiter.core.title, shortKey(h.key), ErrLeaseLost)
}

// A keeper extends a hold's lease while work runs.
type keeper struct {
	hold   *Hold
	ctx    context.Context // of the work
	cancel context.CancelCauseFunc
	timer  *time.Timer // cancels the work when the lease may have ended
	lost   atomic.Bool
	leave  context.CancelFunc // ends the keeper's goroutine
	left   chan struct{}      // closed when it has ended
}

func newKeeper(ctx context.Context, hold *Hold) *keeper {
	k := &keeper{hold: hold, left: make(chan struct{})}
	k.ctx, k.cancel = context.WithCancelCause(ctx)
	lease, left := hold.limiter.lease, hold.Left()
	k.timer = time.AfterFunc(left, k.lose)
	own, leave := context.WithCancel(context.WithoutCancel(ctx)) // work may need its lease after ctx has ended
	k.leave = leave
	spent := lease - lease/1000 - left // see believed
	go k.extend(own, max(lease/3-spent, 0))
	return k
}

func (k *keeper) lose() {
	k.lost.Store(true)
	k.cancel(ErrLeaseLost)
}

// extend extends the lease again and again, first after a time. A try that gets no answer in a
// sixth of the lease leaves time for others.
func (k *keeper) extend(ctx context.Context, first time.Duration) {
	defer close(k.left)
	lease := k.hold.limiter.lease
	wait := time.NewTimer(first)
	defer wait.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-wait.C:
		}
		try, cancel := context.WithTimeout(ctx, lease/6)
		err := k.hold.Extend(try)
		cancel()
		switch {
		case err == nil:
			k.timer.Reset(k.hold.Left())
			wait.Reset(lease / 3)
		case errors.Is(err, ErrLeaseLost):
			k.lose()
			return
		default:
			wait.Reset(max(lease/12, time.Millisecond))
		}
	}
}

// stop ends the keeper, and reports whether the lease was lost before.
func (k *keeper) stop() bool {
	lost := k.lost.Load() || k.hold.Left() == 0
	k.leave()
	<-k.left
	k.timer.Stop()
	k.cancel(nil)
	return lost
}

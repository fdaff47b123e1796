package ratelimit

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tryacquire/ratelimit/internal/await"
	"github.com/tryacquire/ratelimit/internal/decision"
	"github.com/tryacquire/ratelimit/internal/redisexec"
	"github.com/tryacquire/ratelimit/internal/waiting"
)

// A Hold has permits of an [InFlight] until it is released or its lease ends. It is safe for
// concurrent use. A nil Hold, which a denied call returns, has no permits.
type Hold struct {
	from    holds
	key, id string
	n       int
	lease   time.Duration // 0: it lasts until it is released
	named   bool          // the id is that of a Claim.As
	again   bool          // the hold was there before the call

	uncounted atomic.Bool // see uncount

	mu       sync.Mutex // guards what follows; not held while Redis is asked
	until    time.Time  // when the lease may have ended, with a monotonic reading
	lost     bool       // Redis has reported it
	released bool       // by the caller
	gone     bool       // Redis no longer has it
}

// holds is an origin of holds.
type holds interface {
	origin

	// find begins the lease of h again, and reports whether h was there. It is not for a hold without a lease.
	find(ctx context.Context, h *Hold) (bool, error)

	// release gives the permits of h back.
	release(ctx context.Context, h *Hold) (sending, error)

	// giveBack is release in the background, where no caller knows of the permits.
	giveBack(ctx context.Context, h *Hold)

	// permits is what callers who are denied wait for.
	permits(key string) waiting.Held
}

func (h *Hold) made() bool { return h != nil && h.from != nil }

// Left is the time for which the lease certainly still lasts, by the process's monotonic clock: 0 if it may have
// ended or is lost, or if the hold was released. A hold in this process has no lease. Check it before a step that
// must never be taken by more holds than the limit at once.
func (h *Hold) Left() time.Duration {
	if !h.made() {
		return 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.lost || h.released:
		return 0
	case h.lease == 0:
		return forever
	}
	return max(time.Until(h.until), 0)
}

// Extend begins the lease again, from now. It returns an error that wraps ErrLeaseLost if the permits are gone:
// the hold was released, or Redis no longer has it. No later Extend brings them back. After any other error the
// lease lasts as long as before, or longer. A lease that has ended can be extended for as long as no other hold
// has needed its place.
func (h *Hold) Extend(ctx context.Context) error {
	if !h.made() {
		return ErrLeaseLost
	}
	if h.lease == 0 {
		if h.over() {
			return h.leaseLost()
		}
		return nil
	}
	o := Observation{Call: callExtend, Key: h.key, N: h.n}
	if err := ctx.Err(); err != nil {
		o.Err = h.from.about(h.key, err)
	} else if h.over() {
		o.Err = h.leaseLost()
	}
	h.from.observers().observed(ctx, &o, func() sending {
		o.Err = h.extend(ctx)
		if h.over() {
			h.uncount(&o)
		}
		return nil
	})
	return o.Err
}

// believe starts the lease of permits that were asked for at sent.
func (h *Hold) believe(sent time.Time) { h.until = h.believed(sent) }

// believed is until when the hold may believe in a lease that it asked for at sent.
func (h *Hold) believed(sent time.Time) time.Time { return sent.Add(h.lease - h.lease/1000) }

func (h *Hold) extend(ctx context.Context) error {
	sent := time.Now()
	found, err := h.from.find(ctx, h)
	if err != nil {
		return h.from.about(h.key, ended(ctx, err))
	}
	h.mu.Lock()
	if !found {
		h.lost = true
	} else if until := h.believed(sent); until.After(h.until) {
		h.until = until
	}
	over := h.lost || h.released
	h.mu.Unlock()
	switch {
	case over:
		return h.leaseLost()
	case h.Left() == 0:
		return h.from.about(h.key, ended(ctx, errLateReply))
	}
	return nil
}

// uncount takes the hold, which is over, out of those that this process has, if it is the
// first to do so.
func (h *Hold) uncount(o *Observation) {
	if !h.uncounted.Swap(true) {
		o.HeldChange = -h.n
	}
}

// over reports whether the hold is lost or was released.
func (h *Hold) over() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lost || h.released
}

// Release gives the permits back, even if ctx has already ended; it then waits for at most a second, so it can be
// deferred with a request's context. Once it has returned nil, as also for a lease that is lost, further calls do
// nothing. After an error the permits are free at the latest when the lease ends.
func (h *Hold) Release(ctx context.Context) error {
	if !h.made() {
		return nil
	}
	gone, ended := h.leaves()
	if gone {
		return nil
	}
	return h.end(ctx, func() (sending, error) {
		if ended {
			return inProcess, nil
		}
		return h.release(ctx)
	})
}

// leaves notes that the caller releases the hold. gone says that there is nothing to release, ended that somebody else
// may have a lease of this id by now.
func (h *Hold) leaves() (gone, ended bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.released = true
	gone = h.gone || h.lost
	ended = h.named && h.lease > 0 && !time.Now().Before(h.until)
	h.gone = gone || ended || h.lease == 0 // without a lease, it is in this process
	return gone, ended
}

// end reports that this process no longer has the hold, after do.
func (h *Hold) end(ctx context.Context, do func() (sending, error)) error {
	o := Observation{Call: callRelease, Key: h.key, N: h.n}
	h.from.observers().observed(ctx, &o, func() (sent sending) {
		sent, o.Err = do()
		h.uncount(&o)
		return sent
	})
	return o.Err
}

// release is Release of permits that are there. It is not reported.
func (h *Hold) release(ctx context.Context) (sending, error) {
	if ctx.Err() != nil {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTime)
		defer cancel()
		ctx = bounded
	}
	sent, err := h.from.release(ctx, h)
	if err == nil {
		h.freed()
	}
	return sent, err
}

// freed notes that the permits were given back.
func (h *Hold) freed() {
	h.mu.Lock()
	h.gone = true
	h.mu.Unlock()
	waiting.InFlight.Free(h.from.permits(h.key))
}

// answered takes from the reply to the call for h, which is one of several equal ones, whether the hold was there.
func (h *Hold) answered(words []int64, index int64) error {
	if !h.named || words[wordFree] >= 0 {
		h.again = h.named && words[decision.WordAllowed] > index && (words[wordFree] > 0 || index > 0)
		return nil
	}
	return h.from.about(h.key, errOtherPermits)
}

// HandOver leaves a hold to another process, which claims it by its id, see [Claim.As]: before or afterwards, as long as
// the lease lasts. Redis is not asked. For this process the hold is over: Extend returns ErrLeaseLost, and a deferred
// Release does nothing. The error is ErrInvalidConfig if the hold has no id of a caller's, so that nobody could take it
// over, and ErrLeaseLost if it is over already.
func (h *Hold) HandOver(ctx context.Context) error {
	switch {
	case !h.made():
		return ErrLeaseLost
	case !h.named:
		return invalidConfig("HandOver: the hold has no id by which another process could claim it; take it with Claim.As")
	case h.Left() == 0:
		return h.leaseLost()
	}
	h.drop(ctx)
	return nil
}

// drop ends the hold for this process, and leaves it in Redis.
func (h *Hold) drop(ctx context.Context) {
	h.mu.Lock()
	h.released, h.gone = true, true
	h.mu.Unlock()
	_ = h.end(ctx, func() (sending, error) { return inProcess, nil })
}

// undo gives back what a call has taken whose caller has left. A hold under an id of a caller's stays, because the call may
// have been repeated.
func (h *Hold) undo(ctx context.Context) {
	if h.made() && h.named && (h.lease > 0 || h.again) {
		h.drop(ctx)
		return
	}
	_ = h.Release(ctx)
}

// operation is what is done to the permits in Redis.
func (h *Hold) operation(op redisexec.Op) redisexec.Operation {
	return redisexec.Operation{Op: op, N: h.n, Times: 1, Detail: &redisexec.Detail{ID: h.id}}
}

// Do runs work, and then releases the hold, as [InFlight.Do] does, for callers that need the Result first. If the
// hold is nil, was released, or its lease may have ended, work does not run, and the error wraps ErrLeaseLost.
func (h *Hold) Do(ctx context.Context, work func(ctx context.Context) error) error {
	if work == nil {
		return errNoWork
	}
	if !h.made() {
		return ErrLeaseLost
	}
	one := AllResult{Result: Result{Allowed: true}, Parts: []PartResult{{Hold: h}}}
	return one.Do(ctx, work, nil)
}

// leave is Release, for a second at most, whatever has become of ctx.
func (h *Hold) leave(ctx context.Context) {
	defer func() { _ = recover() }() // of the client's hooks; in the background nobody could
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTime)
	defer cancel()
	_ = h.Release(ctx)
}

func (h *Hold) leaseLost() error { return h.from.about(h.key, ErrLeaseLost) }

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
	lease, left := hold.lease, hold.Left()
	k.timer = time.AfterFunc(left, k.lose)
	own, leave := context.WithCancel(context.WithoutCancel(ctx)) // work may need its lease after ctx has ended
	k.leave = leave
	spent := lease - lease/1000 - left // see believed
	go k.extend(own, lease/3-spent)
	return k
}

func (k *keeper) lose() {
	k.lost.Store(true)
	k.cancel(ErrLeaseLost)
}

// extend keeps the lease until ctx ends or it is lost.
func (k *keeper) extend(ctx context.Context, first time.Duration) {
	defer close(k.left)
	if err := keepLease(ctx, k.hold.lease, first, func(ctx context.Context) error {
		err := k.hold.Extend(ctx)
		if err == nil {
			k.timer.Reset(k.hold.Left())
		}
		return err
	}); err != nil {
		k.lose()
	}
}

// keepLease calls extend first after a time, then each time when a third of the lease is over, until ctx ends or extend
// returns ErrLeaseLost or ErrSettled, which it returns. A try that gets no answer in a sixth of the lease leaves time for
// others.
func keepLease(ctx context.Context, lease, first time.Duration, extend func(ctx context.Context) error) error {
	wait := time.NewTimer(max(first, 0))
	defer wait.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-wait.C:
		}
		try, cancel := context.WithTimeout(ctx, lease/6)
		err := await.Safely(func() error { return extend(try) })
		cancel()
		switch {
		case err == nil:
			wait.Reset(lease / 3)
		case errors.Is(err, ErrLeaseLost), errors.Is(err, ErrSettled):
			return err
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

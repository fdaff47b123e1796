package ratelimit

import (
	"context"
	"sync/atomic"
	"time"
)

// WithBudget lets the secondary answer a call for which the primary takes longer
// than d, which must be above 0. Some milliseconds suit: several times what the
// primary takes when it is well, and much less than what the service can spare.
// It holds for TryAcquire, TryAcquireN and Peek.
//
// The call is not cut off: its late reply is read and thrown away, so that its
// connection lives on, and a second after the budget its context ends. Let the
// client honour that (go-redis: ContextTimeoutEnabled), or give it a ReadTimeout
// of about a second. The primary's context has the values of the caller's and a
// deadline of its own, so that a caller who is cancelled gets the context's
// error at once while the call ends by itself. A permit that such a call took
// stays taken.
//
// At most 256 calls ask the primary at a time. More wait for their turn, the
// wait being part of their budget, and when all 256 were abandoned and are still
// running, the secondary answers at once. So behind a hung primary 256 goroutines
// wait, and no more; but a primary that itself leaves one behind when its
// context ends, as limiters do whose client does not honour it, leaves that many
// each second until the client's ReadTimeout ends them. A breaker makes them few.
//
// It costs a goroutine for each call, about two microseconds, and 9 allocations
// of 600 bytes in all. A panic of the primary's is passed on to the caller; in an
// abandoned call it is lost, because no caller is left to get it.
func WithBudget(d time.Duration) FallbackOption {
	return fallbackSetter(func(s *fallbackSettings) {
		if d <= 0 {
			s.refuse("WithBudget: %v is not above 0; leave the option out to wait for the primary", d)
		}
		s.once("WithBudget")
		s.budget = d
	})
}

// maxRunning bounds the calls that ask the primary within a budget, waited for
// or not. It is far above what a healthy Redis lets pile up (at 1 ms a call, it
// is reached at 256,000 calls a second), and it bounds what a hung one does: as
// many goroutines, of some 10 KB.
const maxRunning = 256

// abandonedFor is what a call over budget gets to read its late reply. The
// client closes a connection that it gives up on, and dialling anew is the last
// thing that a slow server needs, so it is longer than a stutter.
const abandonedFor = time.Second

// An attempt is one call of the primary within a budget. It has a life of its
// own: the caller listens to it for as long as the caller's context lets it,
// and whether the primary did well is judged whoever listens.
//
// It is the context of that call too, which has the values of the caller's.
type attempt struct {
	context.Context
	cancel   context.CancelFunc
	deadline time.Time

	f *Fallback
	q question

	lapsing *time.Timer // runs lapse when the budget is over
	judge   func(error) // gives the breaker the verdict; nil without one
	settled atomic.Bool // by the primary or by the lapse, whichever came first
	answer  chan answer // what that was

	over atomic.Bool // the primary returned, or the caller left: the second of them counts
}

// An answer is what an attempt comes to.
type answer struct {
	result   Result
	err      error
	late     bool
	panicked any
}

// Deadline is when the attempt is given up for good.
func (a *attempt) Deadline() (time.Time, bool) { return a.deadline, true }

// decideWithin asks the primary, and the secondary when the budget is over.
func (f *Fallback) decideWithin(ctx context.Context, q question) (Result, error) {
	if end := endOf(ctx); end != nil {
		return Result{}, f.gone(q, end)
	}
	if f.abandoned.Load() >= maxRunning {
		return f.askSecondary(ctx, q, EventOverBudget, errStillRunning)
	}
	var judge func(error)
	if f.breaker != nil {
		if judge = f.breaker.begin(); judge == nil {
			return f.askSecondary(ctx, q, EventBreakerOpen, ErrBreakerOpen)
		}
	}
	a := &attempt{f: f, q: q, judge: judge, answer: make(chan answer, 1)}
	a.deadline = time.Now().Add(f.budget).Add(abandonedFor) // together they may be beyond a Duration
	a.Context, a.cancel = context.WithCancel(context.WithoutCancel(ctx))
	a.lapsing = time.AfterFunc(f.budget, a.lapse)

	select {
	case f.running <- struct{}{}:
	default:
		select {
		case f.running <- struct{}{}:
			if a.settled.Load() { // in the same moment: spare the primary
				<-f.running
				a.cancel()
				return f.concludeAttempt(ctx, q, <-a.answer)
			}
		case v := <-a.answer: // it can only be late
			a.cancel()
			return f.concludeAttempt(ctx, q, v)
		case <-ctx.Done():
			a.withdraw()
			return Result{}, f.gone(q, ctx.Err())
		}
	}
	go a.run()

	select {
	case v := <-a.answer:
		if v.late {
			a.leave()
		}
		return f.concludeAttempt(ctx, q, v)
	case <-ctx.Done():
		a.leave()
		return Result{}, f.gone(q, ctx.Err())
	}
}

func (f *Fallback) concludeAttempt(ctx context.Context, q question, v answer) (Result, error) {
	switch {
	case v.panicked != nil:
		panic(v.panicked)
	case v.late:
		return f.askSecondary(ctx, q, EventOverBudget, ErrOverBudget)
	}
	return f.conclude(ctx, q, v.result, v.err)
}

// run asks the primary. The caller may have left.
func (a *attempt) run() {
	v := answer{err: errNoReturn}
	defer func() {
		if p := recover(); p != nil {
			v.panicked = p
		}
		a.lapsing.Stop()
		a.cancel()
		if a.over.Swap(true) {
			a.f.abandoned.Add(-1)
		}
		<-a.f.running
		a.settle(v, verdict(v.err))
	}()
	v.result, v.err = a.q.ask(a, a.f.primary)
}

// lapse ends the wait, not the call, which has another second.
func (a *attempt) lapse() {
	if a.settle(answer{late: true}, errFailure) {
		time.AfterFunc(abandonedFor, a.cancel)
	}
}

// settle is where the attempt comes to an answer, once.
func (a *attempt) settle(v answer, verdict error) bool {
	if a.settled.Swap(true) {
		return false
	}
	if a.judge != nil {
		a.judge(verdict)
		a.f.breaker.deliver()
	}
	a.answer <- v
	return true
}

// leave makes a running attempt an abandoned one.
func (a *attempt) leave() {
	if !a.over.Swap(true) {
		a.f.abandoned.Add(1)
	}
}

// withdraw ends an attempt whose turn never came.
func (a *attempt) withdraw() {
	a.lapsing.Stop()
	a.cancel()
	a.settle(answer{}, errNeutral)
}

package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

var (
	errStillRunning = fmt.Errorf("%w: %d abandoned calls are still running", ErrOverBudget, maxRunning)
	errNoReturn     = errors.New("ratelimit: the primary's goroutine exited")
)

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
	judge   func(error) // tells the breaker; nil without one
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

// run asks the primary. Nobody may be there to be told.
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
		a.f.breaker.tell()
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

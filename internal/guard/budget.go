package guard

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/tryacquire/ratelimit/internal/deadline"
	"github.com/tryacquire/ratelimit/internal/errclass"
)

// MaxRunning bounds the calls with a budget that ask a primary at a time, abandoned
// or not. It is far above what is in flight to a healthy Redis (at 1 ms a call, it is
// reached at 256,000 calls a second). With a hung Redis it bounds the goroutines, of
// some 10 KB each.
const MaxRunning = 256

// AbandonedFor is how long a call over budget may still wait for its late reply. When a
// client gives up on a reply, it closes the connection and has to dial again, which
// burdens a slow server further. So this is longer than a short pause of the server.
const AbandonedFor = time.Second

// A Bound is on the calls with a budget that ask one client at a time.
type Bound struct {
	Running   chan struct{} // one element for each
	Abandoned atomic.Int64  // how many of them no caller waits for
}

// bounds are those of the clients, for as long as a guard uses them.
var bounds = struct {
	sync.Mutex
	of map[any]weak.Pointer[Bound]
}{of: map[any]weak.Pointer[Bound]{}}

// BoundOf returns the bound of a client, or one of its own for nil. Clients must be comparable.
func BoundOf(client any) *Bound {
	own := &Bound{Running: make(chan struct{}, MaxRunning)}
	if client == nil {
		return own
	}
	bounds.Lock()
	defer bounds.Unlock()
	if b := bounds.of[client].Value(); b != nil {
		return b
	}
	bounds.of[client] = weak.Make(own)
	runtime.AddCleanup(own, forget, client)
	return own
}

// forget forgets the bound of a client that no guard uses any more, unless another has taken its place.
func forget(client any) {
	bounds.Lock()
	defer bounds.Unlock()
	if bounds.of[client].Value() == nil {
		delete(bounds.of, client)
	}
}

// An attempt is one call of the primary within a budget. It may outlive the call of its
// caller: the caller waits until its own context ends, and the breakers get a verdict
// even if the caller has left.
//
// It is also the context of the primary's call, with the values of the caller's context.
type attempt struct {
	context.Context
	cancel   context.CancelFunc
	deadline time.Time

	guard *Guard
	call  Call

	lapsing *time.Timer // runs lapse when the budget is over
	done    func(error) // what the breakers' begin returned; nil without a breaker
	settled atomic.Bool // the attempt has its answer, from the primary or from the lapse
	answer  chan answer // gets that answer

	over atomic.Bool // the primary returned or the caller left: whichever comes second finds it set
}

// An answer is the outcome of an attempt.
type answer struct {
	err      error
	late     bool // the budget was over first
	panicked any  // the value of the primary's panic
}

// Deadline is when the context of the primary's call ends.
func (a *attempt) Deadline() (time.Time, bool) { return a.deadline, true }

// Err is why the context has ended: the time for a late reply is over. The caller's own context does not end it.
func (a *attempt) Err() error {
	if a.Context.Err() != nil {
		return context.DeadlineExceeded
	}
	return nil
}

// Lapsed reports whether the budget of the attempt that ctx belongs to is over, so that nobody waits for its answer.
func Lapsed(ctx context.Context) bool {
	a, ok := ctx.(*attempt)
	return ok && a.settled.Load()
}

// within asks the primary, and waits until the budget is over.
func (g *Guard) within(ctx context.Context, c Call) error {
	if end := deadline.Ended(ctx); end != nil {
		return &Left{end}
	}
	if g.Bound.Abandoned.Load() >= MaxRunning {
		return errStillRunning
	}
	var done func(error)
	if len(g.Breakers) > 0 {
		if done = g.Breakers.begin(); done == nil {
			return errclass.ErrBreakerOpen
		}
	}
	a := &attempt{guard: g, call: c, done: done, answer: make(chan answer, 1)}
	a.deadline = time.Now().Add(g.Budget).Add(AbandonedFor) // together they may be beyond a Duration
	a.Context, a.cancel = context.WithCancel(context.WithoutCancel(ctx))
	a.lapsing = time.AfterFunc(g.Budget, a.lapse)

	select {
	case g.Bound.Running <- struct{}{}:
	default:
		select {
		case g.Bound.Running <- struct{}{}:
			if a.settled.Load() { // the budget ended in the same moment: do not ask the primary
				<-g.Bound.Running
				a.cancel()
				return (<-a.answer).conclude()
			}
		case v := <-a.answer: // the primary was not asked, so the answer is the lapse
			a.cancel()
			return v.conclude()
		case <-ctx.Done():
			a.withdraw()
			return &Left{ctx.Err()}
		}
	}
	go a.run()

	select {
	case v := <-a.answer:
		if v.late {
			a.leave()
		}
		return v.conclude()
	case <-ctx.Done():
		a.leave()
		return &Left{ctx.Err()}
	}
}

// conclude is what the caller gets.
func (v answer) conclude() error {
	switch {
	case v.panicked != nil:
		panic(v.panicked)
	case v.late:
		return errclass.ErrOverBudget
	}
	return v.err
}

// run asks the primary, even if the caller has left.
func (a *attempt) run() {
	v := answer{err: errNoReturn}
	defer func() {
		if p := recover(); p != nil {
			v.panicked = p
		}
		a.lapsing.Stop()
		a.cancel()
		if a.over.Swap(true) {
			a.guard.Bound.Abandoned.Add(-1)
			a.call.GiveBack(a.Context)
		}
		<-a.guard.Bound.Running
		a.settle(v, verdictOn(v.err))
	}()
	v.err = a.call.Ask(a)
}

// lapse ends the caller's wait, but not the primary's call, which has AbandonedFor left.
func (a *attempt) lapse() {
	if a.settle(answer{late: true}, errFailed) {
		time.AfterFunc(AbandonedFor, a.cancel)
	}
}

// settle gives the attempt its answer and the breakers their verdict. Only the first call
// has an effect, and returns true.
func (a *attempt) settle(v answer, verdict error) bool {
	if a.settled.Swap(true) {
		return false
	}
	if a.done != nil {
		a.guard.Breakers.end(a.done, verdict)
	}
	a.answer <- v
	return true
}

// leave counts a running attempt as abandoned. If it has returned in this moment, nobody else gives back what it took.
func (a *attempt) leave() {
	if !a.over.Swap(true) {
		a.guard.Bound.Abandoned.Add(1)
		return
	}
	go a.call.GiveBack(a.Context)
}

// withdraw ends an attempt whose turn never came.
func (a *attempt) withdraw() {
	a.lapsing.Stop()
	a.cancel()
	a.settle(answer{}, errNeutral)
}

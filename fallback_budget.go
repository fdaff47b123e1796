package ratelimit

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit/internal/deadline"
)

// WithBudget lets the secondary answer a call for which the primary takes longer
// than d, which must be above 0. Choose some milliseconds: several times as long as a
// healthy primary takes, and much less than the service can afford to wait. The budget
// applies to every operation but Reset.
//
// The call to the primary is not cut off: its late reply is read and thrown away, so
// that its connection can be used again, and its context ends one second after the
// budget. Let the client honour that context (go-redis: ContextTimeoutEnabled), or give
// the client a ReadTimeout of about a second. The primary's context has the values of
// the caller's context and a deadline of its own: when the caller's context is
// cancelled, the caller gets the context's error at once, and the call to the primary
// goes on. Estimates, holds and reservations that such
// a call takes are given back; other permits stay taken.
//
// At most 256 calls of one client's Fallbacks ask their primaries at a time. Further calls wait for their turn, and
// this wait is part of their budget; when all 256 are abandoned and still running, the
// secondary answers at once. So no more than 256 goroutines wait for a hung primary.
// But a primary may leave a goroutine behind when its context ends, as limiters do whose
// client does not honour contexts: such a primary leaves up to 256 goroutines each
// second, until the client's ReadTimeout ends them. With a breaker they are few.
//
// The first call to a Redis connects and sends its script, which can take longer than the budget: load the scripts
// before with [PreloadAll].
//
// A budget costs a goroutine for each call, about two microseconds, and 9 allocations
// of 600 bytes in all. A panic of the primary is passed on to the caller; the panic of
// an abandoned call is lost, because no caller is left to get it.
func WithBudget(d time.Duration) PolicyOption {
	return policyOption("WithBudget", func(s *settings) {
		if d <= 0 {
			s.refuse("WithBudget: %v is not above 0; leave the option out to wait for the primary", d)
		}
		s.budget = d
	})
}

// maxRunning bounds the calls with a budget that ask the primary at a time, abandoned
// or not. It is far above what is in flight to a healthy Redis (at 1 ms a call, it is
// reached at 256,000 calls a second). With a hung Redis it bounds the goroutines, of
// some 10 KB each.
const maxRunning = 256

// A bound is on the calls with a budget that ask one client at a time.
type bound struct {
	running   chan struct{} // one element for each
	abandoned atomic.Int64  // how many of them no caller waits for
}

// bounds are those of the clients, for as long as a limiter uses them.
var bounds = struct {
	sync.Mutex
	of map[Client]weak.Pointer[bound]
}{of: map[Client]weak.Pointer[bound]{}}

// boundOf is the bound of the client that limiter asks, or one of its own where that is not known.
func boundOf(limiter any) *bound {
	own := &bound{running: make(chan struct{}, maxRunning)}
	client := clientOf(limiter)
	if client == nil {
		return own
	}
	bounds.Lock()
	defer bounds.Unlock()
	if b := bounds.of[client].Value(); b != nil {
		return b
	}
	bounds.of[client] = weak.Make(own)
	runtime.AddCleanup(own, forgetBound, client)
	return own
}

// forgetBound forgets the bound of a client that no Fallback asks any more, unless another has taken its place.
func forgetBound(client Client) {
	bounds.Lock()
	defer bounds.Unlock()
	if bounds.of[client].Value() == nil {
		delete(bounds.of, client)
	}
}

// clientOf is the client of limiter, nil if it has none, or another one for each call, or if the client
// cannot be compared.
func clientOf(limiter any) Client {
	var of Client
	switch k := kindOf(limiter); {
	case k.inside != nil:
		return clientOf(k.inside)
	case k.core != nil:
		of = k.core.exec.Client
	case k.group != nil:
		of = k.group.exec.Client
	}
	switch client := of.(type) {
	case *redis.Client, *redis.ClusterClient, *redis.Ring:
		return client
	}
	return nil
}

// abandonedFor is how long a call over budget may still wait for its late reply. When a
// client gives up on a reply, it closes the connection and has to dial again, which
// burdens a slow server further. So this is longer than a short pause of the server.
const abandonedFor = time.Second

// An attempt is one call of the primary within a budget. It may outlive the call of its
// caller: the caller waits until its own context ends, and the breaker gets a verdict
// even if the caller has left.
//
// It is also the context of the primary's call, with the values of the caller's context.
type attempt struct {
	context.Context
	cancel   context.CancelFunc
	deadline time.Time

	f *Fallback
	q question

	lapsing *time.Timer // runs lapse when the budget is over
	done    func(error) // what the breaker's begin returned; nil without a breaker
	settled atomic.Bool // the attempt has its answer, from the primary or from the lapse
	answer  chan answer // gets that answer

	over atomic.Bool // the primary returned or the caller left: whichever comes second finds it set
}

// An answer is the outcome of an attempt.
type answer struct {
	result   Result
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

// decideWithin asks the primary, and the secondary when the budget is over.
func (f *Fallback) decideWithin(ctx context.Context, q question) (Result, error) {
	if end := deadline.Ended(ctx); end != nil {
		return Result{}, f.gone(ctx, q, end)
	}
	if f.bound.abandoned.Load() >= maxRunning {
		return f.askSecondary(ctx, q, errStillRunning)
	}
	var done func(error)
	if f.breaker != nil {
		if done = f.breaker.begin(); done == nil {
			return f.askSecondary(ctx, q, ErrBreakerOpen)
		}
	}
	a := &attempt{f: f, q: q, done: done, answer: make(chan answer, 1)}
	a.deadline = time.Now().Add(f.budget).Add(abandonedFor) // together they may be beyond a Duration
	a.Context, a.cancel = context.WithCancel(context.WithoutCancel(ctx))
	a.lapsing = time.AfterFunc(f.budget, a.lapse)

	select {
	case f.bound.running <- struct{}{}:
	default:
		select {
		case f.bound.running <- struct{}{}:
			if a.settled.Load() { // the budget ended in the same moment: do not ask the primary
				<-f.bound.running
				a.cancel()
				return f.concludeAttempt(ctx, q, <-a.answer)
			}
		case v := <-a.answer: // the primary was not asked, so the answer is the lapse
			a.cancel()
			return f.concludeAttempt(ctx, q, v)
		case <-ctx.Done():
			a.withdraw()
			return Result{}, f.gone(ctx, q, ctx.Err())
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
		return Result{}, f.gone(ctx, q, ctx.Err())
	}
}

func (f *Fallback) concludeAttempt(ctx context.Context, q question, v answer) (Result, error) {
	switch {
	case v.panicked != nil:
		panic(v.panicked)
	case v.late:
		return f.askSecondary(ctx, q, ErrOverBudget)
	}
	return f.conclude(ctx, q, v.result, v.err)
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
			a.f.bound.abandoned.Add(-1)
			a.late()
		}
		<-a.f.bound.running
		a.settle(v, verdictOn(v.err))
	}()
	v.result, v.err = a.q.ask(a, a.f.primary)
}

// lapse ends the caller's wait, but not the primary's call, which has abandonedFor left.
func (a *attempt) lapse() {
	if a.settle(answer{late: true}, errFailed) {
		time.AfterFunc(abandonedFor, a.cancel)
	}
}

// settle gives the attempt its answer and the breaker its verdict. Only the first call
// has an effect, and returns true.
func (a *attempt) settle(v answer, verdict error) bool {
	if a.settled.Swap(true) {
		return false
	}
	if a.done != nil {
		a.f.breaker.end(a.done, verdict)
	}
	a.answer <- v
	return true
}

// leave counts a running attempt as abandoned. If it has returned in this moment, nobody else gives back what it took.
func (a *attempt) leave() {
	if !a.over.Swap(true) {
		a.f.bound.abandoned.Add(1)
		return
	}
	go a.late()
}

// late gives back what the primary has taken after its caller left.
func (a *attempt) late() {
	if a.q.joint != nil {
		a.q.joint.late(a.Context)
	}
}

// withdraw ends an attempt whose turn never came.
func (a *attempt) withdraw() {
	a.lapsing.Stop()
	a.cancel()
	a.settle(answer{}, errNeutral)
}

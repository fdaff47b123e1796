package ratelimit

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tryacquire/ratelimit/internal/await"
	"github.com/tryacquire/ratelimit/internal/limitername"
	"github.com/tryacquire/ratelimit/internal/waiting"
)

// A Shadow is a [Limiter] that decides by one limiter and asks another one, on trial, what it would have decided. The
// trial's answer is only reported. Its errors, panics and delays never reach the caller, because it is asked in the
// background, after the decision. For a dry run, in which every call is allowed, enforce [AllowAll].
//
// The trial takes permits of its own: give it another name than the enforced limiter has, if both are of one
// algorithm. It is asked about each call that the enforced limiter allowed or denied, and not about errors. At most
// 256 trials are under way at a time, and the context of each ends after a second. While as many are under way, the
// trial is not asked about further calls; [Shadow.Dropped] counts these. A client that does not honour contexts can
// keep a trial under way until its timeouts.
//
// A call takes some 300 ns more than the enforced limiter alone. Put a [DenyCache] around the enforced limiter, not
// around the Shadow. docs/plans.md has an example, docs/composing.md the order of decorators.
type Shadow struct {
	policied
	enforced, trial Limiter
	report          func(Trial)
	running         chan struct{} // one element for each trial under way
	dropped         atomic.Int64
	panicked        firstPanic // of report
}

func (s *Shadow) kind() kind { return kindAround(s, s.enforced) }

// A Trial holds the answer of a [Shadow]'s trial to one call.
type Trial struct {
	Key      string
	Reset    bool   // it is no call but a Reset that failed; N, Enforced and Result are zero
	N        int    // permits asked for
	Enforced Result // what the caller got
	Result   Result // what the trial answered; zero if Err is not nil
	Err      error  // why the trial made no decision; ErrExceedsLimit if it can never allow N
}

const (
	maxTrials    = 256 // under way at a time
	trialTimeout = time.Second
)

// NewShadow returns a limiter that decides by enforced, and asks trial about the same calls. report gets each answer
// of the trial, and its panic as the Err. It is called from several goroutines at once, never from a caller's, and its
// trial counts as under way while it runs. Its own first panic goes to [log/slog]'s default logger. The error wraps ErrInvalidConfig: a limiter or report is nil.
func NewShadow(enforced, trial Limiter, report func(Trial)) (*Shadow, error) {
	switch {
	case kindOf(enforced).absent:
		return nil, invalidConfig("NewShadow: the enforced limiter is nil; AllowAll() allows every call")
	case kindOf(trial).absent:
		return nil, invalidConfig("NewShadow: the trial is nil")
	case report == nil:
		return nil, invalidConfig("NewShadow: report is nil; give a function that gets the trial's answers")
	}
	s := &Shadow{enforced: enforced, trial: trial, report: report, running: make(chan struct{}, maxTrials)}
	s.by = s
	return s, nil
}

func (s *Shadow) rank() int { return rankShadow }

// around asks the trial what it would have decided of each claim that no other claim denied.
func (*Shadow) around(ctx context.Context, c *call, own claimSet) outcome {
	var shadows [maxGroup]*Shadow
	for i := range c.claims {
		if !own.has(i) {
			continue
		}
		s := c.claims[i].outer.(*Shadow)
		shadows[i] = s
		c.claims[i].by(s.enforced)
	}
	var ops [maxGroup]*operation
	for i := range c.claims {
		ops[i] = c.opOf(i)
	}
	out := c.decide(ctx)
	if out.err != nil || c.op == look || c.op == pause || c.op == resume || out.repeated() { // nothing was taken
		return out
	}
	if c.op == credit { // nothing to compare: the trial gets it too
		if s := shadows[0]; s != nil {
			key, n := c.claims[0].key, c.claims[0].n
			s.try(ctx, trialCall{settle: func(ctx context.Context, _ int) error { return operate(ctx, s.trial, credit, key, n, call{}).err }})
		}
		return out
	}
	for i, s := range shadows {
		if s == nil || !out.othersAllowed(i) {
			continue
		}
		t := trialCall{Trial: Trial{Key: c.claims[i].key, N: c.claims[i].n, Enforced: *out.part(i)}, op: ops[i], longest: c.longest}
		if follows := out.hearersOf(i); follows != nil {
			t.taken = &trialTaken{shadow: s}
			*follows = (*follows).and(t.taken)
		}
		s.try(ctx, t)
	}
	return out
}

// othersAllowed reports whether all claims but claim i were allowed.
func (o *outcome) othersAllowed(i int) bool {
	for j := range o.parts {
		if j != i && (o.parts[j].Unknown || !o.parts[j].Result.Allowed) {
			return false
		}
	}
	return true
}

// A trialCall is what the trial is asked: an operation, or a Reset or a settlement, which have none.
type trialCall struct {
	Trial
	op      *operation
	longest time.Duration // of a reserve
	taken   *trialTaken   // by an estimate or a reservation; nil: nothing, or the enforced limiter has denied it
	settle  settlement    // by actual; nil: none
	actual  int
}

// A settlement settles what the trial has taken: actual permits stay of it.
type settlement func(ctx context.Context, actual int) error

// A trialTaken is what the trial has taken by an estimate or a reservation. It hears of what the enforced limiter's is
// settled by, or that it is cancelled, and settles the trial's by the same, whichever is known first.
type trialTaken struct {
	shadow *Shadow

	mu      sync.Mutex // guards what follows
	settle  settlement // nil: not yet, or denied
	settled bool
	actual  int
}

// givesBack passes a settlement on, in the background.
func (t *trialTaken) givesBack(ctx context.Context, _ string, _, actual int) (done func(error)) {
	t.mu.Lock()
	settle := t.settle
	t.settled, t.actual = true, actual
	t.mu.Unlock()
	if settle != nil { // if too many trials are under way, what this one has taken stays
		t.shadow.try(ctx, trialCall{settle: settle, actual: actual})
	}
	return func(error) {}
}

// took settles what the trial has taken, now if the enforced limiter's is settled already.
func (t *trialTaken) took(ctx context.Context, settle settlement) {
	t.mu.Lock()
	t.settle = settle
	settled, actual := t.settled, t.actual
	t.mu.Unlock()
	if settled {
		_ = settle(ctx, actual)
	}
}

// Reset resets key in the enforced limiter, and then in the trial, in the background. It
// returns the enforced limiter's error. If the trial fails to reset the key, report gets a
// Trial with Reset set, and the error.
func (s *Shadow) Reset(ctx context.Context, key string) error {
	if s.enforced == nil {
		return errUnmade
	}
	err := s.enforced.Reset(ctx, key)
	if checkKey(key) == nil {
		s.try(ctx, trialCall{Trial: Trial{Key: key, Reset: true}})
	}
	return err
}

// Dropped is how many calls the trial was not asked about, because too many trials were under way.
func (s *Shadow) Dropped() int64 { return s.dropped.Load() }

// Name returns the enforced limiter's name, "default" if that has none.
func (s *Shadow) Name() string {
	if s.enforced == nil {
		return ""
	}
	return limitername.Of(s.enforced)
}

// try asks the trial in a goroutine of its own, or not at all.
func (s *Shadow) try(ctx context.Context, t trialCall) {
	select {
	case s.running <- struct{}{}:
		go s.run(waiting.Without(context.WithoutCancel(ctx)), t) // the caller may be gone by then
	default:
		s.dropped.Add(1)
	}
}

func (s *Shadow) run(ctx context.Context, t trialCall) {
	// The trial is under way for as long as one of its goroutines is: that of a client which does
	// not honour contexts ends with the client's timeouts only.
	var users atomic.Int64
	use := func() (ended func()) {
		users.Add(1)
		return func() {
			if users.Add(-1) == 0 {
				<-s.running
			}
		}
	}
	defer use()()
	s.ask(await.CountLeft(ctx, use), &t)
}

// ask asks the trial, and reports its answer.
func (s *Shadow) ask(ctx context.Context, t *trialCall) {
	s.answer(ctx, t)
	if t.settle != nil || t.Reset && t.Err == nil {
		return
	}
	defer func() {
		if p := recover(); p != nil {
			s.panicked.log("the report of a shadow", s.Name(), p)
		}
	}()
	s.report(t.Trial)
}

// answer stores the trial's answer in t.
func (s *Shadow) answer(ctx context.Context, t *trialCall) {
	ctx, cancel := context.WithTimeout(ctx, trialTimeout)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			t.Result, t.Err = Result{}, fmt.Errorf("ratelimit: shadow: the trial panicked: %v", p)
		}
	}()
	switch {
	case t.settle != nil:
		t.Err = t.settle(ctx, t.actual)
		return
	case t.Reset:
		t.Err = s.trial.Reset(ctx, t.Key)
		return
	}
	o := operate(ctx, s.trial, t.op, t.Key, t.N, call{longest: t.longest, timing: realTime})
	t.Result, t.Err = o.result, o.err
	switch {
	case t.taken == nil:
	case o.ticket != nil:
		t.taken.took(ctx, o.ticket.Settle)
	case o.reservation != nil:
		reservation := o.reservation
		t.taken.took(ctx, func(ctx context.Context, _ int) error { return reservation.giveBack(ctx) })
	}
}

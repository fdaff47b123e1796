// Package guard asks a primary that may fail or hang: for no longer than a budget, and only while breakers allow it.
package guard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tryacquire/ratelimit/internal/deadline"
	"github.com/tryacquire/ratelimit/internal/errclass"
)

// A Call is what a primary is asked.
type Call interface {
	// Ask asks the primary. With a budget it runs in a goroutine of its own, and may still run when Do has returned.
	Ask(ctx context.Context) error

	// GiveBack gives back what Ask has taken for a caller that left before it returned.
	GiveBack(ctx context.Context)
}

// A Guard says when a primary is asked, and for how long. The zero value always asks, and waits.
type Guard struct {
	Budget   time.Duration // 0: none
	Bound    *Bound        // of the calls with a budget
	Breakers Breakers
}

var (
	errStillRunning = fmt.Errorf("%w: %d abandoned calls are still running", errclass.ErrOverBudget, MaxRunning)
	errNoReturn     = errors.New("ratelimit: the primary's goroutine exited")
)

// Left is the error of a call whose caller's context ended before anybody answered.
type Left struct{ End error }

func (l *Left) Error() string { return l.End.Error() }

// Unwrap returns the context's error.
func (l *Left) Unwrap() error { return l.End }

// Do returns the primary's error. If the primary was not asked, or has not answered within the budget, the error is
// ErrBreakerOpen or ErrOverBudget; if the caller's context ended first, it is a *Left.
func (g *Guard) Do(ctx context.Context, c Call) error {
	switch {
	case g.Budget > 0:
		return g.within(ctx, c)
	case len(g.Breakers) > 0:
		return g.judged(ctx, c)
	}
	return c.Ask(ctx)
}

// FailureAfter is how long a call whose caller has left must have taken to count as a
// failure, where there is no budget. Without such a rule, a hung Redis would never open
// the breaker of a service whose requests have deadlines. It is not shorter, so that
// requests with very short deadlines cannot open the breaker.
const FailureAfter = 250 * time.Millisecond

// judged asks the primary unless a breaker is open, and gives the breakers their verdict.
func (g *Guard) judged(ctx context.Context, c Call) (err error) {
	done := g.Breakers.begin()
	if done == nil {
		return errclass.ErrBreakerOpen
	}
	start := time.Now()
	verdict := errFailed // if the primary panics
	defer func() { g.Breakers.end(done, verdict) }()
	err = c.Ask(ctx)
	verdict = verdictOn(err)
	if verdict == errFailed && deadline.Ended(ctx) != nil && time.Since(start) < FailureAfter {
		verdict = errNeutral // the primary may have had no time to answer
	}
	return err
}

// verdictOn is how a call that the primary answered with err counts for a breaker.
func verdictOn(err error) error {
	if err == nil {
		return nil
	}
	switch class := errclass.Of(err).Class; {
	case class.Answered():
		return nil
	case class == errclass.Outage:
		return errFailed
	}
	return errNeutral
}

package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/waiting"
)

// AcquireAll takes the permits of all claims or of none, now or in less than the longest wait; 0 does not wait. A denied
// call asks again after a waiting.Pause. Nobody has a turn: several limits promise no permits. ready is as in AcquireReady.
// line is nil if no permits in flight are claimed.
func AcquireAll(ctx context.Context, claims []ratelimit.Claim, longest time.Duration, ready func() bool, line *Line) (ratelimit.AllResult, error) {
	switch {
	case longest == 0:
		return ratelimit.TryAcquireAcrossSlots(ctx, claims...)
	case line != nil:
		return line.acquire(ctx, claims, longest, ready)
	}
	call, attempt := waiting.Begin(ctx, false)
	end := call.Began.Add(longest)
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(end) {
		end = deadline
	}
	for first := true; ; first = false {
		call.Again()
		answer, err := ratelimit.TryAcquireAcrossSlots(attempt, claims...)
		if err != nil || answer.Allowed {
			return answer, err
		}
		left := time.Until(end)
		if answer.RetryAfter >= left || isOutage(answer) || first && !ready() {
			call.End(nil)
			return answer, nil
		}
		call.Polls = true // what follows is observed as a wait
		select {
		case <-time.After(waiting.Pause(answer.RetryAfter, left, func(most time.Duration) time.Duration { return rand.N(most + 1) })):
		case <-ctx.Done():
			err := fmt.Errorf("ratelimit: waiting for %d limits: %w", len(claims), ctx.Err())
			call.End(err)
			return ratelimit.AllResult{}, err
		}
	}
}

// isOutage reports whether one of several limits has denied because of an outage.
func isOutage(answer ratelimit.AllResult) bool {
	return slices.ContainsFunc(answer.Parts, func(p ratelimit.PartResult) bool { return !p.Unknown && IsOutageDenial(p.Result) })
}

// A Line is where calls wait for permits in flight: those of one process in their order, see ratelimit.WaitAll.
type Line struct {
	Of       any              // calls with the same one wait together
	InFlight func(i int) bool // whether claim i is of permits in flight
}

// acquire is AcquireAll in the line. A call that may not wait, or no longer, asks once out of turn: so its denial has the
// limiters' answers, and a place that is free is used.
func (l *Line) acquire(ctx context.Context, claims []ratelimit.Claim, longest time.Duration, ready func() bool) (answer ratelimit.AllResult, err error) {
	call, attempt := waiting.Begin(ctx, false)
	bounded, cancel := context.WithDeadline(ctx, call.Began.Add(longest))
	defer cancel()
	asked := false
	ask := func() (done bool, d waiting.Denial) {
		call.Again()
		asked = true
		if answer, err = ratelimit.TryAcquireAcrossSlots(attempt, claims...); err != nil || answer.Allowed {
			return true, d
		}
		d = l.denial(answer)
		end, _ := bounded.Deadline()
		return isOutage(answer) || d.Least > 0 && d.Least >= time.Until(end), d
	}
	defer func() { call.End(err) }()
	if waiting.InFlight.AtOnce(call, l.Of, ask) {
		return answer, err
	}
	if !ready() {
		if !asked {
			ask()
		}
		return answer, err
	}
	call.Polls = true // what follows is observed as a wait
	switch end := waiting.InFlight.InTurn(bounded, call, l.Of, ask); {
	case end == nil:
	case ctx.Err() == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) && asked: // the wait is over
		if !asked {
			ask()
		}
	case !asked: // the limiters report that the client has left, and how long it was in the line
		call.Again()
		return ratelimit.TryAcquireAcrossSlots(attempt, claims...)
	default:
		return ratelimit.AllResult{}, fmt.Errorf("ratelimit: waiting for a place: %w", ctx.Err())
	}
	return answer, err
}

// denial says when a denied call is worth asking again.
func (l *Line) denial(answer ratelimit.AllResult) (d waiting.Denial) {
	for i, p := range answer.Parts {
		if !p.Unknown && !p.Result.Allowed {
			d.Add(p.Result.RetryAfter, l.InFlight(i))
		}
	}
	return d
}

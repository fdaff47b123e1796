package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/waiting"
)

// AcquireAll takes the permits of all claims or of none, now or in less than the longest wait; 0 does not wait. A denied
// call asks again after a waiting.Pause. Nobody has a turn: several limits promise no permits. ready is as in AcquireReady.
func AcquireAll(ctx context.Context, claims []ratelimit.Claim, longest time.Duration, ready func() bool) (ratelimit.AllResult, error) {
	if longest == 0 {
		return ratelimit.TryAcquireAcrossSlots(ctx, claims...)
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

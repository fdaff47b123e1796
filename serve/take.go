package serve

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tryacquire/ratelimit"
)

// acquire takes all claims, or none. If some are holds, one script has to decide, and the error may be ErrCrossSlot:
// then nothing was taken.
func acquire(ctx context.Context, claims []ratelimit.Claim, holds bool) (ratelimit.AllResult, error) {
	decide := ratelimit.TryAcquireAcrossSlots
	switch {
	case len(claims) == 0:
		return ratelimit.AllResult{Result: ratelimit.Result{Allowed: true}}, nil
	case holds:
		decide = ratelimit.TryAcquireAll
	}
	all, err := decide(ctx, claims...)
	if err != nil && !errors.Is(err, ratelimit.ErrCrossSlot) {
		err = failed(err)
	}
	return all, err
}

// claim is what the descriptor takes; as an estimate, it can be given back.
func (d *descriptor) claim(estimate bool) ratelimit.Claim {
	switch {
	case d.hold != nil:
		return ratelimit.ClaimHold(d.hold.Holder, d.key, d.hits).As(d.id)
	case estimate:
		return ratelimit.ClaimOf(d.limiter, d.key, d.hits).Estimate()
	}
	return ratelimit.ClaimOf(d.limiter, d.key, d.hits)
}

// peek asks for what is left.
func (d *descriptor) peek(ctx context.Context) (ratelimit.Result, error) {
	if d.hold != nil {
		return d.hold.Peek(ctx, d.key)
	}
	return d.limiter.Peek(ctx, d.key)
}

// peekHits asks for what is left, and when there will be as much as the descriptor asks for.
func (d *descriptor) peekHits(ctx context.Context) (ratelimit.Result, error) {
	if d.hits < 2 || d.hits > d.most() || d.hold != nil {
		return d.peek(ctx)
	}
	r, err := ratelimit.Look(ctx, ratelimit.ClaimOf(d.limiter, d.key, d.hits))
	return r.Result, err
}

// together splits descriptors into some that one script can decide, which is at most eight, each with a key of its own,
// and the rest. With apart, a hold is decided by a script of its own, the holds first.
func together(all []*descriptor, apart bool) (chunk, rest []*descriptor) {
	if apart {
		if i := slices.IndexFunc(all, func(d *descriptor) bool { return d.hold != nil }); i >= 0 {
			return all[i : i+1 : i+1], slices.Delete(slices.Clone(all), i, i+1)
		}
	}
	for i, d := range all {
		if len(chunk) == mostTogether {
			return chunk, append(rest, all[i:]...)
		}
		twice := false
		for _, other := range chunk {
			twice = twice || other.key == d.key
		}
		if twice {
			rest = append(rest, d)
		} else {
			chunk = append(chunk, d)
		}
	}
	return chunk, rest
}

// A taken is what was taken and may have to be given back.
type taken struct {
	all   []part
	apart bool // no one script can decide a hold together with others
}

// A part is what one descriptor has taken.
type part struct {
	of     *descriptor
	ticket *ratelimit.Ticket
	hold   *ratelimit.Hold
}

// add adds what a call has taken. Holds that were there before it are not the request's to give back.
func (t *taken) add(d *descriptor, p ratelimit.PartResult, repeated bool) {
	if p.Ticket != nil || p.Hold != nil && !repeated {
		t.all = append(t.all, part{d, p.Ticket, p.Hold})
	}
}

// take takes the hits of all descriptors, or of none. If they are more than one script holds, or later is set because
// others can still deny the request, what was taken can be given back.
func (t *taken) take(ctx context.Context, all []*descriptor, later bool) (over bool, err error) {
	if len(all) == 1 && !later && all[0].hits > 0 && all[0].hold == nil {
		return takeOne(ctx, all[0])
	}
	for len(all) > 0 {
		chunk, rest := together(all, t.apart)
		settled := later || len(rest) > 0 || len(t.all) > 0
		var claims []ratelimit.Claim
		var of []*descriptor
		for _, d := range chunk {
			if d.hits == 0 {
				if err := d.look(ctx); err != nil {
					return false, err
				}
				over = over || d.over
				continue
			}
			claims, of = append(claims, d.claim(settled)), append(of, d)
		}
		if over {
			return true, nil
		}
		r, err := t.acquire(ctx, of, claims)
		switch {
		case errors.Is(err, ratelimit.ErrCrossSlot) && !t.apart:
			t.apart = true
			continue
		case err != nil:
			return false, err
		}
		for i, p := range r.Parts {
			if !p.Unknown {
				of[i].answered(p.Result)
			}
			t.add(of[i], p, r.Repeated)
		}
		if !r.Allowed {
			return true, nil
		}
		all = rest
	}
	return false, nil
}

// takeOne takes the hits of a single descriptor, by the cheapest call.
func takeOne(ctx context.Context, d *descriptor) (over bool, err error) {
	r, err := d.limiter.TryAcquireN(ctx, d.key, d.hits)
	if err != nil {
		return false, failed(err)
	}
	d.answered(r)
	return d.over, nil
}

// acquire is acquire, of these descriptors. After an error, holds may have been taken.
func (t *taken) acquire(ctx context.Context, of []*descriptor, claims []ratelimit.Claim) (ratelimit.AllResult, error) {
	var holds []*descriptor
	for _, d := range of {
		if d.hold != nil {
			holds = append(holds, d)
		}
	}
	r, err := acquire(ctx, claims, holds != nil)
	if err != nil && !errors.Is(err, ratelimit.ErrCrossSlot) && status.Code(err) != codes.InvalidArgument { // a mistake takes nothing
		for _, d := range holds {
			go d.hold.release(context.WithoutCancel(ctx), d.key, d.hits, d.id)
		}
	}
	return r, err
}

// giveBack gives back what was taken of these descriptors for a request that is denied. An answer that counted what is
// given back is known no more.
func (t *taken) giveBack(ctx context.Context, all []*descriptor) {
	if t.all == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	given := map[string]bool{}
	for _, p := range t.all {
		var err error
		if p.hold != nil {
			err = p.hold.Release(ctx)
		} else {
			err = p.ticket.Settle(ctx, 0)
		}
		given[p.of.key] = given[p.of.key] || err == nil // after an error the hits stay taken, and no limit is exceeded
	}
	t.all = nil
	times := map[string]int{}
	for _, d := range all {
		times[d.key]++
	}
	for _, d := range all {
		switch {
		case d.over || !d.known || !given[d.key]:
		case times[d.key] == 1 && (d.hold != nil || d.algorithm == fixedWindow): // only this has changed
			d.result.Remaining += d.hits
		default:
			d.known = false
		}
	}
}

package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/errclass"
	"github.com/tryacquire/ratelimit/ratelimittest"
)

// holdNesting is a limit on permits that are held, in random policies.
type holdNesting struct {
	*nesting
	holder  ratelimit.Holder
	beside  ratelimit.Limiter // may be claimed with it
	control ratelimit.Holder  // past policies and outages
	lease   time.Duration

	mu   sync.Mutex // guards what follows
	open []*held
}

// held are permits that a caller has.
type held struct {
	*ratelimit.Hold
	n       int
	onRedis bool
	over    bool
}

func newHoldNesting(t *testing.T, rng *rand.Rand) *holdNesting {
	h := &holdNesting{nesting: newWorld(t, rng), lease: 2 * time.Second}
	if h.gentle {
		h.lease = 1000 * time.Hour // so that nothing comes back but what is given back
	}
	h.says = append(h.says, fmt.Sprintf("InFlight of %d for %v", h.limit, h.lease))
	inFlight := func(c ratelimit.Client, name string) ratelimit.Holder {
		return ratelimit.Must(ratelimit.NewInFlight(c, h.limit, h.lease, ratelimit.WithName(name), h.watch(name)))
	}
	h.holder, h.control = inFlight(h.client, "core"), inFlight(h.past, "core")
	for range 2 + rng.IntN(2) {
		inner, place := h.holder, fmt.Sprint(len(h.says))
		if rng.IntN(3) == 0 {
			h.says = append(h.says, "Choice")
			h.holder = ratelimit.Must(ratelimit.NewHoldChoice(func(context.Context, string) (ratelimit.Holder, error) { return inner, nil }))
			continue
		}
		local := ratelimit.Must(ratelimit.NewLocalInFlight(1 + rng.IntN(h.limit)))
		var secondary ratelimit.Holder
		says, bound := "", time.Duration(0)
		switch rng.IntN(5) {
		case 0:
			secondary, says = ratelimit.AllowHolds(), "AllowHolds"
		case 1:
			secondary, says = ratelimit.DenyHolds(), "DenyHolds"
		case 2:
			secondary, says = local, "local"
		case 3:
			secondary, says = ratelimit.Must(ratelimit.NewHoldChoice(func(context.Context, string) (ratelimit.Holder, error) { return local, nil })), "Choice of local"
		default:
			other := ratelimittest.New(t)
			other.Slow(milli)
			secondary = ratelimit.Must(ratelimit.NewHoldFallback(inFlight(other.Client(), "standby "+place), local, ratelimit.WithBudget(15*milli)))
			says, bound = "standby", 15*milli
		}
		h.holder = ratelimit.Must(ratelimit.NewHoldFallback(inner, secondary, h.fallback(place, says, bound)...))
	}
	bucket := ratelimit.Must(ratelimit.NewTokenBucket(h.client, ratelimit.PerSecond(100), 100, ratelimit.WithName("beside")))
	h.beside = ratelimit.Must(ratelimit.NewFallback(bucket, ratelimit.AllowAll(), ratelimit.WithBudget(25*milli)))
	return h
}

// call makes one random call, or releases or extends a hold.
func (h *holdNesting) call(rng *rand.Rand, _ bool) {
	ctx, cancel := context.Background(), context.CancelFunc(func() {})
	if rng.IntN(4) == 0 {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(1+rng.IntN(60_000))*time.Microsecond)
	}
	defer cancel()
	ctx, observed := h.begin(ctx)
	permits, took := 1+rng.IntN(min(h.limit, 4)), h.stopwatch()
	switch rng.IntN(9) {
	case 0:
		r, err := h.holder.Peek(ctx, "k")
		h.judge("peek", r, err, took(), observed())
	case 1:
		all, err := ratelimit.Look(ctx, ratelimit.ClaimHold(h.holder, "k", permits))
		h.judge("look", all.Result, err, took(), observed())
	case 2:
		_, r, err := h.holder.TryAcquireN(ctx, "k", h.limit+1)
		if !errclass.IsMistake(err) && ctx.Err() == nil {
			h.failf(observed(), "too many: %+v, %v", r, err)
		}
	case 3:
		all, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimHold(h.holder, "k", permits), ratelimit.ClaimOf(h.beside, "k", 1).Estimate())
		if h.judge("several", all.Result, err, 0, observed()); err == nil {
			h.keep(all.Parts[0].Hold, permits, all.Parts[0].Result.Fallback)
		}
	case 4, 5:
		h.change(rng, ctx)
	default:
		hold, r, err := h.holder.TryAcquireN(ctx, "k", permits)
		if h.judge("hold", r, err, took(), observed()); (hold != nil) != r.Allowed {
			h.failf(observed(), "a hold %v beside %+v", hold, r)
		}
		h.keep(hold, permits, r.Fallback)
	}
}

func (h *holdNesting) stopwatch() func() time.Duration {
	began := time.Now()
	return func() time.Duration { return time.Since(began) }
}

// judge judges an answer.
func (h *holdNesting) judge(what string, r ratelimit.Result, err error, took time.Duration, seen []sighting) {
	switch {
	case err != nil && errclass.Of(err).Class != errclass.Outage:
		h.failf(seen, "%s: %v, which is not true", what, err)
	case err != nil && r != (ratelimit.Result{}), err == nil && r.Allowed == (r.RetryAfter > 0):
		h.failf(seen, "%s: %+v, %v", what, r, err)
	case h.budget && took > h.bound:
		h.failf(seen, "%s took %v of %v: %+v, %v", what, took, h.bound, r, err)
	}
	if what != "several" {
		h.reported(what, outcomeOf{Result: r, err: err}, seen, took)
	}
}

// keep keeps a hold, and checks that no more are held on Redis than the limit.
func (h *holdNesting) keep(hold *ratelimit.Hold, n int, fallback bool) {
	if hold == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open = append(h.open, &held{Hold: hold, n: n, onRedis: !fallback})
	sum := 0
	for _, o := range h.open {
		if o.onRedis && !o.over && o.Left() > 0 {
			sum += o.n
		}
	}
	if sum > h.limit {
		h.failf(nil, "%d of %d permits are held", sum, h.limit)
	}
}

// change releases or extends a hold.
func (h *holdNesting) change(rng *rand.Rand, ctx context.Context) {
	h.mu.Lock()
	if len(h.open) == 0 {
		h.mu.Unlock()
		return
	}
	i := rng.IntN(len(h.open))
	o := h.open[i]
	releases := rng.IntN(3) > 0
	if releases {
		o.over = true
		h.open = append(h.open[:i], h.open[i+1:]...)
	}
	h.mu.Unlock()
	if releases {
		if err := o.Release(ctx); err != nil && errclass.Of(err).Class != errclass.Outage {
			h.failf(nil, "release: %v", err)
		} else if err != nil {
			_ = o.Release(context.Background())
		}
		return
	}
	lasts := o.Left() > 0
	err := o.Extend(ctx)
	lasts = lasts && o.Left() > 0
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err == nil || errclass.Is(err, errclass.Outage):
	case !errors.Is(err, ratelimit.ErrLeaseLost) || lasts && !o.over:
		h.failf(nil, "extend: %v of a hold that lasts %v", err, o.Left())
	}
}

// rest checks what is true when the outages are over and all is released.
func (h *holdNesting) rest() {
	for _, o := range h.open {
		_ = o.Release(context.Background())
	}
	for range 12 { // the breakers close
		time.Sleep(300 * milli)
		_, _ = h.holder.Peek(context.Background(), "k")
	}
	for name, l := range map[string]ratelimit.Holder{"policies": h.holder, "Redis": h.control} {
		r, err := l.Peek(context.Background(), "k")
		if err != nil || r.Fallback || r.Remaining != h.limit {
			h.failf(nil, "after the outage, by %s: %+v, %v", name, r, err)
		}
	}
}

// TestHoldNestingsThroughOutages is TestNestingsThroughOutages of permits that are held: no more than the limit are held on
// Redis at any instant, and when all is released and the outage is over, all are free.
func TestHoldNestingsThroughOutages(t *testing.T) {
	throughOutages(t, 3000, 10, func(t *testing.T, rng *rand.Rand, _ context.Context) (*nesting, func(*rand.Rand, bool), func()) {
		h := newHoldNesting(t, rng)
		return h.nesting, h.call, h.rest
	})
}

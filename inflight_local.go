package ratelimit

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/tryacquire/ratelimit/internal/memory"
	"github.com/tryacquire/ratelimit/internal/waiting"
)

// LocalInFlight limits how many permits of a key are held at once in this process. It is made to be the
// secondary of a [NewHoldFallback]: it asks no server, so it cannot fail. It shares nothing with other
// processes: divide the limit by the number of instances.
//
// There are no leases, because the permits of a process that has crashed are gone with it: a Hold keeps its
// permits until it is released. Release every Hold. A key without holds takes no memory. LocalInFlight is
// safe for concurrent use.
type LocalInFlight struct {
	local
	held  *memory.Holds
	name  string
	watch *watch // nil: nobody observes
}

func (f *LocalInFlight) kind() kind {
	k := kind{self: f, role: inMemory}
	if f.held != nil {
		k.most = f.held.Limit
	}
	return k
}

// NewLocalInFlight returns a limiter with which at most limit permits of a key are held at once in this
// process. limit is 1 to 100,000. The error wraps ErrInvalidConfig.
func NewLocalInFlight(limit int, opts ...Option) (*LocalInFlight, error) {
	s, err := collect(newLocalInFlight, opts)
	if err != nil {
		return nil, err
	}
	holds := &LocalInFlight{held: &memory.Holds{Held: memory.NewHeld()}, name: s.name, watch: s.watch(s.name)}
	return holds.With(limit)
}

// With returns the limiter of another limit, with f's name, options and holds, as [InFlight.With] does.
func (f *LocalInFlight) With(limit int) (*LocalInFlight, error) {
	switch {
	case f.held == nil:
		return nil, errUnmade
	case limit < 1 || limit > maxInFlight:
		return nil, invalidConfig("the limit is %d; it must be between 1 and %d", limit, maxInFlight)
	}
	made := *f
	made.held = &memory.Holds{Held: f.held.Held, Limit: limit, Retry: retryWithoutBreaker}
	return &made, nil
}

// TryAcquire takes one permit of key, if one is free now. It is TryAcquireN(ctx, key, 1).
func (f *LocalInFlight) TryAcquire(ctx context.Context, key string) (*Hold, Result, error) {
	return f.TryAcquireN(ctx, key, 1)
}

// TryAcquireN takes n permits of key, all or none, for one Hold. In the Result, Limit is the
// limit, and Remaining how many permits are free. Window, RetryAfter of an allowed call and
// ResetAfter are 0, because nobody knows when a hold is released; RetryAfter of a denial is a
// second. The errors are those of [InFlight.TryAcquireN].
func (f *LocalInFlight) TryAcquireN(ctx context.Context, key string, n int) (*Hold, Result, error) {
	claim := claimOn(f, key, n)
	return f.tryAcquireAs(ctx, &claim)
}

func (f *LocalInFlight) tryAcquireAs(ctx context.Context, claim *Claim) (*Hold, Result, error) {
	claims := [1]Claim{*claim}
	all, err := decideInMemory(ctx, claims[:], false)
	if err != nil {
		return nil, Result{}, err
	}
	return all.Parts[0].Hold, all.Result, nil
}

// Peek returns how many permits of key are free, and takes nothing.
func (f *LocalInFlight) Peek(ctx context.Context, key string) (Result, error) {
	return f.peekN(ctx, key, 1)
}

func (f *LocalInFlight) peekN(ctx context.Context, key string, n int) (Result, error) {
	claims := [1]Claim{claimOn(f, key, n)}
	all, err := decideInMemory(ctx, claims[:], true)
	return all.Result, err
}

// Name returns the limiter's name, see [WithName].
func (f *LocalInFlight) Name() string { return f.name }

func (f *LocalInFlight) check(ctx context.Context, key string, n int) error {
	if f.held == nil {
		return errUnmade
	}
	if most := f.held.Limit; n > most {
		return fmt.Errorf("%w: %d permits of a limiter in this process, of which %d can be held at once", ErrExceedsLimit, n, most)
	}
	return checkLocal(ctx, key, n)
}

func (f *LocalInFlight) inMemory() memory.Limit {
	if f.held == nil {
		return nil
	}
	return f.held
}

func (f *LocalInFlight) give(claim Claim, p *PartResult) {
	p.Hold = &Hold{from: f, key: claim.key, n: claim.n}
	if claim.as != nil {
		p.Hold.named, p.Hold.id = true, *claim.as
	}
}

func (f *LocalInFlight) release(_ context.Context, h *Hold) (sending, error) {
	f.held.Release(h.key, h.id, h.n)
	return inProcess, nil
}

func (f *LocalInFlight) permits(key string) waiting.Held {
	return waiting.Held{State: f.held.Held, Key: key}
}

func (f *LocalInFlight) observers() *watch { return f.watch }

// forever is how long a hold without a lease lasts.
const forever = time.Duration(math.MaxInt64)

package ratelimit

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"
)

// LocalInFlight limits how many permits of a key are held at once in this process. It is made to be the
// secondary of a [HoldFallback]: it asks no server, so it cannot fail. It shares nothing with other
// processes: divide the limit by the number of instances.
//
// There are no leases, because the permits of a process that has crashed are gone with it: a Hold keeps its
// permits until it is released. Release every Hold. A key without holds takes no memory. LocalInFlight is
// safe for concurrent use.
type LocalInFlight struct {
	*localHolds
	limit int
	name  string
	watch *watch // nil: nobody observes
}

// localHolds are the permits that are held, which limiters of several limits can share, see [LocalInFlight.With].
type localHolds struct {
	local
	made int64
	mu   sync.Mutex // guards what is below
	held map[string]int
}

func (f *LocalInFlight) kind() kind { return kind{self: f, role: inMemory, most: f.limit} }

// NewLocalInFlight returns a limiter with which at most limit permits of a key are held at once in this
// process. limit is 1 to 100,000. The error wraps ErrInvalidConfig.
func NewLocalInFlight(limit int, opts ...Option) (*LocalInFlight, error) {
	s, err := collect(newLocalInFlight, opts)
	if err != nil {
		return nil, err
	}
	holds := &LocalInFlight{&localHolds{made: limitersMade.Add(1), held: map[string]int{}}, 0, s.name, s.watch(s.name)}
	return holds.With(limit)
}

// With returns the limiter of another limit, with f's name, options and holds, as [InFlight.With] does.
func (f *LocalInFlight) With(limit int) (*LocalInFlight, error) {
	switch {
	case f.localHolds == nil:
		return nil, errUnmade
	case limit < 1 || limit > maxInFlight:
		return nil, invalidConfig("the limit is %d; it must be between 1 and %d", limit, maxInFlight)
	}
	return &LocalInFlight{f.localHolds, limit, f.name, f.watch}, nil
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
	claims := [1]Claim{claimOn(f, key, n)}
	if f == nil || f.localHolds == nil {
		return nil, Result{}, errUnmade
	}
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
	if f == nil || f.localHolds == nil {
		return Result{}, errUnmade
	}
	claims := [1]Claim{claimOn(f, key, n)}
	all, err := decideInMemory(ctx, claims[:], true)
	return all.Result, err
}

// Name returns the limiter's name, see [WithName].
func (f *LocalInFlight) Name() string {
	if f == nil {
		return ""
	}
	return f.name
}

func (f *LocalInFlight) precheck(ctx context.Context, key string, n int) error {
	if f == nil || f.localHolds == nil {
		return errUnmade
	}
	if n > f.limit {
		return fmt.Errorf("%w: %d permits of a limiter in this process, of which %d can be held at once", ErrExceedsLimit, n, f.limit)
	}
	return checkLocal(ctx, key, n)
}

func (f *LocalInFlight) lock(string) memoryLock {
	if f == nil || f.localHolds == nil {
		return memoryLock{}
	}
	return memoryLock{&f.mu, f.made, 0}
}

func (f *LocalInFlight) decideLocked(key string, n int, take bool) Result {
	free := f.limit - f.held[key]
	r := Result{Allowed: n <= free, Limit: f.limit, Remaining: max(free, 0)}
	switch {
	case !r.Allowed:
		r.RetryAfter, r.ResetAfter = retryWithoutBreaker, retryWithoutBreaker
	case take:
		f.held[key] += n
		r.Remaining -= n
	}
	return r
}

func (f *LocalInFlight) denied(string) {}

func (f *LocalInFlight) give(claim Claim, p *PartResult) {
	p.Hold = &Hold{from: f, key: claim.key, n: claim.n}
}

func (f *LocalInFlight) tell(ctx context.Context, began time.Time, o Observation) {
	if f == nil || f.watch == nil {
		return
	}
	if o.Err == nil && o.Call == callHold && o.Outcome == 0 && o.Result.Allowed {
		o.HeldChange = o.N
	}
	f.watch.end(ctx, began, o)
}

func (f *LocalInFlight) release(_ context.Context, h *Hold) (sending, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.held[h.key] -= h.n; f.held[h.key] <= 0 {
		delete(f.held, h.key)
	}
	return inProcess, nil
}

func (f *LocalInFlight) observers() *watch { return f.watch }

// forever is how long a hold without a lease lasts.
const forever = time.Duration(math.MaxInt64)

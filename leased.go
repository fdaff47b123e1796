package ratelimit

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/tryacquire/ratelimit/internal/denials"
	"github.com/tryacquire/ratelimit/internal/lease"
	"github.com/tryacquire/ratelimit/internal/limitername"
)

// A Leased is a [Limiter] that takes permits of a bucket, a window or a log ahead, a slice at a time, and spends them in
// this process: a decision about a hot key then takes some 100 ns and no call to Redis. All processes together, and plain
// limiters of the same name beside them, allow exactly what the rule allows, whatever crashes and whichever replies are
// lost.
//
// A slice of a bucket lasts a quarter of the time in which the bucket refills, or longer while permits are scarce. One of a
// fixed or calendar window lasts a quarter of the window, and one of a sliding window or log until the sub-window ends. None
// lasts longer than 10s. A slice is as large as this process's demand in that time, at most a quarter of what is left. Keys
// with a demand below some ten permits in it ask Redis as without the Leased. What is left of a slice when it ends is given
// back if it is 4 permits or more, and by [Leased.Close].
//
// Of a bucket, a process that gets less than it asks for waits before it asks again, and denies calls in the meantime: the
// permits go to the other processes, or come back in the next slice. So while the demand exceeds the rule, a call can be
// denied although another process holds permits. RetryAfter then says when this process asks again.
//
// Only TryAcquire and TryAcquireN spend slices. All other operations, and calls with several claims, ask Redis directly; to
// them, permits in slices are taken. Reset also ends the slices of this process, but those of others may be spent on
// top of the new quota. docs/leases.md says when to use a Leased, what it wastes, and what else can exceed the rule.
type Leased struct {
	policied
	name    string
	watch   *watch // nil: nobody observes
	limiter Limiter
	core    *core // of limiter
	table   *lease.Table
	now     func() lease.Instant
	known   []Result                                      // the Limit and the Window of answers of slices, for each rule
	hears   hearers                                       // of the Leased alone
	caches  atomic.Pointer[[]weak.Pointer[denials.Table]] // that hear what slices give back
	logs    bool                                          // the limiter dates permits by slots
	window  atomic.Int64                                  // of a calendar, as the last reply had it; otherwise 0
}

func isLeased(l Limiter) bool { _, ok := l.(*Leased); return ok }

func (l *Leased) kind() kind { return kindAround(l, l.limiter) }

const (
	maxLeasedKey  = 256 // bytes; for longer keys the limiter is asked
	fewestPermits = 8   // of a slice that is worth a call
	returning     = 64  // calls under way that give back
)

// NewLeased puts slices in front of a bucket, a window (not of the storage ZSet) or a [SlidingLog] with [WithResolution] that
// Redis's clock decides. The error wraps ErrInvalidConfig: the limiter is nil or cannot be leased, an option is nil, given
// twice or cannot work. Call [Leased.Close] when the process ends.
//
// The options are [WithMaxSlice], [WithMaxKeys], [WithObserver] and [WithName]. Decorators go around the Leased; for plans,
// put a Leased around each limiter that a [Choice] picks.
func NewLeased(l Limiter, opts ...PolicyOption) (*Leased, error) {
	s, err := collect(newLeased, opts)
	if err != nil {
		return nil, err
	}
	c, rule, known, err := leased(l)
	if err != nil {
		return nil, err
	}
	rule.Most = s.maxSlice
	name := cmp.Or(s.name, limitername.Of(l))
	made := &Leased{
		name: name, watch: s.watch(name), limiter: l, core: c,
		table: lease.NewTable(rule, cmp.Or(s.maxKeys, defaultMaxKeys)), now: lease.NewClock().Now,
		known: known, logs: rule.Slot > 0,
	}
	made.by, made.hears.hearer = made, made
	return made, nil
}

// WithMaxSlice bounds how many permits of a key a [Leased] holds unspent in this process, at least 8. It bounds what is
// lost while other processes need these permits, or for the length of a slice if this process dies: n in each. Without it,
// that is as many as this process spends in one slice's time.
func WithMaxSlice(n int) PolicyOption {
	return policyOption("WithMaxSlice", func(s *settings) {
		if n < fewestPermits {
			s.refuse("WithMaxSlice: %d is below %d, the fewest that are worth a call; leave out the Leased to hold none", n, fewestPermits)
		}
		s.maxSlice = n
	})
}

// Name returns the name of WithName, and without it the limiter's.
func (l *Leased) Name() string { return l.name }

// TryAcquire is TryAcquireN(ctx, key, 1).
func (l *Leased) TryAcquire(ctx context.Context, key string) (Result, error) {
	return l.TryAcquireN(ctx, key, 1)
}

// TryAcquireN takes n permits from a slice of this process, or asks Redis. Its errors are those of the bucket. The Result
// has Leased set if it was decided here.
func (l *Leased) TryAcquireN(ctx context.Context, key string, n int) (Result, error) {
	if l.watch == nil && l.takes(ctx, key, n) {
		// The usual answer, in some 100 ns.
		a := l.table.Take(key, n, l.now())
		switch {
		case a.Verdict == lease.Allowed && a.Flight == nil:
			return l.allowed(a.Of, a.Left, a.ResetAfter), nil
		case a.Verdict == lease.Denied:
			return l.denied(a.Of, a.Left, a.RetryAfter, a.ResetAfter), nil
		}
		return l.follow(ctx, key, n, a)
	}
	return l.acquire(ctx, key, n)
}

// atOnce is the answer to a call that is known in this process, if there is one.
func (l *Leased) atOnce(ctx context.Context, key string, n int) (Result, bool) {
	if !l.takes(ctx, key, n) {
		return Result{}, false
	}
	switch a := l.table.TakeAtOnce(key, n, l.now()); a.Verdict {
	case lease.Allowed:
		if a.Flight != nil {
			l.fly(a.Flight)
		}
		return l.allowed(a.Of, a.Left, a.ResetAfter), true
	case lease.Denied:
		return l.denied(a.Of, a.Left, a.RetryAfter, a.ResetAfter), true
	}
	return Result{}, false
}

// takes reports whether slices may answer. Otherwise the limiter does, and its errors are the caller's.
func (l *Leased) takes(ctx context.Context, key string, n int) bool {
	return l.table != nil && 0 < n && n <= l.core.most && 0 < len(key) && len(key) <= maxLeasedKey && ctx.Err() == nil
}

// windowOf is the window of all answers of slices that are about a rule.
func (l *Leased) windowOf(rule *Result) time.Duration {
	if rule.Window == 0 { // of a calendar
		return time.Duration(l.window.Load())
	}
	return rule.Window
}

func (l *Leased) allowed(of, left int, reset time.Duration) Result {
	rule := &l.known[of]
	return Result{Allowed: true, Limit: rule.Limit, Window: l.windowOf(rule), Remaining: left, ResetAfter: reset, Leased: true}
}

func (l *Leased) denied(of, left int, retry, reset time.Duration) Result {
	rule := &l.known[of]
	return Result{Limit: rule.Limit, Window: l.windowOf(rule), Remaining: left, RetryAfter: retry, ResetAfter: reset, Leased: true}
}

// acquire takes n permits.
//
//go:noinline
func (l *Leased) acquire(ctx context.Context, key string, n int) (Result, error) {
	switch {
	case l.table == nil:
		return Result{}, errUnmade
	case !l.takes(ctx, key, n):
		return l.limiter.TryAcquireN(ctx, key, n)
	}
	return l.follow(ctx, key, n, l.table.Take(key, n, l.now()))
}

// mostWaits is how many flights of others a call waits for before it asks on its own.
const mostWaits = 2

// follow does what the table says of a call.
//
//go:noinline
func (l *Leased) follow(ctx context.Context, key string, n int, a lease.Answer) (Result, error) {
	began := l.watch.begin()
	o := Observation{Call: callAcquire, Source: SourceLease, Key: key, N: n}
	for waits := 0; ; waits++ {
		switch f := a.Flight; a.Verdict {
		case lease.Allowed:
			if f != nil {
				l.fly(f)
			}
			o.Result = l.allowed(a.Of, a.Left, a.ResetAfter)
		case lease.Denied:
			o.Result = l.denied(a.Of, a.Left, a.RetryAfter, a.ResetAfter)
		case lease.Ask:
			l.fly(f)
			if f.Long == 0 {
				return l.direct(ctx, key, n, f)
			}
			o.Source = SourceRedis
			if o.Err = l.land(ctx, f); o.Err != nil {
				f.Leave()
			} else if got := f.Outcome(); got.Got {
				o.Result = l.allowed(got.Of, got.Left, got.ResetAfter)
			} else {
				o.Result = l.denied(got.Of, got.Left, got.RetryAfter, got.ResetAfter)
			}
		case lease.Wait:
			if o.Err = l.land(ctx, f); o.Err == nil && waits < mostWaits {
				a = l.table.Take(key, n, l.now())
				continue
			}
			if ctx.Err() == nil { // the flight was lost, or others have got what the last one brought
				return l.limiter.TryAcquireN(ctx, key, n)
			}
		default:
			return l.limiter.TryAcquireN(ctx, key, n)
		}
		if o.Err != nil {
			o.Err = l.core.failed(ctx, key, o.Err)
		}
		if l.watch != nil {
			l.watch.end(ctx, began, o)
		}
		return o.Result, o.Err
	}
}

// Reset ends the slices of key in this process, and deletes the key's state. Other processes may spend what is left of
// their slices beside the new quota, until these end.
func (l *Leased) Reset(ctx context.Context, key string) error {
	if l.table == nil {
		return errUnmade
	}
	l.table.Forget(key)
	defer l.table.Forget(key) // what was asked for before Redis had deleted the state
	return l.limiter.Reset(ctx, key)
}

// Close ends all slices and gives back what is left of them, except permits that the bucket may have refilled already.
// Calls during and after it ask Redis directly. Close returns when all is given back or ctx has ended; the error is that of
// the first slice that may not have been given back.
func (l *Leased) Close(ctx context.Context) error {
	if l.table == nil {
		return errUnmade
	}
	for _, f := range l.table.Close() {
		_ = l.land(ctx, f)
	}
	type rest struct {
		key string
		lease.Unused
	}
	var all []rest
	l.table.Drain(func(key string, u lease.Unused) { all = append(all, rest{key, u}) })
	errs := make([]error, len(all))
	slots := make(chan struct{}, returning) // they are sent together
	var wg sync.WaitGroup
	for i, r := range all {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			errs[i] = l.giveBack(ctx, r.key, r.Unused)
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return fmt.Errorf("ratelimit: close: slices were not given back, such as that of %w", err)
		}
	}
	return nil
}

func (l *Leased) rank() int { return rankLeased }

// around takes permits from slices for a call with one claim that takes n. All else asks the limiters.
func (*Leased) around(ctx context.Context, c *call, own claimSet) outcome {
	if c.spends() {
		claim := &c.claims[0]
		l := claim.outer.(*Leased)
		r, err := l.acquire(ctx, claim.key, claim.n)
		return outcome{result: r, err: err, bucket: err == nil && l.core.isBucket()}
	}
	for i := range c.claims {
		if own.has(i) {
			claim := &c.claims[i]
			l := claim.outer.(*Leased)
			if l.table == nil {
				return failedWith(errUnmade)
			}
			claim.by(l.limiter)
			l.note(claim.hearers)
			claim.hearers = claim.hearers.beside(&l.hears)
		}
	}
	return c.decide(ctx)
}

// spends reports whether a Leased answers the call from slices.
func (c *call) spends() bool { return c.one() && c.once == nil && c.opOf(0) == acquire }

// givesBack ends the denials of key that the table has: it hears what comes back through the Leased.
func (l *Leased) givesBack(_ context.Context, key string, n, actual int) (done func(error)) {
	return func(error) { // after an error they may have come back all the same
		if actual < n {
			l.table.Returned(key)
		}
	}
}

// note notes the memory of the caches around the Leased. They hear what slices give back, whichever call brings it. A cache
// that nobody uses any more is not kept.
func (l *Leased) note(around *hearers) {
	for ; around != nil; around = around.others {
		cache, ok := around.hearer.(interface{ memory() *denials.Table })
		for ok {
			old, w := l.caches.Load(), weak.Make(cache.memory())
			all := []weak.Pointer[denials.Table]{w}
			if old != nil && slices.Contains(*old, w) {
				break
			} else if old != nil {
				gone := func(w weak.Pointer[denials.Table]) bool { return w.Value() == nil }
				all = append(slices.DeleteFunc(slices.Clone(*old), gone), w)
			}
			if l.caches.CompareAndSwap(old, &all) {
				break
			}
		}
	}
}

// returns is called before permits of a slice are given back, and done after it.
func (l *Leased) returns(key string) (done func()) {
	var all []func()
	if caches := l.caches.Load(); caches != nil {
		for _, w := range *caches {
			if cache := w.Value(); cache != nil {
				all = append(all, cache.ReturnPermits(key))
			}
		}
	}
	return func() {
		for _, done := range all {
			done()
		}
		l.table.Returned(key)
	}
}

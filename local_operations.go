package ratelimit

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tryacquire/ratelimit/internal/exact"
	"github.com/tryacquire/ratelimit/internal/gcra"
)

// limitersMade numbers the limiters that have locks: those of several are taken in this order.
var limitersMade atomic.Int64

// begin checks a call, and locks the state of key. The caller unlocks its shard.
func (l *LocalTokenBucket) begin(ctx context.Context, key string, n int) (s localState, err error) {
	if l == nil || l.bucket == nil {
		return s, errUnmade
	}
	if err := checkLocal(ctx, key, n); err != nil {
		return s, err
	}
	shard := l.shard(key)
	shard.mu.Lock()
	l.load(shard, key, &s)
	return s, nil
}

// observed reports a call, if the limiter is observed.
func (l *LocalTokenBucket) observed(ctx context.Context, began time.Time, o Observation) {
	if l != nil && l.watch != nil {
		l.report(ctx, began, o)
	}
}

func (l *LocalTokenBucket) began() time.Time {
	if l == nil {
		return time.Time{}
	}
	return l.watch.begin()
}

// TryAcquireUpTo takes up to n permits from key, see [TokenBucket.TryAcquireUpTo].
func (l *LocalTokenBucket) TryAcquireUpTo(ctx context.Context, key string, n int) (taken int, r Result, err error) {
	began := l.began()
	taken, r, err = l.takeUpTo(ctx, key, n)
	l.observed(ctx, began, Observation{Call: callUpTo, Key: key, N: n, Taken: taken, Result: r, Err: err})
	return taken, r, err
}

func (l *LocalTokenBucket) takeUpTo(ctx context.Context, key string, n int) (taken int, r Result, err error) {
	s, err := l.begin(ctx, key, n)
	if err != nil {
		return 0, Result{}, err
	}
	defer s.shard.mu.Unlock()
	taken = min(n, int(max(l.bucket.Size-s.missing.Ceil(), 0)))
	r = l.look(&s, max(taken, 1), true)
	if 0 < taken && taken < n {
		var after localState
		l.load(s.shard, key, &after)
		r.RetryAfter = l.look(&after, 1, false).RetryAfter
	}
	return taken, r, nil
}

// Estimate takes n permits from key, see [Settler]. What its Ticket gives back fills the bucket at
// most, as with a [TokenBucket] on Redis.
func (l *LocalTokenBucket) Estimate(ctx context.Context, key string, n int) (*Ticket, Result, error) {
	began := l.began()
	var t *Ticket
	r, err := l.unobserved().TryAcquireN(ctx, key, n)
	if r.Allowed {
		t = &Ticket{key: key, n: n, from: l}
	}
	l.observed(ctx, began, Observation{Call: callEstimate, Key: key, N: n, Result: r, Err: err})
	return t, r, err
}

// unobserved is l without its observers.
func (l *LocalTokenBucket) unobserved() *LocalTokenBucket {
	if l == nil || l.plain == nil {
		return l
	}
	return l.plain
}

// Charge takes n permits from key, even if fewer are left, see [Settler].
func (l *LocalTokenBucket) Charge(ctx context.Context, key string, n int) (Result, error) {
	began := l.began()
	r, err := l.charge(ctx, key, n)
	l.observed(ctx, began, Observation{Call: callCharge, Key: key, N: n, Result: r, Err: err})
	return r, err
}

func (l *LocalTokenBucket) charge(ctx context.Context, key string, n int) (Result, error) {
	s, err := l.begin(ctx, key, n)
	if err != nil {
		return Result{}, err
	}
	defer s.shard.mu.Unlock()
	owed := s.missing.Plus(int64(n))
	if n > exact.Permits || owed.Permits > mostLocalDebt || l.bucket.Restores(owed) > exact.Micros {
		return Result{}, fmt.Errorf("%w: %d permits of %s", ErrTooMuchDebt, n, shortKey(key))
	}
	l.write(&s, owed)
	r := Result(l.bucket.Result(s.missing, int64(n), int64(n), true, s.present-s.now))
	r.Remaining = max(r.Remaining, 0)
	return r, nil
}

// mostLocalDebt is the most permits that a key may lack.
const mostLocalDebt = 4 * exact.Permits

func (l *LocalTokenBucket) observers() *watch { return l.watch }

func (l *LocalTokenBucket) settle(ctx context.Context, t *Ticket, o *Observation) sending {
	if o.N > t.n {
		o.Result, o.Err = l.charge(ctx, t.key, o.N-t.n)
	} else {
		l.takeBack(t.key, t.n-o.N)
	}
	return inProcess
}

// takeBack takes back n permits of an estimate. A key that has been dropped is full.
func (l *LocalTokenBucket) takeBack(key string, n int) {
	s, err := l.begin(context.Background(), key, 1)
	if err != nil {
		return
	}
	defer s.shard.mu.Unlock()
	if s.b == nil || s.b.due > s.present {
		return // those who wait have their instants, which the next caller would get too
	}
	lowered := func(l gcra.Level) gcra.Level {
		if l.Permits < int64(n) {
			return gcra.Level{}
		}
		return l.Plus(-int64(n))
	}
	// The key keeps its rule and its instant: from now on, by a slower rule, it would have less than it has by a faster one.
	if s.missing != (gcra.Level{}) {
		l.store(s.shard, s.b, key, s.b.rule, s.b.at, lowered(s.b.missing), lowered(s.b.own))
	}
}

// owe takes n permits that others have promised for later, or what is left of them.
func (l *LocalTokenBucket) owe(key string, n int) {
	s, err := l.begin(context.Background(), key, 1)
	if err != nil {
		return
	}
	defer s.shard.mu.Unlock()
	if missing := (gcra.Level{Permits: l.bucket.Size}); s.missing.Permits+int64(n) > missing.Permits {
		if s.missing.Permits < missing.Permits {
			l.write(&s, missing)
		}
		return
	}
	l.write(&s, s.missing.Plus(int64(n)))
}

// Reserve takes n permits of key that may be used at once, or later, but within maxWait, as
// [TokenBucket.Reserve] does.
func (l *LocalTokenBucket) Reserve(ctx context.Context, key string, n int, maxWait time.Duration) (*Reservation, error) {
	return l.promise(ctx, realTime, key, n, maxWait, nil)
}

func (l *LocalTokenBucket) promise(ctx context.Context, timing timing, key string, n int, longest time.Duration, around *hearers) (*Reservation, error) {
	began := l.began()
	r, err := l.reserve(ctx, timing, key, n, longest)
	o := Observation{Call: callReserve, Key: key, N: n, Err: err}
	if err == nil {
		r.hearers = around
		o.Result, o.Waited = r.result, r.delay
	}
	l.observed(ctx, began, o)
	return r, err
}

func (l *LocalTokenBucket) reserve(ctx context.Context, timing timing, key string, n int, longest time.Duration) (*Reservation, error) {
	if longest < 0 {
		return nil, errShortWait(longest)
	}
	s, err := l.begin(ctx, key, n)
	if err != nil {
		return nil, err
	}
	defer s.shard.mu.Unlock()
	if most := l.bucket.Size; int64(n) > most {
		return nil, errExceedsLocal(n, most)
	}
	owed := s.missing.Plus(int64(n))
	var delay time.Duration
	if owed.Ceil() > l.bucket.Size {
		delay = exact.Duration(l.bucket.Restores(owed.Plus(-l.bucket.Size)) + s.present - s.now)
	}
	if delay > longest || owed.Permits > mostLocalDebt {
		return nil, &WaitError{Key: key, Wait: delay}
	}
	receipt := &localReceipt{limiter: l, before: s.b.state()}
	l.write(&s, owed)
	b := s.shard.keys[key]
	if b.due <= s.now { // those that waited behind others are too late
		b.cancelled = nil
	}
	if delay > 0 {
		b.due = max(b.due, s.now+delay.Microseconds())
	}
	receipt.wrote = b.state()
	result := Result(l.bucket.Result(s.missing, int64(n), int64(n), true, s.present-s.now))
	result.Remaining = max(result.Remaining, 0)
	return &Reservation{
		timing: timing, key: key, n: n, delay: delay, due: timing.now().Add(delay), result: result,
		from: receipt,
	}, nil
}

// A localWritten is what a reservation, or a call before it, has written.
type localWritten struct {
	rule    *gcra.Bucket
	at      int64
	missing gcra.Level
	own     gcra.Level
	due     int64
	there   bool // the key
}

func (b *localBucket) state() localWritten {
	if b == nil {
		return localWritten{}
	}
	return localWritten{b.rule, b.at, b.missing, b.own, b.due, true}
}

// A localReceipt cancels a reservation, as on Redis: if the key still holds what the reservation
// wrote, it gets what it held before.
type localReceipt struct {
	local
	limiter       *LocalTokenBucket
	wrote, before localWritten
}

// mostCancelled bounds the cancels of a key that wait.
const mostCancelled = 1000

func (r *localReceipt) observers() *watch { return r.limiter.watch }

// undo gives the permits back if no others have been taken since. If others have reserved, it
// waits until they are cancelled too.
func (r *localReceipt) undo(ctx context.Context, key string) (sending, error) {
	r.cancel(key)
	return inProcess, nil
}

func (r *localReceipt) cancel(key string) {
	s, err := r.limiter.begin(context.Background(), key, 1)
	if err != nil {
		return
	}
	defer s.shard.mu.Unlock()
	if s.b == nil {
		return
	}
	if s.b.state() != r.wrote {
		if len(s.b.cancelled) < mostCancelled {
			s.b.cancelled = append(s.b.cancelled, *r)
		}
		return
	}
	for again := r; again != nil; again = s.b.behind() {
		if !again.before.there {
			s.shard.drop(s.b)
			return
		}
		r.limiter.store(s.shard, s.b, key, again.before.rule, again.before.at, again.before.missing, again.before.own)
		s.b.due = again.before.due
	}
}

// behind takes the cancel that has waited for the state that b has now.
func (b *localBucket) behind() *localReceipt {
	for i, r := range b.cancelled {
		if r.wrote == b.state() {
			b.cancelled = slices.Delete(b.cancelled, i, i+1)
			return &r
		}
	}
	return nil
}

func (l *LocalTokenBucket) precheck(ctx context.Context, key string, n int) error {
	if l == nil || l.bucket == nil {
		return errUnmade
	}
	if err := checkLocal(ctx, key, n); err != nil {
		return err
	}
	if int64(n) > l.bucket.Size {
		return errExceedsLocal(n, l.bucket.Size)
	}
	return nil
}

func (l *LocalTokenBucket) lock(key string) memoryLock {
	if l == nil || l.bucket == nil {
		return memoryLock{}
	}
	place := l.place(key)
	return memoryLock{&l.shards[place].mu, l.made, place}
}

func (l *LocalTokenBucket) decideLocked(key string, n int, take bool) Result {
	var s localState
	l.load(l.shard(key), key, &s)
	return l.look(&s, n, take)
}

func (l *LocalTokenBucket) denied(key string) {
	var s localState
	if l.load(l.shard(key), key, &s); l.empty && s.b == nil {
		l.beginEmpty(&s)
	}
}

func (l *LocalTokenBucket) give(claim Claim, p *PartResult) {
	if claim.settle {
		p.Ticket = &Ticket{key: claim.key, n: claim.n, from: l, hearers: claim.hearers}
	}
}

func (l *LocalTokenBucket) tell(ctx context.Context, began time.Time, o Observation) {
	l.observed(ctx, began, o)
}

func errExceedsLocal(n int, size int64) error {
	return fmt.Errorf("%w: %d permits of a local token bucket, which allows %d at most", ErrExceedsLimit, n, size)
}

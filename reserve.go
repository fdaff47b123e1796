package ratelimit

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/tryacquire/ratelimit/internal/decision"
	"github.com/tryacquire/ratelimit/internal/exact"
	"github.com/tryacquire/ratelimit/internal/redisexec"
)

// bucketCore is limiterCore for the buckets, which alone can reserve.
type bucketCore struct {
	limiterCore
	own   reserver
	large *reserver // for longer waits than those of own; nil: there is none
}

func (b *bucketCore) build(client Client, s settings, a algorithm) error {
	if err := b.limiterCore.build(client, s, a); err != nil {
		return err
	}
	b.decider = b
	b.own = newReserver(&b.core, b.exec, a)
	if a.large != nil {
		exec := *b.exec
		exec.Alone, exec.Words, exec.Args = a.large.scripts.Get(s.clock != nil).Alone, a.large.words(), redisexec.Texts(a.large.args)
		large := newReserver(&b.core, &exec, *a.large)
		large.alone = true
		b.large = &large
		b.exec.Others = append(b.exec.Others, exec.Alone)
	}
	return nil
}

// Reserve takes n permits of key that may be used at once, or later, but within maxWait. Later calls come after
// it: TryAcquire is denied, and a later reservation is due later. So reservations are due in the order in which
// Redis decides, in any number of processes. [Wait] reserves and sleeps.
//
// n may be more than the burst: then the permits are due when as many would have come. If they would be due later than
// maxWait, Reserve takes nothing and returns a *[WaitError], which says how long the wait would have been. Its other
// errors are those of Charge, and ErrInvalidConfig for a maxWait below 0. If ctx ends while the call is in flight, the
// reservation is cancelled when Redis answers. After another error the permits may have been taken, once.
//
// Permits that are used when they are due never exceed max(burst, n) + rate × t in any interval t; used late by at most
// d, as much with t + d for t. It costs Redis half as much again as TryAcquire. docs/waiting.md has the rest.
func (b *bucketCore) Reserve(ctx context.Context, key string, n int, maxWait time.Duration) (*Reservation, error) {
	return b.promise(ctx, key, reserving{n: n, longest: maxWait, timing: realTime})
}

// A Reservation holds permits that may be used after Delay. Call Wait, or sleep for Delay; call Cancel if the
// permits will not be used. A deferred Cancel is safe: once the permits may be used, it does nothing. A
// Reservation is safe for concurrent use. A nil Reservation, which Reserve returns with an error, has no permits.
type Reservation struct {
	from    cancels
	timing  timing
	key     string
	result  Result
	n       int
	before  int           // permits that were left
	delay   time.Duration // until due, when it was made
	due     time.Time     // on this process's monotonic clock
	ended   atomic.Int32  // reservationUsed or reservationCancelled
	hearers *hearers
}

// cancels is an origin of reservations.
type cancels interface {
	origin

	// undo gives back what the reservation of key has taken.
	undo(ctx context.Context, key string) (sending, error)
}

func (r *Reservation) made() bool { return r != nil && r.from != nil }

// failed wraps err, the reason why the permits cannot be used.
func (r *Reservation) failed(ctx context.Context, err error) error {
	return r.from.about(r.key, ended(ctx, err))
}

const (
	reservationUsed      = 1 // Wait has returned nil
	reservationCancelled = 2 // the permits may have been given back
)

// Delay is the time until the permits may be used, 0 when they may be used now. It counts from the arrival of the
// reply, so it never ends early.
func (r *Reservation) Delay() time.Duration {
	if !r.made() {
		return 0
	}
	return max(r.due.Sub(r.timing.now()), 0)
}

// Result is the decision, as TryAcquireN would return it: Allowed is true, Remaining is 0 if the permits were not
// there yet, and ResetAfter includes the debt.
func (r *Reservation) Result() Result {
	if r == nil {
		return Result{}
	}
	return r.result
}

// Wait sleeps until the permits may be used, and returns nil. If ctx ends before that, or its deadline comes
// first, Wait cancels the reservation, and returns an error that wraps the context's, or at once a *[WaitError].
// Do not use the permits after an error. If Redis is slow, the cancel takes up to 100 ms beyond the context's end.
func (r *Reservation) Wait(ctx context.Context) error {
	if !r.made() {
		return invalidConfig("there is no reservation; Reserve returns one if it returns no error")
	}
	switch r.ended.Load() {
	case reservationUsed:
		return nil
	case reservationCancelled:
		return r.failed(ctx, errCancelled)
	}
	delay := r.Delay()
	var err error
	if deadline, ok := ctx.Deadline(); ok && ctx.Err() == nil && !r.due.Before(deadline) {
		err = &WaitError{Key: r.key, Wait: delay}
	} else if err = ctx.Err(); err == nil && delay > 0 {
		err = r.timing.sleep(ctx, delay)
	}
	if err == nil {
		if !r.ended.CompareAndSwap(0, reservationUsed) && r.ended.Load() != reservationUsed {
			return r.failed(ctx, errCancelled) // by another goroutine
		}
		return nil
	}
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelTime)
	defer cancel()
	_ = r.giveBack(within)
	if errors.Is(err, ErrWaitTooLong) {
		return err
	}
	return r.failed(ctx, err)
}

// cancelTime is how long the cancel of a wait may take. What is not given back is lost to
// the callers: time restores it.
const cancelTime = 100 * time.Millisecond

// Cancel gives the permits back before they are due; do not use them afterwards. If others have reserved behind
// it, the permits come back when all of these have cancelled too, and otherwise with time (docs/waiting.md). Once
// Delay is 0, Cancel asks nobody and returns nil: the permits may have been used. Such permits can be taken with
// an Estimate, whose Ticket gives them back.
//
// It asks Redis at most once. If it returns an error, the permits may have been given back or not. If ctx has
// ended before the permits are due, it does not ask Redis: use context.WithoutCancel to cancel because ctx ended.
func (r *Reservation) Cancel(ctx context.Context) error {
	if r.Delay() == 0 {
		return nil
	}
	o := Observation{Call: callCancel, Key: r.key, N: r.n}
	if !r.end(ctx, &o.Err) {
		return nil
	}
	r.from.observers().observed(ctx, &o, func() (sent sending) {
		sent, o.Err = r.cancel(ctx)
		return sent
	})
	return o.Err
}

// end ends a reservation, unless it has ended before. err is the error of a context that ended before that.
func (r *Reservation) end(ctx context.Context, err *error) bool {
	if r.ended.Load() != 0 {
		return false
	}
	if e := ctx.Err(); e != nil {
		*err = r.failed(ctx, e)
		return true
	}
	// A second cancel could meet the same state, written by a call that came in between.
	return r.ended.CompareAndSwap(0, reservationCancelled)
}

// giveBack is Cancel of permits that nobody has used, due or not. It is not reported.
func (r *Reservation) giveBack(ctx context.Context) (err error) {
	if r.end(ctx, &err) && err == nil {
		_, err = r.cancel(ctx)
	}
	return err
}

// cancel gives back the permits of a reservation that has been ended.
func (r *Reservation) cancel(ctx context.Context) (sent sending, err error) {
	done := r.hearers.givesBack(ctx, r.key, r.n, 0)
	defer func() { done(err) }()
	return r.from.undo(ctx, r.key)
}

// reserve takes n permits for later. A denial says nothing about it.
var reserve = &operation{
	call: callReserve,
	unable: func(l any, call *call, claim *Claim) error {
		if !call.orAtOnce && !promises(l, claim) {
			return errNoReserve
		}
		return nil
	},
	check: func(ctx context.Context, c *core, call *call, claim *Claim) error {
		b, ok := c.decider.(*bucketCore)
		if !ok {
			return c.check(ctx, claim.key, claim.n)
		}
		return b.checkReserve(ctx, claim.key, call.reserving(claim))
	},
	decide: func(ctx context.Context, l any, call *call, claim *Claim) (o outcome) {
		if !promises(l, claim) {
			return call.reservedAtOnce(acquire.decide(ctx, l, call, claim))
		}
		o.reservation, o.err = l.(promiser).promise(ctx, claim.key, call.reserving(claim))
		if o.err == nil {
			o.result = o.reservation.result
		}
		return o
	},
}

// promises reports whether l, which decides the claim, can reserve.
func promises(l any, claim *Claim) bool {
	_, ok := l.(promiser)
	return ok && (claim.limiter != nil || kindOf(l).role != alien) // which may do more in its TryAcquireN
}

// reservedAtOnce is the reservation of permits that o has taken, or the denial of o.
func (c *call) reservedAtOnce(o outcome) outcome {
	claim := &c.claims[0]
	switch {
	case o.err != nil:
	case !o.result.Allowed:
		o = failedWith(&WaitError{Key: claim.key, Wait: o.result.RetryAfter})
	default:
		o.reservation = usable(c.timing, claim.key, claim.n, o.result, claim.hearers)
	}
	return o
}

// usable is a reservation of permits that may be used now, and that nobody takes back.
func usable(timing timing, key string, n int, r Result, around *hearers) *Reservation {
	return &Reservation{from: uncounted{}, timing: timing, key: key, n: n, due: timing.now(), result: r, hearers: around}
}

// A promiser may promise permits that are not there yet.
type promiser interface {
	promise(ctx context.Context, key string, of reserving) (*Reservation, error)
}

// reserving is what a reservation asks for.
type reserving struct {
	n       int
	fits    bool // so many permits can be there at once
	longest time.Duration
	timing  timing
	around  *hearers // of what is given back
}

func (c *call) reserving(claim *Claim) reserving {
	return reserving{n: claim.n, fits: c.fits, longest: c.longest, timing: c.timing, around: claim.hearers}
}

// errNoReserve says that the limiter that would decide promises no permits.
var errNoReserve = invalidConfig("the limiter cannot reserve; give a token or leaky bucket, or use Wait, which also asks again")

// A timing is the clock by which callers wait.
type timing struct {
	now   func() time.Time
	sleep func(ctx context.Context, d time.Duration) error // the context's error if that ends first
}

var realTime = timing{now: time.Now, sleep: func(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}}

// promise is Reserve for those around the limiter.
func (b *bucketCore) promise(ctx context.Context, key string, of reserving) (*Reservation, error) {
	o := Observation{Call: callReserve, Key: key, N: of.n}
	o.Err = b.checkReserve(ctx, key, of)
	var r *Reservation
	b.watch.observed(ctx, &o, func() (sent sending) {
		if r, sent, o.Err = b.reserve(ctx, key, of); o.Err == nil {
			o.Result, o.Before, o.Waited = r.result, r.before, r.delay
		}
		return sent
	})
	return r, o.Err
}

func (b *bucketCore) checkReserve(ctx context.Context, key string, of reserving) (err error) {
	if of.fits {
		err = b.check(ctx, key, of.n)
	} else {
		err = b.checkCharge(ctx, key, of.n)
	}
	if err == nil && of.longest < 0 {
		err = errShortWait(of.longest)
	}
	return err
}

func errShortWait(maxWait time.Duration) error {
	return invalidConfig("the longest wait of a reservation is %v; it must be at least 0", maxWait)
}

// reserve reserves permits for a call that checkReserve has checked.
func (b *bucketCore) reserve(ctx context.Context, key string, of reserving) (*Reservation, sending, error) {
	n, longest := of.n, min(of.longest.Microseconds(), exact.Micros)
	from := &b.own
	if n > b.most && b.large != nil {
		from = b.large // own's numbers are for what fits
	}
	reserved, sent, err := from.reserve(ctx, key, n, longest, of.around)
	// own cuts off what is missing beyond its numbers, so that a wait beyond own.longest may be
	// longer than it says.
	if large := b.large; err == nil && reserved.Receipt == nil && max(longest, reserved.Due) > from.longest && large != nil && from != large {
		from = large
		reserved, sent, err = from.reserve(ctx, key, n, longest, of.around)
	}
	if err != nil {
		return nil, sent, b.failed(ctx, key, err)
	}
	delay := exact.Duration(reserved.Due)
	if reserved.Receipt == nil {
		return nil, sent, &WaitError{Key: key, Wait: delay}
	}
	r := &redisReservation{by: from, receipt: reserved.Receipt, Reservation: Reservation{
		timing: of.timing, key: key, n: n, delay: delay, due: of.timing.now().Add(delay), hearers: of.around,
		result: Result(from.explainer.Explain(reserved.Words, int64(n), int64(n), true)),
		before: from.explainer.Explain(reserved.Words, int64(n), 0, true).Remaining,
	}}
	r.from = r
	return &r.Reservation, sent, nil
}

// A redisReservation is a Reservation, and how to cancel it.
type redisReservation struct {
	Reservation
	by      *reserver
	receipt redisexec.Receipt
}

func (r *redisReservation) observers() *watch { return r.by.watch }

func (r *redisReservation) about(key string, err error) error { return r.by.about(key, err) }

func (r *redisReservation) undo(ctx context.Context, key string) (sending, error) {
	reply, err := r.by.core.operate(ctx, key, r.by.cancel(r.receipt))
	if err != nil {
		return reply.Batch, r.by.failed(ctx, key, err)
	}
	reply.Done()
	return reply.Batch, nil
}

// A reserver reserves with one of a bucket's scripts, up to a longest wait for which its
// numbers are exact.
type reserver struct {
	*core   // the limiter
	exec    *redisexec.Executor
	alone   bool   // exec is not the limiter's, and its calls are not merged
	rule    string // as it stands in the states that exec writes
	longest int64  // microseconds

	explainer decision.Explainer
}

// reserve reserves n permits. A caller who leaves gives them back when the reply comes.
func (r *reserver) reserve(ctx context.Context, key string, n int, longest int64, around *hearers) (redisexec.Reserved, sending, error) {
	late := func(reply redisexec.Reply, err error) {
		if err != nil {
			return
		}
		if receipt := r.exec.ReservedOf(reply.Words).Receipt; receipt != nil {
			within, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelTime)
			defer cancel()
			done := around.givesBack(within, key, n, 0)
			defer func() { done(err) }()
			_, err = r.core.operate(within, key, r.cancel(receipt))
		}
	}
	o := redisexec.Operation{
		Op: redisexec.Reserve, N: n, Times: 1, Detail: &redisexec.Detail{Longest: min(longest, r.longest), Late: late},
	}
	var reply redisexec.Reply
	var err error
	if r.alone {
		reply, err = r.exec.Ask(ctx, r.head.Of(key), o)
	} else {
		reply, err = r.core.operate(ctx, key, o)
	}
	if err != nil {
		return redisexec.Reserved{}, reply.Batch, err
	}
	words := reply.Keep()
	if err := ctx.Err(); err != nil {
		go late(redisexec.Reply{Words: words}, nil)
		return redisexec.Reserved{}, reply.Batch, err
	}
	return r.exec.ReservedOf(words), reply.Batch, nil
}

// cancel is the operation that cancels a reservation of r.
func (r *reserver) cancel(receipt redisexec.Receipt) redisexec.Operation {
	wrote, before := receipt.Texts(r.rule)
	return redisexec.Operation{
		Op: redisexec.Cancel, N: 1, Times: 1, Detail: &redisexec.Detail{Wrote: wrote, Before: before},
	}
}

func newReserver(c *core, exec *redisexec.Executor, a algorithm) reserver {
	return reserver{core: c, exec: exec, rule: a.args[len(a.args)-1], longest: a.longest, explainer: a.explainer}
}

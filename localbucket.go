package ratelimit

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/tryacquire/ratelimit/internal/decision"
	"github.com/tryacquire/ratelimit/internal/exact"
	"github.com/tryacquire/ratelimit/internal/memory"
	"github.com/tryacquire/ratelimit/internal/recent"
)

// A LocalTokenBucket is a token bucket for each key in the memory of this process, made to be the secondary of a
// [Fallback]: it asks no server, so it cannot fail. It decides exactly as a [TokenBucket] of the same rate and
// burst, but shares nothing with other processes. docs/outages.md says how to divide a limit by the instances of a
// service.
//
// It keeps at most 65,536 keys, or as many as [WithMaxKeys] says, at about 150 bytes each plus the key. When there
// is no room for a new key, the key whose bucket is the nearest to full is dropped, and its next bucket starts
// full. So a flood of new keys does not free the keys that are denied.
//
// Its clock is monotonic, and does not follow changes of the wall clock. A call takes less than a microsecond and
// allocates only for a new key. It is safe for concurrent use, starts no goroutine and needs no closing.
type LocalTokenBucket struct {
	local
	buckets *memory.Buckets
	name    string
	watch   *watch // nil: nobody observes
	follow  bool   // the answers of a Fallback's primary, see WithLastAnswers
	limits  *recent.Cache[bucketLimit, *LocalTokenBucket]
}

func (l *LocalTokenBucket) kind() kind {
	k := kind{self: l, role: inMemory, bucket: true}
	if l.buckets != nil {
		k.most = int(l.buckets.Rule.Size)
	}
	return k
}

// WithEmptyStart begins with an empty bucket for each new key, instead of a full one. As the secondary of a
// [Fallback], it allows at most rate × T of a key that is new to it in an outage of length T, where a bucket that
// begins full allows a burst more. The price is false denials: the first calls of each key are denied. While keys
// were dropped that were not full, new keys begin full, so that a flood of keys denies nobody. docs/outages.md
// compares the ways to begin.
func WithEmptyStart() Option {
	return limiterOption("WithEmptyStart", func(s *settings) { s.empty = true })
}

// WithLastAnswers is for the secondary of a [Fallback]: it begins an outage with the share of its burst that the
// primary's last answer had left, and with what has come back since. A key without such an answer begins empty,
// see [WithEmptyStart]. The bucket may be inside a [Choice], or the secondary of the secondary. With n instances
// it allows at most burst × (n − 1)/n more than with WithEmptyStart. Each answer of the primary costs about 150
// ns, and the memory of a key.
func WithLastAnswers() Option {
	return limiterOption("WithLastAnswers", func(s *settings) { s.empty, s.follow = true, true })
}

// NewLocalTokenBucket returns a limiter that holds up to burst permits for each
// key and adds rate.Count of them every rate.Period, evenly.
//
// The error wraps ErrInvalidConfig and names the value: the bounds are those of
// [NewTokenBucket], and an option that does not apply or is given twice is refused.
func NewLocalTokenBucket(rate Rate, burst int, opts ...Option) (*LocalTokenBucket, error) {
	s, err := collect(newLocalTokenBucket, opts)
	if err != nil {
		return nil, err
	}
	return newLocal(&s).limits.Get(bucketLimit{rate, burst})
}

// newLocal is a limiter with these options, whose rule is missing.
func newLocal(s *settings) *LocalTokenBucket {
	var now func() int64
	if clock := s.clock; clock != nil {
		now = func() int64 { return clock.now().UnixMicro() }
	}
	table := memory.NewTable(cmp.Or(s.maxKeys, defaultMaxKeys), s.empty, now)
	l := &LocalTokenBucket{buckets: &memory.Buckets{Table: table}, name: s.name, watch: s.watch(s.name), follow: s.follow}
	l.limits = recent.New(maxLimits, l.of)
	return l
}

// With returns the bucket of another rate and burst, with l's name, options and keys, for limits that come with each
// call: after its limit has changed, a key goes on from what it has used, as with [TokenBucket.With]. The error for a
// limit that cannot work is that of [NewLocalTokenBucket].
func (l *LocalTokenBucket) With(rate Rate, burst int) (*LocalTokenBucket, error) {
	if l.limits == nil {
		return nil, errUnmade
	}
	return l.limits.Get(bucketLimit{rate, burst})
}

// of is a limiter of another rule with the same keys and options.
func (l *LocalTokenBucket) of(limit bucketLimit) (*LocalTokenBucket, error) {
	rule, err := newBucket(limit.rate, limit.burst, "burst", new(settings))
	if err != nil {
		return nil, err
	}
	made := *l
	made.buckets = &memory.Buckets{Table: l.buckets.Table, Rule: rule}
	return &made, nil
}

// Name returns the limiter's name, see [WithName].
func (l *LocalTokenBucket) Name() string { return l.name }

// check returns an error for a caller's mistake, and for a context that has ended.
func (l *LocalTokenBucket) check(ctx context.Context, key string, n int) error {
	if l.buckets == nil {
		return errUnmade
	}
	if int64(n) > l.buckets.Rule.Size {
		return l.exceeds(key, n)
	}
	return checkLocal(ctx, key, n)
}

func (l *LocalTokenBucket) exceeds(key string, n int) error {
	if err := checkKey(key); err != nil {
		return err
	}
	return fmt.Errorf("%w: %d permits of a local token bucket, which allows %d at most", ErrExceedsLimit, n, l.buckets.Rule.Size)
}

// checkAny is check for a call that may ask for more permits than fit.
func (l *LocalTokenBucket) checkAny(ctx context.Context, key string, n int) error {
	if l.buckets == nil {
		return errUnmade
	}
	return checkLocal(ctx, key, n)
}

// observed does a call that was checked, and reports it.
func (l *LocalTokenBucket) observed(ctx context.Context, o *Observation, do func()) {
	l.watch.observed(ctx, o, func() sending {
		do()
		return inProcess
	})
}

// TryAcquire is TryAcquireN(ctx, key, 1).
func (l *LocalTokenBucket) TryAcquire(ctx context.Context, key string) (Result, error) {
	return l.ask(ctx, key, 1, true)
}

// TryAcquireN takes n permits from key, all or none. Its errors are those of [Limiter] for a caller's mistake, and the
// context's if the context has ended.
func (l *LocalTokenBucket) TryAcquireN(ctx context.Context, key string, n int) (Result, error) {
	return l.ask(ctx, key, n, true)
}

// Peek returns what key has left now, and stores nothing, see [Limiter].
func (l *LocalTokenBucket) Peek(ctx context.Context, key string) (Result, error) {
	return l.ask(ctx, key, 1, false)
}

func (l *LocalTokenBucket) peekN(ctx context.Context, key string, n int) (Result, error) {
	return l.ask(ctx, key, n, false)
}

func (l *LocalTokenBucket) ask(ctx context.Context, key string, n int, take bool) (r Result, err error) {
	if l.watch != nil {
		return l.askObserved(ctx, key, n, take)
	}
	if err := l.check(ctx, key, n); err != nil {
		return Result{}, err
	}
	l.buckets.Ask(key, n, take, (*decision.Result)(&r))
	return r, nil
}

// askObserved is a function of its own to keep the stack of ask small.
//
//go:noinline
func (l *LocalTokenBucket) askObserved(ctx context.Context, key string, n int, take bool) (Result, error) {
	o := Observation{Call: callPeek, Key: key, N: n, Err: l.check(ctx, key, n)}
	if take {
		o.Call = callAcquire
	}
	l.observed(ctx, &o, func() { l.buckets.Ask(key, n, take, (*decision.Result)(&o.Result)) })
	return o.Result, o.Err
}

// Reset makes the bucket of key full, also with [WithEmptyStart].
func (l *LocalTokenBucket) Reset(ctx context.Context, key string) error {
	o := Observation{Call: callReset, Key: key, Err: l.checkAny(ctx, key, 1)}
	l.observed(ctx, &o, func() { l.buckets.Reset(key) })
	return o.Err
}

// TryAcquireUpTo takes up to n permits from key, see [TokenBucket.TryAcquireUpTo].
func (l *LocalTokenBucket) TryAcquireUpTo(ctx context.Context, key string, n int) (taken int, r Result, err error) {
	o := Observation{Call: callUpTo, Key: key, N: n, Err: l.checkAny(ctx, key, n)}
	l.observed(ctx, &o, func() {
		taken, r := l.buckets.UpTo(key, n)
		o.Taken, o.Result = taken, Result(r)
	})
	return o.Taken, o.Result, o.Err
}

// Estimate takes n permits from key, see [Settler]. What its Ticket gives back fills the bucket at
// most, as with a [TokenBucket] on Redis.
func (l *LocalTokenBucket) Estimate(ctx context.Context, key string, n int) (t *Ticket, r Result, err error) {
	o := Observation{Call: callEstimate, Key: key, N: n, Err: l.check(ctx, key, n)}
	l.observed(ctx, &o, func() {
		if l.buckets.Ask(key, n, true, (*decision.Result)(&o.Result)); o.Result.Allowed {
			t = &Ticket{key: key, n: n, from: l}
		}
	})
	return t, o.Result, o.Err
}

// Charge takes n permits from key, even if fewer are left, see [Settler].
func (l *LocalTokenBucket) Charge(ctx context.Context, key string, n int) (Result, error) {
	o := Observation{Call: callCharge, Key: key, N: n, Err: l.checkAny(ctx, key, n)}
	l.observed(ctx, &o, func() { l.charge(key, n, &o) })
	return o.Result, o.Err
}

func (l *LocalTokenBucket) charge(key string, n int, o *Observation) {
	r, before, ok := l.buckets.Charge(key, n)
	if o.Result, o.Before = Result(r), before; !ok {
		o.Err = fmt.Errorf("%w: %d permits of %s", ErrTooMuchDebt, n, shortKey(key))
	}
}

// Credit gives n permits of key back, see [Settler].
func (l *LocalTokenBucket) Credit(ctx context.Context, key string, n int) (given int, err error) {
	o := Observation{Call: callCredit, Key: key, N: n, Err: l.checkAny(ctx, key, n)}
	l.observed(ctx, &o, func() {
		given = l.buckets.GiveBack(key, n)
		o.N = given
	})
	return given, o.Err
}

func (l *LocalTokenBucket) observers() *watch { return l.watch }

func (l *LocalTokenBucket) settle(_ context.Context, t *Ticket, o *Observation) sending {
	if o.N > t.n {
		l.charge(t.key, o.N-t.n, o)
	} else {
		l.buckets.GiveBack(t.key, t.n-o.N)
	}
	return inProcess
}

// Reserve takes n permits of key that may be used at once, or later, but within maxWait, as
// [TokenBucket.Reserve] does.
func (l *LocalTokenBucket) Reserve(ctx context.Context, key string, n int, maxWait time.Duration) (*Reservation, error) {
	return l.promise(ctx, key, reserving{n: n, longest: maxWait, timing: realTime})
}

func (l *LocalTokenBucket) promise(ctx context.Context, key string, of reserving) (r *Reservation, err error) {
	n, timing := of.n, of.timing
	o := Observation{Call: callReserve, Key: key, N: n}
	switch {
	case of.longest < 0:
		o.Err = errShortWait(of.longest)
	case of.fits:
		o.Err = l.check(ctx, key, n)
	case n > exact.Permits:
		o.Err = fmt.Errorf("%w: %d permits of %s", ErrTooMuchDebt, n, shortKey(key))
	default:
		o.Err = l.checkAny(ctx, key, n)
	}
	l.observed(ctx, &o, func() {
		reserved := l.buckets.Reserve(key, n, of.longest)
		if !reserved.Taken {
			o.Err = &WaitError{Key: key, Wait: reserved.Delay}
			return
		}
		o.Result, o.Before, o.Waited = Result(reserved.Result), reserved.Before, reserved.Delay
		r = &Reservation{
			timing: timing, key: key, n: n, delay: reserved.Delay, due: timing.now().Add(reserved.Delay), result: o.Result,
			from: &localReceipt{watch: l.watch, Receipt: reserved.Receipt}, hearers: of.around,
		}
	})
	return r, o.Err
}

// A localReceipt is the origin of a reservation.
type localReceipt struct {
	local
	watch *watch
	memory.Receipt
}

func (r *localReceipt) observers() *watch { return r.watch }

func (r *localReceipt) undo(_ context.Context, key string) (sending, error) {
	r.Cancel(key)
	return inProcess, nil
}

func (l *LocalTokenBucket) inMemory() memory.Limit {
	if l.buckets == nil {
		return nil
	}
	return l.buckets
}

func (l *LocalTokenBucket) give(claim Claim, p *PartResult) {
	if claim.settle {
		p.Ticket = &Ticket{key: claim.key, n: claim.n, from: l, hearers: claim.hearers}
	}
}

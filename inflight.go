package ratelimit

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit/internal/algorithms"
	"github.com/tryacquire/ratelimit/internal/decision"
	"github.com/tryacquire/ratelimit/internal/exact"
	"github.com/tryacquire/ratelimit/internal/recent"
	"github.com/tryacquire/ratelimit/internal/redisexec"
	"github.com/tryacquire/ratelimit/internal/scripts"
	"github.com/tryacquire/ratelimit/internal/waiting"
)

const (
	maxInFlight  = 100_000
	maxHold      = 1_000 // permits of one hold, each with a member of its own: 2 ms
	giveBackTime = time.Second
)

// The words of the reply of inflight.lua, after decision.WordAllowed.
const (
	wordHeld  = 1 // permits held, those of the call included
	wordFree  = 2 // microseconds until the denied permits are free at the latest; see Hold.answered
	wordEnded = 3 // microseconds until the last lease has ended
)

// A Holder holds permits while work runs: [InFlight] on Redis, [LocalInFlight] in this process, and the
// policies around them, see [NewHoldFallback] and [NewHoldChoice].
type Holder interface {
	// TryAcquire takes one permit of key, if one is free now. It is TryAcquireN(ctx, key, 1).
	TryAcquire(ctx context.Context, key string) (*Hold, Result, error)

	// TryAcquireN takes n permits of key, all or none, see [InFlight.TryAcquireN]. The Hold is nil
	// if the call is denied or returns an error.
	TryAcquireN(ctx context.Context, key string, n int) (*Hold, Result, error)

	// Peek returns how many permits of key are free, and takes nothing.
	Peek(ctx context.Context, key string) (Result, error)

	// Name returns the name by which errors and observers know the holds.
	Name() string
}

// hold takes n permits that are given back by a Hold.
var hold = &operation{
	call:  callHold,
	check: checkTake,
	unable: func(l any, _ *call, claim *Claim) error {
		if _, ok := l.(namer); claim.as != nil && !ok && !isConstant(l) {
			return cannot(l, "hold permits under an id")
		}
		return nil
	},
	decide: func(ctx context.Context, l any, _ *call, claim *Claim) (o outcome) {
		if by, ok := l.(namer); ok && claim.as != nil {
			o.hold, o.result, o.err = by.tryAcquireAs(ctx, claim)
		} else {
			o.hold, o.result, o.err = l.(Holder).TryAcquireN(ctx, claim.key, claim.n)
		}
		return o
	},
}

// A namer holds permits under the id of a claim.
type namer interface {
	tryAcquireAs(ctx context.Context, claim *Claim) (*Hold, Result, error)
}

// holds reports whether the permits of the claim are held.
func (c *Claim) holds() bool {
	if c.limiter != nil {
		return c.limiter.holds()
	}
	_, ok := c.outer.(Holder)
	return ok
}

// InFlight limits how many permits of a key are held at once, in any number of processes: requests under way,
// connections, jobs. A [Hold] has its permits until it is released, or until its lease ends because its process
// crashed or cannot reach Redis.
//
//	reports, err := ratelimit.NewInFlight(client, 20, 30*time.Second, ratelimit.WithName("reports"))
//	...
//	err = reports.Do(ctx, "tenant:42", func(ctx context.Context) error { … })
//
// [InFlight.Do] extends the lease for as long as the work runs, and cancels the work's context if the lease is
// lost. Otherwise use [InFlight.TryAcquire], [ClaimHold] to decide together with limiters, and [WaitAll] to wait.
//
// The holds whose lease has not ended by the count of their processes ([Hold.Left]) never have more permits than
// the limit. There are four exceptions: a failover that loses a hold, a server's clock that steps forward, a
// process that was suspended, and Reset. The next Extend of such a hold returns [ErrLeaseLost]. docs/inflight.md
// has the details, also of clocks and of a limit or lease that changes.
//
// InFlight is not a [Limiter], because a denial can become false at any moment, when a hold is released. Holds and
// releases are merged, as the calls of a Limiter are. A held permit takes 50 bytes of Redis, and 140 where a key
// has more than 128. InFlight is immutable and safe for concurrent use.
type InFlight struct {
	core
	inFlightLimit
	limits *recent.Cache[inFlightLimit, *InFlight] // of the same name, client and options
}

func (f *InFlight) kind() kind { return kindOnRedis(f, &f.core) }

// NewInFlight returns a limiter with which at most limit permits of a key, 1 to 100,000, are held at once. lease
// is how long the permits of a process that has crashed stay taken: a whole number of microseconds, from 1ms to 71
// years. It should be many times as long as a call to Redis. The error wraps ErrInvalidConfig. Redis is not asked.
func NewInFlight(c Client, limit int, lease time.Duration, opts ...Option) (*InFlight, error) {
	s, err := collect(newInFlight, opts)
	if err != nil {
		return nil, err
	}
	w := s.watch(s.name) // counts the held permits of all limits together
	var limits *recent.Cache[inFlightLimit, *InFlight]
	limits = recent.New(maxLimits, func(of inFlightLimit) (*InFlight, error) {
		f := &InFlight{inFlightLimit: of, limits: limits}
		if err := f.make(c, s); err != nil {
			return nil, err
		}
		f.watch = w
		return f, nil
	})
	return limits.Get(inFlightLimit{limit, lease})
}

// With returns the limiter of another limit and lease, with f's name, client and options, for limits that come with each
// call, as [TokenBucket.With] does for token buckets. All of them share the holds of a key: each allows a call only if
// its own limit holds over all permits. Calls of different limits are sent on their own. The error for a limit or a
// lease that cannot work is that of [NewInFlight].
func (f *InFlight) With(limit int, lease time.Duration) (*InFlight, error) {
	if f.limits == nil {
		return nil, errUnmade
	}
	return f.limits.Get(inFlightLimit{limit, lease})
}

type inFlightLimit struct {
	limit int
	lease time.Duration
}

func (f *InFlight) make(c Client, s settings) error {
	if f.limit < 1 || f.limit > maxInFlight {
		return invalidConfig("the limit is %d; it must be between 1 and %d", f.limit, maxInFlight)
	}
	if err := checkSpan("the lease", f.lease); err != nil {
		return err
	}
	rule := "/" + strconv.FormatInt(f.lease.Microseconds(), 10)
	if s.clock != nil {
		rule += "@" + s.spare()
	}
	return f.build(c, s, f, algorithm{
		id: algorithms.InFlight, scripts: scripts.Of("inflight"), most: min(f.limit, maxHold),
		args: append(exact.Texts(int64(f.limit), f.lease.Microseconds()), rule),
		cost: redisexec.Cost{Key: 10, Run: 8, Permit: 3}, explainer: held{f.limit, f.lease},
	})
}

// TryAcquire takes one permit of key, if one is free now. It is TryAcquireN(ctx, key, 1).
func (f *InFlight) TryAcquire(ctx context.Context, key string) (*Hold, Result, error) {
	return f.TryAcquireN(ctx, key, 1)
}

// TryAcquireN takes n permits of key, all or none, for one Hold. The Hold is nil if the call is denied or returns
// an error; Release of a nil Hold does nothing, so that it can be deferred at once. n is at most the limit and at
// most 1,000, otherwise the error is ErrExceedsLimit. The other errors are those of [Limiter].
//
// In the Result, Limit is the limit, Window the lease, and Remaining the permits that are free after the call.
// RetryAfter is the time until enough of the leases that block the call have ended, and ResetAfter until all have,
// if none is extended or released.
//
// After an error caused by Redis or the network, or if ctx ended during the call, the permits may have been taken.
// They are then given back in the background, and at the latest when the lease ends.
func (f *InFlight) TryAcquireN(ctx context.Context, key string, n int) (*Hold, Result, error) {
	return f.tryAcquireAs(ctx, &Claim{key: key, n: n})
}

func (f *InFlight) tryAcquireAs(ctx context.Context, claim *Claim) (*Hold, Result, error) {
	o := Observation{Call: callHold, Key: claim.key, N: claim.n}
	o.Err = f.check(ctx, claim.key, claim.n)
	var h *Hold
	f.watch.observed(ctx, &o, func() (sent sending) {
		if h, sent = f.take(ctx, &o, claim.as); h != nil {
			o.HeldChange = claim.n
		}
		return sent
	})
	return h, o.Result, o.Err
}

// take takes permits, under an id of the caller's unless as is nil.
func (f *InFlight) take(ctx context.Context, o *Observation, as *string) (*Hold, sending) {
	h := f.newHold(&Claim{key: o.Key, n: o.N, as: as})
	sent := time.Now()
	reply, err := f.acquire(ctx, h)
	if err != nil {
		o.Err = f.failed(ctx, o.Key, err)
		return nil, reply.Batch
	}
	defer reply.Done()
	if o.Err = h.answered(reply.Words, 0); o.Err != nil {
		return nil, reply.Batch
	}
	o.Repeated = h.again
	o.Result = f.explain(reply.Words, 0, 0, reply.Words[decision.WordAllowed] > 0)
	if !o.Result.Allowed {
		waiting.Denied(ctx, f.permits(o.Key))
		return nil, reply.Batch
	}
	if h.believe(sent); h.Left() == 0 {
		go f.giveBack(ctx, h)
		o.Result, o.Repeated, o.Err = Result{}, false, f.failed(ctx, o.Key, errLateReply)
		return nil, reply.Batch
	}
	return h, reply.Batch
}

// held explains the replies of inflight.lua.
type held struct {
	limit int
	lease time.Duration
}

// Explain is the answer to a call for any number of permits: the words count those that it
// has taken.
func (h held) Explain(words []int64, _, _ int64, allowed bool) decision.Result {
	r := decision.Result{
		Allowed:    allowed,
		Limit:      h.limit,
		Window:     h.lease,
		Remaining:  int(max(int64(h.limit)-words[wordHeld], 0)),
		ResetAfter: exact.Duration(words[wordEnded]),
	}
	if !allowed {
		r.RetryAfter = exact.Duration(words[wordFree])
	}
	return r
}

// permits is what callers who are denied wait for, who share it with those of another limit.
func (f *InFlight) permits(key string) waiting.Held { return waiting.Held{State: f.limits, Key: key} }

// acquire takes the permits of h. What the caller does not get is given back.
func (f *InFlight) acquire(ctx context.Context, h *Hold) (redisexec.Reply, error) {
	late := func(reply redisexec.Reply, err error) { // the caller has left
		if mayHold(err) || err == nil && reply.Words[decision.WordAllowed] > 0 {
			f.giveBack(ctx, h)
		}
	}
	take := h.operation(redisexec.Hold)
	take.Late = late
	reply, err := f.operate(ctx, h.key, take)
	if !reply.Late && mayHold(err) {
		go f.giveBack(ctx, h)
	}
	return reply, err
}

// Do takes one permit of key, runs work, and gives the permit back, even if ctx has ended or work panics. It
// extends the lease until work returns, first when a third of it is over. The context of work ends with ctx, and
// is cancelled with [ErrLeaseLost] as its cause if the lease is lost or could not be extended in time: others may
// then have the permit.
//
// If no permit is free, work does not run, and Do returns a *[DeniedError]. If TryAcquire returns an error, Do
// returns that. Otherwise Do returns what work returns, joined with an error that wraps ErrLeaseLost if the lease
// was lost. A permit that could not be given back within a second is free when its lease ends; Do does not report
// that.
func (f *InFlight) Do(ctx context.Context, key string, work func(ctx context.Context) error) error {
	if work == nil {
		return errNoWork
	}
	hold, result, err := f.TryAcquire(ctx, key)
	if err != nil {
		return err
	}
	if !result.Allowed {
		return &DeniedError{Key: key, Result: result}
	}
	return hold.Do(ctx, work)
}

// newHold is the hold of a claim whose permits are not taken yet.
func (f *InFlight) newHold(c *Claim) *Hold {
	h := &Hold{from: f, key: c.key, n: c.n, lease: f.lease}
	if h.named = c.as != nil; h.named {
		h.id = idOf(*c.as)
	} else {
		h.id = rand.Text()
	}
	return h
}

// find begins the lease in Redis again, and reports whether the hold was there.
func (f *InFlight) find(ctx context.Context, h *Hold) (bool, error) {
	reply, err := f.exec.Ask(ctx, f.head.Of(h.key), h.operation(redisexec.Extend))
	if err != nil {
		return false, err
	}
	return reply.Keep()[0] > 0, nil
}

func (f *InFlight) release(ctx context.Context, h *Hold) (sending, error) {
	reply, err := f.operate(ctx, h.key, h.operation(redisexec.Release))
	if err != nil {
		return reply.Batch, f.unreleased(ctx, h, err, reply.Batch != nil || reply.Late)
	}
	reply.Done()
	return reply.Batch, nil
}

// unreleased is the error of a release, which is done again in the background if it was sent once at most.
func (f *InFlight) unreleased(ctx context.Context, h *Hold, err error, again bool) error {
	if again && !h.named {
		go f.releaseInTime(ctx, h, f.exec.ReleaseAgain)
	}
	return f.failed(ctx, h.key, err)
}

// giveBack takes permits out of Redis that no caller knows of, by commands of its own. Those under an id of a caller's stay,
// because the call may have been repeated.
func (f *InFlight) giveBack(ctx context.Context, h *Hold) {
	if h.named {
		return
	}
	f.releaseInTime(ctx, h, f.exec.ReleaseLate)
}

func (f *InFlight) releaseInTime(ctx context.Context, h *Hold, release func(context.Context, string, redisexec.Operation) error) {
	defer func() { _ = recover() }() // of the client's hooks; nobody waits for this call
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTime)
	defer cancel()
	_ = release(ctx, f.head.Of(h.key), h.operation(redisexec.Release))
}

// mayHold reports whether Redis may have taken the permits of a call that brought err.
func mayHold(err error) bool {
	var dial *net.OpError
	switch {
	case err == nil, errors.Is(err, ErrInvalidConfig), errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrClosed):
		return false
	case errors.As(err, &dial) && dial.Op == "dial":
		return false
	}
	return true
}

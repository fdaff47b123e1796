package ratelimit

import (
	"context"
	"errors"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit/internal/algorithms"
	"github.com/tryacquire/ratelimit/internal/decision"
	"github.com/tryacquire/ratelimit/internal/exact"
	"github.com/tryacquire/ratelimit/internal/redisexec"
	"github.com/tryacquire/ratelimit/internal/scripts"
)

const (
	maxInFlight  = 100_000
	maxHold      = 1_000 // permits of one hold, each with a member of its own: 2 ms
	giveBackTime = time.Second
)

// The words of the reply of inflight.lua, after decision.WordAllowed.
const (
	wordHeld  = 1 // permits held, those of the call included
	wordFree  = 2 // microseconds until the denied permits are free at the latest
	wordEnded = 3 // microseconds until the last lease has ended
)

// InFlight limits how many permits of a key are held at once, in any number of processes:
// requests under way, connections, jobs. A [Hold] has its permits until it is released, or
// until its lease ends because its process crashed or cannot reach Redis.
//
//	reports, err := ratelimit.NewInFlight(
//		client, 20, 30*time.Second, ratelimit.WithName("reports"))
//	...
//	err = reports.Do(ctx, "tenant:42", func(ctx context.Context) error { … })
//
// Use [InFlight.Do] if the work is a function: Do extends the lease for as long as the work
// runs, and cancels the work's context if the lease is lost. Otherwise use
// [InFlight.TryAcquire]. Use [InFlight.Claim] to decide together with limiters.
//
// The holds whose lease has not ended by the count of their processes ([Hold.Left]) never
// have more permits than the limit. A process counts the lease from before it sent the
// request, by its monotonic clock, and takes off a thousandth, because clocks run at
// different speeds; Redis counts the lease from the execution of the request, which is later.
// There are four exceptions.
//
//   - What Redis loses is allowed again: after a failover, each hold that was not replicated
//     is one too many until its next Extend returns [ErrLeaseLost].
//   - If the server's clock steps forward, leases end early by the step, and their places
//     may be given to others. The next Extend of such a hold returns ErrLeaseLost.
//   - A process that was suspended, for example by the host of its virtual machine, may go on
//     working for a moment before it notices that its lease has ended.
//   - Reset makes all permits free, although holds still have them.
//
// If the server's clock steps back, no lease becomes longer. Where limiters of several leases use
// the key, a lease can be too long until a call is denied and finds leases of several lengths: this
// call shortens the thousand leases that end last.
//
// With [WithClock] the limit holds if the clocks of all processes are within [WithMaxSkew] of each
// other, and the permits of a process that crashed are free again later, by twice WithMaxSkew.
// Processes with and without WithClock may share a key; the server's clock is then one of the clocks.
//
// Limiters of other limits and leases may use the same key while a change is rolled out:
// each allows a call only if its own limit holds over all permits, and a hold has the
// lease of the limiter that made it.
//
// InFlight is not a [Limiter], because a denial can become false at any moment, when a hold
// is released. So it cannot be put into a [DenyCache]. Holds and releases that wait at the same
// time are sent together, as the calls of a Limiter are, unless [WithoutMerging] is given; extensions
// are sent on their own. A permit that is held takes 50 bytes of Redis, and 140 where a key has more
// than 128 permits. InFlight is immutable and safe for concurrent use.
type InFlight struct {
	core  core
	limit int
	lease time.Duration
	rule  string
	held  *atomic.Int64 // permits of this process; counted only if it is observed
}

func (f *InFlight) kind() kind { return kindOnRedis(f, &f.core) }

// NewInFlight returns a limiter with which at most limit permits of a key are held at once. limit
// is 1 to 100,000. lease is how long the permits of a process that has crashed stay taken;
// it is a whole number of microseconds, from 1ms to 71 years. It should be many times as long
// as a call to Redis: a hold that is not extended within its lease may lose its permits, and
// Do extends three times in each lease. The error wraps ErrInvalidConfig. Redis is not asked.
func NewInFlight(c Client, limit int, lease time.Duration, opts ...Option) (*InFlight, error) {
	s, err := collect(newInFlight, opts)
	if err != nil {
		return nil, err
	}
	return inFlight(c, limit, lease, s, new(atomic.Int64))
}

// inFlight is NewInFlight with settings. count counts the permits that are held, of one limiter or several.
func inFlight(c Client, limit int, lease time.Duration, s settings, count *atomic.Int64) (*InFlight, error) {
	if limit < 1 || limit > maxInFlight {
		return nil, invalidConfig("the limit is %d; it must be between 1 and %d", limit, maxInFlight)
	}
	err := checkSpan("the lease", lease)
	if err != nil {
		return nil, err
	}
	f := &InFlight{limit: limit, lease: lease, held: count, rule: "/" + strconv.FormatInt(lease.Microseconds(), 10)}
	if s.clock != nil {
		f.rule += "@" + s.spare()
	}
	err = f.core.build(c, s, algorithm{
		id: algorithms.InFlight, scripts: scripts.Of("inflight"), most: min(limit, maxHold),
		args: append(exact.Texts(int64(limit), lease.Microseconds()), f.rule),
		cost: redisexec.Cost{Key: 10, Run: 8, Permit: 3}, explainer: held{limit, lease},
	})
	if err != nil {
		return nil, err
	}
	f.core.inFlight = f
	return f, nil
}

// TryAcquire takes one permit of key, if one is free now. It is TryAcquireN(ctx, key, 1).
func (f *InFlight) TryAcquire(ctx context.Context, key string) (*Hold, Result, error) {
	return f.TryAcquireN(ctx, key, 1)
}

// TryAcquireN takes n permits of key, all or none, for one Hold. The Hold is nil if the call
// is denied or returns an error; Release of a nil Hold does nothing, so that it can be
// deferred at once. n is at most the limit and at most 1,000, otherwise the error is
// ErrExceedsLimit. The other errors are those of [Limiter].
//
// In the Result, Limit is the limit and Window the lease. Remaining is how many permits are
// free after the call, including those of leases that have ended. RetryAfter is the time
// until enough of the leases that block the call have ended, if none is extended: a retry a
// microsecond earlier is denied unless a hold was released, and one at that instant is
// allowed unless a hold was extended or other permits were taken. It bounds how long the
// permits of crashed holds stay taken, and says nothing about when work is done. ResetAfter
// is the time until all leases have ended, including that of this call, if none is extended.
//
// After an error caused by Redis or the network, or if ctx ended during the call, the
// permits may have been taken. They are then given back in the background, within a second or
// the client's timeouts; if that fails too, they are free when the lease ends.
func (f *InFlight) TryAcquireN(ctx context.Context, key string, n int) (*Hold, Result, error) {
	began, o := f.begin(), Observation{Call: CallHold, Key: key, N: n}
	if o.Err = f.check(ctx, key, n); o.Err != nil {
		f.refused(ctx, began, o)
		return nil, Result{}, o.Err
	}
	h, batch, r, err := f.tryAcquireN(ctx, key, n)
	if f.core.watch != nil {
		if o.Result, o.Err = r, err; h != nil {
			o.hold(f, n)
		} else {
			o.Held = int(f.held.Load())
		}
		f.core.decided(ctx, began, o, batch)
	}
	return h, r, err
}

func (f *InFlight) tryAcquireN(ctx context.Context, key string, n int) (*Hold, *redisexec.Batch, Result, error) {
	h := newHold(f, key, n)
	sent := time.Now()
	reply, err := f.acquire(ctx, h)
	if err != nil {
		return nil, reply.Batch, Result{}, f.core.failed(ctx, key, err)
	}
	defer reply.Done()
	r := f.core.explain(reply.Words, 0, 0, reply.Words[decision.WordAllowed] > 0)
	if !r.Allowed {
		return nil, reply.Batch, r, nil
	}
	if h.believe(sent); h.Left() == 0 {
		go h.giveBack(ctx)
		return nil, reply.Batch, Result{}, f.core.failed(ctx, key, errLateReply)
	}
	return h, reply.Batch, r, nil
}

// Peek returns the state of key, and takes and changes nothing: Remaining is how many permits
// are free, and ResetAfter the time until all leases have ended, if none is extended. Allowed
// and RetryAfter are those of a call for one permit. Its errors are those of TryAcquire.
func (f *InFlight) Peek(ctx context.Context, key string) (Result, error) {
	return f.peekN(ctx, key, 1)
}

func (f *InFlight) peekN(ctx context.Context, key string, n int) (Result, error) {
	began, o := f.begin(), Observation{Call: CallPeek, Key: key, N: n}
	if o.Err = f.check(ctx, key, n); o.Err != nil {
		f.refused(ctx, began, o)
		return Result{}, o.Err
	}
	o.Result, o.Err = f.core.peek(ctx, key, n)
	f.asked(ctx, began, o)
	return o.Result, o.Err
}

// Reset deletes the key's state: the full limit is free again, although holds still have
// permits. The next Extend of such a hold returns an error that wraps ErrLeaseLost. The
// errors of Reset are those of [Limiter].
func (f *InFlight) Reset(ctx context.Context, key string) error {
	if f == nil {
		return errUnmade
	}
	return f.core.Reset(ctx, key)
}

// Preload loads the limiter's scripts, on every master of a ClusterClient and every shard of
// a Ring, so that the first request finds them there. It is never needed.
func (f *InFlight) Preload(ctx context.Context) error {
	if f == nil {
		return errUnmade
	}
	return f.core.Preload(ctx)
}

func (f *InFlight) check(ctx context.Context, key string, n int) error {
	if f == nil {
		return errUnmade
	}
	return f.core.check(ctx, key, n)
}

// begin, refused and asked are those of core. Held is as of now.
func (f *InFlight) begin() time.Time {
	if f == nil {
		return time.Time{}
	}
	return f.core.begin()
}

func (f *InFlight) refused(ctx context.Context, began time.Time, o Observation) {
	if f != nil && f.core.watch != nil {
		o.Held = int(f.held.Load())
		f.core.refused(ctx, began, o)
	}
}

func (f *InFlight) asked(ctx context.Context, began time.Time, o Observation) {
	if f.core.watch != nil {
		if o.HeldChange == 0 {
			o.Held = int(f.held.Load())
		}
		f.core.asked(ctx, began, o)
	}
}

// believed is until when a hold may believe in a lease that it asked for at sent.
func (f *InFlight) believed(sent time.Time) time.Time { return sent.Add(f.lease - f.lease/1000) }

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

// acquire takes the permits of h. What the caller does not get is given back.
func (f *InFlight) acquire(ctx context.Context, h *Hold) (redisexec.Reply, error) {
	late := func(reply redisexec.Reply, err error) { // the caller has left
		if mayHold(err) || err == nil && reply.Words[decision.WordAllowed] > 0 {
			h.giveBack(ctx)
		}
	}
	take := h.operation(redisexec.Hold)
	take.Late = late
	reply, err := f.core.operate(ctx, h.key, take)
	if !reply.Late && mayHold(err) {
		go h.giveBack(ctx)
	}
	return reply, err
}

// Name returns the limiter's name, see [WithName].
func (f *InFlight) Name() string {
	if f == nil {
		return ""
	}
	return f.core.Name()
}

// Claim returns a claim for n permits of key, for [TryAcquireAll], whose PartResult then has a
// Hold.
func (f *InFlight) Claim(key string, n int) Claim {
	return f.core.Claim(key, n)
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

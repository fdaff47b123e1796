package ratelimit_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/fakes"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// An outage is a server that fails when it is told to, and the limits of a service on it, each with a secondary.
type outage struct {
	server *miniredis.Miniredis
	client *redis.Client
	sent   atomic.Int64 // commands and pipelines
}

func newOutage(t *testing.T) *outage {
	o := &outage{server: miniredis.RunT(t)}
	o.server.SetTime(limitertest.Start)
	o.client = redis.NewClient(&redis.Options{Addr: o.server.Addr(), MaxRetries: -1})
	t.Cleanup(func() { _ = o.client.Close() })
	o.client.AddHook(onCommand(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		o.sent.Add(1)
		return next(ctx, cmd)
	}))
	return o
}

// onCommand is what a client does with each command.
func onCommand(do func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error) redis.Hook {
	return fakes.Hook{Command: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		if cmd.Name() == "hello" { // of a new connection
			return next(ctx, cmd)
		}
		return do(ctx, cmd, next)
	}}
}

func (o *outage) begin() { o.server.SetError("LOADING") }
func (o *outage) end()   { o.server.SetError("") }

// bucket is a limit of n on Redis, with a bucket of local in this process beside it.
func (o *outage) bucket(name string, n, local int, opts ...ratelimit.PolicyOption) *ratelimit.Fallback {
	primary := ratelimit.Must(ratelimit.NewTokenBucket(o.client, ratelimit.PerHour(1), n, ratelimit.WithName(name)))
	return ratelimit.Must(ratelimit.NewFallback(primary, localBucket(local), opts...))
}

func localBucket(n int) *ratelimit.LocalTokenBucket {
	return ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerHour(1), n))
}

func acquire(t *testing.T, claims ...ratelimit.Claim) ratelimit.AllResult {
	t.Helper()
	r, err := ratelimit.TryAcquireAll(ctx, claims...)
	require.NoError(t, err)
	return r
}

// TestSeveralLimitsInAnOutage: one script decides while Redis answers; otherwise the secondaries do, all or nothing.
func TestSeveralLimitsInAnOutage(t *testing.T) {
	o := newOutage(t)
	user, address := o.bucket("user", 10, 5), o.bucket("address", 10, 2)
	claims := func() []ratelimit.Claim {
		return []ratelimit.Claim{ratelimit.ClaimOf(user, "u", 3), ratelimit.ClaimOf(address, "a", 1)}
	}
	hour := func(limit int) time.Duration { return time.Duration(limit) * time.Hour }
	part := func(name, key string, limit, left int, fallback bool) ratelimit.PartResult {
		return ratelimit.OfBucket(true, ratelimit.PartResult{Name: name, Key: key, Result: ratelimit.Result{
			Allowed: true, Limit: limit, Window: hour(limit), Remaining: left, ResetAfter: hour(limit - left), Fallback: fallback,
		}})
	}
	acquire(t, claims()...)
	o.sent.Store(0)
	r := acquire(t, claims()...)
	require.EqualValues(t, 1, o.sent.Load())
	require.Equal(t, []ratelimit.PartResult{part("user", "u", 10, 4, false), part("address", "a", 10, 8, false)}, r.Parts)
	require.Equal(t, r.Parts[0].Result.Remaining, r.Remaining)

	o.begin()
	frozen := func(p ratelimit.PartResult) ratelimit.PartResult { // but for what the bucket has refilled in this moment
		p.Result.ResetAfter = p.Result.ResetAfter.Round(time.Minute)
		p.Result.RetryAfter = p.Result.RetryAfter.Round(time.Minute)
		return p
	}
	r = acquire(t, claims()...)
	require.True(t, r.Allowed)
	require.True(t, r.Fallback)
	require.Equal(t, part("user", "u", 5, 2, true), frozen(r.Parts[0]))
	require.Equal(t, part("address", "a", 2, 1, true), frozen(r.Parts[1]))
	r = acquire(t, claims()...)
	require.Equal(t, ratelimit.OfBucket(true, ratelimit.PartResult{Name: "user", Key: "u", Result: ratelimit.Result{
		Limit: 5, Window: hour(5), Remaining: 2, RetryAfter: time.Hour, ResetAfter: hour(3), Fallback: true,
	}}), frozen(r.Parts[0]))
	require.True(t, r.Parts[1].Result.Allowed)
	require.Equal(t, 1, r.Parts[1].Result.Remaining, "nothing was taken from the address")
	require.Equal(t, 1, acquire(t, ratelimit.ClaimOf(user, "u", 1), ratelimit.ClaimOf(address, "a", 1)).Parts[0].Result.Remaining)

	bare := ratelimit.Must(ratelimit.NewFixedWindow(o.client, 9, time.Minute, ratelimit.WithName("bare")))
	_, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(user, "u", 1), ratelimit.ClaimOf(bare, "b", 1))
	require.ErrorContains(t, err, "LOADING")
	require.ErrorContains(t, err, `the fixed window "bare" has no policy for outages; put a Fallback around it`)
	_, err = ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(user, "u", 11), ratelimit.ClaimOf(address, "a", 1))
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit, "no Redis can allow it")
	r = acquire(t, ratelimit.ClaimOf(user, "u", 1), ratelimit.ClaimOf(address, "a", 3))
	require.Equal(t, ratelimit.Result{Limit: 2, Window: hour(2), RetryAfter: time.Second, Fallback: true}, withoutReset(r.Parts[1].Result), "until the primary is asked again")
	require.Equal(t, withoutReset(r.Parts[1].Result), withoutReset(r.Result))
	require.Equal(t, ratelimit.PartResult{Name: "user", Key: "u", Unknown: true, Result: ratelimit.Result{Fallback: true}}, r.Parts[0])

	o.end()
	r = acquire(t, claims()...)
	require.Equal(t, []ratelimit.PartResult{part("user", "u", 10, 1, false), part("address", "a", 10, 7, false)}, r.Parts, "nothing was charged twice")
}

func withoutReset(r ratelimit.Result) ratelimit.Result {
	r.ResetAfter = 0
	return r
}

// TestBreakersOfSeveralLimits: each different breaker begins once, and gets one verdict. If one keeps the call from the primaries,
// the others hear nothing.
func TestBreakersOfSeveralLimits(t *testing.T) {
	o := newOutage(t)
	breaker := func(failures int) *ratelimit.Breaker {
		return &ratelimit.Breaker{Failures: failures, ProbeEvery: time.Hour}
	}
	shared, own := breaker(3), breaker(2)
	a := o.bucket("a", 10, 100, ratelimit.WithBreaker(shared))
	b := o.bucket("b", 10, 100, ratelimit.WithBreaker(shared))
	c := o.bucket("c", 10, 100, ratelimit.WithBreaker(own))
	all := func() {
		t.Helper()
		require.True(t, acquire(t, ratelimit.ClaimOf(c, "k", 1), ratelimit.ClaimOf(a, "k", 1), ratelimit.ClaimOf(b, "k", 1)).Fallback)
	}
	o.begin()
	all()
	require.Equal(t, []ratelimit.BreakerState{ratelimit.BreakerClosed, ratelimit.BreakerClosed}, []ratelimit.BreakerState{shared.State(), own.State()})
	all()
	require.Equal(t, []ratelimit.BreakerState{ratelimit.BreakerClosed, ratelimit.BreakerOpen}, []ratelimit.BreakerState{shared.State(), own.State()})
	o.sent.Store(0)
	for range 5 {
		all()
	}
	require.Zero(t, o.sent.Load(), "one breaker is open")
	require.Equal(t, ratelimit.BreakerClosed, shared.State(), "and the other was given no verdict")
	require.True(t, acquire(t, ratelimit.ClaimOf(a, "k", 1), ratelimit.ClaimOf(b, "k", 1)).Fallback)
	require.Equal(t, ratelimit.BreakerOpen, shared.State(), "the third failure")
}

// TestTheSmallestBudgetOfSeveral bounds the call. What Redis takes afterwards is given back, if it was taken on conditions.
func TestTheSmallestBudgetOfSeveral(t *testing.T) {
	o := newOutage(t)
	var hang atomic.Bool
	release, returned := make(chan struct{}), make(chan struct{}, 100)
	o.client.AddHook(onCommand(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		if hang.Load() {
			<-release
		}
		err := next(ctx, cmd)
		if !redis.HasErrorPrefix(err, "NOSCRIPT") { // otherwise the same comes again
			returned <- struct{}{}
		}
		return err
	}))
	quick := ratelimit.WithBudget(200 * time.Millisecond)
	tokens, requests := o.bucket("tokens", 10, 10, quick), o.bucket("requests", 10, 10, ratelimit.WithBudget(time.Hour))
	holds := ratelimit.Must(ratelimit.NewInFlight(o.client, 5, time.Hour))
	running := ratelimit.Must(ratelimit.NewHoldFallback(holds, ratelimit.Must(ratelimit.NewLocalInFlight(2))))
	wait := func(n int) {
		for range n {
			<-returned
		}
	}
	peek := func(l *ratelimit.Fallback) int { r := must(t)(l.Peek(ctx, "k")); <-returned; return r.Remaining }
	call := func() ratelimit.AllResult {
		return acquire(t, ratelimit.ClaimOf(tokens, "k", 4).Estimate(), ratelimit.ClaimOf(requests, "k", 1), ratelimit.ClaimHold(running, "k", 1))
	}
	first := call()
	require.False(t, first.Fallback)
	for len(returned) > 0 {
		<-returned
	}
	require.Equal(t, []int{6, 9}, []int{peek(tokens), peek(requests)})

	hang.Store(true)
	late := call()
	require.True(t, late.Fallback)
	require.NotNil(t, late.Parts[0].Ticket)
	hang.Store(false)
	close(release)
	wait(3) // the call itself, the settlement and the release
	require.Equal(t, []int{6, 8}, []int{peek(tokens), peek(requests)}, "the estimate came back; a plain permit stays taken")
	require.Equal(t, 4, must(t)(holds.Peek(ctx, "k")).Remaining, "and so did the hold")
	<-returned
	require.NoError(t, late.Parts[0].Ticket.Settle(ctx, 0), "in memory")
	require.NoError(t, late.Finish(ctx, nil))
	require.ErrorIs(t, late.Parts[2].Hold.Extend(ctx), ratelimit.ErrLeaseLost, "released")
	require.Empty(t, returned)
}

// TestSecondariesSettleAndRelease where they have taken.
func TestSecondariesSettleAndRelease(t *testing.T) {
	o := newOutage(t)
	o.begin()
	local := localBucket(10)
	tokens := ratelimit.Must(ratelimit.NewFallback(ratelimit.Must(ratelimit.NewTokenBucket(o.client, ratelimit.PerHour(1), 10)), local))
	here := ratelimit.Must(ratelimit.NewLocalInFlight(2))
	running := ratelimit.Must(ratelimit.NewHoldFallback(ratelimit.Must(ratelimit.NewInFlight(o.client, 5, time.Hour)), here))
	left := func() []int {
		return []int{must(t)(local.Peek(ctx, "k")).Remaining, must(t)(here.Peek(ctx, "k")).Remaining}
	}
	r := acquire(t, ratelimit.ClaimOf(tokens, "k", 4).Estimate(), ratelimit.ClaimHold(running, "k", 1))
	require.Equal(t, []int{6, 1}, left())
	require.Equal(t, ratelimit.Result{Allowed: true, Limit: 2, Remaining: 1, Fallback: true}, r.Parts[1].Result)
	require.NoError(t, r.Parts[0].Ticket.Settle(ctx, 1))
	require.ErrorIs(t, r.Parts[0].Ticket.Settle(ctx, 1), ratelimit.ErrSettled)
	require.Equal(t, []int{9, 1}, left())
	require.Positive(t, r.Parts[1].Hold.Left())
	require.NoError(t, r.Finish(ctx, nil))
	require.NoError(t, r.Finish(ctx, nil), "once")
	require.Equal(t, []int{9, 2}, left())
	require.ErrorIs(t, r.Parts[1].Hold.Extend(ctx), ratelimit.ErrLeaseLost)

	ticket, _, err := tokens.Estimate(ctx, "k", 2)
	require.NoError(t, err)
	require.NoError(t, ticket.Settle(ctx, 12), "into debt")
	require.Equal(t, []int{0, 2}, left())
	require.False(t, must(t)(tokens.TryAcquire(ctx, "k")).Allowed)
	require.True(t, must(t)(tokens.Charge(ctx, "k", 5)).Fallback)
	taken, result, err := tokens.TryAcquireUpTo(ctx, "other", 20)
	require.NoError(t, err)
	require.Equal(t, 10, taken)
	require.True(t, result.Fallback && result.Allowed && result.RetryAfter > 0)

	one, _, err := running.TryAcquire(ctx, "k")
	require.NoError(t, err)
	two, _, err := running.TryAcquireN(ctx, "k", 1)
	require.NoError(t, err)
	none, result, err := running.TryAcquire(ctx, "k")
	require.NoError(t, err)
	require.Nil(t, none)
	require.Equal(t, ratelimit.Result{Limit: 2, RetryAfter: time.Second, ResetAfter: time.Second, Fallback: true}, result)
	require.NoError(t, one.Do(ctx, func(context.Context) error { return nil }))
	require.Equal(t, 1, must(t)(here.Peek(ctx, "k")).Remaining)
	require.NoError(t, two.Release(ctx))

	for allowed, secondary := range map[bool]ratelimit.Holder{true: ratelimit.AllowHolds(), false: ratelimit.DenyHolds()} {
		f := ratelimit.Must(ratelimit.NewHoldFallback(ratelimit.Must(ratelimit.NewInFlight(o.client, 5, time.Hour)), secondary))
		h, r, err := f.TryAcquire(ctx, "k")
		require.NoError(t, err)
		require.Equal(t, allowed, r.Allowed)
		require.Equal(t, allowed, h != nil)
		require.True(t, r.Fallback)
		require.NoError(t, h.Release(ctx))
		r2 := acquire(t, ratelimit.ClaimOf(tokens, "third", 1), ratelimit.ClaimHold(f, "k", 1))
		require.Equal(t, allowed, r2.Allowed)
	}
}

// TestMemoryAmongSeveralLimits: what the memory of one claim denies is asked of nobody. A cache stores its own limiter's denial only.
func TestMemoryAmongSeveralLimits(t *testing.T) {
	o := newOutage(t)
	bucket := func(name string, n int) *ratelimit.TokenBucket {
		return ratelimit.Must(ratelimit.NewTokenBucket(o.client, ratelimit.PerHour(1), n, ratelimit.WithName(name)))
	}
	a, b := ratelimit.Must(ratelimit.NewDenyCache(bucket("a", 2))), ratelimit.Must(ratelimit.NewDenyCache(bucket("b", 5)))
	claims := func(n int) []ratelimit.Claim {
		return []ratelimit.Claim{ratelimit.ClaimOf(b, "k", 1), ratelimit.ClaimOf(a, "k", n)}
	}
	r := acquire(t, claims(2)...)
	require.True(t, r.Allowed)
	r = acquire(t, claims(1)...)
	require.Equal(t, []bool{true, false}, verdicts(r))
	o.sent.Store(0)
	r = acquire(t, claims(1)...)
	require.Zero(t, o.sent.Load())
	require.Equal(t, ratelimit.PartResult{Name: "b", Key: "k", Unknown: true}, r.Parts[0])
	require.Equal(t, "a", r.Parts[1].Name)
	require.Equal(t, r.Result, r.Parts[1].Result)
	require.False(t, r.Allowed)
	require.Positive(t, r.RetryAfter)
	require.Equal(t, 4, must(t)(b.Peek(ctx, "k")).Remaining)
	require.True(t, must(t)(b.TryAcquire(ctx, "k")).Allowed, "b has denied nothing")

	ticket := acquire(t, ratelimit.ClaimOf(b, "j", 1), ratelimit.ClaimOf(a, "j", 2).Estimate()).Parts[1].Ticket
	require.False(t, acquire(t, ratelimit.ClaimOf(b, "j", 1), ratelimit.ClaimOf(a, "j", 1)).Allowed)
	require.NoError(t, ticket.Settle(ctx, 1))
	require.True(t, acquire(t, ratelimit.ClaimOf(b, "j", 1), ratelimit.ClaimOf(a, "j", 1)).Allowed, "the settlement has removed the denial")

	// Two claims of one key count together, and their denial says nothing about one of them.
	twice := acquire(t, ratelimit.ClaimOf(a, "i", 1), ratelimit.ClaimOf(a, "i", 1), ratelimit.ClaimOf(b, "i", 1))
	require.True(t, twice.Allowed)
	require.NoError(t, a.Reset(ctx, "i"))
	require.True(t, acquire(t, ratelimit.ClaimOf(a, "i", 1), ratelimit.ClaimOf(b, "i", 1)).Allowed)
	require.False(t, acquire(t, ratelimit.ClaimOf(a, "i", 1), ratelimit.ClaimOf(a, "i", 1), ratelimit.ClaimOf(b, "i", 1)).Allowed)
	require.True(t, acquire(t, ratelimit.ClaimOf(a, "i", 1), ratelimit.ClaimOf(b, "i", 1)).Allowed)
}

// TestMemoryInsideAnOutage: the cache inside a Fallback is asked where the primary would be; the one outside always.
func TestMemoryInsideAnOutage(t *testing.T) {
	o := newOutage(t)
	bucket := ratelimit.Must(ratelimit.NewTokenBucket(o.client, ratelimit.PerHour(1), 1))
	open := &ratelimit.Breaker{Failures: 1, ProbeEvery: time.Hour}
	inside := ratelimit.Must(ratelimit.NewFallback(ratelimit.Must(ratelimit.NewDenyCache(bucket)), localBucket(1), ratelimit.WithBreaker(open)))
	other := o.bucket("other", 5, 5)
	require.True(t, acquire(t, ratelimit.ClaimOf(inside, "k", 1), ratelimit.ClaimOf(other, "k", 1)).Allowed)
	require.False(t, acquire(t, ratelimit.ClaimOf(inside, "k", 1), ratelimit.ClaimOf(other, "k", 1)).Allowed)
	o.begin()
	require.False(t, acquire(t, ratelimit.ClaimOf(inside, "k", 1), ratelimit.ClaimOf(other, "k", 1)).Fallback, "from memory")
	require.True(t, acquire(t, ratelimit.ClaimOf(inside, "j", 1), ratelimit.ClaimOf(other, "j", 1)).Fallback, "the breaker opens")
	r := acquire(t, ratelimit.ClaimOf(inside, "k", 1), ratelimit.ClaimOf(other, "k", 1))
	require.True(t, r.Allowed && r.Fallback, "the primary is not asked, and neither is its memory")
}

// TestTrialsAmongSeveralLimits: the trial is asked when all other claims allowed, and gets the settlement.
func TestTrialsAmongSeveralLimits(t *testing.T) {
	o := newOutage(t)
	bucket := func(name string, n int) *ratelimit.TokenBucket {
		return ratelimit.Must(ratelimit.NewTokenBucket(o.client, ratelimit.PerHour(1), n, ratelimit.WithName(name)))
	}
	reports := make(chan ratelimit.Trial, 10)
	stricter := bucket("stricter", 2)
	tried := ratelimit.Must(ratelimit.NewShadow(bucket("enforced", 3), stricter, func(t ratelimit.Trial) { reports <- t }))
	other := bucket("other", 2)

	r := acquire(t, ratelimit.ClaimOf(tried, "k", 3), ratelimit.ClaimOf(other, "k", 1))
	trial := <-reports
	require.Equal(t, ratelimit.Trial{Key: "k", N: 3, Enforced: r.Parts[0].Result, Err: trial.Err}, trial)
	require.ErrorIs(t, trial.Err, ratelimit.ErrExceedsLimit)
	require.False(t, acquire(t, ratelimit.ClaimOf(tried, "k", 1), ratelimit.ClaimOf(other, "k", 1)).Allowed, "by the enforced limiter alone")
	require.True(t, (<-reports).Result.Allowed)
	require.True(t, must(t)(other.TryAcquire(ctx, "k")).Allowed)
	require.False(t, acquire(t, ratelimit.ClaimOf(tried, "k", 1), ratelimit.ClaimOf(other, "k", 1)).Allowed, "by the other one too")
	require.Empty(t, reports)

	ticket, _, err := tried.Estimate(ctx, "j", 2)
	require.NoError(t, err)
	require.True(t, (<-reports).Result.Allowed)
	require.Zero(t, must(t)(stricter.Peek(ctx, "j")).Remaining)
	settled := make(chan struct{}, 10)
	o.client.AddHook(onCommand(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		err := next(ctx, cmd)
		if !redis.HasErrorPrefix(err, "NOSCRIPT") { // otherwise the same comes again
			settled <- struct{}{}
		}
		return err
	}))
	require.NoError(t, ticket.Settle(ctx, 1))
	<-settled
	<-settled
	require.Equal(t, 1, must(t)(stricter.Peek(ctx, "j")).Remaining, "of the trial too")
}

// TestChoicesAmongSeveralLimits pick for claims, and for permits that are held.
func TestChoicesAmongSeveralLimits(t *testing.T) {
	o := newOutage(t)
	free := ratelimit.Must(ratelimit.NewTokenBucket(o.client, ratelimit.PerHour(1), 1, ratelimit.WithName("plan")))
	paid := ratelimit.Must(ratelimit.NewTokenBucket(o.client, ratelimit.PerHour(1), 100, ratelimit.WithName("plan")))
	plans := map[string]ratelimit.Limiter{"free": free, "paid": paid, "staff": ratelimit.AllowAll(), "blocked": ratelimit.DenyAll()}
	plan := ratelimit.Must(ratelimit.NewChoice(func(_ context.Context, key string) (ratelimit.Limiter, error) { return plans[key], nil }))
	caps := map[string]ratelimit.Holder{
		"free":  ratelimit.Must(ratelimit.NewInFlight(o.client, 1, time.Hour)),
		"paid":  ratelimit.Must(ratelimit.NewInFlight(o.client, 2, time.Hour)),
		"staff": ratelimit.AllowHolds(), "blocked": ratelimit.DenyHolds(),
	}
	running := ratelimit.Must(ratelimit.NewHoldChoice(func(_ context.Context, key string) (ratelimit.Holder, error) { return caps[key], nil }))
	address := ratelimit.Must(ratelimit.NewFixedWindow(o.client, 50, time.Hour, ratelimit.WithName("address")))
	call := func(key string) ratelimit.AllResult {
		return acquire(t, ratelimit.ClaimOf(plan, key, 1).Estimate(), ratelimit.ClaimHold(running, key, 1), ratelimit.ClaimOf(address, key, 1))
	}
	require.True(t, call("free").Allowed)
	require.Equal(t, []bool{false, false, true}, verdicts(call("free")))
	first := call("paid")
	require.Equal(t, []string{"plan", "default", "address"}, []string{first.Parts[0].Name, first.Parts[1].Name, first.Parts[2].Name})
	require.Equal(t, 99, first.Parts[0].Result.Remaining)
	require.True(t, call("paid").Allowed)
	require.Equal(t, []bool{true, false, true}, verdicts(call("paid")))
	staff := call("staff")
	require.True(t, staff.Allowed && !staff.Unlimited(), "the address has a limit")
	require.True(t, staff.Parts[0].Result.Unlimited())
	require.Equal(t, 49, staff.Remaining)
	require.NoError(t, staff.Parts[0].Ticket.Settle(ctx, 5))
	require.NoError(t, staff.Finish(ctx, nil))
	o.sent.Store(0)
	blocked := call("blocked")
	require.False(t, blocked.Allowed)
	require.Equal(t, []bool{false, true, true}, []bool{blocked.Parts[0].Unknown, blocked.Parts[1].Unknown, blocked.Parts[2].Unknown})
	require.Zero(t, o.sent.Load())
	for _, claims := range [][]ratelimit.Claim{
		{ratelimit.ClaimOf(plan, "nobody", 1), ratelimit.ClaimOf(address, "nobody", 1)}, {ratelimit.ClaimHold(running, "nobody", 1), ratelimit.ClaimOf(address, "nobody", 1)},
	} {
		_, err := ratelimit.TryAcquireAll(ctx, claims...)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
		require.ErrorContains(t, err, `pick returned nil for "nobody"`)
	}
	hold, r, err := running.TryAcquire(ctx, "free")
	require.NoError(t, err)
	require.False(t, r.Allowed)
	require.Nil(t, hold)
	require.Zero(t, must(t)(running.Peek(ctx, "free")).Remaining)
}

// TestLimitersInMemoryDecideTogether: concurrent calls that name their claims in any order neither wait for each other nor take more
// than there is.
func TestLimitersInMemoryDecideTogether(t *testing.T) {
	a, b := localBucket(300), localBucket(200)
	held := ratelimit.Must(ratelimit.NewLocalInFlight(150))
	var allowed atomic.Int64
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for j := range 100 {
				claims := []ratelimit.Claim{ratelimit.ClaimOf(a, "k", 2), ratelimit.ClaimOf(b, "k", 1), ratelimit.ClaimHold(held, "k", 1), ratelimit.ClaimOf(b, "other"+string(rune('0'+j%10)), 1)}
				if i%2 == 1 {
					claims[0], claims[3], claims[1], claims[2] = claims[3], claims[0], claims[2], claims[1]
				}
				if r, err := ratelimit.TryAcquireAll(ctx, claims...); err != nil {
					t.Error(err)
				} else if r.Allowed {
					allowed.Add(1)
				}
			}
		})
	}
	group.Wait()
	require.EqualValues(t, 150, allowed.Load(), "two permits of 300 each, one of 150 held")
	require.Equal(t, []int{0, 50}, []int{must(t)(a.Peek(ctx, "k")).Remaining, must(t)(b.Peek(ctx, "k")).Remaining})
	_, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(a, "k", 1).Estimate(), ratelimit.ClaimOf(a, "k", 1))
	require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
	for want, claim := range map[error]ratelimit.Claim{
		ratelimit.ErrExceedsLimit: ratelimit.ClaimOf(a, "k", 301), ratelimit.ErrInvalidKey: ratelimit.ClaimOf(a, "", 1), ratelimit.ErrInvalidPermits: ratelimit.ClaimOf(a, "k", 0),
		ratelimit.ErrInvalidConfig: ratelimit.ClaimOf((*ratelimit.LocalTokenBucket)(nil), "k", 1),
	} {
		_, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(b, "fresh", 1), claim)
		require.ErrorIs(t, err, want)
	}
	require.Equal(t, 200, must(t)(b.Peek(ctx, "fresh")).Remaining)
}

// shards are two servers of a Ring, and a key on each.
type shards struct {
	ring    *redis.Ring
	servers map[string]*miniredis.Miniredis
	keys    map[string]string
}

func newShards(t *testing.T) *shards {
	s := &shards{servers: map[string]*miniredis.Miniredis{"one": miniredis.RunT(t), "two": miniredis.RunT(t)}, keys: map[string]string{}}
	s.ring = redis.NewRing(&redis.RingOptions{
		Addrs: map[string]string{"one": s.servers["one"].Addr(), "two": s.servers["two"].Addr()}, MaxRetries: -1, HeartbeatFrequency: time.Hour,
	})
	t.Cleanup(func() { _ = s.ring.Close() })
	for i := 0; len(s.keys) < 2; i++ {
		key := "key" + string(rune('0'+i))
		must(t)(s.limit("found", 3, 2).TryAcquire(ctx, key))
		for name, server := range s.servers {
			if len(server.Keys()) > 0 {
				s.keys[name] = key
			}
			server.FlushAll()
		}
	}
	return s
}

// limit is a limit of n on the ring, with a bucket of local in this process beside it.
func (s *shards) limit(name string, n, local int, opts ...ratelimit.PolicyOption) *ratelimit.Fallback {
	primary := ratelimit.Must(ratelimit.NewTokenBucket(s.ring, ratelimit.PerHour(1), n, ratelimit.WithName(name)))
	return ratelimit.Must(ratelimit.NewFallback(primary, localBucket(local), opts...))
}

// TestAnOutageOfOneShard: the claim whose primary answers is decided there, and only the other asks its secondary.
func TestAnOutageOfOneShard(t *testing.T) {
	s := newShards(t)
	user, address := s.limit("user", 3, 2), s.limit("address", 3, 2)
	s.servers["two"].SetError("LOADING")
	call := func() ratelimit.AllResult {
		r, err := ratelimit.TryAcquireAcrossSlots(ctx, ratelimit.ClaimOf(user, s.keys["one"], 1), ratelimit.ClaimOf(address, s.keys["two"], 1))
		require.NoError(t, err)
		return r
	}
	r := call()
	require.Equal(t, []bool{true, true}, verdicts(r))
	require.Equal(t, 3, r.Parts[0].Result.Limit)
	require.Equal(t, []int{2, 1}, []int{r.Parts[0].Result.Remaining, r.Parts[1].Result.Remaining}, "on Redis, and in memory")
	require.Equal(t, []bool{false, true}, []bool{r.Parts[0].Result.Fallback, r.Parts[1].Result.Fallback})
	require.True(t, r.Fallback)
	require.True(t, call().Allowed)
	require.Equal(t, []bool{true, false}, verdicts(call()), "the memory of the second has no more")
	s.servers["two"].SetError("")
	require.Equal(t, 1, must(t)(user.Peek(ctx, s.keys["one"])).Remaining, "the denied call has given back what Redis took")
	require.Equal(t, 3, must(t)(address.Peek(ctx, s.keys["two"])).Remaining)
}

// TestClaimsOfOneKeyInAnOutageOfAShard: claims of one key count together there as elsewhere.
func TestClaimsOfOneKeyInAnOutageOfAShard(t *testing.T) {
	s := newShards(t)
	user, address := s.limit("user", 5, 5), s.limit("address", 5, 5)
	s.servers["two"].SetError("LOADING")
	for range 2 {
		r, err := ratelimit.TryAcquireAcrossSlots(ctx, ratelimit.ClaimOf(user, s.keys["one"], 1), ratelimit.ClaimOf(address, s.keys["two"], 1), ratelimit.ClaimOf(user, s.keys["one"], 1))
		require.NoError(t, err)
		require.True(t, r.Allowed)
		for _, i := range []int{0, 2} {
			require.Equal(t, "user", r.Parts[i].Name)
			require.Equal(t, 5, r.Parts[i].Result.Limit)
			require.Nil(t, r.Parts[i].Ticket)
			require.False(t, r.Parts[i].Result.Fallback)
		}
		require.Equal(t, r.Parts[0].Result, r.Parts[2].Result)
		require.True(t, r.Parts[1].Result.Fallback)
	}
	_, err := ratelimit.TryAcquireAcrossSlots(ctx, ratelimit.ClaimOf(user, s.keys["one"], 1), ratelimit.ClaimOf(address, s.keys["two"], 1), ratelimit.ClaimOf(user, s.keys["one"], 1).Estimate())
	require.ErrorContains(t, err, "one of them is an estimate")
	denied, err := ratelimit.TryAcquireAcrossSlots(ctx, ratelimit.ClaimOf(address, s.keys["two"], 2), ratelimit.ClaimOf(user, s.keys["one"], 1), ratelimit.ClaimOf(address, s.keys["two"], 2))
	require.NoError(t, err)
	require.False(t, denied.Allowed, "4 of the 3 that are left in memory")
	require.Equal(t, 1, must(t)(user.Peek(ctx, s.keys["one"])).Remaining, "2 calls of 2 permits")
}

// TestASplitCallHasOneBudget: what the other shards decide after one has failed counts against the budget too, even if their
// client does not honour the context.
func TestASplitCallHasOneBudget(t *testing.T) {
	s := newShards(t)
	budget := ratelimit.WithBudget(200 * time.Millisecond)
	user, address := s.limit("user", 5, 4, budget), s.limit("address", 5, 3, budget)
	claims := func() []ratelimit.Claim {
		return []ratelimit.Claim{ratelimit.ClaimOf(user, s.keys["one"], 1).Estimate(), ratelimit.ClaimOf(address, s.keys["two"], 1)}
	}
	first, err := ratelimit.TryAcquireAcrossSlots(ctx, claims()...)
	require.NoError(t, err)
	require.NoError(t, first.Parts[0].Ticket.Settle(ctx, 0)) // the scripts of this are there now
	release, finished := make(chan struct{}), make(chan struct{}, 10)
	var taken atomic.Int64
	s.servers["two"].SetError("LOADING")
	require.NoError(t, s.ring.ForEachShard(ctx, func(_ context.Context, client *redis.Client) error {
		if client.Options().Addr == s.servers["one"].Addr() {
			client.AddHook(onCommand(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
				if taken.Add(1) == 3 { // the first takes, the second gives back because the other shard failed
					<-release
				}
				err := next(ctx, cmd)
				finished <- struct{}{}
				return err
			}))
		}
		return nil
	}))
	r, err := ratelimit.TryAcquireAcrossSlots(ctx, claims()...)
	require.NoError(t, err)
	require.Equal(t, []bool{true, true}, []bool{r.Parts[0].Result.Fallback, r.Parts[1].Result.Fallback}, "the budget is over, so both secondaries decide")
	require.Equal(t, []int{4, 3}, []int{r.Parts[0].Result.Limit, r.Parts[1].Result.Limit})
	close(release)
	for range 5 { // the third and the fourth take, because a script of all claims is not there yet; the last gives that back
		<-finished
	}
	s.servers["two"].SetError("")
	require.Equal(t, 5, must(t)(user.Peek(ctx, s.keys["one"])).Remaining)
}

// TestASecondaryPerPolicy: secondaries are all in memory or all on one other client.
func TestASecondaryPerPolicy(t *testing.T) {
	o := newOutage(t)
	elsewhere := limitertest.OnMiniredis(t)
	on := func(name string) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.NewTokenBucket(elsewhere.Client, ratelimit.PerHour(1), 4, ratelimit.WithName(name)))
	}
	with := func(name string, secondary ratelimit.Limiter) *ratelimit.Fallback {
		return ratelimit.Must(ratelimit.NewFallback(ratelimit.Must(ratelimit.NewTokenBucket(o.client, ratelimit.PerHour(1), 9, ratelimit.WithName(name))), secondary))
	}
	a, b, local := with("a", on("a")), with("b", on("b")), with("local", localBucket(3))
	o.begin()
	r := acquire(t, ratelimit.ClaimOf(a, "k", 1), ratelimit.ClaimOf(b, "k", 2).Estimate())
	require.Equal(t, []int{3, 2}, []int{r.Parts[0].Result.Remaining, r.Parts[1].Result.Remaining})
	require.NoError(t, r.Parts[1].Ticket.Settle(ctx, 0), "where it was taken")
	require.Equal(t, 4, must(t)(b.Peek(ctx, "k")).Remaining)
	_, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(a, "k", 1), ratelimit.ClaimOf(local, "k", 1))
	require.ErrorContains(t, err, "some of the limiters decide on Redis and some in memory")
	require.ErrorContains(t, err, "LOADING")
	require.False(t, errors.Is(err, ratelimit.ErrInvalidConfig), "the outage is the reason")
	require.ErrorIs(t, ratelimit.CheckClaims(ratelimit.ClaimOf(a, "k", 1), ratelimit.ClaimOf(local, "k", 1)), ratelimit.ErrInvalidConfig)
	require.NoError(t, ratelimit.CheckClaims(ratelimit.ClaimOf(a, "k", 1), ratelimit.ClaimOf(b, "k", 1)))
}

// TestAReservationSaysThatItIsOfTheSecondary, as every other answer does.
func TestAReservationSaysThatItIsOfTheSecondary(t *testing.T) {
	o := newOutage(t)
	inner := o.bucket("user", 10, 5)
	for _, f := range []*ratelimit.Fallback{inner, ratelimit.Must(ratelimit.NewFallback(inner, ratelimit.DenyAll()))} {
		o.begin()
		r, err := f.Reserve(ctx, "u", 1, 0)
		require.NoError(t, err)
		require.True(t, r.Result().Allowed && r.Result().Fallback, "%+v", r.Result())
		o.end()
		r, err = f.Reserve(ctx, "u", 1, 0)
		require.NoError(t, err)
		require.True(t, r.Result().Allowed && !r.Result().Fallback, "%+v", r.Result())
	}
}

// TestFinishSettlesAndReleases: two settlements and two releases, each by its own cost.
func TestFinishSettlesAndReleases(t *testing.T) {
	o := newOutage(t)
	bucket := ratelimit.Must(ratelimit.NewTokenBucket(o.client, ratelimit.PerHour(1), 10, ratelimit.WithName("a"), ratelimit.WithoutMerging()))
	window := ratelimit.Must(ratelimit.NewFixedWindow(o.client, 10, time.Hour, ratelimit.WithName("b"), ratelimit.WithoutMerging()))
	running := ratelimit.Must(ratelimit.NewInFlight(o.client, 2, time.Hour, ratelimit.WithName("c"), ratelimit.WithoutMerging()))
	others := ratelimit.Must(ratelimit.NewInFlight(o.client, 2, time.Hour, ratelimit.WithName("d"), ratelimit.WithoutMerging()))
	left := func() []int {
		return []int{
			must(t)(bucket.Peek(ctx, "k")).Remaining, must(t)(window.Peek(ctx, "k")).Remaining,
			must(t)(running.Peek(ctx, "k")).Remaining, must(t)(others.Peek(ctx, "k")).Remaining,
		}
	}
	call := func() ratelimit.AllResult {
		return acquire(t, ratelimit.ClaimOf(bucket, "k", 2).Estimate(), ratelimit.ClaimHold(running, "k", 1), ratelimit.ClaimOf(window, "k", 3).Estimate(), ratelimit.ClaimHold(others, "k", 1))
	}
	costs := func(p ratelimit.PartResult) int { return map[string]int{"a": 1, "b": 5}[p.Name] }
	require.NoError(t, call().Finish(ctx, costs))
	require.Equal(t, []int{9, 5, 2, 2}, left())
	require.NoError(t, call().Finish(ctx, nil), "estimates stay")
	require.Equal(t, []int{7, 2, 2, 2}, left())
	require.NoError(t, bucket.Reset(ctx, "k"))
	require.NoError(t, window.Reset(ctx, "k"))

	r := call()
	require.NoError(t, r.Do(ctx, func(context.Context) error { return nil }, costs))
	require.Equal(t, []int{9, 5, 2, 2}, left())

	ended, cancel := context.WithCancel(ctx)
	r = call()
	cancel()
	require.NoError(t, r.Finish(ended, costs), "even if the context has ended")
	require.Equal(t, []int{8, 0, 2, 2}, left())

	require.NoError(t, window.Reset(ctx, "k"))
	r = call()
	require.PanicsWithValue(t, "cost", func() {
		_ = r.Finish(ctx, func(p ratelimit.PartResult) int {
			if p.Name == "a" {
				panic("cost")
			}
			return 1
		})
	})
	require.Equal(t, []int{6, 9, 2, 2}, left(), "the rest was done")

	r = call()
	o.begin()
	err := r.Finish(ctx, costs)
	require.ErrorContains(t, err, `token bucket "a"`)
	require.ErrorContains(t, err, `fixed window "b"`)
	require.ErrorContains(t, err, `in-flight limiter "c"`)
	require.ErrorContains(t, err, `in-flight limiter "d"`)

	worked := errors.New("worked")
	o.end()
	require.NoError(t, bucket.Reset(ctx, "k"))
	require.NoError(t, window.Reset(ctx, "k"))
	require.NoError(t, running.Reset(ctx, "k"))
	require.NoError(t, others.Reset(ctx, "k"))
	require.Equal(t, worked, call().Do(ctx, func(context.Context) error { return worked }, costs))
	require.Equal(t, []int{9, 5, 2, 2}, left())
	r = call()
	require.NoError(t, r.Parts[1].Hold.Release(ctx))
	err = r.Do(ctx, func(context.Context) error { t.Error("the lease is over"); return nil }, costs)
	require.ErrorIs(t, err, ratelimit.ErrLeaseLost)
	require.Equal(t, []int{9, 5, 2, 2}, left(), "nothing was used")
	require.ErrorIs(t, (ratelimit.AllResult{}).Do(ctx, func(context.Context) error { return nil }, costs), ratelimit.ErrDenied)
}

// TestFinishOfTwoClientsAsksBothAtTheSameTime: no script can end calls of two clients.
func TestFinishOfTwoClientsAsksBothAtTheSameTime(t *testing.T) {
	o := newOutage(t)
	var arrived sync.WaitGroup
	arrived.Add(2)
	var meet atomic.Bool
	running := func() *ratelimit.InFlight {
		client := redis.NewClient(&redis.Options{Addr: o.server.Addr()})
		t.Cleanup(func() { _ = client.Close() })
		client.AddHook(onCommand(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			if meet.Load() {
				arrived.Done()
				arrived.Wait() // for ever, if one waited for the other
			}
			return next(ctx, cmd)
		}))
		return ratelimit.Must(ratelimit.NewInFlight(client, 2, time.Hour))
	}
	one, other := running(), running()
	r := acquire(t, ratelimit.ClaimHold(one, "k", 1))
	r.Parts = append(r.Parts, acquire(t, ratelimit.ClaimHold(other, "k", 1)).Parts...)
	meet.Store(true)
	require.NoError(t, r.Finish(ctx, nil))
	meet.Store(false)
	require.Equal(t, 2, must(t)(one.Peek(ctx, "k")).Remaining)
}

// TestAllOfLimitersInMemory is the secondary of a Fallback around an All on Redis.
func TestAllOfLimitersInMemory(t *testing.T) {
	o := newOutage(t)
	bucket := func(name string, n int) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.NewTokenBucket(o.client, ratelimit.PerHour(1), n, ratelimit.WithName(name)))
	}
	few, many := localBucket(2), ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerHour(1), 5, ratelimit.WithName("many")))
	local := ratelimit.Must(ratelimit.NewAll(few, many, ratelimit.AllowAll()))
	require.Equal(t, "default+many+default", local.Name())
	f := ratelimit.Must(ratelimit.NewFallback(ratelimit.Must(ratelimit.NewAll(bucket("a", 10), bucket("b", 20))), local))
	require.Equal(t, 9, must(t)(f.TryAcquire(ctx, "k")).Remaining)
	o.begin()
	r := must(t)(f.TryAcquireN(ctx, "k", 2))
	require.True(t, r.Allowed && r.Fallback)
	require.Equal(t, []int{2, 0}, []int{r.Limit, r.Remaining}, "of the limiter that governs")
	require.False(t, must(t)(f.TryAcquire(ctx, "k")).Allowed)
	require.Equal(t, []int{0, 3}, []int{must(t)(few.Peek(ctx, "k")).Remaining, must(t)(many.Peek(ctx, "k")).Remaining}, "all or nothing")
	require.Zero(t, must(t)(local.Peek(ctx, "k")).Remaining)
	require.Equal(t, 3, must(t)(few.Peek(ctx, "k")).Remaining+must(t)(many.Peek(ctx, "k")).Remaining)
	r = must(t)(f.TryAcquireN(ctx, "k", 3))
	require.Equal(t, ratelimit.Result{Limit: 2, Window: 2 * time.Hour, RetryAfter: time.Second, Fallback: true}, withoutReset(r))
	require.NoError(t, local.Reset(ctx, "k"))
	require.Equal(t, []bool{true, true}, verdicts(acquire(t, local.Claims("k", 2)[:2]...)))
	require.NoError(t, ratelimit.Preload(ctx, ratelimit.ClaimOf(local, "k", 1)))
	_, err := ratelimit.NewAll(few, few)
	require.ErrorContains(t, err, "NewAll: limiters 1 and 2 are one")
	_, err = ratelimit.NewAll(few, bucket("a", 1))
	require.ErrorContains(t, err, "limiter 1 is a *ratelimit.LocalTokenBucket, which does not decide on Redis")
}

// BenchmarkClaimsThroughPolicies: what a policy costs a call of two claims, in memory.
func BenchmarkClaimsThroughPolicies(b *testing.B) {
	bucket := func() ratelimit.Limiter {
		return ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1_000_000_000), 1_000_000_000))
	}
	around := map[string]func(ratelimit.Limiter) ratelimit.Limiter{
		"bare":      func(l ratelimit.Limiter) ratelimit.Limiter { return l },
		"Choice":    func(l ratelimit.Limiter) ratelimit.Limiter { return chosen(l) },
		"DenyCache": func(l ratelimit.Limiter) ratelimit.Limiter { return ratelimit.Must(ratelimit.NewDenyCache(l)) },
		"Fallback": func(l ratelimit.Limiter) ratelimit.Limiter {
			return ratelimit.Must(ratelimit.NewFallback(l, ratelimit.AllowAll()))
		},
	}
	for name, policy := range around {
		x, y := policy(bucket()), policy(bucket())
		b.Run(name+", two claims", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if r, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(x, "k", 1), ratelimit.ClaimOf(y, "k", 1)); err != nil || !r.Allowed {
					b.Fatal(r, err)
				}
			}
		})
		b.Run(name+", one estimate", func(b *testing.B) {
			b.ReportAllocs()
			s := x.(ratelimit.Settler)
			for b.Loop() {
				if _, r, err := s.Estimate(ctx, "k", 1); err != nil || !r.Allowed {
					b.Fatal(r, err)
				}
			}
		})
	}
}

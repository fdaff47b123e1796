package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/errclass"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/ratelimittest"
)

const unbounded = time.Duration(1 << 62)

// A nesting is a limit in two or three random policies, and a Redis whose outages begin and end in the middle of calls.
// Time is that of a bubble.
type nesting struct {
	t      *testing.T
	rng    *rand.Rand
	env    *ratelimittest.Env
	client *redis.Client // through the outages
	past   *redis.Client // past them

	says    []string // how it is built, from the inside
	limiter ratelimit.Limiter
	control ratelimit.Limiter // decides as limiter does, past policies and outages
	beside  ratelimit.Limiter // may be claimed with it
	limit   int
	still   bool          // no permit comes back with time
	gentle  bool          // outages only delay, by less than for which late answers are read
	bound   time.Duration // the most that a call may take
	budget  bool          // there is a bound on whoever asks this Redis

	isAll, isBans, isLeased, isBucket bool
	limitertest.Keys

	mu     sync.Mutex // guards what follows
	used   map[string]*usage
	seen   map[int64][]sighting
	calls  int64
	faults int
}

// A usage is what Redis has taken of a key.
type usage struct {
	least, most int
	vague       bool // least is not known
	charged     bool // perhaps beyond the limit
}

// A sighting is what an observer at a place got.
type sighting struct {
	place string
	ratelimit.Observation
}

type callID struct{}

// watch is an observer at a place.
func (n *nesting) watch(place string) ratelimit.Option {
	return ratelimit.WithObserver(func(ctx context.Context, o ratelimit.Observation) {
		if id, ok := ctx.Value(callID{}).(int64); ok && !strings.HasPrefix(place, "trial") { // which is asked in the background
			n.mu.Lock()
			defer n.mu.Unlock()
			n.seen[id] = append(n.seen[id], sighting{place, o})
		}
	})
}

// begin is the context of a call, and what was observed of it so far.
func (n *nesting) begin(ctx context.Context) (context.Context, func() []sighting) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls++
	id := n.calls
	return context.WithValue(ctx, callID{}, id), func() []sighting {
		n.mu.Lock()
		defer n.mu.Unlock()
		return slices.Clone(n.seen[id])
	}
}

// String is how it is built, from the outside.
func (n *nesting) String() string {
	says := slices.Clone(n.says)
	slices.Reverse(says)
	return strings.Join(says, " around ")
}

func (n *nesting) failf(seen []sighting, format string, args ...any) {
	n.t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.faults++; n.faults > 3 {
		return
	}
	var all strings.Builder
	for _, s := range seen {
		fmt.Fprintf(&all, "\n\t%s: %s %s %s n=%d taken=%d %+v error=%v reason=%v batch=%d %v", s.place, s.Call, s.Outcome, s.Source, s.N, s.Taken, s.Result, s.Err, s.Reason, s.Batch, s.Latency)
	}
	n.t.Errorf("%s, still %v, gentle %v\n"+format+"%s", append(append([]any{n, n.still, n.gentle}, args...), &all)...)
}

// newWorld is a nesting without its limiter.
func newWorld(t *testing.T, rng *rand.Rand) *nesting {
	n := &nesting{
		t: t, rng: rng, env: ratelimittest.New(t), bound: unbounded, used: map[string]*usage{}, seen: map[int64][]sighting{},
		limit: 4 + rng.IntN(20), still: rng.IntN(3) > 0, gentle: rng.IntN(3) == 0,
	}
	n.client = n.env.Client()
	if rng.IntN(3) == 0 {
		n.client = redis.NewClient(ratelimit.Must(ratelimit.ClientOptions(20*milli, n.env.Options())))
		n.says, n.gentle = append(n.says, "ClientOptions"), false // a reply is lost after 100 ms
	}
	n.past = redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaintNotificationsConfig: n.env.Options().MaintNotificationsConfig,
		Dialer: func(context.Context, string, string) (net.Conn, error) { return n.env.Miniredis().Dial() }})
	t.Cleanup(func() { _, _ = n.client.Close(), n.past.Close() })
	return n
}

// newNesting builds one from the inside.
func newNesting(t *testing.T, rng *rand.Rand, end context.Context) *nesting {
	n := newWorld(t, rng)
	window := time.Duration(1+rng.IntN(4)) * time.Second
	kind := limitertest.Kinds()[rng.IntN(len(limitertest.Kinds()))]
	switch {
	case n.still && kind.Tenants: // whose permits take at most two hours to come back
		window = 2 * time.Hour
	case n.still:
		window = 1000 * time.Hour
	}
	n.isBucket, n.Keys = strings.Contains(kind.Name, "Bucket") && !kind.Tenants, kind.Keys
	n.says = append(n.says, fmt.Sprintf("%s of %d in %v", kind.Name, n.limit, window))
	build := func(c ratelimit.Client, name string, limit int) ratelimit.Limiter {
		return ratelimit.Must(kind.Build(c, limit, window, ratelimit.WithName(name), n.watch(name)))
	}
	l := build(n.client, "core", n.limit)
	n.control = build(n.past, "core", n.limit)
	switch rng.IntN(6) {
	case 0:
		n.isAll, n.says = true, append(n.says, "All")
		l = ratelimit.Must(ratelimit.NewAll(l, build(n.client, "second", n.limit+2)))
		n.control = ratelimit.Must(ratelimit.NewAll(n.control, build(n.past, "second", n.limit+2)))
	case 1:
		n.isBans, n.says = true, append(n.says, "Bans")
		bans := func(l ratelimit.Limiter, c ratelimit.Client) ratelimit.Limiter {
			return ratelimit.Must(ratelimit.NewBans(l, ratelimit.Must(ratelimit.NewPause(c)), []time.Duration{50 * milli, 300 * milli}, time.Second))
		}
		l, n.control = bans(l, n.client), bans(n.control, n.past)
	case 2:
		if leased, err := ratelimit.NewLeased(l, n.watch("slices")); err == nil {
			l, n.isLeased, n.says = leased, true, append(n.says, "Leased")
			t.Cleanup(func() { _ = leased.Close(context.Background()) })
		}
	}
	for range 2 + rng.IntN(2) {
		l = n.wrap(l, build, end)
	}
	n.limiter = l
	n.beside = ratelimit.Must(ratelimit.NewFallback(build(n.client, "beside", 10_000), ratelimit.AllowAll(), ratelimit.WithBudget(25*milli)))
	return n
}

// wrap puts a random policy around l.
func (n *nesting) wrap(l ratelimit.Limiter, build func(ratelimit.Client, string, int) ratelimit.Limiter, end context.Context) ratelimit.Limiter {
	place := fmt.Sprint(len(n.says))
	switch n.rng.IntN(5) {
	case 2:
		if c, err := ratelimit.NewDenyCache(l, n.watch("cache "+place)); err == nil {
			n.says = append(n.says, "DenyCache")
			return c
		}
	case 3:
		if !n.isAll && !n.isBans && !n.isLeased && len(n.says) == 1 && n.rng.IntN(2) == 0 {
			return n.plans(l, build, end)
		}
		n.says = append(n.says, "Choice")
		return chosen(l)
	case 4:
		trial := build(n.client, "trial "+place, n.limit)
		if n.rng.IntN(2) == 0 {
			trial = localBucket(n.limit)
		}
		n.says = append(n.says, "Shadow")
		return ratelimit.Must(ratelimit.NewShadow(l, trial, func(ratelimit.Trial) {}))
	}
	secondary, bound, says := n.secondary(build)
	return ratelimit.Must(ratelimit.NewFallback(l, secondary, n.fallback(place, says, bound)...))
}

// fallback is the options of a Fallback whose secondary takes so long at most.
func (n *nesting) fallback(place, says string, secondary time.Duration) []ratelimit.PolicyOption {
	opts := []ratelimit.PolicyOption{n.watch("fallback " + place)}
	if n.rng.IntN(4) > 0 {
		budget := time.Duration(1+n.rng.IntN(40)) * milli
		opts, says = append(opts, ratelimit.WithBudget(budget)), fmt.Sprint(says, ", ", budget)
		n.bound, n.budget = budget, true // those inside may wait for their turn first
	}
	if n.bound != unbounded {
		n.bound += secondary
	}
	if n.rng.IntN(3) > 0 {
		opts, says = append(opts, ratelimit.WithBreaker(&ratelimit.Breaker{Failures: 1 + n.rng.IntN(5)})), says+", breaker"
	}
	n.says = append(n.says, "Fallback("+says+")")
	return opts
}

// plans is a Choice of two limits with one state, which changes its mind until end.
func (n *nesting) plans(l ratelimit.Limiter, build func(ratelimit.Client, string, int) ratelimit.Limiter, end context.Context) ratelimit.Limiter {
	n.says = append(n.says, "Choice of two plans")
	larger, control := build(n.client, "core", 2*n.limit), [2]ratelimit.Limiter{n.control, build(n.past, "core", 2*n.limit)}
	n.limit *= 2
	var mu sync.Mutex
	raised := false
	n.control = ratelimit.Must(ratelimit.NewChoice(func(context.Context, string) (ratelimit.Limiter, error) {
		mu.Lock()
		defer mu.Unlock()
		return map[bool]ratelimit.Limiter{false: control[0], true: control[1]}[raised], nil
	}))
	every := time.Duration(300+n.rng.IntN(500)) * milli
	go func() {
		for end.Err() == nil {
			time.Sleep(every)
			mu.Lock()
			raised = !raised
			mu.Unlock()
		}
	}()
	return ratelimit.Must(ratelimit.NewChoice(func(context.Context, string) (ratelimit.Limiter, error) {
		mu.Lock()
		defer mu.Unlock()
		return map[bool]ratelimit.Limiter{false: l, true: larger}[raised], nil
	}))
}

// secondary is a random secondary, and the most time that it takes.
func (n *nesting) secondary(build func(ratelimit.Client, string, int) ratelimit.Limiter) (ratelimit.Limiter, time.Duration, string) {
	local := func(o ...ratelimit.Option) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(5), 1+n.rng.IntN(n.limit), o...))
	}
	switch n.rng.IntN(6) {
	case 0:
		return ratelimit.AllowAll(), 0, "AllowAll"
	case 1:
		return ratelimit.DenyAll(), 0, "DenyAll"
	case 2:
		return local(), 0, "local"
	case 3:
		return local(ratelimit.WithLastAnswers()), 0, "local with last answers"
	case 4:
		return chosen(local(ratelimit.WithLastAnswers())), 0, "Choice of local with last answers"
	}
	other := ratelimittest.New(n.t)
	other.Slow(milli)
	l := build(other.Client(), fmt.Sprint("standby ", len(n.says)), n.limit)
	return ratelimit.Must(ratelimit.NewFallback(l, ratelimit.DenyAll(), ratelimit.WithBudget(15*milli))), 15 * milli, "standby"
}

// outages makes outages until ctx ends, and leaves the server well.
func (n *nesting) outages(ctx context.Context, rng *rand.Rand) {
	pause := func(most int) {
		select {
		case <-time.After(time.Duration(1+rng.IntN(most*1000)) * time.Microsecond):
		case <-ctx.Done():
		}
	}
	usual := time.Duration(200+rng.IntN(2000)) * time.Microsecond
	for ctx.Err() == nil {
		n.env.Slow(usual)
		pause(150)
		kind := rng.IntN(6)
		if n.gentle {
			kind = 0
		}
		switch kind {
		case 0, 1:
			n.env.Slow(time.Duration(5+rng.IntN(100)) * milli)
			pause(300)
		case 2: // it hangs
			n.env.Slow(time.Duration(1+rng.IntN(5)) * time.Second)
			pause(1500)
		case 3:
			n.env.Down()
			pause(800)
		case 4:
			n.env.LoseReplies(1 + rng.IntN(5))
			pause(100)
		case 5:
			n.env.FailWith("LOADING Redis is loading the dataset in memory")
			pause(500)
		}
		n.env.Up()
	}
}

// An outcomeOf is what a call brought.
type outcomeOf struct {
	ratelimit.Result
	err      error
	taken    int
	ticket   *ratelimit.Ticket
	reserved *ratelimit.Reservation
	parts    []ratelimit.PartResult
	mistakes bool // the limiter cannot do it, outage or not
	returns  bool // what an abandoned call takes is given back
	takes    bool
	attempts bool // several, so that neither their time is bounded nor each observed once
}

// ask makes one random call for so many permits.
func (n *nesting) ask(ctx context.Context, rng *rand.Rand, key string, permits int) (what string, o outcomeOf) {
	all := n.limiter.(interface {
		ratelimit.Limiter
		ratelimit.Settler
		TryAcquireUpTo(ctx context.Context, key string, n int) (int, ratelimit.Result, error)
		Reserve(ctx context.Context, key string, n int, maxWait time.Duration) (*ratelimit.Reservation, error)
	})
	claim := ratelimit.ClaimOf(n.limiter, key, permits)
	several := func(r ratelimit.AllResult, err error) {
		if o.Result, o.err, o.parts = r.Result, err, r.Parts; err == nil {
			o.ticket = r.Parts[0].Ticket
		}
	}
	o.takes = true
	switch rng.IntN(13) {
	case 0:
		what, o.takes = "peek", false
		o.Result, o.err = all.Peek(ctx, key)
	case 1:
		what, o.takes = "look", false
		several(ratelimit.Look(ctx, claim))
	case 2:
		what, o.mistakes = "up to", n.isAll
		o.taken, o.Result, o.err = all.TryAcquireUpTo(ctx, key, permits)
	case 3:
		what, o.mistakes, o.returns = "estimate", n.isAll, true
		o.ticket, o.Result, o.err = all.Estimate(ctx, key, permits)
	case 4:
		what, o.mistakes = "charge", n.isAll
		o.Result, o.err = all.Charge(ctx, key, permits)
	case 5:
		what, o.mistakes, o.returns = "reserve", !n.isBucket || n.isAll || n.isBans, true
		wait := time.Duration(rng.IntN(1000)) * milli
		if n.still {
			wait = 0
		}
		o.reserved, o.err = all.Reserve(ctx, key, permits, wait)
		o.Result = o.reserved.Result()
	case 6:
		what, o.attempts = "wait", true
		short, stop := context.WithTimeout(ctx, 30*milli)
		defer stop()
		o.Result, o.err = ratelimit.WaitN(short, n.limiter, key, permits)
	case 7:
		what, o.attempts, o.mistakes = "once", true, n.isAll
		id := fmt.Sprint(rng.Uint64())
		for range 1 + rng.IntN(3) {
			several(ratelimit.TryAcquireOnce(ctx, id, time.Hour, claim))
			if o.err == nil {
				break
			}
		}
	case 8:
		what, o.mistakes, o.returns, o.attempts = "several", n.isAll, true, true
		decide := []func(context.Context, ...ratelimit.Claim) (ratelimit.AllResult, error){ratelimit.TryAcquireAll, ratelimit.TryAcquireAcrossSlots}[rng.IntN(2)]
		several(decide(ctx, claim.Estimate(), ratelimit.ClaimOf(n.beside, key, 1).Estimate()))
	case 9:
		what, o.takes, o.attempts = "reset", false, true
		n.mu.Lock()
		n.usage(key).vague = true // it may take effect after an error too
		n.mu.Unlock()
		o.err = n.limiter.Reset(ctx, key)
		o.Allowed = o.err == nil
	case 10:
		what, o.mistakes = "too many", true
		o.Result, o.err = all.TryAcquireN(ctx, key, 3*n.limit+3)
	default:
		what = "take"
		o.Result, o.err = all.TryAcquireN(ctx, key, permits)
	}
	if o.taken == 0 && o.Allowed && what != "up to" {
		o.taken = permits
	}
	return what, o
}

// call makes one random call of key and judges its answer. alone says that no other caller does anything meanwhile. The
// ticket is that of an estimate on this Redis.
func (n *nesting) call(rng *rand.Rand, key string, alone bool) (e estimateOf) {
	permits := 1 + rng.IntN(min(n.limit, 4))
	parent, leaves := context.Background(), unbounded
	if rng.IntN(4) == 0 {
		leaves = time.Duration(1+rng.IntN(60_000)) * time.Microsecond
		var cancel context.CancelFunc
		if rng.IntN(2) == 0 {
			parent, cancel = context.WithTimeout(parent, leaves)
		} else {
			parent, cancel = context.WithCancel(parent)
			defer time.AfterFunc(leaves, cancel).Stop()
		}
		defer cancel()
	}
	ctx, observed := n.begin(parent)
	began := time.Now()
	what, o := n.ask(ctx, rng, key, permits)
	took, seen := time.Since(began), observed()
	if rng.IntN(2) == 0 {
		_ = o.reserved.Cancel(context.Background())
	}

	switch denied := errors.Is(o.err, ratelimit.ErrWaitTooLong) && (what == "reserve" || what == "wait"); {
	case o.mistakes && parent.Err() == nil && !errclass.IsMistake(o.err):
		n.failf(seen, "%s: %+v, %v, which is a mistake", what, o.Result, o.err)
	case o.mistakes:
		return e
	case errclass.IsMistake(o.err), errors.Is(o.err, ratelimit.ErrCorruptState), errclass.Is(o.err, errclass.Decision) && !denied:
		n.failf(seen, "%s: %v, which is not true", what, o.err)
	case o.err != nil && o.Result != (ratelimit.Result{}):
		n.failf(seen, "%s: %+v beside %v", what, o.Result, o.err)
	case o.err == nil && o.Allowed == (o.RetryAfter > 0) && what != "up to":
		n.failf(seen, "%s: %+v", what, o.Result)
	case n.budget && !o.attempts && took > min(n.bound, leaves):
		n.failf(seen, "%s took %v of %v: %+v, %v", what, took, min(n.bound, leaves), o.Result, o.err)
	}
	if o.takes {
		n.book(what, key, permits, o)
	}
	if !o.attempts {
		n.reported(what, o, seen, took)
	}
	if alone && o.err == nil && fromMemory(seen) {
		n.deniedTruly(key, permits)
	}
	if o.Fallback || o.parts != nil && o.parts[0].Result.Fallback {
		_ = o.ticket.Settle(context.Background(), rng.IntN(permits+1))
		return e
	}
	return estimateOf{o.ticket, key, permits}
}

// book notes what a call may have taken from Redis.
func (n *nesting) book(what, key string, permits int, o outcomeOf) {
	n.mu.Lock()
	defer n.mu.Unlock()
	u := n.usage(key)
	u.charged = u.charged || what == "charge"
	switch {
	case o.err == nil && !o.Fallback && !o.Unlimited():
		u.least, u.most = u.least+o.taken, u.most+o.taken
	case o.returns && n.gentle && n.budget: // when the late answer comes
	default:
		u.most += permits
	}
}

func (n *nesting) usage(key string) *usage {
	if n.used[key] == nil {
		n.used[key] = &usage{}
	}
	return n.used[key]
}

// reported checks who has reported a call that has returned.
func (n *nesting) reported(what string, o outcomeOf, seen []sighting, took time.Duration) {
	places, fits := map[string]int{}, false
	for _, s := range seen {
		switch s.Call {
		case "settle", "release", "cancel", "lease", "return", "pause": // what is given back of an abandoned call, and what limiters do
			continue
		}
		if places[s.place]++; places[s.place] > 1 {
			n.failf(seen, "%s is reported twice by %s: %+v, %v", what, s.place, o.Result, o.err)
		}
		if s.Latency < 0 || s.Latency > took {
			n.failf(seen, "%s took %v: %v is reported by %s", what, took, s.Latency, s.place)
		}
		failed := s.Outcome == ratelimit.OutcomeFailed || s.Outcome == ratelimit.OutcomeCanceled || s.Err != nil
		byFallback := s.Source == ratelimit.SourceFallback
		switch {
		case failed != (o.err != nil), byFallback != o.Fallback && o.err == nil, byFallback && s.Reason == nil:
		case failed, s.Result == o.Result, (n.isAll || n.isBans) && s.Result.Allowed == o.Allowed:
			fits = true
		}
	}
	if !fits && !(n.isBans && !o.Allowed) { // by a pause, which has no observers
		n.failf(seen, "%s: nobody reports %+v, %v", what, o.Result, o.err)
	}
}

// allows asks Redis, past policies and outages. ok is false if it cannot be asked.
func (n *nesting) allows(key string, permits int) (allowed, ok bool) {
	r, err := ratelimit.Look(context.Background(), ratelimit.ClaimOf(n.control, key, permits))
	return r.Allowed, err == nil
}

// deniedTruly checks that Redis denies what memory has denied, while nobody else calls.
func (n *nesting) deniedTruly(key string, permits int) {
	synctest.Wait() // what is given back in this moment
	before, ok := n.allows(key, permits)
	ctx, observed := n.begin(context.Background())
	r, err := ratelimit.Look(ctx, ratelimit.ClaimOf(n.limiter, key, permits))
	after, ok2 := n.allows(key, permits)
	n.mu.Lock()
	reset := n.usage(key).vague // which may take effect late, and no cache hears of that
	n.mu.Unlock()
	if before && ok && after && ok2 && err == nil && fromMemory(observed()) && !r.Allowed && !reset {
		n.failf(observed(), "memory denies %d permits of %s, Redis does not: %+v", permits, key, r.Result)
	}
}

func fromMemory(seen []sighting) bool {
	return slices.ContainsFunc(seen, func(s sighting) bool { return s.Source == ratelimit.SourceMemory })
}

// settle settles an estimate by less, or by one permit more.
func (n *nesting) settle(rng *rand.Rand, e estimateOf) {
	actual := rng.IntN(e.n + 2)
	ctx, observed := n.begin(context.Background())
	err := e.Settle(ctx, actual)
	if errclass.IsMistake(err) || errclass.Is(err, errclass.Decision) {
		n.failf(observed(), "settle: %v", err)
	}
	if seen := observed(); len(seen) != 1 || seen[0].Call != "settle" || (seen[0].Err == nil) != (err == nil) {
		n.failf(seen, "settle by %d, %v", actual, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	u, more := n.usage(e.key), actual-e.n
	u.charged = u.charged || more > 0
	if more < 0 || err == nil {
		u.least += more
	}
	if more > 0 || err == nil {
		u.most += more
	}
}

// An estimateOf is an estimate that Redis has decided.
type estimateOf struct {
	*ratelimit.Ticket
	key string
	n   int
}

// rest checks what is true when the outages are over and nobody calls.
func (n *nesting) rest(keys []string) {
	for range 12 { // the breakers close
		time.Sleep(300 * milli)
		_, _ = n.limiter.Peek(context.Background(), keys[0])
	}
	synctest.Wait()
	for _, key := range keys {
		ctx, observed := n.begin(context.Background())
		if r, err := n.limiter.Peek(ctx, key); err != nil || r.Fallback {
			n.failf(observed(), "after the outage: %+v, %v", r, err)
		}
		if allowed, _ := n.allows(key, 1); allowed && !n.usage(key).vague { // no cache hears of a Reset that takes effect late
			if r, err := ratelimit.Look(ctx, ratelimit.ClaimOf(n.limiter, key, 1)); err != nil || !r.Allowed {
				n.failf(observed(), "after the outage Redis would allow a permit of %s: %+v, %v", key, r, err)
			}
		}
		r, u := must(n.t)(n.control.Peek(context.Background(), key)), n.usage(key)
		taken := r.Limit - r.Remaining
		if n.Tenants { // one does not get an eighth
			taken -= (r.Limit + 7) / 8
		}
		switch {
		case !n.still || n.isLeased, n.Tenants && u.vague: // a share stays kept for a tenant that was reset
		case r.Remaining > 0 && !u.vague && taken < u.least, taken > u.most:
			n.failf(nil, "%d permits of %s are taken, not %d to %d: %+v", taken, key, u.least, u.most, r)
		case u.least > n.limit && !u.charged && !u.vague:
			n.failf(nil, "%d permits of %s were allowed, of %d", u.least, key, n.limit)
		}
		if !n.still && !n.isLeased && !n.isBans {
			n.keepsPromise(key)
		}
	}
}

// keepsPromise checks guarantee 7, by which RetryAfter is exact.
func (n *nesting) keepsPromise(key string) {
	grain := time.Microsecond
	if strings.Contains(n.String(), "FixedWindow") {
		grain = milli
	}
	for range 2*n.limit + 2 {
		ctx, observed := n.begin(context.Background())
		r := must(n.t)(n.limiter.TryAcquire(ctx, key))
		if r.Allowed {
			continue
		}
		if fromMemory(observed()) { // and may be older than a charge
			time.Sleep(r.RetryAfter)
			continue
		}
		time.Sleep(r.RetryAfter - grain)
		early := must(n.t)(n.limiter.TryAcquire(ctx, key))
		time.Sleep(grain)
		if due := must(n.t)(n.limiter.TryAcquire(ctx, key)); early.Allowed || !due.Allowed {
			n.failf(observed(), "RetryAfter of %s is not exact: %+v, early %+v, then %+v", key, r, early, due)
		}
		return
	}
	n.failf(nil, "%s is never denied", key)
}

// TestNestingsThroughOutages: whatever policies are around each other, Redis allows no more than the rule and gets back what is
// given back, a budget is kept, the caller is not blamed for an outage, each call is reported by whoever answers it, and when
// Redis is back, nothing is denied that it would allow.
func TestNestingsThroughOutages(t *testing.T) {
	throughOutages(t, 3000, 15, func(t *testing.T, rng *rand.Rand, end context.Context) (*nesting, func(*rand.Rand, bool), func()) {
		n := newNesting(t, rng, end)
		keys := []string{n.Of("a"), n.Of("b"), n.Of("c")}[:1+rng.IntN(3)]
		var mu sync.Mutex
		var open []estimateOf
		settleOne := func(rng *rand.Rand) bool {
			mu.Lock()
			if len(open) == 0 {
				mu.Unlock()
				return false
			}
			e := open[0]
			open = open[1:]
			mu.Unlock()
			n.settle(rng, e)
			return true
		}
		call := func(rng *rand.Rand, alone bool) {
			if e := n.call(rng, keys[rng.IntN(len(keys))], alone); e.Ticket != nil {
				mu.Lock()
				open = append(open, e)
				mu.Unlock()
			}
			if rng.IntN(3) == 0 {
				settleOne(rng)
			}
		}
		return n, call, func() {
			for settleOne(rng) {
			}
			n.rest(keys)
		}
	})
}

// throughOutages runs a nesting in each of many bubbles: callers that call until its end, beside outages, and then the rest.
func throughOutages(t *testing.T, full, usual int, build func(t *testing.T, rng *rand.Rand, end context.Context) (n *nesting, call func(rng *rand.Rand, alone bool), rest func())) {
	seed := limitertest.Seed(t)
	nestings, calls := max(3, limitertest.Rounds(full, usual)), int64(0)
	for i := range nestings {
		bubble(t, func(t *testing.T) {
			dice := func(who int) *rand.Rand { return rand.New(rand.NewPCG(seed, uint64(i)<<16+uint64(who))) }
			rng := dice(0)
			end, stop := context.WithTimeout(context.Background(), time.Duration(1+rng.IntN(4))*time.Second)
			defer stop()
			n, call, rest := build(t, rng, end)
			callers := 1
			if rng.IntN(2) == 0 {
				callers = 2 + rng.IntN(12)
			}
			var all sync.WaitGroup
			all.Go(func() { n.outages(end, dice(1)) })
			for c := range callers {
				rng := dice(2 + c)
				all.Go(func() {
					for end.Err() == nil {
						time.Sleep(time.Duration(rng.IntN(20_000)) * time.Microsecond)
						call(rng, callers == 1)
					}
				})
			}
			all.Wait()
			time.Sleep(8 * time.Second) // for what is under way
			rest()
			calls += n.calls
		})
		if t.Failed() {
			t.Fatalf("nesting %d", i)
		}
	}
	t.Logf("%d nestings, %d calls", nestings, calls)
}

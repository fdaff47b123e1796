package ratelimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tryacquire/ratelimit/internal/exact"
	"github.com/tryacquire/ratelimit/internal/keyname"
	"github.com/tryacquire/ratelimit/internal/limitername"
)

// All is several limiters on one key, as one [Limiter]: a call takes its permits from every limiter, or from none, by
// one script in one round trip. "100 a second with a burst of 20, and 5,000 an hour":
//
//	second := ratelimit.Must(ratelimit.NewTokenBucket(
//		client, ratelimit.PerSecond(100), 20, ratelimit.WithName("second")))
//	hour := ratelimit.Must(ratelimit.NewSlidingWindow(
//		client, 5000, time.Hour, ratelimit.WithName("hour")))
//	both, err := ratelimit.NewAll(second, hour)
//
// The Result is that of the limiter that governs: if the call is denied, the one with the longest RetryAfter,
// otherwise the one with the fewest permits left. ResetAfter is the longest of all. [TryAcquireAll] gives the Result
// of each limiter, and takes keys of its own for each.
//
// The limiters are those of this package that decide on Redis, at most eight, on one client and by one clock: the
// server's, or that of the first limiter if all have [WithClock]. Each keeps its own state, so calls to it outside of
// the All count too. Limiters in memory can be an All of their own. Put decorators around the All; see
// docs/composing.md.
type All struct {
	group    *group // on Redis
	limiters []*core
	memory   []Claim // on limiters in memory, without key and permits
	name     string  // of all of them
	most     int     // permits that one call can get from each of them
}

func (a *All) kind() kind {
	k := kind{self: a, role: several, most: a.most}
	if a.group != nil {
		k.client = a.group.exec.Client
	}
	return k
}

// NewAll returns a limiter that allows a call if all limiters allow it. The error wraps ErrInvalidConfig: no limiter,
// more than eight, some on Redis and some in memory, a decorator, one that is given twice or has the name and the
// algorithm of another, limiters on several clients, or some with WithClock and some without. Redis is not asked.
func NewAll(limiters ...Limiter) (*All, error) {
	if len(limiters) > 0 && len(limiters) <= maxGroup && !slices.ContainsFunc(limiters, func(l Limiter) bool { return !isInMemory(l) }) {
		return allInMemory(limiters)
	}
	cores := make([]*core, len(limiters))
	for i, l := range limiters {
		c, err := redisCore(l)
		if err != nil {
			return nil, invalidConfig("NewAll: limiter %d %v", i+1, err)
		}
		for j, other := range cores[:i] {
			if other.head == c.head {
				return nil, invalidConfig("NewAll: limiters %d and %d are both the %s, and share their state; give each a name of its own", j+1, i+1, c.title)
			}
		}
		cores[i] = c
	}
	g, err := newGroup(cores, make([]bool, len(cores)))
	if err != nil {
		return nil, fmt.Errorf("%w (NewAll)", err)
	}
	a := &All{group: g, limiters: cores}
	a.sumUp()
	return a, nil
}

// isInMemory reports whether l is one of this package's that needs no Redis.
func isInMemory(l Limiter) bool {
	k := kindOf(l)
	return !k.absent && k.role == inMemory
}

func allInMemory(limiters []Limiter) (*All, error) {
	a := &All{}
	for i, l := range limiters {
		for j, other := range limiters[:i] {
			if l == other && !isConstant(l) {
				return nil, invalidConfig("NewAll: limiters %d and %d are one", j+1, i+1)
			}
		}
		a.memory = append(a.memory, ClaimOf(l, "", 1))
	}
	a.sumUp()
	return a, nil
}

// sumUp notes what is asked in each call: the name, and the most permits.
func (a *All) sumUp() {
	var names []string
	a.most = exact.Permits
	for _, c := range a.memory {
		names = append(names, cmp.Or(c.name, limitername.Default))
		if m := c.most(); m > 0 {
			a.most = min(a.most, m)
		}
	}
	storing := 0
	for _, c := range a.limiters {
		names = append(names, c.name)
		a.most = min(a.most, c.most)
		if c.stores() {
			storing++
			a.most = min(a.most, maxStored/storing)
		}
	}
	a.name = strings.Join(names, "+")
}

func (a *All) made() bool { return a != nil && (a.group != nil || a.memory != nil) }

// redisCore returns what decides for l on Redis. The error says what l is instead.
func redisCore(l Limiter) (*core, error) {
	switch k := kindOf(l); {
	case k.core != nil:
		return k.core, nil
	case l != nil && k.unmade():
		return nil, fmt.Errorf("is a %T that its constructor did not make", l)
	case k.role == decorator && isLeased(l):
		return nil, fmt.Errorf("is a %T, whose slices an All does not spend: give the limiter inside, which may be asked beside them", l)
	case k.role == decorator:
		return nil, fmt.Errorf("is a %T, which cannot be inside an All: put it around what NewAll returns", l)
	case k.role == several:
		return nil, fmt.Errorf("is a %T; give its limiters one by one", l)
	}
	return nil, fmt.Errorf("is a %T, which does not decide on Redis", l)
}

// TryAcquire takes one permit of key from every limiter, or from none. It is
// TryAcquireN(ctx, key, 1).
func (a *All) TryAcquire(ctx context.Context, key string) (Result, error) {
	return a.decide(ctx, acquire, key, 1)
}

// TryAcquireN takes n permits of key from every limiter, or from none. Its errors are those of [Limiter];
// ErrExceedsLimit if n is more than one of them can ever allow, or than 10,000 divided by the number of sliding
// windows with [StorageZSet].
func (a *All) TryAcquireN(ctx context.Context, key string, n int) (Result, error) {
	return a.decide(ctx, acquire, key, n)
}

// Peek returns what key has left now, and changes nothing: the Result of the limiter
// that would govern a call for one permit. Its errors are those of TryAcquire.
func (a *All) Peek(ctx context.Context, key string) (Result, error) {
	return a.decide(ctx, look, key, 1)
}

func (a *All) peekN(ctx context.Context, key string, n int) (Result, error) {
	return a.decide(ctx, look, key, n)
}

func (a *All) decide(ctx context.Context, op *operation, key string, n int) (Result, error) {
	if !a.made() {
		return Result{}, errUnmade
	}
	c := newCall(op)
	c.claims = a.claims(c.claims, key, n)
	c.group, c.whole = a.group, true
	o := c.decideTogether(ctx)
	c.done()
	return o.result, o.err
}

// Reset deletes the state of key in every limiter; after an error, perhaps in some of them.
func (a *All) Reset(ctx context.Context, key string) error {
	if !a.made() {
		return errUnmade
	}
	if a.memory != nil {
		var errs []error
		for _, c := range a.memory {
			errs = append(errs, c.outer.(Limiter).Reset(ctx, key))
		}
		return errors.Join(errs...)
	}
	return a.group.reset(ctx, a.claims(nil, key, 1))
}

// Claims returns a claim for n permits of key from each limiter, in the order of NewAll's arguments.
func (a *All) Claims(key string, n int) []Claim {
	if !a.made() {
		return []Claim{{}}
	}
	return a.claims(nil, key, n)
}

func (a *All) claims(to []Claim, key string, n int) []Claim {
	for _, c := range a.memory {
		c.key, c.n = key, n
		to = append(to, c)
	}
	for _, c := range a.limiters {
		to = append(to, Claim{limiter: c, key: key, n: n})
	}
	return to
}

// Name is the names of the limiters, joined by "+".
func (a *All) Name() string {
	if a == nil {
		return ""
	}
	return a.name
}

// A Claim says what a call takes from one limiter: n permits of a key, see [TryAcquireAll].
type Claim struct {
	limiter *core // that decides on Redis
	outer   any   // what decides if limiter is nil: a policy, or a limiter in memory
	name    string
	key     string
	n       int
	settle  bool     // see Estimate
	as      *string  // see As; nil: the library makes an id
	hearers *hearers // of what is given back
}

// title names the claim's limiter in errors.
func (c *Claim) title() string {
	if c.limiter != nil {
		return "the " + c.limiter.title
	}
	return fmt.Sprintf("the limiter %q", c.name)
}

// most is the most permits that one call can get, 0 if that is not known.
func (c *Claim) most() int {
	if c.limiter != nil {
		return c.limiter.most
	}
	return kindOf(c.outer).most
}

// ClaimOf is a claim for n permits of key from l, any limiter or decorator of this package. [TryAcquireAll] returns
// an error for others, and for limiters in memory beside limiters on Redis, except as the secondaries of a
// [Fallback].
func ClaimOf(l Limiter, key string, n int) Claim { return claimOn(l, key, n) }

// ClaimHold is ClaimOf for permits that are held: the [PartResult] then has a [Hold].
func ClaimHold(h Holder, key string, n int) Claim { return claimOn(h, key, n) }

// Estimate makes an estimate of the claim: if the call is allowed, the [PartResult] has a
// [Ticket], which settles what the work has really cost. See [Settler].
func (c Claim) Estimate() Claim {
	c.settle = true
	return c
}

// An AllResult is the answer to several claims: the Result of the claim that governs (see
// [All]), and the Result of each claim.
type AllResult struct {
	Result
	Parts []PartResult // in the order of the claims

	Repeated bool // the answer is that of an earlier call with the id, see TryAcquireOnce; a hold was there, see Claim.As
}

// A PartResult is the answer to one claim of several. Its Result.Allowed says whether this
// limiter had the permits, RetryAfter when it will have them. If another limiter denied the
// call, this one took nothing either, and the other fields say what it has now.
type PartResult struct {
	Name   string // the limiter's
	Key    string
	Result Result
	Hold   *Hold   // of an [InFlight], if all limiters allowed the call; otherwise nil
	Ticket *Ticket // of a [Claim.Estimate], if all limiters allowed the call; otherwise nil

	// Unknown reports that this limiter was not asked, because other claims denied the
	// call, from the memory of a [DenyCache] or by [DenyAll]. Result is then zero, and the RetryAfter
	// of the call may be too short: it is the longest of those claims.
	Unknown bool

	bucket   bool // a token or leaky bucket answered; package integration reads it
	repeated bool // see AllResult.Repeated
}

// Do runs work as [InFlight.Do] does, for all Holds at the same time, and then does what [AllResult.Finish] does, even if
// work panics. If a lease may have ended before, or the call was denied (a *[DeniedError]), work does not run, and Tickets
// are settled by 0 unless used is nil. Without a Hold it is work(ctx). The error joins what work returns with one that wraps
// ErrLeaseLost if a lease was lost, and with those of [Ticket.Settle], and not those of [Hold.Release].
func (r AllResult) Do(ctx context.Context, work func(ctx context.Context) error, used func(PartResult) int) (err error) {
	if work == nil {
		return errNoWork
	}
	if err := r.Err(); err != nil {
		return err
	}
	var space [maxGroup]*Hold
	holds := r.holds(space[:0])
	began := false
	lost := make([]bool, len(holds))
	stopKeeping := func() {}
	defer func() {
		stopKeeping()
		var wanted []*Hold
		for i, h := range holds {
			if lost[i] { // nobody needs the release
				if err == nil {
					err = h.leaseLost()
				} else {
					err = errors.Join(err, h.leaseLost())
				}
				go h.leave(ctx)
			} else {
				wanted = append(wanted, h)
			}
		}
		cost := used
		if used != nil && !began {
			cost = func(PartResult) int { return 0 }
		}
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTime)
		defer cancel()
		settled, _ := r.finish(bounded, cost, wanted)
		if settled != nil {
			err = errors.Join(err, settled)
		}
	}()
	inner := ctx
	for i, h := range holds {
		if h.Left() == 0 {
			lost[i] = true
			return nil
		}
		if h.lease > 0 {
			k := newKeeper(inner, h)
			defer func() { lost[i] = k.stop() }()
			inner = k.ctx
		}
	}
	stopKeeping = r.keepTickets(ctx)
	began = true
	return work(inner)
}

// TryAcquireAll takes the permits of all claims, or none: "requests per user and per address, and tokens per user",
// each with a key and a number of permits of its own:
//
//	r, err := ratelimit.TryAcquireAll(ctx,
//		ClaimOf(perUser, user, 1), ClaimOf(perAddress, addr, 1), ClaimOf(tokens, user, 730))
//
// One script decides, in one round trip, as for [All]; at most eight limits, of any kind. Several claims of one
// limiter for one key count together. Different keys need one hash tag on a Cluster or a Ring, such as
// {user:42}:search and {user:42}:export; otherwise the call returns ErrCrossSlot, and nothing is sent
// (docs/cluster.md).
//
// If the call is allowed, the part of each claim of an [InFlight] has a Hold, and the part of each [Claim.Estimate] a
// Ticket; [AllResult.Finish] ends them. After an error, permits in flight are given back in
// the background; those of the other limiters may have been taken. After ErrCorruptState nothing was taken. If Redis
// refuses one of the writes, the limiters written before it keep what they took.
//
// The errors are those of [Limiter]; ErrCrossSlot; ErrInvalidConfig if there is no claim, if the limiters cannot be
// decided together (see [NewAll]), or if two limiters have the same name, algorithm and key; and ErrExceedsLimit also
// for more than 10,000 permits from all sliding windows with [StorageZSet] and in-flight limiters together, which
// store each permit, at some 2 µs of Redis's time.
func TryAcquireAll(ctx context.Context, claims ...Claim) (AllResult, error) {
	return decideAll(ctx, call{op: acquire}, claims)
}

// CheckClaims returns the error that [TryAcquireAll] returns for these claims before it asks Redis, or nil. It is for
// the start of a program: limiters that can decide together once always can, except that other keys may be in several
// slots ([ErrCrossSlot]). The limiters that a [Choice] picks are not checked.
func CheckClaims(claims ...Claim) error {
	switch {
	case len(claims) == 0:
		return errNoClaim
	case len(claims) > maxGroup:
		return errTooManyLimiters(len(claims))
	}
	if err := checkIDs(claims); err != nil {
		return err
	}
	c := &call{op: acquire, claims: slices.Clone(claims)}
	return c.check()
}

// checkOnRedis is checkClaims for claims on limiters on Redis. If split, one script need not decide all.
func checkOnRedis(ctx context.Context, claims []Claim, split bool) error {
	var all [maxGroup]Claim
	joined, _, err := joinClaims(all[:0], claims)
	if err != nil {
		return err
	}
	for _, c := range joined {
		if err := c.limiter.check(ctx, c.key, c.n); err != nil {
			return err
		}
	}
	if err := checkStored(joined); err != nil || split {
		return err
	}
	g, err := groupOf(joined)
	if err != nil {
		return err
	}
	return g.checkSlots(joined)
}

// decideAll decides claims of any kind.
func decideAll(ctx context.Context, want call, claims []Claim) (AllResult, error) {
	switch {
	case len(claims) == 0:
		return AllResult{}, errNoClaim
	case len(claims) > maxGroup:
		return AllResult{}, errTooManyLimiters(len(claims))
	}
	if err := checkIDs(claims); err != nil {
		return AllResult{}, err
	}
	c := newCall(want.op)
	c.claims, c.split, c.once = append(c.claims, claims...), want.split, want.once
	o := c.decide(ctx)
	r, err := o.all(&c.call)
	c.done()
	return r, err
}

// decideOnRedis decides claims of c on limiters on Redis, which have no policies around them.
func (c *call) decideOnRedis(ctx context.Context, claims []Claim) (o outcome) {
	if c.split {
		o = outcomeOf(acrossSlots(ctx, c, claims))
		o.joined = joinedOf(claims)
		return o
	}
	var all [maxGroup]Claim
	joined, places, err := joinClaims(all[:0], claims)
	if err != nil {
		return failedWith(err)
	}
	g := c.group
	if g == nil {
		if g, err = groupOf(joined); err != nil {
			return failedWith(err)
		}
	}
	var parts []PartResult
	if !c.whole {
		parts = make([]PartResult, len(joined))
	}
	if o.result, o.err = g.decide(ctx, c, joined, parts); o.err != nil {
		return o
	}
	if o.parts = spread(parts, places); places != nil {
		o.joined = joinedOf(claims)
	}
	return o
}

// spread makes the answers to joined claims those of the claims that have become them, as joinClaims says.
func spread(answers []PartResult, places []int) []PartResult {
	if places == nil || answers == nil {
		return answers
	}
	parts := make([]PartResult, len(places))
	for i, place := range places {
		parts[i] = answers[place]
	}
	return parts
}

// errOneLimit: each claim would be decided as if the other took nothing.
func errOneLimit(a, b Claim) error {
	return invalidConfig("TryAcquireAll: %s and %s are tenants of one limit of the %s; claim each in a call of its own", shortKey(b.key), shortKey(a.key), a.limiter.title)
}

// joinClaims makes one claim of all for the same key of the same limiter. If there are
// such, places says for each claim which one it has become.
func joinClaims(to, claims []Claim) (joined []Claim, places []int, err error) {
	if len(claims) == 0 {
		return nil, nil, errNoClaim
	}
next:
	for i, c := range claims {
		if c.limiter == nil {
			return nil, nil, errUnmade
		}
		if c.n < 1 || c.n > exact.Permits { // before it is added to another, or another to it
			return nil, nil, c.limiter.check(context.Background(), c.key, c.n)
		}
		if c.limiter.holds() && c.settle {
			return nil, nil, invalidConfig("TryAcquireAll: the claim of the %s is an estimate; permits in flight are given back by their Hold", c.limiter.title)
		}
		for j, other := range to {
			if c.limiter.tenants && other.key != c.key && other.limiter.head == c.limiter.head && keyname.Tag(other.key) == keyname.Tag(c.key) {
				return nil, nil, errOneLimit(c, other)
			}
			if other.key != c.key || other.limiter.head != c.limiter.head {
				continue
			}
			if other.limiter != c.limiter {
				return nil, nil, invalidConfig("TryAcquireAll: two limiters are the %s and claim the same key, so that they share its state; give each a name of its own", c.limiter.title)
			}
			if c.settle || other.settle {
				return nil, nil, errJoinedEstimate(c)
			}
			if c.as != nil || other.as != nil {
				return nil, nil, errJoinedID(c)
			}
			if other.n > exact.Permits {
				return nil, nil, c.limiter.check(context.Background(), c.key, other.n)
			}
			if places == nil {
				places = make([]int, i, len(claims))
				for earlier := range places {
					places[earlier] = earlier
				}
			}
			places = append(places, j)
			to[j].n += c.n
			to[j].hearers = other.hearers.with(c.hearers)
			continue next
		}
		if len(to) == maxGroup {
			return nil, nil, errTooManyLimiters(len(claims))
		}
		if places != nil {
			places = append(places, len(to))
		}
		to = append(to, c)
	}
	return to, places, nil
}

var errNoClaim = invalidConfig("TryAcquireAll: there is no claim")

func errJoinedEstimate(c Claim) error {
	return invalidConfig("TryAcquireAll: several claims of %s for one key count together, and one of them is an estimate; make one claim of them", c.title())
}

func errJoinedID(c Claim) error {
	return invalidConfig("TryAcquireAll: several claims of %s for one key count together, and one of them has an id (Claim.As); make one claim of them", c.title())
}

// governs is the Result of several limiters' answers. No limit governs only if there is no other.
func governs(r, next Result) Result {
	resetAfter := max(r.ResetAfter, next.ResetAfter)
	switch {
	case r.Unlimited():
		r = next
	case next.Unlimited():
	case r.Allowed != next.Allowed:
		if r.Allowed {
			r = next
		}
	case !r.Allowed && next.RetryAfter > r.RetryAfter, r.Allowed && next.Remaining < r.Remaining:
		r = next
	}
	r.ResetAfter = resetAfter
	return r
}

package ratelimit

import (
	"cmp"
	"context"
	"time"

	"github.com/tryacquire/ratelimit/internal/decision"
	"github.com/tryacquire/ratelimit/internal/denials"
	"github.com/tryacquire/ratelimit/internal/errclass"
	"github.com/tryacquire/ratelimit/internal/limitername"
)

// A DenyCache is a [Limiter] that denies calls from memory while they can only be denied. A denial of n permits is
// stored for its RetryAfter. Until that has passed, calls for n or more permits of the key are denied, and the
// limiter is asked about fewer. No call is ever allowed from memory. Allowed calls and errors of the limiter pass
// through unchanged.
//
// A call that memory denies would have been denied by the limiter too, as long as
//
//   - permits are given back only through this cache: by Reset, and by what its calls have taken (a Ticket, a
//     Reservation, a [Wait], claims). That removes the key's denials. A Reset or a settlement elsewhere, a Reset that
//     failed and takes effect later, a raised limit, calls by a faster limiter of the same name, and state that Redis
//     lost are noticed only when the stored denial ends, or after [WithMaxDenial];
//   - the clock that decides runs no faster than the monotonic clock of this process. If it gets ahead, the cache
//     notices when the stored denial ends.
//
// Around a [Choice], a denial is forgotten when another limiter is picked for that key than the one that denied.
// Answers of a [Fallback]'s secondary are not stored. Around a [Leased], which may have permits that Redis
// denies, calls that take n always ask it; other operations are denied from memory, and the cache hears of permits that
// slices give back.
//
// A denial from memory has the RetryAfter and ResetAfter of the stored one, less the time since then, and its Limit,
// Window and Remaining. RetryAfter is never too long; for more permits than were denied it is a lower bound. When the
// context has ended, the limiter is asked, so that the error is the limiter's own.
//
// Such a denial takes some 60 ns and no lock, and any other call some 80 ns on top of the limiter's own time. Memory
// is bounded by [WithMaxKeys]: 16 bytes for each key from the start, and 80 bytes and the key while a denial is
// stored. When there is no room, another denial is dropped. For keys of more than 256 bytes the limiter is always
// asked. See docs/performance.md and, for the order of decorators, docs/composing.md.
type DenyCache struct {
	policied
	name    string
	watch   *watch // nil: nobody observes
	limiter Limiter
	choice  *Choice // limiter, if that is one
	slices  bool    // a Leased is inside
	table   *denials.Table
	hears   hearers // of the cache alone
}

func (c *DenyCache) kind() kind { return kindAround(c, c.limiter) }

const maxDenyCacheKey = 256

// NewDenyCache puts a cache of denials in front of l. The denials of l must hold until their RetryAfter has passed,
// and for more permits too, as those of this package do. The error wraps ErrInvalidConfig: the limiter or an option
// is nil, an option's value cannot work or is given twice, or there is a [Shadow] inside, or a [Choice] with another
// decorator in between.
func NewDenyCache(l Limiter, opts ...PolicyOption) (*DenyCache, error) {
	if kindOf(l).absent {
		return nil, invalidConfig("NewDenyCache: the limiter is nil")
	}
	s, err := collect(newDenyCache, opts)
	if err != nil {
		return nil, err
	}
	if err := checkCached(l); err != nil {
		return nil, err
	}
	c := &DenyCache{name: cmp.Or(s.name, limitername.Of(l)), limiter: l, table: denials.New(cmp.Or(s.maxKeys, defaultMaxKeys), s.maxDenial, mostOf)}
	c.by, c.hears.hearer = c, c
	c.watch = s.watch(s.name) // without a name, the limiter's
	c.choice, _ = l.(*Choice)
	c.slices = hasSlices(l)
	c.table.NoteDecided(kindOf(l).most)
	return c, nil
}

// Name returns the name of WithName, and without it the limiter's.
func (c *DenyCache) Name() string { return c.name }

// WithMaxDenial asks the limiter again when a denial is d old, even if its RetryAfter is longer. So d, at least 1ms,
// bounds how late the cache notices a raised limit, or a Reset by another process. It costs a request every d for
// each denied key, and does not shorten the RetryAfter in the Result.
func WithMaxDenial(d time.Duration) PolicyOption {
	return policyOption("WithMaxDenial", func(s *settings) {
		if d < time.Millisecond {
			s.refuse("WithMaxDenial: %v is below 1ms", d)
		}
		s.maxDenial = d
	})
}

// TryAcquire is TryAcquireN(ctx, key, 1).
func (c *DenyCache) TryAcquire(ctx context.Context, key string) (Result, error) {
	return c.TryAcquireN(ctx, key, 1)
}

// TryAcquireN denies a call for n permits from memory, or asks the limiter and returns its errors. A call for more
// permits than the limiter can ever allow gets ErrExceedsLimit, not a denial from memory. The cache knows this bound
// of this package's limiters. It asks any other about more permits than that limiter has decided on so far.
func (c *DenyCache) TryAcquireN(ctx context.Context, key string, n int) (Result, error) {
	var picked any
	if c.table != nil && c.watch == nil && !c.slices && n > 0 && 0 < len(key) && len(key) <= maxDenyCacheKey {
		// The usual denial, in some 60 ns. What else there is to do, around does, which looks once more.
		if c.choice != nil {
			var err error
			if picked, err = c.choice.of(ctx, key); err != nil {
				return Result{}, err
			}
		}
		if d, ok := c.table.Find(c.table.Hash(key), key, n, picked); ok && ctx.Err() == nil && !hasSlices(picked) {
			return Result(d), nil
		}
	}
	return c.take(ctx, key, n, picked)
}

// take is a function of its own to keep the stack of TryAcquireN small.
//
//go:noinline
func (c *DenyCache) take(ctx context.Context, key string, n int, picked any) (Result, error) {
	if c.by == nil {
		return Result{}, errUnmade
	}
	o := operate(ctx, c, acquire, key, n, call{picked: picked})
	return o.result, o.err
}

// Reset resets key and removes its stored denials, even after an error: key may then have been reset all the same.
func (c *DenyCache) Reset(ctx context.Context, key string) error {
	if c.limiter == nil {
		return errUnmade
	}
	if err := checkKey(key); err != nil {
		c.refused(ctx, c.watch.begin(), Observation{Call: callReset, Key: key, Err: err})
		return err
	}
	defer c.table.ReturnPermits(key)()
	return c.limiter.Reset(ctx, key)
}

// mostOf is the largest n that a limiter of this package decides on, and 0 of any other.
func mostOf(limiter any) int { return kindOf(limiter).most }

func (c *DenyCache) memory() *denials.Table { return c.table }

// givesBack removes the denials of key.
func (c *DenyCache) givesBack(_ context.Context, key string, n, actual int) (done func(error)) {
	if actual >= n {
		return func(error) {}
	}
	returned := c.table.ReturnPermits(key)
	return func(error) { returned() } // after an error they may have come back all the same
}

// refused reports a call that failed before the limiter was asked.
func (c *DenyCache) refused(ctx context.Context, began time.Time, o Observation) {
	if c.watch != nil {
		o.Limiter = c.name
		c.watch.end(ctx, began, o)
	}
}

// fromMemory reports a call about which memory was asked in place of the limiter.
func (c *DenyCache) fromMemory(ctx context.Context, began time.Time, limiter Limiter, o Observation) {
	o.Source, o.Limiter = SourceMemory, c.watch.name
	if o.Limiter == "" {
		o.Limiter = limitername.Of(limiter)
	}
	c.watch.end(ctx, began, o)
}

func (c *DenyCache) rank() int { return rankDenyCache }

// around denies a call that the memory of a claim denies, and asks nobody then. Otherwise it stores the denials of the
// claims' own limiters.
func (*DenyCache) around(ctx context.Context, call *call, own claimSet) outcome {
	var asked [maxGroup]memoryQuestion
	var known claimSet
	for i := range call.claims {
		if !own.has(i) {
			continue
		}
		q, claim := &asked[i], &call.claims[i]
		if err := q.about(ctx, call, claim); err != nil {
			if q.cache != nil {
				q.cache.refused(ctx, q.cache.watch.begin(), Observation{Call: call.opOf(i).call, Key: claim.key, N: claim.n, Err: err})
			}
			return failedWith(err)
		}
		if q.n > 0 && q.ask(ctx, claim) {
			known |= 1 << i
		}
	}
	if known != 0 {
		if call.op != acquire || !call.one() || call.claims[0].settle { // otherwise memory would not know of the denial
			if err := call.mistake(ctx); err != nil {
				return failedWith(err)
			}
		}
		return deniedByMemory(ctx, call, &asked, known)
	}
	if call.op == pause || call.op == resume {
		return asked[0].change(ctx, call)
	}
	for i := range call.claims {
		if cache := asked[i].cache; cache != nil {
			claim := &call.claims[i]
			claim.hearers = claim.hearers.beside(&cache.hears)
		}
	}
	out := call.decide(ctx)
	if out.err != nil {
		return out
	}
	// A denial is not stored beside a longer one that nobody remembers: from memory, a call of the same limits would
	// then get the shorter RetryAfter, again and again.
	var forgotten time.Duration
	for i := range call.claims {
		if r := out.part(i); !r.Allowed && !asked[i].remembers(&out, i) {
			forgotten = max(forgotten, r.RetryAfter)
		}
	}
	for i := range call.claims {
		q := &asked[i]
		if !q.remembers(&out, i) {
			continue
		}
		q.cache.table.NoteDecided(q.n)
		if r := out.part(i); !r.Allowed && r.RetryAfter >= forgotten {
			q.cache.table.Remember(q.hash, call.claims[i].key, q.n, q.by, decision.Result(*r), q.sending)
		}
	}
	return out
}

// deniedByMemory is the denial of a call of which memory knows these claims to be denied: that which lasts longest governs.
func deniedByMemory(ctx context.Context, call *call, asked *[maxGroup]memoryQuestion, known claimSet) outcome {
	for i := range call.claims {
		if q, claim := &asked[i], &call.claims[i]; known.has(i) && q.cache.watch != nil {
			q.cache.fromMemory(ctx, q.began, q.limiter, Observation{Call: call.opOf(i).call, Key: claim.key, N: claim.n, Result: q.denied})
		}
	}
	first := known.first()
	out := call.denied(first, asked[first].denied)
	for i := first + 1; i < len(call.claims); i++ {
		if known.has(i) {
			out.parts[i] = PartResult{Result: asked[i].denied}
			out.result = governs(out.result, asked[i].denied)
		}
	}
	return out
}

// A memoryQuestion is what a DenyCache is asked about a claim.
type memoryQuestion struct {
	cache   *DenyCache
	limiter Limiter // inside
	by      any     // the same if a Choice has picked it
	n       int     // permits; 0 if memory is not asked
	hash    uint64
	sending denials.Request
	began   time.Time // of ask, if it is observed
	denied  Result    // from memory
}

// ask asks memory, and reports whether it denies the claim.
func (q *memoryQuestion) ask(ctx context.Context, claim *Claim) (denied bool) {
	q.began = q.cache.watch.begin()
	d, denied := q.cache.table.Find(q.hash, claim.key, q.n, q.by)
	if !denied || ctx.Err() != nil {
		q.sending = q.cache.table.BeforeSending(q.hash)
		return false
	}
	q.denied = Result(d)
	return true
}

// change has a pause begun or ended. A pause that Redis may not know of is remembered too.
func (q *memoryQuestion) change(ctx context.Context, call *call) outcome {
	key, length := call.claims[0].key, call.longest
	if call.op == resume {
		defer q.cache.table.ReturnPermits(key)()
		return call.decide(ctx)
	}
	sending := q.cache.table.BeforeSending(q.hash)
	out := call.decide(ctx)
	known := out.result
	if out.err != nil && !errclass.IsMistake(out.err) {
		known = Result{RetryAfter: length, ResetAfter: length}
	}
	if len(key) <= maxDenyCacheKey && !known.Allowed && !known.Fallback && known.RetryAfter > 0 {
		q.cache.table.Remember(q.hash, key, 1, q.by, decision.Result(known), sending)
	}
	return out
}

// remembers reports whether the answer to claim i is one that memory keeps if it is a denial.
func (q *memoryQuestion) remembers(out *outcome, i int) bool {
	return q.n > 0 && !out.part(i).Fallback && !out.joined.has(i) && (out.parts == nil || !out.parts[i].Unknown)
}

// about takes the cache off the claim.
func (q *memoryQuestion) about(ctx context.Context, c *call, claim *Claim) (err error) {
	cache := claim.outer.(*DenyCache)
	if cache.limiter == nil {
		return errUnmade
	}
	q.cache, q.limiter = cache, cache.limiter
	if err := checkKey(claim.key); err != nil {
		return err
	}
	if cache.choice != nil {
		picked := c.picked
		if c.picked = nil; picked == nil {
			if picked, err = cache.choice.of(ctx, claim.key); err != nil {
				return err
			}
		}
		q.limiter = picked.(Limiter)
		q.by = q.limiter
	}
	claim.by(q.limiter)
	if len(claim.key) > maxDenyCacheKey || claim.n < 1 {
		return nil
	}
	switch {
	case c.op.forMemory == nil, c.once != nil: // an id may have been allowed before
	case sharesLimit(q.limiter):
	case c.spends() && hasSlices(q.limiter): // which may have permits that Redis denies, and denies what Redis would allow
	default:
		q.n = c.op.forMemory(claim.n)
	}
	q.hash = cache.table.Hash(claim.key)
	return nil
}

// checkCached refuses to put a DenyCache around l where a Shadow would miss calls, or where
// the cache would hold back a raised limit. docs/composing.md has the order that works.
func checkCached(l Limiter) error {
	for at := any(l); at != nil; at = kindOf(at).inside {
		switch at.(type) {
		case *DenyCache:
			return nil // it has been checked
		case *Shadow:
			return invalidConfig("NewDenyCache: there is a Shadow inside, whose trial would not be asked about calls that the cache denies; " +
				"put the DenyCache inside: NewShadow(cached, trial, report)")
		case *Choice:
			if at != l {
				return invalidConfig("NewDenyCache: there is a Choice inside a %T, so that the cache would not see which limiter denied, "+
					"and would hold back a raised limit; put the DenyCache directly around the Choice", l)
			}
		}
	}
	return nil
}

// hasSlices reports whether a Leased takes the permits of l.
func hasSlices(l any) bool {
	for ; l != nil; l = kindOf(l).inside {
		if p, ok := l.(policy); ok && p.rank() == rankLeased {
			return true
		}
	}
	return false
}

// sharesLimit reports whether l decides for tenants of one limit: what others take can end a denial before its RetryAfter.
func sharesLimit(l any) bool {
	for k := kindOf(l); ; k = kindOf(k.inside) {
		if k.core != nil || k.inside == nil {
			return k.core != nil && k.core.tenants
		}
	}
}

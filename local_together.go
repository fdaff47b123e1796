package ratelimit

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/tryacquire/ratelimit/internal/exact"
)

// decidesTogether is a limiter in memory that decides with others, all or nothing.
type decidesTogether interface {
	// precheck returns an error for a caller's mistake, and for a context that has ended.
	precheck(ctx context.Context, key string, n int) error

	// lock is what guards the state of key. It is held for the next method.
	lock(key string) memoryLock

	// decideLocked is the answer to a call for n permits, which it takes if they are there and take is true.
	decideLocked(key string, n int, take bool) Result

	// denied notes that a call was denied for which key was asked. The lock is held.
	denied(key string)

	// give adds what a claim gets whose permits were taken.
	give(claim Claim, p *PartResult)

	// tell reports the answer to one claim to the limiter's observers.
	tell(ctx context.Context, began time.Time, o Observation)
}

// A memoryLock is a mutex, and its place in the order in which several are taken, so that no two calls wait
// for each other.
type memoryLock struct {
	mu    *sync.Mutex
	made  int64 // the limiter's number
	shard int
}

// decideInMemory decides claims on limiters in memory, all or nothing.
func decideInMemory(ctx context.Context, claims []Claim, looks bool) (AllResult, error) {
	began := time.Now()
	joined, places, err := joinInMemory(claims)
	if err == nil {
		for _, c := range joined {
			if err = c.outer.(decidesTogether).precheck(ctx, c.key, c.n); err != nil {
				break
			}
		}
	}
	if err != nil {
		for _, c := range claims {
			c.outer.(decidesTogether).tell(ctx, began, Observation{Call: c.opOr(looks).call, Key: c.key, N: c.n, Err: err})
		}
		return AllResult{}, err
	}
	answers := make([]PartResult, len(joined))
	r := AllResult{Result: lockedTogether(joined, answers, looks), Parts: answers}
	for i, c := range joined {
		answers[i].Bucket = kindOf(c.outer).bucket
		o := Observation{Call: c.opOr(looks).call, Source: SourceLocal, Key: c.key, N: c.n, Result: answers[i].Result}
		if !looks && !r.Allowed && o.Result.Allowed {
			o.Outcome = OutcomeUntaken
		}
		c.outer.(decidesTogether).tell(ctx, began, o)
	}
	r.Parts = spread(answers, places)
	return r, nil
}

// lockedTogether decides under the locks of all claims.
func lockedTogether(claims []Claim, answers []PartResult, looks bool) Result {
	locks := make([]memoryLock, len(claims))
	for i, c := range claims {
		locks[i] = c.outer.(decidesTogether).lock(c.key)
	}
	slices.SortFunc(locks, func(a, b memoryLock) int { return cmp.Or(cmp.Compare(a.made, b.made), cmp.Compare(a.shard, b.shard)) })
	for _, l := range slices.Compact(locks) {
		l.mu.Lock()
		defer l.mu.Unlock()
	}
	decide := func(take bool) (whole Result) {
		for i, c := range claims {
			part := c.outer.(decidesTogether).decideLocked(c.key, c.n, take)
			if answers[i].Result = part; i == 0 {
				whole = part
			} else {
				whole = governs(whole, part)
			}
		}
		return whole
	}
	whole := decide(false)
	switch {
	case looks:
		return whole
	case !whole.Allowed:
		for _, c := range claims {
			c.outer.(decidesTogether).denied(c.key)
		}
		return whole
	}
	for i, c := range claims {
		c.outer.(decidesTogether).give(c, &answers[i])
	}
	return decide(true)
}

// joinInMemory makes one claim of all for the same key of the same limiter, as joinClaims does.
func joinInMemory(claims []Claim) (joined []Claim, places []int, err error) {
next:
	for _, c := range claims {
		for j, other := range joined {
			if other.key != c.key || other.lockInMemory() != c.lockInMemory() {
				continue
			}
			if other.outer != c.outer {
				return nil, nil, invalidConfig("TryAcquireAll: two limiters of %s claim the same key, and share its state; claim one of them", c.title())
			}
			if c.settle || other.settle {
				return nil, nil, errJoinedEstimate(c)
			}
			if c.n < 1 {
				return nil, nil, errTooFew(c.n)
			}
			places = append(places, j)
			joined[j].n = min(other.n, exact.Permits) + min(c.n, exact.Permits)
			continue next
		}
		places = append(places, len(joined))
		joined = append(joined, c)
	}
	return joined, places, nil
}

// lockInMemory is what guards the state of its key. Limiters whose limits come with each call share it.
func (c *Claim) lockInMemory() memoryLock { return c.outer.(decidesTogether).lock(c.key) }

// decideMixed decides claims of which some are on Redis and others in memory: where some of the primaries of a call
// that no one script can decide have failed. What Redis has taken is given back if memory denies.
func decideMixed(ctx context.Context, claims []Claim, looks bool) (AllResult, error) {
	var onRedis, inMemory []Claim
	var places [2][]int
	for i, c := range claims {
		if c.limiter != nil {
			onRedis, places[0] = append(onRedis, c), append(places[0], i)
		} else {
			inMemory, places[1] = append(inMemory, c), append(places[1], i)
		}
	}
	taken, joined, err := joinClaims(nil, onRedis)
	if err != nil {
		return AllResult{}, err
	}
	for i := range taken { // so that it can be given back
		taken[i].settle = taken[i].settle || !looks && !taken[i].holds()
	}
	c := call{op: acquire, claims: taken, split: !looks}
	if looks {
		c.op = look
	}
	first := c.decideOnRedis(ctx, taken)
	if first.err != nil {
		return AllResult{}, first.err
	}
	r := AllResult{Result: first.result, Parts: make([]PartResult, len(claims))}
	var second AllResult
	if looks || first.result.Allowed {
		if second, err = decideInMemory(ctx, inMemory, looks); err == nil {
			r.Result = governs(first.result, second.Result)
		}
	}
	if err != nil || first.result.Allowed && !r.Allowed {
		first.undo(ctx)
	}
	if err != nil {
		return AllResult{}, err
	}
	for i, place := range places[0] {
		if joined != nil {
			i = joined[i]
		}
		p := first.parts[i]
		if !r.Allowed {
			p.Ticket, p.Hold = nil, nil
		} else if !claims[place].settle {
			p.Ticket = nil
		}
		r.Parts[place] = p
	}
	for i, place := range places[1] {
		if second.Parts == nil {
			r.Parts[place] = PartResult{Unknown: true}
		} else {
			r.Parts[place] = second.Parts[i]
		}
	}
	return r, nil
}

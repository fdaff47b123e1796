package ratelimit

import (
	"context"
	"time"

	"github.com/tryacquire/ratelimit/internal/exact"
	"github.com/tryacquire/ratelimit/internal/memory"
	"github.com/tryacquire/ratelimit/internal/waiting"
)

// decidesTogether is a limiter in memory that decides with others, all or nothing.
type decidesTogether interface {
	origin

	// check returns an error for a caller's mistake, and for a context that has ended.
	check(ctx context.Context, key string, n int) error

	// inMemory is what decides; nil if a constructor did not make it.
	inMemory() memory.Limit

	// give adds what a claim gets whose permits were taken.
	give(claim Claim, p *PartResult)
}

// decideInMemory decides claims on limiters in memory, all or nothing.
func decideInMemory(ctx context.Context, claims []Claim, looks bool) (AllResult, error) {
	began := time.Now()
	joined, places, err := joinInMemory(claims)
	if err == nil {
		for _, c := range joined {
			if err = c.outer.(decidesTogether).check(ctx, c.key, c.n); err != nil {
				break
			}
		}
	}
	if err != nil {
		for _, c := range claims {
			c.report(ctx, began, Observation{Call: c.opOr(looks).call, Err: err}, false)
		}
		return AllResult{}, err
	}
	questions := make([]memory.Question, 0, maxGroup)
	for _, c := range joined {
		q := memory.Question{Limit: c.outer.(decidesTogether).inMemory(), Key: c.key, N: c.n}
		if c.as != nil && !looks {
			q.ID = *c.as
		}
		questions = append(questions, q)
	}
	allowed := memory.Together(questions, !looks)
	for i, q := range questions {
		if q.Found == memory.Other {
			err := joined[i].outer.(origin).about(q.Key, errOtherPermits)
			reportRefused(ctx, began, joined, err)
			return AllResult{}, err
		}
	}
	answers := make([]PartResult, len(joined))
	var r AllResult
	for i, c := range joined {
		p := &answers[i]
		p.Result, p.bucket = Result(questions[i].Answer), kindOf(c.outer).bucket
		if i == 0 {
			r.Result = p.Result
		} else {
			r.Result = governs(r.Result, p.Result)
		}
		if allowed && !looks {
			c.outer.(decidesTogether).give(c, p)
			if p.Hold != nil {
				p.Hold.again = questions[i].Found == memory.Same
			}
		}
		if holder, ok := c.outer.(*LocalInFlight); ok && !p.Result.Allowed && !looks {
			waiting.Denied(ctx, holder.permits(c.key))
		}
		o := Observation{Call: c.opOr(looks).call, Source: SourceLocal, Result: p.Result}
		o.Repeated = p.Hold != nil && p.Hold.again
		c.report(ctx, began, o, allowed)
	}
	r.Parts = spread(answers, places)
	return r, nil
}

// joinInMemory makes one claim of all for the same key of the same limiter, as joinClaims does.
func joinInMemory(claims []Claim) (joined []Claim, places []int, err error) {
next:
	for _, c := range claims {
		for j, other := range joined {
			if other.key != c.key || other.stateInMemory() != c.stateInMemory() {
				continue
			}
			if other.outer != c.outer {
				return nil, nil, invalidConfig("TryAcquireAll: two limiters of %s claim the same key, and share its state; claim one of them", c.title())
			}
			if c.settle || other.settle {
				return nil, nil, errJoinedEstimate(c)
			}
			if c.as != nil || other.as != nil {
				return nil, nil, errJoinedID(c)
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

// stateInMemory is the same for limiters that share the states of their keys, as those do whose limit comes with each call.
func (c *Claim) stateInMemory() any {
	if l := c.outer.(decidesTogether).inMemory(); l != nil {
		return l.State()
	}
	return c.outer
}

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
	for i := range taken {
		if taken[i].as != nil {
			return AllResult{}, errSplitID(&taken[i])
		}
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

package serve

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/tryacquire/ratelimit"
)

// keysInMemory is of how many keys each of so many rules may have something in memory, which is 40 bytes for each from the
// start: 170 MB for all rules, unless they are more than 4,096.
func keysInMemory(rules int) int { return min(max(1<<22/max(rules, 1), 1<<10), 1<<16) }

// A made is the limiter of a spec.
type made struct {
	ratelimit.Limiter
	leased *ratelimit.Leased // inside it; nil: it has none
}

// make makes the limiter of a file's rule, with slices and a cache of denials if they are wanted.
func (s *Service) make(of spec, keys int) (made, error) {
	l, err := of.build(s.client, s.options.Limiters...)
	if err != nil {
		return made{}, err
	}
	m := made{Limiter: l}
	opts := append(slices.Clip(s.observed), ratelimit.WithMaxKeys(keys))
	counts := of.countDenied // then it is asked each time, and its limit is another one
	if s.options.Leases && !counts {
		if leased, err := ratelimit.NewLeased(l, opts...); err == nil {
			m.Limiter, m.leased = leased, leased
		} // otherwise its slices would be too short, or its algorithm has none
	}
	if s.options.Denials > 0 && !counts {
		m.Limiter, err = ratelimit.NewDenyCache(m.Limiter, append(opts, ratelimit.WithMaxDenial(s.options.Denials))...)
		if err != nil {
			return made{}, err
		}
	}
	m.Limiter, err = s.outage(of, m.Limiter)
	return m, err
}

// limit gives each rule its limiter: that of the rules in force if they have the same, because what is in memory is
// there. It returns those that are in use no more. It is called with loading held.
func (s *Service) limit(c *config) (unused []*ratelimit.Leased, err error) {
	limiters := map[spec]made{}
	for _, r := range c.rules {
		if s.options.CountDenied && r.algorithm == fixedWindow {
			r.countDenied = true
		}
		if r.unlimited || r.spec.limit == 0 {
			continue
		}
		if r.algorithm == inFlight {
			if r.hold, err = s.makeHold(r.spec); err != nil {
				return nil, err
			}
			continue
		}
		m, ok := limiters[r.spec]
		if !ok {
			if m, ok = s.limiters[r.spec]; !ok {
				if m, err = s.make(r.spec, keysInMemory(len(c.rules))); err != nil {
					return nil, err
				}
			}
			limiters[r.spec] = m
		}
		r.limiter = m.Limiter
	}
	for of, m := range s.limiters {
		if _, ok := limiters[of]; !ok && m.leased != nil {
			unused = append(unused, m.leased)
		}
	}
	s.limiters = limiters
	return unused, nil
}

// closeTime is how long giving slices back may take.
const closeTime = 5 * time.Second

// Close gives back the hits of slices that are left. Requests during and after it ask Redis. The error is that of slices
// which may not have been given back.
func (s *Service) Close(ctx context.Context) error {
	s.loading.Lock()
	defer s.loading.Unlock()
	var all []*ratelimit.Leased
	for _, m := range s.limiters {
		if m.leased != nil {
			all = append(all, m.leased)
		}
	}
	return closed(ctx, all)
}

func closed(ctx context.Context, all []*ratelimit.Leased) error {
	ctx, cancel := context.WithTimeout(ctx, closeTime)
	defer cancel()
	failed := make([]error, len(all))
	var working sync.WaitGroup
	for i, l := range all {
		working.Go(func() { failed[i] = l.Close(ctx) })
	}
	working.Wait()
	return errors.Join(slices.DeleteFunc(failed, func(err error) bool { return err == nil })...)
}

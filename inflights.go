package ratelimit

import (
	"time"

	"github.com/tryacquire/ratelimit/internal/recent"
)

// InFlights are the [InFlight] of one name whose limit comes with each call, as [TokenBuckets] are
// for token buckets:
//
//	jobs, err := ratelimit.NewInFlights(client, ratelimit.WithName("jobs"))
//	...
//	limiter, err := jobs.Of(tenant.Jobs, 30*time.Second)
//
// All of them share the holds of a key: each allows a call only if its own limit holds over all permits. Calls of different
// limits are sent on their own. To put a [HoldFallback] around them, put it around a [HoldChoice] whose pick calls Of.
type InFlights struct {
	cache *recent.Cache[inFlightLimit, *InFlight]
}

type inFlightLimit struct {
	limit int
	lease time.Duration
}

// NewInFlights returns limiters with a client and options that all of them have. It returns an error that wraps
// ErrInvalidConfig for a client and for options that cannot work with any limit. Redis is not asked.
func NewInFlights(c Client, opts ...Option) (*InFlights, error) {
	s, err := collect(newInFlights, opts)
	if err != nil {
		return nil, err
	}
	w := s.watch(s.name)
	of := func(l inFlightLimit) (*InFlight, error) { return inFlight(c, l.limit, l.lease, s, w) }
	if _, err := of(inFlightLimit{1, time.Second}); err != nil {
		return nil, err
	}
	return &InFlights{recent.New(maxTokenBuckets, of)}, nil
}

// Of returns the limiter of a limit and a lease. The last 16,384 that were used, or about so, are kept; another is made
// again, with the same state. The error for a limit or a lease that cannot work is that of [NewInFlight], and wraps ErrInvalidConfig.
func (f *InFlights) Of(limit int, lease time.Duration) (*InFlight, error) {
	if f == nil || f.cache == nil {
		return nil, errUnmade
	}
	return f.cache.Get(inFlightLimit{limit, lease})
}

// LocalInFlights are [InFlights] in this process: [LocalInFlight] of several limits that share their holds.
type LocalInFlights struct {
	cache *recent.Cache[int, *LocalInFlight]
}

// NewLocalInFlights returns limiters with options that all of them have. The error wraps ErrInvalidConfig.
func NewLocalInFlights(opts ...Option) (*LocalInFlights, error) {
	s, err := collect(newLocalInFlights, opts)
	if err != nil {
		return nil, err
	}
	return &LocalInFlights{recent.New(maxTokenBuckets, newLocalHolder(&s).of)}, nil
}

// Of returns the limiter of a limit. The error for a limit that cannot work is that of [NewLocalInFlight], and wraps
// ErrInvalidConfig.
func (f *LocalInFlights) Of(limit int) (*LocalInFlight, error) {
	if f == nil || f.cache == nil {
		return nil, errUnmade
	}
	return f.cache.Get(limit)
}

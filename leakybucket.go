package ratelimit

import "github.com/tryacquire/ratelimit/internal/algorithms"

// A LeakyBucket holds up to capacity permits and drains at a rate: a call is allowed
// if its permits fit. It decides as the token bucket does, and queues no calls; only
// [Wait] and Reserve let a call wait: with a capacity of 1, waiting callers go on one by
// one. Remaining is the room left in the bucket, ResetAfter the time until it is empty.
//
// In any interval t it allows at most capacity + rate × t permits, exactly. It is a
// GCRA (generic cell rate algorithm, ITU-T I.371). Its state is one string of some 35
// bytes; a decision is O(1).
type LeakyBucket struct{ bucketCore }

func (l *LeakyBucket) kind() kind { return kindOnRedis(l, &l.core) }

// NewLeakyBucket returns a leaky bucket that drains at rate. The bounds are those of
// [NewTokenBucket], with the capacity in place of the burst. The error wraps
// ErrInvalidConfig. Redis is not asked.
func NewLeakyBucket(c Client, rate Rate, capacity int, opts ...Option) (*LeakyBucket, error) {
	s, err := collect(newLeakyBucket, opts)
	if err != nil {
		return nil, err
	}
	b, err := newBucket(rate, capacity, "capacity", &s)
	if err != nil {
		return nil, err
	}
	l := &LeakyBucket{}
	a, err := bucketAlgorithm(algorithms.LeakyBucket, b, s.exactly, s.mark()).withTickets(&s)
	if err != nil {
		return nil, err
	}
	if err := l.build(c, s, a); err != nil {
		return nil, err
	}
	return l, nil
}

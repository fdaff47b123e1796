package ratelimit

import (
	"context"

	"github.com/tryacquire/ratelimit/internal/merge"
)

// A Request is one of several to [TokenBucket.TryAcquireMany]: n permits of a key.
type Request struct {
	Key string
	N   int
}

// An Answer is the answer to one of several requests: a Result, or an error if there is no
// decision.
type Answer struct {
	Result Result
	Err    error
}

func (c *core) TryAcquireMany(ctx context.Context, requests []Request) []Answer {
	began := c.begin()
	answers := make([]Answer, len(requests))
	var calls []merge.Call
	var places []int
	for i, r := range requests {
		if err := c.check(ctx, r.Key, r.N); err != nil {
			answers[i].Err = err
			c.refused(ctx, began, Observation{Call: CallAcquire, Key: r.Key, N: r.N, Err: err})
			continue
		}
		calls = append(calls, merge.Call{Key: r.Key, N: r.N})
		places = append(places, i)
	}
	if len(calls) == 0 {
		return answers
	}
	m := c.merger
	if m == nil {
		m = merge.NewUnmerged(c.exec, c.head.Of)
	}
	for i, o := range m.AcquireMany(ctx, calls) {
		at := places[i]
		answers[at].Result, answers[at].Err = c.result(ctx, calls[i].Key, calls[i].N, o.Reply, o.Err)
		if c.watch != nil {
			c.acquired(ctx, began, calls[i].Key, calls[i].N, o.Reply.Batch, answers[at].Result, answers[at].Err)
		}
	}
	return answers
}

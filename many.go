package ratelimit

import (
	"context"

	"github.com/tryacquire/ratelimit/internal/merge"
)

// A Batcher decides many requests at once. All limiters of this package that decide on
// Redis on their own are Batchers.
type Batcher interface {
	// TryAcquireMany decides many requests, each as TryAcquireN would and independently of the
	// others, and returns their answers in the same order. The answer to a request that cannot
	// work, such as one with an empty key, is its error, and the others are decided. Requests
	// for the same key are decided in their order.
	//
	// It takes one round trip where the keys are on one server. On a Cluster or a Ring, and with
	// [WithoutMerging], it takes one for each thousand requests, to all servers at once. Many
	// requests are sent in several executions of about a millisecond each, and between these
	// Redis serves other clients. The requests are not merged with those of other callers. If
	// ctx ends first, every answer has the error of ctx, and the permits may have been taken.
	TryAcquireMany(ctx context.Context, requests []Request) []Answer
}

// A Request is one of several to [Batcher].TryAcquireMany: n permits of a key.
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

// TryAcquireMany decides many requests, see [Batcher].
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

package ratelimit_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/fakes"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// An outcome is what came of a call of any kind.
type outcome struct {
	taken  int
	ticket bool
	result ratelimit.Result
	err    string // of errors.Is
}

// A caller makes calls of a limiter and keeps what came of them, and the tickets.
type caller struct {
	t testing.TB
	l settling

	mu      sync.Mutex // guards all below
	calls   []func(ctx context.Context)
	got     map[int]outcome
	tickets map[int]*ratelimit.Ticket // by the number of the call
}

func newCaller(t testing.TB, l settling) *caller {
	return &caller{t: t, l: l, got: map[int]outcome{}, tickets: map[int]*ratelimit.Ticket{}}
}

// add adds a call. Its number is that of calls before it.
func (c *caller) add(call func(ctx context.Context) (outcome, *ratelimit.Ticket, error)) {
	number := len(c.calls)
	c.calls = append(c.calls, func(ctx context.Context) {
		o, ticket, err := call(ctx)
		if err != nil {
			o.err = err.Error()
		}
		o.ticket = ticket != nil
		c.mu.Lock()
		defer c.mu.Unlock()
		c.got[number], c.tickets[number] = o, ticket
	})
}

func (c *caller) acquire(key string, n int) {
	c.add(func(ctx context.Context) (o outcome, _ *ratelimit.Ticket, err error) {
		o.result, err = c.l.TryAcquireN(ctx, key, n)
		return o, nil, err
	})
}

func (c *caller) upTo(key string, n int) {
	c.add(func(ctx context.Context) (o outcome, _ *ratelimit.Ticket, err error) {
		o.taken, o.result, err = c.l.TryAcquireUpTo(ctx, key, n)
		return o, nil, err
	})
}

func (c *caller) estimate(key string, n int) {
	c.add(func(ctx context.Context) (o outcome, ticket *ratelimit.Ticket, err error) {
		ticket, o.result, err = c.l.Estimate(ctx, key, n)
		return o, ticket, err
	})
}

func (c *caller) charge(key string, n int) {
	c.add(func(ctx context.Context) (o outcome, _ *ratelimit.Ticket, err error) {
		o.result, err = c.l.Charge(ctx, key, n)
		return o, nil, err
	})
}

func (c *caller) credit(key string, n int) {
	c.add(func(ctx context.Context) (o outcome, _ *ratelimit.Ticket, err error) {
		o.taken, err = c.l.Credit(ctx, key, n)
		return o, nil, err
	})
}

// settle settles the ticket of a call that was made before.
func (c *caller) settle(call, actual int) {
	c.add(func(ctx context.Context) (outcome, *ratelimit.Ticket, error) {
		c.mu.Lock()
		ticket := c.tickets[call]
		c.mu.Unlock()
		return outcome{}, nil, ticket.Settle(ctx, actual)
	})
}

// together makes the calls that were added since the last ones, in one batch; oneByOne makes them
// one after the other. Both return what came of them.
func (c *caller) together() []outcome {
	calls := c.calls[len(c.got):]
	ratelimit.OneBatch(c.t, c.l, calls...)
	return c.last(len(calls))
}

func (c *caller) oneByOne() []outcome {
	calls := c.calls[len(c.got):]
	for _, call := range calls {
		call(ctx)
	}
	return c.last(len(calls))
}

func (c *caller) last(calls int) []outcome {
	var all []outcome
	for i := len(c.calls) - calls; i < len(c.calls); i++ {
		all = append(all, c.got[i])
	}
	return all
}

// TestCallsOfEveryKindAnswerAlike: in one batch, unmerged, and through a client of another type.
// Observers see how they were sent.
func TestCallsOfEveryKindAnswerAlike(t *testing.T) {
	for name, on := range map[string]func(testing.TB) *limitertest.Stage{"miniredis": limitertest.OnMiniredis, "Redis": limitertest.OnHeldRedis} {
		s := on(t)
		for _, test := range []struct {
			name   string
			client ratelimit.Client
			opts   []ratelimit.Option
			make   func(c *caller) []outcome
			merged bool
		}{
			{"one batch", s.Client, nil, (*caller).together, true},
			{"unmerged", s.Client, []ratelimit.Option{ratelimit.WithoutMerging()}, (*caller).oneByOne, false},
			{"another client", fakes.NewClient(s.Client.Process), nil, (*caller).oneByOne, false},
		} {
			t.Run(name+", "+test.name, func(t *testing.T) {
				s.Wipe(t)
				var mu sync.Mutex
				calls, batches := map[ratelimit.Call]int{}, map[int]int{}
				opts := append(s.Opts[:len(s.Opts):len(s.Opts)], ratelimit.WithObserver(func(_ context.Context, o ratelimit.Observation) {
					mu.Lock()
					defer mu.Unlock()
					calls[o.Call]++
					batches[o.Batch]++
				}))
				l, err := ratelimit.NewTokenBucket(test.client, ratelimit.PerHour(1), 10, append(opts, test.opts...)...)
				require.NoError(t, err)
				c := newCaller(t, l)
				c.estimate("k", 3)
				c.oneByOne()
				clear(calls)
				clear(batches)

				c.upTo("k", 4)
				c.acquire("k", 1)
				c.estimate("k", 1)
				c.estimate("k", 1)
				c.upTo("l", 20)
				c.charge("k", 5)
				c.charge("k", 5)
				c.charge("k", 700_000)
				c.charge("k", 1)
				c.settle(0, 1)
				c.estimate("l", 1)
				c.acquire("k", 1)
				c.charge("m", 400_000)
				c.charge("m", 400_000)
				got := test.make(c)
				result := func(allowed bool, remaining, retry, reset int) ratelimit.Result {
					return ratelimit.Result{
						Allowed: allowed, Limit: 10, Window: 10 * time.Hour, Remaining: remaining,
						RetryAfter: time.Duration(retry) * time.Hour, ResetAfter: time.Duration(reset) * time.Hour,
					}
				}
				tooMuch := func(key string) string {
					return "ratelimit: token bucket \"default\", key \"" + key + "\": " + ratelimit.ErrTooMuchDebt.Error()
				}
				require.Equal(t, []outcome{
					{taken: 4, result: result(true, 3, 0, 7)},
					{result: result(true, 2, 0, 8)},
					{ticket: true, result: result(true, 1, 0, 9)},
					{ticket: true, result: result(true, 0, 0, 10)},
					{taken: 10, result: result(true, 0, 1, 10)},
					{result: result(true, 0, 0, 15)},
					{result: result(true, 0, 0, 20)},
					{err: tooMuch("k")},
					{result: result(true, 0, 0, 21)},
					{},
					{result: result(false, 0, 1, 10)},
					{result: result(false, 0, 10, 19)},
					{result: result(true, 0, 0, 400_000)},
					{err: tooMuch("m")},
				}, got)
				require.Equal(t, map[ratelimit.Call]int{
					"acquire": 2, "up to": 2, "estimate": 3, "charge": 6, "settle": 1,
				}, calls)
				sent := 1
				if test.merged {
					sent = 14
				}
				require.Equal(t, map[int]int{sent: 14}, batches)
			})
		}
	}
}

// TestMergedCallsOfEveryKindAreThoseOneByOne, of every limiter: two keys get the same calls, one of
// them in batches. Tickets of one run each give back what is theirs.
func TestMergedCallsOfEveryKindAreThoseOneByOne(t *testing.T) {
	eachSettling(t, func(t *testing.T, s *limitertest.Stage, v limitertest.Variant, l settling) {
		if !ratelimit.IsOnRedis(l) {
			return // a decorator has no batches of its own
		}
		for _, batches := range [][]func(c *caller, key string){
			{
				func(c *caller, key string) {
					c.estimate(key, 1)
					c.estimate(key, 1)
					c.estimate(key, 1)
					c.estimate(key, 1)
				},
				func(c *caller, key string) {
					c.settle(1, 0)
					c.upTo(key, 5)
					c.settle(0, 0)
					c.estimate(key, 1)
					c.settle(2, 3)
				},
				func(c *caller, key string) { c.settle(7, 0); c.charge(key, 1); c.credit(key, 1); c.upTo(key, 2) },
			},
			{ // estimates in two runs
				func(c *caller, key string) { c.estimate(key, 1); c.acquire(key, 1); c.estimate(key, 1) },
				func(c *caller, key string) { c.settle(0, 0); c.upTo(key, 2); c.settle(2, 0); c.upTo(key, 2) },
			},
			{
				func(c *caller, key string) { c.estimate(key, 2) },
				func(c *caller, key string) {
					c.upTo(key, 2)
					c.charge(key, 1)
					c.estimate(key, 1)
					c.settle(0, 0)
					c.estimate(key, 1)
					c.acquire(key, 1)
					c.charge(key, 2)
					c.charge(key, 2)
				},
				func(c *caller, key string) { c.settle(5, 0); c.acquire(key, 1); c.upTo(key, 3) },
			},
		} {
			s.Wipe(t)
			one, many := newCaller(t, l), newCaller(t, l)
			for i, add := range batches {
				add(one, v.Of("one by one"))
				add(many, v.Of("in batches"))
				want, got := one.oneByOne(), many.together()
				require.Equal(t, want, got, "batch %d", i)
				require.Equal(t, must(t)(l.Peek(ctx, v.Of("one by one"))), must(t)(l.Peek(ctx, v.Of("in batches"))), "after batch %d", i)
				s.Advance(v.Retry / 2)
			}
		}
	})
}

package ratelimit

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/merge"
	"github.com/tryacquire/ratelimit/internal/redisexec"
	"github.com/tryacquire/ratelimit/internal/testing/fakes"
	"github.com/tryacquire/ratelimit/internal/testing/model"
)

// The helpers of the tests of package ratelimit: copies of a few of internal/testing/limitertest,
// which imports this package and therefore cannot be imported by them, and what reaches
// into the engine.

var ctx = context.Background()

var start = time.UnixMicro(1_763_670_000_000_000)

// A stage is a miniredis to test limiters on.
type stage struct {
	client Client
	admin  redis.UniversalClient // looks at keys
}

func onMini(t testing.TB) *stage {
	server := miniredis.RunT(t)
	server.ClockTTL(true)
	server.SetTime(start)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	return &stage{client, client}
}

func must(t testing.TB) func(Result, error) Result {
	return func(r Result, err error) Result {
		t.Helper()
		require.NoError(t, err)
		return r
	}
}

func coreOf(t testing.TB, l Limiter) *core {
	t.Helper()
	switch l := l.(type) {
	case *FixedWindow:
		return &l.core
	case *CalendarWindow:
		return &l.core
	case *SlidingWindow:
		return &l.core
	case *SlidingLog:
		return &l.core
	case *TokenBucket:
		return &l.core
	case *LeakyBucket:
		return &l.core
	case *FairTokenBucket:
		return &l.core
	}
	t.Fatalf("%T has no core", l)
	return nil
}

// decideTogether decides calls in one execution, without a merger, and returns their results.
func decideTogether(t testing.TB, c *core, calls []model.Step, keys []string) []Result {
	t.Helper()
	type run struct{ n, calls int }
	var names []string
	runs := map[string][]run{} // by name
	type place struct{ run, index int }
	places := make([]place, len(calls)) // of each call among its key's
	for i, call := range calls {
		name := c.head.Of(keys[i])
		of := runs[name]
		if len(of) == 0 {
			names = append(names, name)
		}
		if len(of) == 0 || of[len(of)-1].n != call.N {
			of = append(of, run{n: call.N})
		}
		last := len(of) - 1
		places[i] = place{last, of[last].calls}
		of[last].calls++
		runs[name] = of
	}
	reply, err := c.exec.DoMany(ctx, c.exec.Many, len(names), func(i int) (*string, any) {
		var requests []string
		for _, r := range runs[names[i]] {
			requests = append(requests, fmt.Sprintf("%dx%d", r.n, r.calls))
		}
		return &names[i], strings.Join(requests, ",")
	})
	require.NoError(t, err)
	first, words := map[string]int{}, 0 // each key's first word
	for _, name := range names {
		first[name] = words
		words += len(runs[name]) * c.exec.Words
	}
	require.Len(t, reply, words)
	results := make([]Result, len(calls))
	for i, call := range calls {
		of := reply[first[c.head.Of(keys[i])]+places[i].run*c.exec.Words:][:c.exec.Words]
		results[i] = c.inRun(of, int64(call.N), int64(places[i].index))
	}
	return results
}

// together makes one call for one permit of each of the keys, all in one batch.
func together(t testing.TB, l Limiter, keys ...string) ([]Result, []error) {
	return inOneBatch(t, coreOf(t, l), ones(len(keys)), keys, nil)
}

// inOneBatch makes calls as callInOneBatch does. Those that are marked as gone have no result.
func inOneBatch(t testing.TB, c *core, calls []model.Step, keys []string, gone map[int]bool) ([]Result, []error) {
	t.Helper()
	results, errs := make([]Result, len(calls)), make([]error, len(calls))
	var each []func(ctx context.Context)
	for i, call := range calls {
		each = append(each, func(ctx context.Context) {
			results[i], errs[i] = c.decider.(Limiter).TryAcquireN(ctx, keys[i], call.N)
		})
	}
	callInOneBatch(t, c, each, gone)
	return results, errs
}

// callInOneBatch makes calls of the limiter of c that wait for few others, in this order, and are
// sent in one batch, whatever it costs, when the first of those is done. Those that are marked as
// gone give up before.
func callInOneBatch(t testing.TB, c *core, calls []func(ctx context.Context), gone map[int]bool) {
	t.Helper()
	require.Less(t, len(calls), 64, "64 calls do not wait")
	outside := fakes.NewRelay(c.exec.Client)
	defer outside.Stop()
	synctest.Test(t.(*testing.T), func(t *testing.T) {
		first, open := fakes.Gate(outside, merge.FewCalls)
		exec := *c.exec
		exec.Client, exec.Cost = first, redisexec.Cost{}
		defer func(before *merge.Merger) { c.merger = before }(c.merger)
		m := merge.New(&exec, c.head.Of)
		c.merger = m
		for range merge.FewCalls {
			go func() { _, _ = m.Acquire(context.Background(), "first", 1) }()
		}
		synctest.Wait()
		giveUp := make([]context.CancelFunc, len(calls))
		var called sync.WaitGroup
		for i, call := range calls {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			giveUp[i] = cancel
			called.Go(func() { call(ctx) })
			synctest.Wait() // so that they come in this order
		}
		for i := range gone {
			giveUp[i]()
		}
		synctest.Wait()
		open()
		called.Wait()
	})
}

// ones is so many calls for one permit each.
func ones(calls int) []model.Step { return slices.Repeat([]model.Step{{N: 1}}, calls) }

package ratelimit

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/merge"
	"github.com/tryacquire/ratelimit/internal/redisexec"
	"github.com/tryacquire/ratelimit/internal/testing/fakes"
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// slow is a client whose commands each take a millisecond longer.
func slow(client fakes.Processor) *fakes.Client {
	return fakes.Before(client, func(context.Context, redis.Cmder) error {
		time.Sleep(time.Millisecond)
		return nil
	})
}

// inQueue makes three calls for one permit of keys while FewCalls others are in flight, 100 µs
// after those, so that they wait. Those of gone leave after another 100 µs. Every command takes
// a millisecond. It returns what was observed, by key.
func inQueue(t *testing.T, l *TokenBucket, observe *Observer, gone map[string]bool) map[string]Observation {
	t.Helper()
	require.NoError(t, Preload(ctx, ClaimOf(l, "k", 1)))
	return inQueueOf(t, l.exec, func(exec *redisexec.Executor) { l.merger = merge.New(exec, l.head.Of) },
		func(ctx context.Context, key string) error {
			_, err := l.TryAcquire(ctx, key)
			return err
		}, observe, gone)
}

// inQueueOf does so with calls of another kind. use makes them run by the executor, whose client
// is slow.
func inQueueOf(t *testing.T, by *redisexec.Executor, use func(*redisexec.Executor), call func(ctx context.Context, key string) error,
	observe *Observer, gone map[string]bool,
) map[string]Observation {
	t.Helper()
	outside := fakes.NewRelay(by.Client)
	defer outside.Stop()
	var mu sync.Mutex
	seen := map[string]Observation{}
	synctest.Test(t, func(t *testing.T) {
		*observe = func(_ context.Context, o Observation) {
			mu.Lock()
			defer mu.Unlock()
			seen[o.Key] = o
		}
		exec := *by
		exec.Client, exec.Cost = slow(outside), redisexec.Cost{}
		use(&exec)
		var called sync.WaitGroup
		ask := func(key string) {
			called.Go(func() {
				ctx, leave := context.WithCancel(context.Background())
				defer leave()
				if gone[key] {
					time.AfterFunc(100*time.Microsecond, leave)
				}
				if err := call(ctx, key); err != nil && !gone[key] {
					t.Error(err)
				}
			})
		}
		for range merge.FewCalls {
			ask("first")
		}
		time.Sleep(100 * time.Microsecond)
		for _, key := range []string{"a", "b", "b"} {
			synctest.Wait()
			ask(key)
		}
		called.Wait()
		time.Sleep(time.Second)
	})
	return seen
}

// The batch is sent half a millisecond after the call before it.
func TestMergedCallsReportTheirBatch(t *testing.T) {
	var observe Observer
	l := Must(NewTokenBucket(onMini(t).client, PerHour(1), 100, WithName("api"),
		WithObserver(func(ctx context.Context, o Observation) { observe(ctx, o) })))
	seen := inQueue(t, l, &observe, nil)
	result := func(remaining int, reset time.Duration) Result {
		return Result{Allowed: true, Limit: 100, Window: 100 * time.Hour, Remaining: remaining, ResetAfter: reset}
	}
	whole := Observation{
		Limiter: "api", Call: callAcquire, Outcome: OutcomeAllowed, Source: SourceRedis, Key: "a", N: 1, Taken: 1, Before: 100, Result: result(99, time.Hour),
		Latency: time.Millisecond + 400*time.Microsecond, Waited: 400 * time.Microsecond, Batch: 3,
	}
	require.Equal(t, whole, seen["a"])
	first := whole
	first.Key, first.Latency, first.Waited, first.Batch, first.Before, first.Result = "first", time.Millisecond, 0, 1, seen["first"].Before, seen["first"].Result
	require.Equal(t, first, seen["first"])
	require.Equal(t, []any{3, 400 * time.Microsecond}, []any{seen["b"].Batch, seen["b"].Waited})
}

// Calls of other kinds wait in the same queue, and report their batch too.
func TestMergedOperationsReportTheirBatch(t *testing.T) {
	for call, ask := range map[Call]func(ctx context.Context, l *TokenBucket, key string, held *Ticket) error{
		callUpTo: func(ctx context.Context, l *TokenBucket, key string, _ *Ticket) error {
			_, _, err := l.TryAcquireUpTo(ctx, key, 2)
			return err
		},
		callCharge: func(ctx context.Context, l *TokenBucket, key string, _ *Ticket) error {
			_, err := l.Charge(ctx, key, 2)
			return err
		},
		callCredit: func(ctx context.Context, l *TokenBucket, key string, _ *Ticket) error {
			_, err := l.Credit(ctx, key, 2)
			return err
		},
		callEstimate: func(ctx context.Context, l *TokenBucket, key string, _ *Ticket) error {
			_, _, err := l.Estimate(ctx, key, 2)
			return err
		},
		callSettle: func(ctx context.Context, _ *TokenBucket, _ string, held *Ticket) error { return held.Settle(ctx, 1) },
	} {
		t.Run(string(call), func(t *testing.T) {
			observe := Observer(func(context.Context, Observation) {})
			l := Must(NewTokenBucket(onMini(t).client, PerHour(1), 100, WithObserver(func(ctx context.Context, o Observation) { observe(ctx, o) })))
			require.NoError(t, Preload(ctx, ClaimOf(l, "k", 1)))
			var mu sync.Mutex
			tickets := map[string][]*Ticket{}
			for key, n := range map[string]int{"first": merge.FewCalls, "a": 1, "b": 2} {
				for range n {
					held, _, err := l.Estimate(ctx, key, 3)
					require.NoError(t, err)
					tickets[key] = append(tickets[key], held)
				}
			}
			seen := inQueueOf(t, l.exec, func(exec *redisexec.Executor) { l.merger = merge.New(exec, l.head.Of) },
				func(ctx context.Context, key string) error {
					mu.Lock()
					held := tickets[key][0]
					tickets[key] = tickets[key][1:]
					mu.Unlock()
					return ask(ctx, l, key, held)
				}, &observe, nil)
			require.Equal(t, []any{call, SourceRedis, time.Millisecond + 400*time.Microsecond, 400 * time.Microsecond, 3},
				[]any{seen["a"].Call, seen["a"].Source, seen["a"].Latency, seen["a"].Waited, seen["a"].Batch})
			require.Equal(t, []any{call, 400 * time.Microsecond, 3}, []any{seen["b"].Call, seen["b"].Waited, seen["b"].Batch})
			require.Equal(t, []any{call, time.Millisecond, time.Duration(0), 1}, []any{seen["first"].Call, seen["first"].Latency, seen["first"].Waited, seen["first"].Batch})
		})
	}
}

// Calls of TryAcquireAll go together too, but for one whose many permits would hold up the others.
func TestMergedCallsOfSeveralLimitersReportTheirBatch(t *testing.T) {
	client := onMini(t).client
	for name, test := range map[string]struct{ permits, batch int }{"one permit": {1, 3}, "many permits": {50, 1}} {
		t.Run(name, func(t *testing.T) {
			var observe Observer
			perUser := Must(NewSlidingWindow(client, 1000, time.Hour, WithStorage(StorageZSet), WithName(strings.ReplaceAll(name, " ", "-")),
				WithObserver(func(ctx context.Context, o Observation) { observe(ctx, o) })))
			all := Must(NewFixedWindow(client, 1_000_000, time.Hour))
			g, err := groupOf([]Claim{ClaimOf(perUser, "k", 1), ClaimOf(all, "all", 1)})
			require.NoError(t, err)
			seen := inQueueOf(t, g.exec, func(exec *redisexec.Executor) { g.exec, g.merger = exec, merge.New(exec, asPacked) },
				func(ctx context.Context, key string) error {
					n := 1
					if key == "b" {
						n = test.permits
					}
					r, err := TryAcquireAll(ctx, ClaimOf(perUser, key, n), ClaimOf(all, "all", 1))
					require.True(t, err != nil || r.Allowed)
					return err
				}, &observe, nil)
			require.Equal(t, 1, seen["first"].Batch)
			require.Equal(t, test.batch, seen["b"].Batch)
			require.Equal(t, test.batch, seen["a"].Batch)
		})
	}
}

// A call whose caller leaves the queue was not sent, and is not part of the batch.
func TestCallsThatLeaveTheQueueReportThat(t *testing.T) {
	var observe Observer
	l := Must(NewTokenBucket(onMini(t).client, PerHour(1), 100, WithName("api"),
		WithObserver(func(ctx context.Context, o Observation) { observe(ctx, o) })))
	seen := inQueue(t, l, &observe, map[string]bool{"a": true})
	left := seen["a"]
	require.ErrorIs(t, left.Err, context.Canceled)
	require.Equal(t, Observation{
		Limiter: "api", Call: callAcquire, Outcome: OutcomeCanceled, Key: "a", N: 1, Err: left.Err,
		Latency: 100 * time.Microsecond, Waited: 100 * time.Microsecond,
	}, left)
	require.Equal(t, 2, seen["b"].Batch)
}

// One whose caller leaves after the batch was sent says how it was sent.
func TestCallsThatLeaveTheirBatchReportIt(t *testing.T) {
	var observe Observer
	l := Must(NewTokenBucket(onMini(t).client, PerHour(1), 100, WithName("api"),
		WithObserver(func(ctx context.Context, o Observation) { observe(ctx, o) })))
	outside := fakes.NewRelay(l.exec.Client)
	defer outside.Stop()
	synctest.Test(t, func(t *testing.T) {
		var all []Observation
		observe = func(_ context.Context, o Observation) {
			if o.Key == "late" {
				all = append(all, o)
			}
		}
		exec := *l.exec
		exec.Client = slow(outside)
		l.merger = merge.New(&exec, l.head.Of)
		for range merge.FewCalls {
			go func() { _, _ = l.TryAcquire(context.Background(), "first") }()
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), 800*time.Microsecond)
		defer cancel()
		_, err := l.TryAcquire(ctx, "late")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, []Observation{{
			Limiter: "api", Call: callAcquire, Outcome: OutcomeFailed, Source: SourceRedis, Key: "late", N: 1, Err: err,
			Latency: 800 * time.Microsecond, Waited: 500 * time.Microsecond, Batch: 1,
		}}, all)
		time.Sleep(time.Second)
	})
}

// A panic of an observer harms neither its own call nor those that were merged with it, and
// is logged once.
func TestAPanicOfAnObserverHarmsNoCall(t *testing.T) {
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	var mu sync.Mutex
	calls := 0
	l := Must(NewTokenBucket(onMini(t).client, PerHour(1), 100, WithName("api"), WithObserver(
		func(context.Context, Observation) { panic("the observer's") },
		func(context.Context, Observation) {
			mu.Lock()
			defer mu.Unlock()
			calls++
		})))
	outside := fakes.NewRelay(l.exec.Client)
	defer outside.Stop()
	synctest.Test(t, func(t *testing.T) {
		exec := *l.exec
		exec.Client = slow(outside)
		l.merger = merge.New(&exec, l.head.Of)
		remaining := make([]int, 20)
		var called sync.WaitGroup
		for i := range remaining {
			called.Go(func() {
				r, err := l.TryAcquire(context.Background(), "k")
				if err != nil {
					t.Error(err)
				}
				remaining[i] = r.Remaining
			})
		}
		called.Wait()
		slices.Sort(remaining)
		for i := range remaining {
			require.Equal(t, 80+i, remaining[i], "each caller has its own answer")
		}
		time.Sleep(time.Second)
	})
	require.Equal(t, 20, calls, "the other observer is called all the same")
	require.Equal(t, 1, bytes.Count(log.Bytes(), []byte("an observer panicked")), "%s", &log)
	require.Contains(t, log.String(), `limiter=api panic="the observer's"`)
	require.Contains(t, log.String(), "TestAPanicOfAnObserverHarmsNoCall", "the stack says where")
}

// A handler of the logger that panics harms no call either.
func TestALoggerThatPanicsHarmsNoCall(t *testing.T) {
	before := slog.Default()
	slog.SetDefault(slog.New(panickingHandler{slog.Default().Handler()}))
	defer slog.SetDefault(before)
	l := Must(NewLocalTokenBucket(PerHour(1), 5, WithObserver(func(context.Context, Observation) { panic(errors.New("x")) })))
	require.True(t, must(t)(l.TryAcquire(ctx, "k")).Allowed)
}

type panickingHandler struct{ slog.Handler }

func (panickingHandler) Handle(context.Context, slog.Record) error { panic("the handler's") }

// An observer may call the limiter that it observes.
func TestAnObserverMayCallLimiters(t *testing.T) {
	var l *LocalTokenBucket
	var peeked []int
	l = Must(NewLocalTokenBucket(PerHour(1), 5, WithObserver(func(ctx context.Context, o Observation) {
		if o.Call == callAcquire {
			peeked = append(peeked, must(t)(l.Peek(ctx, o.Key)).Remaining)
		}
	})))
	_ = must(t)(l.TryAcquireN(ctx, "k", 2))
	require.Equal(t, []int{3}, peeked)
}

// An observed call allocates what the same call allocates unobserved.
func TestObservedCallsAllocateNothingMore(t *testing.T) {
	if raceflag.Enabled {
		t.Skip("the race detector makes sync.Pool forget")
	}
	client := redistest.Shared(t).Client(t)
	require.NoError(t, client.FlushAll(ctx).Err()) // other tests leave other states there
	sum := 0
	observe := WithObserver(func(_ context.Context, o Observation) { sum += o.N }, func(_ context.Context, o Observation) { sum += o.Batch })
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	measure := func(l Limiter, ctx context.Context) float64 {
		return testing.AllocsPerRun(500, func() {
			if _, err := l.TryAcquire(ctx, "k"); err != nil {
				t.Error(err)
			}
		})
	}
	bucket := func(opts ...Option) Limiter {
		return Must(NewTokenBucket(client, PerMinute(1), 1_000_000, opts...))
	}
	all := func(opts ...Option) Limiter {
		return Must(NewAll(
			Must(NewTokenBucket(client, PerMinute(1), 1_000_000, append(opts, WithName("one"))...)),
			Must(NewFixedWindow(client, 1_000_000, time.Hour, append(opts, WithName("other"))...)),
		))
	}
	local := func(opts ...Option) Limiter { return Must(NewLocalTokenBucket(PerMinute(1), 1_000_000, opts...)) }
	denying := func(opts ...PolicyOption) Limiter {
		c := Must(NewDenyCache(Must(NewLocalTokenBucket(PerHour(1), 1)), opts...))
		_, _ = c.TryAcquire(ctx, "k")
		_, _ = c.TryAcquire(ctx, "k")
		return c
	}
	down := func(opts ...PolicyOption) Limiter {
		return Must(NewFallback(&fakes.Limiter[Result]{Err: errors.New("connection refused")}, AllowAll(), opts...))
	}
	for _, test := range []struct {
		name            string
		plain, observed Limiter
		ctx             context.Context
	}{
		{"a call on its own", bucket(), bucket(observe), ctx},
		{"its context can end", bucket(), bucket(observe), within},
		{"All", all(), all(observe), ctx},
		{"a local bucket", local(), local(observe), ctx},
		{"a denial from memory", denying(), denying(observe), ctx},
		{"a secondary", down(), down(observe), ctx},
	} {
		require.Equal(t, measure(test.plain, test.ctx), measure(test.observed, test.ctx), test.name)
	}
	require.NotZero(t, sum)
}

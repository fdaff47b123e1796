package faulttest

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// TestSeveralLimitsWithPoliciesThroughKillsAndHangs: requests, tokens with an estimate, and a cap on what runs, each with a secondary in
// memory, while the server is killed, restarted, stopped and woken again. It forgets nothing (AOF, always). Nothing is charged twice:
// Redis and memory each end with what their own answers took, but for calls that got no reply in time. Those are given back if they
// can be, and otherwise count once.
func TestSeveralLimitsWithPoliciesThroughKillsAndHangs(t *testing.T) {
	const limit, tokenLimit, running, workers, estimate = 1_000_000, 100_000_000, 4, 8, 10
	server := redistest.Start(t, redistest.Args("--appendonly", "yes", "--appendfsync", "always"))
	client := server.Client(t, func(o *redis.Options) {
		o.ContextTimeoutEnabled, o.DialerRetries = true, 1
	})
	still := ratelimit.WithClock(func() time.Time { return time.Unix(1_000_000_000, 0) }) // nothing refills
	const localLimit = 1_000_000_000
	requests := ratelimit.Must(ratelimit.NewFixedWindow(client, limit, 365*24*time.Hour, ratelimit.WithName("requests")))
	tokens := ratelimit.Must(ratelimit.NewFixedWindow(client, tokenLimit, 365*24*time.Hour, ratelimit.WithName("tokens")))
	// A server that is killed keeps the places whose replies it could not send, until their leases end: these must be far shorter than
	// what the test waits for.
	held := ratelimit.Must(ratelimit.NewInFlight(client, running, 5*time.Second, ratelimit.WithName("running")))
	localRequests := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1), localLimit, still))
	localTokens := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1), localLimit, still))
	localHeld := ratelimit.Must(ratelimit.NewLocalInFlight(running))
	var uncertain atomic.Int64 // calls that Redis may have executed although memory answered
	breaker := &ratelimit.Breaker{Failures: 2, ProbeEvery: 20 * time.Millisecond}
	policy := []ratelimit.PolicyOption{ratelimit.WithBudget(100 * time.Millisecond), ratelimit.WithBreaker(breaker)}
	watched := ratelimit.WithObserver(func(_ context.Context, o ratelimit.Observation) {
		if o.Source == ratelimit.SourceFallback && !errors.Is(o.Reason, ratelimit.ErrBreakerOpen) || o.Err != nil {
			uncertain.Add(1)
		}
	})
	perRequest := ratelimit.Must(ratelimit.NewFallback(requests, localRequests, append(policy, watched)...))
	perToken := ratelimit.Must(ratelimit.NewFallback(tokens, localTokens, policy...))
	perRun := ratelimit.Must(ratelimit.NewHoldFallback(held, localHeld, policy...))
	require.NoError(t, ratelimit.Preload(ctx, ratelimit.ClaimHold(held, "k", 1)))

	type book struct{ calls, used, unsettled, now, most atomic.Int64 } // of Redis, and of memory
	var redisBook, memory book
	var answered, stop atomic.Int64
	var load sync.WaitGroup
	for range workers {
		load.Go(func() {
			for stop.Load() == 0 {
				r, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(perRequest, "k", 1), ratelimit.ClaimOf(perToken, "k", estimate).Estimate(), ratelimit.ClaimHold(perRun, "all", 1))
				switch {
				case err != nil:
					t.Errorf("an outage has a policy here: %v", err)
					return
				case !r.Allowed:
					time.Sleep(time.Millisecond) // leaves the processor to the server
					continue
				}
				b := &redisBook
				if r.Fallback {
					b = &memory
				}
				b.calls.Add(1)
				if n := b.now.Add(1); n > b.most.Load() {
					b.most.Store(n)
				}
				used := rand.IntN(estimate + 1)
				settled := 0
				b.now.Add(-1)
				err = r.Finish(ctx, func(ratelimit.PartResult) int { settled++; return used })
				b.used.Add(int64(used))
				if err != nil {
					b.unsettled.Add(int64(estimate - used))
				}
				answered.Add(1)
			}
		})
	}
	t.Cleanup(func() { // also after a failure
		stop.Store(1)
		load.Wait()
	})
	more := func(b *book) {
		t.Helper()
		from := b.calls.Load()
		eventually(t, "calls", func() bool { return b.calls.Load() >= from+20 })
	}
	for range 2 {
		more(&redisBook)
		server.Kill()
		more(&memory)
		server.Restart()
		more(&redisBook)
		server.Pause()
		more(&memory)
		server.Resume()
	}
	more(&redisBook)
	stop.Store(1)
	load.Wait()

	require.LessOrEqual(t, redisBook.most.Load(), int64(running))
	require.LessOrEqual(t, memory.most.Load(), int64(running))
	left := func(l ratelimit.Limiter) int64 { return int64(must(t)(l.Peek(ctx, "k")).Remaining) }
	require.Equal(t, memory.calls.Load(), localLimit-left(localRequests), "memory has counted its own calls")
	require.Equal(t, memory.used.Load(), localLimit-left(localTokens), "settled where they were taken")
	require.Zero(t, memory.unsettled.Load())
	require.Equal(t, running, must(t)(localHeld.Peek(ctx, "all")).Remaining)

	lost := uncertain.Load()
	t.Logf("%d calls by Redis, %d by memory, %d without a reply in time", redisBook.calls.Load(), memory.calls.Load(), lost)
	for _, c := range []struct {
		name       string
		took, most int64
		count      func() int64
	}{
		{"requests", redisBook.calls.Load(), redisBook.calls.Load() + lost, func() int64 { return limit - left(requests) }},
		{"tokens", redisBook.used.Load(), redisBook.used.Load() + redisBook.unsettled.Load() + lost*estimate, func() int64 { return tokenLimit - left(tokens) }},
	} {
		require.GreaterOrEqual(t, c.count(), c.took, "%s: Redis has forgotten what it allowed", c.name)
		require.LessOrEqual(t, c.count(), c.most, "%s: Redis has counted more than anybody took", c.name)
	}
}

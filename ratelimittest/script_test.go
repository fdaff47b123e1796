package ratelimittest_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/ratelimittest"
)

func TestScriptAllowsUntilToldOtherwise(t *testing.T) {
	t.Parallel()
	s := ratelimittest.NewScript(t)
	require.Equal(t, ratelimit.Result{Allowed: true}, allow(t, s, "alice"))
	r, err := s.TryAcquireN(ctx, "alice", 1_000_000)
	require.NoError(t, err)
	require.True(t, r.Unlimited())

	s.Fail("alice", errDown)
	for range 2 {
		r, err = s.TryAcquire(ctx, "alice")
		require.Equal(t, errDown, err)
		require.Zero(t, r)
	}
	_, err = s.Peek(ctx, "alice")
	require.Equal(t, errDown, err)
	require.Equal(t, errDown, s.Reset(ctx, "alice"))
	allow(t, s, "bob")

	s.Fail(ratelimittest.AnyKey, errDown)
	_, err = s.TryAcquire(ctx, "bob")
	require.Equal(t, errDown, err)
	s.Allow("alice")
	allow(t, s, "alice")

	want := ratelimit.Result{Limit: 5, Window: time.Minute, RetryAfter: time.Second, ResetAfter: time.Minute}
	s.Answer("alice", want)
	require.NoError(t, s.Reset(ctx, "alice"))
	require.Equal(t, want, take(t, s, "alice"))
}

func TestScriptDeniesForAsLongAsItSays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := ratelimittest.NewScript(t)
		s.Deny("alice", 30*time.Second)
		require.Equal(t, ratelimit.Result{RetryAfter: 30 * time.Second, ResetAfter: 30 * time.Second}, take(t, s, "alice"))
		allow(t, s, "bob")
		time.Sleep(30*time.Second - 1)
		deny(t, s, "alice", 1)
		time.Sleep(time.Nanosecond)
		allow(t, s, "alice")

		s.Deny("alice", 30*time.Second)
		require.NoError(t, s.Reset(ctx, "bob"))
		deny(t, s, "alice", 30*time.Second)
		require.NoError(t, s.Reset(ctx, "alice"))
		allow(t, s, "alice")

		// What is denied to all is allowed again to the one whom it is allowed.
		s.Deny(ratelimittest.AnyKey, time.Minute)
		s.Allow("alice")
		allow(t, s, "alice")
		start := time.Now()
		_, err := ratelimit.Wait(ctx, s, "bob")
		require.NoError(t, err)
		require.GreaterOrEqual(t, time.Since(start), time.Minute)
	})
}

func TestScriptOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := ratelimittest.NewScript(t)
		s.Once().Deny("alice", time.Second)
		s.Once().Fail(ratelimittest.AnyKey, errDown)
		s.Once().Answer("alice", ratelimit.Result{Allowed: true, Limit: 3, Window: time.Minute, Remaining: 1, ResetAfter: time.Second})
		s.Deny("alice", time.Hour)
		s.Once().Allow("alice")

		time.Sleep(time.Minute) // an answer of Once does not end with time
		r, err := s.Peek(ctx, "alice")
		require.NoError(t, err)
		require.Equal(t, ratelimit.Result{RetryAfter: time.Second, ResetAfter: time.Second}, r)
		deny(t, s, "alice", time.Second)
		require.Equal(t, 1, allow(t, s, "alice").Remaining)
		require.True(t, allow(t, s, "alice").Unlimited())
		_, err = s.TryAcquire(ctx, "alice") // what is for any key comes after what is for this one
		require.Equal(t, errDown, err)
		deny(t, s, "alice", 59*time.Minute)
		allow(t, s, "bob")
	})
}

// A Script keeps the contract of a Limiter, whatever answers the test sets.
func TestScriptChecksItsCaller(t *testing.T) {
	t.Parallel()
	s := ratelimittest.NewScript(t)
	s.Fail(ratelimittest.AnyKey, errDown)
	_, err := s.TryAcquire(ctx, "")
	require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
	_, err = s.Peek(ctx, "")
	require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
	require.ErrorIs(t, s.Reset(ctx, ""), ratelimit.ErrInvalidKey)
	_, err = s.TryAcquireN(ctx, "alice", 0)
	require.ErrorIs(t, err, ratelimit.ErrInvalidPermits)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	_, err = s.TryAcquire(ended, "alice")
	require.ErrorIs(t, err, context.Canceled)

	require.Equal(t, `ratelimittest: Deny("alice", 0s): a denial has a RetryAfter above 0`,
		failureOf(t, func(t testing.TB) { ratelimittest.NewScript(t).Deny("alice", 0) }))
	require.Equal(t, `ratelimittest: Deny("alice", -1s): a denial has a RetryAfter above 0`,
		failureOf(t, func(t testing.TB) { ratelimittest.NewScript(t).Once().Deny("alice", -time.Second) }))
	require.Equal(t, `ratelimittest: Fail("alice", nil): an error is missing; Allow ends a failure`,
		failureOf(t, func(t testing.TB) { ratelimittest.NewScript(t).Fail("alice", nil) }))
	require.Equal(t, `ratelimittest: Fail("alice", nil): an error is missing; Allow ends a failure`,
		failureOf(t, func(t testing.TB) { ratelimittest.NewScript(t).Once().Fail("alice", nil) }))
}

// A Script fits where a limiter does: in a Fallback, whose breaker moves too.
func TestScriptInAFallback(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		primary := ratelimittest.NewScript(t)
		l := ratelimit.Must(ratelimit.NewFallback(primary, ratelimit.AllowAll(),
			ratelimit.WithBreaker(&ratelimit.Breaker{Failures: 1, ProbeEvery: time.Second})))
		primary.Once().Fail("k", errDown)
		primary.Deny("k", time.Hour)
		require.True(t, allow(t, l, "k").Fallback)
		time.Sleep(time.Second - 1)
		require.True(t, allow(t, l, "k").Fallback)
		time.Sleep(time.Nanosecond)
		require.False(t, take(t, l, "k").Allowed)
	})
}

func TestRecorder(t *testing.T) {
	t.Parallel()
	var calls ratelimittest.Recorder
	s := ratelimittest.NewScript(t)
	user, address := calls.Around("per user", s), calls.Around("per address", s)
	s.Answer("u", ratelimit.Result{Allowed: true, Limit: 5, Window: time.Minute, Remaining: 3, ResetAfter: time.Second})
	s.Once().Fail("a", errDown)

	r, err := user.TryAcquireN(ctx, "u", 2)
	require.NoError(t, err)
	require.Equal(t, 3, r.Remaining)
	_, err = address.TryAcquire(ctx, "a")
	require.Equal(t, errDown, err)
	allow(t, address, "b")
	s.Answer("b", ratelimit.Result{Limit: 5, Window: time.Minute, RetryAfter: time.Second, ResetAfter: time.Minute})
	_, err = address.Peek(ctx, "b")
	require.NoError(t, err)
	require.NoError(t, user.Reset(ctx, "u"))

	require.Equal(t, []ratelimittest.Call{
		{Limiter: "per user", Method: "TryAcquire", Key: "u", N: 2, Result: ratelimit.Result{Allowed: true, Limit: 5, Window: time.Minute, Remaining: 3, ResetAfter: time.Second}},
		{Limiter: "per address", Method: "TryAcquire", Key: "a", N: 1, Err: errDown},
		{Limiter: "per address", Method: "TryAcquire", Key: "b", N: 1, Result: ratelimit.Result{Allowed: true}},
		{Limiter: "per address", Method: "Peek", Key: "b", Result: ratelimit.Result{Limit: 5, Window: time.Minute, RetryAfter: time.Second, ResetAfter: time.Minute}},
		{Limiter: "per user", Method: "Reset", Key: "u"},
	}, calls.Calls())
	require.Equal(t, `per user: TryAcquire("u", 2): allowed, 3 of 5 left
per address: TryAcquire("a", 1): no connection
per address: TryAcquire("b", 1): allowed, no limit
per address: Peek("b"): denied, retry after 1s
per user: Reset("u"): done`, calls.String())

	calls.Clear()
	require.Empty(t, calls.Calls())
	require.Empty(t, calls.String())
}

// As an observer, a Recorder sees what it cannot be around.
func TestRecorderObserves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := ratelimittest.New(t)
		var calls ratelimittest.Recorder
		observed := func(name string) []ratelimit.Option {
			return []ratelimit.Option{ratelimit.WithName(name), ratelimit.WithObserver(calls.Observe)}
		}
		requests := ratelimit.Must(ratelimit.NewFixedWindow(env.Client(), 1, time.Minute, observed("requests")...))
		tokens := ratelimit.Must(ratelimit.NewTokenBucket(env.Client(), ratelimit.PerMinute(60), 100, observed("tokens")...))
		for range 2 {
			all, err := ratelimit.TryAcquireAll(t.Context(), ratelimit.ClaimOf(requests, "u", 1), ratelimit.ClaimOf(tokens, "u", 40).Estimate())
			require.NoError(t, err)
			if ticket := all.Parts[1].Ticket; ticket != nil {
				require.NoError(t, ticket.Settle(t.Context(), 10))
			}
		}
		env.Down()
		require.Error(t, requests.Reset(t.Context(), "u"))
		lines := strings.Split(calls.String(), "\n")
		require.Equal(t, []string{
			`requests: acquire("u", 1): allowed, 0 of 1 left`,
			`tokens: estimate("u", 40): allowed, 60 of 100 left`,
			`tokens: settle("u", 10): done`,
			`requests: acquire("u", 1): denied, retry after 1m0s`,
			`tokens: estimate("u", 40): allowed, 90 of 100 left`,
		}, lines[:5])
		require.Len(t, lines, 6)
		require.Contains(t, lines[5], `requests: reset("u"): `)
	})
}

func TestScriptAndRecorderAreSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	var calls ratelimittest.Recorder
	s := ratelimittest.NewScript(t)
	l := calls.Around("l", s)
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			for range 100 {
				s.Once().Deny("k", time.Hour)
				_, _ = l.TryAcquire(ctx, "k")
				s.Deny("k", time.Hour)
				_, _ = l.Peek(ctx, "k")
				_ = l.Reset(ctx, "k")
			}
		})
	}
	wait.Wait()
	require.Len(t, calls.Calls(), 2400)
}

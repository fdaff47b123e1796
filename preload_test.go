package ratelimit_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// A preloadStage is two servers that know no script, behind proxies that count connections.
type preloadStage struct {
	main, standby *redis.Client
	proxy         *redistest.Proxy // to main
	admins        []*redis.Client
	customer      context.Context // of the plan pro
}

type planName struct{}

func newPreloadStage(t *testing.T) *preloadStage {
	s := &preloadStage{customer: context.WithValue(t.Context(), planName{}, "pro")}
	open := func() (*redis.Client, *redistest.Proxy) {
		server := redistest.Start(t)
		s.admins = append(s.admins, server.Client(t))
		proxy := redistest.NewProxy(t, server.Addr())
		client := redis.NewClient(ratelimit.Must(ratelimit.ClientOptions(time.Second, &redis.Options{Addr: proxy.Addr()})))
		t.Cleanup(func() { _ = client.Close() })
		return client, proxy
	}
	s.main, s.proxy = open()
	s.standby, _ = open()
	return s
}

// requireLoaded runs calls, of which none may bring a script.
func (s *preloadStage) requireLoaded(t *testing.T, calls func()) {
	t.Helper()
	for _, admin := range s.admins {
		require.NoError(t, admin.ConfigResetStat(t.Context()).Err())
	}
	calls()
	for i, admin := range s.admins {
		require.Zero(t, redistest.WholeScripts(t, admin), "server %d", i+1)
	}
}

func (s *preloadStage) bucket(t *testing.T, c ratelimit.Client, name string) *ratelimit.TokenBucket {
	t.Helper()
	return ratelimit.Must(ratelimit.NewTokenBucket(c, ratelimit.PerHour(1), 100, ratelimit.WithName(name)))
}

// service is claims with every policy, on two servers: requests by plan, tokens that are estimated, what runs, and a
// trial.
func (s *preloadStage) service(t *testing.T) func() []ratelimit.Claim {
	breaker := ratelimit.WithBreaker(&ratelimit.Breaker{Failures: 1})
	guarded := func(primary, secondary ratelimit.Limiter) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.NewFallback(primary, secondary, ratelimit.WithBudget(time.Second), breaker))
	}
	pro := s.bucket(t, s.main, "plan")
	plans := ratelimit.Must(ratelimit.NewChoice(func(ctx context.Context, _ string) (ratelimit.Limiter, error) {
		if ctx.Value(planName{}) == "pro" {
			return pro, nil
		}
		return ratelimit.DenyAll(), nil
	}))
	requests := guarded(ratelimit.Must(ratelimit.NewDenyCache(plans)), s.bucket(t, s.standby, "plan"))
	log := ratelimit.Must(ratelimit.NewSlidingLog(s.main, []ratelimit.Rule{{Limit: 50, Window: time.Hour}}, ratelimit.WithName("tokens")))
	tokens := guarded(ratelimit.Must(ratelimit.NewShadow(log, s.bucket(t, s.standby, "trial"), func(ratelimit.Trial) {})), s.bucket(t, s.standby, "tokens"))
	running := ratelimit.Must(ratelimit.NewHoldFallback(
		ratelimit.Must(ratelimit.NewInFlight(s.main, 5, time.Hour, ratelimit.WithName("running"))),
		ratelimit.Must(ratelimit.NewInFlight(s.standby, 5, time.Hour, ratelimit.WithName("running"))), breaker))
	return func() []ratelimit.Claim {
		return []ratelimit.Claim{ratelimit.ClaimOf(requests, "k", 1), ratelimit.ClaimOf(tokens, "k", 20).Estimate(), ratelimit.ClaimHold(running, "k", 1)}
	}
}

// TestPreloadOfAService: no call sends a script or connects, with all policies, while Redis answers, when it is
// down, and when the work is done.
func TestPreloadOfAService(t *testing.T) {
	s := newPreloadStage(t)
	claims := s.service(t)
	require.NoError(t, ratelimit.Preload(s.customer, claims()...))
	connected := s.proxy.Accepted()
	require.Equal(t, 1, connected)
	call := func(fallback bool) ratelimit.AllResult {
		r, err := ratelimit.TryAcquireAll(s.customer, claims()...)
		require.NoError(t, err)
		require.True(t, r.Allowed)
		for _, p := range r.Parts {
			require.Equal(t, fallback, p.Result.Fallback, p.Name)
		}
		return r
	}
	finish := func(r ratelimit.AllResult) {
		require.NoError(t, r.Parts[2].Hold.Extend(s.customer))
		require.NoError(t, r.Parts[1].Ticket.Settle(s.customer, 7))
		require.NoError(t, r.Parts[2].Hold.Release(s.customer))
	}
	s.requireLoaded(t, func() {
		finish(call(false))
		require.Equal(t, connected, s.proxy.Accepted())
		s.proxy.Refuse()
		finish(call(true))
	})
}

func TestPreloadOfOneClaim(t *testing.T) {
	s := newPreloadStage(t)
	window := ratelimit.Must(ratelimit.NewFixedWindow(s.main, 10, time.Hour, ratelimit.WithName("hour")))
	all := ratelimit.Must(ratelimit.NewAll(s.bucket(t, s.main, "second"), window))
	guarded := ratelimit.Must(ratelimit.NewFallback(all, s.bucket(t, s.standby, "second")))
	require.NoError(t, ratelimit.Preload(t.Context(), ratelimit.ClaimOf(guarded, "k", 1)))
	s.requireLoaded(t, func() {
		for _, fallback := range []bool{false, true} {
			r, err := guarded.TryAcquire(t.Context(), "k")
			require.NoError(t, err)
			require.True(t, r.Allowed)
			require.Equal(t, fallback, r.Fallback)
			s.proxy.Refuse()
		}
	})
}

// TestPreloadOfOneClaimThatIsLeft: one limiter alone has a script of several too, where others need no Redis.
func TestPreloadOfOneClaimThatIsLeft(t *testing.T) {
	s := newPreloadStage(t)
	for _, claims := range [][]ratelimit.Claim{
		{ratelimit.ClaimOf(s.bucket(t, s.main, "a"), "k", 1)},
		{ratelimit.ClaimOf(s.bucket(t, s.main, "b"), "k", 1).Estimate(), ratelimit.ClaimOf(ratelimit.AllowAll(), "k", 1)},
	} {
		require.NoError(t, ratelimit.Preload(t.Context(), claims...))
		s.requireLoaded(t, func() {
			r, err := ratelimit.TryAcquireAll(t.Context(), claims...)
			require.NoError(t, err)
			require.True(t, r.Allowed)
		})
	}
}

// TestPreloadOfSeveralSlots: keys on two shards are one script for each.
func TestPreloadOfSeveralSlots(t *testing.T) {
	s := newPreloadStage(t)
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": s.admins[0].Options().Addr, "two": s.admins[1].Options().Addr}})
	t.Cleanup(func() { _ = ring.Close() })
	address, user := s.bucket(t, ring, "address"), s.bucket(t, ring, "user")
	require.NoError(t, ratelimit.Preload(t.Context(), ratelimit.ClaimOf(address, "any", 1), ratelimit.ClaimOf(user, "any", 1)))
	s.requireLoaded(t, func() {
		for _, key := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} { // on either shard
			r, err := ratelimit.TryAcquireAcrossSlots(t.Context(), ratelimit.ClaimOf(address, key, 1), ratelimit.ClaimOf(user, "u", 20))
			require.NoError(t, err)
			require.Equal(t, key < "f", r.Allowed, "after five, what the address has given is given back")
		}
	})
}

// TestPreloadGoesOnAfterAnError: a Redis that is down is no reason not to prepare the standby.
func TestPreloadGoesOnAfterAnError(t *testing.T) {
	s := newPreloadStage(t)
	guarded := ratelimit.Must(ratelimit.NewFallback(s.bucket(t, s.main, "api"), s.bucket(t, s.standby, "api")))
	s.proxy.Refuse()
	err := ratelimit.Preload(t.Context(), ratelimit.ClaimOf(guarded, "k", 1))
	require.ErrorContains(t, err, "ratelimit: preload: dial tcp")
	s.requireLoaded(t, func() {
		r, err := guarded.TryAcquire(t.Context(), "k")
		require.NoError(t, err)
		require.True(t, r.Fallback)
	})
}

func TestPreloadOfWhatNeedsNoScript(t *testing.T) {
	local := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1), 5))
	require.NoError(t, ratelimit.Preload(t.Context(), ratelimit.ClaimOf(local, "k", 1), ratelimit.ClaimOf(ratelimit.AllowAll(), "k", 1), ratelimit.ClaimHold(ratelimit.AllowHolds(), "k", 1)))
	require.NoError(t, ratelimit.Preload(t.Context(), ratelimit.ClaimOf(ratelimit.Must(ratelimit.NewAll(local)), "k", 1)))
	own := struct{ ratelimit.Limiter }{local} // a limiter of a user's type
	require.NoError(t, ratelimit.Preload(t.Context(), ratelimit.ClaimOf(own, "k", 1)))
}

func TestPreloadRefusesWhatWouldLoadNothing(t *testing.T) {
	s := newPreloadStage(t)
	claims := s.service(t)
	for name, given := range map[string][]ratelimit.Claim{
		"there is no claim":      nil,
		"is to deny all":         claims(), // the context has no plan
		"was not made":           {{}},
		"have different clients": {ratelimit.ClaimOf(s.bucket(t, s.main, "a"), "k", 1), ratelimit.ClaimOf(s.bucket(t, s.standby, "b"), "k", 1)},
		"some in memory":         {ratelimit.ClaimOf(s.bucket(t, s.main, "a"), "k", 1), ratelimit.ClaimOf(ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1), 1)), "k", 1)},
	} {
		err := ratelimit.Preload(t.Context(), given...)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
		require.ErrorContains(t, err, name)
	}
	none := ratelimit.Must(ratelimit.NewChoice(func(context.Context, string) (ratelimit.Limiter, error) { return nil, nil }))
	require.ErrorContains(t, ratelimit.Preload(t.Context(), ratelimit.ClaimOf(none, "k", 1)), `pick returned nil for "k"`)
	holds := ratelimit.Must(ratelimit.NewHoldChoice(func(context.Context, string) (ratelimit.Holder, error) { return ratelimit.DenyHolds(), nil }))
	require.ErrorContains(t, ratelimit.Preload(t.Context(), ratelimit.ClaimHold(holds, "k", 1)), "is to deny all")
	require.Zero(t, s.proxy.Accepted(), "nothing was sent")
}

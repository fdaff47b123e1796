package ratelimit_test

import (
	"context"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/fakes"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
	"github.com/tryacquire/ratelimit/ratelimittest"
)

var unlimited = ratelimit.Result{Allowed: true}

// pausedFor is the answer while a key is paused.
func pausedFor(d time.Duration) ratelimit.Result {
	return ratelimit.Result{RetryAfter: d, ResetAfter: d}
}

// TestAPauseEndsAtItsInstant, which is only ever moved later.
func TestAPauseEndsAtItsInstant(t *testing.T) {
	limitertest.Everywhere(t, func(t *testing.T, s *limitertest.Stage) {
		s.Wipe(t)
		p := ratelimit.Must(ratelimit.NewPause(s.Client, s.Opts...))
		require.Equal(t, unlimited, must(t)(p.TryAcquireN(ctx, "k", 5)))
		require.Equal(t, pausedFor(10*time.Second), must(t)(p.Pause(ctx, "k", 10*time.Second)))
		s.Advance(3 * time.Second)
		for range 2 {
			require.Equal(t, pausedFor(7*time.Second), must(t)(p.TryAcquireN(ctx, "k", 5)))
			require.Equal(t, pausedFor(7*time.Second), must(t)(p.Peek(ctx, "k")))
		}
		require.Equal(t, pausedFor(7*time.Second), must(t)(p.Pause(ctx, "k", 7*time.Second-time.Microsecond)), "an earlier one")
		require.Equal(t, pausedFor(8*time.Second), must(t)(p.Pause(ctx, "k", 8*time.Second-time.Nanosecond)), "a part of a microsecond is rounded up")
		require.NoError(t, p.Resume(ctx, "k"))
		s.Advance(8*time.Second - time.Microsecond)
		require.Equal(t, pausedFor(time.Microsecond), must(t)(p.TryAcquire(ctx, "k")))
		require.Equal(t, unlimited, must(t)(p.TryAcquire(ctx, "other")))
		s.Advance(time.Microsecond)
		require.Equal(t, unlimited, must(t)(p.TryAcquire(ctx, "k")))
		require.Equal(t, unlimited, must(t)(p.Pause(ctx, "k", 0)))

		must(t)(p.Pause(ctx, "k", time.Hour))
		require.Contains(t, s.Look(t, ratelimit.NameOf(p, "k")), " expires")
		require.NoError(t, p.Reset(ctx, "k"))
		require.Equal(t, unlimited, must(t)(p.TryAcquire(ctx, "k")))
	})
}

// TestOneGoesFirst: the others follow its success, or the next one after its lease.
func TestOneGoesFirst(t *testing.T) {
	limitertest.Everywhere(t, func(t *testing.T, s *limitertest.Stage) {
		s.Wipe(t)
		const lease = 2 * time.Second
		p := ratelimit.Must(ratelimit.NewPause(s.Client, append(s.Opts[:len(s.Opts):len(s.Opts)], ratelimit.WithProbe(lease))...))
		free := ratelimit.Result{Allowed: true, Limit: 1, Window: lease, Remaining: 1}
		first := ratelimit.Result{Allowed: true, Limit: 1, Window: lease, ResetAfter: lease}
		waits := func(d time.Duration) ratelimit.Result {
			return ratelimit.Result{Limit: 1, Window: lease, RetryAfter: d, ResetAfter: d}
		}
		begin := func() {
			t.Helper()
			require.Equal(t, pausedFor(time.Second), must(t)(p.Pause(ctx, "k", time.Second)))
			require.Equal(t, pausedFor(time.Second), must(t)(p.TryAcquire(ctx, "k")))
			s.Advance(time.Second)
			require.Equal(t, free, must(t)(p.Peek(ctx, "k")))
			require.Equal(t, first, must(t)(p.TryAcquireN(ctx, "k", 3)))
			require.Equal(t, waits(lease), must(t)(p.TryAcquire(ctx, "k")))
			s.Advance(time.Second)
			require.Equal(t, waits(lease-time.Second), must(t)(p.Peek(ctx, "k")))
			require.Equal(t, waits(lease-time.Second), must(t)(p.TryAcquire(ctx, "k")))
		}
		begin()
		require.NoError(t, p.Resume(ctx, "k"))
		require.Equal(t, unlimited, must(t)(p.TryAcquire(ctx, "k")))

		begin() // it dies
		s.Advance(lease - time.Second - time.Microsecond)
		require.Equal(t, waits(time.Microsecond), must(t)(p.TryAcquire(ctx, "k")))
		s.Advance(time.Microsecond)
		require.Equal(t, first, must(t)(p.TryAcquire(ctx, "k")))
		require.Equal(t, waits(lease), must(t)(p.TryAcquire(ctx, "k")))

		begin() // it fails
		require.Equal(t, pausedFor(time.Minute), must(t)(p.Pause(ctx, "k", time.Minute)))
		require.NoError(t, p.Resume(ctx, "k"), "a success of before does not end it")
		require.Equal(t, pausedFor(time.Minute), must(t)(p.TryAcquire(ctx, "k")))
		s.Advance(time.Minute + lease - time.Microsecond)
		require.Equal(t, free, must(t)(p.Peek(ctx, "k")))
		s.Advance(time.Microsecond)
		require.Equal(t, unlimited, must(t)(p.TryAcquire(ctx, "k")), "nobody has asked for so long")

		must(t)(p.Pause(ctx, "k", 0))
		ticket, r, err := p.Estimate(ctx, "k", 1)
		require.NoError(t, err)
		require.Equal(t, first, r)
		require.NoError(t, ticket.Settle(ctx, 0), "it has not been made")
		require.Equal(t, first, must(t)(p.TryAcquire(ctx, "k")))
		require.Equal(t, unlimited, must(t)(p.Charge(ctx, "k", 5)), "nothing is counted")
		taken, r, err := p.TryAcquireUpTo(ctx, "k", 5)
		require.NoError(t, err)
		require.Zero(t, taken)
		require.Equal(t, waits(lease), r)
	})
}

// TestAPausedKeyTakesNothingFromOthers, in one decision.
func TestAPausedKeyTakesNothingFromOthers(t *testing.T) {
	limitertest.Everywhere(t, func(t *testing.T, s *limitertest.Stage) {
		for _, k := range limitertest.Kinds() {
			s.Wipe(t)
			limit, err := k.Build(s.Client, 5, time.Minute, append(s.Opts[:len(s.Opts):len(s.Opts)], ratelimit.WithName("limit"))...)
			require.NoError(t, err)
			p := ratelimit.Must(ratelimit.NewPause(s.Client, append(s.Opts[:len(s.Opts):len(s.Opts)], ratelimit.WithName("paused"), ratelimit.WithProbe(time.Second))...))
			both := ratelimit.Must(ratelimit.NewAll(p, limit))
			r := must(t)(both.TryAcquireN(ctx, k.Of("k"), 2))
			require.True(t, r.Allowed, k.Name)
			require.Equal(t, must(t)(limit.Peek(ctx, k.Of("k"))).Limit, r.Limit, "the limit governs")
			require.Equal(t, 3, r.Remaining)

			must(t)(p.Pause(ctx, k.Of("k"), 10*time.Second))
			for range 3 {
				r = must(t)(both.TryAcquire(ctx, k.Of("k")))
				require.False(t, r.Allowed)
				require.Equal(t, 10*time.Second, r.RetryAfter)
			}
			parts, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(limit, k.Of("k"), 1).Estimate(), ratelimit.ClaimOf(p, k.Of("k"), 1))
			require.NoError(t, err)
			require.Equal(t, pausedFor(10*time.Second), parts.Parts[1].Result)
			require.True(t, parts.Parts[0].Result.Allowed)
			require.Equal(t, 3, must(t)(limit.Peek(ctx, k.Of("k"))).Remaining)

			s.Advance(10 * time.Second)
			require.Equal(t, 1, must(t)(both.TryAcquire(ctx, k.Of("k"))).Limit, "it goes first")
			require.Equal(t, time.Second, must(t)(both.TryAcquire(ctx, k.Of("k"))).RetryAfter)
			used := must(t)(limit.Peek(ctx, k.Of("k"))).Remaining
			must(t)(limit.TryAcquireN(ctx, k.Of("k"), used))
			require.NoError(t, p.Resume(ctx, k.Of("k")))
			must(t)(p.Pause(ctx, k.Of("k"), 0))
			require.False(t, must(t)(both.TryAcquire(ctx, k.Of("k"))).Allowed)
			require.Equal(t, 1, must(t)(p.Peek(ctx, k.Of("k"))).Remaining, "a call that another limit denies does not go first")
		}
	})
}

// TestOneOfManyGoesFirst: many callers of several processes, on their own and together with a limit, merged and not.
func TestOneOfManyGoesFirst(t *testing.T) {
	server := redistest.Shared(t)
	var limiters []ratelimit.Limiter
	var pauses []*ratelimit.Pause
	for i := range 3 {
		client := server.Client(t)
		p := ratelimit.Must(ratelimit.NewPause(client, ratelimit.WithName(t.Name()), ratelimit.WithProbe(time.Hour)))
		pauses = append(pauses, p)
		limiters = append(limiters, p)
		if i > 0 {
			limiters = append(limiters, ratelimit.Must(ratelimit.NewAll(p, ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(1000), 1000, ratelimit.WithName(t.Name()))))))
		}
	}
	for range 20 {
		must(t)(pauses[0].Pause(ctx, "k", 0))
		var first, others atomic.Int32
		var callers sync.WaitGroup
		for i := range 40 {
			callers.Go(func() {
				r, err := limiters[i%len(limiters)].TryAcquire(ctx, "k")
				switch {
				case err != nil:
					t.Error(err)
				case r.Allowed:
					first.Add(1)
				case r.Limit == 1 && r.RetryAfter > 59*time.Minute:
					others.Add(1)
				}
			})
		}
		callers.Wait()
		require.EqualValues(t, 1, first.Load())
		require.EqualValues(t, 39, others.Load())
		require.NoError(t, pauses[2].Resume(ctx, "k"))
	}
}

// TestAProcessKeepsItsPauses while Redis is down, if a DenyCache has seen them: by a denial, or because it asked for them.
func TestAProcessKeepsItsPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := ratelimittest.New(t)
		p := ratelimit.Must(ratelimit.NewPause(env.Client()))
		process := func() *ratelimit.DenyCache {
			return ratelimit.Must(ratelimit.NewDenyCache(ratelimit.Must(ratelimit.NewFallback(p, ratelimit.AllowAll()))))
		}
		asked, denied, other := process(), process(), process()
		must(t)(asked.Pause(ctx, "k", 10*time.Second))
		require.Equal(t, pausedFor(10*time.Second), must(t)(denied.TryAcquireN(ctx, "k", 7)))
		env.Down()
		require.True(t, must(t)(other.TryAcquire(ctx, "k")).Allowed, "it does not know")
		for _, cache := range []*ratelimit.DenyCache{asked, denied} {
			require.Greater(t, must(t)(cache.TryAcquireN(ctx, "k", 7)).RetryAfter, 9*time.Second)
			require.Greater(t, must(t)(cache.TryAcquireN(ctx, "k", 9)).RetryAfter, 9*time.Second, "any number of permits")
			require.NotNil(t, cache)
		}
		env.Advance(10*time.Second - time.Microsecond)
		require.False(t, must(t)(asked.TryAcquire(ctx, "k")).Allowed)
		env.Advance(time.Microsecond)
		require.True(t, must(t)(asked.TryAcquire(ctx, "k")).Fallback)

		r, err := other.Pause(ctx, "k", time.Minute)
		require.ErrorContains(t, err, "connection refused")
		require.Zero(t, r)
		r, err = other.Pause(ctx, "k", time.Second)
		require.Error(t, err)
		require.Zero(t, r)
		require.True(t, must(t)(asked.TryAcquire(ctx, "k")).Allowed, "another process")
		env.Advance(time.Minute - time.Microsecond)
		require.False(t, must(t)(other.TryAcquire(ctx, "k")).Allowed, "its own")
		env.Up()
		env.Advance(time.Microsecond)
		require.Equal(t, unlimited, must(t)(other.TryAcquire(ctx, "k")))

		must(t)(asked.Pause(ctx, "k", time.Hour))
		require.NoError(t, asked.Reset(ctx, "k"), "it is lifted")
		require.Equal(t, unlimited, must(t)(asked.TryAcquire(ctx, "k")))

		probed := ratelimit.Must(ratelimit.NewPause(env.Client(), ratelimit.WithName("probed"), ratelimit.WithProbe(time.Hour)))
		cache := ratelimit.Must(ratelimit.NewDenyCache(probed))
		must(t)(cache.Pause(ctx, "k", 0))
		require.Equal(t, 1, must(t)(cache.TryAcquire(ctx, "k")).Limit)
		require.Equal(t, time.Hour, must(t)(cache.TryAcquire(ctx, "k")).RetryAfter)
		require.NoError(t, cache.Resume(ctx, "k"))
		require.Equal(t, unlimited, must(t)(cache.TryAcquire(ctx, "k")), "what memory denied is forgotten")
	})
}

// TestAPauseIsSentOnce: a lost reply is an error, and the key is paused once.
func TestAPauseIsSentOnce(t *testing.T) {
	server := redistest.Shared(t)
	proxy := redistest.NewProxy(t, server.Addr())
	client := redis.NewClient(&redis.Options{Addr: proxy.Addr()})
	defer client.Close()
	p := ratelimit.Must(ratelimit.NewPause(client, ratelimit.WithName(t.Name()), ratelimit.WithProbe(time.Hour)))
	direct := ratelimit.Must(ratelimit.NewPause(server.Client(t), ratelimit.WithName(t.Name()), ratelimit.WithProbe(time.Hour)))
	require.NoError(t, ratelimit.Preload(ctx, ratelimit.ClaimOf(p, "k", 1)))
	lost := proxy.DropNextReply(redistest.OnScript())
	_, err := p.Pause(ctx, "k", time.Hour)
	require.Error(t, err)
	require.Equal(t, 1, lost.Hits())
	require.InDelta(t, time.Hour, must(t)(direct.Peek(ctx, "k")).RetryAfter, float64(time.Minute))

	must(t)(direct.Pause(ctx, "first", 0))
	proxy.DropNextReply(redistest.OnScript())
	_, err = p.TryAcquire(ctx, "first")
	require.Error(t, err)
	require.False(t, must(t)(direct.TryAcquire(ctx, "first")).Allowed, "somebody goes first, and did not hear of it: for the lease")
	proxy.DropNextReply(redistest.OnScript())
	require.Error(t, p.Resume(ctx, "first"))
	require.Equal(t, unlimited, must(t)(direct.TryAcquire(ctx, "first")))
}

func TestPausesThatCannotWork(t *testing.T) {
	c := fakes.Offline(t)
	_, err := ratelimit.NewPause(nil)
	require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
	_, err = ratelimit.NewPause(c, ratelimit.WithProbe(time.Microsecond))
	require.EqualError(t, err, "ratelimit: invalid configuration: WithProbe: the lease is 1µs; it must be at least 1ms")
	p := ratelimit.Must(ratelimit.NewPause(c))
	for _, d := range []time.Duration{-1, math.MaxInt64} {
		_, err = p.Pause(ctx, "k", d)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
		require.ErrorContains(t, err, "Pause: "+d.String()+" is not between 0 and ")
	}
	_, err = p.Pause(ctx, "", 1)
	require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
	require.ErrorIs(t, p.Resume(ctx, ""), ratelimit.ErrInvalidKey)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	_, err = p.Pause(ended, "k", 1)
	require.ErrorIs(t, err, context.Canceled)

	bucket := ratelimit.Must(ratelimit.NewTokenBucket(c, ratelimit.PerSecond(1), 1))
	for _, l := range []ratelimit.Limiter{bucket, ratelimit.AllowAll(), ratelimit.Must(ratelimit.NewAll(bucket))} {
		cache := ratelimit.Must(ratelimit.NewDenyCache(l))
		_, err = cache.Pause(ctx, "k", time.Second)
		require.ErrorContains(t, err, "cannot be paused; NewPause makes a limiter that can")
		require.ErrorIs(t, cache.Resume(ctx, "k"), ratelimit.ErrInvalidConfig)
	}
	_, err = new(ratelimit.DenyCache).Pause(ctx, "k", 1)
	require.Error(t, err)
	require.Error(t, new(ratelimit.Pause).Resume(ctx, "k"))
}

// TestPausesAndBansThroughEveryPolicy: what pauses, resumes and resets reaches the pause, and nobody remembers what is over.
func TestPausesAndBansThroughEveryPolicy(t *testing.T) {
	local := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1), 5))
	compositions := append(slices.Clone(limitertest.Compositions), limitertest.Composition{
		Name: "Choice, DenyCache, Fallback", Around: func(t testing.TB, s *limitertest.Stage, l ratelimit.Limiter) ratelimit.Limiter {
			breaker := ratelimit.WithBreaker(new(ratelimit.Breaker))
			return chosen(cached(t, s, ratelimit.Must(ratelimit.NewFallback(l, local, ratelimit.WithBudget(time.Minute), breaker))))
		},
	})
	for _, c := range compositions {
		for _, inside := range []string{"pause", "probe", "bans", "bans of a fair bucket"} {
			s := limitertest.OnMiniredis(t)
			opts, key := slices.Clip(s.Opts), "{k}:1"
			var l ratelimit.Limiter
			switch bans, p := bansOf(s.Client, opts...); inside {
			case "pause":
				l = p
			case "probe":
				l = ratelimit.Must(ratelimit.NewPause(s.Client, append(opts, ratelimit.WithProbe(time.Second))...))
			case "bans":
				l = bans
			default:
				fair := ratelimit.Must(ratelimit.NewFairTokenBucket(s.Client, ratelimit.Per(1, 10*time.Second), 2, opts...))
				l = ratelimit.Must(ratelimit.NewBans(fair, p, lengths, time.Hour))
			}
			w, ok := c.Around(t, s, l).(interface {
				ratelimit.Limiter
				Pause(context.Context, string, time.Duration) (ratelimit.Result, error)
				Resume(context.Context, string) error
			})
			if !ok {
				continue // a limiter over HTTP
			}
			name := c.Name + ", " + inside
			denied := func(d time.Duration) {
				t.Helper()
				for _, r := range []ratelimit.Result{must(t)(w.TryAcquire(ctx, key)), must(t)(l.Peek(ctx, key)), must(t)(w.Peek(ctx, key))} {
					require.False(t, r.Allowed, name)
					require.Equal(t, d, r.RetryAfter, name)
				}
			}
			allowed := func() {
				t.Helper()
				require.True(t, must(t)(w.TryAcquire(ctx, key)).Allowed, name)
			}
			require.Equal(t, 10*time.Second, must(t)(w.Pause(ctx, key, 10*time.Second)).RetryAfter, name)
			denied(10 * time.Second)
			require.NoError(t, w.Resume(ctx, key))
			denied(10 * time.Second)
			s.Advance(10 * time.Second)
			allowed()
			if inside == "probe" {
				denied(time.Second)
				require.NoError(t, w.Resume(ctx, key))
				allowed()
			}
			for _, length := range lengths {
				if strings.HasPrefix(inside, "bans") {
					must(t)(w.TryAcquire(ctx, key))
					denied(length)
					s.Advance(length)
					allowed()
				}
			}
			must(t)(w.Pause(ctx, key, time.Hour))
			require.NoError(t, w.Reset(ctx, key), "it is lifted")
			allowed()
		}
	}
}

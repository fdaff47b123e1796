package ratelimit_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
)

// A rig is a server for the comparison of limiters with models, and its clock.
type rig struct {
	client *redis.Client
	set    func(now int64) // moves the clock
	keys   func() bool     // reports whether there are keys
	wipe   func()
	opts   []ratelimit.Option // the caller's clock, or none
}

// rigs runs a test on miniredis and on a server whose clock is held, with either's clock
// and with a caller's. It makes so many configurations of each family.
func rigs(t *testing.T, configurations int, test func(t *testing.T, r *rig, rng *rand.Rand, f limitertest.Family)) {
	run := func(name string, configurations int, make func(t *testing.T, timeless bool) *rig, parallel bool) {
		t.Run(name, func(t *testing.T) {
			for _, f := range limitertest.Families() {
				t.Run(f.Name, func(t *testing.T) {
					if parallel {
						t.Parallel()
					}
					rng := model.Seeded(limitertest.Seed(t))
					r := make(t, f.Timeless)
					server := r.set
					for i := range configurations {
						r.opts, r.set = nil, server
						if i%2 == 1 || server == nil {
							var at time.Time
							r.opts = []ratelimit.Option{ratelimit.WithClock(func() time.Time { return at })}
							r.set = func(now int64) { at = time.UnixMicro(now) }
							if server != nil {
								server(limitertest.Start.UnixMicro()) // so that no key expires while the caller's clock decides
							}
						}
						r.wipe()
						test(t, r, rng, f)
					}
				})
			}
		})
	}
	run("miniredis", limitertest.Rounds(20, configurations), func(t *testing.T, timeless bool) *rig {
		server := miniredis.RunT(t)
		server.ClockTTL(true)
		server.SetTime(limitertest.Start)
		client := redis.NewClient(&redis.Options{Addr: server.Addr()})
		t.Cleanup(func() { _ = client.Close() })
		var from time.Time
		return &rig{client: client, wipe: server.FlushAll, keys: func() bool { return len(server.Keys()) > 0 }, set: func(now int64) {
			if timeless {
				now -= now % 1000 // miniredis cuts a TTL to milliseconds, Redis its clock
			}
			at := time.UnixMicro(now)
			server.SetTime(at)
			if at.Before(from) { // Redis keeps the instant of expiry, miniredis what is left
				for _, key := range server.Keys() {
					server.SetTTL(key, server.TTL(key)+from.Sub(at))
				}
			}
			from = at
		}}
	}, true)
	server, client, still := limitertest.FaketimeServer(t)
	run("Redis", limitertest.Rounds(6, min(configurations, 2)), func(t *testing.T, timeless bool) *rig {
		r := &rig{client: client, wipe: func() { require.NoError(t, client.FlushAll(ctx).Err()) },
			keys: func() bool { return client.DBSize(ctx).Val() > 0 },
			set: func(now int64) {
				if timeless {
					now -= now % 1000
				}
				server.HoldClock(time.UnixMicro(now))
			}}
		if !still {
			r.set = nil
		}
		return r
	}, false)
}

// TestHeadroomDecidesAsALowerLimit: a limiter with headroom, beside one without on the
// same key, decides as the model does whose limit is lower.
func TestHeadroomDecidesAsALowerLimit(t *testing.T) {
	rigs(t, 2, func(t *testing.T, r *rig, rng *rand.Rand, f limitertest.Family) {
		seed := rng.Uint64()
		p, err := f.Draw(model.Seeded(seed), r.client, r.opts...)
		require.NoError(t, err)
		m := p.Model()
		x := rng.IntN(m.Max())
		low, err := f.Draw(model.Seeded(seed), r.client, append(r.opts, ratelimit.WithHeadroom(x))...)
		require.NoError(t, err)
		models := []model.Model{m, model.Headroom{Model: m, X: x}}
		limiters := []ratelimit.Limiter{p.Limiter, low.Limiter}
		scenario := model.NewScenario(rng, model.ShapeOf(m, true))
		var want model.Answer
		var before int64
		for i := range 100 {
			step := scenario.Next(want)
			if step.Now > latest {
				return
			}
			if step.Now < before && m.Unused(before) {
				require.NoError(t, p.Limiter.Reset(ctx, "k"))
				m.Reset()
			}
			before = step.Now
			r.set(step.Now)
			if !r.keys() {
				m.Reset()
			}
			who := rng.IntN(2)
			l, n := limiters[who], min(step.N, models[who].Max())
			var got ratelimit.Result
			switch step.Op {
			case model.Reset:
				require.NoError(t, l.Reset(ctx, "k"))
				m.Reset()
				continue
			case model.Peek:
				got, err = l.Peek(ctx, "k")
			default:
				got, err = l.TryAcquireN(ctx, "k", n)
			}
			want = models[who].Take(step.Now, n, step.Op == model.Peek)
			require.NoError(t, err, "%s, headroom %d: step %d: %+v", p.About, x, i, step)
			require.Equal(t, limitertest.ResultOf(want), got, "%s, headroom %d of limiter %d: step %d: %+v", p.About, x, who, i, step)
			_, err = l.TryAcquireN(ctx, "k", models[who].Max()+1)
			require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
		}
	})
}

func TestAHeadroomThatLeavesNothingIsRefused(t *testing.T) {
	c := limitertest.Offline(t)
	build := map[string]func(x int) error{
		"fixed window: of the limit 3": func(x int) error {
			_, err := ratelimit.NewFixedWindow(c, 3, time.Second, ratelimit.WithHeadroom(x))
			return err
		},
		"log: of the limit 3": func(x int) error {
			_, err := ratelimit.NewSlidingLog(c, []ratelimit.Rule{{Limit: 9, Window: time.Minute}, {Limit: 3, Window: time.Second}}, ratelimit.WithHeadroom(x))
			return err
		},
		"bucket: of the burst 3": func(x int) error {
			_, err := ratelimit.NewTokenBucket(c, ratelimit.PerSecond(1), 3, ratelimit.WithHeadroom(x))
			return err
		},
		"leaky: of the capacity 3": func(x int) error {
			_, err := ratelimit.NewLeakyBucket(c, ratelimit.PerSecond(1), 3, ratelimit.WithHeadroom(x))
			return err
		},
	}
	for _, storage := range []ratelimit.Storage{ratelimit.StorageHash, ratelimit.StorageList, ratelimit.StorageZSet} {
		build[storage.String()+": of the limit 3"] = func(x int) error {
			_, err := ratelimit.NewSlidingWindow(c, 3, time.Second, ratelimit.WithStorage(storage), ratelimit.WithHeadroom(x))
			return err
		}
	}
	for name, build := range build {
		_, want, _ := strings.Cut(name, ": ")
		require.NoError(t, build(0))
		require.NoError(t, build(2))
		for _, x := range []int{3, math.MaxInt/2 + 1} {
			err := build(x)
			require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
			require.ErrorContains(t, err, want+"; choose at most 2")
		}
		require.ErrorContains(t, build(-1), "WithHeadroom: -1 is below 0")
	}
	_, err := ratelimit.NewFixedWindow(c, 3, time.Second, ratelimit.WithHeadroom(1), ratelimit.WithHeadroom(1))
	require.ErrorContains(t, err, "WithHeadroom is given twice")
	_, err = ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1), 3, ratelimit.WithHeadroom(1))
	require.ErrorContains(t, err, "NewLocalTokenBucket: WithHeadroom is not one of its options")
}

// TestHeadroomBehindDecorators: a local denial, an outage, and calls that are merged know
// how many permits the limiter leaves.
func TestHeadroomBehindDecorators(t *testing.T) {
	for _, k := range limitertest.Kinds() {
		if k.Tenants { // without this option
			continue
		}
		t.Run(k.Name, func(t *testing.T) {
			s := limitertest.OnMiniredis(t)
			gate := limitertest.NewGate(s.Client.(*redis.Client))
			first, err := k.Build(s.Client, 50, time.Hour)
			require.NoError(t, err)
			low, err := k.Build(s.Client, 50, time.Hour, ratelimit.WithHeadroom(20))
			require.NoError(t, err)

			allowed, fewest := 0, 50
			for _, r := range gate.Together(t, low, k.Of("k")) {
				require.NoError(t, r.Err)
				if r.Allowed {
					allowed++
					fewest = min(fewest, r.Remaining)
				}
				require.Equal(t, 50, r.Limit)
			}
			require.Equal(t, []int{30, 0}, []int{allowed, fewest}, "30 of the 40 calls")

			cache := ratelimit.Must(ratelimit.NewDenyCache(ratelimit.Must(ratelimit.NewFallback(low, ratelimit.DenyAll()))))
			for range 2 { // from memory the second time
				r := must(t)(cache.TryAcquire(ctx, k.Of("k")))
				require.False(t, r.Allowed || r.Fallback)
				require.Equal(t, 50, r.Limit)
				_, err = cache.TryAcquireN(ctx, k.Of("k"), 31)
				require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
			}
			r := must(t)(first.TryAcquireN(ctx, k.Of("k"), 20))
			require.True(t, r.Allowed)
			require.Zero(t, r.Remaining)
			require.Zero(t, must(t)(low.Peek(ctx, k.Of("k"))).Remaining)

			both := ratelimit.Must(ratelimit.NewAll(low))
			require.NoError(t, k.Forget(both, "k"))
			_, err = both.TryAcquireN(ctx, k.Of("k"), 31)
			require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
			require.Zero(t, must(t)(both.TryAcquireN(ctx, k.Of("k"), 30)).Remaining)
			require.False(t, must(t)(both.TryAcquire(ctx, k.Of("k"))).Allowed)
		})
	}
}

// TestUsersDoNotWaitBehindTheHeadroom: a call of low priority that waits is due when its
// headroom is there too; until then, calls without a headroom take what that keeps.
func TestUsersDoNotWaitBehindTheHeadroom(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	name := ratelimit.WithName("search")
	users := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(1), 10, name))
	batch := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(1), 10, name, ratelimit.WithHeadroom(4)))
	must(t)(users.TryAcquireN(ctx, "k", 8))
	require.Equal(t, 3*time.Second, reserve(t, batch, 1, time.Minute).Delay())
	user := reserve(t, users, 1, 0)
	require.Equal(t, ratelimit.Result{Allowed: true, Limit: 10, Window: 10 * time.Second, ResetAfter: 10 * time.Second}, user.Result())
	require.Equal(t, ratelimit.Result{Limit: 10, Window: 10 * time.Second, RetryAfter: time.Second, ResetAfter: 10 * time.Second},
		must(t)(users.TryAcquire(ctx, "k")))
}

package ratelimit

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/redistest"
)

var ctx = context.Background()

// start is a whole second, so that sub-windows and aligned windows start there.
var start = time.UnixMicro(1_763_670_000_000_000)

// A hand is a clock that tests set.
type hand struct {
	mu sync.Mutex
	at time.Time
}

func (h *hand) now() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.at
}

func (h *hand) set(at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.at = at
}

// A stage is a Redis and a clock to test limiters on.
type stage struct {
	client Client
	admin  redis.UniversalClient // looks at keys
	opts   []Option
	now    time.Time
	move   func(to time.Time)
}

func (s *stage) advance(d time.Duration) {
	s.now = s.now.Add(d)
	s.move(s.now)
}

// onMini is a stage on miniredis, where limiters live by its clock.
func onMini(t testing.TB) *stage {
	server := miniredis.RunT(t)
	server.ClockTTL(true)
	server.SetTime(start)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { client.Close() })
	return &stage{client: client, admin: client, now: start, move: server.SetTime}
}

// onClock is a stage of a client whose limiters live by the test's own clock.
func onClock(client Client, admin redis.UniversalClient) *stage {
	h := &hand{at: start}
	return &stage{client: client, admin: admin, now: start, move: h.set, opts: []Option{WithClock(h.now)}}
}

// stages are where the whole suite runs.
func stages() map[string]func(t testing.TB) *stage {
	return map[string]func(t testing.TB) *stage{
		"miniredis": onMini,
		"miniredis, caller's clock": func(t testing.TB) *stage {
			s := onMini(t)
			return onClock(s.client, s.admin)
		},
		"miniredis, unmerged": func(t testing.TB) *stage {
			s := onMini(t)
			s.opts = append(s.opts, WithoutMerging())
			return s
		},
		"Redis": func(t testing.TB) *stage {
			client := redistest.Shared(t).Client(t)
			require.NoError(t, client.FlushAll(ctx).Err())
			return onClock(client, client)
		},
		"Redis, blocking AutoPipeliner": func(t testing.TB) *stage {
			client := redistest.Shared(t).Client(t)
			require.NoError(t, client.FlushAll(ctx).Err())
			auto, err := client.AutoPipeline()
			require.NoError(t, err)
			t.Cleanup(func() { auto.Close() })
			return onClock(auto, client)
		},
		"Redis, deferred AutoPipeliner": func(t testing.TB) *stage {
			client := redistest.Shared(t).Client(t)
			require.NoError(t, client.FlushAll(ctx).Err())
			auto, err := client.AsyncAutoPipeline()
			require.NoError(t, err)
			t.Cleanup(func() { auto.Close() })
			return onClock(auto, client)
		},
		"Redis, least privilege": onLeastPrivilege,
		"Redis Ring": func(t testing.TB) *stage {
			server := redistest.Shared(t)
			require.NoError(t, server.Client(t).FlushAll(ctx).Err())
			ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": server.Addr(), "two": server.Addr()}})
			t.Cleanup(func() { ring.Close() })
			return onClock(ring, ring)
		},
	}
}

// everywhere runs a test on every stage.
func everywhere(t *testing.T, test func(t *testing.T, s *stage)) {
	for name, set := range stages() {
		t.Run(name, func(t *testing.T) { test(t, set(t)) })
	}
}

// A variant is one way to limit to 3 a second.
type variant struct {
	name  string
	build func(c Client, opts ...Option) (Limiter, error)
	key   string // of "k" in Redis
	// ResetAfter after each of the three grants that start allows, RetryAfter of
	// the denial that follows, and how much earlier it is still denied.
	resets       [3]time.Duration
	retry, grain time.Duration
	corrupt      func(c redis.UniversalClient, key string) error
}

func corruptString(value string) func(redis.UniversalClient, string) error {
	return func(c redis.UniversalClient, key string) error { return c.Set(ctx, key, value, time.Hour).Err() }
}

func variants() []variant {
	const s, us = time.Second, time.Microsecond
	thirds := [3]time.Duration{333_334 * us, 666_667 * us, s}
	return []variant{
		{
			name: "FixedWindow", key: "ratelimit:default:fixedwindow:k",
			build: func(c Client, o ...Option) (Limiter, error) {
				return NewFixedWindow(c, 3, s, widen[FixedWindowOption](o)...)
			},
			resets: [3]time.Duration{s, s, s}, retry: s, grain: time.Millisecond,
			corrupt: corruptString("three"),
		},
		{
			name: "FixedWindow aligned", key: "ratelimit:default:fixedwindow:k",
			build: func(c Client, o ...Option) (Limiter, error) {
				return NewFixedWindow(c, 3, s, append(widen[FixedWindowOption](o), WithAlignment(-250*time.Millisecond))...)
			},
			resets: [3]time.Duration{750 * time.Millisecond, 750 * time.Millisecond, 750 * time.Millisecond},
			retry:  750 * time.Millisecond, grain: us,
			corrupt: corruptString("1/2/3"),
		},
		{
			name: "SlidingWindow Hash", key: "ratelimit:default:slidingwindow-hash:k",
			build: func(c Client, o ...Option) (Limiter, error) {
				return NewSlidingWindow(c, 3, s, widen[SlidingWindowOption](o)...)
			},
			resets: [3]time.Duration{1_099_999 * us, 1_099_999 * us, 1_099_999 * us}, retry: 1_099_999 * us, grain: us,
			corrupt: func(c redis.UniversalClient, key string) error { return c.HSet(ctx, key, "instant", "1").Err() },
		},
		{
			name: "SlidingWindow List", key: "ratelimit:default:slidingwindow-list:k",
			build: func(c Client, o ...Option) (Limiter, error) {
				return NewSlidingWindow(c, 3, s, append(widen[SlidingWindowOption](o), WithStorage(List))...)
			},
			resets: [3]time.Duration{1_099_999 * us, 1_099_999 * us, 1_099_999 * us}, retry: 1_099_999 * us, grain: us,
			corrupt: func(c redis.UniversalClient, key string) error { return c.RPush(ctx, key, "7").Err() },
		},
		{
			name: "SlidingWindow of one sub-window", key: "ratelimit:default:slidingwindow-hash:k",
			build: func(c Client, o ...Option) (Limiter, error) {
				return NewSlidingWindow(c, 3, s, append(widen[SlidingWindowOption](o), WithSubWindows(1))...)
			},
			resets: [3]time.Duration{1_999_999 * us, 1_999_999 * us, 1_999_999 * us}, retry: 1_999_999 * us, grain: us,
			corrupt: func(c redis.UniversalClient, key string) error {
				return c.HSet(ctx, key, "first", "1", "last", "3", "instant", "1763670000999999", "total", "2", "base", "0", "oldest", "5", "2", "x").Err()
			},
		},
		{
			name: "SlidingWindow ZSet", key: "ratelimit:default:slidingwindow-zset:k",
			build: func(c Client, o ...Option) (Limiter, error) {
				return NewSlidingWindow(c, 3, s, append(widen[SlidingWindowOption](o), WithStorage(ZSet))...)
			},
			resets: [3]time.Duration{s, s, s}, retry: s, grain: us,
		},
		{
			name: "SlidingLog", key: "ratelimit:default:slidinglog:k",
			build: func(c Client, o ...Option) (Limiter, error) {
				return NewSlidingLog(c, []Rule{{3, s}}, widen[SlidingLogOption](o)...)
			},
			resets: [3]time.Duration{s, s, s}, retry: s, grain: us,
			corrupt: func(c redis.UniversalClient, key string) error { return c.RPush(ctx, key, "0", "0", "x", "1").Err() },
		},
		{
			name: "SlidingLog with a resolution", key: "ratelimit:default:slidinglog:k",
			build: func(c Client, o ...Option) (Limiter, error) {
				return NewSlidingLog(c, []Rule{{3, s}}, append(widen[SlidingLogOption](o), WithResolution(50*time.Millisecond))...)
			},
			resets: [3]time.Duration{1_049_999 * us, 1_049_999 * us, 1_049_999 * us}, retry: 1_049_999 * us, grain: us,
			corrupt: func(c redis.UniversalClient, key string) error { return c.RPush(ctx, key, "1", "2", "3").Err() },
		},
		{
			name: "TokenBucket", key: "ratelimit:default:tokenbucket:k",
			build: func(c Client, o ...Option) (Limiter, error) {
				return NewTokenBucket(c, PerSecond(3), 3, widen[TokenBucketOption](o)...)
			},
			resets: thirds, retry: 333_334 * us, grain: us,
			corrupt: corruptString("full"),
		},
		{
			name: "TokenBucket stepped", key: "ratelimit:default:tokenbucket:k",
			build: func(c Client, o ...Option) (Limiter, error) {
				return NewTokenBucket(c, PerSecond(3), 3, append(widen[TokenBucketOption](o), WithRefillEvery(s))...)
			},
			resets: [3]time.Duration{s, s, s}, retry: s, grain: us,
			corrupt: corruptString("0/0+1"),
		},
		{
			name: "LeakyBucket", key: "ratelimit:default:leakybucket:k",
			build: func(c Client, o ...Option) (Limiter, error) {
				return NewLeakyBucket(c, PerSecond(3), 3, widen[LeakyBucketOption](o)...)
			},
			resets: thirds, retry: 333_334 * us, grain: us,
			corrupt: corruptString("1763670000123456/1x"),
		},
	}
}

// widen turns options of every limiter into those of one.
func widen[O any](opts []Option) []O {
	var wide []O
	for _, o := range opts {
		wide = append(wide, o.(O))
	}
	return wide
}

// each runs a test for every variant on every stage.
func each(t *testing.T, test func(t *testing.T, s *stage, v variant, l Limiter)) {
	everywhere(t, func(t *testing.T, s *stage) {
		for _, v := range variants() {
			t.Run(v.name, func(t *testing.T) {
				require.NoError(t, wipe(s))
				l, err := v.build(s.client, s.opts...)
				require.NoError(t, err)
				test(t, s, v, l)
			})
		}
	})
}

// wipe empties the stage and sets its clock to start.
func wipe(s *stage) error {
	s.now = start
	s.move(start)
	type flusher interface {
		ForEachShard(context.Context, func(context.Context, *redis.Client) error) error
	}
	if many, ok := s.admin.(flusher); ok {
		return many.ForEachShard(ctx, func(ctx context.Context, c *redis.Client) error { return c.FlushAll(ctx).Err() })
	}
	return s.admin.FlushAll(ctx).Err()
}

// offline is a client that must not be asked.
type offline struct{ t testing.TB }

func (o offline) Process(context.Context, redis.Cmder) error {
	o.t.Error("Redis was asked")
	return errors.New("offline")
}

func TestMain(m *testing.M) {
	defer redistest.StopShared()
	m.Run()
}

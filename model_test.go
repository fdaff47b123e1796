package ratelimit

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/model"
	"github.com/tryacquire/ratelimit/internal/redistest"
)

// A pair is a limiter and the model it must agree with.
type pair struct {
	about   string
	limiter Limiter
	model   model.Model
}

// another is a second key's model.
func (p pair) another() model.Model {
	twin := reflect.New(reflect.TypeOf(p.model).Elem())
	twin.Elem().Set(reflect.ValueOf(p.model).Elem())
	m := twin.Interface().(model.Model)
	m.Reset()
	return m
}

// A family draws random configurations of one limiter.
type family struct {
	name string
	draw func(rng *rand.Rand, c Client, opts ...Option) (pair, error)
	// timeless limiters live by Redis's clock alone.
	timeless bool
}

func pick[T any](rng *rand.Rand, of ...T) T { return of[rng.IntN(len(of))] }

func drawRate(rng *rand.Rand) Rate {
	return Rate{
		Count:  pick(rng, 1, 2, 3, 7, 10, 60, 1000, 999_983, 1+rng.IntN(5000)),
		Period: pick(rng, time.Millisecond, 100*time.Millisecond, time.Second, time.Minute, time.Hour, time.Duration(1+rng.IntN(1e7))*time.Microsecond+time.Millisecond),
	}
}

func drawWindow(rng *rand.Rand) time.Duration {
	return pick(rng, time.Millisecond, 7*time.Millisecond, time.Second, 90*time.Second, 123_456*time.Millisecond, time.Hour, 24*time.Hour)
}

func families() []family {
	limit := func(rng *rand.Rand) int { return pick(rng, 1, 2, 3, 10, 100, 1+rng.IntN(50)) }
	with := func(opts []Option) (fixed []FixedWindowOption, window []SlidingWindowOption, log []SlidingLogOption, token []TokenBucketOption, leaky []LeakyBucketOption) {
		for _, o := range opts {
			fixed, window, log, token, leaky = append(fixed, o), append(window, o), append(log, o), append(token, o), append(leaky, o)
		}
		return
	}
	sliding := func(storage Storage) func(*rand.Rand, Client, ...Option) (pair, error) {
		return func(rng *rand.Rand, c Client, opts ...Option) (pair, error) {
			_, o, _, _, _ := with(opts)
			n, w, buckets := limit(rng), drawWindow(rng), pick(rng, 1, 2, 3, 10, 60)
			for w.Microseconds()%int64(buckets) != 0 {
				buckets--
			}
			o = append(o, WithStorage(storage))
			var m model.Model = model.NewSlidingWindow(n, w, buckets)
			if storage == ZSet {
				m = model.NewSlidingZSet(n, w)
			} else {
				o = append(o, WithSubWindows(buckets))
			}
			l, err := NewSlidingWindow(c, n, w, o...)
			return pair{fmt.Sprintf("%v: %d per %v in %d", storage, n, w, buckets), l, m}, err
		}
	}
	return []family{
		{name: "FixedWindow", timeless: true, draw: func(rng *rand.Rand, c Client, opts ...Option) (pair, error) {
			o, _, _, _, _ := with(opts)
			n, w := limit(rng), drawWindow(rng)
			l, err := NewFixedWindow(c, n, w, o...)
			var m model.Model = model.NewFixedWindow(n, w)
			if len(opts) > 0 {
				m = model.NewClockWindow(n, w)
			}
			return pair{fmt.Sprintf("%d per %v", n, w), l, m}, err
		}},
		{name: "FixedWindow wide", timeless: true, draw: func(rng *rand.Rand, c Client, opts ...Option) (pair, error) {
			o, _, _, _, _ := with(opts)
			n, w := maxCount, 720*time.Hour
			l, err := NewFixedWindow(c, n, w, o...)
			var m model.Model = model.NewFixedWindow(n, w)
			if len(opts) > 0 {
				m = model.NewClockWindow(n, w)
			}
			return pair{fmt.Sprintf("%d per %v", n, w), l, m}, err
		}},
		{name: "FixedWindow aligned", draw: func(rng *rand.Rand, c Client, opts ...Option) (pair, error) {
			o, _, _, _, _ := with(opts)
			n, w := limit(rng), drawWindow(rng)
			offset := pick(rng, 0, -2*time.Hour, time.Millisecond, 333*time.Microsecond, 48*time.Hour)
			l, err := NewFixedWindow(c, n, w, append(o, WithAlignment(offset))...)
			return pair{fmt.Sprintf("%d per %v from %v", n, w, offset), l, model.NewAlignedWindow(n, w, offset)}, err
		}},
		{name: "SlidingWindow Hash", draw: sliding(Hash)},
		{name: "SlidingWindow List", draw: sliding(List)},
		{name: "SlidingWindow ZSet", draw: sliding(ZSet)},
		{name: "SlidingLog", draw: func(rng *rand.Rand, c Client, opts ...Option) (pair, error) {
			_, _, o, _, _ := with(opts)
			var rules []Rule
			var same []model.Rule
			n, w := 0, time.Duration(0)
			for range 1 + rng.IntN(3) {
				n += limit(rng)
				w += drawWindow(rng)
				rules = append(rules, Rule{n, w})
				same = append(same, model.Rule{Limit: n, Window: w})
			}
			resolution := pick(rng, time.Microsecond, 7*time.Microsecond, rules[0].Window/10)
			rng.Shuffle(len(rules), func(i, j int) { rules[i], rules[j] = rules[j], rules[i] })
			if resolution > time.Microsecond {
				o = append(o, WithResolution(resolution))
			}
			l, err := NewSlidingLog(c, rules, o...)
			return pair{fmt.Sprintf("%v to %v", rules, resolution), l, model.NewSlidingLog(same, resolution)}, err
		}},
		{name: "TokenBucket", draw: func(rng *rand.Rand, c Client, opts ...Option) (pair, error) {
			_, _, _, o, _ := with(opts)
			rate, burst := drawRate(rng), limit(rng)
			l, err := NewTokenBucket(c, rate, burst, o...)
			return pair{fmt.Sprintf("%v, burst %d", rate, burst), l, model.NewTokenBucket(rate.Count, rate.Period, burst)}, err
		}},
		{name: "TokenBucket stepped", draw: func(rng *rand.Rand, c Client, opts ...Option) (pair, error) {
			_, _, _, o, _ := with(opts)
			rate, burst := drawRate(rng), limit(rng)
			every := pick(rng, time.Millisecond, 10*time.Millisecond, 333_333*time.Microsecond, time.Second, time.Minute)
			l, err := NewTokenBucket(c, rate, burst, append(o, WithRefillEvery(every))...)
			return pair{fmt.Sprintf("%v every %v, burst %d", rate, every, burst), l, model.NewSteppedBucket(rate.Count, rate.Period, burst, every)}, err
		}},
		{name: "LeakyBucket", draw: func(rng *rand.Rand, c Client, opts ...Option) (pair, error) {
			_, _, _, _, o := with(opts)
			rate, capacity := drawRate(rng), limit(rng)
			l, err := NewLeakyBucket(c, rate, capacity, o...)
			return pair{fmt.Sprintf("%v, capacity %d", rate, capacity), l, model.NewLeakyBucket(rate.Count, rate.Period, capacity)}, err
		}},
	}
}

// seed is random unless RATELIMIT_SEED repeats an earlier run.
func seed(t *testing.T) uint64 {
	s := rand.Uint64()
	if given := os.Getenv("RATELIMIT_SEED"); given != "" {
		var err error
		s, err = strconv.ParseUint(given, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("RATELIMIT_SEED=%d", s)
	return s
}

// TestModel drives every limiter and its model through the same random calls.
func TestModel(t *testing.T) {
	const configurations, steps = 25, 500 // of each family: 125,000 steps in all
	for _, f := range families() {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			rng := model.Seeded(seed(t))
			server := miniredis.RunT(t)
			server.ClockTTL(true)
			client := redis.NewClient(&redis.Options{Addr: server.Addr()})
			defer client.Close()
			for range configurations {
				var opts []Option
				var at time.Time
				if rng.IntN(3) == 0 {
					opts = append(opts, WithClock(func() time.Time { return at }))
				}
				p, err := f.draw(rng, client, opts...)
				require.NoError(t, err)
				server.FlushAll()
				compare(t, rng, p, steps, func(now int64) {
					if f.timeless && opts == nil {
						now -= now % 1000 // miniredis cuts a TTL to milliseconds, Redis its clock
					}
					from := at
					at = time.UnixMicro(now)
					server.SetTime(at)
					if at.Before(from) { // Redis keeps the instant of expiry, miniredis what is left
						for _, key := range server.Keys() {
							server.SetTTL(key, server.TTL(key)+from.Sub(at))
						}
					}
				})
			}
		})
	}
}

// TestModelOnRedis does the same on a server, whose clock stands still during each call.
func TestModelOnRedis(t *testing.T) {
	const configurations, steps = 5, 200 // of each family: a step is a round trip
	server := redistest.Start(t, redistest.Faketime())
	client := server.Client(t)
	still := standsStill(t, client)
	for _, f := range families() {
		t.Run(f.name, func(t *testing.T) {
			rng := model.Seeded(seed(t))
			for range configurations {
				server.HoldClock(start) // so that no key expires while the caller's clock decides
				var opts []Option
				var at time.Time
				if !still || rng.IntN(3) == 0 {
					opts = append(opts, WithClock(func() time.Time { return at }))
				}
				p, err := f.draw(rng, client, opts...)
				require.NoError(t, err)
				require.NoError(t, client.FlushAll(ctx).Err())
				compare(t, rng, p, steps, func(now int64) {
					if f.timeless && opts == nil {
						now -= now % 1000 // TTLs are whole milliseconds
					}
					if at = time.UnixMicro(now); opts == nil {
						server.HoldClock(at)
					}
				})
			}
		})
	}
}

// standsStill says whether TIME does while the clock is held: from 9.1 on Valkey adds the time since it last read it.
func standsStill(t *testing.T, client *redis.Client) bool {
	info, err := client.InfoMap(ctx, "server").Result()
	require.NoError(t, err)
	major, _, _ := strings.Cut(info["Server"]["valkey_version"], ".")
	return major == "" || len(major) == 1 && major < "9"
}

// compare runs random steps against a limiter whose clock set moves.
func compare(t *testing.T, rng *rand.Rand, p pair, steps int, set func(now int64)) {
	t.Helper()
	ctx := context.Background()
	scenario := model.NewScenario(rng, model.ShapeOf(p.model, true))
	var want model.Answer
	var before int64
	for i := range steps {
		step := scenario.Next(want)
		if step.Now < before && p.model.AsNew(before) {
			// Redis has forgotten the key, and does not remember as time goes back.
			require.NoError(t, p.limiter.Reset(ctx, "k"))
			p.model.Reset()
		}
		before = step.Now
		set(step.Now)
		if step.Op == model.Reset {
			require.NoError(t, p.limiter.Reset(ctx, "k"))
			p.model.Reset()
			continue
		}
		want = p.model.Take(step.Now, step.N, step.Op == model.Peek)
		var got Result
		var err error
		if step.Op == model.Peek {
			got, err = p.limiter.Peek(ctx, "k")
		} else {
			got, err = p.limiter.TryAcquireN(ctx, "k", step.N)
		}
		require.NoError(t, err, "%s: step %d: %+v", p.about, i, step)
		require.Equal(t, result(want), got, "%s: step %d: %+v", p.about, i, step)
	}
}

func result(a model.Answer) Result {
	return Result{
		Allowed: a.Allowed, Limit: a.Limit, Window: a.Window, Remaining: a.Remaining,
		RetryAfter: a.RetryAfter, ResetAfter: a.ResetAfter,
	}
}

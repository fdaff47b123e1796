package faulttest

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// A scene is a server, and for every variant the keys "k" with one permit taken,
// "full" with all three, and "new" that was never used.
type scene struct {
	server *redistest.Server
	admin  *redis.Client
	gate   *limitertest.Gate // of the limiters' client
	cases  []sceneCase
}

type sceneCase struct {
	limitertest.Variant
	l ratelimit.Limiter
}

func setScene(t testing.TB, server *redistest.Server) *scene {
	client := server.Client(t)
	s := &scene{server: server, admin: server.Client(t), gate: limitertest.NewGate(client)}
	for _, v := range limitertest.Variants() {
		// Variants share keys. The clock of the caller stands still, for a permit
		// may come back within a second.
		l, err := v.Build(client, ratelimit.WithPrefix(v.Name), ratelimit.WithClock(func() time.Time { return limitertest.Start }))
		require.NoError(t, err)
		if v.Name == "FixedWindow" { // or it would be another algorithm
			fixed, err := ratelimit.NewFixedWindow(client, 3, time.Hour, ratelimit.WithPrefix(v.Name))
			require.NoError(t, err)
			l = fixed
		}
		for range 3 {
			must(t)(l.TryAcquire(ctx, v.Of("full")))
		}
		must(t)(l.TryAcquire(ctx, v.Of("k")))
		s.cases = append(s.cases, sceneCase{v, l})
	}
	// A second is a long time for a test, and a short one for a busy machine.
	for _, key := range s.admin.Keys(ctx, "*").Val() {
		require.NoError(t, s.admin.PExpire(ctx, key, time.Hour).Err())
	}
	return s
}

// in is the name of a key of this variant in Redis.
func (c sceneCase) in(key string) string {
	return c.Name + strings.Replace(strings.TrimPrefix(c.Key, "ratelimit"), "{k}", "{"+key+"}", 1)
}

// dump is what Redis holds under the variant's keys, bit by bit.
func (c sceneCase) dump(t testing.TB, admin *redis.Client, keys ...string) (all string) {
	t.Helper()
	for _, key := range keys {
		value, err := admin.Dump(ctx, c.in(key)).Result()
		if err != redis.Nil {
			require.NoError(t, err)
		}
		all += fmt.Sprintf("%s=%q ", key, value)
	}
	return all
}

// requireRefused checks the error of a call for key.
func (c sceneCase) requireRefused(t testing.TB, r ratelimit.Result, err error, key, code string) {
	t.Helper()
	require.Error(t, err)
	require.Zero(t, r)
	require.True(t, redis.HasErrorPrefix(err, code), "%v", err)
	require.ErrorContains(t, err, fmt.Sprintf("ratelimit: %s, key %q: ", c.Title(), key))
	require.NotErrorIs(t, err, ratelimit.ErrCorruptState)
	require.NotErrorIs(t, err, ratelimit.ErrDenied)
}

// requireAllRefused checks that calls that take permits are refused with the
// code, alone and together, and leave everything as it is. A key that is used up
// may be denied: that writes nothing.
func (s *scene) requireAllRefused(t *testing.T, code string, readable bool) {
	for _, c := range s.cases {
		t.Run(c.Name, func(t *testing.T) {
			keys := []string{"k", "full", "new"}
			var before string
			if readable {
				before = c.dump(t, s.admin, keys...)
			}
			var f figures
			for _, key := range keys {
				begun := time.Now()
				r, err := c.l.TryAcquire(ctx, c.Of(key))
				f.count(begun, r, err)
				if key == "full" && readable {
					require.NoError(t, err)
					require.False(t, r.Allowed)
					continue
				}
				c.requireRefused(t, r, err, c.Of(key), code)
			}
			begun := time.Now()
			for _, r := range s.gate.Together(t, c.l, c.Of("k"), c.Of("new"), c.Of("full")) {
				f.count(begun, r.Result, r.Err)
				if r.Key == c.Of("full") && readable {
					require.NoError(t, r.Err)
					require.False(t, r.Allowed)
					continue
				}
				c.requireRefused(t, r.Result, r.Err, r.Key, code)
			}
			if readable {
				require.Equal(t, before, c.dump(t, s.admin, keys...))
				require.Equal(t, 2, must(t)(c.l.Peek(ctx, c.Of("k"))).Remaining)
				require.False(t, must(t)(c.l.Peek(ctx, c.Of("full"))).Allowed)
				require.True(t, must(t)(c.l.Peek(ctx, c.Of("new"))).Allowed)
			}
			t.Log(&f)
		})
	}
}

// requireAsBefore checks that the keys are as setScene left them.
func (s *scene) requireAsBefore(t testing.TB) {
	t.Helper()
	for _, c := range s.cases {
		require.Equal(t, 1, must(t)(c.l.TryAcquire(ctx, c.Of("k"))).Remaining, c.Name)
		require.False(t, must(t)(c.l.TryAcquire(ctx, c.Of("full"))).Allowed, c.Name)
		require.Equal(t, 2, must(t)(c.l.TryAcquire(ctx, c.Of("new"))).Remaining, c.Name)
	}
}

func TestCallsAreRefusedWithoutEffectWhileMemoryIsFull(t *testing.T) {
	t.Parallel()
	s := setScene(t, redistest.Start(t))
	require.NoError(t, s.admin.ConfigSet(ctx, "maxmemory", "1").Err())
	s.requireAllRefused(t, "OOM", true)
	for _, c := range s.cases {
		must(t)(c.l.Peek(ctx, c.Of("k")))
	}
	require.NoError(t, s.admin.ConfigSet(ctx, "maxmemory", "0").Err())
	s.requireAsBefore(t)
}

// A clock that stepped back makes some limiters remove what they cannot use any
// more before they write. That too happens completely or not at all.
func TestAClockSetBackWhileMemoryIsFullChangesAllOrNothing(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	admin := server.Client(t)
	allowed := 0
	for _, v := range limitertest.Variants() {
		h := limitertest.NewClock()
		l, err := v.Build(server.Client(t), ratelimit.WithPrefix(v.Name), ratelimit.WithClock(h.Now))
		require.NoError(t, err)
		c := sceneCase{v, l}
		for range 2 {
			must(t)(l.TryAcquire(ctx, v.Of("k")))
			h.Set(h.Now().Add(70 * time.Millisecond))
		}
		require.NoError(t, admin.PExpire(ctx, c.in("k"), time.Hour).Err())
		before := c.dump(t, admin, "k")
		h.Set(limitertest.Start.Add(-time.Hour))
		require.NoError(t, admin.ConfigSet(ctx, "maxmemory", "1").Err())
		for range 4 {
			r, err := l.TryAcquire(ctx, v.Of("k"))
			if err != nil {
				c.requireRefused(t, r, err, v.Of("k"), "OOM")
				require.Equal(t, before, c.dump(t, admin, "k"))
			} else if r.Allowed {
				allowed++
				require.Zero(t, r.Remaining, v.Name)
				before = c.dump(t, admin, "k")
			}
		}
		require.NoError(t, admin.ConfigSet(ctx, "maxmemory", "0").Err())
		for range 2 {
			r := must(t)(l.TryAcquire(ctx, v.Of("k")))
			require.Zero(t, r.Remaining, v.Name)
		}
		require.False(t, must(t)(l.TryAcquire(ctx, v.Of("k"))).Allowed, v.Name)
	}
	t.Logf("%d variants, %d of them allowed their last permit", len(limitertest.Variants()), allowed)
}

// Memory fills up and empties again under load. A call that fails has taken
// nothing, so that in the end of each key exactly its limit was allowed.
func TestACallThatFailsForMemoryTakesNothing(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	admin := server.Client(t)
	const limit = 300
	limiters := slow(t, limit, server.Client(t))
	allowed := map[string]*atomic.Int64{}
	for name := range limiters {
		allowed[name] = new(atomic.Int64)
	}
	var f figures
	var strange atomic.Value
	call := func(name string, l ratelimit.Limiter) {
		begun := time.Now()
		r, err := l.TryAcquire(ctx, "k")
		f.count(begun, r, err)
		switch {
		case err != nil:
			if !redis.HasErrorPrefix(err, "OOM") {
				strange.Store(err)
			}
		case r.Allowed:
			allowed[name].Add(1)
		}
	}
	done := make(chan struct{})
	var workers sync.WaitGroup
	for name, l := range limiters {
		for range 8 {
			workers.Go(func() {
				for {
					select {
					case <-done:
						return
					default:
						call(name, l)
					}
				}
			})
		}
	}
	full := 0
	for end := time.Now().Add(time.Second); time.Now().Before(end); full++ {
		require.NoError(t, admin.ConfigSet(ctx, "maxmemory", "1").Err())
		time.Sleep(10 * time.Millisecond)
		require.NoError(t, admin.ConfigSet(ctx, "maxmemory", "0").Err())
		time.Sleep(100 * time.Microsecond)
	}
	close(done)
	workers.Wait()
	during := f.String()
	over := 0
	for name, l := range limiters {
		require.LessOrEqual(t, allowed[name].Load(), int64(limit), name)
		for range limit {
			call(name, l)
		}
		require.Equal(t, int64(limit), allowed[name].Load(), name)
		over += max(int(allowed[name].Load())-limit, 0)
	}
	t.Logf("memory was full %d times: %s; %d permits over the limits", full, during, over)
	require.Nil(t, strange.Load())
	require.Positive(t, f.failed)
}

func TestAReplicaRefusesCallsWithoutEffect(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t, redistest.Args("--repl-diskless-sync-delay", "0"))
	s := setScene(t, master)
	// The replica takes a while to load this.
	const ballast, delay = 4000, "2000" // keys, microseconds for each
	pipe := s.admin.Pipeline()
	for i := range ballast {
		pipe.Set(ctx, fmt.Sprint("ballast", i), strings.Repeat("x", 1100), 0)
	}
	_, err := pipe.Exec(ctx)
	require.NoError(t, err)

	replica := redistest.Start(t)
	raw := replica.Client(t, func(o *redis.Options) { o.MaxRetries = -1 })
	require.NoError(t, raw.ConfigSet(ctx, "loading-process-events-interval-bytes", "1024").Err())
	require.NoError(t, raw.ConfigSet(ctx, "key-load-delay", delay).Err())
	require.NoError(t, raw.Do(ctx, "replicaof", "127.0.0.1", fmt.Sprint(master.Port())).Err())

	client := replica.Client(t)
	behind := &scene{server: replica, admin: raw, gate: limitertest.NewGate(client)}
	for _, c := range s.cases {
		c.l, err = c.Build(client, ratelimit.WithPrefix(c.Name), ratelimit.WithClock(func() time.Time { return limitertest.Start }))
		require.NoError(t, err)
		if c.Name == "FixedWindow" {
			c.l, err = ratelimit.NewFixedWindow(client, 3, time.Hour, ratelimit.WithPrefix(c.Name))
			require.NoError(t, err)
		}
		behind.cases = append(behind.cases, c)
	}
	reply := func() error { return raw.Get(ctx, "nothing").Err() }
	require.Eventually(t, func() bool { return redis.HasErrorPrefix(reply(), "LOADING") }, 10*time.Second, time.Millisecond)
	t.Run("LOADING", func(t *testing.T) { behind.requireAllRefused(t, "LOADING", false) })
	require.True(t, redis.HasErrorPrefix(reply(), "LOADING"), "it has loaded too soon: %v", reply())

	require.NoError(t, raw.ConfigSet(ctx, "key-load-delay", "0").Err())
	require.Eventually(t, func() bool { return reply() == redis.Nil }, 20*time.Second, 10*time.Millisecond)
	t.Run("READONLY", func(t *testing.T) { behind.requireAllRefused(t, "READONLY", true) })

	require.NoError(t, raw.Do(ctx, "replicaof", "no", "one").Err())
	behind.requireAsBefore(t)
	s.requireAsBefore(t)
}

// TestAMasterWithoutAReplicaTakesNothing, if its configuration says so. What it would deny it
// still denies.
func TestAMasterWithoutAReplicaTakesNothing(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client(t)
	need := func(replicas string) {
		require.NoError(t, client.ConfigSet(ctx, "min-replicas-to-write", replicas).Err())
	}
	for _, v := range limitertest.Variants() {
		t.Run(v.Name, func(t *testing.T) {
			require.NoError(t, client.FlushAll(ctx).Err())
			l, err := v.Build(client, ratelimit.WithClock(limitertest.NewClock().Now))
			require.NoError(t, err)
			limit := must(t)(l.Peek(ctx, v.Of("k"))).Remaining
			must(t)(l.TryAcquireN(ctx, v.Of("full"), limit))
			need("1")
			defer need("0")
			_, err = l.TryAcquire(ctx, v.Of("k"))
			require.True(t, redis.HasErrorPrefix(err, "NOREPLICAS"), "%v", err)
			require.Equal(t, limit, must(t)(l.Peek(ctx, v.Of("k"))).Remaining)
			require.False(t, must(t)(l.TryAcquire(ctx, v.Of("full"))).Allowed)
		})
	}
}

func TestABusyServerRefusesCallsWithoutEffect(t *testing.T) {
	t.Parallel()
	s := setScene(t, redistest.Start(t))
	require.NoError(t, s.admin.ConfigSet(ctx, "lua-time-limit", "5").Err())
	ended := make(chan error, 1)
	other := s.server.Client(t, func(o *redis.Options) { o.MaxRetries, o.ReadTimeout = -1, time.Minute })
	go func() { ended <- other.Eval(ctx, "while true do end", nil).Err() }()
	require.Eventually(t, func() bool { return redis.HasErrorPrefix(s.admin.Get(ctx, "x").Err(), "BUSY") }, 10*time.Second, time.Millisecond)
	s.requireAllRefused(t, "BUSY", false)
	require.NoError(t, s.admin.ScriptKill(ctx).Err())
	require.ErrorContains(t, <-ended, "kill")
	s.requireAsBefore(t)
}

func TestUnreadableValuesStayAsTheyAre(t *testing.T) {
	raceflag.Skip(t)
	t.Parallel()
	s := setScene(t, redistest.Start(t))
	list := func(values ...any) func(key string) error {
		return func(key string) error { return s.admin.RPush(ctx, key, values...).Err() }
	}
	hash := func(values ...any) func(key string) error {
		return func(key string) error { return s.admin.HSet(ctx, key, values...).Err() }
	}
	// As in slidingwindow_hash.lua.
	log := func(first, last, instant, total, base, oldest any, entries ...any) func(key string) error {
		return hash(append([]any{"rule", "1000000/25000@", "first", first, "last", last, "instant", instant, "total", total, "base", base, "oldest", oldest}, entries...)...)
	}
	foreign := map[string]func(key string) error{
		"a set": func(key string) error { return s.admin.SAdd(ctx, key, "x").Err() },
		"a stream": func(key string) error {
			return s.admin.XAdd(ctx, &redis.XAddArgs{Stream: key, Values: []any{"a", "b"}}).Err()
		},
		"a HyperLogLog":   func(key string) error { return s.admin.PFAdd(ctx, key, "x").Err() },
		"a short list":    list("1"),
		"an odd list":     list("0", "0", "1"),
		"a list of words": list("a", "b", "c", "d"),
		"a list, its end": list("0", "0", "9", "x"),
		"a list of nan":   list("nan", "nan", "nan", "nan"),
		"a list, a nan":   list("1000000/1@", "0", "1763670000000000", "nan"),
		"a list, no rule": list("0", "0", "1763670000000000", "7"),
		"a list, a rule":  list("1000000/0", "0", "1763670000000000", "7"),
		"a list, its mid": list("1000000/1@", "0", "x", "y", "1763670000000000", "7", "1763670000000000", "9"),
		"a hash":          hash("a", "b"),
		"a hash, first":   hash("first", "0"),
		"a hash, last":    hash("last", "0"),
		"a hash, words":   log("x", "y", "7", "9", "0", "5"),
		"a hash, inverse": log("5", "2", "7", "9", "0", "5"),
		"a hash, no head": log("0", "2", "7", "9", "0", "x"),
		"a hash, no tail": log("0", "2", "x", "9", "0", "5"),
		"a hash, a gap":   log("0", "2", "1763670000999999", "9", "0", "5"),
		"a hash, x":       log("0", "2", "1763670000999999", "9", "0", "5", "1", "x"),
		"a hash, nan":     log("nan", "nan", "nan", "nan", "nan", "nan"),
		"a hash, inf":     log("0", "inf", "7", "9", "0", "5"),
		"a hash, huge":    log("0", "1e15", "7", "9", "0", "5"),
		"a hash, no sum":  log("0", "1", "1763669999999999", "nan", "0", "5"),
		"a zset":          func(key string) error { return s.admin.ZAdd(ctx, key, redis.Z{Score: 1, Member: "x"}).Err() },
	}
	for _, value := range []string{
		"", "0", "x", "-1", "1e3", "inf", "-inf", "nan", "0x10", "1.5", " 12000035", "1000365.0", "01000365", "1000365 ", "0xF43AD", "99999999999999999999999999",
		"/", "1/", "/1", "1/2/3", "0/0", "1/0", "1/1+", "1/1+x", "1/1/1", "1/1/1+x", "x/y", "-1/1", "1/-1",
		"1763670000000000/x", "1763670000000000/3", "17636700000000001763670000000000/333333",
	} {
		foreign[fmt.Sprintf("the string %q", value)] = func(key string) error { return s.admin.Set(ctx, key, value, time.Hour).Err() }
	}
	var refused, decided int
	for _, c := range s.cases {
		t.Run(c.Name, func(t *testing.T) {
			for name, put := range foreign {
				require.NoError(t, s.admin.Del(ctx, c.in("odd")).Err())
				require.NoError(t, put(c.in("odd")))
				before := c.dump(t, s.admin, "odd")
				wrong := func(r ratelimit.Result, err error) bool {
					if err == nil {
						return false
					}
					require.Zero(t, r)
					require.ErrorContains(t, err, fmt.Sprintf("ratelimit: %s, key %q: ", c.Title(), c.Of("odd")))
					require.ErrorIs(t, err, ratelimit.ErrCorruptState, name)
					require.Equal(t, before, c.dump(t, s.admin, "odd"), "%s: %v", name, err)
					return true
				}
				_, peekErr := c.l.Peek(ctx, c.Of("odd"))
				allowed := 0
				for range 3 {
					r, err := c.l.TryAcquire(ctx, c.Of("odd"))
					if wrong(r, err) {
						refused++
						require.Zero(t, allowed, "%s: an error after an allowed call: %v", name, err)
						if !redis.HasErrorPrefix(err, "value is not an integer") { // only a command that writes finds out
							require.Error(t, peekErr, name)
						}
						continue
					}
					require.NoError(t, peekErr, name)
					decided++
					if r.Allowed {
						allowed++
					}
					before = c.dump(t, s.admin, "odd")
				}
				for _, r := range s.gate.Together(t, c.l, c.Of("odd"), c.Of("odd"), c.Of("good"), c.Of("odd")) {
					switch {
					case r.Key == c.Of("good"):
						require.NoError(t, r.Err, name)
					case wrong(r.Result, r.Err):
					case r.Allowed:
						allowed++
					}
				}
				require.LessOrEqual(t, allowed, 3, name)
			}
		})
	}
	t.Logf("%d calls refused, %d decided", refused, decided)
	require.Positive(t, refused)
}

// TestEachKeyHasItsOwnError: what is wrong with one key is not reported for another.
func TestEachKeyHasItsOwnError(t *testing.T) {
	t.Parallel()
	client := redistest.Shared(t).Client(t)
	gate := limitertest.NewGate(client)
	l := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerHour(1), 3, ratelimit.WithPrefix(t.Name())))
	key := t.Name() + ":default:tokenbucket"
	require.NoError(t, client.RPush(ctx, key+"{list}", "x").Err())
	require.NoError(t, client.Set(ctx, key+"{garbage}", "x", 0).Err())
	var left []int
	for _, r := range gate.Together(t, l, "list", "garbage", "good") {
		switch r.Key {
		case "list":
			require.ErrorContains(t, r.Err, "WRONGTYPE")
			require.ErrorIs(t, r.Err, ratelimit.ErrCorruptState)
		case "garbage":
			require.ErrorIs(t, r.Err, ratelimit.ErrCorruptState)
			require.NotContains(t, r.Err.Error(), "WRONGTYPE")
		case "good":
			require.NoError(t, r.Err)
			if r.Allowed {
				left = append(left, r.Remaining)
			}
		}
	}
	require.ElementsMatch(t, []int{2, 1, 0}, left)

	fixed := ratelimit.Must(ratelimit.NewFixedWindow(client, 3, time.Minute, ratelimit.WithPrefix(t.Name())))
	key = t.Name() + ":default:fixedwindow"
	require.NoError(t, client.Set(ctx, key+"{real}", "1000064.0", time.Minute).Err())
	require.NoError(t, client.RPush(ctx, key+"{list}", "x").Err())
	for _, r := range gate.Together(t, fixed, "real", "list") {
		require.ErrorIs(t, r.Err, ratelimit.ErrCorruptState)
		require.Equal(t, r.Key == "list", strings.Contains(r.Err.Error(), "WRONGTYPE"))
	}
}

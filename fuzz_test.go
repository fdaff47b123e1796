package ratelimit_test

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/algorithms"
	"github.com/tryacquire/ratelimit/internal/keyname"
	"github.com/tryacquire/ratelimit/internal/redisexec"
	"github.com/tryacquire/ratelimit/internal/testing/fakes"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// FuzzConstructors: any values give a limiter that works, or an error that wraps
// ErrInvalidConfig.
func FuzzConstructors(f *testing.F) {
	f.Add(10, int64(time.Second), 10, 0, int64(0))
	f.Add(0, int64(0), 0, 1, int64(1))
	f.Add(-1, int64(-1), -1, 2, int64(-1))
	f.Add(math.MaxInt/2+1, int64(1<<62), math.MaxInt/2+1, 3, int64(1<<62))
	f.Add(999_999_937, int64(time.Hour), 999_999_937, 1, int64(time.Minute))
	s := limitertest.OnMiniredis(f)
	f.Fuzz(func(t *testing.T, n int, period int64, m, storage int, extra int64) {
		d, e := time.Duration(period), time.Duration(extra)
		try := func(l ratelimit.Limiter, err error) {
			t.Helper()
			if err != nil {
				require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
				return
			}
			s.Wipe(t)
			first := must(t)(l.TryAcquire(ctx, "k"))
			require.True(t, first.Allowed)
			require.GreaterOrEqual(t, first.Limit, 1)
			require.Equal(t, first.Limit-1, first.Remaining)
			require.Positive(t, first.Window)
			require.Positive(t, first.ResetAfter)
			ttl := s.Admin.PTTL(ctx, s.Admin.Keys(ctx, "*").Val()[0]).Val()
			require.Positive(t, ttl)
			// All of it, but where that is a member each of a sorted set.
			if storage != int(ratelimit.StorageZSet) || first.Remaining < 1000 {
				if first.Remaining > 0 {
					require.True(t, must(t)(l.TryAcquireN(ctx, "k", first.Remaining)).Allowed)
				}
				denied := must(t)(l.TryAcquire(ctx, "k"))
				if denied.Allowed { // so fast that it is full again
					return
				}
				require.Positive(t, denied.RetryAfter)
				require.GreaterOrEqual(t, denied.ResetAfter, denied.RetryAfter)
			}
		}
		try(ratelimit.NewFixedWindow(s.Client, n, d))
		try(ratelimit.NewFixedWindow(s.Client, n, d, ratelimit.WithAlignment(e)))
		if storage == int(ratelimit.StorageZSet) {
			try(ratelimit.NewSlidingWindow(s.Client, n, d, ratelimit.WithStorage(ratelimit.StorageZSet)))
		} else {
			try(ratelimit.NewSlidingWindow(s.Client, n, d, ratelimit.WithStorage(ratelimit.Storage(storage)), ratelimit.WithSubWindows(m)))
		}
		try(ratelimit.NewSlidingLog(s.Client, []ratelimit.Rule{{n, d}}))
		try(ratelimit.NewSlidingLog(s.Client, []ratelimit.Rule{{n, d}, {m, e}}))
		try(ratelimit.NewSlidingLog(s.Client, []ratelimit.Rule{{n, d}}, ratelimit.WithResolution(e)))
		try(ratelimit.NewTokenBucket(s.Client, ratelimit.Per(n, d), m))
		try(ratelimit.NewTokenBucket(s.Client, ratelimit.Per(n, d), m, ratelimit.WithRefillEvery(e)))
		try(ratelimit.NewLeakyBucket(s.Client, ratelimit.Per(n, d), m))
	})
}

// FuzzKeys: any key that is neither empty nor too long is a key of its own.
func FuzzKeys(f *testing.F) {
	for _, key := range []string{"", "k", " ", "{a}b", "a\x00b", "\r\n$3\r\n", "日本", "a:b:c", "%d%s", "1x1"} {
		f.Add(key)
	}
	s := limitertest.OnMiniredis(f)
	f.Fuzz(func(t *testing.T, key string) {
		for _, v := range limitertest.Variants() {
			s.Wipe(t)
			l, err := v.Build(s.Client)
			require.NoError(t, err)
			long := v.Ending(key)
			r, err := l.TryAcquire(ctx, long)
			if key == "" || len(long) > 4096 {
				require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
				continue
			}
			require.NoError(t, err)
			require.Equal(t, 2, r.Remaining)
			require.Equal(t, 1, must(t)(l.TryAcquire(ctx, long)).Remaining)
			if len(key) < 4096 && !v.Tenants {
				require.Equal(t, 2, must(t)(l.TryAcquire(ctx, key+"x")).Remaining)
			}
		}
	})
}

// FuzzReplies: whatever Redis answers is an error or a result, never a panic.
func FuzzReplies(f *testing.F) {
	f.Add(int64(1), int64(2), int64(3), int64(4), int64(5), int64(6), 6)
	f.Add(int64(-1<<63), int64(1<<62), int64(-5), int64(0), int64(0), int64(0), 1)
	f.Add(int64(0), int64(9), int64(0), int64(0), int64(0), int64(-9), 0)
	f.Fuzz(func(t *testing.T, a, b, c, d, e, g int64, length int) {
		words := []int64{a, b, c, d, e, g}[:min(max(length, 0), 6)]
		for _, v := range limitertest.Variants() {
			for _, merging := range [][]ratelimit.Option{nil, {ratelimit.WithoutMerging()}} {
				l, err := v.Build(answering(words), merging...)
				require.NoError(t, err)
				_, err = l.TryAcquire(ctx, v.Of("k"))
				if err != nil {
					require.ErrorContains(t, err, strconv.Quote(v.Of("k")))
				}
				if _, several := l.(*ratelimit.All); several {
					continue // it has replies of its own
				}
				_, errs := ratelimit.Together(t, l, v.Of("k"), v.Of("k"), v.Of("l"))
				for _, err := range errs {
					require.NotContains(t, fmt.Sprint(err), "panicked")
				}
			}
		}
	})
}

// answering is a client that answers every script with the same integers.
func answering(words []int64) ratelimit.Client {
	return fakes.NewClient(func(_ context.Context, cmd redis.Cmder) error {
		switch inner := inside(cmd).(type) {
		case *redis.IntCmd:
			if len(words) == 0 {
				cmd.SetErr(redis.Nil)
				return redis.Nil
			}
			inner.SetVal(words[0])
		case *redis.IntSliceCmd:
			inner.SetVal(words)
		}
		return nil
	})
}

// inside is the command within a redisexec.Once.
func inside(cmd redis.Cmder) redis.Cmder { return cmd.(*redisexec.Once).Cmder }

// FuzzState: whatever Redis holds is a state or ErrCorruptState, and Reset mends
// it.
func FuzzState(f *testing.F) {
	for _, state := range []string{"", "0", "-1", "1.5", "1e3", "inf", "nan", "0x10", " 7", "7 ", "99999999999999999999",
		"1763670000123456/333333", "1763670000123456/1000000/3+2", "1763670000123456/1+1", "0/0", "1/2/3+4", "1763670000000000/3",
		"9999999999999999/1", "0000000000000000/1000000", "3000013", "garbagegarbage00/1000000",
		"1763670000000000/         1000000,         1000000,               0;1763670000000000,1,1000000,1,0,0/1000000/3",
		"          1000000,1,1763670000000000,5000,1763670000000000"} {
		f.Add(state)
	}
	s := limitertest.OnMiniredis(f)
	f.Fuzz(func(t *testing.T, state string) {
		for _, v := range limitertest.Variants() {
			s.Wipe(t)
			l, err := v.Build(s.Client)
			require.NoError(t, err)
			switch v.Name {
			case "FixedWindow", "FixedWindow aligned", "TokenBucket", "TokenBucket stepped", "LeakyBucket", "FairTokenBucket", "FairTokenBucket of weight 2":
				require.NoError(t, s.Admin.Set(ctx, v.Key, state, time.Minute).Err())
			case "SlidingWindow List", "SlidingLog":
				require.NoError(t, s.Admin.RPush(ctx, v.Key, "0", "0", state, state).Err())
			case "SlidingWindow Hash":
				require.NoError(t, s.Admin.HSet(ctx, v.Key, "first", "0", "last", "2", "instant", "1763670000000000", "total", state, "base", "0", "oldest", state, "1", state).Err())
			default:
				continue
			}
			r, err := l.TryAcquire(ctx, v.Of("k"))
			if err != nil {
				require.ErrorIs(t, err, ratelimit.ErrCorruptState)
				require.ErrorContains(t, err, strconv.Quote(v.Of("k")))
			} else {
				require.GreaterOrEqual(t, r.Remaining, 0)
				require.LessOrEqual(t, r.Remaining, 3)
			}
			require.NoError(t, v.Forget(l, "k"))
			require.Equal(t, 2, must(t)(l.TryAcquire(ctx, v.Of("k"))).Remaining)
		}
	})
}

// FuzzNames: any prefix and name make a limiter whose key in Redis can be read again, so that no two limiters and keys share
// a state, or an error that wraps ErrInvalidConfig.
func FuzzNames(f *testing.F) {
	for _, name := range []string{"", "api", "a:b", "tokenbucket", "tokenbucket2", "{", "}", ";", ":", "a\x00b", "日本", "api ", "tokenbucket{k}", ";{;k}"} {
		f.Add("p", name, "k")
		f.Add(name, "n", "k")
		f.Add("p", "n", name)
	}
	s := limitertest.OnMiniredis(f)
	f.Fuzz(func(t *testing.T, prefix, name, key string) {
		l, err := ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(1), 3, ratelimit.WithPrefix(prefix), ratelimit.WithName(name))
		if err != nil {
			require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
			return
		}
		s.Wipe(t)
		r, err := l.TryAcquire(ctx, key)
		if key == "" || len(key) > 4096 {
			require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
			return
		}
		require.NoError(t, err)
		require.Equal(t, 2, r.Remaining)
		keys := s.Admin.Keys(ctx, "*").Val()
		require.Len(t, keys, 1)
		parts, ok := keyname.Parse(keys[0])
		require.True(t, ok, keys[0])
		require.Equal(t, keyname.Parts{Prefix: prefix, Name: name, Algorithm: algorithms.TokenBucket, Key: key}, parts)
	})
}

package vectors

import (
	"cmp"
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// Restore sets the clock and what the keys hold to those before a case.
func Restore(t testing.TB, s *limitertest.Stage, g Group, c Case) {
	t.Helper()
	clock := time.UnixMicro(c.Clock)
	if c.Spare > 0 { // the server's does not matter
		clock = clock.Add(time.Hour)
	}
	s.Move(clock)
	restore(t, s.Admin, cmp.Or(c.Key, g.Key), c.Before, c.TTLBefore)
	if c.Beside != nil {
		restore(t, s.Admin, g.Beside, c.Beside.Before, c.Beside.TTLBefore)
	}
}

func restore(t testing.TB, c redis.UniversalClient, key string, before any, ms int64) {
	t.Helper()
	ctx := context.Background()
	require.NoError(t, c.Del(ctx, key).Err())
	ttl := time.Duration(ms) * time.Millisecond
	switch held := before.(type) {
	case nil:
		return
	case string:
		require.NoError(t, c.Set(ctx, key, held, ttl).Err())
	case []string:
		require.NoError(t, c.RPush(ctx, key, held).Err())
	case map[string]string:
		require.NoError(t, c.HSet(ctx, key, held).Err())
	case map[string]int64:
		for member, score := range held {
			require.NoError(t, c.ZAdd(ctx, key, redis.Z{Score: float64(score), Member: member}).Err())
		}
	}
	require.NoError(t, c.PExpire(ctx, key, ttl).Err())
}

// Compare compares what the keys hold, and their TTLs, with those after a case.
func Compare(t testing.TB, s *limitertest.Stage, g Group, c Case, about string) {
	t.Helper()
	compare(t, s.Admin, cmp.Or(c.Key, g.Key), c.After, c.TTL, about)
	if c.Beside != nil {
		compare(t, s.Admin, g.Beside, c.Beside.After, c.Beside.TTL, about+", beside")
	}
}

func compare(t testing.TB, c redis.UniversalClient, key string, after any, ttl int64, about string) {
	t.Helper()
	ctx := context.Background()
	var held any
	switch kind := c.Type(ctx, key).Val(); kind {
	case "string":
		held = c.Get(ctx, key).Val()
	case "list":
		held = c.LRange(ctx, key, 0, -1).Val()
	case "hash":
		held = meaningful(c.HGetAll(ctx, key).Val())
	case "zset":
		members := map[string]int64{}
		for _, z := range c.ZRangeWithScores(ctx, key, 0, -1).Val() {
			members[z.Member.(string)] = int64(z.Score)
		}
		held = members
	default:
		require.Equal(t, "none", kind, about)
	}
	require.Equal(t, after, held, about)
	if held != nil {
		require.Equal(t, time.Duration(ttl)*time.Millisecond, c.PTTL(ctx, key).Val(), about)
	}
}

// ResultOf is a limiter's result as the file has it.
func ResultOf(r ratelimit.Result) *Result {
	return &Result{r.Allowed, r.Limit, r.Window.Microseconds(), r.Remaining, r.RetryAfter.Microseconds(), r.ResetAfter.Microseconds()}
}

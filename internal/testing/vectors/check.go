package vectors

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// Restore sets the clock and what the key holds to those before a case.
func Restore(t testing.TB, s *limitertest.Stage, g Group, c Case) {
	t.Helper()
	ctx := context.Background()
	s.Move(time.UnixMicro(c.Clock))
	require.NoError(t, s.Admin.Del(ctx, g.Key).Err())
	ttl := time.Duration(c.TTLBefore) * time.Millisecond
	switch held := c.Before.(type) {
	case nil:
		return
	case string:
		require.NoError(t, s.Admin.Set(ctx, g.Key, held, ttl).Err())
	case []string:
		require.NoError(t, s.Admin.RPush(ctx, g.Key, held).Err())
	case map[string]string:
		require.NoError(t, s.Admin.HSet(ctx, g.Key, held).Err())
	case map[string]int64:
		for member, score := range held {
			require.NoError(t, s.Admin.ZAdd(ctx, g.Key, redis.Z{Score: float64(score), Member: member}).Err())
		}
	}
	require.NoError(t, s.Admin.PExpire(ctx, g.Key, ttl).Err())
}

// Compare compares what the key holds, and its TTL, with those after a case.
func Compare(t testing.TB, s *limitertest.Stage, g Group, c Case, about string) {
	t.Helper()
	ctx := context.Background()
	var held any
	switch kind := s.Admin.Type(ctx, g.Key).Val(); kind {
	case "string":
		held = s.Admin.Get(ctx, g.Key).Val()
	case "list":
		held = s.Admin.LRange(ctx, g.Key, 0, -1).Val()
	case "hash":
		held = meaningful(s.Admin.HGetAll(ctx, g.Key).Val())
	case "zset":
		members := map[string]int64{}
		for _, z := range s.Admin.ZRangeWithScores(ctx, g.Key, 0, -1).Val() {
			members[z.Member.(string)] = int64(z.Score)
		}
		held = members
	default:
		require.Equal(t, "none", kind, about)
	}
	require.Equal(t, c.After, held, about)
	if held != nil {
		require.Equal(t, time.Duration(c.TTL)*time.Millisecond, s.Admin.PTTL(ctx, g.Key).Val(), about)
	}
}

// ResultOf is a limiter's result as the file has it.
func ResultOf(r ratelimit.Result) *Result {
	return &Result{r.Allowed, r.Limit, r.Window.Microseconds(), r.Remaining, r.RetryAfter.Microseconds(), r.ResetAfter.Microseconds()}
}

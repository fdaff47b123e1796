package ratelimit_test

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
)

// TestASlidingWindowAllowsNearlyItsLimit: under a steady demand of twice the limit, a
// sliding window as it comes allows 97 % of its limit, whatever its window.
func TestASlidingWindowAllowsNearlyItsLimit(t *testing.T) {
	raceflag.SkipSequential(t)
	t.Parallel()
	const limit = 50
	windows := limitertest.Rounds(20, 10)
	for _, window := range []time.Duration{time.Millisecond, 7 * time.Millisecond, 999 * time.Millisecond, time.Second, 24 * time.Hour} {
		for _, storage := range []ratelimit.Storage{ratelimit.StorageHash, ratelimit.StorageList} {
			s := limitertest.OnMiniredis(t)
			l := ratelimit.Must(ratelimit.NewSlidingWindow(s.Client, limit, window, ratelimit.WithStorage(storage)))
			allowed := 0
			for i := range 2 * limit * (windows + 2) {
				s.Move(limitertest.Start.Add(window * time.Duration(i) / (2 * limit)))
				if must(t)(l.TryAcquire(ctx, "k")).Allowed && i >= 4*limit {
					allowed++
				}
			}
			require.GreaterOrEqual(t, allowed*100, windows*limit*97, "%v per %v", storage, window)
			require.LessOrEqual(t, allowed, windows*limit)
		}
	}
}

// TestASlidingWindowIsKeptInAListByDefault. The keys of each storage have its id.
func TestASlidingWindowIsKeptInAListByDefault(t *testing.T) {
	require.Equal(t, ratelimit.StorageList, ratelimit.Storage(0))
	s := limitertest.OnMiniredis(t)
	for _, test := range []struct {
		opts []ratelimit.Option
		key  string
	}{
		{nil, "ratelimit:default:slidingwindow-list{k}"},
		{[]ratelimit.Option{ratelimit.WithStorage(0)}, "ratelimit:default:slidingwindow-list{k}"},
		{[]ratelimit.Option{ratelimit.WithStorage(ratelimit.StorageList)}, "ratelimit:default:slidingwindow-list{k}"},
		{[]ratelimit.Option{ratelimit.WithStorage(ratelimit.StorageHash)}, "ratelimit:default:slidingwindow-hash{k}"},
		{[]ratelimit.Option{ratelimit.WithStorage(ratelimit.StorageZSet)}, "ratelimit:default:slidingwindow-zset{k}"},
	} {
		s.Wipe(t)
		must(t)(ratelimit.Must(ratelimit.NewSlidingWindow(s.Client, 5, time.Minute, test.opts...)).TryAcquire(ctx, "k"))
		require.Equal(t, []string{test.key}, s.Admin.Keys(ctx, "*").Val())
	}
}

// TestASlidingWindowIsDividedByDefault whatever the whole milliseconds of its window.
func TestASlidingWindowIsDividedByDefault(t *testing.T) {
	for ms := range 1000 {
		_, err := ratelimit.NewSlidingWindow(limitertest.Offline(t), 1, time.Duration(ms+1)*time.Millisecond)
		require.NoError(t, err)
	}
}

// TestTheNumbersOfAZSetBeginAgain before they have more than ten digits, in a key that has been
// in use without a pause. Names keep their order, and a ticket finds its permits.
func TestTheNumbersOfAZSetBeginAgain(t *testing.T) {
	const key = "ratelimit:default:slidingwindow-zset{k}"
	for number, want := range map[string]string{
		"9999999999": "9999999999 1000000002 1000000003 1000000005 1000000006",
		"4999999999": "4999999999 5000000001 5000000002 1000000002 1000000003",
	} {
		for stage, open := range map[string]func(testing.TB) *limitertest.Stage{"miniredis": limitertest.OnMiniredis, "Redis": limitertest.OnHeldRedis} {
			t.Run(stage+", "+number, func(t *testing.T) {
				s := open(t)
				build := func(window time.Duration) *ratelimit.SlidingWindow {
					return ratelimit.Must(ratelimit.NewSlidingWindow(s.Client, 10, window, ratelimit.WithStorage(ratelimit.StorageZSet)))
				}
				l, longer := build(time.Minute), build(time.Hour)
				add := func(number string) {
					member := redis.Z{Score: float64(s.Now.UnixMicro()), Member: number + "/60000000"}
					require.NoError(t, s.Admin.ZAdd(ctx, key, member).Err())
					require.NoError(t, s.Admin.PExpire(ctx, key, 2*time.Minute).Err())
				}
				add(number)
				s.Advance(time.Second)
				for used := 2; used <= 4; used += 2 {
					ticket, r, err := l.Estimate(ctx, "k", 2)
					require.Equal(t, allowedBy(10, time.Minute, 9-used, time.Minute), must(t)(r, err))
					require.Equal(t, allowedBy(10, time.Hour, 8-used, time.Hour), must(t)(longer.TryAcquire(ctx, "k")))
					require.NoError(t, ticket.Settle(ctx, 1))
					s.Advance(time.Second)
				}
				require.Equal(t, 5, must(t)(l.Peek(ctx, "k")).Remaining)
				var names []string
				for _, member := range s.Admin.ZRange(ctx, key, 0, -1).Val() {
					names = append(names, member[:10])
				}
				require.Equal(t, want, strings.Join(names, " "))
			})
		}
	}
}

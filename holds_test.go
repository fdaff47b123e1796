package ratelimit_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/redisexec"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
)

// TestHoldsAreDecidedAsOneByOne: a list of holds and releases gets the words, and leaves the state,
// of its releases and then its holds one by one.
func TestHoldsAreDecidedAsOneByOne(t *testing.T) {
	t.Run("miniredis", func(t *testing.T) {
		server := miniredis.RunT(t)
		server.ClockTTL(true)
		client := redis.NewClient(&redis.Options{Addr: server.Addr()})
		t.Cleanup(func() { _ = client.Close() })
		holdsAgree(t, client, server.SetTime)
	})
	t.Run("Redis", func(t *testing.T) {
		server, client := limitertest.HeldServer(t)
		holdsAgree(t, client, server.HoldClock)
	})
}

func holdsAgree(t *testing.T, client *redis.Client, setTime func(time.Time)) {
	now := limitertest.Start
	for clock, o := range map[string][]ratelimit.Option{"server's clock": nil, "caller's clock": {ratelimit.WithClock(func() time.Time { return now })}} {
		t.Run(clock, func(t *testing.T) {
			limiters := []*ratelimit.InFlight{
				ratelimit.Must(ratelimit.NewInFlight(client, 5, 4*time.Second, o...)),
				ratelimit.Must(ratelimit.NewInFlight(client, 8, 9*time.Second, o...)),
			}
			seed := limitertest.Seed(t)
			allowed, denied, released, again, reused := 0, 0, 0, 0, 0
			rounds := limitertest.Rounds(100, 10)
			for round := range rounds {
				now = limitertest.Start
				require.NoError(t, client.FlushDB(ctx).Err())
				random := model.Seeded(seed + uint64(round))
				type held struct {
					by *ratelimit.InFlight
					n  int
					id string
				}
				var holds []held
				for step := range 40 {
					now = now.Add(time.Duration(random.IntN(1500)) * time.Millisecond)
					// Steps back are with one length of leases: with two, a list may see a step that a call
					// after its first hold does not.
					stepping := round%2 == 1
					if stepping && random.IntN(25) == 0 { // back
						now = now.Add(-time.Duration(random.IntN(6000)) * time.Millisecond)
					}
					setTime(now)
					f := limiters[random.IntN(2)]
					if stepping {
						f = limiters[0]
					}
					var list []byte
					var first, then []redisexec.Operation
					var kinds []redisexec.Op
					for i := range 1 + random.IntN(6) {
						op := redisexec.Operation{Op: redisexec.Hold, N: 1 + random.IntN(3), Times: 1, Detail: &redisexec.Detail{ID: fmt.Sprintf("H%dX%d", step, i)}}
						if random.IntN(3) == 0 { // an id of a caller's own, which is asked for again
							op.ID = fmt.Sprintf("own%d", random.IntN(3))
						}
						if at := random.IntN(len(holds) + 1); at < len(holds) && holds[at].by == f && random.IntN(3) > 0 {
							op.Op, op.N, op.ID = redisexec.Release, holds[at].n, holds[at].id
							first = append(first, op)
						} else {
							then = append(then, op)
						}
						if list != nil {
							list = append(list, ',')
						}
						list = op.Append(list)
						kinds = append(kinds, op.Op)
					}
					together, err := ratelimit.DecideHolds(f, list, "together")
					require.NoError(t, err)
					for _, op := range first {
						words, err := ratelimit.DecideHolds(f, op.Append(nil), "one by one")
						require.NoError(t, err)
						require.Equal(t, []int64{1}, words)
						released++
					}
					var words []int64
					for _, op := range then {
						one, err := ratelimit.DecideHolds(f, op.Append(nil), "one by one")
						require.NoError(t, err)
						words = append(words, one...)
						if one[0] == 1 && one[2] == 1 {
							again++
						} else if one[2] == -1 {
							reused++
						} else if one[0] == 1 {
							allowed++
							holds = append(slices.DeleteFunc(holds, func(h held) bool { return h.by == f && h.id == op.ID }), held{f, op.N, op.ID})
						} else {
							denied++
						}
					}
					var want []int64
					for _, kind := range kinds {
						if kind == redisexec.Release {
							want = append(want, 1)
						} else {
							want, words = append(want, words[:4]...), words[4:]
						}
					}
					require.Equal(t, want, together, "%s", list)
					require.Equal(t, members(t, client, f, "one by one"), members(t, client, f, "together"), "after %s", list)
				}
			}
			require.Greater(t, min(allowed, denied, released), 5)
			if rounds > 1 {
				require.Greater(t, min(again, reused), 5)
			}
		})
	}
}

// members is what a key of permits in flight holds.
func members(t *testing.T, client *redis.Client, f *ratelimit.InFlight, key string) []redis.Z {
	t.Helper()
	all, err := client.ZRangeWithScores(ctx, ratelimit.NameOfHolds(f, key), 0, -1).Result()
	require.NoError(t, err)
	return all
}

package faulttest

import (
	"bytes"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// banLengths are all different, so that the length of a pause shows which strike it is.
var banLengths = []time.Duration{2 * time.Minute, 5 * time.Minute, 10 * time.Minute}

// bans returns bans of a limit of one permit in ten seconds.
func bans(c ratelimit.Client, opts ...ratelimit.Option) (*ratelimit.Bans, *ratelimit.Pause) {
	p := ratelimit.Must(ratelimit.NewPause(c, append(opts, ratelimit.WithName("banned"))...))
	l := ratelimit.Must(ratelimit.NewTokenBucket(c, ratelimit.Per(1, 10*time.Second), 1, append(opts, ratelimit.WithName("api"))...))
	return ratelimit.Must(ratelimit.NewBans(l, p, banLengths, time.Hour)), p
}

// onStrike matches the execution that counts a strike.
func onStrike(request []byte) bool {
	return bytes.Contains(request, []byte(":120000000:300000000:600000000"))
}

// TestALostStrikeIsCountedOnce: the strike for a denial, or its reply, is lost in each of several episodes. An episode
// brings one strike: a strike that Redis has executed is not executed again, and one that has not arrived comes with the
// next denial.
func TestALostStrikeIsCountedOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	client := server.Client(t, func(o *redis.Options) { o.Addr = proxy.Addr() })
	for name, of := range map[string]struct {
		lose     func(n int, match ...redistest.Matcher) *redistest.Fault
		executed bool
	}{
		"the request": {proxy.DropRequest, false},
		"the reply":   {proxy.DropReply, true},
	} {
		for _, merged := range [][]ratelimit.Option{nil, {ratelimit.WithoutMerging()}} {
			require.NoError(t, server.Client(t).FlushAll(ctx).Err())
			clock := limitertest.NewClock()
			now := limitertest.Start
			advance := func(d time.Duration) {
				now = now.Add(d)
				clock.Set(now)
			}
			b, p := bans(client, append(merged, ratelimit.WithClock(clock.Now))...)
			another, _ := bans(server.Client(t), append(merged, ratelimit.WithClock(clock.Now))...) // its strikes arrive
			require.NoError(t, ratelimit.Preload(ctx, ratelimit.ClaimOf(b, "k", 1)))
			for episode, length := range append(banLengths, banLengths[2]) {
				require.True(t, must(t)(b.TryAcquire(ctx, "k")).Allowed, "%s of strike %d", name, episode+1)
				lost := of.lose(1, onStrike)
				r := must(t)(b.TryAcquire(ctx, "k"))
				require.Equal(t, 1, lost.Hits(), name)
				require.Equal(t, 10*time.Second, r.RetryAfter, "the denial stands")
				if of.executed {
					require.Eventually(t, func() bool { return must(t)(p.Peek(ctx, "k")).RetryAfter == length }, generous, time.Millisecond)
				} else {
					require.True(t, must(t)(p.Peek(ctx, "k")).Allowed, "it has not arrived")
				}
				for _, l := range []*ratelimit.Bans{b, another, b} {
					require.Equal(t, length, must(t)(l.TryAcquire(ctx, "k")).RetryAfter, "%s of strike %d", name, episode+1)
				}
				advance(length)
			}
		}
	}
}

// TestAPauseWhileItsSlotMoves: in all the phases of a migration, the first time to a master that knows no script, a pause is
// in force and can be moved later, and each episode is a strike. While the keys of the pause and of the limiter are on both
// sides, a call of both is an error: it takes nothing, and no strike comes of it.
func TestAPauseWhileItsSlotMoves(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	client := cluster.Client(t)
	clock, now := limitertest.NewClock(), limitertest.Start
	advance := func(d time.Duration) {
		now = now.Add(d)
		clock.Set(now)
	}
	b, banned := bans(client, ratelimit.WithClock(clock.Now))
	p := ratelimit.Must(ratelimit.NewPause(client, ratelimit.WithClock(clock.Now), ratelimit.WithName("upstream")))

	const key = "{hot}"
	strikes, until := 0, now
	call := func(phase string) {
		t.Helper()
		until = until.Add(time.Hour)
		for _, d := range []time.Duration{until.Sub(now), time.Minute} { // the second one is earlier
			require.Equal(t, until.Sub(now), must(t)(p.Pause(ctx, key, d)).RetryAfter, phase)
		}
		require.Equal(t, until.Sub(now), must(t)(p.TryAcquire(ctx, key)).RetryAfter, phase)

		require.True(t, must(t)(b.TryAcquire(ctx, key)).Allowed, phase)
		length := banLengths[min(strikes, 2)]
		strikes++
		for range 2 {
			require.Equal(t, length, must(t)(b.TryAcquire(ctx, key)).RetryAfter, "%s: strike %d", phase, strikes)
		}
		advance(length)
	}
	call("before")
	slot, newcomer := cluster.Slot(key), cluster.AddEmptyMaster()
	for _, target := range []*redistest.Server{newcomer, cluster.NodeForSlot(slot)} {
		migration := cluster.BeginMigration(slot, target)
		call("no key has moved")
		migration.MoveKeys("ratelimit:banned:pause:"+key, "ratelimit:upstream:pause:"+key)
		for range 2 {
			_, err := b.TryAcquire(ctx, key)
			require.True(t, redis.HasErrorPrefix(err, "TRYAGAIN"), "%v", err)
			require.True(t, must(t)(banned.TryAcquire(ctx, key)).Allowed)
			require.Equal(t, until.Sub(now), must(t)(p.TryAcquire(ctx, key)).RetryAfter)
		}
		migration.MoveKeys()
		call("all keys have moved")
		migration.Finish()
		call("after")
	}
	require.Equal(t, 7, strikes)
	require.NoError(t, p.Reset(ctx, key))
	require.True(t, must(t)(p.TryAcquire(ctx, key)).Allowed)
}

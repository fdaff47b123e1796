package ratelimit_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/keyname"
	"github.com/tryacquire/ratelimit/internal/redisexec"
	"github.com/tryacquire/ratelimit/internal/state"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
)

// A history is operations on two keys that must end alike: the lists of one of them are
// decided in one execution each, and the other key gets the same operations one by one.
type history struct {
	t      *testing.T
	client *redis.Client
	random *rand.Rand

	tickets [2][][2]int64 // where and which, on either key
	sizes   []int         // the permits of each ticket

	reserved []redisexec.Detail // of the cancels of reservations, which are alike for both keys
	fresh    bool               // the last operation was a reservation

	kinds map[redisexec.Op]int // how many operations were compared
}

var historyKeys = [2]string{"{together}:tenant", "{one by one}:tenant"}

// draw returns up to seven operations, and the tickets that they settle.
func (h *history) draw(reserves bool) (ops []redisexec.Operation, settled []int) {
	for i := range 1 + h.random.IntN(7) {
		o := redisexec.Operation{Op: redisexec.Take, N: 1 + h.random.IntN(3), Times: 1 + h.random.IntN(3)}
		ticket := -1
		switch h.random.IntN(12) {
		case 0, 1, 2, 3:
			o.Op = redisexec.Estimate
		case 4:
			o.Op, o.N = redisexec.Charge, 1+h.random.IntN(6)
		case 5, 6, 7, 8:
			if len(h.sizes) > 0 {
				ticket = h.random.IntN(len(h.sizes))
				o = redisexec.Operation{Op: redisexec.GiveBack, N: 1 + h.random.IntN(h.sizes[ticket]), Times: 1}
			}
		}
		if reserves {
			switch kind := h.random.IntN(6); {
			case i == 0 && kind < 3 && h.fresh:
				last := h.reserved[len(h.reserved)-1]
				o, ticket = redisexec.Operation{Op: redisexec.Cancel, N: 1, Times: 1, Detail: &last}, -1
			case kind < 2:
				o.Op, o.Times, ticket = redisexec.Reserve, 1, -1
				o.Detail = &redisexec.Detail{Longest: int64(h.random.IntN(5)) * 300_000}
			case kind == 2:
				if n := len(h.reserved); n > 0 {
					cancelled := h.reserved[max(0, n-1-h.random.IntN(3))]
					o, ticket = redisexec.Operation{Op: redisexec.Cancel, N: 1, Times: 1, Detail: &cancelled}, -1
				}
			}
		}
		ops, settled = append(ops, o), append(settled, ticket)
	}
	return ops, settled
}

// play decides a list on both keys, and compares all words and what the keys hold.
func (h *history) play(l ratelimit.Limiter) {
	ops, settled := h.draw(ratelimit.Reserves(l))
	var lists [2][]redisexec.Operation
	for key := range historyKeys {
		for i, o := range ops {
			if settled[i] >= 0 {
				where := h.tickets[key][settled[i]]
				o.Detail = &redisexec.Detail{Where: where[0], Which: where[1]}
			}
			lists[key] = append(lists[key], o)
		}
	}
	var text []byte
	for i, o := range lists[0] {
		if i > 0 {
			text = append(text, ',')
		}
		text = o.Append(text)
	}
	together, err := ratelimit.DecideList(l, historyKeys[0], text)
	require.NoError(h.t, err, "%s", text)
	for i, o := range lists[1] {
		words, err := ratelimit.DecideList(l, historyKeys[1], o.Append(nil))
		require.NoError(h.t, err)
		own := len(words)
		require.GreaterOrEqual(h.t, len(together), own)
		compared := own
		if o.Op == redisexec.Estimate {
			compared -= redisexec.TicketWords
		}
		require.Equal(h.t, words[:compared], together[:compared], "operation %d of %s", i+1, text)
		if o.Op == redisexec.Estimate && words[0] == int64(o.Times) {
			h.sizes = append(h.sizes, o.N)
			for key, reply := range [][]int64{together, words} {
				h.tickets[key] = append(h.tickets[key], ratelimit.TicketOf(l, o.N, reply[:own]))
			}
		}
		if h.fresh = false; o.Op == redisexec.Reserve {
			if wrote, before, ok := ratelimit.ReceiptOf(l, words); ok {
				h.reserved = append(h.reserved, redisexec.Detail{Wrote: wrote, Before: before})
				h.fresh = true
			}
		}
		together = together[own:]
		if o.Op != redisexec.Cancel || words[0] == 1 {
			h.kinds[o.Op]++
		}
	}
	require.Empty(h.t, together)
	require.Equal(h.t, h.state(l, historyKeys[1]), h.state(l, historyKeys[0]), "after %s", text)
}

// state is what a key holds.
func (h *history) state(l ratelimit.Limiter, key string) string {
	held, err := state.RawText(ctx, h.client, ratelimit.NameOf(l, key))
	require.NoError(h.t, err)
	limit, err := state.RawText(ctx, h.client, keyname.Limit(ratelimit.NameOf(l, key)))
	require.NoError(h.t, err)
	return held + limit
}

// historyRules are limiters of one name, by their rules.
func historyRules(c ratelimit.Client, o ...ratelimit.Option) map[string][]ratelimit.Limiter {
	window := func(storage ratelimit.Storage) []ratelimit.Limiter {
		var all []ratelimit.Limiter
		for _, n := range []int{6, 9} {
			opts := append(o, ratelimit.WithStorage(storage))
			if storage != ratelimit.StorageZSet {
				opts = append(opts, ratelimit.WithSubWindows(n))
			}
			all = append(all, ratelimit.Must(ratelimit.NewSlidingWindow(c, n, time.Duration(n)*300*time.Millisecond, opts...)))
		}
		return all
	}
	fair := func(rate, burst, weight, promise int) ratelimit.Limiter {
		l := ratelimit.Must(ratelimit.Must(ratelimit.NewFairTokenBucket(c, ratelimit.PerSecond(rate), burst, o...)).Weight(weight))
		if promise > 0 {
			l = ratelimit.Must(l.Promise(ratelimit.PerSecond(promise)))
		}
		return l
	}
	return map[string][]ratelimit.Limiter{
		"fixed":    {ratelimit.Must(ratelimit.NewFixedWindow(c, 7, 2*time.Second, o...)), ratelimit.Must(ratelimit.NewFixedWindow(c, 9, 3*time.Second, o...))},
		"aligned":  {ratelimit.Must(ratelimit.NewFixedWindow(c, 7, 2*time.Second, append(o, ratelimit.WithAlignment(0))...)), ratelimit.Must(ratelimit.NewFixedWindow(c, 9, 3*time.Second, append(o, ratelimit.WithAlignment(0))...))},
		"calendar": {ratelimit.Must(ratelimit.NewCalendarWindow(c, 7, ratelimit.Daily(time.UTC), o...))},
		"hash":     window(ratelimit.StorageHash),
		"list":     window(ratelimit.StorageList),
		"zset":     window(ratelimit.StorageZSet),
		"log": {ratelimit.Must(ratelimit.NewSlidingLog(c, []ratelimit.Rule{{Limit: 5, Window: time.Second}, {Limit: 8, Window: 3 * time.Second}}, o...)),
			ratelimit.Must(ratelimit.NewSlidingLog(c, []ratelimit.Rule{{Limit: 7, Window: 2 * time.Second}}, o...))},
		"token":   {ratelimit.Must(ratelimit.NewTokenBucket(c, ratelimit.PerSecond(3), 6, o...)), ratelimit.Must(ratelimit.NewTokenBucket(c, ratelimit.PerSecond(7), 9, o...))},
		"exact":   {ratelimit.Must(ratelimit.NewTokenBucket(c, ratelimit.PerSecond(3), 6, append(o, ratelimit.WithExactReturns())...))},
		"stepped": {ratelimit.Must(ratelimit.NewTokenBucket(c, ratelimit.PerSecond(3), 6, append(o, ratelimit.WithRefillEvery(time.Second))...)), ratelimit.Must(ratelimit.NewTokenBucket(c, ratelimit.PerSecond(5), 8, o...))},
		"leaky":   {ratelimit.Must(ratelimit.NewLeakyBucket(c, ratelimit.PerSecond(3), 6, o...)), ratelimit.Must(ratelimit.NewLeakyBucket(c, ratelimit.PerSecond(2), 9, o...))},
		"fair":    {fair(3, 8, 1, 0), fair(3, 8, 2, 2), fair(7, 11, 1, 0)},
	}
}

// TestAListIsDecidedAsItsOperationsOneByOne: the same words, and the same state.
func TestAListIsDecidedAsItsOperationsOneByOne(t *testing.T) {
	raceflag.Skip(t)
	t.Run("miniredis", func(t *testing.T) {
		server := miniredis.RunT(t)
		server.ClockTTL(true)
		client := redis.NewClient(&redis.Options{Addr: server.Addr()})
		t.Cleanup(func() { _ = client.Close() })
		listsAgree(t, client, server.SetTime)
	})
	t.Run("Redis", func(t *testing.T) {
		server, client := limitertest.HeldServer(t)
		listsAgree(t, client, server.HoldClock)
	})
}

// listsAgree plays histories. setTime sets the server's clock.
func listsAgree(t *testing.T, client *redis.Client, setTime func(time.Time)) {
	now, kinds := limitertest.Start, map[redisexec.Op]int{}
	clocks := map[string][]ratelimit.Option{"server's clock": nil, "caller's clock": {ratelimit.WithClock(func() time.Time { return now })}}
	for clock, o := range clocks {
		for name, limiters := range historyRules(client, o...) {
			t.Run(name+", "+clock, func(t *testing.T) {
				seed := limitertest.Seed(t)
				for round := range limitertest.Rounds(40, 5) {
					now = limitertest.Start
					require.NoError(t, client.FlushDB(ctx).Err())
					// A denied call that repairs the state after a step back may say another wait when it is
					// repeated, if the state is of another rule. So there are several rules or steps back.
					rules := limiters
					if round%2 == 1 {
						rules = limiters[:1]
					}
					h := &history{t: t, client: client, random: model.Seeded(seed + uint64(round)), kinds: kinds}
					for range 40 {
						now = now.Add(time.Duration(h.random.IntN(600)) * time.Millisecond)
						if round%2 == 1 && h.random.IntN(25) == 0 { // back
							now = now.Add(-time.Duration(h.random.IntN(3000)) * time.Millisecond)
						}
						setTime(now)
						h.play(rules[h.random.IntN(len(rules))])
					}
				}
			})
		}
	}
	for _, op := range []redisexec.Op{redisexec.Take, redisexec.Estimate, redisexec.Charge, redisexec.GiveBack, redisexec.Reserve, redisexec.Cancel} {
		require.Greater(t, kinds[op], 5, "%c", op) // the rarest, cancels that count, are 20 to 40 in few rounds
	}
}

// TestListsOfSeveralLimitersAreDecidedAsTheirOwn: limiters of one algorithm and of several rules share
// an execution, in which each key has its own list. Among them are lists of one key by two rules.
func TestListsOfSeveralLimitersAreDecidedAsTheirOwn(t *testing.T) {
	server := miniredis.RunT(t)
	server.ClockTTL(true)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	for name, limiters := range historyRules(client) {
		if name == "calendar" { // whose arguments change with time
			continue
		}
		t.Run(name, func(t *testing.T) {
			h := &history{t: t, client: client, random: model.Seeded(limitertest.Seed(t)), kinds: map[redisexec.Op]int{}}
			for range limitertest.Rounds(20, 5) {
				now := limitertest.Start
				require.NoError(t, client.FlushDB(ctx).Err())
				for range 30 {
					now = now.Add(time.Duration(h.random.IntN(900)) * time.Millisecond)
					server.SetTime(now)
					var of []ratelimit.Limiter
					var keys, lists []string
					var want []int64
					onlyTakes := h.random.IntN(2) == 0
					for range 1 + h.random.IntN(6) {
						l, key := limiters[h.random.IntN(len(limiters))], fmt.Sprintf("{key%d}:tenant", h.random.IntN(3))
						if !ratelimit.ShareExecutions(l, limiters[0]) {
							l = limiters[0]
						}
						list := "1x1"
						switch h.random.IntN(3) {
						case 0:
							list = "2x3,1x1"
						case 1:
							if !onlyTakes {
								list = "1e2,3c1,2x1"
							}
						}
						of, keys, lists = append(of, l), append(keys, key), append(lists, list)
						words, err := ratelimit.DecideList(l, "{alone "+key[1:], []byte(list))
						require.NoError(t, err)
						want = append(want, words...)
					}
					got, err := ratelimit.DecideTable(of, keys, lists, onlyTakes)
					require.NoError(t, err)
					require.Equal(t, want, got, "%v %v", keys, lists)
				}
			}
		})
	}
}

// TestAListThatFailsInTheMiddle: the words of what was done, then -1 and nothing more of the key,
// whose state is that after what was done; the next key is decided. A command that is refused ends
// the script's function on Redis only: on miniredis, the variables of a function that fails are
// no longer shared with the rest of the script.
func TestAListThatFailsInTheMiddle(t *testing.T) {
	damaged, refused := "return {err = 'CORRUPT no state'}", "redis.call('NOSUCHCOMMAND')"
	t.Run("miniredis", func(t *testing.T) {
		server := miniredis.RunT(t)
		server.SetTime(limitertest.Start)
		client := redis.NewClient(&redis.Options{Addr: server.Addr()})
		t.Cleanup(func() { _ = client.Close() })
		listsFail(t, client, damaged)
	})
	t.Run("Redis", func(t *testing.T) {
		server, client := limitertest.HeldServer(t)
		server.HoldClock(limitertest.Start)
		listsFail(t, client, damaged, refused)
	})
}

func listsFail(t *testing.T, client *redis.Client, fails ...string) {
	now := func() time.Time { return limitertest.Start }
	for clock, o := range map[string][]ratelimit.Option{"server's clock": nil, "caller's clock": {ratelimit.WithClock(now)}} {
		for name, limiters := range historyRules(client, o...) {
			t.Run(name+", "+clock, func(t *testing.T) {
				l := limiters[0]
				h := &history{t: t, client: client}
				for _, fail := range fails {
					for _, rest := range []string{"1x2,1e1,9x1,2c1", "2c1", "1e2", "no operation"} {
						require.NoError(t, client.FlushDB(ctx).Err())
						estimate := redisexec.Operation{Op: redisexec.Estimate, N: 4, Times: 1}
						var back string // one of the four permits; the same for each key, as the clock stands still
						for _, key := range []string{"{fails}:tenant", "{alike}:tenant", "{next}:tenant", "{last}:tenant"} {
							words, err := ratelimit.DecideList(l, key, estimate.Append(nil))
							require.NoError(t, err)
							where := ratelimit.TicketOf(l, 4, words)
							o := redisexec.Operation{Op: redisexec.GiveBack, N: 1, Times: 1, Detail: &redisexec.Detail{Where: where[0], Which: where[1]}}
							back = string(o.Append(nil))
						}
						given, err := ratelimit.DecideList(l, "{alike}:tenant", []byte(back))
						require.NoError(t, err)
						require.Equal(t, []int64{1}, given)
						taken, err := ratelimit.DecideList(l, "{last}:tenant", []byte("1x1"))
						require.NoError(t, err)
						words, err := ratelimit.DecideLists(l, []string{"{fails}:tenant", "{next}:tenant"}, []string{back + "," + rest, "1x1"}, fail)
						require.NoError(t, err)
						require.Equal(t, append([]int64{1, -1}, taken...), words, rest)
						require.Equal(t, h.state(l, "{alike}:tenant"), h.state(l, "{fails}:tenant"), rest)
						require.Equal(t, h.state(l, "{last}:tenant"), h.state(l, "{next}:tenant"), rest)
					}
				}
			})
		}
	}
}

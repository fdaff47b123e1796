package ratelimit_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/state"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
)

// What leaves the windows of one key costs Redis time when it is removed. One execution removes a
// bounded number, and the rest stays for the next ones, of which no answer knows.

// A crowd is a limiter whose keys can have many entries that leave at once.
type crowd struct {
	name    string
	build   func(c ratelimit.Client) ratelimit.Limiter
	limit   int
	grain   int64
	entries int // that have left
	most    int // that one call for one permit removes

	// fill writes a key whose last live entries of one permit each have not left.
	fill func(t testing.TB, s *limitertest.Stage, name string, c crowd, live int)
	size func(s *limitertest.Stage, name string) int
}

const crowdWindow = time.Minute

func crowds() []crowd {
	list := func(s *limitertest.Stage, name string) int { return int(s.Admin.LLen(ctx, name).Val()) / 2 }
	window := func(limit int, storage ratelimit.Storage, opts ...ratelimit.Option) func(c ratelimit.Client) ratelimit.Limiter {
		return func(c ratelimit.Client) ratelimit.Limiter {
			return ratelimit.Must(ratelimit.NewSlidingWindow(c, limit, crowdWindow, append(opts, ratelimit.WithStorage(storage))...))
		}
	}
	log := func(rules ...ratelimit.Rule) func(c ratelimit.Client) ratelimit.Limiter {
		return func(c ratelimit.Client) ratelimit.Limiter { return ratelimit.Must(ratelimit.NewSlidingLog(c, rules)) }
	}
	return []crowd{
		{"ZSet", window(10_000, ratelimit.StorageZSet), 10_000, 1, 10_000, 503, fillZSet, func(s *limitertest.Stage, name string) int {
			return int(s.Admin.ZCard(ctx, name).Val())
		}},
		{"Hash", window(10_000, ratelimit.StorageHash, ratelimit.WithSubWindows(5_000)), 10_000, 12_000, 2_000, 271, fillHash, func(s *limitertest.Stage, name string) int {
			return int(s.Admin.HLen(ctx, name).Val())
		}},
		{"List", window(10_000, ratelimit.StorageList, ratelimit.WithSubWindows(5_000)), 10_000, 12_000, 250_000, 200_000, fillList, list},
		{"log", log(ratelimit.Rule{Limit: 10_000, Window: crowdWindow}), 10_000, 1, 250_000, 200_000, fillList, list},
		{"log of two rules", log(ratelimit.Rule{Limit: 1_000_000, Window: crowdWindow / 2}, ratelimit.Rule{Limit: 1_000_001, Window: crowdWindow}), 1_000_000, 1, 250_000, 200_000, fillList, list},
	}
}

// instants are those of a crowd's entries.
func (c crowd) instants(s *limitertest.Stage, live int) []int64 {
	now := s.Now.UnixMicro()
	var ats []int64
	for i := range c.entries + live {
		at := now - int64(live-i+c.entries)*c.grain
		if i < c.entries {
			at -= crowdWindow.Microseconds() + int64(live)*c.grain
		}
		ats = append(ats, at-at%c.grain+c.grain-1)
	}
	return ats
}

func fillZSet(t testing.TB, s *limitertest.Stage, name string, c crowd, live int) {
	var members []redis.Z
	for i, at := range c.instants(s, live) {
		members = append(members, redis.Z{Score: float64(at), Member: fmt.Sprintf("%d/%d", 1_000_000_001+i, crowdWindow.Microseconds())})
	}
	require.NoError(t, s.Admin.ZAdd(ctx, name, members...).Err())
	require.NoError(t, s.Admin.PExpire(ctx, name, crowdWindow).Err())
}

func fillList(t testing.TB, s *limitertest.Stage, name string, c crowd, live int) {
	elements := []any{fmt.Sprintf("%d/%d", crowdWindow.Microseconds(), c.grain), 0}
	for i, at := range c.instants(s, live) {
		elements = append(elements, at, i+1)
	}
	require.NoError(t, s.Admin.RPush(ctx, name, elements...).Err())
	require.NoError(t, s.Admin.PExpire(ctx, name, crowdWindow).Err())
}

func fillHash(t testing.TB, s *limitertest.Stage, name string, c crowd, live int) {
	ats := c.instants(s, live)
	last := len(ats) - 1
	fields := []any{"rule", fmt.Sprintf("%d/%d", crowdWindow.Microseconds(), c.grain), "base", 0, "oldest", ats[0], "first", 0,
		"instant", ats[last], "total", last + 1, "last", last + 1}
	for i, at := range ats[:last] {
		fields = append(fields, i+1, fmt.Sprintf("%d/%d", at, i+1))
	}
	require.NoError(t, s.Admin.HSet(ctx, name, fields...).Err())
	require.NoError(t, s.Admin.PExpire(ctx, name, crowdWindow).Err())
}

// onBoth runs a test on miniredis and on a server, whose clocks stand still.
func onBoth(t *testing.T, test func(t *testing.T, s *limitertest.Stage)) {
	for name, open := range map[string]func(testing.TB) *limitertest.Stage{"miniredis": limitertest.OnMiniredis, "Redis": limitertest.OnHeldRedis} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open(t))
		})
	}
}

// TestACallRemovesABoundedNumberOfEntries, whatever it does, and its answer knows nothing of the
// rest. A look removes none.
func TestACallRemovesABoundedNumberOfEntries(t *testing.T) {
	raceflag.SkipSequential(t)
	t.Parallel()
	onBoth(t, func(t *testing.T, s *limitertest.Stage) {
		for _, c := range crowds() {
			t.Run(c.name, func(t *testing.T) {
				s.Wipe(t)
				const live = 3
				l := c.build(s.Client).(settling)
				name := ratelimit.NameOf(l, "k")
				c.fill(t, s, name, c, live)
				used, removed, executions := live, 0, 0
				left := func(r ratelimit.Result, err error) {
					t.Helper()
					require.NoError(t, err)
					require.True(t, r.Allowed)
					require.Equal(t, c.limit-used, r.Remaining)
				}
				beside := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(1000), 1000))
				calls := []func(){
					func() { used++; left(l.TryAcquire(ctx, "k")) },
					func() { used += 2; left(l.TryAcquireN(ctx, "k", 2)) },
					func() { used++; left(l.Charge(ctx, "k", 1)) },
					func() {
						used++
						_, r, err := l.TryAcquireUpTo(ctx, "k", 1)
						left(r, err)
					},
					func() {
						used += 2
						ticket, r, err := l.Estimate(ctx, "k", 2)
						left(r, err)
						used--
						require.NoError(t, ticket.Settle(ctx, 1))
					},
					func() {
						used++
						r, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(l, "k", 1), ratelimit.ClaimOf(beside, "k", 1))
						require.NoError(t, err)
						left(r.Parts[0].Result, nil)
					},
				}
				for i := 0; removed < c.entries-20; i++ { // Hash removes sixteen fields at a time
					s.Advance(time.Millisecond)
					before := c.size(s, name)
					left(l.Peek(ctx, "k"))
					states, err := state.Read(ctx, s.Admin, []string{name}, c.entries+2*executions+live)
					require.NoError(t, err)
					require.NoError(t, states[0].Err)
					require.False(t, states[0].AtMost)
					require.EqualValues(t, used, states[0].Used, "as operators see it")
					require.Equal(t, before, c.size(s, name), "a look")
					calls[i%len(calls)]()
					gone := before - c.size(s, name)
					require.LessOrEqual(t, gone, c.most)
					require.Positive(t, gone, "%d of %d were removed", removed, c.entries)
					removed += gone + 1
					executions++
				}
				require.GreaterOrEqual(t, executions, c.entries/c.most)
			})
		}
	})
}

// TestAWindowInWhichPermitsStayDecidesAsItsModel: a sorted set from which thousands of permits leave at
// once, by random calls; it never keeps more than were in the window together.
func TestAWindowInWhichPermitsStayDecidesAsItsModel(t *testing.T) {
	raceflag.SkipSequential(t)
	t.Parallel()
	onBoth(t, func(t *testing.T, s *limitertest.Stage) {
		rng := model.Seeded(limitertest.Seed(t))
		const limit = 10_000
		l := ratelimit.Must(ratelimit.NewSlidingWindow(s.Client, limit, crowdWindow, ratelimit.WithStorage(ratelimit.StorageZSet)))
		m := model.NewSlidingZSet(limit, crowdWindow)
		name := ratelimit.NameOf(l, "k")
		largest, stayed := 0, 0 // members in the window together; looks at which some were in the key that had left
		for i := range 10 + limitertest.Rounds(1000, 100) {
			s.Advance(time.Duration([]int64{0, 1, rng.Int64N(1e6), rng.Int64N(6e7), rng.Int64N(2e7)}[rng.IntN(5)]) * time.Microsecond)
			now, n := s.Now.UnixMicro(), []int{1, 1, 1 + rng.IntN(9), 1 + rng.IntN(900), 4_000, 5_999}[rng.IntN(6)]
			if i < 4 { // so that many stay
				n = []int{5_000, 1, 1, 1}[i]
				s.Move(limitertest.Start.Add(time.Duration(i) * 21 * time.Second))
				now = s.Now.UnixMicro()
			}
			looks := i >= 4 && rng.IntN(4) == 0
			if looks {
				n = 1
			}
			if s.Admin.Exists(ctx, name).Val() == 0 {
				m.Reset()
			}
			want := limitertest.ResultOf(m.Take(now, n, looks))
			before := int(s.Admin.ZCard(ctx, name).Val())
			ask := func() (ratelimit.Result, error) { return l.TryAcquireN(ctx, "k", n) }
			if looks {
				ask = func() (ratelimit.Result, error) { return l.Peek(ctx, "k") }
			}
			require.Equal(t, want, must(t)(ask()), "step %d: %d permits, looks %t", i, n, looks)
			after := int(s.Admin.ZCard(ctx, name).Val())
			used := limit - want.Remaining
			if after > used {
				stayed++
			}
			largest = max(largest, used)
			if want.Allowed && !looks {
				require.LessOrEqual(t, after, largest)
				if after > used { // the key shrinks by more than what was taken, but if all had left: it is another key
					require.LessOrEqual(t, after, before-n)
					require.GreaterOrEqual(t, after, before+n-500-2*n)
				}
			} else {
				require.Equal(t, before, after)
			}
		}
		require.Positive(t, stayed)
	})
}

// A removals notes how many entries of the keys each execution removes.
type removals struct {
	sizes func() int

	mu         sync.Mutex
	executions int
	most       int
	before     int
}

func (c *removals) DialHook(next redis.DialHook) redis.DialHook { return next }
func (c *removals) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (c *removals) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if !strings.HasPrefix(cmd.Name(), "eval") {
			return next(ctx, cmd)
		}
		c.mu.Lock() // one at a time
		defer c.mu.Unlock()
		err := next(ctx, cmd)
		after := c.sizes()
		c.executions++
		c.most = max(c.most, c.before-after)
		c.before = after
		return err
	}
}

// TestABatchOfDearKeysIsDecidedInParts: 25 keys from which thousands of entries have left, in one batch
// of calls of any kind. An execution removes little more than a single call does.
func TestABatchOfDearKeysIsDecidedInParts(t *testing.T) {
	raceflag.SkipSequential(t)
	t.Parallel()
	const keys, live = 25, 3
	most := map[string]int{ // the last key may be a whole one
		"ZSet": 1_000 + 503, "Hash": 1_000 + 271, "List": 250_000 + 200_000, "log of two rules": 250_000 + 200_000,
	}
	onBoth(t, func(t *testing.T, s *limitertest.Stage) {
		for _, c := range crowds() {
			if most[c.name] == 0 { // it is decided by the script of List
				continue
			}
			t.Run(c.name, func(t *testing.T) {
				if c.entries = min(c.entries, 20_000); c.name == "ZSet" { // 25 keys have enough of them together
					c.entries = 2_000
				}
				for _, kinds := range []string{"takes", "all kinds", "all", "all with a common key"} {
					s.Wipe(t)
					l := c.build(s.Client).(settling)
					names := make([]string, keys)
					for i := range names {
						names[i] = ratelimit.NameOf(l, fmt.Sprint("{t}", i))
						if i == 0 {
							c.fill(t, s, names[i], c, live)
						} else {
							require.NoError(t, s.Admin.Copy(ctx, names[0], names[i], 0, false).Err())
						}
					}
					sizes := func() int {
						total := 0
						for _, name := range names {
							total += c.size(s, name)
						}
						return total
					}
					count := &removals{sizes: sizes, before: sizes()}
					client := redis.NewClient(s.Client.(*redis.Client).Options())
					t.Cleanup(func() { _ = client.Close() })
					client.AddHook(count)
					l = c.build(client).(settling)
					beside := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(1000), 1000))
					results, errs := make([]ratelimit.Result, keys), make([]error, keys)
					var calls []func(ctx context.Context)
					for i := range keys {
						key := fmt.Sprint("{t}", i)
						calls = append(calls, func(ctx context.Context) {
							switch {
							case kinds == "all kinds" && i%4 == 1:
								results[i], errs[i] = l.Charge(ctx, key, 1)
							case kinds == "all kinds" && i%4 == 2:
								_, results[i], errs[i] = l.Estimate(ctx, key, 1)
							case kinds == "all kinds" && i%4 == 3:
								_, results[i], errs[i] = l.TryAcquireUpTo(ctx, key, 1)
							default:
								results[i], errs[i] = l.TryAcquire(ctx, key)
							}
						})
					}
					switch kinds {
					case "all", "all with a common key":
						pending := make([]int, keys)
						for i := range pending {
							pending[i] = i
						}
						for len(pending) > 0 {
							var together [][]ratelimit.Claim
							for _, i := range pending {
								user := "{t}"
								if kinds == "all" {
									user = fmt.Sprint("{t}", i)
								}
								together = append(together, []ratelimit.Claim{ratelimit.ClaimOf(l, fmt.Sprint("{t}", i), 1), ratelimit.ClaimOf(beside, user, 1)})
							}
							answers, late := ratelimit.AllMerged(t, together)
							require.False(t, late[0])
							var again []int
							for j, i := range pending {
								if late[j] {
									again = append(again, i)
								} else {
									results[i] = answers[j].Parts[0].Result
								}
							}
							pending = again
						}
					default:
						ratelimit.OneBatch(t, l, calls...)
					}
					for i := range keys {
						require.NoError(t, errs[i])
						require.True(t, results[i].Allowed)
						require.Equal(t, c.limit-live-1, results[i].Remaining)
					}
					require.Less(t, count.executions, keys, kinds)
					require.LessOrEqual(t, count.most, most[c.name], kinds)
					require.Greater(t, count.executions, 1, kinds)
				}
			})
		}
	})
}

// TestWhatElseIsDearEndsAnExecution: what keys cost beside what is removed from them. The keys behind
// are left as they were.
func TestWhatElseIsDearEndsAnExecution(t *testing.T) {
	raceflag.SkipSequential(t)
	t.Parallel()
	const keys = 25
	of := map[string]crowd{}
	for _, c := range crowds() {
		of[c.name] = c
	}
	// back gives one permit back of the entry behind which so many are.
	back := func(behind int) func(c crowd, s *limitertest.Stage, live int) string {
		return func(c crowd, s *limitertest.Stage, live int) string {
			ats := c.instants(s, live)
			return fmt.Sprintf("1g%d/0", ats[len(ats)-1-behind])
		}
	}
	take := func(crowd, *limitertest.Stage, int) string { return "1x1,1x1" }
	onBoth(t, func(t *testing.T, s *limitertest.Stage) {
		for _, test := range []struct {
			name, crowd   string
			entries, live int
			move          time.Duration // of the clock, before the lists are decided
			list          func(c crowd, s *limitertest.Stage, live int) string
		}{
			{"many entries are behind what is given back", "Hash", 0, 600, 0, back(500)},
			{"many entries are behind what is given back", "List", 0, 600, 0, back(500)},
			{"many entries are behind what is given back", "log of two rules", 0, 600, 0, back(500)},
			{"the clock stepped back", "ZSet", 0, 600, -time.Minute, take},
			{"the clock stepped back", "log", 0, 10_000, -5 * time.Millisecond, take},
			{"a long search", "log", 20_000, 1, 0, take},
			{"a long search", "log of two rules", 20_000, 1, 0, take},
		} {
			t.Run(test.crowd+", "+test.name, func(t *testing.T) {
				s.Wipe(t)
				c := of[test.crowd]
				c.entries = test.entries
				l := c.build(s.Client)
				list := test.list(c, s, test.live)
				var all, lists, names []string
				for i := range keys {
					all, lists = append(all, fmt.Sprint(i)), append(lists, list)
					names = append(names, ratelimit.NameOf(l, all[i]))
					if i == 0 {
						c.fill(t, s, names[0], c, test.live)
					} else {
						require.NoError(t, s.Admin.Copy(ctx, names[0], names[i], 0, false).Err())
					}
				}
				s.Advance(test.move)
				before := s.Look(t, names[0])
				words, err := ratelimit.DecideLists(l, all, lists, "")
				require.NoError(t, err)
				late := 0
				for late < len(words) && words[len(words)-1-late] == -2 {
					late++
				}
				require.Positive(t, late)
				require.Less(t, late, keys)
				for i, name := range names {
					if i < keys-late {
						require.NotEqual(t, before, s.Look(t, name))
					} else {
						require.Equal(t, before, s.Look(t, name))
					}
				}
				require.NotContains(t, words[:len(words)-late], int64(-2))
				require.NotContains(t, words, int64(-1))
			})
		}
	})
}

// TestHoldsOfDearKeys: leases that have ended, and a server's clock that stepped back, end an execution too.
func TestHoldsOfDearKeys(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, s *limitertest.Stage) {
		for name, until := range map[string]time.Duration{"ended leases": -time.Second, "the clock stepped back": time.Hour} {
			t.Run(name, func(t *testing.T) {
				s.Wipe(t)
				f := ratelimit.Must(ratelimit.NewInFlight(s.Client, 1_000, time.Minute))
				var members []redis.Z
				for i := range 1_000 {
					members = append(members, redis.Z{Score: float64(s.Now.Add(until).UnixMicro()), Member: fmt.Sprintf("1/A%d/60000000", i)})
				}
				var keys []string
				for i := range 25 {
					keys = append(keys, fmt.Sprint(i))
					name := ratelimit.NameOfHolds(f, keys[i])
					require.NoError(t, s.Admin.ZAdd(ctx, name, members...).Err())
					require.NoError(t, s.Admin.PExpire(ctx, name, time.Hour).Err())
				}
				words, err := ratelimit.DecideHolds(f, []byte("1000hB"), keys...)
				require.NoError(t, err)
				decided := len(words)
				for decided > 0 && words[decided-1] == -2 {
					decided--
				}
				require.NotContains(t, words[:decided], int64(-1))
				require.Positive(t, decided)
				require.Greater(t, len(words)-decided, 15)
			})
		}
	})
}

// TestAStateThatNobodyNeedsIsDeletedAtOnce, though few entries are removed otherwise: a longer window
// finds none of it.
func TestAStateThatNobodyNeedsIsDeletedAtOnce(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, s *limitertest.Stage) {
		for _, longer := range []time.Duration{time.Second, time.Minute} {
			s.Wipe(t)
			l, then := fewZSet(t, s, time.Second), fewZSet(t, s, longer)
			for _, n := range []int{8, 1, 1} {
				require.True(t, must(t)(l.TryAcquireN(ctx, "k", n)).Allowed)
				s.Advance(time.Second / 2)
			}
			require.EqualValues(t, 8, s.Admin.ZCard(ctx, ratelimit.NameOf(l, "k")).Val())
			s.Advance(time.Second/2 + 50*time.Millisecond) // the key is still there
			require.Equal(t, 10, must(t)(then.Peek(ctx, "k")).Remaining)
			require.Equal(t, 9, must(t)(then.TryAcquire(ctx, "k")).Remaining)
			require.Equal(t, 9, must(t)(then.Peek(ctx, "k")).Remaining)
			require.EqualValues(t, 1, s.Admin.ZCard(ctx, ratelimit.NameOf(l, "k")).Val())
		}
	})
}

// fewZSet returns a window that removes few entries at a time.
func fewZSet(t testing.TB, s *limitertest.Stage, window time.Duration, opts ...ratelimit.Option) *ratelimit.SlidingWindow {
	l := ratelimit.Must(ratelimit.NewSlidingWindow(s.Client, 10, window, append(opts, ratelimit.WithStorage(ratelimit.StorageZSet))...))
	require.True(t, ratelimit.RemoveFew(t, l))
	return l
}

// TestAKeyOfWhichAllWasGivenBackExpires, though permits are in it that have left the window.
func TestAKeyOfWhichAllWasGivenBackExpires(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, s *limitertest.Stage) {
		clock := limitertest.NewClock()
		move := func(to time.Duration) {
			clock.Set(limitertest.Start.Add(to))
			s.Move(limitertest.Start.Add(to))
		}
		byCaller := []ratelimit.Option{ratelimit.WithClock(clock.Now)}
		for _, test := range []struct {
			name   string
			longer time.Duration // the window of the first permits
			opts   []ratelimit.Option
			most   time.Duration
		}{
			{"one rule", time.Minute, nil, 110 * time.Millisecond},
			{"a longer one before", 2 * time.Minute, nil, 110 * time.Millisecond},
			{"callers' clocks", time.Minute, byCaller, 1110 * time.Millisecond},
		} {
			t.Run(test.name, func(t *testing.T) {
				s.Wipe(t)
				move(0)
				longer, l := fewZSet(t, s, test.longer, test.opts...), fewZSet(t, s, time.Minute, test.opts...)
				require.True(t, must(t)(longer.TryAcquireN(ctx, "k", 5)).Allowed)
				move(test.longer - 100*time.Millisecond)
				require.True(t, must(t)(l.TryAcquire(ctx, "k")).Allowed)
				move(test.longer + time.Minute - 200*time.Millisecond)
				ticket, r, err := l.Estimate(ctx, "k", 1)
				require.True(t, must(t)(r, err).Allowed)
				move(test.longer + time.Minute)
				require.NoError(t, ticket.Settle(ctx, 0))
				name := ratelimit.NameOf(l, "k")
				require.Positive(t, s.Admin.ZCard(ctx, name).Val(), "permits that have left")
				require.Equal(t, 10, must(t)(l.Peek(ctx, "k")).Remaining)
				require.LessOrEqual(t, s.Admin.PTTL(ctx, name).Val(), test.most)
			})
		}
	})
}

// TestGivingBackReadsFewMembers: of the 10,000 permits of one instant, which several tickets share, it finds
// those of a ticket by halves.
func TestGivingBackReadsFewMembers(t *testing.T) {
	server, client := limitertest.HeldServer(t)
	server.HoldClock(limitertest.Start)
	l := ratelimit.Must(ratelimit.NewSlidingWindow(client, 10_000, time.Minute, ratelimit.WithStorage(ratelimit.StorageZSet)))
	var tickets []*ratelimit.Ticket
	for _, n := range []int{1, 4_998, 2, 4_998, 1} {
		ticket, r, err := l.Estimate(ctx, "k", n)
		require.True(t, must(t)(r, err).Allowed)
		tickets = append(tickets, ticket)
	}
	left := 0
	for i, back := range map[int]int{1: 3, 3: 4_998, 0: 1, 2: 1, 4: 1} {
		require.NoError(t, client.ConfigResetStat(ctx).Err())
		require.NoError(t, tickets[i].Settle(ctx, []int{1, 4_998, 2, 4_998, 1}[i]-back))
		left += back
		require.Equal(t, left, must(t)(l.Peek(ctx, "k")).Remaining)
		stats := client.Info(ctx, "commandstats").Val()
		require.NotContains(t, stats, "zrangebyscore")
		_, reads, _ := strings.Cut(stats, "cmdstat_zrange:calls=")
		calls, _, _ := strings.Cut(reads, ",")
		n, err := strconv.Atoi(calls)
		require.NoError(t, err)
		require.LessOrEqual(t, n, 2*14+4)
	}
}

// TestATicketGivesBackOnce, if the name of the last permit stays for callers' clocks.
func TestATicketGivesBackOnce(t *testing.T) {
	onBoth(t, func(t *testing.T, s *limitertest.Stage) {
		l := ratelimit.Must(ratelimit.NewSlidingWindow(s.Client, 10, time.Minute, ratelimit.WithStorage(ratelimit.StorageZSet),
			ratelimit.WithClock(func() time.Time { return s.Now })))
		words, err := ratelimit.DecideList(l, "k", []byte("2e1"))
		require.NoError(t, err)
		ticket := ratelimit.TicketOf(l, 2, words)
		for _, want := range []int64{2, 0} {
			given, err := ratelimit.DecideList(l, "k", fmt.Appendf(nil, "2g%d/%d", ticket[0], ticket[1]))
			require.NoError(t, err)
			require.Equal(t, []int64{want}, given)
			require.Equal(t, 10, must(t)(l.Peek(ctx, "k")).Remaining)
			require.Regexp(t, `^zset \d+=1000000002/60000000@! expires$`, s.Look(t, ratelimit.NameOf(l, "k")))
		}
	})
}

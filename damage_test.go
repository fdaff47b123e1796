package ratelimit_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
)

// wrongTexts are what a damaged field, element or number may hold.
var wrongTexts = []string{"", "x", "nan", "-1", "1e300", "99999999999999999999"}

// damages are the ways to damage what a key holds: every field, element and number of it is
// deleted, and replaced by each of the wrong texts.
func damages(t *testing.T, c redis.UniversalClient, key string) map[string]func() {
	t.Helper()
	ways := map[string]func(){
		"of another type": func() {
			require.NoError(t, c.Del(ctx, key).Err())
			require.NoError(t, c.SAdd(ctx, key, "x").Err())
		},
	}
	switch c.Type(ctx, key).Val() {
	case "string":
		state := c.Get(ctx, key).Val()
		for _, number := range numbersIn(state) {
			for _, wrong := range wrongTexts {
				damaged := state[:number[0]] + wrong + state[number[1]:]
				ways[fmt.Sprintf("%q", damaged)] = func() { require.NoError(t, c.Set(ctx, key, damaged, redis.KeepTTL).Err()) }
			}
		}
		for _, damaged := range []string{" " + state, state + " ", state + ".0", state + "e0", "0" + state, state + state, "@", "1/2/3@", "1/2-3@"} {
			ways[fmt.Sprintf("%q", damaged)] = func() { require.NoError(t, c.Set(ctx, key, damaged, redis.KeepTTL).Err()) }
		}
	case "hash":
		for field := range c.HGetAll(ctx, key).Val() {
			ways["without "+field] = func() { require.NoError(t, c.HDel(ctx, key, field).Err()) }
			for _, wrong := range append(wrongTexts, "5/", "/5", "nan/1", "1/nan") {
				ways[field+" "+strconv.Quote(wrong)] = func() { require.NoError(t, c.HSet(ctx, key, field, wrong).Err()) }
			}
		}
		ways["without first and last"] = func() { require.NoError(t, c.HDel(ctx, key, "first", "last").Err()) }
	case "list":
		for i := range c.LLen(ctx, key).Val() {
			for _, wrong := range wrongTexts {
				ways[fmt.Sprintf("%d %q", i, wrong)] = func() { require.NoError(t, c.LSet(ctx, key, i, wrong).Err()) }
			}
		}
		ways["without the first"] = func() { require.NoError(t, c.LPop(ctx, key).Err()) }
		ways["without the last"] = func() { require.NoError(t, c.RPop(ctx, key).Err()) }
		ways["of one element"] = func() { require.NoError(t, c.LTrim(ctx, key, 0, 0).Err()) }
	case "zset":
		members := c.ZRangeWithScores(ctx, key, 0, -1).Val()
		for i, m := range members {
			name := m.Member.(string)
			parts := strings.Split(name, "/")
			for part := range parts {
				for _, wrong := range wrongTexts {
					ways[fmt.Sprintf("%d, part %d %q", i, part, wrong)] = func() {
						wrongly := slices.Clone(parts)
						wrongly[part] = wrong
						require.NoError(t, c.ZRem(ctx, key, name).Err())
						require.NoError(t, c.ZAdd(ctx, key, redis.Z{Member: strings.Join(wrongly, "/"), Score: m.Score}).Err())
					}
				}
			}
			for _, score := range []float64{-1, 0, 1e300} {
				ways[fmt.Sprintf("%d score %v", i, score)] = func() {
					require.NoError(t, c.ZAdd(ctx, key, redis.Z{Member: name, Score: score}).Err())
				}
			}
		}
	}
	return ways
}

// numbersIn says where the numbers of a text are.
func numbersIn(text string) (all [][2]int) {
	from := -1
	for i, c := range text + "." {
		switch digit := c >= '0' && c <= '9'; {
		case digit && from < 0:
			from = i
		case !digit && from >= 0:
			all = append(all, [2]int{from, i})
			from = -1
		}
	}
	return all
}

// claims makes a claim on a limiter.
type claims func(key string, n int) ratelimit.Claim

// A damaged is a limiter of 3 a second whose key is damaged, of each way to keep a state.
type damaged struct {
	name  string
	key   string
	build func(c ratelimit.Client, o ...ratelimit.Option) claims
}

func damagedLimiters(t *testing.T) []damaged {
	all := []damaged{{"InFlight", "ratelimit:damaged:inflight{k}", func(c ratelimit.Client, o ...ratelimit.Option) claims {
		l := ratelimit.Must(ratelimit.NewInFlight(c, 3, time.Minute, append(o, ratelimit.WithName("damaged"))...))
		return func(key string, n int) ratelimit.Claim { return ratelimit.ClaimHold(l, key, n) }
	}}}
	for _, v := range limitertest.Variants() {
		if v.Name == "TokenBucket in an All" || strings.HasSuffix(v.Name, "headroom") {
			continue
		}
		all = append(all, damaged{v.Name, strings.Replace(v.Key, "default", "damaged", 1), func(c ratelimit.Client, o ...ratelimit.Option) claims {
			l, err := v.Build(c, append(o, ratelimit.WithName("damaged"))...)
			require.NoError(t, err)
			return func(key string, n int) ratelimit.Claim { return ratelimit.ClaimOf(l, v.Of(key), n) }
		}})
	}
	return all
}

// everything is all that Redis holds.
func everything(t *testing.T, s *limitertest.Stage) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, key := range s.Admin.Keys(ctx, "*").Val() {
		if state := s.Look(t, key); !strings.HasPrefix(state, "none") { // otherwise it has expired, which some servers notice only now
			all[key] = state
		}
	}
	return all
}

// TestARequestThatFindsAKeyDamagedTakesNothing: the state of each algorithm, damaged in each
// place, in front of, between and behind the keys of other limiters, for calls that are
// allowed and calls that are denied. Whatever a limiter makes of it, a call that fails
// changes no key, and its error is ErrCorruptState.
func TestARequestThatFindsAKeyDamagedTakesNothing(t *testing.T) {
	raceflag.Skip(t)
	for name, stage := range map[string]func(testing.TB) *limitertest.Stage{"miniredis": limitertest.OnMiniredis, "Redis": limitertest.OnRedis} {
		t.Run(name, func(t *testing.T) {
			s := stage(t)
			// In a script the limiters stand in the order of their algorithms' names.
			bucket := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerHour(1), 100, s.Opts...))
			window := ratelimit.Must(ratelimit.NewSlidingWindow(s.Client, 100, time.Hour, append(s.Opts, ratelimit.WithStorage(ratelimit.StorageZSet))...))
			log := ratelimit.Must(ratelimit.NewSlidingLog(s.Client, []ratelimit.Rule{{Limit: 100, Window: time.Hour}, {Limit: 200, Window: 2 * time.Hour}}, s.Opts...))
			for _, d := range damagedLimiters(t) {
				t.Run(d.name, func(t *testing.T) {
					failed, decided := 0, 0
					check := func(claim claims, taken, n int, later time.Duration, way string) (ways []string) {
						s.Wipe(t)
						for range taken {
							r, err := ratelimit.TryAcquireAll(ctx, claim("k", 1), ratelimit.ClaimOf(bucket, "k", 1), ratelimit.ClaimOf(window, "k", 1), ratelimit.ClaimOf(log, "k", 1))
							require.NoError(t, err)
							require.True(t, r.Allowed)
							s.Advance(100 * time.Millisecond)
						}
						s.Advance(later)
						if s.MaxSkew > 0 { // the server's clock goes on, and the caller's decides
							require.NoError(t, s.Admin.PExpire(ctx, d.key, time.Hour).Err())
						}
						all := damages(t, s.Admin, d.key)
						if way == "" {
							for way := range all {
								ways = append(ways, way)
							}
							slices.Sort(ways)
							return ways
						}
						all[way]()
						about := fmt.Sprintf("%s: %s, %d after %d", d.name, way, n, taken)
						before := everything(t, s)
						_, err := ratelimit.Look(ctx, ratelimit.ClaimOf(bucket, "k", 1), claim("k", n), ratelimit.ClaimOf(log, "k", 1))
						if err != nil {
							require.ErrorIs(t, err, ratelimit.ErrCorruptState, about)
						}
						require.Equal(t, before, everything(t, s), about)
						_, err = ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(window, "k", 1), claim("k", n), ratelimit.ClaimOf(bucket, "k", 1), ratelimit.ClaimOf(log, "k", 1))
						if err == nil {
							decided++
							return nil
						}
						failed++
						require.ErrorIs(t, err, ratelimit.ErrCorruptState, about)
						require.Equal(t, before, everything(t, s), about)
						return nil
					}
					l := d.build(s.Client, s.Opts...)
					for _, call := range []struct {
						taken, n int
						later    time.Duration
					}{{2, 1, 0}, {3, 3, 0}, {2, 1, 750 * time.Millisecond}} {
						for _, way := range check(l, call.taken, call.n, call.later, "") {
							check(l, call.taken, call.n, call.later, way)
						}
					}
					require.Positive(t, failed)
					t.Log(failed, "failed,", decided, "decided")
				})
			}
		})
	}
}

// TestMergedRequestsBesideADamagedLogTakeWhatIsAnswered: of requests for one log that is
// damaged somewhere, which are decided in one execution, those that are allowed take from the
// log and from the limiter beside it, and those that fail or are denied from neither.
func TestMergedRequestsBesideADamagedLogTakeWhatIsAnswered(t *testing.T) {
	for name, stage := range map[string]func(testing.TB) *limitertest.Stage{"miniredis": limitertest.OnMiniredis, "Redis": limitertest.OnRedis} {
		t.Run(name, func(t *testing.T) {
			s := stage(t)
			bucket := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerHour(1), 100, s.Opts...))
			for _, k := range limitertest.Kinds() {
				total := map[string]func(key string) string{
					"SlidingWindow Hash":      func(key string) string { return s.Admin.HGet(ctx, key, "total").Val() },
					"SlidingWindow List":      func(key string) string { return s.Admin.LIndex(ctx, key, -1).Val() },
					"SlidingLog":              func(key string) string { return s.Admin.LIndex(ctx, key, -1).Val() },
					"SlidingLog of two rules": func(key string) string { return s.Admin.LIndex(ctx, key, -1).Val() },
				}[k.Name]
				if total == nil {
					continue
				}
				l, err := k.Build(s.Client, 8, time.Second, append(slices.Clone(s.Opts), ratelimit.WithName("damaged"))...)
				require.NoError(t, err)
				mixed := 0
				key := ""
				fill := func() map[string]func() {
					s.Wipe(t)
					for range 5 {
						require.True(t, must(t)(l.TryAcquire(ctx, k.Of("k"))).Allowed)
						s.Advance(100 * time.Millisecond)
					}
					key = s.Admin.Keys(ctx, "*").Val()[0]
					if s.MaxSkew > 0 {
						require.NoError(t, s.Admin.PExpire(ctx, key, time.Hour).Err())
					}
					return damages(t, s.Admin, key)
				}
				for _, way := range slices.Sorted(maps.Keys(fill())) {
					fill()[way]()
					about := k.Name + ": " + way
					before := total(key)
					untouched := s.Look(t, key)
					var calls [][]ratelimit.Claim
					for i, n := range []int{1, 7, 1, 6, 1, 2} { // the second, the fourth and the last are too many
						calls = append(calls, []ratelimit.Claim{ratelimit.ClaimOf(l, k.Of("k"), n), ratelimit.ClaimOf(bucket, fmt.Sprint("user", i), n)})
					}
					answers, failed := ratelimit.AllMerged(t, calls)
					taken := 0
					for i, n := range []int{1, 7, 1, 6, 1, 2} {
						want := 100
						if answers[i].Allowed {
							taken += n
							want -= n
						}
						require.Equal(t, want, must(t)(bucket.Peek(ctx, fmt.Sprint("user", i))).Remaining, "%s: request %d of %v, %v", about, i, answers, failed)
					}
					if taken == 0 {
						require.Equal(t, untouched, s.Look(t, key), about)
						continue
					}
					was, err := strconv.Atoi(before)
					require.NoError(t, err, about)
					require.Equal(t, strconv.Itoa(was+taken), total(key), about)
					if slices.Contains(failed, true) {
						mixed++
					}
				}
				require.Positive(t, mixed, k.Name)
			}
		})
	}
}

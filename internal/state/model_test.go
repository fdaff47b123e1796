package state_test

import (
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/algorithms"
	"github.com/tryacquire/ratelimit/internal/keyname"
	"github.com/tryacquire/ratelimit/internal/state"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
	"github.com/tryacquire/ratelimit/simulate"
)

// TestReadsWhatLimitersSee: after random calls, a state has as many permits used as the limiter that wrote
// it, and is empty when that says so.
func TestReadsWhatLimitersSee(t *testing.T) {
	raceflag.SkipSequential(t)
	configurations := limitertest.Rounds(20, 3)
	for _, f := range limitertest.Families() {
		t.Run(f.Name, func(t *testing.T) {
			t.Parallel()
			rng := model.Seeded(limitertest.Seed(t))
			server := miniredis.RunT(t)
			server.ClockTTL(true)
			client := redis.NewClient(&redis.Options{Addr: server.Addr()})
			defer client.Close()
			used := 0
			for range configurations {
				server.FlushAll()
				at := limitertest.Start
				server.SetTime(at)
				p, err := f.Draw(rng, client)
				require.NoError(t, err)
				shape := model.ShapeOf(p.Model(), false)
				shape.Start = at.UnixMicro()
				scenario := model.NewScenario(rng, shape)
				var last model.Answer
				for i := range 100 {
					step := scenario.Next(last)
					now := time.UnixMicro(step.Now - step.Now%1000) // miniredis cuts TTLs to milliseconds
					if now.Year() > 2200 {
						break
					}
					server.SetTime(now)
					got, err := p.Limiter.TryAcquireN(t.Context(), "k", step.N)
					require.NoError(t, err)
					last = model.Answer{Allowed: got.Allowed, Window: got.Window, Remaining: got.Remaining, RetryAfter: got.RetryAfter, ResetAfter: got.ResetAfter}
					server.SetTime(now.Add(time.Duration(rng.Int64N(2*got.Window.Milliseconds()+1)) * time.Millisecond / 4))

					want, err := p.Limiter.Peek(t.Context(), "k")
					require.NoError(t, err)
					keys := server.Keys()
					if len(keys) == 0 {
						continue
					}
					states, err := state.Read(t.Context(), client, keys, 512)
					require.NoError(t, err)
					s := states[0]
					require.NoError(t, s.Err)
					require.True(t, s.Exists)
					require.False(t, s.AtMost)
					if log, ok := p.Simulated.(simulate.SlidingLog); ok && len(log.Rules) > 1 { // want may be of a shorter window
						require.GreaterOrEqual(t, int(s.Used), want.Limit-want.Remaining)
						want.Remaining = want.Limit - int(s.Used)
					}
					if b, ok := p.Simulated.(simulate.TokenBucket); ok && b.Aligned { // the state does not say so: by it steps come later, and at the latest when the key ends
						require.GreaterOrEqual(t, int(s.Used), want.Limit-want.Remaining)
						require.GreaterOrEqual(t, s.Empty, want.ResetAfter)
						continue
					}
					if int(s.Used) != want.Limit-want.Remaining || s.Empty != want.ResetAfter {
						text, _ := state.RawText(t.Context(), client, keys[0])
						require.Equal(t, want, s, "%s, step %d: %s", p.About, i, text)
					}
					if s.Used > 0 {
						used++
					}
				}
			}
			require.Greater(t, used, configurations*10)
		})
	}
}

// TestReadsStatesOfCallersClocks: of clocks that agree with the server's.
func TestReadsStatesOfCallersClocks(t *testing.T) {
	server := miniredis.RunT(t)
	server.ClockTTL(true)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	for _, v := range limitertest.Variants() {
		server.FlushAll()
		server.SetTime(limitertest.Start)
		stage := limitertest.OnClock(client, client)
		l, err := v.Build(stage.Client, stage.Opts...)
		require.NoError(t, err)
		for taken := range 3 {
			_, err = l.TryAcquire(t.Context(), v.Of("k"))
			require.NoError(t, err)
			stage.Advance(10 * time.Millisecond)
			server.SetTime(stage.Now)
			want, err := l.Peek(t.Context(), v.Of("k"))
			require.NoError(t, err)
			states, err := state.Read(t.Context(), client, []string{keyname.Limit(v.Key)}, 512)
			require.NoError(t, err)
			require.NoError(t, states[0].Err, v.Name)
			require.True(t, states[0].CallersClock, v.Name)
			require.EqualValues(t, taken+1, states[0].Used, v.Name)
			require.Equal(t, want.ResetAfter, states[0].Empty, v.Name)
		}
	}
}

// TestReadsWhatIsGivenBack: by a caller's clock, a log keeps the instant of what was given back.
func TestReadsWhatIsGivenBack(t *testing.T) {
	server := miniredis.RunT(t)
	server.ClockTTL(true)
	server.SetTime(limitertest.Start)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	for _, v := range limitertest.Variants() {
		for _, before := range []int{0, 1} {
			server.FlushAll()
			stage := limitertest.OnClock(client, client)
			built, err := v.Build(stage.Client, stage.Opts...)
			require.NoError(t, err)
			l, ok := built.(ratelimit.Settler)
			if !ok {
				continue // an All has claims instead
			}
			if before > 0 {
				_, err := l.Charge(t.Context(), v.Of("k"), before)
				require.NoError(t, err)
			}
			ticket, _, err := l.Estimate(t.Context(), v.Of("k"), 1)
			require.NoError(t, err)
			require.NoError(t, ticket.Settle(t.Context(), 0))
			states, err := state.Read(t.Context(), client, []string{keyname.Limit(v.Key)}, 512)
			require.NoError(t, err)
			require.NoError(t, states[0].Err, v.Name)
			require.EqualValues(t, before, states[0].Used, "%s after %d", v.Name, before)
			require.Equal(t, before > 0, states[0].Empty > 0, v.Name)
		}
	}
}

// TestSaysWhatIsNoState: of each variant, and of keys of other types.
func TestSaysWhatIsNoState(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	for _, v := range limitertest.Variants() {
		s.Wipe(t)
		if v.Corrupt != nil {
			require.NoError(t, v.Corrupt(s.Admin, v.Key))
			states, err := state.Read(t.Context(), s.Admin, []string{v.Key}, 512)
			require.NoError(t, err)
			require.EqualError(t, states[0].Err, "it holds no state of a "+state.Kind(states[0].Parts.Algorithm), v.Name)
		}
		s.Wipe(t)
		require.NoError(t, s.Admin.SAdd(t.Context(), v.Key, "x").Err())
		states, err := state.Read(t.Context(), s.Admin, []string{v.Key, "session:42"}, 512)
		require.NoError(t, err)
		require.ErrorContains(t, states[0].Err, "WRONGTYPE")
		require.EqualError(t, states[1].Err, "it is no name of a limiter's key, as ratelimit:default:tokenbucket{user:42} is")
	}
}

// TestReadsPartsOfLogs: of the entries that have left the window, as many as are read are left out.
func TestReadsPartsOfLogs(t *testing.T) {
	const entries, apart = 1000, time.Millisecond
	s := limitertest.OnMiniredis(t)
	for name, l := range map[string]ratelimit.Limiter{
		"slidinglog":         ratelimit.Must(ratelimit.NewSlidingLog(s.Client, []ratelimit.Rule{{Limit: entries, Window: entries * apart}})),
		"slidingwindow-list": ratelimit.Must(ratelimit.NewSlidingWindow(s.Client, entries, entries*apart, ratelimit.WithSubWindows(entries))),
		"slidingwindow-hash": ratelimit.Must(ratelimit.NewSlidingWindow(s.Client, entries, entries*apart, ratelimit.WithSubWindows(entries), ratelimit.WithStorage(ratelimit.StorageHash))),
		"slidingwindow-zset": ratelimit.Must(ratelimit.NewSlidingWindow(s.Client, entries, entries*apart, ratelimit.WithStorage(ratelimit.StorageZSet))),
	} {
		s.Wipe(t)
		for range entries {
			_, err := l.TryAcquire(t.Context(), "k")
			require.NoError(t, err)
			s.Advance(apart)
		}
		for _, look := range []struct {
			after    time.Duration
			used     int64
			atMost   bool
			inSorted int64 // ZCOUNT is exact
		}{
			{300*apart - time.Microsecond, 1000 - 300, false, 1000 - 300},
			{300 * apart, 1000 - 512, true, 1000 - 600},
			{400 * apart, 0, false, 0},
		} {
			s.Advance(look.after)
			states, err := state.Read(t.Context(), s.Admin, []string{"ratelimit:default:" + name + "{k}"}, 512)
			require.NoError(t, err)
			require.NoError(t, states[0].Err)
			if name == "slidingwindow-zset" {
				look.used, look.atMost = look.inSorted, false
			}
			require.Equal(t, look.atMost, states[0].AtMost, "%s after %v", name, look.after)
			require.Equal(t, look.used, states[0].Used, "%s after %v", name, look.after)
		}
	}
}

func TestReadsWhatIsHeld(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	f := ratelimit.Must(ratelimit.NewInFlight(s.Client, 5, time.Minute))
	hold, _, err := f.TryAcquireN(t.Context(), "k", 2)
	require.NoError(t, err)
	s.Advance(10 * time.Second)
	_, _, err = f.TryAcquire(t.Context(), "k")
	require.NoError(t, err)
	words := func() string {
		states, err := state.Read(t.Context(), s.Admin, []string{"ratelimit:default:inflight{k}"}, 512)
		require.NoError(t, err)
		return states[0].Words()
	}
	require.Equal(t, "3 permits are held; the last lease ends in 1m, if none is extended. The last lease: 1m.", words())
	require.NoError(t, hold.Release(t.Context()))
	require.Equal(t, "1 permit is held; the last lease ends in 1m, if none is extended. The last lease: 1m.", words())
	s.Advance(time.Minute)
	require.Equal(t, "Nothing is used any more. The last lease: 1m.", words())
	s.Advance(time.Hour)
	require.Equal(t, "There is no key: nothing is used.", words())
}

// FuzzRead: whatever a key holds, what is read of it keeps its bounds.
func FuzzRead(f *testing.F) {
	server := miniredis.RunT(f)
	server.ClockTTL(true)
	server.SetTime(limitertest.Start)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	f.Cleanup(func() { _ = client.Close() })
	for _, text := range []string{
		"2000013", "999999", "9000999999", "2/1763670000000000/1000000@1000", "2/-1763670000000000/9007199254740992", "2/1763670000100000-1763670001000000@1000",
		"1763670000100000/1700000/1000000/3", "1763670000000000/2+0/1000000/3/1000000@!5", "9999999999999999/9007199254740992+1/9007199254740992/1/9007199254740992",
		"1000000/25000@ 1000000/9007199254740992! 0 1763670000024999 1 1763670000124999 2", "1/1 0 0 1 9007199254740992 9007199254740992", "1/1 0 0 1 2000000000000000 0 0",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		server.FlushAll()
		var names []string
		for _, id := range algorithms.IDs() {
			name := string(keyname.NewHead("ratelimit", "n", id).Of("k"))
			names = append(names, name)
			words := strings.Split(text, " ")
			switch id {
			case algorithms.SlidingLog, algorithms.SlidingWindowList:
				_, _ = server.RPush(name, words...)
			case algorithms.SlidingWindowHash:
				for i, field := range []string{"rule", "base", "oldest", "total", "instant", "first", "last"} {
					server.HSet(name, field, words[i%len(words)])
				}
			case algorithms.SlidingWindowZSet, algorithms.InFlight:
				_, _ = server.ZAdd(name, 1763670000124999, text)
			default:
				_ = server.Set(name, text)
			}
		}
		states, err := state.Read(t.Context(), client, names, 10)
		require.NoError(t, err)
		for _, s := range states {
			require.GreaterOrEqual(t, s.Used, int64(0), s.Name)
			require.GreaterOrEqual(t, s.Empty, time.Duration(0), s.Name)
			require.GreaterOrEqual(t, s.Promised, time.Duration(0), s.Name)
			require.NotEmpty(t, s.Words())
			if s.Err != nil {
				require.Zero(t, s.Used, s.Name)
			}
		}
	})
}

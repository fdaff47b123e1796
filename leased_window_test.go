package ratelimit_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/redisexec"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
	"github.com/tryacquire/ratelimit/internal/testing/quotaslices"
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
	"github.com/tryacquire/ratelimit/ratelimittest"
)

// TestWindowScriptsLeaseAsTheSearchedModel replays histories of internal/testing/quotaslices on the scripts of fixed windows
// that open with their first permit: those whose key's TTL is the end, and those of larger limits, whose state has the start.
func TestWindowScriptsLeaseAsTheSearchedModel(t *testing.T) {
	one, two := []quotaslices.Rule{{Limit: 3, Span: 4}}, []quotaslices.Rule{{Limit: 3, Span: 6}, {Limit: 3, Span: 3}}
	for name, w := range map[string]quotaslices.Window{
		"one rule":              {Rules: one, Longs: []int8{1, 2}, Steps: []int8{-1, -3}},
		"two rules":             {Rules: two, Longs: []int8{1, 2}},
		"two rules, the clock":  {Rules: two, Longs: []int8{2}, Steps: []int8{-2}},
		"one rule, and returns": {Rules: one, Longs: []int8{1, 2}, Returns: true},
	} {
		for kind, scale := range map[string]int{"counted": 1, "dated": 500_000_000} {
			t.Run(name+", "+kind, func(t *testing.T) {
				t.Parallel()
				w, rng := w, model.Seeded(limitertest.Seed(t))
				broken := w
				broken.Unmarked = true
				histories := []quotaslices.History{quotaslices.Search(quotaslices.Scope{Calls: 3, Pause: 7, Algorithm: &broken}).History}
				found := quotaslices.Search(quotaslices.Scope{Calls: 4, Pause: 5, Algorithm: &w})
				require.Zero(t, found.Excess)
				for range limitertest.Rounds(5_000, 100) {
					histories = append(histories, found.Number(rng.IntN(found.Len())))
				}
				p := newWindowReplay(t, &w, scale)
				for _, h := range histories {
					p.play(t, h)
				}
			})
		}
	}
}

// A windowReplay plays histories on miniredis, by its clock.
type windowReplay struct {
	model   *quotaslices.Window
	scale   int // permits for each one of the model
	server  *miniredis.Miniredis
	windows []*ratelimit.FixedWindow
	now     time.Time
}

func newWindowReplay(t *testing.T, w *quotaslices.Window, scale int) *windowReplay {
	server := miniredis.RunT(t)
	server.ClockTTL(true)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	p := &windowReplay{model: w, scale: scale, server: server}
	for _, r := range w.Rules {
		p.windows = append(p.windows, ratelimit.Must(ratelimit.NewFixedWindow(client, scale*r.Limit, time.Duration(r.Span)*leaseTick)))
	}
	return p
}

func (p *windowReplay) play(t *testing.T, h quotaslices.History) {
	p.server.FlushAll()
	p.now = limitertest.Start
	p.server.SetTime(p.now)
	player := quotaslices.Player{Algorithm: p.model}
	var held []replayedSlice
	operate := func(rule int8, o redisexec.Operation) []int64 {
		words, err := ratelimit.OperateWindow(p.windows[rule], windowKey, o)
		require.NoError(t, err)
		return words
	}
	for i, m := range h {
		want := player.Play(m)
		p.pass(int(m.Pause))
		n := int(m.N) * p.scale
		switch m.Op {
		case quotaslices.Plain:
			words := operate(m.Rule, redisexec.Operation{Op: redisexec.Take, N: n, Times: 1})
			require.Equal(t, want, words[0] > 0, "%v: move %d", h, i)
			if want {
				held = append(held, replayedSlice{})
			}
		case quotaslices.Lease:
			waiting, long := 0, time.Hour // so that it gets all or nothing, as in the model
			if m.Long > 0 {
				long = time.Duration(m.Long)*leaseTick - 2*time.Millisecond // its end and that of a tick are not the same
			}
			if want {
				waiting = n
			}
			words := operate(m.Rule, redisexec.Operation{Op: redisexec.Lease, N: n, Times: 1, Detail: &redisexec.Detail{
				Waiting: waiting, Longest: long.Microseconds(), Epoch: 2,
			}})
			if want {
				require.Equal(t, int64(n), words[1], "%v: move %d", h, i)
				require.LessOrEqual(t, words[0], long.Microseconds())
				held = append(held, replayedSlice{m.Rule, m.N, words[len(words)-2], words[len(words)-1]})
			} else {
				require.Zero(t, words[0], "%v: move %d", h, i) // beyond the model: permits to be used at once
				return
			}
		case quotaslices.Return:
			if s := &held[m.Of]; want {
				operate(s.rule, redisexec.Operation{Op: redisexec.GiveBack, N: n, Times: 1, Detail: &redisexec.Detail{Where: s.where, Which: s.which}})
				if s.n -= m.N; s.n == 0 {
					held = append(held[:m.Of], held[m.Of+1:]...)
				}
			}
		case quotaslices.Step:
			p.pass(int(m.N))
			unused := true
			for rule, r := range p.model.Rules {
				unused = unused && player.Remaining(rule) == r.Limit
			}
			if unused { // a dated key is kept some milliseconds longer than in the model
				p.server.FlushAll()
			}
		}
		if m.Op == quotaslices.Plain || m.Op == quotaslices.Lease { // windows that are closed have no uses in the model
			held = held[max(len(held)-player.Uses(), 0):]
		}
		for rule, l := range p.windows {
			r, err := l.Peek(ctx, windowKey)
			require.NoError(t, err)
			state, _ := p.server.Get(windowName)
			require.Equal(t, player.Remaining(rule)*p.scale, r.Remaining, "%v: after move %d, rule %d, %q", h, i, rule, state)
		}
	}
}

const (
	windowKey  = "k"
	windowName = "ratelimit:default:fixedwindow{k}"
)

// pass moves the server's clock. Redis keeps the instant at which a key expires.
func (p *windowReplay) pass(n int) {
	from, d := p.server.TTL(windowName), time.Duration(n)*leaseTick
	p.now = p.now.Add(d)
	p.server.SetTime(p.now)
	if n < 0 && from > 0 {
		p.server.SetTTL(windowName, from-d)
	}
}

// TestAWindowWhoseSlicesAreOut: what the state says, until when no shorter rule begins the count again, and what comes back.
func TestAWindowWhoseSlicesAreOut(t *testing.T) {
	for name, test := range map[string]struct {
		long, short func(c ratelimit.Client) ratelimit.Limiter // 100 permits in each
		start       time.Time
		marks       string // at the end of the state
	}{
		"from the first permit": {
			func(c ratelimit.Client) ratelimit.Limiter {
				return ratelimit.Must(ratelimit.NewFixedWindow(c, 100, 8*time.Second))
			},
			func(c ratelimit.Client) ratelimit.Limiter {
				return ratelimit.Must(ratelimit.NewFixedWindow(c, 100, time.Second))
			},
			limitertest.Start, "~5999",
		},
		"aligned": {
			func(c ratelimit.Client) ratelimit.Limiter {
				return ratelimit.Must(ratelimit.NewFixedWindow(c, 100, 8*time.Second, ratelimit.WithAlignment(0)))
			},
			func(c ratelimit.Client) ratelimit.Limiter {
				return ratelimit.Must(ratelimit.NewFixedWindow(c, 100, time.Second, ratelimit.WithAlignment(0)))
			},
			time.Unix(1_763_670_400, 0), "~2000000",
		},
		"calendar": {
			func(c ratelimit.Client) ratelimit.Limiter {
				return ratelimit.Must(ratelimit.NewCalendarWindow(c, 100, ratelimit.Monthly(1, time.UTC)))
			},
			func(c ratelimit.Client) ratelimit.Limiter {
				return ratelimit.Must(ratelimit.NewCalendarWindow(c, 100, ratelimit.Daily(time.UTC)))
			},
			time.Date(2025, 11, 20, 23, 59, 59, 0, time.UTC), "~2000000",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := limitertest.OnMiniredis(t)
			s.Move(test.start)
			long, short := test.long(s.Client), test.short(s.Client)
			lease := func(list string) []int64 {
				words, err := ratelimit.DecideList(long, "k", []byte(list))
				require.NoError(t, err)
				return words
			}
			words := lease("40d1/2000000/2000000/77") // a quarter of what is left
			require.Equal(t, []int64{2_000_000, 25}, words[:2])
			where, which := words[len(words)-2], words[len(words)-1]
			keys := s.Admin.Keys(ctx, "*").Val()
			require.Len(t, keys, 1)
			require.Contains(t, s.Admin.Get(ctx, keys[0]).Val(), test.marks)
			require.Equal(t, 75, must(t)(short.Peek(ctx, "k")).Remaining)

			s.Advance(1500 * time.Millisecond)
			r := must(t)(short.TryAcquireN(ctx, "k", 80))
			require.False(t, r.Allowed, "without the mark its next window would have begun")
			require.InDelta(t, float64(500*time.Millisecond), float64(r.RetryAfter), float64(2*time.Millisecond))
			require.True(t, must(t)(long.TryAcquireN(ctx, "k", 5)).Allowed)
			require.Equal(t, 70, must(t)(long.Peek(ctx, "k")).Remaining)

			back := strconv.Itoa(10) + "g" + strconv.FormatInt(where, 10) + "/" + strconv.FormatInt(which, 10)
			require.Equal(t, []int64{10}, lease(back))
			require.Equal(t, 80, must(t)(long.Peek(ctx, "k")).Remaining)

			s.Advance(600 * time.Millisecond) // the slices are over
			require.Equal(t, 80, must(t)(long.Peek(ctx, "k")).Remaining)
			if name != "calendar" { // there, the permits that were taken on this day count
				require.Equal(t, 100, must(t)(short.Peek(ctx, "k")).Remaining)
			}

			require.True(t, must(t)(long.TryAcquireN(ctx, "k", 78)).Allowed)
			for _, want := range []int64{1, 1, 0} { // a slice for which nobody waits
				require.Equal(t, []int64{want * 1_000_000, want}, lease("40d0/1000000/1000000/78")[:2])
			}
		})
	}
}

// TestProcessesWithSlicesKeepAWindow: three processes and a plain caller together use a window up, and not one permit more.
func TestProcessesWithSlicesKeepAWindow(t *testing.T) {
	raceflag.SkipSequential(t)
	s := limitertest.OnMiniredis(t)
	s.Move(time.Now())
	for name, l := range map[string]ratelimit.Limiter{
		"fixed":    ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 2000, time.Hour, ratelimit.WithName("fixed"))),
		"aligned":  ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 2000, 1000*time.Hour, ratelimit.WithAlignment(0), ratelimit.WithName("aligned"))),
		"calendar": ratelimit.Must(ratelimit.NewCalendarWindow(s.Client, 2000, ratelimit.Monthly(1, time.UTC))),
	} {
		var processes []*ratelimit.Leased
		for range 3 {
			processes = append(processes, ratelimit.Must(ratelimit.NewLeased(l)))
		}
		taken, here := 0, 0
		for i := range 4000 {
			var by ratelimit.Limiter = l
			if i%10 != 0 {
				by = processes[i%3]
			}
			r := must(t)(by.TryAcquire(ctx, "k"))
			require.Equal(t, 2000, r.Limit, name)
			require.Equal(t, must(t)(l.Peek(ctx, "k")).Window, r.Window, name)
			if r.Allowed {
				taken++
				if r.Leased {
					here++
				}
			}
		}
		require.LessOrEqual(t, taken, 2000, name)
		require.Greater(t, here, 1000, name)
		for _, p := range processes {
			require.NoError(t, p.Close(ctx))
		}
		for must(t)(l.TryAcquire(ctx, "k")).Allowed { // all that was held has come back
			taken++
		}
		require.Equal(t, 2000, taken, name)
	}
}

// TestSlicesOfAWindowAreAWindows: a call by several claims says of what the permits are, as a look does.
func TestSlicesOfAWindowAreAWindows(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	for _, l := range []ratelimit.Limiter{
		ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 9, time.Hour)),
		ratelimit.Must(ratelimit.NewCalendarWindow(s.Client, 9, ratelimit.Daily(time.UTC))),
		ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerHour(9), 9)),
	} {
		claim := ratelimit.ClaimOf(ratelimit.Must(ratelimit.NewLeased(l)), "k", 1)
		look, err := ratelimit.Look(ctx, claim)
		require.NoError(t, err)
		call, err := ratelimit.TryAcquireAll(ctx, claim)
		require.NoError(t, err)
		look.Result, look.Parts[0].Result = call.Result, call.Parts[0].Result
		require.Equal(t, look, call, "%T", l)
	}
}

// TestAProcessUsesAWindowUp: the last permits are allowed too, when slices are asked for ahead of calls.
func TestAProcessUsesAWindowUp(t *testing.T) {
	for name, build := range map[string]func(c ratelimit.Client) (ratelimit.Limiter, error){
		"fixed": func(c ratelimit.Client) (ratelimit.Limiter, error) {
			return ratelimit.NewFixedWindow(c, 1000, time.Minute)
		},
		"aligned": func(c ratelimit.Client) (ratelimit.Limiter, error) {
			return ratelimit.NewFixedWindow(c, 1000, 24*time.Hour, ratelimit.WithAlignment(0))
		},
		"calendar": func(c ratelimit.Client) (ratelimit.Limiter, error) {
			return ratelimit.NewCalendarWindow(c, 1000, ratelimit.Daily(time.UTC))
		},
		"sliding": func(c ratelimit.Client) (ratelimit.Limiter, error) {
			return ratelimit.NewSlidingWindow(c, 1000, time.Minute, ratelimit.WithSubWindows(4))
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *ratelimittest.Env) {
				l, here := ratelimit.Must(ratelimit.NewLeased(ratelimit.Must(build(e.Client())))), 0
				for i := range 1000 {
					e.Advance(time.Millisecond)
					r := must(t)(l.TryAcquire(ctx, "k"))
					require.True(t, r.Allowed, "call %d: %v", i, r)
					if r.Leased {
						here++
					}
				}
				require.Greater(t, here, 800)
				require.False(t, must(t)(l.TryAcquire(ctx, "k")).Allowed)
			})
		})
	}
}

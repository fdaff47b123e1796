package ratelimit_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
	"github.com/tryacquire/ratelimit/internal/testing/quotaslices"
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
	"github.com/tryacquire/ratelimit/internal/windows"
	"github.com/tryacquire/ratelimit/ratelimittest"
)

var (
	oneLog   = []quotaslices.Rule{{Limit: 3, Span: 6, Slot: 3}}
	twoLogs  = []quotaslices.Rule{{Limit: 3, Span: 6, Slot: 3}, {Limit: 4, Span: 6, Slot: 2}}
	twoSpans = []quotaslices.Rule{{Limit: 3, Span: 6, Slot: 3}, {Limit: 2, Span: 2, Slot: 2}}
	logPair  = []quotaslices.Rule{{Limit: 2, Span: 2, Slot: 2, Also: []quotaslices.Rule{{Limit: 3, Span: 6}}}}
	logCases = map[string]quotaslices.Log{
		"one rule":                  {Rules: oneLog, Steps: []int8{-1, -3}, Returns: true},
		"two slots":                 {Rules: twoLogs, Ns: []int8{1, 3}, Steps: []int8{-2}, Returns: true},
		"two slots and lengths":     {Rules: twoSpans, Ns: []int8{1, 2}, Steps: []int8{-2}, Returns: true},
		"callers' clocks":           {Rules: oneLog, Ns: []int8{1, 2}, Clocks: []int8{-2, 2}, Returns: true},
		"two slots, callers' clock": {Rules: twoLogs, Ns: []int8{1, 3}, Clocks: []int8{3}, Returns: true},
		"a log of two windows":      {Rules: logPair, Ns: []int8{1, 2}, Steps: []int8{-2}, Returns: true},
	}
)

// logHistories are those that break the rule without a part of it, and random ones of up to six moves.
func logHistories(t *testing.T, l *quotaslices.Log, full, usual int) (histories []quotaslices.History) {
	rng := model.Seeded(limitertest.Seed(t))
	for _, wrong := range []func(*quotaslices.Log){
		func(l *quotaslices.Log) { l.Beyond = 1 },
		func(l *quotaslices.Log) { l.Rewound = true },
	} {
		broken := *l
		wrong(&broken)
		histories = append(histories, quotaslices.Search(quotaslices.Scope{Calls: 3, Pause: 6, Algorithm: &broken}).History)
	}
	for range limitertest.Rounds(full, usual) {
		histories = append(histories, quotaslices.RandomHistory(quotaslices.Scope{Pause: 4, Algorithm: l}, rng))
	}
	return histories
}

// datedAgain breaks what comes back without an id: permits are dated at the slice's instant for a second time.
var datedAgain = quotaslices.History{
	{Op: quotaslices.Lease, N: 1}, {Op: quotaslices.Step, N: -1}, {Op: quotaslices.Plain, N: 1},
	{Pause: 1, Op: quotaslices.Lease, N: 1}, {Pause: 1, Op: quotaslices.Return, N: 1}, {Pause: 6, Op: quotaslices.Plain, N: 3},
}

// TestLogScriptsLeaseAsTheSearchedModel replays histories of internal/testing/quotaslices on the scripts. A tick is a microsecond.
func TestLogScriptsLeaseAsTheSearchedModel(t *testing.T) {
	raceflag.SkipSequential(t)
	for name, l := range logCases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			histories := logHistories(t, &l, 20_000, 200)
			if l.Rules[0].Limit == 3 {
				histories = append(histories, datedAgain)
			}
			for _, id := range []string{"slidingwindow-list", "slidingwindow-hash", "slidinglog"} {
				if id != "slidinglog" && l.Rules[0].Also != nil {
					continue
				}
				p := newLogReplay(t, limitertest.OnMiniredis(t), &l, id)
				for _, h := range histories {
					p.play(t, h)
				}
			}
		})
	}
}

// TestLogScriptsLeaseOnRedis: some of them on a real server.
func TestLogScriptsLeaseOnRedis(t *testing.T) {
	raceflag.SkipSequential(t)
	server := limitertest.OnHeldRedis(t)
	for _, l := range logCases {
		histories := logHistories(t, &l, 200, 20)
		for _, id := range []string{"slidingwindow-list", "slidingwindow-hash", "slidinglog"} {
			if id != "slidinglog" && l.Rules[0].Also != nil {
				continue
			}
			p := newLogReplay(t, server, &l, id)
			for _, h := range histories {
				p.play(t, h)
			}
		}
	}
}

// A logReplay plays histories by the server's clock.
type logReplay struct {
	model    *quotaslices.Log
	name     string // of the key in Redis
	stage    *limitertest.Stage
	limiters []*ratelimit.SlidingLog
	callers  [][]*ratelimit.SlidingLog // by their clocks
	leases   int
}

func newLogReplay(t *testing.T, s *limitertest.Stage, l *quotaslices.Log, id string) *logReplay {
	client := s.Client
	p := &logReplay{model: l, stage: s, name: "ratelimit:default:" + id + "{k}", callers: make([][]*ratelimit.SlidingLog, len(l.Clocks))}
	for _, r := range l.Rules {
		log := windows.Log{Resolution: int64(r.Slot)}
		for _, one := range append([]quotaslices.Rule{r}, r.Also...) {
			log.Rules = append(log.Rules, windows.Rule{Limit: one.Limit, Window: time.Duration(one.Span) * time.Microsecond})
		}
		p.limiters = append(p.limiters, ratelimit.OfMicroseconds(t, client, id, log))
		for i, ahead := range l.Clocks {
			clock := ratelimit.WithClock(func() time.Time { return s.Now.Add(time.Duration(ahead) * time.Microsecond) })
			p.callers[i] = append(p.callers[i], ratelimit.OfMicroseconds(t, client, id, log, clock))
		}
	}
	return p
}

func (p *logReplay) play(t *testing.T, h quotaslices.History) {
	p.stage.Wipe(t)
	player := quotaslices.Player{Algorithm: p.model}
	var held []replayedSlice
	for i, m := range h {
		player.Play(quotaslices.Move{Pause: m.Pause, Op: quotaslices.Step})
		p.pass(int(m.Pause))
		m.Pause = 0
		before := player
		want := player.Play(m)
		switch m.Op {
		case quotaslices.Plain:
			by := p.limiters[m.Rule]
			if m.Clock > 0 {
				by = p.callers[m.Clock-1][m.Rule]
			}
			require.Equal(t, want, must(t)(by.TryAcquireN(ctx, "k", int(m.N))).Allowed, "%v: move %d", h, i)
			if want {
				held = append(held, replayedSlice{})
			}
		case quotaslices.Lease:
			p.leases++
			n := int(m.N)                                   // it gets all or nothing, as in the model
			if !want && before.Remaining(int(m.Rule)) > 0 { // beyond the model: fewer, or to be used at once
				player = before
				break
			}
			words, err := ratelimit.DecideList(p.limiters[m.Rule], "k", fmt.Appendf(nil, "%dd%d/1000/1000/%d", n, n, 100+p.leases))
			require.NoError(t, err)
			if !want {
				require.Equal(t, []int64{0, 0}, words[:2], "%v: move %d", h, i)
				break
			}
			require.Equal(t, []int64{int64(player.Lasts()), int64(n)}, words[:2], "%v: move %d", h, i)
			held = append(held, replayedSlice{m.Rule, m.N, words[len(words)-2], words[len(words)-1]})
		case quotaslices.Return:
			if s := &held[m.Of]; want {
				_, err := ratelimit.DecideList(p.limiters[s.rule], "k", fmt.Appendf(nil, "%dg%d/%d", m.N, s.where, s.which))
				require.NoError(t, err)
				if s.n -= m.N; s.n == 0 {
					held = append(held[:m.Of], held[m.Of+1:]...)
				}
			}
		case quotaslices.Step:
			p.pass(int(m.N))
		}
		for rule, l := range p.limiters {
			if left := must(t)(l.Peek(ctx, "k")).Remaining; left != player.Remaining(rule) {
				require.Equal(t, player.Remaining(rule), left, "%v: after move %d, rule %d, %v", h, i, rule, p.stage.Look(t, p.name))
			}
		}
	}
}

// pass moves the server's clock.
func (p *logReplay) pass(n int) {
	if n != 0 {
		p.stage.Move(p.stage.Now.Add(time.Duration(n) * time.Microsecond))
	}
}

// TestAHotKeyOfALog asks Redis a few times in each slot, and leaves behind what the same calls of a plain limiter do. Its
// answers say which rule they are about, as Redis does.
func TestAHotKeyOfALog(t *testing.T) {
	hash := ratelimit.WithStorage(ratelimit.StorageHash)
	for name, build := range map[string]func(c ratelimit.Client, name ratelimit.Option) ratelimit.Limiter{
		"List": func(c ratelimit.Client, name ratelimit.Option) ratelimit.Limiter {
			return ratelimit.Must(ratelimit.NewSlidingWindow(c, 10_000, time.Minute, name))
		},
		"Hash": func(c ratelimit.Client, name ratelimit.Option) ratelimit.Limiter {
			return ratelimit.Must(ratelimit.NewSlidingWindow(c, 10_000, time.Minute, name, hash))
		},
		"a log of two windows": func(c ratelimit.Client, name ratelimit.Option) ratelimit.Limiter {
			return ratelimit.Must(ratelimit.NewSlidingLog(c, []ratelimit.Rule{{Limit: 400, Window: 3 * time.Second}, {Limit: 460, Window: time.Minute}},
				ratelimit.WithResolution(1500*time.Millisecond), name))
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *ratelimittest.Env) {
				var asked executions
				b, twin := build(e.Client(), ratelimit.WithName("leased")), build(e.Client(), ratelimit.WithName("plain"))
				l, here, tight := ratelimit.Must(ratelimit.NewLeased(b)), 0, map[time.Duration]int{}
				for i := range 400 { // of 6 s
					e.Advance(15 * time.Millisecond)
					if i == 200 {
						e.Client().AddHook(&asked)
					}
					r, plain := must(t)(l.TryAcquire(ctx, "k")), must(t)(twin.TryAcquire(ctx, "k"))
					require.True(t, r.Allowed && plain.Allowed)
					if tight[r.Window]++; r.Leased && i >= 200 {
						here++
					}
				}
				t.Logf("%d of 200 calls by slices, %d executions, windows %v", here, asked.Load()-200, tight)
				require.Greater(t, here, 200*8/10)
				require.LessOrEqual(t, asked.Load()-200, int64(200/4))
				require.Equal(t, name == "a log of two windows", len(tight) == 2)
				require.NoError(t, l.Close(ctx))
				require.Equal(t, must(t)(twin.Peek(ctx, "k")), must(t)(b.Peek(ctx, "k")))
			})
		})
	}
}

// TestASliceOfALogInTheState: what the rule in the state says of slices, and whose permits come back.
func TestASliceOfALogInTheState(t *testing.T) {
	for _, storage := range []ratelimit.Storage{ratelimit.StorageList, ratelimit.StorageHash} {
		s := limitertest.OnMiniredis(t)
		l := ratelimit.Must(ratelimit.NewSlidingWindow(s.Client, 100, time.Second, ratelimit.WithStorage(storage)))
		operate := func(list string) []int64 {
			words, err := ratelimit.DecideList(l, "k", []byte(list))
			require.NoError(t, err)
			return words
		}
		says := func(want string) {
			t.Helper()
			rule := s.Admin.LIndex(ctx, "ratelimit:default:slidingwindow-list{k}", 0).Val()
			if storage == ratelimit.StorageHash {
				rule = s.Admin.HGet(ctx, "ratelimit:default:slidingwindow-hash{k}", "rule").Val()
			}
			require.Equal(t, want, rule)
		}
		start := s.Now.UnixMicro()
		first := start + 24_999
		s.Advance(10 * time.Millisecond)
		require.Equal(t, []int64{14_999, 8, 14_999, 0, 0, first, 77}, operate("8d1/1000000/1000000/77"))
		says(fmt.Sprintf("1000000/25000~%d/77", first))
		require.Equal(t, []int64{5_000, 8, 14_999, 0, 8, first, 77}, operate("8d1/5000/5000/78"), "the id of the first")
		require.Equal(t, []int64{0}, operate(fmt.Sprintf("1g%d/78", first)))
		require.Equal(t, []int64{5}, operate(fmt.Sprintf("5g%d/77", first)))
		require.Equal(t, 89, must(t)(l.Peek(ctx, "k")).Remaining)

		s.Advance(20 * time.Millisecond)
		must(t)(l.TryAcquire(ctx, "k"))
		says(fmt.Sprintf("1000000/25000~%d/77", first))
		s.Advance(-25 * time.Millisecond) // before the slot of the last one
		must(t)(l.TryAcquireN(ctx, "k", 100))
		moved := start + 5_000 + 24_999
		era := start + 50_000 // later than any instant that was used before
		says(fmt.Sprintf("1000000/25000~%d/0%d", moved, era))
		require.Equal(t, []int64{0}, operate(fmt.Sprintf("1g%d/77", first)), "the clock has stepped back")
		require.Equal(t, []int64{24_999, 8, 24_999, 0, 12, moved, era}, operate("8d1/1000000/1000000/79"))
		says(fmt.Sprintf("1000000/25000~%d/0%d", moved, era))
		require.Equal(t, []int64{0}, operate(fmt.Sprintf("8g%d/79", moved)))
		require.Equal(t, []int64{8}, operate(fmt.Sprintf("8g%d/%d", moved, era)))

		s.Advance(1024 * time.Millisecond)
		must(t)(l.TryAcquire(ctx, "k"))
		says(fmt.Sprintf("1000000/25000~%d/0%d", moved, era))
		s.Advance(time.Millisecond)
		must(t)(l.TryAcquire(ctx, "k"))
		says(fmt.Sprintf("1000000/25000~%d/0%d", era, era)) // no slice counts any more
		s.Advance(20 * time.Millisecond)
		must(t)(l.TryAcquire(ctx, "k"))
		says("1000000/25000") // nor any instant of before the step
	}
}

package ratelimit

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	lua "github.com/yuin/gopher-lua"

	"github.com/tryacquire/ratelimit/internal/algorithms"
	"github.com/tryacquire/ratelimit/internal/gcra"
	"github.com/tryacquire/ratelimit/internal/redisexec"
	"github.com/tryacquire/ratelimit/internal/script"
)

// TestNoOrderOfCallsExceedsTheBound tries every order of calls of a few buckets on one
// key, on a coarse clock, until no new state appears. By the server's clock, which may
// step back, and by callers' clocks that differ, the permits taken stay within the
// largest burst + the fastest rate × (time + skew) + one longest step. Aligned buckets beside others get one step more
// at each of their instants.
func TestNoOrderOfCallsExceedsTheBound(t *testing.T) {
	const tick = 100 * time.Millisecond
	slow, fast := Per(1, 4*tick), Per(1, 2*tick)
	for _, test := range []struct {
		about string
		calls []searchCall
		back  int64 // ticks by which the clock steps back, if the server's clock decides
		bound float64
	}{
		{"two bursts", []searchCall{{rate: slow, burst: 3}, {rate: slow, burst: 1}}, 0, 3},
		{"two bursts, the clock steps back", []searchCall{{rate: slow, burst: 3}, {rate: slow, burst: 1}}, 3, 3},
		{"two rates", []searchCall{{rate: slow, burst: 2}, {rate: fast, burst: 1}}, 0, 2},
		{"two rates, the clock steps back", []searchCall{{rate: slow, burst: 2}, {rate: fast, burst: 1}}, 2, 2},
		{"a rate that divides no tick", []searchCall{{rate: Per(3, 7*tick), burst: 2}, {rate: fast, burst: 1}}, 0, 2},
		{"even and in steps", []searchCall{{rate: fast, burst: 2}, {rate: fast, burst: 1, every: 3 * tick}}, 0, 2 + 1.5},
		{"two steps", []searchCall{{rate: fast, burst: 2, every: 2 * tick}, {rate: slow, burst: 2, every: 3 * tick}}, 2, 2 + 1},
		{"one bucket, two clocks", []searchCall{{rate: fast, burst: 2, byCaller: true}, {rate: fast, burst: 2, byCaller: true, lag: 1}}, 0, 2 + .5},
		{"one bucket in steps, two clocks", []searchCall{{rate: fast, burst: 2, every: 3 * tick, byCaller: true}, {rate: fast, burst: 2, every: 3 * tick, byCaller: true, lag: 1}}, 0, 2 + .5 + 1.5},
		{"two rates, two clocks", []searchCall{{rate: slow, burst: 2, byCaller: true}, {rate: fast, burst: 1, byCaller: true, lag: 1}}, 0, 2 + .5},
		{"two rates, the other clock behind", []searchCall{{rate: slow, burst: 2, byCaller: true, lag: 1}, {rate: fast, burst: 1, byCaller: true}}, 0, 2 + .5},
		{"the server's clock, and one that is behind", []searchCall{{rate: fast, burst: 2}, {rate: fast, burst: 2, byCaller: true, lag: 1}}, 0, 2 + .5},
		{"the server's clock, and one that is ahead", []searchCall{{rate: fast, burst: 2}, {rate: slow, burst: 1, byCaller: true, lag: -1}}, 0, 2 + .5},
		{"three rules", []searchCall{{rate: slow, burst: 3}, {rate: fast, burst: 2}, {rate: fast, burst: 1, every: 3 * tick}}, 2, 3 + 1.5},
		{"aligned", []searchCall{{rate: fast, burst: 2, every: 3 * tick, aligned: true}}, 2, 2 + 1.5},
		{"aligned, two rates and bursts", []searchCall{{rate: slow, burst: 2, every: 3 * tick, aligned: true}, {rate: fast, burst: 1, every: 3 * tick, aligned: true}}, 2, 2 + 1.5},
		{"aligned, two clocks", []searchCall{{rate: fast, burst: 2, every: 3 * tick, aligned: true, byCaller: true}, {rate: fast, burst: 2, every: 3 * tick, aligned: true, byCaller: true, lag: 1}}, 0, 2 + .5 + 1.5},
		{"aligned and even", []searchCall{{rate: slow, burst: 2, every: 4 * tick, aligned: true}, {rate: fast, burst: 2}}, 0, 2},
		{"aligned and even, the aligned faster", []searchCall{{rate: fast, burst: 2, every: 2 * tick, aligned: true}, {rate: slow, burst: 2}}, 0, 2},
		{"aligned and in steps", []searchCall{{rate: fast, burst: 2, every: 4 * tick, aligned: true}, {rate: fast, burst: 2, every: 4 * tick}}, 0, 2 + 2},
		{"aligned to two offsets", []searchCall{{rate: fast, burst: 2, every: 4 * tick, aligned: true}, {rate: fast, burst: 2, every: 4 * tick, aligned: true, offset: 2 * tick}}, 0, 2},
		{"aligned, two steps", []searchCall{{rate: fast, burst: 2, every: 2 * tick, aligned: true}, {rate: slow, burst: 2, every: 4 * tick, aligned: true}}, 0, 2},
		{"three clocks", []searchCall{{rate: fast, burst: 2}, {rate: fast, burst: 2, byCaller: true, lag: 1}, {rate: slow, burst: 3, byCaller: true}}, 0, 3 + .5},
	} {
		t.Run(test.about, func(t *testing.T) {
			t.Parallel()
			s := newSearch(t)
			for i := range test.calls {
				s.prepare(t, &test.calls[i], tick)
			}
			rate := .5    // of the fastest, permits a tick
			alike := true // no steps but those of the first come
			for _, call := range test.calls {
				first := test.calls[0]
				alike = alike && call.aligned == first.aligned && (!call.aligned || call.every == first.every && call.offset == first.offset)
			}
			start := searched{now: 1_763_670_000_000_000}
			for _, call := range test.calls {
				if call.aligned {
					start.turn = max(start.turn, call.every.Microseconds()) // the others divide it
				}
			}
			known := map[string]bool{start.key(): true}
			full := 0.0
			for queue := []searched{start}; len(queue) > 0; queue = queue[1:] {
				moves := []int64{0, 1, 2, 5}
				if test.back > 0 {
					moves = append(moves, -test.back)
				}
				for _, ticks := range moves {
					for i, call := range test.calls {
						for n := 1; n <= call.burst; n++ {
							next := queue[0]
							next.now += ticks * tick.Microseconds()
							if ticks > 0 {
								next.over -= rate * float64(ticks)
								for _, c := range test.calls {
									if c.aligned && !alike {
										instants := c.bucket.Last(next.now)/c.every.Microseconds() - c.bucket.Last(queue[0].now)/c.every.Microseconds()
										next.over -= float64(instants) * c.every.Seconds() * float64(c.rate.Count) / c.rate.Period.Seconds()
									}
								}
								next.over = max(next.over, 0)
							}
							next.path = fmt.Sprintf("%s %+d:%d×%d", next.path, ticks, i, n)
							if s.run(t, &next, call, n) {
								next.over += float64(n)
								full = max(full, next.over)
								require.LessOrEqual(t, next.over, test.bound, next.path)
							}
							if key := next.key(); !known[key] {
								known[key] = true
								queue = append(queue, next)
							}
						}
					}
				}
				if len(known) > 20_000 {
					t.Log("not all states were tried")
					break
				}
			}
			t.Logf("%d states, at most %v permits beyond the rate, allowed %v", len(known), full, test.bound)
			require.Greater(t, full, test.bound-1.6)
		})
	}
}

// A searchCall is a limiter whose calls are tried, and its clock.
type searchCall struct {
	rate     Rate
	burst    int
	every    time.Duration
	aligned  bool
	offset   time.Duration // of aligned steps
	exactly  bool
	byCaller bool
	lag      int64 // of the caller's clock, ticks

	bucket *gcra.Bucket
	algorithm
	one, peek, operations *lua.FunctionProto
}

// searched is a state of the key, and what was taken before.
type searched struct {
	now, expires int64
	value        string
	over         float64 // permits taken beyond the fastest rate
	path         string
	turn         int64 // 0, or microseconds after which aligned steps are at the same distance from now
}

// key is the same for states that go on alike, whenever they are.
func (s searched) key() string {
	if s.value == "" {
		return fmt.Sprint(s.now%max(s.turn, 1), s.over)
	}
	at, _ := strconv.ParseInt(s.value[:16], 10, 64)
	return fmt.Sprint(s.now%max(s.turn, 1), s.now-at, s.value[16:], s.expires-s.now, s.over)
}

// search runs scripts on one key, without a server.
type search struct {
	l     *lua.LState
	state *searched
}

func newSearch(t *testing.T) *search {
	s := &search{l: lua.NewState()}
	t.Cleanup(s.l.Close)
	call := s.l.NewFunction(func(l *lua.LState) int {
		l.Push(s.command(t, l))
		return 1
	})
	redis := s.l.NewTable()
	redis.RawSetString("call", call)
	redis.RawSetString("pcall", call)
	s.l.SetGlobal("redis", redis)
	return s
}

func (s *search) command(t *testing.T, l *lua.LState) lua.LValue {
	switch name := l.CheckString(1); name {
	case "TIME":
		time := l.NewTable()
		time.Append(lua.LString(strconv.FormatInt(s.state.now/1e6, 10)))
		time.Append(lua.LString(strconv.FormatInt(s.state.now%1e6, 10)))
		return time
	case "GET":
		if s.state.value == "" {
			return lua.LFalse
		}
		return lua.LString(s.state.value)
	case "SET":
		s.state.value = l.CheckString(3)
		s.state.expires = s.state.now + int64(l.CheckNumber(5))*1000
	case "PTTL":
		return lua.LNumber((s.state.expires - s.state.now) / 1000)
	default:
		require.Fail(t, "unknown command "+name)
	}
	return lua.LTrue
}

func (s *search) prepare(t *testing.T, c *searchCall, tick time.Duration) {
	b, err := newBucket(c.rate, c.burst, "burst", &settings{refillEvery: c.every, aligned: c.aligned, offset: c.offset})
	require.NoError(t, err)
	c.bucket = b
	mark := ""
	if c.byCaller {
		mark = fmt.Sprintf("@%d", tick.Milliseconds())
	}
	c.algorithm = bucketAlgorithm(algorithms.TokenBucket, b, c.exactly, mark)
	set := c.scripts.Get(c.byCaller)
	for to, from := range map[**lua.FunctionProto]*script.Script{&c.one: set.One, &c.peek: set.Peek, &c.operations: set.Operations} {
		fn, err := s.l.LoadString(from.Source())
		require.NoError(t, err)
		*to = fn.Proto
	}
	if c.byCaller {
		c.args = append(c.args, strconv.FormatInt(tick.Milliseconds(), 10))
	}
	c.lag *= tick.Microseconds()
}

// run makes a call for n permits, and reports whether it was allowed.
func (s *search) run(t *testing.T, state *searched, c searchCall, n int) bool {
	switch reply := s.eval(t, state, c, c.one, strconv.Itoa(n)).(type) {
	case *lua.LTable:
		return lua.LVAsNumber(reply.RawGetInt(1)) > 0
	default:
		require.NotNil(t, c.unpack, state.path)
		return !strings.HasPrefix(reply.String(), "-")
	}
}

// words are the integers that a script replies.
func (s *search) words(t *testing.T, state *searched, c searchCall, script *lua.FunctionProto, first string) (words []int64) {
	s.eval(t, state, c, script, first).(*lua.LTable).ForEach(func(_, word lua.LValue) {
		words = append(words, int64(lua.LVAsNumber(word)))
	})
	return words
}

// operate decides an operation, and returns the words of the reply.
func (s *search) operate(t *testing.T, state *searched, c searchCall, o redisexec.Operation) []int64 {
	end := len(c.args)
	if c.byCaller {
		end-- // spare comes after the operations
	}
	c.args = slices.Insert(slices.Clone(c.args), end, string(o.Append(nil)))
	return s.words(t, state, c, c.operations, "")
}

// eval runs a script of c, whose first argument is given.
func (s *search) eval(t *testing.T, state *searched, c searchCall, script *lua.FunctionProto, first string) lua.LValue {
	if state.expires <= state.now {
		state.value = ""
	}
	s.state = state
	keys, args := s.l.NewTable(), s.l.NewTable()
	keys.Append(lua.LString("k"))
	args.Append(lua.LString(first))
	for _, arg := range c.args {
		args.Append(lua.LString(arg))
	}
	if c.byCaller {
		args.Append(lua.LString(strconv.FormatInt(state.now-c.lag, 10)))
	}
	s.l.SetGlobal("KEYS", keys)
	s.l.SetGlobal("ARGV", args)
	s.l.Push(s.l.NewFunctionFromProto(script))
	require.NoError(t, s.l.PCall(0, 1, nil), state.path)
	reply := s.l.Get(-1)
	s.l.Pop(1)
	if words, ok := reply.(*lua.LTable); ok {
		require.Equal(t, lua.LNil, words.RawGetString("err"), state.path)
	}
	return reply
}

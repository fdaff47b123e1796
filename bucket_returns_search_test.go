package ratelimit

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/decision"
	"github.com/tryacquire/ratelimit/internal/redisexec"
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
)

// TestNoGiveBackTakesFromAnyRule tries every order of calls, estimates and settlements of a few
// buckets on one key, on a coarse clock. Whoever gives permits back, no rule waits longer
// afterwards for any number of permits, nor has less; what it waits for comes then, and not a
// microsecond earlier. What is taken and not given back, from an instant at which no ticket is
// held, stays within the largest burst + the fastest rate × (time + skew) + one longest step.
func TestNoGiveBackTakesFromAnyRule(t *testing.T) {
	raceflag.SkipSequential(t)
	const tick = 100 * time.Millisecond
	slow, fast := Per(1, 4*tick), Per(1, 2*tick)
	for _, test := range []struct {
		about string
		calls []searchCall
		back  int64 // ticks by which the clock steps back, if the server's clock decides
		bound float64
	}{
		{"two rates", []searchCall{{rate: slow, burst: 2}, {rate: fast, burst: 2}}, 0, 2},
		{"two rates, the clock steps back", []searchCall{{rate: slow, burst: 2}, {rate: fast, burst: 1}}, 2, 2},
		{"two bursts", []searchCall{{rate: slow, burst: 1}, {rate: fast, burst: 3}}, 0, 3},
		{"the faster has the smaller burst", []searchCall{{rate: slow, burst: 3}, {rate: fast, burst: 1}}, 0, 3},
		{"a rate that divides no tick", []searchCall{{rate: Per(3, 7*tick), burst: 2}, {rate: fast, burst: 2}}, 0, 2},
		{"even and in steps", []searchCall{{rate: slow, burst: 2}, {rate: fast, burst: 2, every: 3 * tick}}, 0, 2 + 1.5},
		{"in steps and even", []searchCall{{rate: slow, burst: 2, every: 3 * tick}, {rate: fast, burst: 2}}, 0, 2 + 1.5},
		{"two steps", []searchCall{{rate: slow, burst: 2, every: 2 * tick}, {rate: fast, burst: 2, every: 3 * tick}}, 2, 2 + 1.5},
		{"exact returns", []searchCall{{rate: slow, burst: 2, exactly: true}, {rate: fast, burst: 2, exactly: true}}, 0, 2},
		{"exact returns in steps", []searchCall{{rate: slow, burst: 2, exactly: true, every: 3 * tick}, {rate: fast, burst: 2, exactly: true}}, 0, 2 + 1.5},
		{"aligned, the clock steps back", []searchCall{{rate: slow, burst: 2, every: 3 * tick, aligned: true}, {rate: fast, burst: 2, every: 3 * tick, aligned: true}}, 2, 2 + 1.5},
		{"aligned, exact returns", []searchCall{{rate: fast, burst: 2, every: 3 * tick, aligned: true, exactly: true}}, 0, 2 + 1.5},
		{"two clocks", []searchCall{{rate: slow, burst: 2, byCaller: true}, {rate: fast, burst: 2, byCaller: true, lag: 1}}, 0, 2 + .5},
		{"two clocks, the slower behind", []searchCall{{rate: slow, burst: 2, byCaller: true, lag: 1}, {rate: fast, burst: 2, byCaller: true}}, 0, 2 + .5},
		{"the server's clock, and one that is behind", []searchCall{{rate: fast, burst: 2}, {rate: slow, burst: 2, byCaller: true, lag: 1}}, 0, 2 + .5},
		{"three rules", []searchCall{{rate: slow, burst: 2}, {rate: fast, burst: 1}, {rate: fast, burst: 2, every: 3 * tick}}, 0, 2 + 1.5},
	} {
		t.Run(test.about, func(t *testing.T) {
			t.Parallel()
			s := newSearch(t)
			for i := range test.calls {
				s.prepare(t, &test.calls[i], tick)
			}
			moves := []int64{0, 1, 3, 8}
			if test.back > 0 {
				moves = append(moves, -test.back)
			}
			most := 1_500 // states
			switch {
			case testing.Short():
				most = 150
			case os.Getenv("RATELIMIT_LONG") != "":
				most = 10_000
			}
			start := settling{searched: searched{now: 1_763_670_000_000_000, turn: 3 * tick.Microseconds()}}
			known := map[string]bool{start.key(): true}
			full, given := 0.0, 0
			for queue := []settling{start}; len(queue) > 0 && len(known) < most; queue = queue[1:] {
				add := func(next settling) {
					if len(next.held) == 0 { // an interval begins
						next.over = max(next.over, 0)
					}
					full = max(full, next.over)
					require.LessOrEqual(t, next.over, test.bound, next.path)
					if key := next.key(); !known[key] {
						known[key] = true
						queue = append(queue, next)
					}
				}
				for _, ticks := range moves {
					from := queue[0]
					from.now += ticks * tick.Microseconds()
					from.over -= .5 * float64(max(ticks, 0)) // the fastest rate
					if len(from.held) == 0 {
						from.over = max(from.over, 0)
					}
					for i, call := range test.calls {
						for n := 1; n <= call.burst; n++ {
							next := from
							next.path = fmt.Sprintf("%s %+d:%d takes %d", from.path, ticks, i, n)
							ticket := s.estimate(t, &next.searched, call, i, n)
							if ticket != nil {
								next.over += float64(n)
							}
							add(next)
							if ticket != nil && len(from.held) < 2 {
								next.held = append(slices.Clone(from.held), *ticket)
								next.path += " as an estimate"
								add(next)
							}
						}
					}
					for i, ticket := range from.held {
						for n := 0; n <= ticket.n; n++ { // 0: all was used
							next := from
							next.held = slices.Delete(slices.Clone(from.held), i, i+1)
							next.path = fmt.Sprintf("%s %+d:%d gives %d of %d back", from.path, ticks, ticket.by, n, ticket.n)
							if n > 0 {
								s.giveBack(t, &next.searched, test.calls[ticket.by], ticket, n)
								next.over -= float64(n)
								if next.value != from.value {
									given++
								}
								s.compare(t, from.searched, next.searched, test.calls)
							}
							add(next)
						}
					}
				}
			}
			t.Logf("%d states, %d give-backs, at most %v permits beyond the rate, allowed %v", len(known), given, full, test.bound)
			require.Greater(t, full, test.bound-1.6)
			require.Positive(t, given)
		})
	}
}

// settling is a state of the key, and the tickets that are held. over is counted from the last
// instant at which none was, at which the count was highest.
type settling struct {
	searched
	held []searchTicket
}

// A searchTicket is n permits that call number by has taken.
type searchTicket struct{ by, n, where, which int }

func (s settling) key() string {
	key := s.searched.key()
	for _, ticket := range s.held {
		key += fmt.Sprintf(" %d:%d@%d", ticket.by, ticket.n, int(s.now)-ticket.where)
	}
	return key
}

// estimate takes n permits, and returns nil if that is denied.
func (s *search) estimate(t *testing.T, state *searched, c searchCall, by, n int) *searchTicket {
	words := s.operate(t, state, c, redisexec.Operation{Op: redisexec.Estimate, N: n, Times: 1})
	if words[decision.WordAllowed] == 0 {
		return nil
	}
	own := len(words) - redisexec.TicketWords
	return &searchTicket{by, n, int(words[own]), int(c.which(words[own+1], int64(n)))}
}

func (s *search) giveBack(t *testing.T, state *searched, c searchCall, ticket searchTicket, n int) {
	s.operate(t, state, c, redisexec.Operation{Op: redisexec.GiveBack, N: n, Times: 1, Detail: &redisexec.Detail{Where: int64(ticket.where), Which: int64(ticket.which)}})
}

// look is the answer to a call for n permits, which takes none.
func (s *search) look(t *testing.T, state searched, c searchCall, n int) Result {
	before := state.value
	words := s.words(t, &state, c, c.peek, fmt.Sprint(n))
	require.Contains(t, []string{before, ""}, state.value, state.path)
	return Result(c.explainer.Explain(words, int64(n), 0, words[decision.WordAllowed] > 0))
}

// compare checks that no rule is worse off after permits were given back.
func (s *search) compare(t *testing.T, before, after searched, calls []searchCall) {
	for i, c := range calls {
		for n := 1; n <= c.burst; n++ {
			was, is := s.look(t, before, c, n), s.look(t, after, c, n)
			about := fmt.Sprintf("%s: then %d for %d: %+v, before it %+v\n%s, before it %s", after.path, i, n, is, was, after.value, before.value)
			require.LessOrEqual(t, is.RetryAfter, was.RetryAfter, about)
			require.LessOrEqual(t, is.ResetAfter, was.ResetAfter, about)
			require.GreaterOrEqual(t, is.Remaining, was.Remaining, about)
			if is.Allowed {
				continue
			}
			after.now += is.RetryAfter.Microseconds()
			require.True(t, s.look(t, after, c, n).Allowed, about)
			after.now--
			if after.now < after.expires { // beside a clock that is behind, the server's allows for no skew
				require.False(t, s.look(t, after, c, n).Allowed, about)
			}
			after.now -= is.RetryAfter.Microseconds() - 1
		}
	}
}

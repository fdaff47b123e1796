package model

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
)

// A use is a permit that was taken, when and by which of the limiters of a key.
type use struct {
	at int64
	by int
}

// kept reports whether a permit counts at an instant for certain: at no instant since it
// was taken was it outside every window whose limiter had a permit of its own in it.
func kept(history []use, windows []int64, i int, now int64) bool {
	for s := history[i].at; s <= now; s++ {
		needed := false
		for _, u := range history {
			w := windows[u.by]
			earlier := u.at < s || s == history[i].at
			needed = needed || earlier && u.at > s-w && history[i].at > s-w
		}
		if !needed {
			return false
		}
	}
	return true
}

// TestEveryOrderOfTwoRulesOnOneKeyKeepsBoth tries every order of calls by two limiters at
// every pattern of a few instants. A call is allowed only if its own rule holds over all
// permits that are needed by anybody, and denied only if it does not hold.
func TestEveryOrderOfTwoRulesOnOneKeyKeepsBoth(t *testing.T) {
	raceflag.SkipSequential(t)
	depth := 6
	if testing.Short() {
		depth = 5
	}
	steps := []int64{0, 1, 2, 5}
	for _, c := range []struct {
		rules [2]Rule
		slots [2]time.Duration
		ahead [2]int64 // of the callers' clocks; 0 for both: the server's clock
	}{
		{rules: [2]Rule{{3, 7 * us}, {1, 2 * us}}, slots: [2]time.Duration{us, us}},
		{rules: [2]Rule{{2, 6 * us}, {2, 3 * us}}, slots: [2]time.Duration{us, us}},
		{rules: [2]Rule{{3, 8 * us}, {2, 3 * us}}, slots: [2]time.Duration{4 * us, us}},
		{rules: [2]Rule{{3, 6 * us}, {2, 4 * us}}, slots: [2]time.Duration{us, 2 * us}},
		{rules: [2]Rule{{3, 7 * us}, {1, 2 * us}}, slots: [2]time.Duration{us, us}, ahead: [2]int64{0, 3}},
		{rules: [2]Rule{{3, 7 * us}, {2, 4 * us}}, slots: [2]time.Duration{us, us}, ahead: [2]int64{2, 0}},
		{rules: [2]Rule{{3, 8 * us}, {2, 4 * us}}, slots: [2]time.Duration{2 * us, us}, ahead: [2]int64{3, 0}},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			windows := []int64{c.rules[0].Window.Microseconds(), c.rules[1].Window.Microseconds()}
			byCaller := c.ahead != [2]int64{}
			limiters := [2]*SlidingLog{NewSlidingLog(c.rules[:1], c.slots[0])}
			limiters[1] = limiters[0].Beside(c.rules[1:], c.slots[1])
			limiters[0].CallersClock, limiters[1].CallersClock = byCaller, byCaller
			exact := c.slots == [2]time.Duration{us, us}
			allowed, denied := 0, 0
			var try func(now, latest int64, history []use, left int)
			try = func(now, latest int64, history []use, left int) {
				if left == 0 {
					return
				}
				before := *limiters[0].key
				for _, step := range steps {
					for by, m := range limiters {
						*m.key = before
						clock := now + step + c.ahead[by]
						at := clock // at which the call is decided
						if byCaller {
							at = max(at, latest)
						}
						used, ever := 0, 0
						for i, u := range history {
							if u.at > at-windows[by] {
								ever++
								if kept(history, windows, i, at) {
									used++
								}
							}
						}
						answer := m.Take(clock, 1, false)
						if answer.Allowed {
							allowed++
							require.Less(t, used, c.rules[by].Limit, "%v, then %d at %d", history, by, at)
							try(now+step, at, append(history[:len(history):len(history)], use{at, by}), left-1)
							continue
						}
						denied++
						if exact {
							require.GreaterOrEqual(t, ever, c.rules[by].Limit, "%v, then %d at %d", history, by, at)
						}
						require.Equal(t, before, *m.key, "a denial changed the key: %v, then %d at %d", history, by, at)
						try(now+step, latest, history, left-1)
					}
				}
				*limiters[0].key = before
			}
			try(1000, 0, nil, depth)
			require.Greater(t, allowed, 1000)
			require.Greater(t, denied, 1000)
		})
	}
}

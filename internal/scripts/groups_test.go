package scripts

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	lua "github.com/yuin/gopher-lua"
	"github.com/yuin/gopher-lua/parse"

	"github.com/tryacquire/ratelimit/internal/script"
	"github.com/tryacquire/ratelimit/internal/testing/model"
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// kinds are those that decide together, in the order of a group's script.
func kinds() (kinds []*Scripts) {
	for _, name := range slices.Sorted(slices.Values(Names())) {
		kinds = append(kinds, Of(name))
		if s := WithTickets(name); s != nil {
			kinds = append(kinds, s)
		}
	}
	return kinds
}

// A largeGroup is how many limiters of each kind decide together.
type largeGroup struct {
	counts            []int
	byCaller, tickets bool
}

func (l largeGroup) assemble() (set Several, about string) {
	var files []*script.File
	var args []int
	var tickets []bool
	for i, s := range kinds() {
		f := s.Whole(l.byCaller && s.callers != nil) // tickets with a lease go by the server's clock
		for range l.counts[i] {
			files, args, tickets = append(files, f), append(args, 4), append(tickets, l.tickets && !f.Has("hold"))
		}
		if l.counts[i] > 0 {
			about += fmt.Sprintf("%d %s, ", l.counts[i], f.Name())
		}
	}
	return Together(files, args, tickets), fmt.Sprintf("%sby caller's clock %t, tickets %t", about, l.byCaller, l.tickets)
}

// TestAGroupKeepsNoTexts: a program may have many groups.
func TestAGroupKeepsNoTexts(t *testing.T) {
	used := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	const groups = 20
	all := kinds()
	before := used()
	var kept []Several
	for range groups {
		set, _ := largeGroup{counts: append([]int{1, 1, 1}, make([]int, len(all)-3)...)}.assemble()
		for _, s := range append([]*script.Script{set.One, set.Peek, set.Many, set.ManyOfSeveral}, append(set.Common, set.CommonOfSeveral...)...) {
			require.Len(t, s.Digest(), 40)
		}
		kept = append(kept, set)
	}
	require.Less(t, (used()-before)/groups, int64(20_000), "bytes of a group of three, whose texts are 300,000")
	runtime.KeepAlive(kept)
}

// Eight limiters of any kinds compile, by either clock, with tickets and without: of each two
// kinds the largest groups that need no closure, the smallest that need one, and eight; and
// eight of many kinds. miniredis counts more variables than Redis does.
func TestEveryGroupCompiles(t *testing.T) {
	raceflag.SkipSequential(t)
	server := redistest.Start(t).Client(t)
	all := kinds()
	groups, closures, every, random := 0, 0, 72, 2
	if os.Getenv("RATELIMIT_LONG") != "" {
		every, random = 1, 100
	}
	compile := func(l largeGroup) {
		set, about := l.assemble()
		all, first := []*script.Script{set.One, set.Many, set.Peek, set.ManyOfSeveral, set.Once.One, set.Finish, set.FinishOfSeveral}, 0
		for _, n := range l.counts { // those of one kind differ only in numbers
			if n > 0 {
				all = append(all, set.Common[first], set.CommonOfSeveral[first])
			}
			first += n
		}
		for _, s := range all {
			chunk, err := parse.Parse(strings.NewReader(s.Source()), about)
			require.NoError(t, err, about)
			_, err = lua.Compile(chunk, about)
			require.NoError(t, err, about)
			require.NoError(t, server.ScriptLoad(t.Context(), s.Source()).Err(), about)
		}
		groups++
		if hasClosure(set) {
			closures++
		}
		require.NoError(t, server.ScriptFlush(t.Context()).Err())
	}
	for variant := range 4 {
		rng := model.Seeded(uint64(variant))
		l := largeGroup{byCaller: variant&1 > 0, tickets: variant&2 > 0}
		for a := range all {
			for b := range a {
				if rng.IntN(every) > 0 {
					continue
				}
				y := MostTogether
				for x := range MostTogether + 1 {
					of := func(y int) largeGroup {
						l.counts = make([]int, len(all))
						l.counts[a], l.counts[b] = x, y
						return l
					}
					for y = min(y, MostTogether-x); y > 0; y-- {
						if set, _ := of(y).assemble(); !hasClosure(set) {
							break
						}
					}
					if x+y > 0 {
						compile(of(y))
					}
					if x+y < MostTogether {
						compile(of(y + 1))
					}
					if x+y+1 < MostTogether {
						compile(of(MostTogether - x))
					}
				}
			}
		}
		for range random {
			l.counts = make([]int, len(all))
			for range MostTogether {
				l.counts[rng.IntN(len(all))]++
			}
			compile(l)
		}
	}
	t.Logf("%d groups, %d of them with a closure", groups, closures)
}

func hasClosure(set Several) bool { return strings.Contains(set.One.Source(), "= (function()") }

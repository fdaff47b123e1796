package explore

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
)

// TestTheRightRulesKeepTheBound follows every history under the rules that the scripts
// have.
func TestTheRightRulesKeepTheBound(t *testing.T) {
	raceflag.SkipSequential(t)
	one := func(burst, flow int) []Bucket { return []Bucket{{burst, flow}} }
	for name, r := range map[string]Rules{
		"reservations, burst 1":            {Permit: 1, Buckets: one(1, 1), Reserving: true, Longest: 4, Pause: 3, Calls: 6, Losses: true, Clock: true},
		"reservations, burst 2":            {Permit: 1, Buckets: one(2, 1), Reserving: true, Longest: 4, Pause: 3, Calls: 6, Losses: true},
		"reservations, burst 2, clock":     {Permit: 1, Buckets: one(2, 1), Reserving: true, Longest: 4, Pause: 2, Calls: 6, Clock: true},
		"reservations, burst 3":            {Permit: 1, Buckets: one(3, 1), Reserving: true, Longest: 4, Pause: 3, Calls: 6},
		"a permit takes two ticks":         {Permit: 2, Buckets: one(2, 1), Reserving: true, Longest: 6, Pause: 3, Calls: 6},
		"a tick restores parts of permits": {Permit: 2, Buckets: one(2, 3), Reserving: true, Longest: 4, Pause: 2, Calls: 6},
		"giving back":                      {Permit: 1, Buckets: one(2, 1), Returns: true, Pause: 2, Calls: 6, Clock: true},
		"settling":                         {Permit: 1, Buckets: one(2, 1), Settling: true, Reserving: true, Longest: 4, Pause: 3, Calls: 6},
		"all together":                     {Permit: 1, Buckets: one(2, 1), Reserving: true, Returns: true, Settling: true, Longest: 4, Pause: 1, Calls: 5, Losses: true, Clock: true},
		"one rate, two bursts":             {Permit: 1, Buckets: []Bucket{{1, 1}, {3, 1}}, Reserving: true, Longest: 4, Pause: 2, Calls: 5},
		"two rates, the faster larger":     {Permit: 2, Buckets: []Bucket{{1, 1}, {3, 2}}, Reserving: true, Longest: 8, Pause: 3, Calls: 5},
		"two rates, the faster smaller":    {Permit: 2, Buckets: []Bucket{{3, 1}, {2, 2}}, Reserving: true, Longest: 8, Pause: 1, Calls: 5},
		"two rates, the faster of burst 1": {Permit: 4, Buckets: []Bucket{{3, 1}, {1, 4}}, Reserving: true, Longest: 8, Pause: 2, Calls: 5},
		"two rates and the clock":          {Permit: 2, Buckets: []Bucket{{1, 1}, {3, 2}}, Reserving: true, Longest: 8, Pause: 2, Calls: 4, Clock: true},
		"a cancelled turn is taken":        {Permit: 1, Buckets: one(2, 1), Reserving: true, Reuse: true, Longest: 4, Pause: 3, Calls: 6, Losses: true},
		"three rates":                      {Permit: 6, Buckets: []Bucket{{1, 2}, {2, 3}, {2, 6}}, Reserving: true, Longest: 8, Pause: 2, Calls: 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found := Search(&r)
			require.Empty(t, text(found.Broken))
			require.Greater(t, found.Worlds, 5_000)
		})
	}
}

// TestTheSearchFindsBrokenRules: these are the shortest histories that break them. The
// last reservations and what is taken are used as promised after the last move.
func TestTheSearchFindsBrokenRules(t *testing.T) {
	raceflag.SkipSequential(t)
	one := Rules{Permit: 1, Buckets: []Bucket{{2, 1}}, Longest: 4, Pause: 3, Calls: 6}
	with := func(change func(r *Rules)) *Rules {
		r := one
		change(&r)
		return &r
	}
	cancelling := func(c Cancelling) *Rules {
		return with(func(r *Rules) { r.Reserving, r.Cancel = true, c })
	}
	for name, row := range map[string]struct {
		rules *Rules
		want  []string
	}{
		"a cancel gives back all": {cancelling(All), []string{
			"reserve 1 within 1 [0]", "reserve 2 within 1 [0]", "cancel reservation 0", "reserve 1 within 1 [0]",
		}},
		"a cancel compares the instant only": {cancelling(AllIfInstant), []string{
			"reserve 1 within 1 [0]", "reserve 2 within 1 [0]", "cancel reservation 0", "reserve 1 within 1 [0]",
		}},
		"a cancel gives back less what was reserved since, by the state": {cancelling(LessByState), []string{
			"reserve 2 within 1 [0]", "reserve 2 within 4 [0]", "leave reservation 0", "3 ticks; cancel reservation 0", "take 2 [0]",
		}},
		"a cancel gives back less what was reserved since, by a high-water mark": {cancelling(LessByMark), []string{
			"reserve 1 within 1 [0]", "leave reservation 0", "1 ticks; take 1 [0]", "cancel reservation 0", "take 2 [0]",
		}},
		"all are given back after a hold": {with(func(r *Rules) { r.Returns, r.Return = true, Full }), []string{
			"take 1, unused [0]", "1 ticks; take 1 [0]", "give back all of 0", "take 2 [0]",
		}},
		"permits are given back while others wait": {with(func(r *Rules) { r.Reserving, r.Returns, r.Return = true, true, ExactAnyway }), []string{
			"take 1, unused [0]", "reserve 2 within 1 [0]", "give back all of 0", "reserve 1 within 1 [0]",
		}},
		"a cancelled turn is taken after a step of the clock": {with(func(r *Rules) {
			r.Reserving, r.Reuse, r.Clock, r.Buckets = true, true, true, []Bucket{{1, 1}}
		}), []string{
			"reserve 1 within 1 [0]", "reserve 1 within 1 [0]", "cancel reservation 0", "the clock steps by -1", "1 ticks; reserve 1 within 1 [0]",
		}},
		// The right rule, and seven calls: the second reservation writes what the first one wrote.
		"a cancel of a state that another call wrote again": {with(func(r *Rules) {
			r.Reserving, r.Clock, r.Buckets, r.Pause, r.Calls = true, true, []Bucket{{1, 1}}, 1, 7
		}), []string{
			"take 1 [0]", "reserve 1 within 1 [0]", "the clock steps by -1", "take 1 [0]", "1 ticks; reserve 1 within 1 [0]", "cancel reservation 0", "reserve 1 within 1 [0]",
		}},
		"a faster rate repays what was promised": {with(func(r *Rules) {
			r.Reserving, r.Unmarked, r.Permit, r.Buckets, r.Longest = true, true, 2, []Bucket{{1, 1}, {3, 2}}, 8
		}), []string{
			"take 1 [0]", "reserve 1 within 8 [0]", "reserve 3 within 8 [1]",
		}},
	} {
		require.Equal(t, row.want, text(Search(row.rules).Broken), name)
	}
}

func text(h History) []string {
	var all []string
	for _, m := range h {
		all = append(all, m.String())
	}
	return all
}

func (h History) String() string { return strings.Join(text(h), "; ") }

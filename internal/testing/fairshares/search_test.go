package fairshares

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
)

var (
	small = Rule{Burst: 8, Permit: 2, Flow: 1, Kept: 3, Spare: 1, Grain: 12, Epoch: 16}
	large = Rule{Burst: 12, Permit: 1, Flow: 1, Kept: 6, Spare: 2, Grain: 12, Epoch: 12}
	one   = []int64{1}
	ones  = [][]int64{one, one, one, one}
)

// TestEveryPromiseHolds: in every history of the scope, no more is missing than the burst, a denial changes nothing and
// says exactly when the call is allowed, the weights are those of the tenants that are counted, and the bucket has what
// tenants behind the line may take. What the results of two tenants that always ask differ by, in any interval in which
// both are counted, is at most how far one can be behind the line and the largest call, in either direction; what is here
// is the exact number, in grains per weight: a permit is 12.
func TestEveryPromiseHolds(t *testing.T) {
	raceflag.SkipSequential(t)
	for name, test := range map[string]struct {
		Scope
		apart int64
	}{
		"two tenants":                {Scope{Rule: small, Weights: ones[:2], Permits: ones, Pauses: []int64{1, 7, 16}, Moves: 12}, 0},
		"three tenants":              {Scope{Rule: small, Weights: ones[:3], Permits: ones, Pauses: []int64{1, 7, 16}, Moves: 8}, 0},
		"four tenants":               {Scope{Rule: large, Weights: ones, Permits: ones, Pauses: []int64{5, 12}, Moves: 8}, 0},
		"weights that change":        {Scope{Rule: large, Weights: [][]int64{one, {1, 2}, one}, Permits: ones, Pauses: []int64{1, 5, 12}, Moves: 8}, 0},
		"the clock steps back":       {Scope{Rule: small, Weights: [][]int64{one, {1, 2}, one}, Permits: ones, Pauses: []int64{1, 7, -3}, Moves: 8}, 0},
		"calls of two sizes":         {Scope{Rule: large, Weights: ones[:3], Permits: [][]int64{one, {1, 3}, {2}}, Pauses: []int64{1, 5, 12}, Moves: 7}, 0},
		"a call for the whole burst": {Scope{Rule: small, Weights: ones[:3], Permits: [][]int64{one, {7}, one}, Pauses: []int64{1, 16}, Moves: 9}, 0},

		"two that always ask":                 {Scope{Rule: small, Weights: ones[:2], Permits: ones, Pauses: []int64{1, 7}, Always: 2, Moves: 60}, 12},
		"and one that asks at times":          {Scope{Rule: small, Weights: ones[:3], Permits: ones, Pauses: []int64{1, 7}, Always: 2, Moves: 60}, 36},
		"of weights 1 and 4":                  {Scope{Rule: small, Weights: [][]int64{one, {4}}, Permits: ones, Pauses: []int64{1, 7}, Always: 2, Moves: 60}, 27},
		"of weights 1 and 2, and another":     {Scope{Rule: small, Weights: [][]int64{one, {2}, one}, Permits: ones, Pauses: []int64{1, 7}, Always: 2, Moves: 60}, 42},
		"for one and for three permits":       {Scope{Rule: small, Weights: ones[:2], Permits: [][]int64{one, {3}}, Pauses: []int64{1, 7}, Always: 2, Moves: 60}, 72},
		"for one and two, of weights 1 and 4": {Scope{Rule: large, Weights: [][]int64{one, {4}}, Permits: [][]int64{one, {2}}, Pauses: []int64{1, 7}, Always: 2, Moves: 60}, 30},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test.MostSeen = 100_000
			if test.Always == 0 {
				test.MostSeen = limitertest.Rounds(3_000_000, 60_000)
			}
			found := Search(test.Scope)
			require.Empty(t, found.Broken, found)
			require.Equal(t, test.apart, found.Apart, found)
			t.Logf("%d worlds", found.Worlds)
		})
	}
}

// TestWhoComesNewWaitsForItsOwnPermits: whatever two tenants do before each of its calls, one that is not counted is served
// within the time in which its permits are restored; beside another one that is new, within that of both.
func TestWhoComesNewWaitsForItsOwnPermits(t *testing.T) {
	raceflag.SkipSequential(t)
	scope := func(r Rule, tenants int) Scope {
		return Scope{Rule: r, Weights: ones[:tenants], Permits: ones, Pauses: one, Always: 1, Moves: 40, MostSeen: 60_000}
	}
	for tenants, wait := range map[int]int64{2: 0, 3: 2, 4: 4} {
		found := Search(scope(small, tenants))
		require.Empty(t, found.Broken, found)
		require.Equal(t, wait, found.Wait, found)
	}

	without := small
	without.NoSpare = true
	found := Search(scope(without, 2))
	require.Greater(t, found.Wait, int64(10), "of as many ticks as the search has: %v", found)

	without = small
	without.LoneIsAlone = true
	found = Search(scope(without, 2))
	require.Greater(t, found.Wait, int64(10), "the only one takes all that comes: %v", found)
}

// promising has a burst of which a quarter is what the tenants are promised together at once.
var promising = Rule{Burst: 8, Permit: 2, Flow: 1, Kept: 3, Spare: 1, Grain: 12, Epoch: 16, Parts: 12, Tau: 4}

// TestPromisesAreKept: in every history of the scope, a tenant that is counted, and asks for no more than it is promised,
// is served; and the bucket has what all of them are promised, and what tenants behind the line may take.
func TestPromisesAreKept(t *testing.T) {
	scope := func(r Rule, promises ...[]int64) Scope {
		return Scope{Rule: r, Weights: [][]int64{one, {1, 2}, one, one}[:len(promises)], Promises: promises, Permits: ones, Pauses: []int64{1, 4, 16},
			Moves: 14, MostSeen: limitertest.Rounds(3_000_000, 60_000)}
	}
	none, half, most, all := []int64{0}, []int64{6}, []int64{8}, []int64{12}
	back, clock := scope(promising, half, none, half), []int64{1, 4, -3}
	back.Pauses = clock
	for name, s := range map[string]Scope{
		"half of the rule":                 scope(promising, half, none),
		"all of it, beside another tenant": scope(promising, half, none, half),
		"all of the rule":                  scope(promising, half, half),
		"more than there is":               scope(promising, most, most, none),
		"promises that change":             scope(promising, []int64{0, 4, 8}, half),
		"the clock steps back":             back,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found := Search(s)
			require.Empty(t, found.Broken, found)
			t.Logf("%d worlds", found.Worlds)
		})
	}
	for name, wrong := range map[string]struct {
		change   func(*Rule)
		promises [][]int64
	}{
		"others leave nothing":           {func(r *Rule) { r.Unkept = true }, [][]int64{all, all}},
		"a promise begins with all":      {func(r *Rule) { r.FullAtOnce = true }, [][]int64{most, most, none}},
		"more is promised than there is": {func(r *Rule) { r.Overbooked = true }, [][]int64{all, all}},
	} {
		t.Run(name, func(t *testing.T) {
			raceflag.SkipSequential(t)
			t.Parallel()
			r := promising
			wrong.change(&r)
			s := scope(r, wrong.promises...)
			s.Moves, s.MostSeen = 40, 400_000
			found := Search(s)
			require.NotEmpty(t, found.Broken, found)
			t.Log(found)
		})
	}
}

// TestTheSearchFindsWhatOtherRulesBreak: each part of the rule is needed.
func TestTheSearchFindsWhatOtherRulesBreak(t *testing.T) {
	raceflag.SkipSequential(t)
	weights := [][]int64{one, {1, 2}, one}
	for name, other := range map[string]Rule{
		"nothing is kept for others":          {NoKept: true},
		"what a tenant has not had is no end": {Unbounded: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := large
			r.NoKept, r.Unbounded = other.NoKept, other.Unbounded
			found := Search(Scope{Rule: r, Weights: weights, Permits: ones, Pauses: []int64{1, 5, 12}, Moves: 40, MostSeen: 400_000})
			require.Regexp(t, "grains are owed", found.Broken)
			t.Log(found)
		})
	}
	t.Run("calls larger than a share do not count behind the line", func(t *testing.T) {
		r := large
		r.Kept = 0 // a call is larger than any share
		always := Scope{Rule: r, Weights: ones[:2], Permits: [][]int64{one, {3}}, Pauses: []int64{1, 7}, Always: 2, Moves: 40, MostSeen: 400_000}
		kept := Search(always)
		require.LessOrEqual(t, kept.Apart, int64(12*(1+3+2*6)), kept)
		r.NoMost = true
		always.Rule = r
		require.Greater(t, Search(always).Apart, 2*kept.Apart)
	})
}

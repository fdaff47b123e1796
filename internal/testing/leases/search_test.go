package leases

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
)

// The usual run goes through as many operations as take some seconds; all six take a
// minute, with RATELIMIT_LONG=1.
func TestNoInterleavingHoldsMoreThanTheLimit(t *testing.T) {
	for name, s := range Scopes() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s.Operations = limitertest.Rounds(s.Operations, s.Usual)
			if testing.Short() {
				s.Operations = 3
			}
			worlds, found := Search(s)
			require.Nil(t, found)
			t.Logf("%d operations, %d worlds", s.Operations, worlds)
		})
	}
}

// A search that does not find what a mistake breaks proves nothing.
func TestTheSearchFindsEachMistake(t *testing.T) {
	raceflag.SkipSequential(t)
	for mistake, s := range Mistakes() {
		t.Run(string(mistake), func(t *testing.T) {
			_, found := Search(s)
			require.NotNil(t, found)
			t.Logf("\n%s", found)
		})
	}
}

// What the documentation names as beyond the guarantee is that: a server's clock that steps
// forward, and callers' clocks further apart than WithMaxSkew.
func TestTheSearchFindsWhatIsNotGuaranteed(t *testing.T) {
	forward := Scope{
		Processes: 2, Operations: 3, Limit: 1, Permits: [3]int{1, 1}, Leases: [3]int{2, 2}, Steps: []int{2},
	}
	_, found := Search(forward)
	require.NotNil(t, found)
	t.Logf("\n%s", found)

	apart := Scope{
		Processes: 2, Operations: 2, Limit: 1, Permits: [3]int{1, 1}, Leases: [3]int{2, 2}, ByCaller: true, Skew: 1, Apart: 4,
	}
	_, found = Search(apart)
	require.NotNil(t, found)
	t.Logf("\n%s", found)
	apart.Apart = 2 // a margin on either side, so that a server's clock can share the key
	_, found = Search(apart)
	require.Nil(t, found)
}

package leases

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/limitertest"
)

func TestNoInterleavingHoldsMoreThanTheLimit(t *testing.T) {
	for name, s := range Scopes() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s.Operations -= limitertest.Rounds(0, 1)
			worlds, found := Search(s)
			if found != nil {
				require.Fail(t, "the limit is broken", "%s", strings.Join(found.Moves, "\n"))
			}
			t.Logf("%d operations, %d worlds", s.Operations, worlds)
			require.Greater(t, worlds, 10_000)
		})
	}
}

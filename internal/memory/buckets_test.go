package memory

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/gcra"
)

// TestAShareIsExact: its product may be beyond 64 bits.
func TestAShareIsExact(t *testing.T) {
	const most = 1_000_000_000_000
	for _, test := range []struct {
		back, limit, size, want int64
	}{
		{0, 10, 3, 0},
		{5, 10, 3, 1},
		{-5, 10, 3, -2},
		{-10, 10, 3, -3},
		{most, most, most, most},
		{most - 1, most, most, most - 1},
		{-(most - 1), most, most - 1, -(most - 1)},
		{most, 1, most, 1 << 62},
		{-most, 1, most, -(1 << 62)},
	} {
		b := &Buckets{Rule: gcra.New(most, time.Hour, test.size, 0)}
		require.Equal(t, test.want, b.share(int(test.back), int(test.limit)), "%+v", test)
	}
}

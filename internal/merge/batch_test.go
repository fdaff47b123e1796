package merge

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

func TestARunTakesACacheLine(t *testing.T) {
	require.EqualValues(t, 64, unsafe.Sizeof(run{}))
}

// TestOnlyEqualRequestsForAKeyJoin the latest run.
func TestOnlyEqualRequestsForAKeyJoin(t *testing.T) {
	b, last := newBatch(), map[string]int{}
	_, ok := b.join("k", 1, 0)
	require.False(t, ok, "there is no run to join")
	b.add(ctx, "", "k", 2, 0, last)
	_, ok = b.join("k", 1, 0)
	require.False(t, ok)
	_, ok = b.join("l", 2, 0)
	require.False(t, ok)
	s, ok := b.join("k", 2, 0)
	require.True(t, ok)
	require.Equal(t, slot{b, 0, 1}, s)
	s, _ = b.add(ctx, "", "l", 2, 0, last)
	require.Equal(t, slot{b, 1, 0}, s)
	_, ok = b.join("k", 2, 0)
	require.False(t, ok, "its run is not the latest")
	s, _ = b.add(ctx, "", "k", 2, 0, last)
	require.Equal(t, slot{b, 0, 2}, s)
	s, ok = b.join("k", 2, 0)
	require.True(t, ok)
	require.Equal(t, slot{b, 0, 3}, s)
}

func TestAFullBatchTakesNoCall(t *testing.T) {
	b, last := newBatch(), map[string]int{}
	_, ok := b.add(ctx, "", "k", 1, 0, last)
	require.True(t, ok)
	for i := 1; i < maxCalls; i++ {
		s, ok := b.join("k", 1, 0)
		require.True(t, ok)
		require.Equal(t, slot{b, 0, i}, s)
	}
	_, ok = b.join("k", 1, 0)
	require.False(t, ok)
	_, ok = b.add(ctx, "", "k", 1, 0, last)
	require.False(t, ok)
}

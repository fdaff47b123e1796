package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
)

// byFirst compares first bytes only, so that stability shows.
func byFirst(a, b []byte) int { return cmp.Compare(a[0], b[0]) }

func sortAll(t *testing.T, s *sorter, records [][]byte) (sorted []string) {
	t.Helper()
	for _, r := range records {
		require.NoError(t, s.add(r))
	}
	it, err := s.sorted()
	require.NoError(t, err)
	for {
		r, err := it.next()
		if err == io.EOF {
			_, err = it.next()
			require.Equal(t, io.EOF, err, "the end stays")
			return sorted
		}
		require.NoError(t, err)
		sorted = append(sorted, string(r))
	}
}

func randomRecords(n int) (records [][]byte) {
	random := rand.New(rand.NewPCG(1, 2))
	for i := range n {
		records = append(records, fmt.Appendf(nil, "%c%d%s", 'a'+rune(random.IntN(5)), i, bytes.Repeat([]byte("x"), random.IntN(20))))
	}
	return records
}

func TestSorterInFilesSortsAsInMemory(t *testing.T) {
	raceflag.SkipSequential(t)
	records := randomRecords(20_000)
	want := make([]string, len(records))
	for i, r := range records {
		want[i] = string(r)
	}
	slices.SortStableFunc(want, func(a, b string) int { return cmp.Compare(a[0], b[0]) })

	for _, tt := range []struct{ chunkBytes, levels int }{
		{1 << 20, 0}, // all in memory
		{40_000, 1},  // some runs
		{4_000, 2},   // more than lie side by side
		{100, 3},     // a few records each
	} {
		t.Run(fmt.Sprint(tt.chunkBytes), func(t *testing.T) {
			dir := t.TempDir()
			s := &sorter{compare: byFirst, dir: dir, chunkBytes: tt.chunkBytes}
			defer s.close()
			require.Equal(t, want, sortAll(t, s, records))
			require.Len(t, s.levels, tt.levels)
			files, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Less(t, len(files), maxRuns*max(1, tt.levels), "merged runs are removed")
		})
	}
}

func TestSorterOfNothing(t *testing.T) {
	s := &sorter{compare: byFirst, dir: t.TempDir(), chunkBytes: 100}
	defer s.close()
	require.Empty(t, sortAll(t, s, nil))
}

func TestSorterKeepsEmptyAndLargeRecords(t *testing.T) {
	whole := func(a, b []byte) int { return bytes.Compare(a, b) }
	s := &sorter{compare: whole, dir: t.TempDir(), chunkBytes: 100}
	defer s.close()
	large := bytes.Repeat([]byte("l"), 3*runBufferSize)
	require.Equal(t, []string{"", "", "a", string(large)}, sortAll(t, s, [][]byte{large, {}, []byte("a"), {}}))
}

func TestSorterReportsAFailedWrite(t *testing.T) {
	s := &sorter{compare: byFirst, dir: filepath.Join(t.TempDir(), "missing"), chunkBytes: 10}
	defer s.close()
	require.NoError(t, s.add([]byte("a1")))
	require.ErrorIs(t, s.add([]byte("a2")), os.ErrNotExist)
}

func TestSorterReportsADamagedRun(t *testing.T) {
	s := &sorter{compare: byFirst, dir: t.TempDir(), chunkBytes: 1}
	defer s.close()
	require.NoError(t, s.add([]byte("a12345")))
	require.NoError(t, s.add([]byte("b12345")))
	require.NoError(t, s.levels[0][0].Truncate(3))
	_, err := s.sorted()
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
}

package main

import (
	"bytes"
	"encoding/csv"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
)

var update = flag.Bool("update", false, "draw the checked-in pictures again")

func TestPicturesAreCheckedIn(t *testing.T) {
	if *update {
		require.NoError(t, run(t.Context(), "."))
	}
	var want []string
	for name, draw := range pictures() {
		svg, err := draw(t.Context())
		require.NoError(t, err)
		name += ".svg"
		want = append(want, name)
		checkedIn, err := os.ReadFile(name)
		require.NoError(t, err)
		require.True(t, bytes.Equal(svg, checkedIn), "%s is not what the limiters do now; go run . in docs/pictures draws it again", name)
	}
	files, err := filepath.Glob("*.svg")
	require.NoError(t, err)
	require.ElementsMatch(t, want, files, "a picture that no scene draws")
}

// What the pictures are drawn to show: at most so many in any 10 s at the boundary.
func TestBoundaryShowsWhatTheAlgorithmsPromise(t *testing.T) {
	boundary := scenes()[3]
	require.Equal(t, "boundary", boundary.name)
	got := map[string][2]int{}
	for _, a := range algorithms() {
		answers, err := replay(t.Context(), a, boundary)
		require.NoError(t, err)
		got[a.name] = [2]int{allowed(answers), most(answers)}
	}
	require.Equal(t, map[string][2]int{
		"token bucket":             {14, 12},
		"leaky bucket, capacity 1": {4, 2},
		"fixed window":             {20, 19},
		"sliding window":           {12, 10},
		"sliding log":              {12, 10},
	}, got)
}

// What docs/choosing.md says of the neighbours. The greedy one gets what the quiet ones leave, and all of it when they stop.
func TestAGreedyNeighbour(t *testing.T) {
	late := func(answers []answer) (n int) {
		for _, a := range answers {
			if a.allowed && a.at >= 30*seconds {
				n++
			}
		}
		return n
	}
	got := map[string][3]int{}
	for _, s := range sharings() {
		quiet, ofGreedy, err := s.replay(t.Context())
		require.NoError(t, err)
		require.Len(t, quiet, 84)
		require.Len(t, ofGreedy, 510)
		got[s.name] = [3]int{allowed(quiet), allowed(ofGreedy), late(ofGreedy)}
	}
	require.Equal(t, map[string][3]int{
		"one token bucket":  {35, 210, 60},
		"a bucket for each": {84, 75, 20},
		"fair token bucket": {84, 158, 66},
	}, got)
}

// docs/choosing.md says which limiters have the same row.
func TestLimitersOfOneRowDecideAlike(t *testing.T) {
	rows := map[string]algorithm{}
	for _, a := range algorithms() {
		rows[a.name] = a
	}
	sliding := func(storage ratelimit.Storage) func(ratelimit.Client, int) (ratelimit.Limiter, error) {
		return func(c ratelimit.Client, limit int) (ratelimit.Limiter, error) {
			return ratelimit.NewSlidingWindow(c, limit, window, ratelimit.WithStorage(storage))
		}
	}
	for name, limiter := range map[string]func(ratelimit.Client, int) (ratelimit.Limiter, error){
		"token bucket": func(c ratelimit.Client, limit int) (ratelimit.Limiter, error) {
			return ratelimit.NewLeakyBucket(c, ratelimit.Per(limit, window), limit)
		},
		"sliding window": sliding(ratelimit.StorageList),
		"sliding log":    sliding(ratelimit.StorageZSet),
	} {
		for _, s := range scenes() {
			want, err := replay(t.Context(), rows[name], s)
			require.NoError(t, err)
			got, err := replay(t.Context(), algorithm{limiter: limiter}, s)
			require.NoError(t, err)
			require.Equal(t, decisions(want), decisions(got), "%s, %s", name, s.name)
		}
	}
}

func decisions(answers []answer) []bool {
	var all []bool
	for _, a := range answers {
		all = append(all, a.allowed)
	}
	return all
}

// TestWhatSlicesWaste: the table of docs/leases.md has the figures of the picture.
func TestWhatSlicesWaste(t *testing.T) {
	guide, err := os.ReadFile("../leases.md")
	require.NoError(t, err)
	rows, err := csv.NewReader(bytes.NewReader(leaseFigures)).ReadAll()
	require.NoError(t, err)
	lines := map[string]string{}
	for _, row := range rows[1:] {
		lines[row[0]] += fmt.Sprintf(" %s %%, %s |", row[2], row[3])
	}
	require.Len(t, lines, 4)
	for processes, line := range lines {
		require.Contains(t, string(guide), fmt.Sprintf("\n| %s |%s\n", processes, line))
	}
}

package docstest

import (
	"flag"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the figures of bench/results.md into the tables that are marked as taken from it")

// A table that begins under one of
//
//	<!-- from bench/results.md -->
//	<!-- from bench/results.md: 256 callers, one hot key -->
//
// has the first columns of the table of that heading, which may go on: "256 callers, one hot
// key, allowed". Without a heading in the mark, each row begins with its own.
var mark = regexp.MustCompile(`^<!-- from bench/results.md(?:: (.*))? -->$`)

// TestFiguresAreThoseOfTheBench: after a new run of the bench,
//
//	go test ./internal/testing/docstest -run Figures -update
//
// brings the tables of the pages up to date.
func TestFiguresAreThoseOfTheBench(t *testing.T) {
	results := pages(t, "bench/results.md")[0]
	checked := 0
	for _, p := range pages(t, "README.md", "docs/*.md", "docs/from/*.md") {
		before := slices.Clone(p.lines)
		for i, line := range p.lines {
			found := mark.FindStringSubmatch(line)
			if found == nil {
				continue
			}
			for j := i + 3; strings.HasPrefix(p.lines[j], "|"); j++ { // below the table's head
				own := cells(p.lines[j])
				heading, row := found[1], own
				if heading == "" {
					heading, row = own[0], own[1:]
				}
				measured := figures(results, heading, row[0])
				require.GreaterOrEqual(t, len(measured), len(row),
					"%s:%d: bench/results.md has no such row of %q under a heading that begins with %q", p.name, j+1, row[0], heading)
				checked++
				copy(row, measured)
				p.lines[j] = "| " + strings.Join(own, " | ") + " |"
			}
		}
		if *update {
			require.NoError(t, os.WriteFile(p.path, []byte(strings.Join(p.lines, "\n")), 0o644))
			continue
		}
		for i := range before {
			require.Equal(t, p.lines[i], before[i], "%s:%d is not what bench/results.md has; go test ./internal/testing/docstest -run Figures -update writes\n%s", p.name, i+1, p.lines[i])
		}
	}
	require.Positive(t, checked)
}

// figures is the row of that name in the first table whose heading begins so, nil if there is none.
func figures(results page, heading, name string) []string {
	under := false
	for _, line := range results.lines {
		if title, ok := strings.CutPrefix(line, "### "); ok {
			if under {
				return nil
			}
			under = strings.HasPrefix(title, heading)
		}
		if under && strings.HasPrefix(line, "|") {
			if row := cells(line); row[0] == name {
				return row
			}
		}
	}
	return nil
}

func cells(row string) []string {
	all := strings.Split(strings.Trim(row, "|"), "|")
	for i := range all {
		all[i] = strings.TrimSpace(all[i])
	}
	return all
}

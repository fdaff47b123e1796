package docstest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A snippet that stands directly under
//
//	<!-- from grpclimit/example_test.go -->
//
// is a part of that file, indented less. It is of another module, whose tests compile it.
var borrowed = regexp.MustCompile(`^<!-- from (\S+\.go) -->$`)

// source is the file that a block is a part of, "" if it stands on its own.
func (p page) source(b block) string {
	if above := b.line - 3; above >= 0 { // b.line counts from 1, and the fence is in between
		if found := borrowed.FindStringSubmatch(p.lines[above]); found != nil {
			return found[1]
		}
	}
	return ""
}

// TestBorrowedSnippetsAreInTheirFiles, line by line.
func TestBorrowedSnippetsAreInTheirFiles(t *testing.T) {
	checked := 0
	for _, p := range pages(t, "README.md", "docs/*.md", "docs/from/*.md") {
		marks := 0
		for _, line := range p.lines {
			if borrowed.MatchString(line) {
				marks++
			}
		}
		for _, b := range p.blocks() {
			name := p.source(b)
			if name == "" {
				continue
			}
			marks--
			checked++
			file, err := os.ReadFile(filepath.Join(root(t), name))
			require.NoError(t, err, "%s:%d", p.name, b.line)
			require.True(t, holds(string(file), b.text), "%s:%d: these lines are not in %s", p.name, b.line, name)
		}
		require.Zero(t, marks, "%s: a mark stands directly above its snippet", p.name)
	}
	require.NotZero(t, checked)
}

// holds reports whether text is in file with each line indented by the same number of tabs.
func holds(file, text string) bool {
	for _, indent := range []string{"", "\t", "\t\t"} {
		lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
		for i, line := range lines {
			if line != "" {
				lines[i] = indent + line
			}
		}
		if strings.Contains("\n"+file, "\n"+strings.Join(lines, "\n")+"\n") {
			return true
		}
	}
	return false
}

func TestHolds(t *testing.T) {
	const file = "a\n\n\tb\n\t\tc\n\td\n"
	for text, want := range map[string]bool{
		"a\n": true, "b\n\tc\nd\n": true, "c\n": true, "b\nc\n": false, "b\n\tc\n\nd\n": false, "e\n": false, "a\n\nb\n": false,
	} {
		require.Equal(t, want, holds(file, text), text)
	}
}

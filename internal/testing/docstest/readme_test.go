package docstest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTheReadmeIsReadInOneSitting: what is longer has a guide in docs/.
func TestTheReadmeIsReadInOneSitting(t *testing.T) {
	require.LessOrEqual(t, len(pages(t, "README.md")[0].lines), 260, "move a section to its guide, and link it")
}

// TestTheReadmeBeginsWithTwoCommands for a clone: one shows what the library does, the other runs the
// tests. CI runs both.
func TestTheReadmeBeginsWithTwoCommands(t *testing.T) {
	top := pages(t, "README.md")[0]
	top.lines = top.lines[:60]
	makefile, err := os.ReadFile(filepath.Join(root(t), "Makefile"))
	require.NoError(t, err)
	ci, err := os.ReadFile(filepath.Join(root(t), ".ci/run"))
	require.NoError(t, err)
	for _, target := range []string{"quickstart", "test"} {
		command := "make " + target
		shown := false
		for _, b := range top.blocks() {
			for line := range strings.Lines(b.text) {
				before, _, _ := strings.Cut(line, "#")
				shown = shown || strings.TrimSpace(before) == command
			}
		}
		require.True(t, shown, "no block in the first %d lines of README.md has %q on a line", len(top.lines), command)
		require.Contains(t, string(makefile), "\n"+target+": ## ")
		require.Regexp(t, `(?m)\b`+command+`( |$)`, string(ci), ".ci/run runs something else")
	}
}

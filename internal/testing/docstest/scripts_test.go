package docstest

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestScriptsAreFoundAsPrinted: wherever a page has ratelimit scripts --find, the digest is that of a script of this version,
// and the line is one of it. The example of the command's help is made when it runs.
func TestScriptsAreFoundAsPrinted(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "ratelimit")
	build := exec.Command("go", "build", "-o", program, ".")
	build.Dir = filepath.Join(root(t), "cmd/ratelimit")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	pages, printed := pages(t, "*.md", "docs/*.md", "cmd/ratelimit/*.md", "cmd/ratelimit/main.go"), 0
	for _, p := range pages {
		for i, line := range p.lines {
			for _, command := range regexp.MustCompile(`scripts --find \S+( --line \d+)?`).FindAllString(strings.ReplaceAll(line, "`", " "), -1) {
				printed++
				out, err := exec.Command(program, strings.Fields(command)...).CombinedOutput()
				require.NoError(t, err, "%s:%d: %s: write the digest and the line that its --help has: %s", p.name, i+1, command, out)
			}
		}
	}
	require.Equal(t, 3, printed)
}

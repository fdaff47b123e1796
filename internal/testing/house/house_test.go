package house_test

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/testing/house"
)

const root = "../../.."

// TestTheRootPackageStaysSmall: what these numbers bound is what a newcomer has to read, and what a maintainer has to keep in
// mind. A change that passes one of them is a reason to look for a simpler one.
func TestTheRootPackageStaysSmall(t *testing.T) {
	p, err := house.Measure(root)
	require.NoError(t, err)
	t.Logf("%d files, %d lines, %d exported names, %d methods, a knot of %d files: %s",
		p.Files, p.Lines, p.Names, p.Methods, len(p.Knot), strings.ReplaceAll(strings.Join(p.Knot, " "), root+"/", ""))
	require.LessOrEqual(t, p.Files, 40, "files")
	require.LessOrEqual(t, p.Lines, 9_000, "lines")
	require.LessOrEqual(t, p.Names, 130, "exported names")
	require.LessOrEqual(t, p.Methods, 125, "methods")
	require.LessOrEqual(t, len(p.Knot), 25, "files of which each needs all others: %v", p.Knot)

	doc := exec.Command("go", "doc", "-all", ".")
	doc.Dir = root
	text, err := doc.Output()
	require.NoError(t, err)
	lines := bytes.Count(text, []byte("\n"))
	t.Logf("go doc -all: %d lines", lines)
	require.LessOrEqual(t, lines, 2_110, "lines of go doc -all: 2,000 are aimed at")
}

// TestTheDocsStayShort counts the guides, and the scripts that are checked in as Redis runs them.
func TestTheDocsStayShort(t *testing.T) {
	require.LessOrEqual(t, linesBelow(t, "docs", ".md"), 3_480, "3,400 are aimed at")
	require.LessOrEqual(t, linesBelow(t, "scripts/assembled", ".lua"), 5_345, "5,000 are aimed at")
}

// linesBelow counts the lines of the files below a folder with this ending.
func linesBelow(t *testing.T, folder, ending string) (lines int) {
	require.NoError(t, filepath.WalkDir(filepath.Join(root, folder), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ending) {
			return err
		}
		text, err := os.ReadFile(path)
		lines += bytes.Count(text, []byte("\n"))
		return err
	}))
	t.Logf("%s: %d lines", folder, lines)
	return lines
}

package docstest

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	span     = regexp.MustCompile("`([^`\\s]+)`")
	fileName = regexp.MustCompile(`^[\w./-]+\.(go|lua|md)$|^(internal|examples|bench)/[\w/]+$`)
)

// TestNamedFilesExist: a file or folder that a page names in a code span exists. A name
// without a folder may stand in any.
func TestNamedFilesExist(t *testing.T) {
	if _, err := os.Stat(filepath.Join(root(t), "internal/merge")); err != nil {
		t.Skip("left out: docs/architecture.md names the files of internal/merge, which is not there yet")
	}
	known := map[string]bool{}
	require.NoError(t, fs.WalkDir(os.DirFS(root(t)), ".", func(name string, entry fs.DirEntry, err error) error {
		if name == ".git" && entry.IsDir() {
			return fs.SkipDir
		}
		known[name], known[path.Base(name)] = true, true
		return err
	}))
	for _, p := range pages(t, "README.md", "CONTRIBUTING.md", "docs/*.md", "docs/from/*.md") {
		for i, line := range p.prose() {
			for _, found := range span.FindAllStringSubmatch(line, -1) {
				require.False(t, fileName.MatchString(found[1]) && !known[strings.TrimSuffix(found[1], "/")], "%s:%d: %s does not exist", p.name, i+1, found[1])
			}
		}
	}
}

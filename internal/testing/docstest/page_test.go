package docstest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A page is a Markdown file.
type page struct {
	path  string // absolute
	name  string // relative to the repository
	lines []string
}

// A block is a fenced block of a page.
type block struct {
	language string
	line     int // of its first line in the page, from 1
	text     string
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../../..")
	require.NoError(t, err)
	return dir
}

// pages are the files that match the patterns, which are relative to the repository.
func pages(t *testing.T, patterns ...string) (all []page) {
	t.Helper()
	for _, pattern := range patterns {
		paths, err := filepath.Glob(filepath.Join(root(t), pattern))
		require.NoError(t, err)
		require.NotEmpty(t, paths, pattern)
		for _, path := range paths {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			name, err := filepath.Rel(root(t), path)
			require.NoError(t, err)
			all = append(all, page{path, filepath.ToSlash(name), strings.Split(string(text), "\n")})
		}
	}
	return all
}

// blocks are the fenced blocks of the page.
func (p page) blocks() (all []block) {
	var open *block
	for i, line := range p.lines {
		language, fence := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case fence && open == nil:
			open = &block{language: language, line: i + 2}
		case fence:
			all = append(all, *open)
			open = nil
		case open != nil:
			open.text += line + "\n"
		}
	}
	return all
}

// prose is the page's lines, those of fenced blocks left empty.
func (p page) prose() []string {
	lines := make([]string, len(p.lines))
	fenced := false
	for i, line := range p.lines {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
		} else if !fenced {
			lines[i] = line
		}
	}
	return lines
}

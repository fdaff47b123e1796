package docstest

import (
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	picture = regexp.MustCompile(`!\[([^]]*)\]\(`)
	code    = regexp.MustCompile("`[^`]*`")
	heading = regexp.MustCompile(`^#{1,6} +(.*)$`)
)

// TestLinksLeadSomewhere: the file and the heading that a relative link names exist.
func TestLinksLeadSomewhere(t *testing.T) {
	checked := 0
	for _, p := range pages(t, "*.md", "docs/*.md", "docs/from/*.md", "docs/releases/*.md", "shims/*/*.md") {
		for i, line := range p.prose() {
			for _, found := range link.FindAllStringSubmatch(code.ReplaceAllString(line, ""), -1) {
				target, err := url.Parse(found[1])
				require.NoError(t, err, "%s:%d", p.name, i+1)
				if target.IsAbs() {
					continue
				}
				checked++
				path := p.path
				if target.Path != "" {
					path = filepath.Join(filepath.Dir(p.path), filepath.FromSlash(target.Path))
				}
				text, err := os.ReadFile(path)
				if info, statErr := os.Stat(path); statErr == nil && info.IsDir() {
					err = nil
				}
				require.NoError(t, err, "%s:%d: the link %s leads to no file", p.name, i+1, found[1])
				require.False(t, target.Fragment != "" && !anchors(string(text))[target.Fragment], "%s:%d: the link %s leads to no heading", p.name, i+1, found[1])
			}
		}
	}
	require.NotZero(t, checked, "no link was found")
}

// TestPicturesHaveAText: for those who do not see them.
func TestPicturesHaveAText(t *testing.T) {
	checked := 0
	for _, p := range pages(t, "*.md", "docs/*.md", "docs/from/*.md", "docs/releases/*.md", "shims/*/*.md") {
		for i, line := range p.prose() {
			for _, found := range picture.FindAllStringSubmatch(line, -1) {
				checked++
				require.Greater(t, len(found[1]), 20, "%s:%d: say what the picture shows", p.name, i+1)
			}
		}
	}
	require.NotZero(t, checked, "no picture was found")
}

// anchors are the headings of a text as GitHub names them. It numbers headings of one name,
// which the pages here do not link to.
func anchors(text string) map[string]bool {
	all := map[string]bool{}
	for _, line := range (page{lines: strings.Split(text, "\n")}).prose() {
		if found := heading.FindStringSubmatch(line); found != nil {
			all[anchor(found[1])] = true
		}
	}
	return all
}

func anchor(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, heading)
}

func TestAnchorsAreThoseOfGitHub(t *testing.T) {
	for heading, want := range map[string]string{
		"The first 429":                 "the-first-429",
		"Where is the call resent?":     "where-is-the-call-resent",
		"`NewFallback`: what to choose": "newfallback-what-to-choose",
	} {
		got := anchor(heading)
		require.Equal(t, want, got, "%s: %s, not %s", heading, got, want)
	}
}

package docstest

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNoPageNamesADigest after --find: a digest is one version's, and the next one has no such script.
// The help of ratelimit scripts has an example of its own version.
func TestNoPageNamesADigest(t *testing.T) {
	digest, found := regexp.MustCompile(`scripts\b.* --find (\S+)`), 0
	for _, p := range pages(t, "*.md", "docs/*.md", "cmd/ratelimit/*.md", "cmd/ratelimit/*.go") {
		for i, line := range p.lines {
			if m := digest.FindStringSubmatch(line); m != nil {
				found++
				require.NotRegexp(t, `^[0-9a-f]{4}`, m[1], "%s:%d: write DIGEST", p.name, i+1)
			}
		}
	}
	require.GreaterOrEqual(t, found, 3)
}

package docstest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTheReadmeIsReadInOneSitting: what is longer has a guide in docs/.
func TestTheReadmeIsReadInOneSitting(t *testing.T) {
	require.LessOrEqual(t, len(pages(t, "README.md")[0].lines), 260, "move a section to its guide, and link it")
}

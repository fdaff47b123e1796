package script

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDigestIsTheOneOfRedis(t *testing.T) {
	// redis-cli SCRIPT LOAD 'return 1'
	require.Equal(t, []any{"evalsha", "e0e1f9fabfc9d4800c877a703b823ac0578ff8db"}, New("return 1").BySHA)
	require.Equal(t, []any{"eval", "return 1"}, New("return 1").Whole)
}

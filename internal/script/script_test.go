package script

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestALazyScript is made when it is needed, once for all who need it at the same time, and again when nothing holds it any more.
func TestALazyScript(t *testing.T) {
	made := 0
	s := Lazy(func() string {
		made++
		return fmt.Sprint("return ", 1)
	})
	require.Zero(t, made)
	require.Equal(t, New("return 1").BySHA(), s.BySHA())
	source := s.Source()
	require.Equal(t, []any{"eval", "return 1"}, s.Whole())
	before := made
	require.LessOrEqual(t, before, 2)
	require.Equal(t, "return 1", source)
	for range 3 {
		runtime.GC()
	}
	require.Equal(t, "return 1", s.Source())
	require.Equal(t, before+1, made)
	require.Equal(t, "e0e1f9fabfc9d4800c877a703b823ac0578ff8db", s.Digest())
	require.Equal(t, before+1, made, "the digest stays")
}

func TestDigestIsTheOneOfRedis(t *testing.T) {
	// redis-cli SCRIPT LOAD 'return 1'
	require.Equal(t, []any{"evalsha", "e0e1f9fabfc9d4800c877a703b823ac0578ff8db"}, New("return 1").BySHA())
	require.Equal(t, []any{"eval", "return 1"}, New("return 1").Whole())
}

package script

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAssembleSplicesSections(t *testing.T) {
	driver := "-- driver\nlocal key\n--@ load\nif x then\n--@ store\nend\n--@ absent\n"
	algorithm := "-- a header for readers\n--- load\nlocal state\n--@ inner\n--- store\nset()\n"
	s := Assemble(driver, algorithm, "--- inner\ninherit()\n--- store\nset(2)\n")
	require.Equal(t, "-- driver\nlocal key\nlocal state\ninherit()\nif x then\nset(2)\nend\n", s.Source)
	require.Equal(t, []any{"eval", s.Source}, s.Whole)
}

func TestDigestIsTheOneOfRedis(t *testing.T) {
	// redis-cli SCRIPT LOAD 'return 1'
	require.Equal(t, []any{"evalsha", "e0e1f9fabfc9d4800c877a703b823ac0578ff8db"}, New("return 1").BySHA)
}

func TestSectionsThatIncludeOneAnotherPanic(t *testing.T) {
	require.Panics(t, func() { Assemble("--@ a\n", "--- a\n--@ b\n--- b\n--@ a\n") })
}

package yamlfile

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAny(t *testing.T) {
	f, root := Parse("f", []byte(`
any: &any
  text: a
  quoted: "yes"
  words: [yes, Off, true, "no", ~]
  numbers: [1, -2, 1_000, 0x10, 010, 1.5, 1e+06, 18446744073709551615]
  day: 2026-11-25
  1: {deep: [{er: x}, []]}
  none:
merged: {<<: *any, text: b, words: 1, numbers: 1, quoted: 1}
`))
	require.NoError(t, f.Err())
	require.Equal(t, map[string]any{
		"text": "a", "quoted": "yes", "words": []any{true, false, true, "no", nil},
		"numbers": []any{1, -2, 1000, 16, 8, 1.5, 1e6, uint64(18446744073709551615)},
		"day":     "2026-11-25", "1": map[string]any{"deep": []any{map[string]any{"er": "x"}, []any{}}}, "none": nil,
	}, root.Get("any").Any())
	require.Equal(t, map[string]any{
		"text": "b", "words": 1, "numbers": 1, "quoted": 1, "day": "2026-11-25", "1": map[string]any{"deep": []any{map[string]any{"er": "x"}, []any{}}}, "none": nil,
	}, root.Get("merged").Any())
	require.Nil(t, root.Get("nowhere").Any())

	f, root = Parse("f", []byte("any: [.inf,\n .nan, !!int x]"))
	root.Get("any").Any()
	require.ErrorContains(t, f.Err(), "f:1: element 1 of any is .inf, which is no number in JSON; write it in quotes\n"+
		"f:2: element 2 of any is .nan, which is no number in JSON; write it in quotes\nf:2: element 3 of any cannot be read: ")
}

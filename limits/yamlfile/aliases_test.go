package yamlfile

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAliases without an end, or with one that nobody would see, are mistakes.
func TestAliases(t *testing.T) {
	bomb := "a0: &a0 [1, 2, 3, 4, 5, 6, 7, 8]\n"
	for i := 1; i < 40; i++ {
		bomb += fmt.Sprintf("a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 8), ", "))
	}
	for text, want := range map[string]string{
		"list: &a\n- x: 1\n  list: *a":         "f:3: *a is a part of what it stands for; write it out",
		"a: &a\n  b: &b {c: *a}\n  d: *b":      "f:2: *a is a part of what it stands for; write it out",
		"a: &a\n  <<: *a":                      "f:2: *a is a part of what it stands for; write it out",
		bomb:                                   "f:1: aliases add 1099511627776 values to the file; write it with fewer of them",
		"a: &a {x: 1}\nb: *a\nc: [*a, *a]":     "",
		"a: &a [1]\nb: [*a]\nc: &a [2]\nd: *a": "", // an anchor that is given twice
	} {
		f, root := Parse("f", []byte(text))
		if want == "" {
			require.NoError(t, f.Err())
			continue
		}
		require.EqualError(t, f.Err(), want)
		require.Empty(t, root.Fields())
	}
}

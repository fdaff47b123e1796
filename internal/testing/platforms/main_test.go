package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
)

// TestWhatDoesNotCompileElsewhere is found in a package and in its tests, for each platform, and
// what compiles is not complained about.
func TestWhatDoesNotCompileElsewhere(t *testing.T) {
	raceflag.Skip(t)
	module := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":          "module example.com/m\n\ngo 1.25.0\n",
		"m.go":            "package m\n\nimport \"syscall\"\n\nvar Stop = syscall.SIGSTOP\n",
		"m_test.go":       "package m\n\nvar most int = 1 << 31\n",
		"n/n.go":          "package n\n\nimport \"strings\"\n\nvar Get = strings.Cut\n",
		"n/n_test.go":     "package n_test\n\nimport \"example.com/m/n\"\n\nvar _, _, _ = n.Get(\"a=b\", \"=\")\n",
		"n/n_darwin.go":   "package n\n\nfunc f() { x := 1 }\n",
		"n/n_plan9.go":    "package n\n\nfunc g() { y := 1 }\n",
		"n/n_386_test.go": "package n\n\nimport \"example.com/m/none\"\n\nvar _ = none.X\n",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(module, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(module, name), []byte(text), 0o644))
	}
	want := map[platform][]string{
		{"windows", "amd64"}: {"m.go:5:20: undefined: syscall.SIGSTOP"},
		{"darwin", "arm64"}:  {"n_darwin.go:3:12: declared and not used: x"},
		{"linux", "386"}:     {"m_test.go:3:16: cannot use 1 << 31", "example.com/m/none"},
		{"linux", "amd64"}:   nil,
	}
	for p, want := range want {
		errs, _ := newChecker(p).check(module)
		for _, text := range want {
			found := false
			for _, err := range errs {
				found = found || strings.Contains(err.Error(), text)
			}
			require.True(t, found, "%v: %q is not in %v", p, text, errs)
		}
		if want == nil {
			require.Empty(t, errs, "%v", p)
		}
		require.NotContains(t, fmt.Sprint(errs), "n_plan9")
	}
}

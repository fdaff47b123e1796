package redistest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// outcome stands in for the test that Require ends.
type outcome struct {
	testing.TB
	verdict, message string
}

func (o *outcome) Helper()                     {}
func (o *outcome) Skipf(f string, args ...any) { o.end("skip", f, args) }
func (o *outcome) Fatalf(f string, args ...any) {
	o.end("fatal", f, args)
}

func (o *outcome) end(verdict, f string, args []any) {
	o.verdict = verdict
	o.message = strings.Replace(f, "%s", args[0].(string), 1)
	panic(o) // neither returns
}

func requireOf(program string) (o *outcome) {
	o = &outcome{}
	defer func() { _ = recover() }()
	Require(o, program)
	return o
}

func TestMissingProgramSkipsExceptInCI(t *testing.T) {
	for _, tc := range []struct{ ci, program, verdict string }{
		{"", "no-such-program", "skip"},
		{"false", "no-such-program", "skip"},
		{"true", "no-such-program", "fatal"},
		{"true", "go", ""},
	} {
		t.Setenv("CI", tc.ci)
		o := requireOf(tc.program)
		require.Equal(t, tc.verdict, o.verdict, "verdict with CI="+tc.ci)
		require.False(t, o.verdict != "" && !strings.Contains(o.message, "install no-such-program"), "message %q does not say what to install", o.message)
	}
}

func TestNamedServerMustBeThere(t *testing.T) {
	t.Setenv("CI", "")
	t.Setenv(serverEnv, "no-such-program")
	require.Equal(t, "fatal", requireOf("redis-server").verdict, "verdict")
}

func TestServersOwnFaketimeIsForItsLoader(t *testing.T) {
	dir := t.TempDir()
	server, library := filepath.Join(dir, "valkey-server"), filepath.Join(dir, "libfaketime.so.1")
	require.NoError(t, os.WriteFile(server, nil, 0o700))
	t.Setenv(serverEnv, server)
	require.Empty(t, ownFaketimeLibrary(), "own library")
	require.NoError(t, os.WriteFile(library, nil, 0o600))
	require.Equal(t, library, faketimeLibrary(), "library")
	require.Equal(t, "REDISTEST_PRELOAD="+library, preload()[0], "preloaded")
}

package redistest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
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
		equal(t, "verdict with CI="+tc.ci, o.verdict, tc.verdict)
		if o.verdict != "" && !strings.Contains(o.message, "install no-such-program") {
			t.Errorf("message %q does not say what to install", o.message)
		}
	}
}

func TestNamedServerMustBeThere(t *testing.T) {
	t.Setenv("CI", "")
	t.Setenv(serverEnv, "no-such-program")
	equal(t, "verdict", requireOf("redis-server").verdict, "fatal")
}

func TestServersOwnFaketimeIsForItsLoader(t *testing.T) {
	dir := t.TempDir()
	server, library := filepath.Join(dir, "valkey-server"), filepath.Join(dir, "libfaketime.so.1")
	check(t, os.WriteFile(server, nil, 0o700))
	t.Setenv(serverEnv, server)
	equal(t, "own library", ownFaketimeLibrary(), "")
	check(t, os.WriteFile(library, nil, 0o600))
	equal(t, "library", faketimeLibrary(), library)
	equal(t, "preloaded", preload()[0], "REDISTEST_PRELOAD="+library)
}

package main

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// events are what go test -json prints of a package with a test that passes, three that
// are left out and, if it fails, one that fails.
func events(fails bool) string {
	lines := []string{
		`{"Action":"start","Package":"p"}`,
		`{"Action":"run","Package":"p","Test":"TestA"}`,
		`{"Action":"output","Package":"p","Test":"TestA","Output":"=== RUN   TestA\n"}`,
		`{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:1: chatter\n"}`,
		`{"Action":"output","Package":"p","Test":"TestA","Output":"--- PASS: TestA (0.00s)\n"}`,
		`{"Action":"pass","Package":"p","Test":"TestA","Elapsed":0}`,
		`{"Action":"output","Package":"p","Test":"TestB","Output":"    b_test.go:1: redistest: install redis-server (Debian: …)\n"}`,
		`{"Action":"skip","Package":"p","Test":"TestB","Elapsed":0}`,
		`{"Action":"output","Package":"p","Test":"TestC","Output":"    c_test.go:1: redistest: with -short, no servers are started\n"}`,
		`{"Action":"skip","Package":"p","Test":"TestC","Elapsed":0}`,
		`{"Action":"output","Package":"p","Test":"TestD","Output":"    d_test.go:1: it has one count\n"}`,
		`{"Action":"skip","Package":"p","Test":"TestD","Elapsed":0}`,
	}
	if !fails {
		lines = append(lines,
			`{"Action":"output","Package":"p","Output":"PASS\n"}`,
			`{"Action":"output","Package":"p","Output":"ok  \tp\t0.01s\n"}`,
			`{"Action":"pass","Package":"p","Elapsed":0.01}`)
	} else {
		lines = append(lines,
			`{"Action":"output","Package":"p","Test":"TestE","Output":"=== RUN   TestE\n"}`,
			`{"Action":"output","Package":"p","Test":"TestE","Output":"    e_test.go:1: one is not two\n"}`,
			`{"Action":"output","Package":"p","Test":"TestE","Output":"--- FAIL: TestE (0.00s)\n"}`,
			`{"Action":"fail","Package":"p","Test":"TestE","Elapsed":0}`,
			`{"Action":"output","Package":"p","Test":"TestF","Output":"panic: boom\n"}`,
			`{"Action":"output","Package":"p","Output":"FAIL\tp\t0.01s\n"}`,
			`{"Action":"fail","Package":"p","Elapsed":0.01}`)
	}
	return strings.Join(lines, "\n")
}

func TestAPackageThatPassesIsOneLine(t *testing.T) {
	var out strings.Builder
	r := newReport(&out, false)
	r.read(strings.NewReader(events(false)))
	require.Equal(t, "ok  \tp\t0.01s\n", out.String())
	require.False(t, r.failed)
	require.Equal(t, "1 tests passed in 2s; left out: 1 for lack of a server, 1 by -short, with servers and the long ones, "+
		"1 for reasons of their own (-v prints them)", r.summary(2*time.Second))
}

func TestWhatAFailedTestPrintsIsPrinted(t *testing.T) {
	var out strings.Builder
	r := newReport(&out, false)
	r.read(strings.NewReader(events(true)))
	require.Equal(t, "    e_test.go:1: one is not two\n--- FAIL: TestE (0.00s)\nFAIL\tp\t0.01s\npanic: boom\n", out.String())
	require.True(t, r.failed)
	require.Regexp(t, "^FAILED: 1 tests passed", r.summary(0))
}

func TestVerboseOutputIsPrintedOnce(t *testing.T) {
	var out strings.Builder
	r := newReport(&out, true)
	r.read(strings.NewReader(events(true)))
	require.Equal(t, 1, strings.Count(out.String(), "one is not two"))
	require.Contains(t, out.String(), "chatter")
}

func TestABuildThatFailsIsAFailure(t *testing.T) {
	var out strings.Builder
	r := newReport(&out, false)
	r.read(strings.NewReader(`{"ImportPath":"p","Action":"build-output","Output":"p.go:1: undefined: x\n"}
{"ImportPath":"p","Action":"build-fail"}
no JSON`))
	require.Equal(t, "p.go:1: undefined: x\nno JSON", out.String())
	require.True(t, r.failed)
}

func TestTheLongestTestsAreNamed(t *testing.T) {
	r := newReport(io.Discard, false)
	r.read(strings.NewReader(`{"Action":"pass","Package":"p","Test":"TestShort","Elapsed":0.9}
{"Action":"pass","Package":"p","Test":"TestA/part","Elapsed":9}
{"Action":"pass","Package":"p","Test":"TestA","Elapsed":1}
{"Action":"fail","Package":"q","Test":"TestB","Elapsed":12.4}
{"Action":"pass","Package":"q","Elapsed":20}`))
	require.Equal(t, "longest: TestB 12s TestA 1s\nFAILED: 3 tests passed in 0s; left out: 0 for lack of a server", r.summary(0))
}

// Package raceflag knows whether the race detector runs, for tests that it makes ten times
// as slow.
package raceflag

import (
	"os"
	"testing"
)

// SkipSequential skips a long test that makes one call after the other: the race detector
// would find nothing that it does not find in shorter ones, and a further server (see
// limitertest.Rounds) hardly anything.
func SkipSequential(t testing.TB) {
	t.Helper()
	if Enabled || os.Getenv("RATELIMIT_ONCE") != "" {
		t.Skip("one call after the other, for long: it runs without the race detector and RATELIMIT_ONCE")
	}
}

// Skip is SkipSequential for what is worth its time on a further server too.
func Skip(t testing.TB) {
	t.Helper()
	if Enabled {
		t.Skip("one call after the other, for long: it runs without the race detector")
	}
}

// GoFlags are for the go commands that a test runs: with the race detector, they find compiled what the
// tests of all modules need.
func GoFlags() string {
	if Enabled {
		return "-race"
	}
	return ""
}

// Package raceflag knows whether the race detector runs, for tests that it makes ten times
// as slow.
package raceflag

import "testing"

// SkipSequential skips a long test that makes one call after the other: the race detector
// would find nothing that it does not find in shorter ones.
func SkipSequential(t testing.TB) {
	t.Helper()
	if Enabled {
		t.Skip("one call after the other, for long: it runs without the race detector")
	}
}

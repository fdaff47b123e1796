//go:build !race

// Package raceflag knows whether the race detector runs, for tests that it makes ten times
// as slow.
package raceflag

// Enabled is whether this was built with the race detector.
const Enabled = false

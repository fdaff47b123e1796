//go:build race

package raceflag

// Enabled is whether this was built with the race detector.
const Enabled = true

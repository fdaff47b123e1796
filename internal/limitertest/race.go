//go:build race

package limitertest

// raceDetector is whether the tests run under it.
const raceDetector = true

//go:build race

package release

// goflags are those of the commands that a user runs: with the race detector, they find compiled what
// the other tests have compiled.
const goflags = "-modcacherw -race"

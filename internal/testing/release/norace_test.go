//go:build !race

package release

const goflags = "-modcacherw"

package redistest

import (
	"os"
	"os/exec"
	"slices"
	"testing"
)

const (
	// serverEnv names another server program, by its name in the PATH or its absolute path.
	serverEnv     = "REDISTEST_SERVER"
	defaultServer = "redis-server"
	faketimeID    = "faketime"
)

// packages maps a program to its Debian package, if the package has another name.
var packages = map[string]string{
	"redis-cli": "redis-tools",
	"node":      "nodejs",
	"tsc":       "node-typescript",
}

// Require skips the test when one of the programs is not installed, and says what to install. With CI=true in the
// environment it fails the test instead, as it does when REDISTEST_SERVER names a program that does not exist. The
// program "faketime" stands for the library that Faketime preloads.
func Require(t testing.TB, programs ...string) {
	t.Helper()
	for _, program := range programs {
		if installed(program) {
			continue
		}
		if named := os.Getenv(serverEnv); named != "" && program == defaultServer {
			t.Fatalf("redistest: %s=%s: there is no such program", serverEnv, named)
		}
		report := t.Skipf
		if os.Getenv("CI") == "true" {
			report = t.Fatalf
		}
		pkg := program
		if p, ok := packages[program]; ok {
			pkg = p
		}
		report("redistest: install %s (Debian: apt-get install %s)", program, pkg)
	}
	if testing.Testing() && testing.Short() && slices.Contains(programs, "redis-server") {
		t.Skipf("redistest: with %s, no servers are started", "-short")
	}
}

func installed(program string) bool {
	if program == faketimeID {
		return faketimeLibrary() != ""
	}
	if program == defaultServer {
		program = serverProgram()
	}
	_, err := exec.LookPath(program)
	return err == nil
}

func serverProgram() string {
	if program := os.Getenv(serverEnv); program != "" {
		return program
	}
	return defaultServer
}

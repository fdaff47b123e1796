package redistest

import (
	"os"
	"sync"
	"testing"
)

// shared is the one server of this process.
var shared struct {
	mu sync.Mutex // guards in, and lets one test start it while others wait
	in *instance
}

// Shared returns a server that all tests of this process use together: it starts with the first call and must not be
// stopped, paused, flushed or reconfigured. Tests keep apart by their keys. Its data and its INFO counters are shared
// as well, so that a test which counts executions needs a server of its own.
func Shared(t testing.TB) *Server {
	t.Helper()
	Require(t, "redis-server")
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.in == nil {
		in, err := startShared()
		if err != nil {
			t.Fatal(err)
		}
		shared.in = in
	}
	return &Server{instance: shared.in, t: t, shared: true}
}

func startShared() (*instance, error) {
	dir, err := os.MkdirTemp("", "redistest")
	if err != nil {
		return nil, err
	}
	// By then the server runs in the directory and writes nothing to it. Removing it now makes sure that a process that
	// ends without StopShared does not leave it behind.
	defer func() { _ = os.RemoveAll(dir) }()
	in, err := newInstance(dir, config{})
	if err != nil {
		return nil, err
	}
	return in, in.launch()
}

// StopShared stops the shared server, for a TestMain that wants to leave nothing running. On Linux the server ends
// with the process anyway.
func StopShared() {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.in != nil {
		shared.in.kill()
		shared.in = nil
	}
}

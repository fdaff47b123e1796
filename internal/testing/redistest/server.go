package redistest

import (
	"context"
	"crypto/tls"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Server is a Redis server of its own process. Its methods end the test when they fail, so they belong in the test's
// goroutine; Kill, Pause and Resume cannot fail and may be called from anywhere.
type Server struct {
	*instance
	t      testing.TB
	shared bool
}

// Start starts a server and waits until it answers. The test's cleanup kills it.
func Start(t testing.TB, opts ...Option) *Server {
	t.Helper()
	c := newConfig(opts)
	requirePrograms(t, c)
	s, err := startServer(t, t.TempDir(), c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func requirePrograms(t testing.TB, c config) {
	t.Helper()
	Require(t, "redis-server")
	if c.faketime {
		Require(t, faketimeID)
	}
}

// startServer is Start for goroutines other than the test's. The directory must have been made before, so that the
// cleanup that removes it comes after the one that kills the server.
func startServer(t testing.TB, dir string, c config) (*Server, error) {
	in, err := newInstance(dir, c)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		in.kill()
		if p := in.process(); p != nil {
			if out := p.output(); t.Failed() && out != "" {
				t.Logf("redistest: the server on port %d printed: %s", in.portNumber(), out)
			}
			_ = p.log.Close()
		}
	})
	if err := in.launch(); err != nil {
		return nil, err
	}
	return &Server{instance: in, t: t}, nil
}

// startServers starts several servers at once.
func startServers(t testing.TB, count int, c config) ([]*Server, error) {
	servers, errs := make([]*Server, count), make([]error, count)
	var wg sync.WaitGroup
	for i := range servers {
		dir := t.TempDir()
		wg.Go(func() { servers[i], errs[i] = startServer(t, dir, c) })
	}
	wg.Wait()
	return servers, errors.Join(errs...)
}

// Addr returns the server's host and port.
func (s *Server) Addr() string { return loopback(s.portNumber()) }

// Port returns the server's port. It stays the same over restarts.
func (s *Server) Port() int { return s.portNumber() }

// Options returns what a client needs to reach the server: address, password, TLS; the rest is go-redis's default.
func (s *Server) Options() *redis.Options { return s.options() }

// TLSConfig returns a configuration that trusts the server's certificate, or nil without TLS.
func (s *Server) TLSConfig() *tls.Config { return s.options().TLSConfig }

// Client returns a client that the test's cleanup closes. Each tweak may change its options.
func (s *Server) Client(t testing.TB, tweaks ...func(*redis.Options)) *redis.Client {
	opt := s.options()
	for _, tweak := range tweaks {
		tweak(opt)
	}
	client := redis.NewClient(opt)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// Kill ends the server as a crash does, with SIGKILL, and waits until it is gone.
func (s *Server) Kill() {
	s.own()
	s.kill()
}

// Stop shuts the server down cleanly, with SIGTERM. It saves what it is configured to save.
func (s *Server) Stop() {
	s.own()
	s.stop()
}

// Restart starts the server again on the same port and in the same directory, and waits until it has loaded its data. It
// kills the server first if that still runs. Without Args("--appendonly", "yes") or the like there is no data to load.
func (s *Server) Restart() {
	s.t.Helper()
	s.own()
	if err := s.restart(); err != nil {
		s.t.Fatal(err)
	}
}

// Pause stops the server's process with SIGSTOP: connections stay open and can even be opened, but nothing is answered.
// Requests that arrive during the pause are executed after Resume. Pause returns when the process has really stopped.
func (s *Server) Pause() {
	s.own()
	p := s.process()
	s.paused.Store(true)
	PauseProcess(p.cmd.Process)
	if err := poll("pause", func(context.Context) error {
		if !p.exited() && !stopped(p.pid()) {
			return errors.New("still running")
		}
		return nil
	}); err != nil {
		s.t.Error(err)
	}
}

// Resume ends a Pause.
func (s *Server) Resume() {
	s.own()
	s.paused.Store(false)
	ResumeProcess(s.process().cmd.Process)
}

// StepClock moves the clock of a server started with Faketime by d, which may be negative, and waits until the
// server's TIME says so. Steps add up, and the clock keeps running. The expiry of keys follows it.
func (s *Server) StepClock(d time.Duration) {
	s.t.Helper()
	if !s.faketime {
		s.t.Fatal("redistest: StepClock needs a server started with Faketime")
	}
	if err := s.step(d, s.options()); err != nil {
		s.t.Fatal(err)
	}
}

// HoldClock stops the clock of a server started with Faketime at an instant, to the microsecond, until the next
// HoldClock or StepClock. A server whose clock is held must not be restarted. Valkey reads the clock only once a
// millisecond from 9.1 on and adds what has passed since, so its TIME is up to a millisecond off.
func (s *Server) HoldClock(at time.Time) {
	s.t.Helper()
	if !s.faketime {
		s.t.Fatal("redistest: HoldClock needs a server started with Faketime")
	}
	if err := s.hold(at); err != nil {
		s.t.Fatal(err)
	}
}

// RushClock makes the clock of a server started with Faketime run times as fast, until the next HoldClock or StepClock.
// So the commands of one script are far apart, as on a machine that is busy with something else.
func (s *Server) RushClock(times int) {
	s.t.Helper()
	if !s.faketime {
		s.t.Fatal("redistest: RushClock needs a server started with Faketime")
	}
	if err := s.rush(times); err != nil {
		s.t.Fatal(err)
	}
}

// own panics for the shared server: other tests are using it.
func (s *Server) own() {
	if s.shared {
		panic("redistest: the shared server must not be stopped or paused; use Start")
	}
}

package redistest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// launchTries bounds the attempts to start, each on another port.
const launchTries = 20

var errPortTaken = errors.New("redistest: the port is taken")

// instance is a server in its directory, running or not. It belongs to no test; its methods return errors.
type instance struct {
	config
	dir string
	tls *tls.Config
	fakeClock
	paused atomic.Bool

	// mu guards what follows: a test may kill the server from a goroutine of its own.
	mu    sync.Mutex
	port  int // fixed by the first start that succeeds
	proc  *process
	ready bool // whether a start has succeeded
}

func newInstance(dir string, c config) (*instance, error) {
	in := &instance{config: c, dir: dir}
	if c.secure {
		conf, err := writeCertificates(dir)
		if err != nil {
			return nil, err
		}
		in.tls = conf
	}
	if c.faketime {
		in.file = filepath.Join(dir, "clock")
		if err := in.run(); err != nil {
			return nil, err
		}
	}
	return in, nil
}

// launch starts the server for the first time, on a free port.
func (in *instance) launch() error {
	var err error
	for range launchTries {
		var port int
		if port, err = freePort(in.cluster); err != nil {
			return err
		}
		if err = in.start(port); !errors.Is(err, errPortTaken) {
			return err
		}
	}
	return err
}

// restart starts the server again, in its directory and on its port.
func (in *instance) restart() error {
	in.kill()
	deadline := time.Now().Add(startDeadline)
	for {
		err := in.start(in.portNumber())
		if !errors.Is(err, errPortTaken) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(pollInterval)
	}
}

func (in *instance) start(port int) error {
	args, err := in.arguments(port)
	if err != nil {
		return err
	}
	var env []string
	var after func(pid int)
	if in.faketime {
		env, after = in.environment(), removeSharedClock
	}
	proc, err := startProcess(in.dir, env, after, serverProgram(), args...)
	if err != nil {
		return err
	}
	in.mu.Lock()
	in.port = port
	if in.proc != nil {
		_ = in.proc.log.Close()
	}
	in.proc = proc
	in.mu.Unlock()
	in.paused.Store(false)
	if err := in.awaitReady(proc); err != nil {
		return err
	}
	in.mu.Lock()
	in.ready = true
	in.mu.Unlock()
	return nil
}

func (in *instance) arguments(port int) ([]string, error) {
	number := strconv.Itoa(port)
	if in.sentinel != "" {
		// Sentinel needs a file that it can rewrite. After a restart it goes on with what it has written there.
		file := filepath.Join(in.dir, "sentinel.conf")
		if in.started() {
			return []string{file, "--sentinel"}, nil
		}
		text := fmt.Sprintf("port %s\nbind 127.0.0.1\ndir %q\nloglevel warning\n%s\n", number, in.dir, in.sentinel)
		return []string{file, "--sentinel"}, os.WriteFile(file, []byte(text), 0o600)
	}
	args := []string{"--bind", "127.0.0.1", "--dir", in.dir, "--save", "", "--loglevel", "warning"}
	if in.secure {
		args = append(args, "--port", "0", "--tls-port", number, "--tls-auth-clients", "no",
			"--tls-cert-file", filepath.Join(in.dir, certFile), "--tls-key-file", filepath.Join(in.dir, keyFile),
			"--tls-ca-cert-file", filepath.Join(in.dir, caFile))
	} else {
		args = append(args, "--port", number)
	}
	if in.password != "" {
		args = append(args, "--requirepass", in.password, "--masterauth", in.password)
	}
	return append(args, in.args...), nil
}

// awaitReady waits until the process proc answers and has loaded its data. It compares the process id, because another
// test's server may have taken the port first and may be the one that answers.
func (in *instance) awaitReady(proc *process) error {
	opt := in.options()
	opt.MaxRetries, opt.PoolSize = -1, 1
	client := redis.NewClient(opt)
	defer client.Close()
	reachable := false
	err := poll("start "+serverProgram(), func(ctx context.Context) error {
		if proc.exited() {
			return nil // handled below, without waiting for the deadline
		}
		if !reachable { // a plain dial first, because the client would log every refused connection
			conn, err := net.DialTimeout("tcp", opt.Addr, time.Second)
			if err != nil {
				return err
			}
			reachable = true
			_ = conn.Close()
		}
		info, err := client.Info(ctx).Result()
		switch {
		case err != nil:
			return err
		case infoField(info, "process_id") != strconv.Itoa(proc.pid()):
			return errPortTaken
		case infoField(info, "loading") == "1":
			return errors.New("still loading")
		}
		return nil
	})
	if proc.portTaken() {
		return errPortTaken
	}
	if proc.exited() {
		err = fmt.Errorf("redistest: %s ended at once: %v", serverProgram(), proc.cmd.ProcessState)
	}
	if err != nil {
		out := proc.output()
		proc.kill()
		return fmt.Errorf("%w; it printed: %s", err, out)
	}
	return nil
}

// options are the options that a client of this server needs.
func (in *instance) options() *redis.Options {
	opt := &redis.Options{Addr: loopback(in.portNumber()), Password: in.password}
	if in.tls != nil {
		opt.TLSConfig = in.tls.Clone()
	}
	return opt
}

func (in *instance) process() *process {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.proc
}

// started reports whether the server has ever been ready; it may be down now.
func (in *instance) started() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.ready
}

func (in *instance) portNumber() int {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.port
}

// running reports whether the server should answer: its process runs and is not paused.
func (in *instance) running() bool {
	p := in.process()
	return p != nil && !p.exited() && !in.paused.Load()
}

func (in *instance) kill() {
	if p := in.process(); p != nil {
		p.kill()
	}
}

func (in *instance) stop() {
	if p := in.process(); p != nil {
		p.stop()
	}
}

// infoField returns a field of an INFO reply, or "".
func infoField(info, name string) string {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

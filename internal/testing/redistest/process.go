package redistest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// stopDeadline is how long a server may take to shut down cleanly before it is killed.
const stopDeadline = 10 * time.Second

// process is one run of a server program.
type process struct {
	cmd  *exec.Cmd
	log  *os.File      // what the program prints; a file, not a pipe, so that no goroutine has to copy it
	done chan struct{} // closed when the program has ended and has been waited for
}

// startProcess runs the program in dir. When it has ended, after is called with its process id.
func startProcess(dir string, env []string, after func(pid int), program string, args ...string) (*process, error) {
	log, err := os.OpenFile(filepath.Join(dir, "server.log"), os.O_CREATE|os.O_TRUNC|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("redistest: %w", err)
	}
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = processAttributes()
	if err := cmd.Start(); err != nil {
		_ = log.Close()
		return nil, fmt.Errorf("redistest: %w", err)
	}
	p := &process{cmd: cmd, log: log, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		_ = cmd.Wait() // it ends by a signal, as a rule
		if after != nil {
			after(cmd.Process.Pid)
		}
	}()
	return p, nil
}

// EndWithTest makes the kernel kill a program that a test is about to start, when the test process dies without running its
// cleanups (on Linux).
func EndWithTest(cmd *exec.Cmd) { cmd.SysProcAttr = processAttributes() }

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// kill ends the program and its forked children at once, and waits until the program is gone.
func (p *process) kill() {
	if !p.exited() {
		killGroup(p.cmd.Process)
		<-p.done
	}
}

// stop asks the program to shut down, and kills it if it has not done so by the deadline.
func (p *process) stop() {
	if !p.exited() {
		terminate(p.cmd.Process)
		select {
		case <-p.done:
		case <-time.After(stopDeadline):
			p.kill()
		}
	}
}

// output returns the end of what the program has printed. It reads the open file, because the directory may be gone.
func (p *process) output() string {
	const most = 4096
	info, err := p.log.Stat()
	if err != nil {
		return ""
	}
	b := make([]byte, min(info.Size(), most))
	n, _ := p.log.ReadAt(b, info.Size()-int64(len(b)))
	return strings.TrimSpace(string(b[:n]))
}

// portTaken reports whether the program ended because it could not listen: another test process may have taken the port.
func (p *process) portTaken() bool {
	out := p.output()
	return p.exited() && (strings.Contains(out, "Address already in use") || strings.Contains(out, "Failed listening"))
}

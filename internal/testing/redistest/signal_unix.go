//go:build unix

package redistest

import (
	"os"
	"syscall"
)

// Each of these ignores the error of signalling a process that has just ended: either the end was wanted, or the caller
// notices it at its next command.

func killGroup(p *os.Process) { _ = syscall.Kill(-p.Pid, syscall.SIGKILL) }

// terminate also resumes the process, which could not act on the signal while it is paused.
func terminate(p *os.Process) {
	_ = p.Signal(syscall.SIGTERM)
	_ = p.Signal(syscall.SIGCONT)
}

// PauseProcess stops a process of a test, until ResumeProcess.
func PauseProcess(p *os.Process) { _ = p.Signal(syscall.SIGSTOP) }

// ResumeProcess ends a PauseProcess.
func ResumeProcess(p *os.Process) { _ = p.Signal(syscall.SIGCONT) }

//go:build !unix

package redistest

import (
	"os"
	"syscall"
)

// Redis does not run on these systems. With these functions, packages that import this one compile, and their tests are
// skipped.

func processAttributes() *syscall.SysProcAttr { return nil }
func stopped(int) bool                        { return true }
func killGroup(p *os.Process)                 { _ = p.Kill() }
func terminate(p *os.Process)                 { _ = p.Kill() }

// PauseProcess does nothing.
func PauseProcess(*os.Process) {}

// ResumeProcess does nothing.
func ResumeProcess(*os.Process) {}

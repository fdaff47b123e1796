//go:build !unix

package redistest

import (
	"os"
	"syscall"
)

// Redis does not run here; these let packages that import this one compile, and their tests skip.

func processAttributes() *syscall.SysProcAttr { return nil }
func stopped(int) bool                        { return true }
func killGroup(p *os.Process)                 { _ = p.Kill() }
func terminate(p *os.Process)                 { _ = p.Kill() }
func pause(*os.Process)                       {}
func resume(*os.Process)                      {}
